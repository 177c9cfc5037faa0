"""Spans of one lane never overlap, and no lane is used before it is needed."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jitter.export.aligned_step import assign_tracks

spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)).map(lambda span: (span[0], sum(span))), max_size=20)


@given(spans)
def test_lanes(given_spans: list[tuple[int, int]]):
    found = assign_tracks(given_spans)
    assert len(found) == len(given_spans)
    placed = sorted(zip(found, given_spans, strict=True))
    for (lane, (_, end)), (other, (start, _)) in pairwise(placed):
        assert lane != other or end <= start
    # as few as the spans that some moment is in: what starts where another ends follows it
    moments = {start for start, _ in given_spans}
    deepest = max(
        (sum(start <= at < end or start == at == end for start, end in given_spans) for at in moments), default=0
    )
    assert len(set(found)) <= max(deepest, 1 if given_spans else 0)
    assert set(found) == set(range(len(set(found))))


def test_in_the_order_given():
    assert assign_tracks([(5, 9), (0, 6), (6, 7), (9, 9)]) == [1, 0, 0, 0]
