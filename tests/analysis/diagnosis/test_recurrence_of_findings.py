"""Whose time it is, whether it happens again, and why: three answers of a finding, of jobs whose faults are known."""

from pathlib import Path

import pytest

from jitter.analysis.diagnosis.model import Culprit, Seen
from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run

JOB = {"ranks": 8, "steps": 10, "kernels": 60, "gpus_per_node": 4, "marker": "profiler", "epoch": None, "seed": 3}


def find(folder: Path, *faults: str, **more: object) -> tuple[Culprit, ...]:
    run = simulate(Job(**{**JOB, **more}), [Fault.parse(fault) for fault in faults])  # type: ignore[arg-type]
    return ingest_run(run, folder).diagnose().culprits


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_one_long_pause_is_certain_and_its_recurrence_unknown(tmp_path: Path, ranks: int):
    """More than 10 standard deviations in one step: few ranks and few steps do not make it less certain."""
    (one,) = find(tmp_path, "cpu_stall:rank=1,step=5,kernel=20,ms=8", ranks=ranks)
    assert (one.scope, one.ranks, one.confidence, one.seen) == ("rank", (1,), "high", Seen(1, 10))
    assert one.recurs == "unknown"
    assert one.more_steps is not None
    assert (one.rung, one.loss_class) == ("ranks", "launch")


def test_the_steps_to_record_do_tell(tmp_path: Path):
    (once,) = find(tmp_path / "short", "cpu_stall:rank=1,step=5,kernel=20,ms=8")
    steps = 10 + (once.more_steps or 0)
    again = "+".join(map(str, range(5, steps, 10)))
    (long,) = find(tmp_path / "long", f"cpu_stall:rank=1,step={again},kernel=20,ms=8", steps=steps)
    assert (long.confidence, long.recurs) == ("high", "yes")
    assert long.seen == Seen(len(range(5, steps, 10)), steps)


def test_a_slow_gpu_recurs(tmp_path: Path):
    (one,) = find(tmp_path, "slow_gpu:rank=5,factor=1.2")
    assert (one.ranks, one.confidence, one.seen, one.recurs) == ((5,), "high", Seen(10, 10), "yes")
    assert (one.cause, one.cause_certainty, one.loss_class) == ("gpu_compute", "likely", "gpu")


def test_of_two_ranks_the_slow_one_is_certain_and_whether_it_is_unusual_unknown(tmp_path: Path):
    (one,) = find(tmp_path, "slow_gpu:rank=1,factor=1.2", ranks=2)
    assert (one.ranks, one.confidence) == ((1,), "high")
    assert (one.recurs, one.more_steps) == ("unknown", None)


def test_pauses_on_random_ranks_could_hit_any(tmp_path: Path):
    hit = [(0, 2), (3, 4), (6, 5), (1, 7), (7, 9), (4, 11), (2, 13), (5, 14)]
    faults = [f"cpu_stall:rank={rank},step={step},kernel=20,ms=5" for rank, step in hit]
    (one,) = find(tmp_path, *faults, steps=16)
    assert (one.scope, one.recurs, one.seen) == ("job", "no", Seen(8, 16))
    assert one.confidence == "high"


def test_ranks_of_a_host_are_late_together(tmp_path: Path):
    found = find(tmp_path, "cpu_stall:rank=4-7,step=5,kernel=20,ms=5", ranks=16)
    assert {rank for one in found for rank in one.ranks} == {4, 5, 6, 7}
    assert {one.recurs for one in found} == {"together"}


def test_a_stalled_loader_is_a_certain_cause_and_a_late_start_without_one_is_not(tmp_path: Path):
    (stalled,) = find(tmp_path / "loading", "late_start:rank=3,ms=5")
    assert (stalled.cause, stalled.cause_certainty, stalled.loss_class) == ("late_start", "certain", "start")
    (late,) = find(tmp_path / "other", "late_start:rank=3,ms=5,loading=no")
    assert (late.cause, late.cause_certainty) == ("late_start", "unknown")


def test_transfers_of_all_ranks_are_slow_together(tmp_path: Path):
    (one,) = find(tmp_path, "slow_collective:steps=4-5,factor=40", shape="tensor_parallel")
    assert (one.cause, one.cause_certainty, one.loss_class) == ("communication", "likely", "transfer")
    assert (one.confidence, one.recurs, one.seen) == ("high", "together", Seen(2, 10))
