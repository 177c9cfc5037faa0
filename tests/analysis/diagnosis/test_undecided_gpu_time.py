"""A slow clock slows all kernels; more work in launches of a fixed size leaves some as they are."""

import numpy as np
import pytest

from jitter.analysis.diagnosis.evidence.workload import WorkloadComparison


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
