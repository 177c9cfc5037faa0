"""A simulated run: a first pass computes the ends of collectives, a second the events, a few ranks at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from jitter.core.errors import UsageError
from jitter.simulate.durations import draw_durations, phase_operations
from jitter.simulate.engine import NEVER, BlockState, CollectiveEnds, PhaseEvents, StageRun, run_stages, simulate_phase
from jitter.simulate.faults import Fault
from jitter.simulate.job import MAIN_STREAM, Job
from jitter.simulate.kernel_names import EXTRA_KERNEL
from jitter.simulate.program import GPU_KINDS, MAIN_THREAD, NO_GROUP, WORLD, Ints, Operation, Plan
from jitter.simulate.recording import HostCall, HostRange, ProcessGroup, RankRecording, format_marker, make_clock
from jitter.simulate.shapes import SHAPES

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
    parts: list[dict[str, Ints]] = []
    calls: list[HostCall] = []
    ranges: list[HostRange] = []
    correlation = _FIRST_CORRELATION
    for phase, events in enumerate(phases):
        ops = phase_operations(program, phase, job.steps)
        first = (phase > 0) * len(program.prologue) + (phase > job.steps) * len(program.step)
        step = job.step_numbers[phase - 1] if 0 < phase <= job.steps else None
        launch_start = events.launch_start[:, column] + clock.offset_ns
        launch_end = events.launch_end[:, column] + clock.offset_ns
        gpu, host = _rows(ops)
        correlations = correlation + np.arange(len(ops), dtype=np.int64)
        correlation += len(ops) + 3  # unrecorded calls use correlation ids too
        for at in host.tolist():
            op = ops[at]
            begin, end = int(launch_start[at]), int(launch_end[at])
            calls.append(HostCall(op.call, op.thread, begin, end, int(correlations[at]), step))
        if step is not None:
            ranges += _ranges(job, rank, step, ops, events, column, clock.offset_ns)
        gpu = gpu[~events.absent[gpu, column]]
        parts.append(
            {
                "operation": gpu + first,
                "step": np.full(len(gpu), -1 if step is None else step, np.int64),
                "start_ns": events.start[gpu, column] + clock.offset_ns,
                "end_ns": events.end[gpu, column] + clock.offset_ns,
                "launch_start_ns": launch_start[gpu],
                "launch_end_ns": launch_end[gpu],
                "correlation": correlations[gpu],
                "grid_x": events.grid[gpu, column],
            }
        )
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    node = rank // job.gpus_per_node
    return RankRecording(
        rank=rank,
        host=f"node{node:04d}",
        pid=4200 + 137 * (rank % job.gpus_per_node),
        device=rank % job.gpus_per_node,
        clock=clock,
        operations=_chosen(job, rank, (*program.prologue, *program.step, *program.epilogue)),
        has_launch=np.ones(len(columns["operation"]), np.bool_),
        shares_launch=np.zeros(len(columns["operation"]), np.bool_),
        calls=tuple(calls),
        ranges=tuple(ranges),
        groups=_groups(plan, rank),
        **columns,
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
    loaded = span(events.loading_start, events.loading_end)
    ranges.append(HostRange("data_loading", _LOADING, MAIN_THREAD, *loaded, step))
    for phase, members in groupby(range(len(ops)), key=lambda at: ops[at].phase):
        rows = list(members)
        if phase:
            inner = span(events.launch_start[rows[0]], events.launch_end[rows[-1]], _NESTED_NS)
            ranges.append(HostRange("phase", phase, MAIN_THREAD, *inner, step))
    return ranges


_BLOCK_CELLS = 4_000_000
"""Cells (operations x ranks x steps) in memory at once, about 32 bytes each."""


@dataclass(frozen=True)
class Run:
    """One job with its faults. Deterministic: the same job and faults give the same nanoseconds."""

    job: Job
    faults: tuple[Fault, ...]
    plan: Plan

    @cached_property
    def _first_pass(self) -> tuple[CollectiveEnds, dict[int, list[PhaseEvents]]]:
        """Ends of all collectives, and the events of each stage if they fit into memory."""
        kept: dict[int, list[PhaseEvents]] = {stage: [] for stage in range(len(self.plan.programs))}
        keep = self._block >= self.job.ranks
        ends = run_stages(
            self.plan, {stage: self._run_stage(stage, self.plan.ranks_of(stage), kept[stage], keep) for stage in kept}
        )
        return ends, kept if keep else {}

    @property
    def _block(self) -> int:
        return max(1, _BLOCK_CELLS // (max(len(program.step) for program in self.plan.programs) * self.job.steps))

    def _run_stage(self, stage: int, ranks: Ints, events: list[PhaseEvents], keep: bool) -> StageRun:
        begin = [int(np.random.default_rng((self.job.seed, int(r))).integers(400_000)) for r in ranks]
        slots = self.job.launch_queue
        queue = None if slots is None else np.full((slots, len(ranks)), NEVER)
        state = BlockState(np.array(begin, np.int64), queue=queue)
        program = self.plan.programs[stage]
        for phase in range(self.job.steps + 2):
            ops = phase_operations(program, phase, self.job.steps)
            durations = draw_durations(self.job, self.faults, program, self.plan.groups, phase, ranks)
            done = yield from simulate_phase(self.job, phase, ops, durations, state)
            if keep:
                events.append(done)

    def _replay(self, stage: int, ranks: Ints) -> list[PhaseEvents]:
        """Return the events of some ranks of a stage, given the ends of their collectives."""
        events: list[PhaseEvents] = []
        groups = {name: group[ranks] for name, group in self.plan.groups.items()}
        stage_run = self._run_stage(stage, ranks, events, keep=True)
        ends: Ints | None = None
        while True:
            try:
                arrival = next(stage_run) if ends is None else stage_run.send(ends)
            except StopIteration:
                return events
            ends = self._first_pass[0][stage, arrival.phase, arrival.at][groups[arrival.operation.group or ""]]

    def ranks(self, wanted: Sequence[int] | None = None) -> Iterator[RankRecording]:
        """Yield the recordings of these ranks (default: all) in order, with a few in memory at a time."""
        numbers = np.array(range(self.job.ranks) if wanted is None else wanted, np.int64)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.job.ranks:
            raise UsageError(f"the job has ranks 0 to {self.job.ranks - 1}")
        for first in range(0, len(numbers), self._block):
            some = numbers[first : first + self._block]
            stages = self.plan.stage[some]
            of_stage = {stage: self._simulated(stage, some[stages == stage]) for stage in np.unique(stages).tolist()}
            for rank, stage in zip(some.tolist(), stages.tolist(), strict=True):
                ranks, phases = of_stage[stage]
                yield record_rank(self.job, self.plan, phases, int(np.flatnonzero(ranks == rank)[0]), rank)

    def _simulated(self, stage: int, ranks: Ints) -> tuple[Ints, list[PhaseEvents]]:
        """Return the events of these ranks of a stage, or of all its ranks where memory holds them, and the ranks."""
        kept = self._first_pass[1].get(stage)
        return (ranks, self._replay(stage, ranks)) if kept is None else (self.plan.ranks_of(stage), kept)

    def last_collective_ends(self) -> list[int]:
        """Return the end of each step's last collective of the whole job (ns, global).

        Raises `UsageError` for a job without a collective of all ranks.
        """
        last_ends: dict[int, int] = {}
        for (stage, phase, at), ends in self._first_pass[0].items():
            if self.plan.programs[stage].step[at].group == WORLD:
                last_ends[phase] = max(int(ends.max()), last_ends.get(phase, 0))
        if not last_ends:
            raise UsageError(f"a job of shape {self.job.shape} has no collective of all ranks")
        return [last_ends[phase] for phase in range(1, self.job.steps + 1)]

    def step_times(self) -> dict[int, int | None]:
        """Return each step's time in ns; None for the first step.

        A step lasts from the end of the previous step's last collective of the whole job to the end of its own.
        """
        ends = self.last_collective_ends()
        times = [None, *(after - before for before, after in pairwise(ends))]
        return dict(zip(self.job.step_numbers, times, strict=True))

    def events(self, stage: int) -> list[PhaseEvents]:
        """Return the events of the ranks of a pipeline stage in each phase: the steps, and one before and after."""
        return self._simulated(stage, self.plan.ranks_of(stage))[1]

    def without(self, *faults: Fault) -> "Run":
        """Return the same run with the same noise, without these faults (default: without all)."""
        kept = [f for f in self.faults if f not in faults] if faults else []
        return simulate(self.job, kept)


def simulate(job: Job, faults: Sequence[Fault] = ()) -> Run:
    """Simulate a job with faults; raise `UsageError` for a fault on a rank, step or kernel that the job lacks."""
    whole = SHAPES[job.shape](job)
    for fault in faults:
        _check(job, whole, fault)
    for fault in faults:
        if fault.kind == "extra_kernel":
            extra = Operation(
                EXTRA_KERNEL.name,
                "compute",
                "cudaLaunchKernel",
                MAIN_STREAM,
                duration_ns=fault.delay_ns or EXTRA_KERNEL.duration_ns,
                cpu_ns=job.cpu_ns,
                call_ns=job.call_ns,
                grid=(EXTRA_KERNEL.grid, 1, 1),
                block=(EXTRA_KERNEL.block, 1, 1),
            )
            programs = tuple(program.with_extra(fault.kernel or 0, extra) for program in whole.programs)
            whole = replace(whole, programs=programs)
    return Run(job, tuple(faults), whole)


def _check(job: Job, whole: Plan, fault: Fault) -> None:
    if fault.ranks and max(fault.ranks) >= job.ranks:
        raise UsageError(
            f"the fault {fault.kind} is for rank {max(fault.ranks)}", f"the job has ranks 0 to {job.ranks - 1}"
        )
    steps = job.step_numbers
    if not any(fault.at_step(step) for step in steps):
        raise UsageError(f"the fault {fault.kind} is for no step of the job", f"it has {steps[0]} to {steps[-1]}")
    if fault.kind == "pause" and not any(fault.pauses(rank, step) for rank in range(job.ranks) for step in steps):
        raise UsageError("the pause comes in no step of the job", f"it has {steps[0]} to {steps[-1]}")
    stages = np.unique(whole.stage[sorted(fault.ranks)] if fault.ranks else whole.stage)
    for program in (whole.programs[stage] for stage in stages.tolist()):
        last = program.kernels - 1
        if (fault.kernel or 0) > last or (fault.kernels and min(fault.kernels) > last):
            raise UsageError(f"the fault {fault.kind} is for a kernel that no step has", f"it has 0 to {last}")
        if fault.kind == "missing_kernel" and program.step[program.position(fault.kernel or 0)].kind == "collective":
            raise UsageError(
                f"kernel {fault.kernel} is a collective: a rank without it would hang the job", "name another kernel"
            )


def truth_document(run: Run) -> dict[str, Any]:
    """Return the content of `truth.json`: job, faults with ranks and costs, step times with and without faults.

    `step_time_ns`: from the end of the previous step's last collective to the end of this step's; null for the first
    step. `gain_ns`: time saved over all steps but the first if this fault alone is removed, with the same noise.
    `delay_ns`: delay of the end of the first step by all faults.
    """
    job, programs = run.job, run.plan.programs
    stages = [{"ranks": run.plan.ranks_of(at).tolist(), "kernels": one.kernels} for at, one in enumerate(programs)]
    ends, healthy = run.last_collective_ends(), run.without()
    healthy_ns = healthy.step_times()
    steps = []
    for step, period_ns in run.step_times().items():
        active = [f for f in run.faults if f.at_step(step)]
        steps.append(
            {
                "step": step,
                "step_time_ns": period_ns,
                "healthy_step_time_ns": healthy_ns[step],
                "culprits": sorted({rank for f in active for rank in f.on_ranks(step, job.ranks)}),
                "causes": sorted({f.cause for f in active}),
            }
        )
    return {
        "schema_version": 1,
        "job": {
            "ranks": job.ranks,
            "steps": [job.step_numbers[0], job.step_numbers[-1]],
            "epoch": job.epoch if job.marker == "talk" else None,
            "kernels_per_step": max(program.kernels for program in programs),
            "seed": job.seed,
            "gpus_per_node": job.gpus_per_node,
        },
        **({"stages": stages} if len(programs) > 1 else {}),
        "delay_ns": ends[0] - healthy.last_collective_ends()[0],
        "faults": [_fault(run, fault, ends) for fault in run.faults],
        "steps": steps,
    }


def _fault(run: Run, fault: Fault, ends: list[int]) -> dict[str, Any]:
    repaired = run.without(fault).last_collective_ends()
    kernels = sorted(fault.kernels) if fault.kernels else None
    steps = [step for step in run.job.step_numbers if fault.at_step(step)]
    ranks = sorted({rank for step in steps for rank in fault.on_ranks(step, run.job.ranks)})
    return {
        "kind": fault.kind,
        "cause": fault.cause,
        "ranks": ranks,
        "hosts": sorted({f"node{rank // run.job.gpus_per_node:04d}" for rank in ranks}),
        "steps": steps,
        "kernel": fault.kernel if kernels is None else kernels[0],
        "gain_ns": (ends[-1] - ends[0]) - (repaired[-1] - repaired[0]),
    }
