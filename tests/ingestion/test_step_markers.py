"""Which ranges are steps: spellings, nesting, pieces, restarts, open ends, threads."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitter.core.errors import UsageError
from jitter.core.step_key import StepKey
from jitter.ingestion.names import compile_step_pattern, host_range_kind
from jitter.ingestion.transform.steps.step_markers import (
    DEFAULT_STEP_PATTERN,
    Marker,
    parse_marker,
    parse_range,
    select_counting,
    select_step_ranges,
    with_epochs,
)


def _read(text: str, expression: str | None = None) -> tuple[int | None, int, int | None] | None:
    marker = parse_marker(compile_step_pattern(expression), text)
    assert marker is None or marker.text == text
    return None if marker is None else (marker.epoch, marker.step, marker.rank)


def test_own_pattern():
    assert _read("batch 4", r"batch (?P<step>\d+)") == (None, 4, None)
    assert _read("step 4", r"batch (?P<step>\d+)") is None
    assert _read("e2b4r1", r"e(?P<epoch>\d)b(?P<step>\d)r(?P<rank>\d)") == (2, 4, 1)
    assert _read("batch x", r"batch (?P<step>\w)") is None  # a group that holds no number names nothing
    for wrong in ("(", r"(\d+)", r"(?P<steps>\d+)"):
        with pytest.raises(UsageError, match="--step-pattern"):
            compile_step_pattern(wrong)
    assert compile_step_pattern(None).pattern == DEFAULT_STEP_PATTERN


def test_times_may_be_negative():
    """As in traces whose times were shifted to those of another rank."""
    marks = [
        Marker(1, f"step {at}", start_ns, start_ns + 90, None, at, None)
        for at, start_ns in enumerate((-400, -300, -200))
    ]
    inner = [
        mark._replace(text="step 9", step=9, start_ns=mark.start_ns + 10, end_ns=mark.start_ns + 20) for mark in marks
    ]
    assert [step.key.step for step in select_step_ranges([*inner, *marks]).ranges] == [0, 1, 2]


def _counted(*texts: str, unnumbered: int = 0) -> list[int]:
    """Return the steps of ranges one after the other, beside as many ranges `train_step`."""
    markers = [parse_range(compile_step_pattern(None), text) for text in texts]
    ranges = [marker._replace(start_ns=100 * at) for at, marker in enumerate(markers) if marker is not None]
    return [each.step for each in select_counting(ranges, [_mark(0, 100 * at, None) for at in range(unnumbered)])]


COUNTED = """
    mini-batch {} | minibatch {} | mini_batch_{} | batch{} | Batch{} | batch: {} | batch={} | it{} | steps{}
    [batch {}/100] | Batch {} of 99 | train batch-{} | batch: {} rank: 3 | rank 3: batch{} | epoch 1, mini-batch {}
"""


@pytest.mark.parametrize("text", [text.strip() for line in COUNTED.strip().splitlines() for text in line.split(" | ")])
def test_numbers_that_count_are_steps(text: str):
    assert _counted(*map(text.format, (4, 5, 7))) == [4, 5, 7]
    assert _counted(*map(text.format, (4, 5))) == []
    assert _counted(*map(text.format, (32, 32, 32, 32))) == []
    assert _counted(*map(text.format, (0, 1, 2, 0, 1, 2))) == []


def test_ranges_that_count_are_steps_unless_others_are():
    parts = [f"mini-batch {number}" for number in range(6)]
    assert _counted(*parts, unnumbered=3) == []
    assert _counted(*parts, unnumbered=6) == list(range(6))
    assert _counted(*parts, "batch: 1", "batch: 2", "batch: 3") == list(range(6))
    for other in (
        "layer 3",
        "block 3",
        "microbatch 3",
        "micro-batch 3",
        "load batch 3",
        "validation batch 3",
        "it 1.5",
    ):
        assert parse_range(compile_step_pattern(None), other) is None


def _mark(step: int, start: int, end: int | None, thread: int = 1, epoch: int | None = None) -> Marker:
    return Marker(thread, f"step {step} at {start}", start, end, epoch, step, None)


def _spans(*markers: Marker) -> list[tuple[int, int, int | None]]:
    return [(r.key.step, r.start_ns, r.until_ns) for r in select_step_ranges(markers).ranges]


def test_nested_ranges_are_parts():
    inner = [_mark(0, 10, 20), _mark(1, 20, 40), _mark(0, 110, 120)]  # "step" of something within the step
    assert _spans(_mark(5, 0, 100), *inner, _mark(6, 100, 200)) == [(5, 0, 100), (6, 100, 200)]


def test_pieces_of_one_step_are_one():
    found = select_step_ranges([_mark(3, 0, 10), _mark(3, 12, 20), _mark(3, 25, 30), _mark(4, 40, 50)])
    assert [(r.key.step, r.start_ns, r.end_ns) for r in found.ranges] == [(3, 0, 30), (4, 40, 50)]
    assert found.problems == []


def test_numbers_that_begin_anew_are_said():
    markers = [_mark(step, 100 * at, 100 * at + 90) for at, step in enumerate([0, 1, 2, 0, 1, 2, 0])]
    found = select_step_ranges(markers)
    assert [(r.key.step, r.start_ns) for r in found.ranges] == [(0, 0), (1, 100), (2, 200)]
    assert [problem.split(";")[0] for problem in found.problems] == [
        "step 0 is marked 3 times without an epoch",
        "step 1 is marked 2 times without an epoch",
        "step 2 is marked 2 times without an epoch",
    ]
    with_epochs = [m._replace(epoch=at // 3) for at, m in enumerate(markers)]
    assert [r.key for r in select_step_ranges(with_epochs).ranges] == [StepKey(*divmod(at, 3)) for at in range(7)]


def test_of_a_number_that_comes_back_the_one_among_most_others_counts():
    markers = [_mark(step, 100 * at, 100 * at + 90) for at, step in enumerate([7, 8, 2, 1, 2, 3, 8])]
    found = select_step_ranges(markers)
    assert [(r.key.step, r.start_ns) for r in found.ranges] == [(7, 0), (1, 300), (2, 400), (3, 500), (8, 600)]
    assert len(found.problems) == 2


def test_a_number_that_comes_back_within_its_epoch_is_not_said_to_lack_one():
    found = select_step_ranges([_mark(0, 0, 9, epoch=1), _mark(1, 10, 19, epoch=1), _mark(0, 20, 29, epoch=1)])
    assert len(found.ranges) == 2
    (problem,) = found.problems
    assert problem.startswith("epoch 1, step 0 is marked 2 times")
    assert "without an epoch" not in problem


def test_open_ranges():
    assert _spans(_mark(0, 0, 10), _mark(1, 10, None)) == [(0, 0, 10), (1, 10, None)]
    assert _spans(_mark(0, 0, None), _mark(1, 10, 20)) == [(0, 0, 10), (1, 10, 20)]
    assert select_step_ranges([_mark(1, 10, None)]).ranges[0].end_ns is None
    # "step 2 forward" within "step 2", which never ended, does not end it: the step is cut
    assert _spans(_mark(1, 0, 10), _mark(2, 10, None), _mark(2, 12, 15)) == [(1, 0, 10), (2, 10, None)]


def test_overlapping_ranges_end_where_the_next_begins():
    assert _spans(_mark(0, 0, 15), _mark(1, 10, 25), _mark(2, 20, 30)) == [(0, 0, 10), (1, 10, 20), (2, 20, 30)]


def test_steps_are_marked_on_one_thread():
    main = [_mark(step, 100 * step, 100 * step + 99) for step in range(3)]
    other = [_mark(step, 100 * step + 7, 100 * step + 50, thread=2) for step in range(2)]
    assert _spans(*other, *main) == [(0, 0, 99), (1, 100, 199), (2, 200, 299)]
    assert _spans(*other, *main[:2]) == [(0, 0, 99), (1, 100, 199)]  # as many: the earlier thread


_MARKERS = st.lists(
    st.builds(
        lambda thread, start, length, step: _mark(step, start, None if length is None else start + length, thread),
        st.integers(1, 2),
        st.integers(0, 60),
        st.one_of(st.none(), st.integers(1, 30)),
        st.integers(0, 4),
    ),
    max_size=12,
)


@given(_MARKERS)
def test_steps_never_overlap_and_none_comes_twice(markers: list[Marker]):
    found = select_step_ranges(markers).ranges
    keys = [r.key for r in found]
    assert len(keys) == len(set(keys))
    assert {r.text for r in found} <= {m.text for m in markers}
    for one, following in pairwise(found):
        assert one.start_ns <= following.start_ns
        assert one.until_ns is not None
        assert one.start_ns <= one.until_ns <= following.start_ns
    assert bool(found) == bool(markers)


def test_the_kind_of_a_long_text_takes_linear_time():
    start = time.process_time()
    assert host_range_kind("save_" * 13_000) is None
    assert time.process_time() - start < 5


def test_kinds_of_host_ranges():
    for text in (
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "data_loading",
        "load batch",
        "get_batch",
        "batch generator",
        "dataloader",
        "fetch data",
    ):
        assert host_range_kind(text) == "data_loading", text
    for text in (
        "save_checkpoint iteration 0",
        "torch.save",
        "dcp.async_save",
        "saving checkpoint",
        "save_model",
        "torch.save state_dict",
        "ckpt_save",
    ):
        assert host_range_kind(text) == "checkpoint", text
    for text in ("validation", "validation_step 3", "evaluate", "run_evaluation", "eval loop", "trainer.validate"):
        assert host_range_kind(text) == "validation", text
    others = ("forward", "optimizer.step", "load_checkpoint", "ncclAllReduce", "batch_norm", "CheckpointFunction")
    for text in (*others, "save_for_backward", "aten::eval_frame_x", "Retrieval", "model.eval_metric.kernel"):
        assert host_range_kind(text) is None, text


def _epoch(text: str, start: int, end: int | None) -> Marker:
    marker = parse_range(compile_step_pattern(None), text)
    assert marker is not None
    assert marker.role == "epoch"
    return marker._replace(start_ns=start, end_ns=end)


@pytest.mark.parametrize(
    "text", ["Epoch {}", "epoch_{}", "epoch: {}", "[epoch {}/90]", "training epoch {}", "EPOCH: {}"]
)
def test_numbers_that_begin_anew_have_the_epoch_around_them(text: str):
    epochs = [_epoch(text.format(4), 0, 200), _epoch(text.format(5), 200, 400)]
    steps = [_mark(at % 2, 100 * at, 100 * at + 90) for at in range(6)]
    found = select_step_ranges(with_epochs(steps, epochs))
    # the recording stopped within the third one, whose range is not recorded
    assert [tuple(each.key) for each in found.ranges] == [(4, 0), (4, 1), (5, 0), (5, 1), (6, 0), (6, 1)]
    assert found.problems == []


def test_epochs_are_not_used_where_numbers_need_none():
    """A rank whose recording stops within the epoch has no range of it, and another one may have it."""
    epochs = [_epoch("Epoch 0", 0, 400)]
    steps = [_mark(step, 100 * step, 100 * step + 90) for step in range(4)]
    pieces = [_mark(at // 2, 100 * at, 100 * at + 90) for at in range(4)]
    for markers in (steps, pieces):
        assert {each.epoch for each in with_epochs(markers, epochs)} == {None}
    for other in ("epoch 3 step 4", "epoch", "epoch 1 loop", "validation epoch 3"):
        marker = parse_range(compile_step_pattern(None), other)
        assert marker is None or marker.role != "epoch"
