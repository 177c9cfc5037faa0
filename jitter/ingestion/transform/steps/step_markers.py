"""Step markers: the host ranges of one thread per process whose text matches the step pattern, without nested ones."""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise, zip_longest
from statistics import median
from typing import Literal, NamedTuple

from jitter.core.formatting import format_count, format_time
from jitter.core.grouping import by_key
from jitter.core.step_key import StepKey
from jitter.ingestion.names import (
    ANY_RANK,
    BESIDE_TRAINING,
    COUNTED,
    DEFAULT_STEP_PATTERN,
    INFERENCE,
    ONLY_EPOCH,
    StepKind,
    compile_step_pattern,
    is_unnumbered_step,
    plain_kind,
    step_kind,
    step_kind_in_turn,
)


class Marker(NamedTuple):
    """A range that marks a step, or may. Times in ns; `end_ns` is None if the recording ended first."""

    thread: int | None
    text: str
    start_ns: int
    end_ns: int | None
    epoch: int | None
    step: int
    rank: int | None
    kind: str = ""
    """The text up to the step number, with N for numbers: ranges of one kind are written by one line of code."""
    role: Literal["numbered", "unnumbered", "counted", "epoch"] = "numbered"
    """Whether its text states the step's number, none (`step` is 0), one that may be another one, or an epoch's."""


@dataclass(frozen=True)
class StepRange:
    """The time of one step of one process: launches that start in [start_ns, until_ns) belong to it."""

    key: StepKey
    text: str | None
    """The marker's text; None if the step was found by repetition."""
    start_ns: int
    end_ns: int | None
    """None if the range does not end in the recording."""
    until_ns: int | None
    """End of the step for launches: the range's end, or the next step's start for an open range; None: no end."""
    rank: int | None = None
    kind: StepKind | None = None
    """None: what the text says."""


@dataclass(frozen=True)
class StepRanges:
    """The steps of one process in order, and the problems of its markers."""

    ranges: list[StepRange]
    problems: list[str]


def describe_unmatched_pattern(texts: Iterable[str]) -> str:
    """Say that a pattern of the user's matches no range, with some of the `texts` that have numbers: steps first.

    Numbers are shown as N, so that all ranks of a job say the same.
    """
    default = compile_step_pattern(None)
    first = sorted(texts, key=lambda text: (parse_marker(default, text) is None, len(text)))
    shown = ", ".join(repr(re.sub(r"\d+", "N", text)[:_MAX_TEXT_LENGTH]) for text in first[:_MAX_TEXTS])
    return "--step-pattern matches no range of the trace; " + (
        f"ranges with numbers (N): {shown}" if shown else "no range has a number"
    )


_MAX_TEXTS = 3
_MAX_TEXT_LENGTH = 60
_NUMBER = re.compile(r"\d[\d,]*")
_KIND_LENGTH = 48
_MOST_DIGITS = {"step": 18, "epoch": 18, "rank": 9}
"""Digits that fit the lake's columns."""


def parse_marker(pattern: re.Pattern[str], text: str) -> Marker | None:
    """Return a range's marker without thread and times; None if its text states no number that fits the column."""
    is_default = pattern.pattern == DEFAULT_STEP_PATTERN
    # few texts have one of its words, and looking for them is several times faster
    match = pattern.search(text) if not is_default or any(word in text.lower() for word in _STEP_WORDS) else None
    if match is None or (is_default and BESIDE_TRAINING.search(text, 0, match.end("step"))):
        return None
    marker = _marker_of(match)
    return marker if marker is None or not is_default else _with_rank(marker)


_STEP_WORDS = ("step", "it", "batch", "update")
"""A text that matches `DEFAULT_STEP_PATTERN` has one of them."""


def parse_range(pattern: re.Pattern[str], text: str) -> Marker | None:
    """Return the marker of a range that marks a step, or may, without thread and times; None for others.

    With a pattern of the user's, ranges with a number that it does not match are none.
    """
    if (marker := parse_marker(pattern, text)) is not None:
        return marker
    is_default = pattern.pattern == DEFAULT_STEP_PATTERN
    if is_unnumbered_step(text) or (is_default and plain_kind(text) is not None):
        kind = "".join("N" if char.isdecimal() else char for char in text)
        return Marker(None, text, 0, None, None, 0, None, kind, "unnumbered")
    if is_default and (match := COUNTED.fullmatch(text)) and (marker := _marker_of(match)):
        return _with_rank(marker._replace(role="counted"))
    if is_default and (match := ONLY_EPOCH.fullmatch(text)):
        return Marker(None, text, 0, None, int(match["epoch"]), 0, None, role="epoch")
    return None


def _with_rank(marker: Marker) -> Marker:
    """Return the marker with the global rank that its text states."""
    match = None if marker.rank is not None else ANY_RANK.search(marker.text)
    return marker if match is None else marker._replace(rank=int(match["rank"]))


def _marker_of(match: re.Match[str]) -> Marker | None:
    text = match.string
    head = text[: match.end("step")]
    words = {name: (word or "").replace(",", "") for name, word in match.groupdict().items()}
    numbers = {
        name: int(word) if (word := words.get(name, "")).isdecimal() and len(word) <= digits else None
        for name, digits in _MOST_DIGITS.items()
    }
    step = numbers["step"]
    if step is None:
        return None
    kind = _NUMBER.sub("N", head[-_KIND_LENGTH:])
    return Marker(None, text, 0, None, numbers["epoch"], step, numbers["rank"], kind)


def find_marked_steps(ranges: Sequence[Marker]) -> StepRanges:
    """Return the steps of one process that its ranges mark; empty if none do.

    Ranges that state a step's number come first, then numbers that count the steps, then steps in their order.
    """
    markers, unnumbered, counted, epochs = (
        [marker for marker in ranges if marker.role == role] for role in ("numbered", "unnumbered", "counted", "epoch")
    )
    named = [marker for marker in unnumbered if is_unnumbered_step(marker.text)]
    numbered = with_epochs(markers or select_counting(with_epochs(counted, epochs), named), epochs)
    if not numbered:
        return number_step_ranges(select_kinds(named, unnumbered))
    plain = [marker for marker in unnumbered if plain_kind(marker.text) is not None]
    return number_turns(numbered, plain) or select_step_ranges(numbered)


def select_step_ranges(markers: Iterable[Marker]) -> StepRanges:
    """Select the markers of one process that are its steps.

    The steps are on the thread with the most outermost markers (ties: the earliest). Ranges inside another marker's
    range belong to that step. Adjacent ranges of the same number ("step 3 forward", "step 3 backward") are one step.
    Of a number that recurs, one range is used: of the longest run of rising numbers, of equal ones the first.
    """
    on_thread, outermost = _find_steps_thread(markers, _outermost_regular)
    step_ranges = _ranges(outermost)
    return StepRanges(step_ranges.ranges, [*_other_kinds(on_thread, outermost), *step_ranges.problems])


def _find_steps_thread(
    markers: Iterable[Marker], outermost: Callable[[list[Marker]], list[Marker]]
) -> tuple[list[Marker], list[Marker]]:
    """Return the markers of the thread with the most outermost ones, of equal ones the earliest; and the outermost."""
    threads = by_key((marker.thread, marker) for marker in markers).values()
    candidates = [(on_thread, outermost(on_thread)) for on_thread in threads]
    return min(candidates, key=lambda pair: (-len(pair[1]), pair[1][0].start_ns), default=([], []))


def with_epochs(markers: Sequence[Marker], epochs: Iterable[Marker]) -> Sequence[Marker]:
    """Return the markers with the epochs around them, if their numbers recur without.

    A marker after the last range has the epoch after that: a profiler that stops within an epoch records no range.
    """
    runs = Counter(key for key, _ in groupby(map(_key, _outermost(list(markers)))))
    if max(runs.values(), default=0) < 2:
        return markers
    around: list[Marker] = []
    for epoch in sorted(epochs, key=lambda epoch: epoch.start_ns):
        if epoch.end_ns is not None and (not around or _follows(around[-1], epoch)):
            around.append(epoch)
    if not around:
        return markers
    starts = [epoch.start_ns for epoch in around]
    return [marker._replace(epoch=_epoch_of(marker, around, starts)) for marker in markers]


def _follows(epoch: Marker, later: Marker) -> bool:
    return later.start_ns >= (epoch.end_ns or 0) and (later.epoch or 0) > (epoch.epoch or 0)


def _epoch_of(marker: Marker, around: Sequence[Marker], starts: Sequence[int]) -> int | None:
    at = bisect_right(starts, marker.start_ns) - 1
    if marker.epoch is not None or at < 0:
        return marker.epoch
    epoch = around[at]
    assert epoch.epoch is not None
    assert epoch.end_ns is not None
    if marker.start_ns < epoch.end_ns:
        return epoch.epoch
    return epoch.epoch + 1 if at == len(around) - 1 else None


def select_counting(counted: Iterable[Marker], unnumbered: Sequence[Marker]) -> list[Marker]:
    """Return the ranges of one thread and kind whose numbers count the steps; empty if those of no kind do.

    Numbers that count rise from range to range and are at least three: sizes are equal, and those of parts begin anew
    in each step. Ranges of steps without a number (`unnumbered`) are preferred, unless there are as many.
    """
    ordered = sorted(counted, key=lambda marker: marker.start_ns)
    kinds = by_key(((marker.thread, marker.kind), marker) for marker in ordered)
    rising = [
        markers
        for markers in kinds.values()
        if len(markers) >= _MIN_REGULAR and all(one.order < two.order for one, two in pairwise(map(_key, markers)))
    ]
    chosen = max(rising, key=lambda markers: (len(markers), -markers[0].start_ns), default=[])
    return chosen if not unnumbered or len(chosen) == len(unnumbered) else []


def select_kinds(named: Sequence[Marker], ranges: Sequence[Marker]) -> Sequence[Marker]:
    """Return the steps: the ranges whose names say so (`named`), or all outermost ones where several kinds take turns.

    `update` alone may be a part of a training step. Beside ranges of another kind, one of which no training step has
    (`decode`, `rollout`), it is a step of its own. A range around steps (`generate`) is none.
    """
    if len(named) == len(ranges):
        return named
    thread = Counter(marker.thread for marker in named or ranges).most_common(1)[0][0]
    starts_ns = sorted(marker.start_ns for marker in named)
    named_ids = {id(marker) for marker in named}
    left = [
        marker
        for marker in ranges
        if marker.thread == thread and (id(marker) in named_ids or not _contains_start(marker, starts_ns))
    ]
    for _ in range(_MOST_AROUND):
        outermost = _outermost(left)
        kinds = {step_kind(marker.text).kind for marker in outermost}
        if len(kinds) > 1 and kinds & INFERENCE:
            return outermost
        outside = {id(marker) for marker in outermost}
        if not outside or outside & named_ids:
            break
        left = [marker for marker in left if id(marker) not in outside]
    return named


def number_turns(numbered: Sequence[Marker], plain: Iterable[Marker]) -> StepRanges | None:
    """Return the steps of a process whose ranges of several kinds take turns, as `rollout 3`, `update 3`; else None.

    `numbered` are markers with a number, `plain` ranges that a word such as `rollout` names. Each range is a step.
    Where all turns have the same kinds, the number of a turn gives the numbers of its steps: they are equal on ranks
    that began to record in different turns. Else the ranges with a number are the steps, unless kinds count apart
    (`prefill 1`, `decode 1`): then all are numbered in order from 0.
    """
    if any(marker.epoch is not None for marker in numbered):
        return None
    _, chosen = _find_steps_thread(numbered, _outermost_regular)
    starts_ns = [marker.start_ns for marker in chosen]
    of_thread = [marker for marker in plain if marker.thread == chosen[0].thread]
    outermost = _outermost([*chosen, *(marker for marker in of_thread if not _contains_start(marker, starts_ns))])
    kinds = {step_kind(marker.text).kind for marker in outermost}
    counted = {id(marker) for marker in chosen}
    beside = sum(id(marker) not in counted for marker in outermost)
    recurs = len({_key(marker) for marker in chosen}) < len(chosen) and len({marker.kind for marker in chosen}) > 1
    if len(kinds) < 2 or not kinds & INFERENCE or not (beside or recurs):
        return None
    numbers = _numbers_by_turn(outermost, counted)
    if numbers is None and not recurs:
        return None  # generations now and then: numbers in order would differ between ranks, where those stated do not
    shown = ", ".join(f"'{kind}'" for kind in sorted({marker.kind for marker in outermost}))
    said = f"the markers {shown} take turns: {format_count(len(outermost), 'step')} numbered in order from "
    numbers = numbers or list(range(len(outermost)))
    numbered_steps = _ranges([marker._replace(step=number) for marker, number in zip(outermost, numbers, strict=True)])
    ranges = [replace(step, kind=step_kind_in_turn(step.text or "")) for step in numbered_steps.ranges]
    return StepRanges(ranges, [f"{said}{numbers[0]}", *numbered_steps.problems])


def _numbers_by_turn(markers: Sequence[Marker], counted: Container[int]) -> list[int] | None:
    """Return the number of each step, by the number of its turn; None where the turns differ.

    `counted` has the ids of markers whose number is that of their turn. The others belong to the turn of the next one.
    """
    turn = next((marker.step for marker in reversed(markers) if id(marker) in counted), 0) + 1
    turns: list[int] = []
    for marker in reversed(markers):
        turn = marker.step if id(marker) in counted else turn
        turns.append(turn)
    grouped = [list(group) for _, group in groupby(zip(reversed(turns), markers, strict=True), lambda pair: pair[0])]
    kinds = [[marker.kind for _, marker in group] for group in grouped]
    whole = max(kinds, key=len)
    numbers = [group[0][0] for group in grouped]
    is_regular = (
        all(later == earlier + 1 for earlier, later in pairwise(numbers))
        and kinds[0] == whole[-len(kinds[0]) :]
        and all(middle == whole for middle in kinds[1:-1])
        and (len(kinds) == 1 or kinds[-1] == whole[: len(kinds[-1])])
    )
    if not is_regular:
        return None
    first = numbers[0] * len(whole) + len(whole) - len(kinds[0])
    return list(range(first, first + len(markers)))


_MOST_AROUND = 3
"""How many ranges around each other are looked at: a call of the job, a turn of its loop, a kind of step."""


def _contains_start(marker: Marker, starts_ns: Sequence[int]) -> bool:
    return marker.end_ns is not None and bisect_left(starts_ns, marker.start_ns) < bisect_left(starts_ns, marker.end_ns)


def number_step_ranges(ranges: Iterable[Marker]) -> StepRanges:
    """Select the ranges of one process that are its steps, of ranges without a number, and number them in order."""
    _, chosen = _find_steps_thread(sorted(ranges, key=lambda marker: marker.start_ns), _outermost)
    if not chosen:
        return StepRanges([], [])
    numbered = _ranges([marker._replace(step=number) for number, marker in enumerate(chosen)])
    names = sorted({marker.kind for marker in chosen})
    shown = ", ".join(f"'{name}'" for name in names[:_KINDS_SHOWN]) + (", …" if len(names) > _KINDS_SHOWN else "")
    said = f"the markers {shown} have no step number: {format_count(len(chosen), 'step')} numbered in order from 0"
    return StepRanges(numbered.ranges, [said, *numbered.problems])


_KINDS_SHOWN = 3


def _outermost_regular(markers: list[Marker]) -> list[Marker]:
    """Return the outermost markers; one range around several steps ("iteration 0" around a whole run) is no step."""
    outermost = _outermost(markers)
    while len(outermost) == 1 and not outermost[0].text.startswith(("ProfilerStep", "ProfileStep")):
        inner = _outermost([marker for marker in markers if marker.kind != outermost[0].kind])
        if len(inner) < _MIN_REGULAR:
            break
        markers, outermost = [marker for marker in markers if marker.kind != outermost[0].kind], inner
    return outermost


_MIN_REGULAR = 3
"""Ranges that repeat at least so often are steps, rather than the single range around them."""


def _other_kinds(markers: Sequence[Marker], chosen: Sequence[Marker]) -> list[str]:
    """Return a sentence on the kinds of range that could be steps, if there are several; `chosen` are the steps."""
    ends = (marker.start_ns if marker.end_ns is None else marker.end_ns for marker in markers)
    kinds = by_key((marker.kind, end - marker.start_ns) for marker, end in zip(markers, ends, strict=True))
    chosen_kinds = {marker.kind for marker in chosen}
    if not kinds.keys() - chosen_kinds:
        return []
    listed = ", ".join(
        f"'{kind}' ({len(lengths)} of median {format_time(median(lengths))})" for kind, lengths in sorted(kinds.items())
    )
    return [f"several kinds of range could be the steps: {listed}; taken: {', '.join(sorted(chosen_kinds))}"]


def _outermost(markers: list[Marker]) -> list[Marker]:
    """Return the markers that no other contains, by start. A range without an end contains none."""
    kept: list[Marker] = []
    covered_to = min((marker.start_ns for marker in markers), default=0) - 1  # times may be negative
    for marker in sorted(markers, key=lambda m: (m.start_ns, -(m.end_ns if m.end_ns is not None else m.start_ns))):
        is_covered = marker.start_ns < covered_to if marker.end_ns is None else marker.end_ns <= covered_to
        if not is_covered:
            kept.append(marker)
            covered_to = max(covered_to, marker.start_ns if marker.end_ns is None else marker.end_ns)
    return kept


def _ranges(markers: list[Marker]) -> StepRanges:
    pieces = [list(step) for _, step in groupby(markers, _key)]
    starts = [step[0].start_ns for step in pieces[1:]]
    counted = _steps_of_runs(pieces)
    ranges: dict[StepKey, StepRange] = {}
    for number, (step, following_ns) in enumerate(zip_longest(pieces, starts)):
        key, first = _key(step[0]), step[0]
        if counted[key] != number:
            continue
        ends = [piece.end_ns for piece in step if piece.end_ns is not None]
        end_ns = max(ends) if len(ends) == len(step) else None
        rank = next((piece.rank for piece in step if piece.rank is not None), None)
        # ranges may overlap and open ranges never end: a launch belongs to the step that started last
        bounds = [bound for bound in (end_ns, following_ns) if bound is not None]
        ranges[key] = StepRange(key, first.text, first.start_ns, end_ns, min(bounds, default=None), rank)
    times = Counter(_key(step[0]) for step in pieces)
    problems = [
        f"{key} is marked {times[key]} times; only one is read"
        if key.epoch is not None
        else f"{key} is marked {times[key]} times without an epoch; only the one among most other steps is read "
        "(name the epoch in the marker, or give --step-pattern with a group epoch)"
        for key in ranges
        if times[key] > 1
    ]
    return StepRanges(list(ranges.values()), problems)


def _steps_of_runs(pieces: Sequence[Sequence[Marker]]) -> dict[StepKey, int]:
    """Return the position of the range that counts for each step: of several, that of the longest run of the counter.

    Lightning's profiler counts the validation before the training, and begins anew.
    """
    orders = [_key(step[0]).order for step in pieces]
    run_of = [0, *accumulate(later <= earlier for earlier, later in pairwise(orders))]
    lengths = Counter(run_of)
    counted: dict[StepKey, int] = {}
    for number, step in enumerate(pieces):
        earlier = counted.setdefault(_key(step[0]), number)
        if lengths[run_of[number]] > lengths[run_of[earlier]]:
            counted[_key(step[0])] = number
    return counted


def _key(marker: Marker) -> StepKey:
    return StepKey(marker.epoch, marker.step)
