"""Which ranges are steps: words, threads, nesting, ends."""

import pytest

from jitter.core.errors import UsageError
from jitter.ingestion.names import compile_step_pattern
from jitter.ingestion.transform.steps.step_markers import Marker, parse_marker, select_step_ranges


def read(text, pattern=None):
    found = parse_marker(compile_step_pattern(pattern), 1, text, 0, 9)
    return None if found is None else (found.epoch, found.step, found.rank)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("epoch1_step2003-rank0-640_8-640_8-640_8", (1, 2003, 0)),
        ("ProfilerStep#12", (None, 12, None)),
        ("step 12", (None, 12, None)),
        ("train_step=12", (None, 12, None)),
        ("iteration: 7", (None, 7, None)),
        ("[iter 7]", (None, 7, None)),
        ("epoch 3, iteration 7", (3, 7, None)),
        ("global_step_100", (None, 100, None)),
        ("step5-local_rank3", (None, 5, None)),
        ("forward", None),
        ("optimizer.step", None),
        ("micro_step 3", None),
        ("microstep 3", None),
        ("timestep 3", None),
        ("step 1.5", None),
        ("footstep 3", None),
    ],
)
def test_words(text, found):
    assert read(text) == found


def test_own_patterns():
    assert read("batch 4 of 9", r"batch (?P<step>\d+)") == (None, 4, None)
    assert read("batch x", r"batch (?P<step>\w+)") is None
    for wrong in (r"batch (\d+)", r"batch ("):
        with pytest.raises(UsageError):
            compile_step_pattern(wrong)


def mark(step, start, end, thread=1, epoch=None, rank=None):
    return Marker(thread, f"step {step}", start, end, epoch, step, rank)


def ranges(*markers):
    return [
        (one.key.epoch, one.key.step, one.start_ns, one.end_ns, one.until_ns)
        for one in select_step_ranges(markers).ranges
    ]


def test_in_any_order_by_start():
    assert ranges(mark(2, 20, 30), mark(1, 10, 20)) == [(None, 1, 10, 20, 20), (None, 2, 20, 30, 30)]


def test_what_lies_inside_is_no_step():
    assert ranges(mark(1, 0, 100), mark(7, 10, 20), mark(8, 20, 100), mark(2, 100, 200)) == [
        (None, 1, 0, 100, 100),
        (None, 2, 100, 200, 200),
    ]


def test_one_thread_tells_and_it_is_the_one_with_the_most():
    other = [mark(9, n, n + 1, thread=2) for n in (3, 5)]
    assert [step for _, step, *_ in ranges(mark(1, 0, 10), mark(2, 10, 20), mark(3, 20, 30), *other)] == [1, 2, 3]
    assert [step for _, step, *_ in ranges(mark(1, 4, 10, thread=1), mark(5, 0, 3, thread=2))] == [5]


def test_pieces_of_one_step_are_one():
    assert ranges(mark(3, 0, 10), mark(3, 12, 20), mark(4, 20, 30)) == [(None, 3, 0, 20, 20), (None, 4, 20, 30, 30)]


def test_an_open_range_ends_where_the_next_begins_or_never():
    assert ranges(mark(1, 0, None), mark(2, 10, 20)) == [(None, 1, 0, None, 10), (None, 2, 10, 20, 20)]
    assert ranges(mark(1, 0, 10), mark(2, 10, None)) == [(None, 1, 0, 10, 10), (None, 2, 10, None, None)]


def test_a_piece_inside_an_open_range_does_not_end_it():
    """ "step 2" never ended; "step 2 forward" within it did: the step is cut, and its later launches are its own."""
    assert ranges(mark(1, 0, 10), mark(2, 10, None), mark(2, 12, 15)) == [
        (None, 1, 0, 10, 10),
        (None, 2, 10, None, None),
    ]


def test_overlapping_ranges_share_no_launch():
    assert ranges(mark(1, 0, 15), mark(2, 10, 25)) == [(None, 1, 0, 15, 10), (None, 2, 10, 25, 25)]


def test_a_number_that_comes_back_is_not_guessed():
    found = select_step_ranges([mark(0, 0, 10), mark(1, 10, 20), mark(0, 20, 30), mark(1, 30, 40)])
    assert [one.start_ns for one in found.ranges] == [0, 10]
    assert len(found.problems) == 2
    named = [mark(n % 2, 10 * n, 10 * n + 10, epoch=n // 2) for n in range(4)]
    assert [tuple(one.key) for one in select_step_ranges(named).ranges] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert select_step_ranges(named).problems == []


def test_none_is_none():
    assert ranges() == []
