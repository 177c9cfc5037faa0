"""Durations of each operation on each rank in one phase: means, noise and faults."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from jitter.simulate.faults import Fault
from jitter.simulate.job import Job
from jitter.simulate.program import NO_GROUP, Ints, Operation, Program

_LEAST = 0.3
"""Shortest time with noise, as a fraction of its mean."""
_LOADING_NS = 70_000
_TRANSFERS = 2**40
"""Seed of the collectives of group 0, in place of a rank; group n has this plus n."""
_SIZES = 2**43
"""Seed of the input sizes, in place of a rank."""
_PAUSES = 2**44
"""Seed of the positions of pauses, in place of a rank."""


@dataclass
class PhaseDurations:
    """Times in ns; one row per operation, one column per rank of the block."""

    duration: Ints
    cpu: Ints
    call: Ints
    gap: Ints
    loading: Ints
    """(ranks,) time to fetch the batch."""
    transfer: Ints
    """(operations, 1 or ranks) of collectives: time from the last arrival to the end, equal on all ranks of a group."""
    tail: Ints
    """(ranks,) pause after the last operation, before the phase ends."""
    absent: NDArray[np.bool_]
    """Mask of operations that do not happen."""
    grid: Ints
    """Launch grid in x; a view of the program's where no rank has another one."""


def phase_operations(program: Program, phase: int, steps: int) -> tuple[Operation, ...]:
    """Return the operations of a phase: phase 0 is the prologue, then the steps, then the epilogue."""
    return program.prologue if phase == 0 else program.step if phase <= steps else program.epilogue


@lru_cache(maxsize=16)
def _means(ops: tuple[Operation, ...]) -> tuple[NDArray[np.float32], Ints]:
    # columns: duration, cpu, call, gap; the mean gap is a value of the job, set by the caller
    means = np.array([(op.duration_ns, op.cpu_ns, op.call_ns, 1) for op in ops], np.float32).reshape(-1, 4)
    return means, np.array([op.draw for op in ops], np.int64)


def _noisy(mean: NDArray[np.float32], z: NDArray[np.float32], noise: NDArray[np.float32]) -> Ints:
    factor = np.maximum(1 + z * noise, np.float32(_LEAST))
    noisy: Ints = np.rint(mean * factor).astype(np.int64)
    return noisy


def draw_durations(
    job: Job, faults: Sequence[Fault], program: Program, groups: Mapping[str, Ints], phase: int, ranks: Ints
) -> PhaseDurations:
    """Draw the durations of a phase for these ranks, which all run this program.

    Each rank has its own random numbers, so the result does not depend on blocks of ranks.
    """
    ops = phase_operations(program, phase, job.steps)
    means, draw = _means(ops)
    means = means * np.array([1, 1, 1, job.stream_gap_ns], np.float32)
    noise = np.array([job.noise, job.cpu_noise, job.cpu_noise, job.cpu_noise], np.float32)
    n = len(ops)
    # row 0 is data loading; added operations draw last, so the numbers of other operations do not change
    rows = 1 + (int(draw.max()) + 1 if n else 0)
    table = np.empty((len(ranks), n, 4), np.int64)
    loading = np.empty(len(ranks), np.int64)
    for at, rank in enumerate(ranks.tolist()):
        z = np.random.default_rng((job.seed, rank, phase)).standard_normal((rows, 4), np.float32)
        table[at] = _noisy(means, z[1:][draw], noise)
        loading[at] = round(_LOADING_NS * max(_LEAST, 1 + job.cpu_noise * float(z[0, 0])))
    transfer = _transfers(job, groups, ops, phase, ranks, lambda z: _noisy(means, z[1:][draw], noise)[:, 0], rows)
    duration, cpu, call, gap = (np.ascontiguousarray(table[:, :, column].T) for column in range(4))
    absent, tail = np.zeros(cpu.shape, np.bool_), np.zeros_like(loading)
    grid = np.broadcast_to(np.array([op.grid[0] for op in ops], np.int64)[:, None], cpu.shape)
    durations = PhaseDurations(duration, cpu, call, gap, loading, transfer, tail, absent, grid)
    if job.variable_work:
        _resize(durations, job, ops, phase, ranks)
    if 0 < phase <= job.steps:
        step = job.step_numbers[phase - 1]
        for number, fault in enumerate(faults):
            if fault.at_step(step):
                _afflict(durations, fault.in_step(step, job.step_numbers), ops, groups, ranks)
            if fault.kind == "pause":
                _pause(durations, fault, job, ops, phase, ranks)
            if fault.kind == "extra_kernel":
                extras = sum(other.kind == "extra_kernel" for other in faults[number:])
                row = next(at for at, op in enumerate(ops) if op.draw == n - extras)
                # an added operation is in every rank's program, and happens only on the ranks and steps of the fault
                wanted = np.isin(ranks, list(fault.ranks)) & fault.at_step(step)
                absent[row] = ~wanted
    return durations


def _transfers(
    job: Job,
    groups: Mapping[str, Ints],
    ops: tuple[Operation, ...],
    phase: int,
    ranks: Ints,
    noisy: Callable[[NDArray[np.float32]], Ints],
    rows: int,
) -> Ints:
    """Draw the transfer times of collectives; each group has its own noise."""

    def of_group(number: int) -> Ints:
        generator = np.random.default_rng((job.seed, _TRANSFERS + number, phase))
        return noisy(generator.standard_normal((rows, 4), np.float32))

    transfers = of_group(0)[:, None]
    if all((group <= 0).all() for group in groups.values()):
        return transfers
    transfers = np.repeat(transfers, len(ranks), axis=1)
    for name, group in groups.items():
        mine = np.flatnonzero([op.group == name for op in ops])
        if not len(mine):
            continue
        for number in np.unique(group[ranks]).tolist():
            if number > 0:
                transfers[np.ix_(mine, np.flatnonzero(group[ranks] == number))] = of_group(number)[mine, None]
    return transfers


def _resize(durations: PhaseDurations, job: Job, ops: tuple[Operation, ...], phase: int, ranks: Ints) -> None:
    """Scale duration and grid of input-dependent kernels by the input size of each rank."""
    rows = np.flatnonzero([op.sized for op in ops])
    durations.grid = durations.grid.copy()
    drawn = [float(np.random.default_rng((job.seed, _SIZES, rank, phase)).random()) for rank in ranks.tolist()]
    for column, size in enumerate(drawn):
        factor = 1 + job.variable_work * (2 * size - 1)
        for times in (durations.duration, durations.grid):
            times[rows, column] = np.maximum(np.rint(times[rows, column] * factor).astype(np.int64), 1)


def _pause(
    durations: PhaseDurations, fault: Fault, job: Job, ops: tuple[Operation, ...], phase: int, ranks: Ints
) -> None:
    """Add pauses after the first kernel: before it, they would be late starts."""
    first = next(at for at, op in enumerate(ops) if op.kind == "compute")
    for column, rank in enumerate(ranks.tolist()):
        if fault.pauses(rank, job.step_numbers[phase - 1]):
            where = np.random.default_rng((job.seed, _PAUSES, rank, phase)).integers(first + 1, len(ops))
            durations.cpu[where, column] += fault.delay_ns


def _is_slow_compute(fault: Fault, op: Operation, _: int | None) -> bool:
    return op.kind == "compute" and fault.on_kernel(op.kernel)


_STRETCHED: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Fault, Operation, int | None], bool]]]] = {
    "slow_cpu": (("cpu", "call"), lambda fault, _, kernel: fault.on_kernel(kernel)),
    "slow_copies": (("duration",), lambda _fault, op, _: op.copy in ("h2d", "d2h")),
    "slow_gpu": (("duration",), _is_slow_compute),
    "unequal_work": (("duration", "grid"), _is_slow_compute),
}
"""Faults that multiply times: the fields, and whether an operation, which is or precedes a kernel, is slow."""


def _afflict(
    durations: PhaseDurations, fault: Fault, ops: tuple[Operation, ...], groups: Mapping[str, Ints], ranks: Ints
) -> None:
    if fault.kind in ("slow_collective", "slow_link"):
        _slow_transfers(durations, fault, ops, groups, ranks)
        return
    columns = np.flatnonzero(np.isin(ranks, list(fault.ranks)))
    if not len(columns):
        return
    delayed = {"late_start": durations.loading if fault.loading else durations.cpu[0], "late_end": durations.tail}
    if fault.kind in delayed:
        delayed[fault.kind][columns] += fault.delay_ns
    elif fault.kind in ("cpu_stall", "gpu_pause"):
        lane = durations.cpu if fault.kind == "cpu_stall" else durations.gap
        lane[_row(ops, fault), columns] += fault.delay_ns
    elif fault.kind == "missing_kernel":
        durations.absent[_row(ops, fault), columns] = True
    elif fault.kind in _STRETCHED:
        names, is_slow = _STRETCHED[fault.kind]
        rows = np.flatnonzero([is_slow(fault, op, kernel) for op, kernel in zip(ops, _next_kernels(ops), strict=True)])
        for name in names:
            times = getattr(durations, name).copy()  # the grid is a view of the program's
            _stretch(times, rows, columns, fault)
            setattr(durations, name, times)


def _slow_transfers(
    durations: PhaseDurations, fault: Fault, ops: tuple[Operation, ...], groups: Mapping[str, Ints], ranks: Ints
) -> None:
    """Scale the transfers of every group with a rank of the fault; of all groups for a fault without ranks."""
    if durations.transfer.shape[1] != len(ranks):
        durations.transfer = np.repeat(durations.transfer, len(ranks), axis=1)
    for name, group in groups.items():
        hit = set(group[sorted(fault.ranks)].tolist() if fault.ranks else group.tolist()) - {NO_GROUP}
        rows = np.flatnonzero([op.group == name and fault.on_kernel(op.kernel) for op in ops])
        _stretch(durations.transfer, rows, np.flatnonzero(np.isin(group[ranks], list(hit))), fault)


def _next_kernels(ops: tuple[Operation, ...]) -> list[int | None]:
    """Return, for each operation, the index of the kernel that it is or precedes."""
    kernels: list[int | None] = []
    kernel: int | None = None
    for op in reversed(ops):
        kernel = kernel if op.kernel is None else op.kernel
        kernels.append(kernel)
    return kernels[::-1]


def _row(ops: tuple[Operation, ...], fault: Fault) -> int:
    return next(at for at, op in enumerate(ops) if op.kernel == fault.kernel)


def _stretch(times: Ints, rows: Ints, columns: Ints, fault: Fault) -> None:
    where = np.ix_(rows, columns)
    # at least 1: a launch grid has at least one block
    times[where] = np.maximum(np.rint(times[where] * (fault.factor or 1)).astype(np.int64), 1)
