"""The bit-parallel subsequence against the textbook table."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitter.analysis.alignment import sequences as alignment
from jitter.analysis.alignment.sequences import align, are_similar, find_gaps, lcs_length

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
    partners = align(one, other)
    assert partners == earliest(one, other)
    assert sum(partner is not None for partner in partners) == table(one, other)[0][0]


@pytest.mark.parametrize("names", [2, 40, 5000])
def test_long_sequences_are_the_textbooks(names):
    dice = random.Random(names)
    one = [dice.randrange(names) for _ in range(300)]
    other = [element if dice.random() < 0.8 else dice.randrange(names) for element in one] + [1, 0] * 50
    assert lcs_length(one, other) == table(one, other)[0][0]
    assert align(one, other) == earliest(one, other)
    assert align(other, one) == earliest(other, one)


def test_a_kernel_more_and_a_kernel_less_shift_nobody():
    reference = list(range(100))
    more = [*range(40), 7, *range(40, 100)]
    less = [*range(40), *range(41, 100)]
    assert align(more, reference) == [*range(40), None, *range(40, 100)]
    assert align(less, reference) == [*range(40), *range(41, 100)]


def test_ties_go_to_the_earliest_in_the_reference():
    assert align([9, 5], [5, 6, 5]) == [None, 0]


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12), st.floats(0, 1))
def test_enough_shared_kernels_are_those_of_the_longest_subsequence(one, other, share):
    longer = max(len(one), len(other))
    assert are_similar(one, other, share) == (table(one, other)[0][0] >= share * longer)


def test_kernels_that_differ_in_some_names_are_not_aligned(monkeypatch):
    monkeypatch.setattr(alignment, "lcs_length", lambda one, other: pytest.fail("aligned"))
    assert are_similar([1, 2, 3, 4], [1, 9, 3, 4, 5], 0.5)


@given(sequences, sequences)
def test_gaps_and_partners_are_all_places(one, other):
    partners = align(one, other)
    gaps = list(find_gaps(partners, len(other)))
    matched = [(at, partner) for at, partner in enumerate(partners) if partner is not None]
    assert [at for own, _ in gaps for at in own] == [at for at, partner in enumerate(partners) if partner is None]
    assert sorted([at for _, theirs in gaps for at in theirs] + [at for _, at in matched]) == list(range(len(other)))
    assert [(own.stop, theirs.stop) for own, theirs in gaps[:-1]] == matched
