"""The bit-parallel subsequence against the textbook table."""

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitter.analysis.alignment import sequences as alignment
from jitter.analysis.alignment.sequences import align, are_similar, find_gaps, lcs_length
from tests.support.oracles.metrics import longest, partners

sequences = st.lists(st.integers(0, 4), max_size=14)
WORDS = st.text("abc", max_size=7)


@given(sequences, sequences)
def test_length_is_the_textbooks(one, other):
    assert lcs_length(one, other) == longest(one, other)[0][0]


@given(sequences, sequences)
def test_partners_are_the_earliest_of_a_longest(one, other):
    assert align(one, other) == partners(one, other)


@given(WORDS, WORDS)
def test_partners_of_short_sequences_by_trying_all(own, reference):
    found = align([*map(ord, own)], [*map(ord, reference)])
    size = next(
        n
        for n in range(min(len(own), len(reference)), -1, -1)
        if {*combinations(own, n)} & {*combinations(reference, n)}
    )
    assert sum(at is not None for at in found) == size
    matched = [letter for letter, at in zip(own, found, strict=True) if at is not None]
    places = (p for p in combinations(range(len(reference)), size) if [reference[at] for at in p] == matched)
    assert [at for at in found if at is not None] == [*min(places)]


@pytest.mark.parametrize("names", [2, 40, 5000])
def test_long_sequences_are_the_textbooks(names):
    dice = random.Random(names)
    one = [dice.randrange(names) for _ in range(300)]
    other = [element if dice.random() < 0.8 else dice.randrange(names) for element in one] + [1, 0] * 50
    assert lcs_length(one, other) == longest(one, other)[0][0]
    assert align(one, other) == partners(one, other)
    assert align(other, one) == partners(other, one)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12), st.floats(0, 1))
def test_enough_shared_kernels_are_those_of_the_longest_subsequence(one, other, share):
    longer = max(len(one), len(other))
    assert are_similar(one, other, share) == (longest(one, other)[0][0] >= share * longer)


def test_kernels_that_differ_in_some_names_are_not_aligned(monkeypatch):
    monkeypatch.setattr(alignment, "lcs_length", lambda one, other: pytest.fail("aligned"))
    assert are_similar([1, 2, 3, 4], [1, 9, 3, 4, 5], 0.5)


@given(sequences, sequences)
def test_gaps_and_partners_are_all_places(one, other):
    found = align(one, other)
    gaps = list(find_gaps(found, len(other)))
    matched = [(at, partner) for at, partner in enumerate(found) if partner is not None]
    assert [at for own, _ in gaps for at in own] == [at for at, partner in enumerate(found) if partner is None]
    assert sorted([at for _, theirs in gaps for at in theirs] + [at for _, at in matched]) == list(range(len(other)))
    assert [(own.stop, theirs.stop) for own, theirs in gaps[:-1]] == matched
