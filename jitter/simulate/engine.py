"""Runs a program: operation by operation, for many ranks at once, in the one global time that no rank knows."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from jitter.simulate.costs import Costs
from jitter.simulate.job import Job
from jitter.simulate.program import Operation

Ints = NDArray[np.int64]
Meet = Callable[[int, Operation, Ints, int], Ints]
"""(position, the collective, when each rank arrives, transfer time) -> when it ends on each of these ranks."""

_WAKE_NS = 6_000
"""From the end of the GPU's work to the return of the call that waited for it."""
_STEP_NS = 3_000
"""Host time between two steps, and between a step's begin and its first call."""


@dataclass
class State:
    """Where the ranks of a block stand (ns, global)."""

    cpu: Ints
    """When the host can begin its next call."""
    streams: dict[int, Ints] = field(default_factory=dict)
    """When each stream is done with what it was given."""


@dataclass
class Events:
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


def run_phase(job: Job, ops: tuple[Operation, ...], costs: Costs, state: State, meet: Meet) -> Events:
    """Advance `state` by one phase and tell what happened.

    A kernel starts at the latest of: its launch's end and a latency, its stream's last end and a gap, the ends of
    what it is told to wait for. A collective ends for all of its group when the last has arrived and the transfer
    is over. A sync returns when its stream is done.
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
            cpu = np.maximum(cpu, busy + _WAKE_NS, out=launch_end[at])
            continue
        ready = np.add(cpu, job.launch_floor_ns, out=start[at])
        np.maximum(ready, busy + costs.gap[at], out=ready)
        for awaited in op.after:
            np.maximum(ready, end[awaited], out=ready)
        if op.kind == "collective":
            done = end[at] = meet(at, op, ready, int(costs.transfer[at]))
        else:
            done = np.add(ready, costs.duration[at], out=end[at])
        if costs.absent is not None and costs.absent[at].any():
            gone = costs.absent[at]
            cpu = np.where(gone, cpu_before, cpu)
            done = end[at] = np.where(gone, busy, done)
        streams[op.stream] = done
    finish = cpu + _STEP_NS
    state.cpu = finish
    return Events(
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
