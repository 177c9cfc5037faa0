"""Execution of programs, operation by operation, for many ranks at once, in global time.

Ranks of different programs run together from collective to collective.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jitter.core.errors import JitterError
from jitter.simulate.durations import PhaseDurations
from jitter.simulate.job import Job
from jitter.simulate.program import NO_GROUP, Ints, Operation, Plan


class CollectiveArrival(NamedTuple):
    """The arrival of the ranks of one program at a collective; they wait for its end."""

    phase: int
    at: int
    operation: Operation
    ready: Ints
    """(ranks,) arrival times."""
    transfer: Ints
    """(ranks,) or (1,): time from the last arrival of the group to the end."""


DEVICE_SYNCS = frozenset({"cudaDeviceSynchronize"})
WAKE_NS = 6_000
"""Time from the end of the GPU's work to the return of the call that waited for it."""
LAUNCH_FLOOR_NS = 2_400
"""Shortest time from the end of a launch to the start of its kernel."""
_STEP_NS = 3_000
"""CPU time between two steps, and from the begin of a step to its first call."""
NEVER = np.iinfo(np.int64).min
"""Start of a launch that an empty slot of the launch queue holds."""


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


@dataclass
class PhaseEvents:
    """Events of one phase, in ns, global; one row per operation, one column per rank."""

    launch_start: Ints
    launch_end: Ints
    start: Ints
    """Start on the GPU; undefined for operations without GPU activity."""
    end: Ints
    absent: NDArray[np.bool_]
    grid: Ints
    begin: Ints
    """(ranks,) when the CPU began the phase; the step's range begins here."""
    loading_start: Ints
    loading_end: Ints
    finish: Ints


def simulate_phase(
    job: Job, phase: int, ops: tuple[Operation, ...], costs: PhaseDurations, state: BlockState
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
    is_lacking: NDArray[np.bool_] = np.logical_or.reduce(costs.absent, axis=1)
    for at, op in enumerate(ops):
        cpu_before = cpu
        called = np.add(cpu, costs.cpu[at], out=launch_start[at])
        cpu = np.add(called, costs.call[at], out=launch_end[at])
        if op.kind == "call":
            continue
        busy = streams.get(op.stream, idle)
        if op.kind == "sync":
            awaited = [end[earlier] for earlier in op.after] or (
                [*streams.values()] if op.call in DEVICE_SYNCS else [busy]
            )
            for done in awaited:
                cpu = np.maximum(cpu, done + WAKE_NS, out=launch_end[at])
            continue
        if state.queue is not None:
            # the queue has a free slot once the earliest of the pending launches has started
            np.maximum(cpu, state.queue.min(axis=0), out=cpu)
        ready = np.add(cpu, LAUNCH_FLOOR_NS, out=start[at])
        np.maximum(ready, busy + costs.gap[at], out=ready)
        for earlier in op.after:
            np.maximum(ready, end[earlier], out=ready)
        if op.kind == "collective":
            done = end[at] = yield CollectiveArrival(phase, at, op, ready, costs.transfer[at])
            if job.interference:
                state.collectives.append((ready.copy(), done))
        elif job.interference and op.kind == "compute":
            state.collectives = [collective for collective in state.collectives if (collective[1] > ready).any()]
            done = end[at] = _end_beside(state.collectives, ready, costs.duration[at], 1 + job.interference)
        else:
            done = np.add(ready, costs.duration[at], out=end[at])
        gone = costs.absent[at]
        if is_lacking[at]:
            cpu = np.where(gone, cpu_before, cpu)
            done = end[at] = np.where(gone, busy, done)
        streams[op.stream] = done
        if state.queue is not None:
            earliest = state.queue.argmin(axis=0), np.arange(shape[1])
            state.queue[earliest] = np.maximum(state.queue[earliest], np.where(gone, NEVER, ready))
    finish = cpu + _STEP_NS + costs.tail
    state.cpu = finish
    launches = launch_start, launch_end
    return PhaseEvents(*launches, start, end, costs.absent, costs.grid, begin, loading_start, loading_end, finish)


def _end_beside(collectives: Sequence[tuple[Ints, Ints]], start: Ints, work: Ints, factor: float) -> Ints:
    """Return, (ranks,), the ends of kernels that take `factor` times as long while a collective of their rank runs."""
    if not collectives:
        return start + work
    begins, ends = (np.stack(times) for times in zip(*collectives, strict=True))
    order = begins.argsort(axis=0)
    now, rest_ns = start.astype(np.float64), work.astype(np.float64)
    for begin, end in zip(*(np.take_along_axis(times, order, axis=0) for times in (begins, ends)), strict=True):
        for until, pace in ((begin, 1.0), (end, factor)):
            passed = np.minimum(rest_ns * pace, np.maximum(until - now, 0.0))
            now, rest_ns = now + passed, rest_ns - passed / pace
    kernel_ends: Ints = np.rint(now + rest_ns).astype(np.int64)
    return kernel_ends


StageRun = Generator[CollectiveArrival, Ints, None]
"""Run of one stage: yields each arrival and receives the collective's end on each rank."""
CollectiveEnds = dict[tuple[int, int, int], Ints]
"""End of each collective per group (ns, global), by (stage, phase, position)."""


class _Arrived(NamedTuple):
    stage: int
    arrival: CollectiveArrival
    group: Ints
    """(ranks,) number of each arriving rank's group."""


def run_stages(plan: Plan, runs: Mapping[int, StageRun]) -> CollectiveEnds:
    """Run all stages to their ends and return when each collective ended.

    A stage continues when all stages with ranks in the collective's groups have arrived; the nth collective of a group
    on one rank matches the nth on the other ranks. Raises `JitterError` for a deadlock.
    """
    expected = {
        name: frozenset(np.unique(plan.stage[group != NO_GROUP]).tolist()) for name, group in plan.groups.items()
    }
    count: dict[tuple[int, str], int] = {}
    pending: dict[tuple[str, int], list[_Arrived]] = {}
    collective_ends: CollectiveEnds = {}
    ready: list[tuple[int, Ints | None]] = [(stage, None) for stage in runs]
    waiting: dict[int, str] = {}
    while ready:
        stage, ends = ready.pop(0)
        try:
            arrival = next(runs[stage]) if ends is None else runs[stage].send(ends)
        except StopIteration:
            continue
        name = arrival.operation.group or ""
        number = count[stage, name] = count.get((stage, name), 0) + 1
        arrived = pending.setdefault((name, number), [])
        arrived.append(_Arrived(stage, arrival, plan.groups[name][plan.ranks_of(stage)]))
        if len(arrived) < len(expected[name]):
            waiting[stage] = f"{arrival.operation.collective} {number} of group {name}"
            continue
        pending.pop((name, number))
        arrived.sort(key=lambda one: one.stage)
        of_group = _ends(arrived)
        for one in arrived:
            waiting.pop(one.stage, None)
            collective_ends[one.stage, one.arrival.phase, one.arrival.at] = of_group
            ready.append((one.stage, of_group[one.group]))
    if waiting:
        stuck = ", ".join(f"stage {stage} in {what}" for stage, what in sorted(waiting.items()))
        raise JitterError(f"the ranks of the simulated job wait for each other: {stuck}")
    return collective_ends


def _ends(arrived: list[_Arrived]) -> Ints:
    """Return the end in each group: the arrival of its last rank plus the transfer."""
    size = 1 + max(int(one.group.max()) for one in arrived)
    last = np.full(size, np.iinfo(np.int64).min)
    transfer = np.zeros(size, np.int64)
    # if a group spans several programs, the transfer of the first one counts
    for one in reversed(arrived):
        if size > 1:
            np.maximum.at(last, one.group, one.arrival.ready)
        else:
            last.fill(max(last[0], one.arrival.ready.max()))
        transfer[one.group] = one.arrival.transfer
    return last + transfer
