"""The loss and the gains that the replay states, against the same job simulated without the fault.

Without noise all ranks' own times are alike but for the faults, so that the median is what would have been without.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import jitter
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.self_times import CPU, GPU, START
from jitter.analysis.replay.what_if import Scenario, ScenarioReplay, together
from jitter.simulate import Fault, Job, Run, simulate
from tests.support.simulated import ingest_partial_run, ingest_run, rewrite_kernels, small

pytestmark = pytest.mark.slow

FAULTS = {
    Fault.parse("slow_gpu:rank=2,factor=1.4"): [(2, GPU)],
    Fault.parse("slow_cpu:rank=1,step=2,factor=4"): [(1, START), (1, CPU)],
    Fault.parse("cpu_stall:rank=3,step=1,kernel=20,ms=4"): [(3, CPU)],
    Fault.parse("late_start:rank=0,step=3,ms=3"): [(0, START)],
}
JOBS = {
    "overlap": small("data_parallel"),
    "tensor": small("tensor_parallel", syncs=frozenset({"loss"})),
    "groups": small("tensor_data", syncs=frozenset({"before"})),
    "shards": small("sharded", syncs=frozenset({"loss", "after"}), side_stream=21),
    "experts": small("expert"),
    "a full queue": small("tensor_parallel", launch_queue=16),
}


STEPS = 6


def quiet(job: Job, *faults: Fault) -> Run:
    return simulate(Job(**{**vars(job), "noise": 0.0, "cpu_noise": 0.0}), faults)


def periods(run: Run) -> np.ndarray:
    return np.diff(run.last_collective_ends())


def gains(examined: RunAnalysis, *repairs: Sequence[tuple[int, int]] | Scenario) -> list[list[float]]:
    """Return what each scenario saves in each step but the first; of (rank, part): these repaired in every step."""
    every = frozenset(range(len(examined.keys)))
    scenarios = [
        one if isinstance(one, Scenario) else Scenario(dict.fromkeys(map(tuple, one), every)) for one in repairs
    ]
    replay = ScenarioReplay(examined.run, scenarios, examined.transfers.baseline)
    for recorded in examined.steps.stretches():
        replay.replay(recorded, examined.steps.find_baselines(recorded))
    return np.stack(replay.gained)[1:].T.tolist()


def true_gains(run: Run, *faults: Fault) -> list[float]:
    return (periods(run) - periods(run.without(*faults))).tolist()


@pytest.mark.parametrize("name", JOBS)
def test_loss_and_gains_are_those_of_the_same_job_without(tmp_path: Path, name: str):
    run = quiet(JOBS[name], *FAULTS)
    examined = ingest_run(run, tmp_path).analyze()
    assert np.isnan(examined.measured.step_ns[0])
    assert examined.measured.step_ns[1:].tolist() == periods(run).tolist()
    every = frozenset(range(run.job.steps))
    alone = [Scenario(dict.fromkeys(parts, every)) for parts in FAULTS.values()]
    stated = gains(examined, *alone, together([alone[0], alone[3]]), Scenario(everything=True))
    faults = list(FAULTS)
    repaired = [[fault] for fault in faults] + [[faults[0], faults[3]], faults]
    # how a call waits for a place in a full queue the trace does not tell: METRICS' 0.3%
    within = 0.003 if JOBS[name].launch_queue else 0.0
    for which, gained in zip(repaired, stated, strict=True):
        assert gained == pytest.approx(true_gains(run, *which), rel=within, abs=1e-3)
    assert examined.account.loss_ns[1:].tolist() == stated[-1]
    assert (np.array(stated[-1]) > 0.05 * periods(run)).any()


def forget_launches(lake: "jitter.Lake") -> "jitter.Lake":
    launches = ("launch_name", "launch_start_ns", "launch_end_ns", "launch_thread")
    return rewrite_kernels(lake, lambda rows: dict.fromkeys(launches, [None] * rows.num_rows))


@pytest.mark.parametrize(
    ("shape", "has_launches"), [("data_parallel", True), ("tensor_parallel", False), ("sharded", False)]
)
def test_who_joins_later_joins_where_the_others_then_are(tmp_path: Path, shape: str, has_launches: bool):
    """Rank 3 was not recorded in step 2; with the fault repaired all stand earlier by then."""
    fault = Fault.parse("slow_gpu:rank=1,factor=1.6")
    run = quiet(small(shape, steps=STEPS), fault)
    lake = ingest_partial_run(run, tmp_path, sees=lambda rank, step: (rank, step) != (3, 2))
    (stated,) = gains((lake if has_launches else forget_launches(lake)).analyze(), [(1, GPU)])
    assert stated == pytest.approx(true_gains(run, fault), abs=1e-3)
    assert min(stated) > 100_000


def test_slow_transfers_are_not_given_back_for_a_late_rank(tmp_path: Path):
    """In step 3 rank 1 starts late and all transfers are slow; rank 2, for which they may wait, was not recorded."""
    late, slow = Fault.parse("late_start:rank=1,step=3,ms=2"), Fault.parse("slow_collective:step=3,factor=5")
    run = quiet(small("tensor_parallel", steps=STEPS, syncs=frozenset({"after"})), late, slow)
    examined = ingest_partial_run(run, tmp_path, absent=frozenset({2})).analyze()
    of_late, of_innocent = gains(examined, [(1, START)], [(3, CPU)])
    assert of_innocent == pytest.approx([0.0] * (STEPS - 1), abs=1e-3)
    assert of_late == pytest.approx(true_gains(run, late), abs=1e-3)
    assert max(of_late) > 1e6
    assert max(true_gains(run, slow)) > 1e6


def test_a_wait_that_an_absent_rank_hands_on_is_given_back(tmp_path: Path):
    """Rank 1 stalls; rank 2 waits for it in their tensor group, and rank 2's peers in another group for rank 2."""
    stall = Fault.parse("cpu_stall:rank=1,step=3,kernel=20,ms=4")
    run = quiet(small("tensor_data", ranks=8, tensor=4, steps=STEPS, syncs=frozenset({"after"})), stall)
    (of_stall,) = gains(ingest_partial_run(run, tmp_path, absent=frozenset({2})).analyze(), [(1, CPU)])
    assert of_stall == pytest.approx(true_gains(run, stall), abs=1e-3)
    assert max(of_stall) > 1e6
