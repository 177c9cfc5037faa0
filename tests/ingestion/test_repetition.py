"""Steps of a recording without markers, against a search that tries everything."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jitter.ingestion.transform.steps.find_steps import Launches, cut_at_pattern, find_repetition

PAUSE_NS = 1_000


def recorded(text, pauses=()):
    """Kernels spelled by letters; `pauses` are positions that a long wait precedes."""
    names = sorted(set(text))
    places, now = [], 0
    for position in range(len(text)):
        now += PAUSE_NS if position in pauses else 10
        places.append(now)
    ids = np.array([names.index(letter) for letter in text], dtype=np.int32)
    return Launches(ids, np.array(places, dtype=np.int64), names)


def cut(text, pauses=()):
    found = find_repetition(recorded(text, pauses))
    if found is None:
        return None
    places = recorded(text, pauses).places_ns.tolist()
    return "".join(found.names), [places.index(start) for start in found.starts_ns], places.index(found.end_ns)


def test_a_step_starts_after_the_longest_pause():
    text = "xx" + "abcd" * 4 + "ab"
    assert cut(text, pauses=(2, 6, 10, 14)) == ("abcd", [2, 6, 10, 14], 17)
    # the pause before c: whole steps only, what is before the first belongs to none
    assert cut(text, pauses=(4, 8, 12, 16)) == ("cdab", [4, 8, 12, 16], 19)


def test_one_odd_pause_moves_nothing():
    assert cut("abcd" * 5, pauses=(4, 8, 10, 12, 16)) == ("abcd", [0, 4, 8, 12, 16], 19)


def test_layers_within_a_step_are_no_steps():
    step = "e" + "lmn" * 4 + "o"
    assert cut(step * 3, pauses=(0, 14, 28)) == (step, [0, 14, 28], 41)


def test_an_odd_step_shifts_no_later_one():
    text = "abcd" * 3 + "abxcd" + "abcd" * 4
    pauses = (0, 4, 8, 12, 17, 21, 25, 29)
    assert cut(text, pauses) == ("abcd", list(pauses), 32)


def test_an_evaluation_of_the_same_layers_belongs_to_the_step_before():
    layers, step = "lmn" * 3, "lmn" * 3 + "bcd" * 3 + "o"
    text, starts = "", []
    for number in range(9):
        starts.append(len(text))
        text += step + (layers if number in (3, 6) else "")
    assert cut(text, pauses=starts) == (step, starts, len(text) - 1)


def test_the_last_step_counts_only_if_it_is_whole():
    assert cut("abcd" * 3 + "abc", pauses=(4, 8, 12)) == ("abcd", [0, 4, 8], 11)
    assert cut("abcd" * 3 + "abxd", pauses=(4, 8, 12)) == ("abcd", [0, 4, 8], 11)


def test_what_does_not_repeat_is_not_cut():
    for text in ("", "a", "ab", "abcdef", "abcda"):
        assert cut(text) is None


def test_two_repetitions_are_enough_and_one_and_a_half_are_not():
    assert cut("abcdabcd", pauses=(4,)) == ("abcd", [0, 4], 7)
    assert cut("abcdab", pauses=(4,)) is None


def test_cut_like_another_rank():
    launches = recorded("abcd" * 4)
    found = cut_at_pattern(launches, tuple("cdab"))
    assert found.names == tuple("cdab")
    assert [launches.places_ns.tolist().index(start) for start in found.starts_ns] == [2, 6, 10]
    assert cut_at_pattern(launches, tuple("cdaz")) is None


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.text("abcd", min_size=1, max_size=8).map(lambda body: "s" + body),
    st.integers(2, 6),
    st.text("wxyz", max_size=5),
    st.text("wxyz", max_size=3),
)
def test_whole_programs_are_found_whatever_is_around_them(step, times, before, after):
    text = before + step * times + after
    starts = [len(before) + n * len(step) for n in range(times)]
    assert cut(text, pauses=starts) == (step, starts, len(before) + times * len(step) - 1)
