"""The true dependencies of a program: which operation waits for which, and where the wait was binding."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jitter.simulate.engine import DEVICE_SYNCS, WAKE_NS, PhaseEvents
from jitter.simulate.job import Job
from jitter.simulate.program import GPU_KINDS, Ints, Operation
from jitter.simulate.run import Run

DependencyKind = Literal["event", "sync", "queue"]


class Dependency(NamedTuple):
    """One operation that waits for another. Ordinals are positions among the step's GPU activities in launch order."""

    ordinal: int
    """The operation that waits; for sync and queue, the operation whose launch waits."""
    on_ordinal: int
    """The awaited operation: its end, or for queue its start."""
    kind: DependencyKind
    """event: the GPU waits. sync: a host call waits. queue: a launch waits for a slot of the launch queue."""
    steps_back: int
    """0 if both are in the same step, 1 if the awaited one is in the previous step."""
    binding: int
    """Number of (rank, step) cells in which this wait was binding."""
    margin_ns: int
    """Longest binding wait, in ns."""


def true_dependencies(run: Run) -> dict[int, list[Dependency]]:
    """Return the true dependencies of each stage of a run."""
    programs = enumerate(run.plan.programs)
    return {stage: find_dependencies(run.job, program.step, run.events(stage)) for stage, program in programs}


def find_dependencies(job: Job, ops: Sequence[Operation], phases: Sequence[PhaseEvents]) -> list[Dependency]:
    """Return the dependencies of a program from the events of its ranks (one `PhaseEvents` per phase).

    An operation that only some ranks run has no ordinal and is left out.
    """
    on_gpu = [at for at, op in enumerate(ops) if op.kind in GPU_KINDS and not op.added]
    ordinal = {at: number for number, at in enumerate(on_gpu)}
    steps = phases[1 : job.steps + 1]
    found = [*_events(ops, ordinal, steps), *_syncs(ops, ordinal, steps)]
    if job.launch_queue is not None:
        found += _queue(ops, ordinal, steps)
    return sorted(found)


def _here(events: PhaseEvents, *positions: int) -> NDArray[np.bool_]:
    """Return a mask (ranks,) of the ranks on which these operations happened."""
    if events.absent is None:
        return np.ones(events.start.shape[1], np.bool_)
    gone: NDArray[np.bool_] = np.logical_or.reduce(events.absent[list(positions)], axis=0)
    return ~gone


def _held(
    kind: DependencyKind, pair: tuple[int, int], back: int, waits: Sequence[tuple[NDArray[np.bool_], Ints]]
) -> Dependency:
    """Return a dependency from each step's (mask of binding ranks, waiting time)."""
    margins = [int(margin[bound].max()) for bound, margin in waits if bound.any()]
    return Dependency(*pair, kind, back, sum(int(bound.sum()) for bound, _ in waits), max(margins, default=0))


def _events(ops: Sequence[Operation], ordinal: dict[int, int], steps: Sequence[PhaseEvents]) -> list[Dependency]:
    found = []
    last: dict[int, int] = {}
    for at, op in enumerate(ops):
        if op.kind not in GPU_KINDS:
            continue
        before, last[op.stream] = last.get(op.stream), at
        for awaited in op.after:
            if at not in ordinal or awaited not in ordinal or ops[awaited].stream == op.stream:
                continue
            others = [other for other in op.after if other != awaited]
            waits = []
            for one in steps:
                start = one.start[at]
                rest = one.launch_end[at].copy()
                for other in (*others, *(() if before is None else (before,))):
                    np.maximum(rest, one.end[other], out=rest)
                bound = _here(one, at, awaited) & (one.end[awaited] == start) & (rest < start)
                waits.append((bound, start - rest))
            found.append(_held("event", (ordinal[at], ordinal[awaited]), 0, waits))
    return found


def _syncs(ops: Sequence[Operation], ordinal: dict[int, int], steps: Sequence[PhaseEvents]) -> list[Dependency]:
    found = []
    for at, op in enumerate(ops):
        if op.kind != "sync":
            continue
        later = [other for other in range(at + 1, len(ops)) if other in ordinal]
        # the last sync of a step delays the first launch of the next
        back, held = (0, later[0]) if later else (1, min(ordinal))
        for awaited in op.after or _last(ops[:at], op, ordinal):
            waits = []
            for one in steps:
                bound = _here(one, awaited) & (one.launch_end[at] == one.end[awaited] + WAKE_NS)
                waits.append((bound, one.end[awaited] - one.launch_start[at]))
            found.append(_held("sync", (ordinal[held], ordinal[awaited]), back, waits))
    return found


def _last(before: Sequence[Operation], sync: Operation, ordinal: dict[int, int]) -> list[int]:
    """Return the last operation of each stream that a sync waits for, in this step."""
    last: dict[int, int] = {}
    for at, op in enumerate(before):
        if at in ordinal and (op.stream == sync.stream or sync.call in DEVICE_SYNCS):
            last[op.stream] = at
    return list(last.values())


def _queue(ops: Sequence[Operation], ordinal: dict[int, int], steps: Sequence[PhaseEvents]) -> list[Dependency]:
    """Find launches that waited for the queue: they end when another operation starts."""
    cells: dict[tuple[int, int, int], list[int]] = {}
    for number, one in enumerate(steps):
        for at, place in ordinal.items():
            # a call that did not wait ends exactly at another start only by chance
            for back, source in ((0, one), *(((1, steps[number - 1]),) if number else ())):
                earlier = [other for other in ordinal if back or other < at]
                if not earlier:
                    continue
                hit = (source.start[earlier] == one.launch_end[at]) & _here(one, at)
                for row, column in np.argwhere(hit).tolist():
                    waited = int(one.launch_end[at, column] - one.launch_start[at, column])
                    cells.setdefault((place, ordinal[earlier[row]], back), []).append(waited)
    return [
        Dependency(late, early, "queue", back, len(waits), max(waits)) for (late, early, back), waits in cells.items()
    ]
