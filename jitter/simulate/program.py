"""Programs of a job: operations of a step in launch order, with streams, threads and dependencies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
OperationKind = Literal["compute", "collective", "memory", "call", "sync"]
KERNEL_KINDS: Final = frozenset({"compute", "collective"})
"""Kinds that the kernel index counts."""
GPU_KINDS: Final = frozenset({"compute", "collective", "memory"})
"""Kinds with an activity on the GPU; the other kinds are host calls."""

MAIN_THREAD: Final = 0
AUTOGRAD_THREAD: Final = 1
WORLD: Final = "world"
NO_GROUP: Final = -1


@dataclass(frozen=True)
class Operation:
    """One call of a program, and its GPU activity if it has one. Times are means in ns."""

    name: str
    kind: OperationKind
    call: str
    """The host call, without version suffix: `cudaLaunchKernel`."""
    stream: int
    """Stream of the activity; for a sync, the stream that it waits for."""
    thread: int = MAIN_THREAD
    duration_ns: int = 0
    """Duration on the GPU; for a collective, from the last arrival to the end."""
    cpu_ns: int = 0
    """CPU time from the end of the previous call to the start of this one."""
    call_ns: int = 0
    """Duration of the call, without the waiting of a sync."""
    after: tuple[int, ...] = ()
    """Positions of earlier operations of the step that it waits for, in addition to its stream. A sync with positions
    waits for these instead of a stream."""
    phase: str = ""
    """Nested range that contains it: forward, backward or optimizer."""
    group: str | None = None
    """Name of a collective's process group, see `Plan.groups`."""
    collective: str | None = None
    """Operation of a collective: all_reduce, all_gather, ..."""
    n_bytes: int | None = None
    copy: Literal["h2d", "d2h", "memset"] | None = None
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    kernel: int | None = None
    """Kernel index; None for other operations, and for a kernel that only some ranks run."""
    draw: int = 0
    """Row in the random numbers of a step; added operations have rows of their own."""
    sized: bool = False
    """Whether duration and grid follow the input size of a rank."""
    variants: tuple[str, ...] = ()
    """Names that autotuning chooses from, per rank; empty: `name`."""

    @property
    def added(self) -> bool:
        """Whether only some ranks run this kernel."""
        return self.kind in KERNEL_KINDS and self.kernel is None


@dataclass(frozen=True)
class Program:
    """The program of a rank: a prologue, repetitions of a step, an epilogue."""

    step: tuple[Operation, ...]
    prologue: tuple[Operation, ...] = ()
    epilogue: tuple[Operation, ...] = ()

    @property
    def kernels(self) -> int:
        """Kernels per step, collectives included."""
        return sum(op.kernel is not None for op in self.step)

    def position(self, kernel: int) -> int:
        """Return the position in the step of the kernel with this index."""
        return next(at for at, op in enumerate(self.step) if op.kernel == kernel)

    def with_extra(self, kernel: int, extra: Operation) -> "Program":
        """Return the program with an added operation, launched before the kernel with this index (or last)."""
        kernels = [op.kernel for op in self.step if op.kernel is not None]
        at = self.position(kernel) if kernel <= kernels[-1] else self.position(kernels[-1]) + 1
        moved = [replace(op, after=tuple(a + (a >= at) for a in op.after)) for op in self.step]
        before = self.step[min(at, len(moved) - 1)]
        extra = replace(extra, draw=len(self.step), kernel=None, thread=before.thread, phase=before.phase)
        return replace(self, step=(*moved[:at], extra, *moved[at:]))


@dataclass(frozen=True)
class Plan:
    """The programs of all ranks, and their process groups."""

    programs: tuple[Program, ...]
    """One program per stage; ranks of a stage run the same program."""
    stage: Ints
    """(ranks,) number of each rank's program."""
    groups: Mapping[str, Ints] = field(default_factory=dict)
    """By name: (ranks,) number of the group that each rank is in; `NO_GROUP` for none."""

    def ranks_of(self, stage: int) -> Ints:
        """Return the ranks that run this program."""
        ranks: Ints = np.flatnonzero(self.stage == stage)
        return ranks


def single_program_plan(program: Program, ranks: int, groups: Mapping[str, Ints] | None = None) -> Plan:
    """Return the plan of a job in which all ranks run one program; `groups` are in addition to the whole job."""
    everyone = np.zeros(ranks, np.int64)
    return Plan((program,), everyone, {WORLD: everyone, **(groups or {})})


def number_operations(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return the operations with kernel indices and rows in the random numbers."""
    done: list[Operation] = []
    kernel = 0
    for draw, op in enumerate(operations):
        is_kernel = op.kind in KERNEL_KINDS
        done.append(replace(op, draw=draw, kernel=kernel if is_kernel else None))
        kernel += is_kernel
    return tuple(done)
