"""Few ranks that are faster than all others: no finding, but a doubt that clears nobody."""

from pathlib import Path

import numpy as np
import pytest

from jitter.analysis.detection.findings import find_fast_ranks
from jitter.simulate import Fault, simulate
from tests.analysis.detection.test_job_outliers import STEP, gpus, team
from tests.support.simulated import ingest_run, small


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ranks", [3, 4, 8, 16])
def test_gpus_that_differ_by_chance_leave_no_gap(seed: int, ranks: int):
    assert find_fast_ranks(team(gpus(seed, ranks, 0.015)), STEP) is None


@pytest.mark.parametrize(("ranks", "fast"), [(3, (1,)), (4, (3,)), (5, (0, 2)), (8, (5,)), (8, (1, 4, 6))])
def test_fewer_than_half_are_fast(ranks: int, fast: tuple[int, ...]):
    own = gpus(1, ranks, 0.003)
    own[:, list(fast)] -= 0.12 * STEP
    found = find_fast_ranks(team(own), STEP)
    assert found is not None
    assert found.fast == fast
    assert found.slow == tuple(rank for rank in range(ranks) if rank not in fast)
    assert found.behind_ns == pytest.approx(0.12 * STEP, rel=0.1)


@pytest.mark.parametrize(("ranks", "fast"), [(2, (0,)), (4, (0, 1)), (4, (0, 1, 2)), (8, (1, 2, 3, 4, 5, 6))])
def test_half_or_more_of_the_ranks_are_not_few(ranks: int, fast: tuple[int, ...]):
    own = gpus(1, ranks, 0.003)
    own[:, list(fast)] -= 0.12 * STEP
    assert find_fast_ranks(team(own), STEP) is None


def test_slow_ranks_that_spread_as_widely_leave_no_gap():
    own = gpus(1, 6, 0.003)
    own += np.array([0.0, 0.08, 0.12, 0.16, 0.2, 0.24]) * STEP
    assert find_fast_ranks(team(own), STEP) is None


def test_three_slow_ranks_of_four_are_not_cleared(tmp_path: Path):
    faults = [Fault.parse(f"slow_gpu:rank={rank},factor=1.3") for rank in (0, 2, 3)]
    found = ingest_run(simulate(small(ranks=4, steps=6), faults), tmp_path).diagnose()
    assert not {rank for one in found.culprits for rank in one.ranks} & {1}
    assert found.conclusion.cleared == ()
    assert any(note.startswith("Rank 1 needs") and "than ranks 0,2-3: unless" in note for note in found.notes)
    assert "Rank 1 needs" in found.verdict
