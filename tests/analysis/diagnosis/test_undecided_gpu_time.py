"""A slow clock slows all kernels; more work in launches of a fixed size leaves some as they are."""

import numpy as np
import pytest

from jitter.analysis.diagnosis.evidence.workload import WorkloadComparison, compare_launch_shapes
from jitter.analysis.execution.run_reader import LaunchShapes


def comparison(factors: tuple[float, ...], noise: float = 0.01, seed: int = 0) -> WorkloadComparison:
    """Return one with a kernel name per factor, 12 operations each; the last name has a tenth of the time."""
    rng = np.random.default_rng(seed)
    times = []
    for name, factor in enumerate(factors):
        usual = 10_000.0 if name == len(factors) - 1 else 90_000.0 / (len(factors) - 1)
        times += [(name, usual * factor * float(1 + noise * rng.standard_normal()), usual) for _ in range(12)]
    return WorkloadComparison(times=tuple(times))


@pytest.mark.parametrize("seed", range(10))
def test_a_slow_clock_slows_all_kernels(seed: int):
    assert comparison((1.2, 1.2, 1.1, 1.1), 0.03, seed).unaffected_share(0.3) == 0.0


@pytest.mark.parametrize("seed", range(10))
def test_more_work_leaves_the_optimizer_as_it_is(seed: int):
    assert comparison((1.2, 1.2, 1.44, 1.0), 0.03, seed).unaffected_share(0.3) == pytest.approx(0.1, abs=0.02)


def test_nothing_is_unaffected_of_what_is_not_slower():
    assert comparison((0.9, 1.0, 0.95, 1.0)).unaffected_share(0.3) == 0.0
    assert WorkloadComparison().unaffected_share(0.3) == 0.0


def test_one_operation_tells_nothing():
    found = WorkloadComparison(times=((0, 120.0, 100.0), (1, 100.0, 100.0)))
    assert found.unaffected_share(0.3) == 0.0


def step_of(names: list[int], factors: list[float]) -> WorkloadComparison:
    """Rank 0 of three, on each of which the same kernels run in launches of the same size."""
    rng = np.random.default_rng(3)
    baseline = np.full(len(names), 50_000.0)
    gpu = baseline * factors * (1 + 0.002 * rng.standard_normal(len(names)))
    shapes = [LaunchShapes(np.array(names), np.full(len(names), 1_024.0)) for _ in range(3)]
    rows = np.repeat(np.arange(len(names))[:, None], 3, axis=1)
    return compare_launch_shapes(rows, gpu, baseline, 0, shapes)


def test_kernels_after_the_last_slow_one_tell_something_if_they_occur_nowhere_else():
    """More work in launches of a fixed size: the optimizer comes last, and has no more of it."""
    found = step_of([0, 1] * 10 + [2, 2], [1.3] * 20 + [1.0] * 2)
    assert found.unaffected_share(0.3) == pytest.approx(2 / 22, abs=0.01)


def test_a_clock_that_is_slow_for_a_part_of_a_step_is_seen_by_kernels_that_occur_in_both_parts():
    found = step_of([0, 1] * 12, [1.0] * 10 + [1.3] * 14)
    assert found.unaffected_share(0.3) == 0.0
