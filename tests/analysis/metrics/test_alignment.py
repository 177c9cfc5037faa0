"""Cohorts and the kernel index."""

import pytest

from jitter.analysis.alignment.kernel_index import RankSequence, align_step, assign_cohorts, find_commonest_sequences
from jitter.analysis.alignment.program import Example, lay_out


def content(digest):
    """A sequence is spelled by its digest; capitals run beside the main stream, R is a collective."""
    return [(letter, letter.isupper()) for letter in digest]


def is_collective(name):
    return name == "R"


def ran(*sequences, cut=()):
    return [RankSequence(rank, sequence, rank in cut) for rank, sequence in enumerate(sequences) if sequence]


def cohorts_of(members):
    by_rank = {}
    for member in members:
        by_rank.setdefault(member.rank, []).append(member)
    return assign_cohorts(by_rank, content)


def index(members, usual=None):
    return align_step(members, 0, content, is_collective, usual)


def test_equal_sequences_need_nothing():
    found = index(ran("abRc", "abRc"))
    assert found.partners == {"abRc": [0, 1, 2, 3]}
    assert found.names == tuple("abRc")
    assert found.left_out == ()


def test_the_commonest_is_the_reference_and_others_shift_nobody():
    found = index(ran("abxRc", "abRc", "abRc", "aRc"))
    assert found.reference == "abRc"
    assert found.partners == {"abRc": [0, 1, 2, 3], "abxRc": [0, 1, None, 2, 3], "aRc": [0, 2, 3]}


def test_of_equally_common_ones_the_lowest_ranks_is_the_reference():
    assert index(ran("abR", "aRb", "aRb", "abR")).reference == "abR"
    assert index(ran("aRb", "abR", "abR", "aRb")).reference == "aRb"
    assert index(list(reversed(ran("aRb", "abR")))).reference == "aRb"


def test_the_same_name_on_another_stream_is_another_kernel():
    assert index(ran("ab", "ab", "aB")).partners["aB"] == [0, None]


def test_ties_take_the_earliest_partner():
    assert index(ran("aab", "aab", "ab")).partners["ab"] == [0, 2]


def test_a_cut_sequence_is_no_reference_even_if_commonest():
    found = index(ran("abRcd", "abRc", "abRc", cut={1, 2}))
    assert found.reference == "abRcd"
    assert found.left_out == ()  # both reach past the last collective
    found = index(ran("abR", "abR", cut={0, 1}))
    assert (found.reference, found.names, found.members, found.left_out) == (None, (), (), (0, 1))
    assert index(ran("abR", "abR", cut={0, 1}), usual="abRc").reference == "abRc"


def test_a_cut_rank_counts_only_if_it_reaches_past_the_last_collective():
    found = index(ran("aRbRcd", "aRbRc", "aRbR", "aRb", cut={1, 2, 3}))
    assert found.left_out == (2, 3)
    assert [member.rank for member in found.members] == [0, 1]
    # a kernel of its own after the collective has no place in the index: what it reaches cannot be told
    assert index(ran("aRb", "aRb", "aRx", cut={2})).left_out == (2,)
    assert index(ran("abc", "a", cut={1})).left_out == ()  # no collective to reach


def test_half_of_the_longer_is_enough_for_a_cohort():
    assert cohorts_of(ran("abcdef", "abcdef", "abcxyz")) == {0: 0, 1: 0, 2: 0}
    assert cohorts_of(ran("abcdef", "abcdef", "abwxyz")) == {0: 0, 1: 0, 2: 1}
    # of the longer one: everything that the shorter has in common is not enough
    assert cohorts_of(ran("abcdefg", "abcdefg", "abc")) == {0: 0, 1: 0, 2: 1}


def test_the_rule_repeats_on_the_rest():
    stages = ("abcd", "mnop", "mnop", "mnoq", "vwxy", "abcd", "mnop")
    assert cohorts_of(ran(*stages)) == {0: 1, 1: 0, 2: 0, 3: 0, 4: 2, 5: 1, 6: 0}
    assert cohorts_of(ran("mnop", "abcd")) == {0: 0, 1: 1}  # as many: the lowest rank's first


def test_a_rank_stands_for_what_it_ran_most_often_uncut():
    members = [*ran("abcd", "mnop"), *ran("abcd", "abcd"), *ran("abcd", "abcd", cut={1})]
    # rank 1: mnop and abcd once each uncut; the first it ran decides
    assert cohorts_of(members) == {0: 0, 1: 1}
    assert cohorts_of([*ran("abcd", "ab", cut={1})]) == {0: 0, 1: 0}


@pytest.mark.parametrize("cut", [set(), {2}])
def test_the_usual_sequence_of_a_cohort_is_uncut(cut):
    members = [*ran("ab", "abc", "abc", cut=cut | {1}), *ran("ab", "abc", cut={1})]
    assert find_commonest_sequences(members, {0: 0, 1: 0, 2: 0}) == {0: "ab"}


def test_the_kernel_index_and_the_program_align_differently():
    """An autotuned kernel: the program gives it the place of the kernel it replaces, the kernel index gives it none."""
    sequences = {"abc": [("a", False), ("b1", False), ("c", False)], "aXc": [("a", False), ("b2", False), ("c", False)]}
    members = [RankSequence(rank, sequence, False) for rank, sequence in enumerate(["abc", "abc", "aXc"])]
    found = align_step(members, 0, sequences.__getitem__, is_collective, None)
    assert found.partners["aXc"] == [0, None, 2]

    def example(signature: tuple[str, bytes]) -> Example:
        names = [name for name, _ in sequences[signature[0]]]
        return Example([0] * 3, names, [0] * 3, [1] * 3)

    program = lay_out({("abc", b""): 2, ("aXc", b""): 1}, example, {})
    assert [program.places[sequence, b""].tolist() for sequence in ("abc", "aXc")] == [[0, 1, 2], [0, 1, 2]]
