"""A fixed, short part of fuzz_kineto.py."""

from fuzz_kineto import fuzz, own_trace


def test_two_hundred_damaged_traces() -> None:
    figures = fuzz([own_trace()], 200, seed=7)
    assert figures.failures == []
    assert figures.rows > figures.rows_of_whole * 0.5
