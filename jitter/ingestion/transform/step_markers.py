"""Step markers: the host ranges of one thread per process whose text matches the step pattern, without nested ones."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from jitter.core.errors import UsageError
from jitter.core.step_key import StepKey

# a hyphen after another separator is a minus sign: ProfilerStep#-1 is no step, step-1 is one
_SEPARATOR = r"[\s_:=#/\-\[(]*(?<![\s:=#/\[(]-)"
_EPOCH = rf"(?:(?<![a-z])epoch{_SEPARATOR}(?P<epoch>\d+)\D*?)?"
_PART_OF_A_STEP = "".join(rf"(?<!{word})(?<!{word}[_\- ])" for word in ("micro", "mini", "sub", "accum"))
_COUNTER = rf"(?<![a-z])(?:profilerstep|(?:train(?:ing)?|global)?[\s_\-]?{_PART_OF_A_STEP}(?:step|iteration|iter))"
NOT_GLOBAL = r"(?<!(?<![a-z])(?:tp|pp|dp|cp|ep|mp|sp)[_\-. ])(?<!(?<![a-z])node[_\-. ])(?<!(?<![a-z])machine[_\-. ])"
"""Before "rank" in a pattern: the word before does not say that the rank is one of a parallel group or of a node."""
_RANK = rf"(?:.*?(?<![a-z])(?<!local)(?<!local[_\- ]){NOT_GLOBAL}rank{_SEPARATOR}(?P<rank>\d+))?"

DEFAULT_STEP_PATTERN = rf"(?i){_EPOCH}{_COUNTER}{_SEPARATOR}(?P<step>\d+)(?![\d.]){_RANK}"
"""`epoch1_step2003-rank0-…`, `ProfilerStep#12`, `step 12`, `train_step=12`, `iteration: 12`, `[iter 12]`."""

_DATA_LOADING = re.compile(
    r"(?i)enumerate\(dataloader\)|data[ _\-]?load|load[ _\-]?(?:data|batch)|next[ _\-]?batch|get[ _\-]?batch"
    r"|batch[ _\-]?generator|input[ _\-]?pipeline|data[ _\-]?(?:wait|fetch|iter|time)|fetch[ _\-]?(?:data|batch)"
)


class Marker(NamedTuple):
    """A range whose text states a step number. Times in ns; `end_ns` is None if the recording ended first."""

    thread: int | None
    text: str
    start_ns: int
    end_ns: int | None
    epoch: int | None
    step: int
    rank: int | None


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


@dataclass(frozen=True)
class StepRanges:
    """The steps of one process in order, and the problems of its markers."""

    ranges: list[StepRange]
    problems: list[str]


def compile_step_pattern(expression: str | None) -> re.Pattern[str]:
    """Compile a step pattern; raise `UsageError` if it is not a regular expression or has no group `step`."""
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
"""Digits that fit the lake's columns."""


def parse_marker(
    pattern: re.Pattern[str], thread: int | None, text: str, start_ns: int, end_ns: int | None
) -> Marker | None:
    """Return the marker of a range, or None if its text states no step number that fits the column."""
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
    """Return whether a host range waits for the next batch (`enumerate(DataLoader)…` and similar)."""
    return _DATA_LOADING.search(text) is not None


def select_step_ranges(markers: Iterable[Marker]) -> StepRanges:
    """Select the markers of one process that are its steps.

    The steps are on the thread with the most outermost markers (ties: the earliest). Ranges inside another marker's
    range belong to that step. Adjacent ranges of the same number ("step 3 forward", "step 3 backward") are one step.
    A number that recurs later without an epoch is ambiguous, and only its first range is used.
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
    """Return the markers that no other contains, by start. A range without an end contains none."""
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
        # ranges may overlap and open ranges never end: a launch belongs to the step that started last
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
