"""What waits for what: inferred, for each place in the program, from what all ranks and steps did there.

METRICS, "From deviations to answers", 1. An operation always starts after its launch and after the one before it on
its stream. It waits for an operation of another stream too if it never starts before that one ends, and if that is
what it was waiting for when nothing else explains its start. Wherever a wait never mattered it is not seen, and does
no harm.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np

from jitter.cells import SYNC, Floats, Ints
from jitter.program import NO_LANE, Program

RIGHT_AFTER_NS: Final = 20_000
"""An operation that starts within this of another's end started right after it."""
_LATER_NS: Final = 2_000
"""A start this long after all that is known to hold an operation back is not explained by it."""
_EXPLAINED: Final = 0.5
"""Of the starts that nothing else explains, a wait must explain this part."""
_LOOK_BACK: Final = 64
"""Operations of another stream that may be pending at once."""
_LEAST_WAITED: Final = 3
"""A launch queue has a limit if so many launches at the most pending ever"""
_LONG_CALL: Final = 2.0
"""took so many times as long as usual"""
_WHEN_FREED: Final = 0.9
"""and returned, this part of them, right after a place had become free."""
_LEAST_QUEUE: Final = 8


class Wait(NamedTuple):
    """An operation (`ordinal`: its place in the program) waits for another one's end.

    `on_ordinal` below 0 is the last operation of the step before on lane ~`on_ordinal`.
    """

    ordinal: int
    on_ordinal: int
    kind: Literal["event", "sync"]


@dataclass(frozen=True)
class Rules:
    """What holds for every rank and step of a program."""

    waits: tuple[Wait, ...]
    thread: Ints
    """(operations,) which host thread's calls it follows; all 0 where the threads hand over to each other."""
    queue: int | None
    """How many launches may be pending before the host has to wait; None: no limit was seen."""
    launch_ns: float
    """Usual time from the end of a launch to the start of its kernel, where only that held it back."""
    stream_ns: float
    """The same from the end of the operation before it on its stream."""
    by_place: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Place to the places it waits for."""


class Launches(NamedTuple):
    """A rank's launches in order, ns."""

    call: Floats
    back: Floats
    start: Floats
    """Of what each launched, on the GPU."""


@dataclass(frozen=True)
class Sample:
    """Cells side by side: (operations, cells), and what each cell's step before left on its lanes (lanes, cells)."""

    start: Floats
    end: Floats
    call: Floats
    back: Floats
    submit: Floats
    end_before: Floats
    lane_end: Floats
    launch_orders: Sequence[Launches]
    """Of some ranks, over consecutive steps."""


def infer(program: Program, thread: Ints, sample: Sample) -> Rules:
    """Infer the rules of a program from a sample of its cells."""
    lanes = np.array([op.lane for op in program.operations], np.int64)
    launch_ns, stream_ns = _floors(sample)
    waits: list[Wait] = []
    on_lane: dict[int, list[int]] = {lane: [] for lane in range(len(sample.lane_end))}
    for place, op in enumerate(program.operations):
        if op.kind == SYNC:
            held_until, known = sample.back[place], sample.call[place]
        else:
            held_until = sample.start[place]
            known = np.fmax(sample.submit[place] + launch_ns, sample.end_before[place] + stream_ns)
        others = [lane for lane in on_lane if lane != op.lane]
        waits += _waits(place, op.kind == SYNC, held_until, known, others, on_lane, sample)
        if op.lane != NO_LANE:
            on_lane[op.lane].append(place)
    by_place: dict[int, tuple[int, ...]] = {}
    for wait in waits:
        by_place[wait.ordinal] = (*by_place.get(wait.ordinal, ()), wait.on_ordinal)
    return Rules(tuple(waits), thread, _queue(sample.launch_orders), launch_ns, stream_ns, by_place)


def _waits(
    place: int,
    is_sync: bool,
    held_until: Floats,
    known: Floats,
    others: Sequence[int],
    on_lane: dict[int, list[int]],
    sample: Sample,
) -> list[Wait]:
    unexplained = held_until - known > _LATER_NS
    if not unexplained.any():
        return []
    # the host's clock and the GPU's agree to some microseconds only: strictly first, then within that
    for slack in (0, RIGHT_AFTER_NS) if is_sync else (0,):
        found = _always_ended(held_until + slack, others, on_lane, sample)
        if not found:
            continue
        ends = np.stack([end for _, end in found])
        latest = np.fmax.reduce(ends)
        right_after = unexplained & (latest > known) & (held_until - latest <= RIGHT_AFTER_NS)
        if right_after.sum() >= _EXPLAINED * unexplained.sum():
            break
    else:
        return []
    kind: Literal["event", "sync"]


@dataclass(frozen=True)
class Rules:
    """What holds for every rank and step of a program."""

    waits: tuple[Wait, ...]
    thread: Ints
    """(operations,) which host thread's calls it follows; all 0 where the threads hand over to each other."""
    queue: int | None
    """How many launches may be pending before the host has to wait; None: no limit was seen."""
    launch_ns: float
    """Usual time from the end of a launch to the start of its kernel, where only that held it back."""
    stream_ns: float
    """The same from the end of the operation before it on its stream."""
    by_place: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Place to the places it waits for."""


class Launches(NamedTuple):
    """A rank's launches in order, ns."""

    call: Floats
    back: Floats
    start: Floats
    """Of what each launched, on the GPU."""


@dataclass(frozen=True)
class Sample:
    """Cells side by side: (operations, cells), and what each cell's step before left on its lanes (lanes, cells)."""

    start: Floats
    end: Floats
    call: Floats
    back: Floats
    submit: Floats
    end_before: Floats
    lane_end: Floats
    launch_orders: Sequence[Launches]
    """Of some ranks, over consecutive steps."""


def infer(program: Program, thread: Ints, sample: Sample) -> Rules:
    """Infer the rules of a program from a sample of its cells."""
    lanes = np.array([op.lane for op in program.operations], np.int64)
    launch_ns, stream_ns = _floors(sample)
    waits: list[Wait] = []
    on_lane: dict[int, list[int]] = {lane: [] for lane in range(len(sample.lane_end))}
    for place, op in enumerate(program.operations):
        if op.kind == SYNC:
            held_until, known = sample.back[place], sample.call[place]
        else:
            held_until = sample.start[place]
            known = np.fmax(sample.submit[place] + launch_ns, sample.end_before[place] + stream_ns)
        others = [lane for lane in on_lane if lane != op.lane]
        waits += _waits(place, op.kind == SYNC, held_until, known, others, on_lane, sample)
        if op.lane != NO_LANE:
            on_lane[op.lane].append(place)
    by_place: dict[int, tuple[int, ...]] = {}
    for wait in waits:
        by_place[wait.ordinal] = (*by_place.get(wait.ordinal, ()), wait.on_ordinal)
    return Rules(tuple(waits), thread, _queue(sample.launch_orders), launch_ns, stream_ns, by_place)


def _waits(
    place: int,
    is_sync: bool,
    held_until: Floats,
    known: Floats,
    others: Sequence[int],
    on_lane: dict[int, list[int]],
    sample: Sample,
) -> list[Wait]:
    unexplained = held_until - known > _LATER_NS
    if not unexplained.any():
        return []
    # the host's clock and the GPU's agree to some microseconds only
    slack = RIGHT_AFTER_NS if is_sync else 0
    found: list[tuple[int, Floats]] = []
    for lane in others:
        for candidate in [*on_lane[lane][: -_LOOK_BACK - 1 : -1], ~lane]:
            end = sample.end[candidate] if candidate >= 0 else sample.lane_end[~candidate]
            both = ~np.isnan(end) & ~np.isnan(held_until)
            if both.any() and (end[both] <= held_until[both] + slack).all():
                found.append((candidate, end))
                break
    if not found:
        return []
    ends = np.stack([end for _, end in found])
    latest = np.fmax.reduce(ends)
    right_after = unexplained & (latest > known) & (held_until - latest <= RIGHT_AFTER_NS)
    if right_after.sum() < _EXPLAINED * unexplained.sum():
        return []
    kind: Literal["event", "sync"] = "sync" if is_sync else "event"
    return [
        Wait(place, candidate, kind)
        for candidate, end in found
        # it was this one that it waited for, somewhere
        if (right_after & (end == latest)).any()
    ]


def _always_ended(
    by: Floats, others: Sequence[int], on_lane: dict[int, list[int]], sample: Sample
) -> list[tuple[int, Floats]]:
    """For each lane the latest operation that had always ended by then, with its ends."""
    found: list[tuple[int, Floats]] = []
    for lane in others:
        for candidate in [*on_lane[lane][: -_LOOK_BACK - 1 : -1], ~lane]:
            end = sample.end[candidate] if candidate >= 0 else sample.lane_end[~candidate]
            both = ~np.isnan(end) & ~np.isnan(by)
            if both.any() and (end[both] <= by[both]).all():
                found.append((candidate, end))
                break
    return found


def _floors(sample: Sample) -> tuple[float, float]:
    """Usual times from a launch's return, and from the stream's last end, to the start, where that alone held back."""
    launch_held = sample.submit - sample.end_before > RIGHT_AFTER_NS
    stream_held = sample.end_before - sample.submit > RIGHT_AFTER_NS
    launch = (sample.start - sample.submit)[launch_held]
    stream = (sample.start - sample.end_before)[stream_held]
    return _usual(launch), _usual(stream)


def _usual(delays: Floats) -> float:
    short = delays[delays <= RIGHT_AFTER_NS]
    return float(np.median(short)) if len(short) else 0.0


def _queue(orders: Sequence[Launches]) -> int | None:
    """Find the limit of the launch queue: the most launches ever pending, where launches then had to wait."""
    if not orders:
        return None
    pending, freed, took = [], [], []
    for call, back, start in orders:
        ordered = np.sort(start)
        started = np.searchsorted(ordered, back, side="right")
        pending.append(np.arange(1, len(back) + 1) - started)
        freed.append(back - ordered[np.maximum(started - 1, 0)])
        took.append(back - call)
    counts, since_start, in_call = np.concatenate(pending), np.concatenate(freed), np.concatenate(took)
    most = int(counts.max(initial=0))
    # a launch that finds the last place free does not wait
    waited = (counts == most) & (in_call > _LONG_CALL * np.median(in_call))
    if most < _LEAST_QUEUE or waited.sum() < _LEAST_WAITED:
        return None
    freed_then = (since_start[waited] <= RIGHT_AFTER_NS).mean()
    return most if freed_then >= _WHEN_FREED else None


def waits_by_ordinal(program: Program, rules: Rules) -> list[Wait]:
    """The waits within a step, with places as ordinals of the program's commonest sequence (rows of the lake).

    A call that waits has none: what is launched next stands for it.
    """
    operations = program.operations
    reference = sorted(program.places[program.reference].tolist())
    ordinal = {place: number for number, place in enumerate(p for p in reference if operations[p].kind != SYNC)}
    found = []
    for wait in rules.waits:
        waiting = wait.ordinal
        while waiting < len(operations) and waiting not in ordinal:
            waiting += 1
        if waiting in ordinal and (wait.on_ordinal < 0 or wait.on_ordinal in ordinal):
            found.append(Wait(ordinal[waiting], ordinal.get(wait.on_ordinal, wait.on_ordinal), wait.kind))
    return found
