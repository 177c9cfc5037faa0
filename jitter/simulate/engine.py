"""Runs a program: operation by operation, for many ranks at once, in the one global time that no rank knows."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jitter.simulate.durations import PhaseDurations
from jitter.simulate.job import Job
from jitter.simulate.program import Operation

Ints = NDArray[np.int64]


class CollectiveArrival(NamedTuple):
    """Where ranks of one program come to a collective, and cannot go on before they know when it ends."""

    at: int
    operation: Operation
    ready: Ints
    """(ranks,) when each arrives."""
    transfer: Ints
    """(ranks,) or (1,): from the last arrival of its group to the end."""


DEVICE_SYNCS = frozenset({"cudaDeviceSynchronize"})
WAKE_NS = 6_000
"""From the end of the GPU's work to the return of the call that waited for it."""
_STEP_NS = 3_000
"""Host time between two steps, and between a step's begin and its first call."""
_NEVER = np.iinfo(np.int64).min


@dataclass
class BlockState:
    """Where the ranks of a block stand (ns, global)."""

    cpu: Ints
    """When the host can begin its next call."""
    streams: dict[int, Ints] = field(default_factory=dict)
    """When each stream is done with what it was given."""
    queue: Ints | None = None
    """(slots, ranks) the latest starts on the GPU, in no order: as many as the launch queue has places."""

    @classmethod
    def at(cls, begin: Ints, slots: int | None) -> "BlockState":
        """All streams idle, the queue empty."""
        return cls(begin, queue=None if slots is None else np.full((slots, len(begin)), _NEVER))


@dataclass
class PhaseEvents:
    """What happened in one phase (ns, global): one row an operation, one column a rank."""

    launch_start: Ints
    launch_end: Ints
    start: Ints
    """On the GPU; of no meaning for operations that leave no activity."""
    end: Ints
    absent: NDArray[np.bool_] | None
    grid: Ints | None
    begin: Ints
    """(ranks,) when the host entered the phase; a step's range begins here."""
    loading_start: Ints
    loading_end: Ints
    finish: Ints


def simulate_phase(
    job: Job, ops: tuple[Operation, ...], costs: PhaseDurations, state: BlockState
) -> Generator[CollectiveArrival, Ints, PhaseEvents]:
    """Advance `state` by one phase and tell what happened; yields at each collective, to be sent its ends (ranks,).

    A kernel starts at the latest of: its launch's end and a latency, its stream's last end and a gap, the ends of
    what it is told to wait for. A collective ends for all of its group when the last has arrived and the transfer
    is over. A sync returns when its stream, or what it is told to wait for, or the whole device is done. With a
    launch queue a launching call returns only when the activity fits into it.
    """
    shape = costs.cpu.shape
    launch_start, launch_end = np.empty(shape, np.int64), np.empty(shape, np.int64)
    start, end = np.empty(shape, np.int64), np.empty(shape, np.int64)
    begin = state.cpu + _STEP_NS
    loading_start = begin + _STEP_NS
    loading_end = loading_start + costs.loading
    cpu, streams = loading_end, state.streams
    idle = np.zeros(shape[1], np.int64)
    for at, op in enumerate(ops):
        cpu_before = cpu
        called = np.add(cpu, costs.cpu[at], out=launch_start[at])
        cpu = np.add(called, costs.call[at], out=launch_end[at])
        if op.kind == "call":
            continue
        busy = streams.get(op.stream, idle)
        if op.kind == "sync":
            awaited = [end[other] for other in op.after] or ([*streams.values()] if op.call in DEVICE_SYNCS else [busy])
            for done in awaited:
                cpu = np.maximum(cpu, done + WAKE_NS, out=launch_end[at])
            continue
        if state.queue is not None:
            # as many starts as there are places may lie ahead: the earliest of these makes room
            np.maximum(cpu, state.queue.min(axis=0), out=cpu)
        ready = np.add(cpu, job.launch_floor_ns, out=start[at])
        np.maximum(ready, busy + costs.gap[at], out=ready)
        for other in op.after:
            np.maximum(ready, end[other], out=ready)
        if op.kind == "collective":
            done = end[at] = yield CollectiveArrival(at, op, ready, costs.transfer[at])
        else:
            done = np.add(ready, costs.duration[at], out=end[at])
        if costs.absent is not None and costs.absent[at].any():
            gone = costs.absent[at]
            cpu = np.where(gone, cpu_before, cpu)
            done = end[at] = np.where(gone, busy, done)
        streams[op.stream] = done
        if state.queue is not None:
            _enqueue(state.queue, ready if costs.absent is None else np.where(costs.absent[at], _NEVER, ready))
    finish = cpu + _STEP_NS
    state.cpu = finish
    return PhaseEvents(
        launch_start,
        launch_end,
        start,
        end,
        costs.absent,
        costs.grid,
        begin,
        loading_start,
        loading_end,
        finish,
    )


def _enqueue(queue: Ints, start: Ints) -> None:
    """Put a start into the place of the earliest, if it is later."""
    at = queue.argmin(axis=0), np.arange(queue.shape[1])
    queue[at] = np.maximum(queue[at], start)
