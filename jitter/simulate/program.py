"""What a step is: a list of operations in launch order, each with its stream, thread and what it waits for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
OperationKind = Literal["compute", "collective", "memory", "call", "sync"]
KERNEL_KINDS: Final = frozenset({"compute", "collective"})
"""What the kernel index counts."""
GPU_KINDS: Final = frozenset({"compute", "collective", "memory"})
"""What leaves an activity on the GPU; the others are host calls alone."""

MAIN_THREAD: Final = 0
AUTOGRAD_THREAD: Final = 1
WORLD: Final = "world"
NO_GROUP: Final = -1


@dataclass(frozen=True)
class Operation:
    """One call of the program and, unless it is a mere call, what it makes the GPU do. Times are means in ns."""

    name: str
    kind: OperationKind
    call: str
    """The host call, without version suffix: `cudaLaunchKernel`."""
    stream: int
    """Where the activity runs; for a sync, the stream it waits for."""
    thread: int = MAIN_THREAD
    duration_ns: int = 0
    """On the GPU; of a collective: from the last arrival to the common end."""
    cpu_ns: int = 0
    """On the host, from the end of the call before to the start of this one."""
    call_ns: int = 0
    """In the call; a sync's wait comes on top."""
    after: tuple[int, ...] = ()
    """Positions of earlier operations of the same step whose end it waits for (events), its stream apart. A sync
    that has some waits for these instead of a stream."""
    phase: str = ""
    """forward, backward, optimizer: the nested range it lies in."""
    group: str | None = None
    """A collective's group, by name: see `Plan.groups`."""
    collective: str | None = None
    """The operation: all_reduce, all_gather, ..."""
    n_bytes: int | None = None
    copy: Literal["h2d", "d2h", "memset"] | None = None
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    kernel: int | None = None
    """Its kernel index; None for what is no kernel, and for a kernel that only some ranks run."""
    draw: int = 0
    """Its place in the random numbers of a step, so that added operations leave those of the others alone."""
    sized: bool = False
    """Its duration and grid follow the size of a rank's input."""
    variants: tuple[str, ...] = ()
    """The kernels that autotuning picks from, rank by rank; `name` where there are none."""

    @property
    def added(self) -> bool:
        """Whether it is a kernel that only some ranks run."""
        return self.kind in KERNEL_KINDS and self.kernel is None


@dataclass(frozen=True)
class Program:
    """What a rank runs: once the prologue, then the step over and over, once the epilogue."""

    step: tuple[Operation, ...]
    prologue: tuple[Operation, ...] = ()
    epilogue: tuple[Operation, ...] = ()

    @property
    def kernels(self) -> int:
        """Kernels a step, collectives included."""
        return sum(op.kernel is not None for op in self.step)

    def position(self, kernel: int) -> int:
        """Where in the step the kernel with this index stands."""
        return next(at for at, op in enumerate(self.step) if op.kernel == kernel)

    def with_extra(self, kernel: int, extra: Operation) -> "Program":
        """The program with one more operation, launched right before the kernel of this index (or last)."""
        kernels = [op.kernel for op in self.step if op.kernel is not None]
        at = self.position(kernel) if kernel <= kernels[-1] else self.position(kernels[-1]) + 1
        moved = [replace(op, after=tuple(a + (a >= at) for a in op.after)) for op in self.step]
        before = self.step[min(at, len(moved) - 1)]
        extra = replace(extra, draw=len(self.step), kernel=None, thread=before.thread, phase=before.phase)
        return replace(self, step=(*moved[:at], extra, *moved[at:]))


@dataclass(frozen=True)
class Plan:
    """What all ranks run, and who meets whom."""

    programs: tuple[Program, ...]
    """One a stage: ranks of one stage run the same."""
    stage: Ints
    """For each rank of the job the number of its program."""
    groups: Mapping[str, Ints] = field(default_factory=dict)
    """For each group name the number of the group that each rank of the job is in; `NO_GROUP`: in none."""

    def ranks_of(self, stage: int) -> Ints:
        """The ranks that run this program."""
        ranks: Ints = np.flatnonzero(self.stage == stage)
        return ranks


def single_program_plan(program: Program, ranks: int, groups: Mapping[str, Ints] | None = None) -> Plan:
    """The plan of a job whose ranks all run one program; its groups beside that of the whole job."""
    everyone = np.zeros(ranks, np.int64)
    return Plan((program,), everyone, {WORLD: everyone, **(groups or {})})


def number_operations(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """The operations with their kernel indices and their places in the random numbers."""
    done: list[Operation] = []
    kernel = 0
    for draw, op in enumerate(operations):
        is_kernel = op.kind in KERNEL_KINDS
        done.append(replace(op, draw=draw, kernel=kernel if is_kernel else None))
        kernel += is_kernel
    return tuple(done)
