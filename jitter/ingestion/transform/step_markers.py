"""Which host-side ranges are training steps: by pattern, on one thread of each process, nested ones left out."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from jitter.core.errors import UsageError
from jitter.core.step_key import StepKey

_SEPARATOR = r"[\s_:=#/\-\[(]*"
_EPOCH = rf"(?:(?<![a-z])epoch{_SEPARATOR}(?P<epoch>\d+)\D*?)?"
_PART_OF_A_STEP = "".join(rf"(?<!{word})(?<!{word}[_\- ])" for word in ("micro", "mini", "sub", "accum"))
_COUNTER = rf"(?<![a-z])(?:profilerstep|(?:train(?:ing)?|global)?[\s_\-]?{_PART_OF_A_STEP}(?:step|iteration|iter))"
_RANK = rf"(?:.*?(?<![a-z])(?<!local)(?<!local[_\- ])rank{_SEPARATOR}(?P<rank>\d+))?"

DEFAULT_STEP_PATTERN = rf"(?i){_EPOCH}{_COUNTER}{_SEPARATOR}(?P<step>\d+)(?![\d.]){_RANK}"
"""`epoch1_step2003-rank0-…`, `ProfilerStep#12`, `step 12`, `train_step=12`, `iteration: 12`, `[iter 12]`."""

_DATA_LOADING = re.compile(
    r"(?i)enumerate\(dataloader\)|data[ _\-]?load|load[ _\-]?(?:data|batch)|next[ _\-]?batch|get[ _\-]?batch"
    r"|batch[ _\-]?generator|input[ _\-]?pipeline|data[ _\-]?(?:wait|fetch|iter|time)|fetch[ _\-]?(?:data|batch)"
)


class Marker(NamedTuple):
    """A range whose text names a step. Times in ns; `end_ns` is None where the recording ended first."""

    thread: int | None
    text: str
    start_ns: int
    end_ns: int | None
    epoch: int | None
    step: int
    rank: int | None


@dataclass(frozen=True)
class StepRange:
    """When one process was in one step: launches that start in [start_ns, until_ns) belong to it."""

    key: StepKey
    text: str | None
    """The marker's text; None where the step was found by repetition."""
    start_ns: int
    end_ns: int | None
    """None: the range has no end in the recording."""
    until_ns: int | None
    """Where launches stop counting: the end, or for an open range the next step's start; None: never."""
    rank: int | None = None


@dataclass(frozen=True)
class StepRanges:
    """The steps of one process in order, and what was wrong with its markers."""

    ranges: list[StepRange]
    problems: list[str]


def compile_step_pattern(expression: str | None) -> re.Pattern[str]:
    """Compile a step pattern; raise `UsageError` if it is no expression or has no group `step`."""
    if expression is None:
        return re.compile(DEFAULT_STEP_PATTERN)
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise UsageError(f"--step-pattern is not a regular expression: {error}", f"got {expression!r}") from None
    if "step" not in pattern.groupindex:
        raise UsageError(
            "--step-pattern has no group named step",
            r"write it like (?P<step>\d+); (?P<epoch>\d+) and (?P<rank>\d+) are optional",
        )
    return pattern


_MOST_DIGITS = {"step": 18, "epoch": 18, "rank": 9}
"""What fits the lake's columns."""


def parse_marker(
    pattern: re.Pattern[str], thread: int | None, text: str, start_ns: int, end_ns: int | None
) -> Marker | None:
    """The step that a range's text names, or None. A group that holds no number, or too long a one, names nothing."""
    found = pattern.search(text)
    if found is None:
        return None
    groups = found.groupdict()
    numbers = {
        name: int(word) if (word := groups.get(name)) and word.isdecimal() and len(word) <= digits else None
        for name, digits in _MOST_DIGITS.items()
    }
    step = numbers["step"]
    if step is None:
        return None
    return Marker(thread, text, start_ns, end_ns, numbers["epoch"], step, numbers["rank"])


def is_data_loading(text: str) -> bool:
    """Whether a host range is the wait for the next batch (`enumerate(DataLoader)…` and its like)."""
    return _DATA_LOADING.search(text) is not None


def select_step_ranges(markers: Iterable[Marker]) -> StepRanges:
    """Decide which markers of one process are its steps.

    Steps are marked on one thread: the one with the most outermost ones (ties: the earliest). Ranges inside
    another marker's range are parts of that step. Neighbouring pieces of the same number ("step 3 forward",
    "step 3 backward") are one step; a number that comes back later without an epoch is ambiguous and left out.
    """
    threads: dict[int | None, list[Marker]] = defaultdict(list)
    for marker in markers:
        threads[marker.thread].append(marker)
    if not threads:
        return StepRanges([], [])
    outermost = {thread: _outermost(found) for thread, found in threads.items()}
    chosen = min(outermost.values(), key=lambda found: (-len(found), found[0].start_ns))
    return _ranges(chosen)


def _outermost(markers: list[Marker]) -> list[Marker]:
    """Those not inside another, by start. A range without an end cannot be options to hold others."""
    kept: list[Marker] = []
    covered_to = -1
    for marker in sorted(markers, key=lambda m: (m.start_ns, -(m.end_ns if m.end_ns is not None else m.start_ns))):
        end = marker.start_ns if marker.end_ns is None else marker.end_ns
        if kept and end <= covered_to and marker.end_ns is not None:
            continue
        if kept and marker.end_ns is None and marker.start_ns < covered_to:
            continue
        kept.append(marker)
        covered_to = max(covered_to, end)
    return kept


def _ranges(markers: list[Marker]) -> StepRanges:
    pieces: list[list[Marker]] = []
    for marker in markers:
        if pieces and _key(pieces[-1][0]) == _key(marker):
            pieces[-1].append(marker)
        else:
            pieces.append([marker])
    starts = [step[0].start_ns for step in pieces[1:]]
    ranges: dict[StepKey, StepRange] = {}
    again: Counter[StepKey] = Counter()
    for step, following_ns in zip(pieces, [*starts, None], strict=True):
        key, first = _key(step[0]), step[0]
        ends = [piece.end_ns for piece in step if piece.end_ns is not None]
        end_ns = max(ends) if len(ends) == len(step) else None
        if key in ranges:
            again[key] += 1
            continue
        rank = next((piece.rank for piece in step if piece.rank is not None), None)
        # start/end ranges may overlap, and an open one never ends: a launch is of the step that began last
        bounds = [bound for bound in (end_ns, following_ns) if bound is not None]
        ranges[key] = StepRange(key, first.text, first.start_ns, end_ns, min(bounds, default=None), rank)
    problems = [
        f"{key} is marked {count + 1} times; only the first is read"
        if key.epoch is not None
        else f"{key} is marked {count + 1} times without an epoch; only the first is read "
        "(name the epoch in the marker, or give --step-pattern with a group epoch)"
        for key, count in again.items()
    ]
    return StepRanges(list(ranges.values()), problems)


def _key(marker: Marker) -> StepKey:
    return StepKey(marker.epoch, marker.step)
