"""Selection finds what sorting finds, and leaves what is no greater in front, with ties, compiled and not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitter.core.numeric.selection import select, select_lower_median, select_median
from tests.support.loops import WAYS, run_loops

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
