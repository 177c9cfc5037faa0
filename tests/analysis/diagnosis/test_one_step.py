"""One recorded step: its loss is a part of its span, the late rank is named, and nothing is said to recur."""

from pathlib import Path

import pytest

from jitter.analysis.diagnosis.model import Seen
from jitter.simulate import Fault, Job, Run, simulate
from jitter.simulate.shapes import SHAPES
from tests.support.lakes import RankLake, collective, kernel, lake_of
from tests.support.simulated import ingest_run, small

ONE_STEP = "Only one step was recorded, which cannot tell whether anything recurs: record at least 5 consecutive steps."


def one_step(shape: str = "data_parallel", **more: object) -> Job:
    return small(shape, **({"ranks": 8, "kernels": 120, "steps": 1} | more))


def gain_ns(run: Run) -> int:
    """Return by how much earlier the step ends without the faults, ns."""
    return run.last_collective_ends()[0] - run.without().last_collective_ends()[0]


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_late_rank_of_the_only_step_is_named_with_its_cost(tmp_path: Path, shape: str):
    run = simulate(one_step(shape), [Fault.parse("cpu_stall:rank=6,kernel=40,ms=4")])
    found = ingest_run(run, tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.ranks, culprit.cause) == ("rank", (6,), "cpu_launch")
    assert culprit.gain_ns == pytest.approx(gain_ns(run), rel=0.1)
    (step,) = found.steps
    assert step.step_time_ns is not None
    assert step.loss_ns is not None
    assert found.loss.fraction == pytest.approx(step.loss_ns / step.step_time_ns)
    assert found.conclusion.status == "found"
    assert (culprit.confidence, culprit.seen, culprit.recurs) == ("high", Seen(1, 1), "unknown")
    assert found.verdict.endswith(ONE_STEP)
    assert ONE_STEP in found.notes


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_no_rank_of_a_healthy_step_is_named(tmp_path: Path, shape: str):
    found = ingest_run(simulate(one_step(shape, noise=0.01)), tmp_path).diagnose()
    assert found.culprits == ()
    assert found.loss.fraction is not None
    assert found.loss.fraction < 0.1


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_host_time_from_the_marker_to_the_first_launch_is_the_ranks_own(tmp_path: Path, shape: str):
    run = simulate(one_step(shape), [Fault.parse("late_start:rank=6,ms=5,loading=no")])
    found = ingest_run(run, tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause) == ((6,), "late_start")
    # other ranks begin up to 0.4 ms after it, which is no part of the fault
    assert culprit.gain_ns == pytest.approx(gain_ns(run), abs=5e5)


def test_a_rank_that_stands_out_of_few_is_a_lead(tmp_path: Path):
    """The work of all ranks varies, so that no test of one step is significant."""
    job = one_step(ranks=4, noise=0.05, variable_work=0.03)
    found = ingest_run(simulate(job, [Fault.parse("slow_gpu:rank=2,factor=1.15")]), tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.confidence, culprit.seen) == ((2,), "low", Seen(1, 1))
    assert (culprit.recurs, culprit.more_steps) == ("unknown", 4)
    assert "it has the largest share of the loss of the only step" in culprit.evidence


def test_a_rank_that_begins_late_for_an_unknown_reason_is_not_cleared(tmp_path: Path):
    """Its marker begins late: the reason lies before the recording, and waiting for it is no part of the loss."""

    def rows(waited_ns: int) -> list[dict[str, object]]:
        work = [kernel(f"work{at}", 100_000 * at, 100_000 * at + 90_000) for at in range(1, 9)]
        return [*work, collective("ncclDevKernel_AllReduce_Sum", 1_000_000, 1_100_000 + waited_ns)]

    ranks = [RankLake(rank, {(None, 7): rows(0 if rank == 2 else 500_000)}) for rank in range(4)]
    found = lake_of(tmp_path / "lake", ranks).diagnose()
    assert found.culprits == ()
    (doubt,) = found.conclusion.doubts
    assert doubt.startswith("Rank 2 begins the recorded step last, 500 µs after the first rank (")
    assert found.conclusion.cleared == ()
    assert doubt in found.verdict
    together = [RankLake(rank, {(None, 7): rows(0)}) for rank in range(4)]
    assert lake_of(tmp_path / "other", together).diagnose().conclusion.doubts == ()


def test_late_launches_of_every_rank_in_turn_are_the_finding_of_one_step(tmp_path: Path):
    """As of a tensor-parallel job that all its hosts hold up, each at other collectives."""
    stalls = [
        Fault.parse(f"cpu_stall:rank={rank},kernel={kernel},ms=1")
        for rank in range(4)
        for kernel in range(10 + 4 * rank, 106 + 4 * rank, 16)
    ]
    run = simulate(one_step("tensor_parallel", ranks=4), stalls)
    found = ingest_run(run, tmp_path).diagnose()
    assert found.loss.ns == pytest.approx(gain_ns(run), rel=0.1)
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.cause) == ("job", "cpu_launch")
    assert culprit.gain_ns > 0.8 * gain_ns(run)
