"""Build a rank's recording on its own clock from the events of a run."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby

import numpy as np

from jitter.simulate.durations import phase_operations
from jitter.simulate.engine import PhaseEvents
from jitter.simulate.job import Job
from jitter.simulate.program import GPU_KINDS, MAIN_THREAD, NO_GROUP, Ints, Operation, Plan
from jitter.simulate.recording import HostCall, HostRange, ProcessGroup, RankRecording, format_marker, make_clock

_FIRST_CORRELATION = 117
_LOADING = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
_CHOICES = 2**45
"""Seed of autotuning's choices."""
_NESTED_NS = 1_000
"""Time that a phase's range extends before its first call and after its last."""


@lru_cache(maxsize=16)
def _rows(ops: tuple[Operation, ...]) -> tuple[Ints, Ints]:
    """Return the positions of operations with GPU activity, and of host calls."""
    on_gpu = np.array([op.kind in GPU_KINDS for op in ops], np.bool_)
    return np.flatnonzero(on_gpu), np.flatnonzero(~on_gpu)


def record_rank(job: Job, plan: Plan, phases: Sequence[PhaseEvents], column: int, rank: int) -> RankRecording:
    """Return the recording of the rank in this column of the events."""
    clock = make_clock(job, rank)
    program = plan.programs[plan.stage[rank]]
    parts: list[tuple[Ints, ...]] = []
    calls: list[HostCall] = []
    ranges: list[HostRange] = []
    first, correlation = 0, _FIRST_CORRELATION
    bases = {id(program.step): len(program.prologue)}
    bases |= {id(program.epilogue): len(program.prologue) + len(program.step), id(program.prologue): 0}
    for phase, events in enumerate(phases):
        ops = phase_operations(program, phase, job.steps)
        first = bases[id(ops)]
        step = job.step_numbers[phase - 1] if 0 < phase <= job.steps else None
        launch_start = events.launch_start[:, column] + clock.offset_ns
        launch_end = events.launch_end[:, column] + clock.offset_ns
        gpu, host = _rows(ops)
        correlations = correlation + np.arange(len(ops), dtype=np.int64)
        correlation += len(ops) + 3  # unrecorded calls use correlation ids too
        for at in host.tolist():
            op = ops[at]
            begin, end = int(launch_start[at]), int(launch_end[at])
            number, is_sync = int(correlations[at]), op.kind == "sync"
            calls.append(HostCall(op.call, is_sync, op.thread, begin, end, number, op.stream, step))
        if step is not None:
            ranges += _ranges(job, rank, step, ops, events, column, clock.offset_ns)
        if events.absent is not None:
            gpu = gpu[~events.absent[gpu, column]]
        grid = np.array([op.grid[0] for op in ops], np.int64) if events.grid is None else events.grid[:, column]
        parts.append(
            (
                gpu + first,
                np.full(len(gpu), -1 if step is None else step, np.int64),
                np.full(len(gpu), step is not None, np.int64),
                events.start[gpu, column] + clock.offset_ns,
                events.end[gpu, column] + clock.offset_ns,
                launch_start[gpu],
                launch_end[gpu],
                correlations[gpu],
                grid[gpu],
            )
        )
    operations, steps, inside, start, end_ns, called, returned, numbers, grids = (
        np.concatenate(arrays) for arrays in zip(*parts, strict=True)
    )
    node = rank // job.gpus_per_node
    return RankRecording(
        rank=rank,
        host=f"node{node:04d}",
        pid=4200 + 137 * (rank % job.gpus_per_node),
        device=rank % job.gpus_per_node,
        clock=clock,
        main_stream=job.main_stream,
        operations=_chosen(job, rank, (*program.prologue, *program.step, *program.epilogue)),
        operation=operations,
        step=steps,
        in_step=inside.astype(np.bool_),
        start_ns=start,
        end_ns=end_ns,
        has_launch=np.ones(len(operations), np.bool_),
        launch_start_ns=called,
        launch_end_ns=returned,
        shares_launch=np.zeros(len(operations), np.bool_),
        correlation=numbers,
        grid_x=grids,
        lost_launches=(),
        calls=tuple(calls),
        ranges=tuple(ranges),
        groups=_groups(plan, rank),
    )


def _chosen(job: Job, rank: int, ops: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Return the operations with the kernel names that autotuning chose on this rank."""
    if not any(op.variants for op in ops):
        return ops
    chosen = np.random.default_rng((job.seed, _CHOICES, rank)).integers(2**30, size=len(ops)).tolist()
    return tuple(
        replace(op, name=op.variants[number % len(op.variants)]) if op.variants else op
        for op, number in zip(ops, chosen, strict=True)
    )


def _groups(plan: Plan, rank: int) -> dict[str, ProcessGroup]:
    """Return the process groups of a rank; groups are numbered over the job in order of creation."""
    groups: dict[str, ProcessGroup] = {}
    made = 0
    for name, of_rank in plan.groups.items():
        if (group_number := int(of_rank[rank])) != NO_GROUP:
            groups[name] = ProcessGroup(
                str(made + group_number), name, tuple(np.flatnonzero(of_rank == group_number).tolist())
            )
        made += int(of_rank.max()) + 1
    return groups


def _ranges(
    job: Job, rank: int, step: int, ops: tuple[Operation, ...], events: PhaseEvents, column: int, offset_ns: int
) -> list[HostRange]:
    """Return the ranges of a step on the rank's clock, on the main thread: autograd's thread has no ranges."""

    def span(starts: Ints, ends: Ints, margin_ns: int = 0) -> tuple[int, int]:
        return int(starts[column]) + offset_ns - margin_ns, int(ends[column]) + offset_ns + margin_ns

    ranges: list[HostRange] = []
    if job.marker != "none":
        text = format_marker(job.marker, job.epoch, step, rank)
        epoch = job.epoch if job.marker == "talk" else None
        ranges.append(HostRange("step", text, MAIN_THREAD, *span(events.begin, events.finish), step, epoch))
    if job.data_loading:
        loaded = span(events.loading_start, events.loading_end)
        ranges.append(HostRange("data_loading", _LOADING, MAIN_THREAD, *loaded, step))
    for phase, members in groupby(range(len(ops)), key=lambda at: ops[at].phase):
        rows = list(members)
        if phase:
            inner = span(events.launch_start[rows[0]], events.launch_end[rows[-1]], _NESTED_NS)
            ranges.append(HostRange("phase", phase, MAIN_THREAD, *inner, step))
    return ranges
