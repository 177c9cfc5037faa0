"""A stage of one rank has only its own other steps to compare with: whatever slows a whole step stands out of them."""

from pathlib import Path

import pytest

from jitter.simulate import Fault, Job, simulate
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.simulated import ingest_partial_run, ingest_run, small, true_gain_ns

pytestmark = pytest.mark.slow

STEPS = 15


@pytest.mark.parametrize(
    ("fault", "rank", "steps", "cause"),
    [
        ("slow_gpu:rank=2,step=4-6,factor=3", 2, {4, 5, 6}, "gpu_compute"),
        ("slow_gpu:rank=1,step=8-9,factor=1.5", 1, {8, 9}, "gpu_compute"),
        ("slow_gpu:rank=0,step=5,factor=1.5", 0, {5}, "gpu_compute"),
        ("unequal_work:rank=3,step=11-13,factor=1.8", 3, {11, 12, 13}, "workload_imbalance"),
    ],
)
@fuzz
@pytest.mark.parametrize("kernels", some_of([100, 300], 2))
def test_steps_that_stand_out(tmp_path: Path, kernels: int, fault: str, rank: int, steps: set[int], cause: str):
    job = small("pipeline", steps=STEPS, kernels=kernels)
    lake = ingest_run(simulate(job, [Fault.parse(fault)]), tmp_path)
    (culprit,) = lake.diagnose().culprits
    assert (culprit.ranks, culprit.cause, culprit.confidence) == ((rank,), cause, "high")
    assert {key.step for key in culprit.steps} == steps
    assert "in its other steps" in culprit.evidence[-1]


@pytest.mark.parametrize("seed", range(2))
def test_what_varies_by_chance_does_not(tmp_path: Path, seed: int):
    job = small("pipeline", steps=STEPS, variable_work=0.03, seed=seed)
    found = ingest_run(simulate(job, []), tmp_path).diagnose()
    assert found.culprits == ()
    assert "Ranks 0-3 each run a program of their own" in found.verdict


def test_what_slows_every_step_is_not_cleared(tmp_path: Path):
    run = simulate(small("pipeline", steps=STEPS), [Fault.parse("slow_gpu:rank=2,factor=2")])
    found = ingest_run(run, tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause, culprit.is_beyond_loss) == ((2,), "gpu_time", True)
    said = "Ranks 0-3 each run a program of their own: what slows one of them in every step is seen only where"
    assert [note for note in found.notes if note.startswith(said)]


@pytest.mark.parametrize("shape", ["data_parallel", "pipeline"])
def test_who_has_peers_is_cleared(tmp_path: Path, shape: str):
    job = small(shape, steps=5, ranks=4, **({"stages": 2} if shape == "pipeline" else {}))
    found = ingest_run(simulate(job, []), tmp_path).diagnose()
    assert "stands out above the run's noise" in found.verdict
    assert not [note for note in found.notes if "of their own" in note]


@pytest.mark.parametrize("queue", [16, 40])
@pytest.mark.parametrize("unseen", [None, 1], ids=["whole", "a stage lacks the step"])
def test_who_is_held_up_by_the_launch_queue_is_not_to_blame(tmp_path: Path, queue: int, unseen: int | None):
    """Forward and backward passes take turns, each on its thread: where one waits for a place the other does, too."""
    run = simulate(small("pipeline", steps=12, launch_queue=queue), [Fault.parse("slow_gpu:rank=3,step=4-5,factor=3")])
    lake = ingest_partial_run(run, tmp_path, sees=lambda rank, step: (rank, step) != (unseen, 4))
    (culprit,) = lake.diagnose().culprits
    assert (culprit.ranks, culprit.cause, {key.step for key in culprit.steps}) == ((3,), "gpu_compute", {4, 5})
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run), rel=0.05)


@pytest.mark.parametrize(
    ("fault", "cause", "late"),
    [
        ("late_start:rank=0,steps=1-2+4+6,ms=20", "late_start", {1, 2, 4, 6}),
        ("late_start:rank=0,steps=1-2+4+6-7,ms=20", "late_start", {1, 2, 4, 6, 7}),
        ("slow_gpu:rank=2,steps=1-2+4+6,factor=1.5", "gpu_compute", {1, 2, 4, 6}),
    ],
)
def test_a_rank_that_is_late_in_more_than_half_of_the_steps_is_named(
    tmp_path: Path, fault: str, cause: str, late: set[int]
):
    """Its median step is a late one; of the others the loss would be below 0, and unknown."""
    run = simulate(small("pipeline", steps=max(late) + 1), [Fault.parse(fault)])
    found = ingest_run(run, tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause) == (tuple(run.faults[0].ranks), cause)
    assert {key.step for key in culprit.steps} == late
    assert culprit.loss_ns == pytest.approx(true_gain_ns(run, run.faults[0]), rel=0.1)


def test_a_stage_that_is_slow_by_varying_amounts_in_more_than_half_of_the_steps_is_priced(tmp_path: Path):
    """As its slow steps differ, they seemed no cluster: a fifth was told. How other stages scatter tells them apart."""
    faults = [Fault.parse(f"slow_gpu:rank=1,{more}") for more in ("steps=4,factor=1.15", "steps=5-8,factor=1.3")]
    run = simulate(Job(ranks=3, first_step=0, steps=9, kernels=100, seed=3, shape="pipeline", stages=3), faults)
    (culprit,) = ingest_run(run, tmp_path, "kineto").diagnose().culprits
    assert (culprit.ranks, culprit.cause) == ((1,), "gpu_compute")
    assert 0.8 * true_gain_ns(run) < culprit.gain_ns < true_gain_ns(run)


@pytest.mark.parametrize("stages", [2, 3])
def test_a_stage_that_is_slow_in_all_but_two_steps_is_told_with_these_steps(tmp_path: Path, stages: int):
    late = [step for step in range(12) if step not in (4, 7)]
    faults = [
        Fault.parse(f"slow_gpu:rank=1,step={step},factor={factor}")
        for step, factor in zip(late, (1.2, 1.35, 1.5, 1.25, 1.4) * 2, strict=True)
    ]
    run = simulate(Job(ranks=stages, first_step=0, steps=12, kernels=100, shape="pipeline", stages=stages), faults)
    (culprit,) = ingest_run(run, tmp_path).diagnose().culprits
    assert (culprit.ranks, [key.step for key in culprit.steps]) == ((1,), late)
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run), rel=0.1)


@pytest.mark.parametrize("steps", ["1-2+4+6", "2+5"])
def test_a_larger_batch_of_all_stages_makes_none_slow(tmp_path: Path, steps: str):
    longer = Fault.parse(f"slow_gpu:rank=0-3,steps={steps},factor=1.3")
    found = ingest_run(simulate(small("pipeline", steps=7), [longer]), tmp_path).diagnose()
    assert (found.culprits, found.conclusion.status) == ((), "within_noise")
