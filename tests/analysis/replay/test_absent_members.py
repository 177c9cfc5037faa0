"""What a repair gives back where a collective may have waited for a member that was not recorded."""

from pathlib import Path

import numpy as np
import pytest

from jitter.analysis.execution.self_times import CPU, START
from jitter.analysis.replay.what_if import Scenario, ScenarioReplay
from jitter.simulate import Fault, Run, simulate
from tests.support.simulated import ingest_partial_run, small

STEPS = 6


def gains(run: Run, folder: Path, absent: int, *repairs: tuple[int, int]) -> list[list[float]]:
    """Return, for each repaired (rank, part), what it saves in each step but the first."""
    examined = ingest_partial_run(run, folder, absent=frozenset({absent})).analyze()
    every = frozenset(range(STEPS))
    scenarios = [Scenario({repair: every}) for repair in repairs]
    replay = ScenarioReplay(examined.run, examined.ends, scenarios, examined.baseline_transfers)
    for step in examined.steps.steps():
        replay.step(step, examined.steps.baseline(step))
    return np.stack(replay.gained)[1:].T.tolist()


def true_gains(run: Run, fault: Fault) -> list[float]:
    return (np.diff(run.last_collective_ends()) - np.diff(run.without(fault).last_collective_ends())).tolist()


def test_slow_transfers_are_not_given_back_for_a_late_rank(tmp_path: Path):
    """In step 3 rank 1 starts late and all transfers are slow; rank 2 was not recorded."""
    late, slow = Fault.parse("late_start:rank=1,step=3,ms=2"), Fault.parse("slow_collective:step=3,factor=5")
    run = simulate(
        small("tensor_parallel", steps=STEPS, syncs=frozenset({"after"}), noise=0.0, cpu_noise=0.0), [late, slow]
    )
    of_late, of_innocent = gains(run, tmp_path, 2, (1, START), (3, CPU))
    assert of_innocent == pytest.approx([0.0] * (STEPS - 1), abs=1e-3)
    assert of_late == pytest.approx(true_gains(run, late), abs=1e-3)
    assert max(of_late) > 1e6
    assert max(true_gains(run, slow)) > 1e6


def test_a_wait_that_an_absent_rank_hands_on_is_given_back(tmp_path: Path):
    """Rank 1 stalls; rank 2 waits for it in their tensor group, and rank 2's peers in another group for rank 2."""
    stall = Fault.parse("cpu_stall:rank=1,step=3,kernel=20,ms=4")
    run = simulate(
        small("tensor_data", ranks=8, tensor=4, steps=STEPS, syncs=frozenset({"after"}), noise=0.0, cpu_noise=0.0),
        [stall],
    )
    (of_stall,) = gains(run, tmp_path, 2, (1, CPU))
    assert of_stall == pytest.approx(true_gains(run, stall), abs=1e-3)
    assert max(of_stall) > 1e6
