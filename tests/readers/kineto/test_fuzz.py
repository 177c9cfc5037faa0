"""A fixed, short part of fuzz.py."""

import pytest

from tests.readers.kineto.fuzz import fuzz, own_trace

pytestmark = pytest.mark.slow


def test_two_hundred_damaged_traces() -> None:
    figures = fuzz([own_trace()], 200, seed=7)
    assert figures.failures == []
    assert figures.rows > figures.rows_of_whole * 0.5
