"""Own time: what an operation took by itself, all waiting taken out (METRICS, "From deviations to answers", 2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from jitter.analysis.execution.program import Program
from jitter.analysis.execution.ready_times import Readiness, Tail, left_by, pushed, readiness
from jitter.analysis.execution.rules import Rules
from jitter.analysis.execution.step_times import Recorded, StepArrays
from jitter.core.arrays import Bools, Floats, Ints
from jitter.core.kernels import COLLECTIVE, SYNC


@dataclass(frozen=True)
class OwnTimes:
    """(operations, ranks) in ns; 0 where a rank has not the operation. A collective's own time is its group's."""

    host: Floats
    """From the host's call before to this one's begin. NaN for a rank's first call: nothing goes before it."""
    call: Floats
    """In the call, waits for the GPU and for a place in the launch queue taken out."""
    lead: Floats
    """From when the GPU had the launch to the call's return."""
    delay: Floats
    """From the latest of what it waits for, and the usual time after that, to its start; may be below 0."""
    gpu: Floats
    """On the GPU; 0 for collectives."""

    def strip(self, rows: slice) -> "OwnTimes":
        """The same for some of the operations."""
        return OwnTimes(*(getattr(self, field.name)[rows] for field in fields(self)))

    def columns(self, which: object) -> "OwnTimes":
        """The same for some of the columns."""
        return OwnTimes(*(getattr(self, field.name)[:, which] for field in fields(self)))


def side_by_side(several: Sequence[OwnTimes]) -> OwnTimes:
    """The columns of several steps of one program."""
    return OwnTimes(
        *(np.concatenate([getattr(own, field.name) for own in several], axis=1) for field in fields(OwnTimes))
    )


def on_top(several: Sequence[OwnTimes]) -> OwnTimes:
    """The operations of several strips of one step; there must be one at least."""
    if len(several) == 1:
        return several[0]
    return OwnTimes(*(np.concatenate([getattr(own, field.name) for own in several]) for field in fields(OwnTimes)))


def own_times(program: Program, rules: Rules, step: Recorded, ready: Readiness, tail: Tail) -> OwnTimes:
    """Take the waiting out of a step as recorded."""
    slots = _queue_slots(rules, program.kinds, step, tail.starts)
    at_once = max(1, CELLS_AT_ONCE // max(1, len(step.ranks)))
    strips = []
    for first in range(0, max(1, len(program.kinds)), at_once):
        rows = slice(first, first + at_once)
        awaited = _awaited(range(len(program.kinds))[rows], rules, ready.end_by, tail.lane_end)
        own_slots = None if slots is None else slots[rows]
        kinds = program.kinds[rows, None]
        strips.append(_of_strip(rules, kinds, step.strip(rows), ready.strip(rows), awaited, own_slots))
    return on_top(strips)


class OwnOfStrips:
    """The own times of one step, strip after strip of its operations."""

    def __init__(self, program: Program, rules: Rules, tail: Tail) -> None:
        """`tail` is how the step before left the ranks."""
        self._program, self._rules, self._tail = program, rules, tail
        self._awaited = {other for others in rules.by_place.values() for other in others}
        self._ends: dict[int, Floats] = {}
        """Of the operations that others wait for."""
        self.left = tail
        """How the ranks come to the next operation; after the last, how the step leaves them."""

    def of(self, rows: range, step: StepArrays) -> OwnTimes:
        """Take the waiting out of the next operations; `step` holds these."""
        which = slice(rows.start, rows.stop)
        ready = readiness(self._program, self._rules.thread, step, self.left, which)
        for other in self._awaited & set(rows):
            self._ends[other] = ready.end_by(other - rows.start)
        awaited = _awaited(rows, self._rules, self._ends.__getitem__, self._tail.lane_end)
        kinds = self._program.kinds[which]
        slots = _queue_slots(self._rules, kinds, step, self.left.starts)
        self.left = left_by(self._program, self._rules.thread, step, self.left, which)
        return _of_strip(self._rules, kinds[:, None], step, ready, awaited, slots)


CELLS_AT_ONCE = 32_768
"""What is computed together stays in the processor's cache."""


def _of_strip(
    rules: Rules,
    kinds: Ints,
    step: StepArrays,
    ready: Readiness,
    awaited: Floats | None,
    slots: Floats | None,
) -> OwnTimes:
    """Compute the own times of some operations."""
    call, back, start = step.call, step.back, step.start
    before, submit = ready.back_before, ready.submit
    sync = kinds == SYNC
    called = ~np.isnan(call)
    on_gpu = step.present & ~sync
    after = np.fmax(submit + rules.launch_ns, ready.end_before + rules.stream_ns)
    if awaited is not None:
        np.fmax(after, awaited, out=after)
    held = slots
    if awaited is not None and sync.any():
        held = np.where(sync, awaited, np.nan if slots is None else slots)
    begun = call if held is None else np.fmax(call, held)
    return OwnTimes(
        host=_where(called, call - before, 0.0),
        call=_where(called, back - begun, 0.0),
        lead=_where(on_gpu, zero_where_unknown(_where(called, back, before) - submit), 0.0),
        delay=_where(on_gpu, zero_where_unknown(start - after), 0.0),
        gpu=_where(on_gpu & (kinds != COLLECTIVE), step.end - start, 0.0),
    )


def _where(condition: Bools, values: Floats, others: Floats | float) -> Floats:
    """As `np.where`, which takes as long where there is nothing to choose as elsewhere."""
    return values if condition.all() else np.where(condition, values, others)


def zero_where_unknown(values: Floats) -> Floats:
    """Put 0 for NaN, in place; where there is none nothing is written."""
    unknown = np.isnan(values)
    if unknown.any():
        values[unknown] = 0.0
    return values


def _awaited(places: Sequence[int], rules: Rules, end_by: Callable[[int], Floats], lane_end: Floats) -> Floats | None:
    """When the last of what each of these operations waits for ended; NaN: for none; None: none of them waits."""
    waiting = [place for place in places if place in rules.by_place]
    if not waiting:
        return None
    found = np.full((len(places), lane_end.shape[1]), np.nan)
    for place in waiting:
        own = found[place - places[0]]
        for other in rules.by_place[place]:
            np.fmax(own, end_by(other) if other >= 0 else lane_end[~other], out=own)
    return found


def _queue_slots(rules: Rules, kinds: Ints, step: Recorded, pending: Floats) -> Floats | None:
    """When the launch queue had a place for each launch; None where it has no limit."""
    if rules.queue is None:
        return None
    found = np.full_like(step.start, np.nan)
    for place in np.flatnonzero(kinds != SYNC):
        found[place] = pending[0]
        pending = pushed(pending, step.start[place])
    return found
