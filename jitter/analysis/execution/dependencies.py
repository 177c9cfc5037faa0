"""What waits for what: inferred, for each place in a program, from what all ranks and steps did there.

An operation always starts after its launch and after the one before it on its stream. It waits for an operation of
another stream too if it never starts before that one ends, and if that one's end explains its start where nothing else
does. A wait that never mattered is not seen, and does no harm.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.execution.launch_queue import Launches, queue_limit
from jitter.analysis.execution.program import Program
from jitter.analysis.execution.rules import Rules, Wait
from jitter.core.arrays import Floats, Ints
from jitter.core.compilation import compiled
from jitter.core.kernels import SYNC
from jitter.core.selection import later

RIGHT_AFTER_NS: Final = 20_000
"""An operation that starts within this of another's end started right after it."""
_LATER_NS: Final = 2_000
"""A start this long after all that is known to hold an operation back is not explained by it."""
_EXPLAINED: Final = 0.5
"""Of the starts that nothing else explains, a wait must explain this part."""
_LOOK_BACK: Final = 64
"""Operations of another stream that may be pending at once."""
_NONE: Final = -(1 << 62)


class Sample(NamedTuple):
    """Ranks' steps one after another: (cells, operations), and how each cell comes to its step (cells, lanes); ns."""

    start: Floats
    end: Floats
    """Its own; where a rank lacks it, that of the one before it on its stream."""
    call: Floats
    back: Floats
    submit: Floats
    end_before: Floats
    lane_end: Floats


def infer(program: Program, thread: Ints, sample: Sample, launches: Sequence[Launches]) -> Rules:
    """Infer the dependencies of a program from a sample of its cells, and of some ranks' launches in order."""
    launch_ns, stream_ns = _usual_delays(sample)
    cells, operations = sample.start.shape
    lanes = sample.lane_end.shape[1]
    awaited = np.full((operations, lanes), _NONE, np.int64)
    previous = np.full(operations, -1, np.int64)
    room = np.empty((3, cells))
    find_waits(
        program.kinds,
        program.lanes,
        sample,
        launch_ns,
        stream_ns,
        previous,
        np.full(lanes, -1, np.int64),
        room,
        awaited,
    )
    waits = [
        Wait(place, int(awaited[place, lane]), "sync" if program.kinds[place] == SYNC else "event")
        for place, lane in np.argwhere(awaited != _NONE).tolist()
    ]
    return Rules(tuple(waits), thread, queue_limit(launches), launch_ns, stream_ns)


@compiled
def find_waits(
    kind: Ints,
    lane: Ints,
    sample: Sample,
    launch_ns: float,
    stream_ns: float,
    previous: Ints,
    last: Ints,
    room: Floats,
    awaited: Ints,
) -> None:
    """Find, (operations, lanes), what each operation waits for on each stream: a place, ~lane, or `_NONE`.

    `previous` (operations,) and `last` (lanes,) come as -1: they chain each stream's operations. `room` (3, cells) is
    overwritten: until when each cell was held back, what explains that, and the latest end of what may be awaited.
    """
    cells = sample.start.shape[0]
    for op in range(len(kind)):
        for cell in range(cells):
            if kind[op] == SYNC:
                room[0, cell], room[1, cell] = sample.back[cell, op], sample.call[cell, op]
            else:
                room[0, cell] = sample.start[cell, op]
                room[1, cell] = later(sample.submit[cell, op] + launch_ns, sample.end_before[cell, op] + stream_ns)
        found = find_awaited(lane[op], sample, 0.0, previous, last, room, awaited, op)
        if kind[op] == SYNC and not found:
            # the host's clock and the GPU's agree to some microseconds only: strictly first, then within that
            find_awaited(lane[op], sample, float(RIGHT_AFTER_NS), previous, last, room, awaited, op)
        if lane[op] >= 0:
            previous[op] = last[lane[op]]
            last[lane[op]] = op


@compiled
def find_awaited(  # noqa: PLR0912  # one rule
    own_lane: int,
    sample: Sample,
    slack_ns: float,
    previous: Ints,
    last: Ints,
    room: Floats,
    awaited: Ints,
    op: int,
) -> bool:
    """Find what one operation waits for; return whether it waits for anything.

    On each other stream that is the latest operation that had always ended when this one was let go. Together they
    must explain half of the starts that nothing else explains; of several, those are kept that were the last somewhere.
    """
    cells = sample.start.shape[0]
    unexplained = 0
    for cell in range(cells):
        unexplained += room[0, cell] - room[1, cell] > _LATER_NS
        room[2, cell] = math.nan
    if unexplained == 0:
        return False
    for lane in range(len(last)):
        if lane != own_lane:
            awaited[op, lane] = find_always_ended(lane, sample, slack_ns, previous, last[lane], room)
            if awaited[op, lane] != _NONE:
                for cell in range(cells):
                    room[2, cell] = later(room[2, cell], ended(sample, cell, awaited[op, lane]))
    explained = 0
    for cell in range(cells):
        explained += is_right_after(room, cell)
    kept = False
    for lane in range(len(last)):
        if awaited[op, lane] != _NONE:
            matters = False
            if explained > 0 and explained >= _EXPLAINED * unexplained:
                for cell in range(cells):
                    if is_right_after(room, cell) and ended(sample, cell, awaited[op, lane]) == room[2, cell]:
                        matters = True
                        break
            if matters:
                kept = True
            else:
                awaited[op, lane] = _NONE
    return kept


@compiled
def find_always_ended(lane: int, sample: Sample, slack_ns: float, previous: Ints, latest: int, room: Floats) -> int:
    """Return the latest operation of a stream that had ended in every cell by then; ~lane: of the step before."""
    candidate = latest
    for _ in range(_LOOK_BACK):
        if candidate < 0:
            break
        if had_always_ended(sample, candidate, slack_ns, room):
            return candidate
        candidate = previous[candidate]
    return ~lane if had_always_ended(sample, ~lane, slack_ns, room) else _NONE


@compiled
def had_always_ended(sample: Sample, candidate: int, slack_ns: float, room: Floats) -> bool:
    """Tell whether an operation had ended in every cell where that is known, and it is known in one at least."""
    known = False
    for cell in range(sample.start.shape[0]):
        end, by = ended(sample, cell, candidate), room[0, cell] + slack_ns
        if end > by:
            return False
        known = known or end <= by
    return known


@compiled
def ended(sample: Sample, cell: int, candidate: int) -> float:
    """Return the end of an operation, or for ~lane of the last on it in the step before."""
    return float(sample.end[cell, candidate] if candidate >= 0 else sample.lane_end[cell, ~candidate])


@compiled
def is_right_after(room: Floats, cell: int) -> bool:
    """Tell whether an unexplained start is right after the end of what may be awaited."""
    until, known, latest = room[0, cell], room[1, cell], room[2, cell]
    return bool(until - known > _LATER_NS and latest > known and until - latest <= RIGHT_AFTER_NS)


def _usual_delays(sample: Sample) -> tuple[float, float]:
    """Usual times from a launch's return, and from the stream's last end, to the start, where that alone held back."""
    launch_held = sample.submit - sample.end_before > RIGHT_AFTER_NS
    stream_held = sample.end_before - sample.submit > RIGHT_AFTER_NS
    launch = (sample.start - sample.submit)[launch_held]
    stream = (sample.start - sample.end_before)[stream_held]
    return _usual(launch), _usual(stream)


def _usual(delays: Floats) -> float:
    short = delays[delays <= RIGHT_AFTER_NS]
    middle = (len(short) - 1) // 2
    return float(np.partition(short, middle)[middle]) if len(short) else 0.0
