"""Execution of a program, operation by operation, for many ranks at once, in global time."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jitter.simulate.durations import PhaseDurations
from jitter.simulate.job import Job
from jitter.simulate.program import Operation

Ints = NDArray[np.int64]


class CollectiveArrival(NamedTuple):
    """The arrival of the ranks of one program at a collective; they wait for its end."""

    at: int
    operation: Operation
    ready: Ints
    """(ranks,) arrival times."""
    transfer: Ints
    """(ranks,) or (1,): time from the last arrival of the group to the end."""


DEVICE_SYNCS = frozenset({"cudaDeviceSynchronize"})
WAKE_NS = 6_000
"""Time from the end of the GPU's work to the return of the call that waited for it."""
_STEP_NS = 3_000
"""CPU time between two steps, and from the begin of a step to its first call."""
_NEVER = np.iinfo(np.int64).min


@dataclass
class BlockState:
    """State of the ranks of a block; times in ns, global."""

    cpu: Ints
    """Time at which the CPU can begin its next call."""
    streams: dict[int, Ints] = field(default_factory=dict)
    """Time at which each stream becomes idle."""
    queue: Ints | None = None
    """(slots, ranks) latest starts on the GPU, in no order, one per slot of the launch queue."""
    collectives: list[tuple[Ints, Ints]] = field(default_factory=list)
    """Starts and ends, (ranks,) each, of collectives that may run beside the next kernels; of a job with interference.
    """

    @classmethod
    def at(cls, begin: Ints, slots: int | None) -> "BlockState":
        """Return a state with idle streams and an empty queue."""
        return cls(begin, queue=None if slots is None else np.full((slots, len(begin)), _NEVER))


@dataclass
class PhaseEvents:
    """Events of one phase, in ns, global; one row per operation, one column per rank."""

    launch_start: Ints
    launch_end: Ints
    start: Ints
    """Start on the GPU; undefined for operations without GPU activity."""
    end: Ints
    absent: NDArray[np.bool_] | None
    grid: Ints | None
    begin: Ints
    """(ranks,) when the CPU began the phase; the step's range begins here."""
    loading_start: Ints
    loading_end: Ints
    finish: Ints


def simulate_phase(
    job: Job, ops: tuple[Operation, ...], costs: PhaseDurations, state: BlockState
) -> Generator[CollectiveArrival, Ints, PhaseEvents]:
    """Advance `state` by one phase and return its events; yield at each collective, and receive its ends (ranks,).

    A kernel starts at the latest of: the end of its launch plus a latency, the last end on its stream plus a gap, the
    ends of the operations that it waits for. A collective ends for its group when the last rank has arrived and the
    transfer is over. A sync call returns when its stream, the awaited operations or the device are done. With a launch
    queue, a launching call returns when the queue has a free slot. With interference, a compute kernel takes longer
    while a collective that was launched before it runs or waits on its GPU.
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
            # the queue has a free slot once the earliest of the pending launches has started
            np.maximum(cpu, state.queue.min(axis=0), out=cpu)
        ready = np.add(cpu, job.launch_floor_ns, out=start[at])
        np.maximum(ready, busy + costs.gap[at], out=ready)
        for other in op.after:
            np.maximum(ready, end[other], out=ready)
        if op.kind == "collective":
            done = end[at] = yield CollectiveArrival(at, op, ready, costs.transfer[at])
            if job.interference:
                state.collectives.append((ready.copy(), done))
        elif job.interference and op.kind == "compute":
            state.collectives = [one for one in state.collectives if (one[1] > ready).any()]
            done = end[at] = _end_beside(state.collectives, ready, costs.duration[at], 1 + job.interference)
        else:
            done = np.add(ready, costs.duration[at], out=end[at])
        if costs.absent is not None and costs.absent[at].any():
            gone = costs.absent[at]
            cpu = np.where(gone, cpu_before, cpu)
            done = end[at] = np.where(gone, busy, done)
        streams[op.stream] = done
        if state.queue is not None:
            _enqueue(state.queue, ready if costs.absent is None else np.where(costs.absent[at], _NEVER, ready))
    finish = cpu + _STEP_NS + costs.tail
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
    """Replace the earliest start in the queue by `start`, if it is later."""
    at = queue.argmin(axis=0), np.arange(queue.shape[1])
    queue[at] = np.maximum(queue[at], start)


def _end_beside(collectives: Sequence[tuple[Ints, Ints]], start: Ints, work: Ints, factor: float) -> Ints:
    """Return, (ranks,), the ends of kernels that take `factor` times as long while a collective of their rank runs."""
    if not collectives:
        return start + work
    begins, ends = (np.stack(times) for times in zip(*collectives, strict=True))
    order = begins.argsort(axis=0)
    now, left = start.astype(np.float64), work.astype(np.float64)
    for begin, end in zip(*(np.take_along_axis(times, order, axis=0) for times in (begins, ends)), strict=True):
        for until, pace in ((begin, 1.0), (end, factor)):
            passed = np.minimum(left * pace, np.maximum(until - now, 0.0))
            now, left = now + passed, left - passed / pace
    found: Ints = np.rint(now + left).astype(np.int64)
    return found
