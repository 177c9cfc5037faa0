"""Downsampling against an oracle: the extremes of every column are kept."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jitter.report.views.step_view import keep_extremes

values = st.one_of(st.just(float("nan")), st.integers(-50, 50).map(float))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=80, unique=True).map(sorted),
    st.integers(1, 20),
    st.data(),
)
def test_every_line_keeps_its_extremes_in_every_column(x, columns, data):
    lines = [data.draw(st.lists(values, min_size=len(x), max_size=len(x))) for _ in range(2)]
    kept = keep_extremes(np.array(x, dtype=np.int32), [np.array(line) for line in lines], columns).tolist()
    assert kept == sorted(set(kept))
    assert {0, len(x) - 1} <= set(kept)
    width = (x[-1] - x[0] + 1) / columns
    parts = {}
    for at, place in enumerate(x):
        parts.setdefault(int((place - x[0]) / width + 1e-9), []).append(at)
    assert len(kept) <= len(parts) * 2 * len(lines) + 2
    for members in parts.values():
        for line in lines:
            known = [line[at] for at in members if line[at] == line[at]]
            left = [line[at] for at in members if at in kept and line[at] == line[at]]
            if known:
                assert (min(known), max(known)) == (min(left), max(left))


def test_nothing_to_thin():
    assert keep_extremes(np.empty(0, dtype=np.int32), [np.empty(0)], 10).size == 0
