"""The bit-parallel subsequence against the textbook table."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitter.analysis.metrics import cohorts, lcs
from jitter.analysis.metrics.cohorts import shares_kernels
from jitter.analysis.metrics.lcs import lcs_length, lcs_partners
from jitter.analysis.metrics.lcs_loops import find_length, find_partners
from tests.support.loops import WAYS, run_loops

sequences = st.lists(st.integers(0, 4), max_size=14)


def table(one, other):
    """length[i][j] of the longest common subsequence of one[i:] and other[j:]."""
    length = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i in reversed(range(len(one))):
        for j in reversed(range(len(other))):
            if one[i] == other[j]:
                length[i][j] = 1 + length[i + 1][j + 1]
            else:
                length[i][j] = max(length[i + 1][j], length[i][j + 1])
    return length


def earliest(one, other):
    """The earliest partners by trying every one in order."""
    length = table(one, other)
    partners, at = [], 0
    for i, element in enumerate(one):
        best = next(
            (j for j in range(at, len(other)) if other[j] == element and 1 + length[i + 1][j + 1] == length[i][at]),
            None,
        )
        partners.append(best)
        if best is not None:
            at = best + 1
    return partners


@given(sequences, sequences)
def test_length_is_the_textbooks(one, other):
    assert lcs_length(one, other) == table(one, other)[0][0]


@given(sequences, sequences)
def test_partners_are_the_earliest_of_a_longest(one, other):
    partners = lcs_partners(one, other)
    assert partners == earliest(one, other)
    assert sum(partner is not None for partner in partners) == table(one, other)[0][0]


@pytest.mark.parametrize("way", WAYS)
def test_loops_are_the_textbooks(way):
    some = st.lists(st.integers(0, 4), min_size=1, max_size=14)

    @settings(deadline=None)
    @given(some, some)
    def check(one, other):
        assert find_length(one, other) == table(one, other)[0][0]
        assert find_partners(one, other) == earliest(one, other)

    with run_loops(way):
        check()


@pytest.mark.parametrize("names", [2, 40, 5000])
@pytest.mark.parametrize("way", WAYS)
def test_loops_are_as_integers(way, names, monkeypatch):
    """Over many words, with carries through several of them."""
    dice = random.Random(names)
    one = [dice.randrange(names) for _ in range(700)]
    other = [element if dice.random() < 0.8 else dice.randrange(names) for element in one] + [1, 0] * 50
    expected = lcs_length(one, other), lcs_partners(one, other)
    with run_loops(way):
        assert (find_length(one, other), find_partners(one, other)) == expected
        monkeypatch.setattr(lcs, "_LONG_CELLS", 0)
        assert (lcs_length(one, other), lcs_partners(one, other)) == expected


def test_a_kernel_more_and_a_kernel_less_shift_nobody():
    reference = list(range(100))
    more = [*range(40), 7, *range(40, 100)]
    less = [*range(40), *range(41, 100)]
    assert lcs_partners(more, reference) == [*range(40), None, *range(40, 100)]
    assert lcs_partners(less, reference) == [*range(40), *range(41, 100)]


def test_ties_go_to_the_earliest_in_the_reference():
    assert lcs_partners([9, 5], [5, 6, 5]) == [None, 0]


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12), st.floats(0, 1))
def test_enough_shared_kernels_are_those_of_the_longest_subsequence(one, other, share):
    longer = max(len(one), len(other))
    assert shares_kernels(one, other, share) == (table(one, other)[0][0] >= share * longer)


def test_kernels_that_differ_in_some_names_are_not_aligned(monkeypatch):
    monkeypatch.setattr(cohorts, "lcs_length", lambda one, other: pytest.fail("aligned"))
    assert shares_kernels([1, 2, 3, 4], [1, 9, 3, 4, 5], 0.5)
