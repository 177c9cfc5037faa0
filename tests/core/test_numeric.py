"""Selection and differences of pairs, against sorting, compiled and not; and the memory they take."""

import tracemalloc
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitter.core.numeric.selection import select, select_lower_median, select_median
from jitter.core.numeric.stats import known_medians, nth_difference
from tests.support.loops import WAYS, run_loops


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("count", [2, 3, 50, 129, 130, 131, 700])
def test_all_differences_sorted_are_the_oracle(seed: int, count: int):
    rng = np.random.default_rng(seed)
    values = rng.normal(1e9, 1e5, count) if seed % 3 else rng.integers(0, 40, count).astype(float)
    if seed % 4 == 1:
        values[: count // 3] = 1e12  # outliers
    pairs = np.sort(np.abs(values[:, None] - values[None, :])[np.triu_indices(count, 1)])
    for number in {0, (len(pairs) - 1) // 4, len(pairs) // 2, len(pairs) - 1}:
        assert nth_difference(values[:, None], number)[0] == pytest.approx(pairs[number], rel=1e-9, abs=1e-3)


def test_columns_are_apart():
    values = np.random.default_rng(1).normal(0, 1, (50, 300))
    each = [nth_difference(values[:, column : column + 1], 306)[0] for column in range(300)]
    assert nth_difference(values, 306).tolist() == each


@pytest.mark.parametrize("shape", [(1, 3), (4, 6), (7, 5), (9, 1), (2, 3, 4)])
@pytest.mark.parametrize("unknown", [0.0, 0.3, 0.9, 1.0])
def test_medians_of_what_is_known_along_each_axis(shape: tuple[int, ...], unknown: float):
    rng = np.random.default_rng(len(shape))
    values = np.where(rng.random(shape) < unknown, np.nan, rng.normal(0, 1, shape))
    for axis in range(len(shape)):
        lines = np.moveaxis(values, axis, -1).reshape(-1, shape[axis])
        expected = [median(line[~np.isnan(line)].tolist() or [np.nan]) for line in lines]
        np.testing.assert_array_equal(known_medians(values, axis).ravel(), expected)
    assert np.isnan(known_medians(np.empty((0, 3)))).tolist() == [True] * 3


def test_equal_values_differ_by_nothing():
    assert nth_difference(np.full((5000, 1), 7e9), 100_000)[0] == 0.0


def test_memory_is_linear():
    values = np.random.default_rng(0).normal(0, 1, 50_000)
    tracemalloc.start()
    (quartile,) = nth_difference(values[:, None], 50_000 * 49_999 // 8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert quartile == pytest.approx(0.4506, rel=0.02)  # of a normal distribution: 1 / 2.2219
    assert peak < 300 * 2**20


_values = st.lists(st.integers(0, 9).map(float) | st.floats(-1e9, 1e9), min_size=1, max_size=40)


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None)  # the first example compiles
@given(_values, st.data())
def test_selects_what_sorting_finds(way: str, values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(values) - 1))
    found = np.array(values)
    with run_loops(way):
        assert select(found, len(found), k) == sorted(values)[k] == found[k]
        assert sorted(found.tolist()) == sorted(values)
        assert (found[:k] <= found[k]).all()
        assert select_median(np.array(values), len(values)) == pytest.approx(np.median(values), rel=1e-15)
        assert select_lower_median(np.array(values), len(values)) == sorted(values)[(len(values) - 1) // 2]


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None)
@given(st.lists(st.sampled_from([1.0, 2.0, np.nan, np.inf]), min_size=1, max_size=12), st.data())
def test_selection_ends_where_values_are_unknown(way: str, values: list[float], data: st.DataObject) -> None:
    """No caller passes NaN; a loop that did not end could not be interrupted."""
    with run_loops(way):
        select(np.array(values), len(values), data.draw(st.integers(0, len(values) - 1)))
