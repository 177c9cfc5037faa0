"""A rank without a recording may be what all others wait for: it is said, with its cost, and no rank is cleared."""

from pathlib import Path

import pytest

import jitter
from jitter.simulate import Fault, Job, Run, simulate, write
from tests.support.simulated import ingest_partial_run, small

LATE = "cpu_stall:rank=3,step=3,kernel=20,ms=6"


def lake_without(run: Run, rank: int, folder: Path) -> "jitter.Lake":
    traces = folder / "traces"
    for path in write(run, traces, "kineto"):
        if path.name.startswith(f"rank-{rank}."):
            path.unlink()
    assert jitter.ingest([traces], folder / "lake", executor=jitter.LocalExecutor()).refused == []
    found = jitter.open(folder / "lake")
    assert rank not in found.ranks
    return found


@pytest.mark.parametrize("fault", [LATE, "slow_gpu:rank=3,factor=1.3"])
def test_the_recorded_ranks_wait_for_one_that_was_not(tmp_path: Path, fault: str):
    run = simulate(Job(ranks=8, steps=6, kernels=300, seed=3), [Fault.parse(fault)])
    found = lake_without(run, 3, tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.ranks, culprit.cause, culprit.confidence) == (
        "unrecorded",
        (3,),
        "communication",
        "low",
    )
    ends, without = run.last_collective_ends(), run.without().last_collective_ends()
    assert 0 < culprit.gain_ns <= 1.1 * (ends[-1] - ends[0] - (without[-1] - without[0]))
    assert "An unrecorded rank or the network holds up the recorded ranks" in found.verdict


def test_groups_of_one_recorded_rank_wait_for_one_that_was_not(tmp_path: Path):
    """Ranks 4 to 7 were not recorded. Rank 5 stalls: its tensor group waits for it, and each recorded rank's pair."""
    stall = Fault.parse("cpu_stall:rank=5,steps=3+5,kernel=20,ms=6")
    job = small("tensor_data", ranks=8, tensor=4, steps=8, kernels=100, syncs=frozenset({"after"}))
    run = simulate(job, [stall])
    (culprit,) = ingest_partial_run(run, tmp_path, absent=frozenset({4, 5, 6, 7})).diagnose().culprits
    assert (culprit.scope, culprit.ranks, culprit.confidence) == ("unrecorded", (4, 5, 6, 7), "low")
    ends, without = run.last_collective_ends(), run.without(stall).last_collective_ends()
    assert culprit.gain_ns == pytest.approx(ends[-1] - ends[0] - (without[-1] - without[0]), rel=0.1)


@pytest.mark.parametrize("rank", [3, 7])
def test_no_rank_is_cleared_where_one_is_missing(tmp_path: Path, rank: int):
    found = lake_without(simulate(small(ranks=8, steps=5)), rank, tmp_path).diagnose()
    assert found.culprits == ()
    said = f"Rank {rank} of the job was not recorded: it cannot be cleared."
    assert found.verdict.endswith(said)
    assert "no rank, host or link" not in found.verdict
    assert said in found.notes


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("fault", ["cpu_stall:rank=1,step=3-4,kernel=17,ms=5", "slow_gpu:rank=1,step=3-4,factor=1.5"])
def test_steps_that_the_late_rank_lacks_are_not_blamed_on_the_network(tmp_path: Path, ranks: int, fault: str):
    run = simulate(Job(ranks=ranks, steps=6, kernels=60, seed=5), [Fault.parse(fault)])
    found = ingest_partial_run(run, tmp_path, sees=lambda rank, step: rank != 1 or step not in (3, 4)).diagnose()
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.ranks, culprit.confidence) == ("unrecorded", (1,), "low")
    assert [key.step for key in culprit.steps] == [3, 4]
    assert "(rank 1), or for the network" in culprit.evidence[-1]
    ends, without = run.last_collective_ends(), run.without().last_collective_ends()
    assert culprit.gain_ns == pytest.approx(ends[-1] - ends[0] - (without[-1] - without[0]), rel=0.1)


def test_steps_that_one_rank_lacks_may_be_slow_by_the_network(tmp_path: Path):
    """All groups are slow in steps 2 to 4; one rank lacks one of these steps."""
    run = simulate(Job(ranks=8, steps=10, kernels=60, seed=5), [Fault.parse("slow_collective:step=2-4,factor=6")])
    found = ingest_partial_run(run, tmp_path, sees=lambda rank, step: (rank, step) != (1, 3)).diagnose()
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.cause) == ("job", "communication")
    assert [key.step for key in culprit.steps] == [2, 3, 4]
