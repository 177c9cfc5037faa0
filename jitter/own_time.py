"""Own time: what an operation took by itself, all waiting taken out (METRICS, "From deviations to answers", 2)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from jitter.program import Program
from jitter.readiness import Readiness, Tail, pushed
from jitter.rules import Rules
from jitter.sheets import COLLECTIVE, SYNC, Floats, Ints
from jitter.step_arrays import StepArrays


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

    def columns(self, which: object) -> "OwnTimes":
        """The same for some of the columns."""
        return OwnTimes(*(getattr(self, field.name)[:, which] for field in fields(self)))


def side_by_side(several: Sequence[OwnTimes]) -> OwnTimes:
    """The columns of several steps of one program."""
    return OwnTimes(
        *(np.concatenate([getattr(own, field.name) for own in several], axis=1) for field in fields(OwnTimes))
    )


def own_times(program: Program, rules: Rules, step: StepArrays, ready: Readiness, tail: Tail) -> OwnTimes:
    """Take the waiting out of a step as recorded."""
    kinds = np.array([op.kind for op in program.operations])
    found = OwnTimes(*(np.empty_like(step.start) for _ in fields(OwnTimes)))
    slots = _queue_slots(rules, kinds, step, tail)
    at_once = max(1, CELLS_AT_ONCE // max(1, step.start.shape[1]))
    for first in range(0, len(kinds), at_once):
        rows = slice(first, first + at_once)
        awaited = _awaited(range(len(kinds))[rows], rules, ready, tail)
        _fill(rows, found, rules, kinds[rows, None], step, ready, awaited, None if slots is None else slots[rows])
    return found


CELLS_AT_ONCE = 32_768
"""What is computed together stays in the processor's cache."""


def _fill(
    rows: slice,
    found: OwnTimes,
    rules: Rules,
    kinds: Ints,
    step: StepArrays,
    ready: Readiness,
    awaited: Floats | None,
    slots: Floats | None,
) -> None:
    """Compute the own times of these operations."""
    call, back, start = step.call[rows], step.back[rows], step.start[rows]
    before, submit = ready.back_before[rows], ready.submit[rows]
    sync = kinds == SYNC
    called = ~np.isnan(call)
    on_gpu = step.present[rows] & ~sync
    plain = bool(called.all() and on_gpu.all())  # most are: then nothing need be chosen
    after = np.fmax(submit + rules.launch_ns, ready.end_before[rows] + rules.stream_ns)
    if awaited is not None:
        np.fmax(after, awaited, out=after)
    held = slots
    if awaited is not None and sync.any():
        held = np.where(sync, awaited, np.nan if slots is None else slots)
    begun = call if held is None else np.fmax(call, held)
    if plain:
        np.subtract(call, before, out=found.host[rows])
        np.subtract(back, begun, out=found.call[rows])
        _known(np.subtract(back, submit, out=found.lead[rows]))
        _known(np.subtract(start, after, out=found.delay[rows]))
        gpu = np.subtract(step.end[rows], start, out=found.gpu[rows])
        gpu[kinds[:, 0] == COLLECTIVE] = 0.0
        return
    found.host[rows] = np.where(called, call - before, 0.0)
    found.call[rows] = np.where(called, back - begun, 0.0)
    found.lead[rows] = np.where(on_gpu, _known(np.where(called, back, before) - submit), 0.0)
    found.delay[rows] = np.where(on_gpu, _known(start - after), 0.0)
    found.gpu[rows] = np.where(on_gpu & (kinds != COLLECTIVE), step.end[rows] - start, 0.0)


def _known(values: Floats) -> Floats:
    values[np.isnan(values)] = 0.0
    return values


def _awaited(places: Sequence[int], rules: Rules, ready: Readiness, tail: Tail) -> Floats | None:
    """When the last of what each of these operations waits for ended; NaN: for none; None: none of them waits."""
    waiting = [place for place in places if place in rules.by_place]
    if not waiting:
        return None
    found = np.full((len(places), ready.submit.shape[1]), np.nan)
    for place in waiting:
        own = found[place - places[0]]
        for other in rules.by_place[place]:
            np.fmax(own, ready.end_by(other) if other >= 0 else tail.lane_end[~other], out=own)
    return found


def _queue_slots(rules: Rules, kinds: Ints, step: StepArrays, tail: Tail) -> Floats | None:
    """When the launch queue had a place for each launch; None where it has no limit."""
    if rules.queue is None:
        return None
    found = np.full_like(step.start, np.nan)
    pending = tail.starts
    for place in np.flatnonzero(kinds != SYNC):
        found[place] = pending[0]
        pending = pushed(pending, step.start[place])
    return found
