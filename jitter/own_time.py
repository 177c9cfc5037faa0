"""Own time: what an operation took by itself, all waiting taken out (METRICS, "From deviations to answers", 2)."""

from dataclasses import dataclass, fields

import numpy as np

from jitter.program import Program
from jitter.readiness import Readiness, Tail, pushed
from jitter.rules import Rules
from jitter.sheets import COLLECTIVE, SYNC, Floats
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


def own_times(program: Program, rules: Rules, step: StepArrays, ready: Readiness, tail: Tail) -> OwnTimes:
    """Take the waiting out of a step as recorded."""
    kinds = np.array([op.kind for op in program.operations])
    sync, collective = kinds == SYNC, kinds == COLLECTIVE
    called = ~np.isnan(step.call)
    host = np.where(called, step.call - ready.back_before, 0.0)
    awaited = _awaited(rules, ready, tail)
    held = np.where(sync[:, None], awaited, _queue_slots(rules, kinds, step, tail))
    call = np.where(called, step.back - np.fmax(step.call, held), 0.0)
    on_gpu = step.present & ~sync[:, None]
    back = np.where(called, step.back, ready.back_before)
    lead = np.where(on_gpu, np.nan_to_num(back - ready.submit), 0.0)
    after = np.fmax(ready.submit + rules.launch_ns, ready.end_before + rules.stream_ns)
    after = np.fmax(after, awaited)
    delay = np.where(on_gpu, np.nan_to_num(step.start - after), 0.0)
    gpu = np.where(on_gpu & ~collective[:, None], step.end - step.start, 0.0)
    return OwnTimes(host, call, lead, delay, gpu)


def _awaited(rules: Rules, ready: Readiness, tail: Tail) -> Floats:
    """When the last of what an operation of another stream, or a call, waits for ended; NaN where it waits for none."""
    found = np.full_like(ready.submit, np.nan)
    for place, awaited in rules.by_place.items():
        for other in awaited:
            end = ready.end_by[other] if other >= 0 else tail.lane_end[~other]
            found[place] = np.fmax(found[place], end)
    return found


def _queue_slots(rules: Rules, kinds: Floats, step: StepArrays, tail: Tail) -> Floats:
    """When the launch queue had a place for each launch; NaN where it has no limit."""
    found = np.full_like(step.start, np.nan)
    if rules.queue is None:
        return found
    pending = tail.starts
    for place in np.flatnonzero(kinds != SYNC):
        found[place] = pending[0]
        pending = pushed(pending, step.start[place])
    return found


def typical(values: Floats) -> Floats:
    """(operations, 1): the lower median over the ranks, as `quantile_disc(0.5)`, of those that have a value."""
    known = (~np.isnan(values)).sum(axis=1)
    if (known == values.shape[1]).all():
        middle = (values.shape[1] - 1) // 2
        found: Floats = np.partition(values, middle, axis=1)[:, middle : middle + 1]
        return found
    ordered = np.sort(values, axis=1)  # NaN sorts last
    return np.take_along_axis(ordered, (np.maximum(known, 1)[:, None] - 1) // 2, axis=1)
