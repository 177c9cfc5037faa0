"""Pipeline stages: which ranks are one, and a slow stage, all its ranks or one of them."""

import re
from pathlib import Path
from typing import Any

import pytest

from jitter.analysis.diagnosis.evidence.locations import _join, stages_of_ranks
from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run, ingest_traces, run_ns, small, true_gain_ns, write_traces


@pytest.mark.parametrize(
    ("job", "fault", "ranks", "cause"),
    [
        ({"ranks": 8}, "ranks=4-5", (4, 5), "gpu_time"),
        ({"ranks": 8}, "rank=4", (4,), "gpu_compute"),
        ({"ranks": 4}, "rank=2", (2,), "gpu_time"),
    ],
)
def test_a_slow_stage_may_have_more_work(
    tmp_path: Path, job: dict[str, Any], fault: str, ranks: tuple[int, ...], cause: str
):
    """Slow GPUs were named, though every replica of the stage was as slow."""
    described = Job(shape="pipeline", stages=4, steps=5, kernels=240, seed=1, **job)
    lake = ingest_run(simulate(described, [Fault.parse(f"slow_gpu:{fault},factor=1.4")]), tmp_path, "kineto")
    culprit = lake.diagnose().culprits[0]
    assert (culprit.ranks, culprit.cause) == (ranks, cause)
    said = any("more work in launches of a fixed size, or slow GPUs" in sentence for sentence in culprit.evidence)
    assert said == (cause == "gpu_time")


@pytest.mark.parametrize("fault", ["ranks=4-7,factor=1.2", "ranks=0-3,factor=1.15", "ranks=0-3,factor=1.3"])
def test_slow_stages_of_one_node_are_one_finding(tmp_path: Path, fault: str):
    """Half of the stages are slow: with one of them mended, the job waits for the other one."""
    run = simulate(small("pipeline", ranks=8, stages=4, steps=8, gpus_per_node=4), [Fault.parse(f"slow_gpu:{fault}")])
    found = ingest_run(run, tmp_path).diagnose().culprits[0]
    assert (set(found.ranks), found.cause, found.confidence) == (run.faults[0].ranks, "gpu_time", "high")
    assert found.gain_ns == pytest.approx(run_ns(run) - run_ns(simulate(run.job)), rel=0.06)


@pytest.mark.parametrize("border", [4, 6, 9])
def test_stages_that_are_slow_one_after_the_other_are_named(tmp_path: Path, border: int):
    """Over all steps each of them took as long as the others, or half of it longer."""
    late = [(rank, step) for step in range(12) for rank in ((2, 3) if step < border else (4, 5))]
    faults = [Fault.parse(f"slow_gpu:rank={rank},step={step},factor=1.25") for rank, step in late]
    run = simulate(Job(shape="pipeline", stages=4, ranks=8, steps=12, kernels=240, seed=1), faults)
    found = {one.ranks: one for one in ingest_run(run, tmp_path).diagnose().culprits}
    assert {ranks: (one.cause, one.seen.steps) for ranks, one in found.items()} == {
        (2, 3): ("gpu_compute", border),
        (4, 5): ("gpu_compute", 12 - border),
    }
    for ranks, one in found.items():
        others = [fault for fault in faults if not fault.ranks <= set(ranks)]
        assert one.gain_ns == pytest.approx(run_ns(run) - run_ns(simulate(run.job, others)), rel=0.1)
        assert any("in its other steps these kernels take as long" in line for line in one.evidence)


def test_ranks_are_joined():
    assert _join([]) == {}
    joined = _join([(1, 2), (5, 4), (2, 4), (7,), (8, 9)])
    assert len({joined[rank] for rank in (1, 2, 4, 5)}) == 1
    assert joined[8] == joined[9]
    assert len(set(joined.values())) == 3


def test_ranks_of_replicas_are_one_stage_and_of_no_pipeline_none(tmp_path: Path):
    job = Job(ranks=8, shape="pipeline", stages=4, steps=3, kernels=240, seed=1)
    run = ingest_run(simulate(job, []), tmp_path / "pipeline", "kineto").analyze().run
    stages = {frozenset({0, 1}), frozenset({2, 3}), frozenset({4, 5}), frozenset({6, 7})}
    assert stages_of_ranks(run) == {rank: stage for stage in stages for rank in stage}
    run = ingest_run(simulate(Job(ranks=4, steps=3, kernels=60, seed=1), []), tmp_path / "data", "kineto").analyze().run
    assert stages_of_ranks(run) == {}


def test_ranks_of_one_program_are_a_stage_where_gradients_are_reduced_with_another_one(tmp_path: Path):
    """As of DualPipe, in which each rank has layers of two stages."""
    job = Job(ranks=8, shape="pipeline", stages=4, steps=3, kernels=240, seed=1)
    mirrored = {"[0, 1]": "[0, 1, 6, 7]", "[6, 7]": "[0, 1, 6, 7]", "[2, 3]": "[2, 3, 4, 5]", "[4, 5]": "[2, 3, 4, 5]"}
    for path in write_traces(simulate(job, []), tmp_path / "traces"):
        path.write_text(re.sub("|".join(map(re.escape, mirrored)), lambda match: mirrored[match[0]], path.read_text()))
    stages = [{0, 1}, {2, 3}, {4, 5}, {6, 7}]
    assert stages_of_ranks(ingest_traces(tmp_path).analyze().run) == {rank: here for here in stages for rank in here}


def test_a_stage_of_one_rank_that_is_slow_in_most_steps(tmp_path: Path):
    """Two of its eight steps tell what is usual: the others are late, and not all of them."""
    slow = Fault.parse("slow_gpu:rank=2,steps=1-2+4-7,factor=1.5")
    run = simulate(Job(shape="pipeline", stages=4, ranks=4, steps=8, kernels=240, seed=1), [slow])
    found = ingest_run(run, tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.confidence, culprit.seen.steps) == ((2,), "high", 6)
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, slow), rel=0.1)


def test_a_stage_that_is_always_slow_and_slower_in_most_steps_is_charged_once(tmp_path: Path):
    """What it is slower by in most steps, and what is left then: both were told with the time that they share."""
    always, mostly = Fault.parse("slow_gpu:rank=1,factor=1.3"), Fault.parse("slow_gpu:rank=1,steps=0-4+6-9,factor=1.4")
    job = Job(shape="pipeline", stages=3, ranks=3, first_step=0, steps=12, kernels=200, seed=1)
    run = simulate(job, [always, mostly])
    found = ingest_run(run, tmp_path).diagnose().culprits
    assert {one.cause: one.ranks for one in found} == {"gpu_compute": (1,), "gpu_time": (1,)}
    assert sum(one.gain_ns for one in found) == pytest.approx(true_gain_ns(run), rel=0.1)


def test_a_stage_of_one_rank_whose_host_is_late_in_every_step_is_named_alone(tmp_path: Path):
    run = simulate(
        Job(shape="pipeline", stages=4, ranks=4, steps=8, kernels=240, seed=1), [Fault.parse("late_start:rank=2,ms=30")]
    )
    found = ingest_run(run, tmp_path).diagnose()
    (late,) = (one for one in found.of_all_ranks if one.cause == "late_start")
    assert late.ranks == (2,)
    assert "Rank 2 waits for its data: more loader workers, or prefetching; it costs" in found.verdict


def test_pauses_of_random_ranks_of_all_stages_are_one_finding(tmp_path: Path):
    """Two ranks of the second stage are too few to be random: they were named one by one, and saved nothing alone."""
    events = ((0, 1), (2, 5), (3, 8), (5, 3), (6, 6))
    pauses = [Fault.parse(f"cpu_stall:rank={rank},step={step},kernel=30,ms=25") for rank, step in events]
    run = simulate(small("pipeline", ranks=8, steps=10, stages=2), pauses)
    (culprit,) = (one for one in ingest_run(run, tmp_path).diagnose().culprits if one.rung == "ranks")
    assert (culprit.scope, culprit.ranks, culprit.recurs) == ("job", (0, 2, 3, 5, 6), "no")
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, *pauses), rel=0.05)


def test_batches_of_the_only_rank_are_told_from_a_slow_gpu_by_nothing(tmp_path: Path):
    run = simulate(small(ranks=1, steps=8), [Fault.parse("slow_gpu:rank=0,steps=2+5,factor=1.3")])
    (culprit,) = ingest_run(run, tmp_path).diagnose().culprits
    assert (culprit.ranks, culprit.cause, culprit.seen.steps) == ((0,), "gpu_time", 2)
