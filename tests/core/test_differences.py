"""The nth smallest difference of all pairs, against all of them sorted; and its memory."""

import tracemalloc

import numpy as np
import pytest

from jitter.core.numeric.stats import nth_difference


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("count", [2, 3, 50, 129, 130, 131, 700])
def test_all_differences_sorted_are_the_oracle(seed: int, count: int):
    rng = np.random.default_rng(seed)
    values = rng.normal(1e9, 1e5, count) if seed % 3 else rng.integers(0, 40, count).astype(float)
    if seed % 4 == 1:
        values[: count // 3] = 1e12  # outliers
    pairs = np.sort(np.abs(values[:, None] - values[None, :])[np.triu_indices(count, 1)])
    for number in {0, (len(pairs) - 1) // 4, len(pairs) // 2, len(pairs) - 1}:
        assert nth_difference(values, number) == pytest.approx(pairs[number], rel=1e-9, abs=1e-3)


def test_equal_values_differ_by_nothing():
    assert nth_difference(np.full(5000, 7e9), 100_000) == 0.0


def test_memory_is_linear():
    values = np.random.default_rng(0).normal(0, 1, 50_000)
    tracemalloc.start()
    quartile = nth_difference(values, 50_000 * 49_999 // 8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert quartile == pytest.approx(0.4506, rel=0.02)  # of a normal distribution: 1 / 2.2219
    assert peak < 300 * 2**20
