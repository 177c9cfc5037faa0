"""What waits for what: inferred, for each place in the program, from what all ranks and steps did there.

METRICS, "From deviations to answers", 1. An operation always starts after its launch and after the one before it on
its stream. It waits for an operation of another stream too if it never starts before that one ends, and if that is
what it was waiting for when nothing else explains its start. Wherever a wait never mattered it is not seen, and does
no harm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jitter.analysis.execution.launch_queue import Launches, queue_limit
from jitter.analysis.execution.program import NO_LANE, Program
from jitter.analysis.execution.rules import Rules, Wait
from jitter.core.arrays import Floats, Ints
from jitter.core.kernels import SYNC

RIGHT_AFTER_NS: Final = 20_000
"""An operation that starts within this of another's end started right after it (METRICS)."""
_LATER_NS: Final = 2_000
"""A start this long after all that is known to hold an operation back is not explained by it."""
_EXPLAINED: Final = 0.5
"""Of the starts that nothing else explains, a wait must explain this part."""
_LOOK_BACK: Final = 64
"""Operations of another stream that may be pending at once."""


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
    launch_ns, stream_ns = _floors(sample)
    waits: list[Wait] = []
    on_lane: dict[int, list[int]] = {lane: [] for lane in range(len(sample.lane_end))}
    for place, op in enumerate(program.operations):
        others = {lane: places for lane, places in on_lane.items() if lane != op.lane}
        if op.kind == SYNC:
            awaited = _held_by(sample.back[place], sample.call[place], others, sample)
            # the host's clock and the GPU's agree to some microseconds only: strictly first, then within that
            awaited = awaited or _held_by(sample.back[place], sample.call[place], others, sample, RIGHT_AFTER_NS)
        else:
            known = np.fmax(sample.submit[place] + launch_ns, sample.end_before[place] + stream_ns)
            awaited = _held_by(sample.start[place], known, others, sample)
        waits += [Wait(place, other, "sync" if op.kind == SYNC else "event") for other in awaited]
        if op.lane != NO_LANE:
            on_lane[op.lane].append(place)
    return Rules(tuple(waits), thread, queue_limit(sample.launch_orders), launch_ns, stream_ns)


def _held_by(
    until: Floats, known: Floats, others: Mapping[int, Sequence[int]], sample: Sample, slack_ns: float = 0.0
) -> list[int]:
    """What an operation waited for, that was held back `until` then where `known` explains less; (cells,) each."""
    unexplained = until - known > _LATER_NS
    if not unexplained.any():
        return []
    found = _always_ended(until + slack_ns, others, sample)
    if not found:
        return []
    latest = np.fmax.reduce(np.stack(list(found.values())))
    right_after = unexplained & (latest > known) & (until - latest <= RIGHT_AFTER_NS)
    if right_after.sum() < _EXPLAINED * unexplained.sum():
        return []
    # of several, those that it was waiting for somewhere
    return [place for place, end in found.items() if (right_after & (end == latest)).any()]


def _always_ended(by: Floats, others: Mapping[int, Sequence[int]], sample: Sample) -> dict[int, Floats]:
    """For each lane the latest operation that had always ended by then (~lane: of the step before), with its ends."""
    found: dict[int, Floats] = {}
    for lane, places in others.items():
        for candidate in [*places[: -_LOOK_BACK - 1 : -1], ~lane]:
            end: Floats = sample.end[candidate] if candidate >= 0 else sample.lane_end[~candidate]
            both = ~np.isnan(end) & ~np.isnan(by)
            if both.any() and (end[both] <= by[both]).all():
                found[candidate] = end
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
    return float(np.sort(short)[(len(short) - 1) // 2]) if len(short) else 0.0
