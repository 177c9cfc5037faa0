"""Ranks without markers get the same step numbers, or are refused: never a guess."""

import pytest

from jitter.core.errors import UnknownRankError
from jitter.ingestion.transform.steps.find_steps import RankRepetition, Repetition, find_rotation, step_offset
from jitter.lake.records import SourceRecord

PERIOD = 10_000_000


def phased(starts, utc=None, clock="a", collectives=None, before=None, gpu=()):
    starts = tuple(starts)
    before = tuple(2 * n for n in range(len(starts))) if before is None else before
    repetition = Repetition(("a", "b"), starts, starts[-1] + 9, before, collectives, tuple(gpu))
    record = SourceRecord(
        digest=clock, file="rank", file_digest=clock, size=0, mtime_ns=0, format="", utc_offset_ns=utc
    )
    return RankRepetition(record, repetition)


def steps(first, count, zero=0, period=PERIOD):
    """Starts of the job's steps first … first + count − 1 on a clock that shows `zero` at the job's begin."""
    return [zero + n * period for n in range(first, first + count)]


@pytest.mark.parametrize(("begun", "error_ns"), [(0, 0), (3, 0), (-2, 0), (3, 2_000_000), (-2, -2_000_000), (7, 0)])
def test_by_wall_clock_whatever_their_zeros_and_a_little_wrong(begun, error_ns):
    # at the job's begin UTC is 10^18; the other's clock then shows 5 s
    reference = phased(steps(2, 5), utc=10**18, clock="a")
    other = phased(steps(2 + begun, 4, zero=5 * 10**9), utc=10**18 - 5 * 10**9 + error_ns, clock="b")
    assert step_offset(reference, other) == begun
    assert step_offset(other, reference) == -begun


@pytest.mark.parametrize("error_ns", [PERIOD // 2, 3_000_000, -3_000_000])
def test_a_wall_clock_that_puts_steps_between_steps_is_refused(error_ns):
    reference = phased(steps(0, 5), utc=10**18)
    with pytest.raises(UnknownRankError, match="fall between"):
        step_offset(reference, phased(steps(0, 5), utc=10**18 + error_ns, clock="b"))


def test_ranks_of_one_recording_share_its_clock_even_without_utc():
    assert step_offset(phased(steps(0, 5)), phased(steps(2, 3), clock="a")) == 2


def test_unequal_steps_are_matched_one_by_one():
    starts = [0, PERIOD, 5 * PERIOD, 6 * PERIOD, 7 * PERIOD]  # one step took four times as long
    assert step_offset(phased(starts, 0), phased(starts[2:], 0, clock="b")) == 2
    assert step_offset(phased(starts[1:4], 0), phased(starts, 0, clock="b")) == -1


def test_without_wall_clock_by_the_same_collectives():
    reference = phased(steps(0, 4), collectives="x", before=(3, 7, 11, 15))
    other = phased(steps(0, 3), clock="b", collectives="x", before=(7, 11, 15))
    assert step_offset(reference, other) == 1
    # one of them with a wall clock is none
    assert step_offset(phased(steps(0, 4), 5, collectives="x", before=(3, 7, 11, 15)), other) == 1


STARTS = [0, PERIOD, 2 * PERIOD + 500, 5 * PERIOD, 6 * PERIOD, 7 * PERIOD]
"""Of steps of unequal times."""


@pytest.mark.parametrize("error_ns", [PERIOD // 2, -3_000_000, PERIOD, -PERIOD, 7 * PERIOD, -400 * PERIOD])
@pytest.mark.parametrize("begun", [0, 1])
def test_a_wall_clock_that_is_wrong_by_more_than_a_step_yields_to_the_same_collectives(error_ns, begun):
    before = (2, 6, 10, 14, 18, 22)
    reference = phased(STARTS, 10**18, collectives="x", before=before)
    other = phased(STARTS[begun:], 10**18 + error_ns, "b", "x", before[begun:])
    assert step_offset(reference, other) == begun


def test_one_odd_step_does_not_make_a_wrong_wall_clock_right():
    """Steps of nearly equal times; the first one begins late on one rank, as simulated and recorded."""
    before = (2, 6, 10, 14, 18, 22)
    starts = [0, 2_362_681, 4_680_824, 7_005_257, 9_310_400, 11_641_950]
    others = [-172_300, 2_357_915, 4_677_528, 7_000_649, 9_312_100, 11_640_950]
    reference = phased(starts, 10**18, collectives="x", before=before)
    assert step_offset(reference, phased(others, 10**18 - 3 * 2_330_000, "b", "x", before)) == 0


def test_where_hosts_begin_steps_as_evenly_by_a_wrong_wall_clock_the_gpus_relate_the_steps():
    before, starts = (2, 6, 10, 14), [0, PERIOD + 9_000, 2 * PERIOD - 7_000, 3 * PERIOD + 8_000]
    gpu = [10_000, PERIOD - 8_000, 2 * PERIOD + 7_000, 3 * PERIOD - 5_000]
    reference = phased(starts, 10**18, "a", "x", before, gpu)
    others = [*(start - PERIOD for start in starts[1:]), 3 * PERIOD]
    assert step_offset(reference, phased(others, 10**18 + PERIOD, "b", "x", before, gpu)) == 0


@pytest.mark.parametrize("collectives", [None, "x"])
@pytest.mark.parametrize("begun", [0, 1])
def test_where_hosts_run_ahead_as_fast_as_they_can_the_gpus_relate_the_steps(begun, collectives):
    """Hosts that wait for nothing launch a step in 2.1 and in 5.1 ms; the GPUs take 7 ms for it."""
    gpu, before = steps(0, 8, zero=9_000_000, period=7_000_000), [2 * n for n in range(8)]
    reference = phased(steps(0, 8, period=2_100_000), 10**18, "a", collectives, before, gpu)
    launched = steps(0, 8, zero=2_600_000, period=5_100_000)
    other = phased(launched[begun:], 10**18 + 300_000, "b", collectives, before[begun:], gpu[begun:])
    assert step_offset(reference, other) == begun


def test_as_many_collectives_of_other_steps_yield_to_the_wall_clock():
    before = (2, 6, 10)
    reference, other = (
        phased(STARTS[first : first + 3], 10**18, clock, "x", before) for first, clock in ((0, "a"), (1, "b"))
    )
    assert step_offset(reference, other) == 1


@pytest.mark.parametrize(("mine", "theirs"), [("x", "y"), (None, None), ("x", None)])
def test_without_wall_clock_and_with_other_collectives_they_are_refused(mine, theirs):
    with pytest.raises(UnknownRankError, match="no wall clock"):
        step_offset(phased(steps(0, 4), collectives=mine), phased(steps(0, 4), clock="b", collectives=theirs))


@pytest.mark.parametrize(
    ("uptime_ns", "begun", "late_ns", "offset"),
    [
        (10**14, 2, 0, 2),
        (10**14, 2, PERIOD // 10, 2),
        (10**14, 2, PERIOD // 2, None),  # out of phase
        (10**14, 9, 0, None),  # at another time
        (0, 2, 0, None),  # clocks that begin with the recording
    ],
)
def test_clocks_of_one_boot_relate_steps_without_wall_clock(uptime_ns, begun, late_ns, offset):
    reference, other = phased(steps(0, 5, uptime_ns)), phased(steps(begun, 5, uptime_ns + late_ns), clock="b")
    if offset is None:
        with pytest.raises(UnknownRankError, match="no wall clock"):
            step_offset(reference, other)
    else:
        assert step_offset(reference, other) == offset


def test_the_same_collectives_at_places_that_contradict_each_other_are_refused():
    reference = phased(steps(0, 3), collectives="x", before=(0, 4, 8))
    with pytest.raises(UnknownRankError):
        step_offset(reference, phased(steps(0, 2), clock="b", collectives="x", before=(4, 4)))


def test_rotation():
    assert find_rotation("abcd", "abcd") == 0
    assert find_rotation("cdab", "abcd") == 2
    assert find_rotation("abab", "abab") == 0
    assert find_rotation("aabc", "abca") == 3
    for other in ("abc", "abdc", "abce", "aabb"):
        assert find_rotation(other, "abcd") is None
