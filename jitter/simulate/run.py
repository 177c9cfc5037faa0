"""A simulated run: computed once for where the ranks meet, then again, a few ranks at a time, for all else."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from jitter.errors import UsageError
from jitter.simulate.assemble import assemble
from jitter.simulate.costs import costs, operations
from jitter.simulate.data_parallel import program
from jitter.simulate.engine import Events, Meet, State, run_phase
from jitter.simulate.faults import Fault
from jitter.simulate.job import Job
from jitter.simulate.names import EXTRA
from jitter.simulate.program import Operation, Program
from jitter.simulate.rank_run import RankRun
from jitter.simulate.truth import Truth, truth

Ints = NDArray[np.int64]
_BLOCK_CELLS = 4_000_000
"""Operations x ranks of all steps that are in memory at once (some 32 bytes each)."""


@dataclass(frozen=True)
class Run:
    """One job with its faults. Deterministic: the same job and faults give the same nanoseconds."""

    job: Job
    faults: tuple[Fault, ...]
    program: Program

    @cached_property
    def _first_pass(self) -> tuple[dict[tuple[int, int], Ints], list[Events]]:
        """(phase, position) of each collective -> its end in each group (ns, global); all events if few."""
        found: dict[tuple[int, int], Ints] = {}
        everyone = np.arange(self.job.ranks, dtype=np.int64)

        def meet(phase: int, at: int, op: Operation, ready: Ints, transfer: int) -> Ints:
            group = self.program.groups[op.group or ""]
            last = np.full(int(group.max()) + 1, np.iinfo(np.int64).min)
            np.maximum.at(last, group, ready) if len(last) > 1 else last.fill(ready.max())
            found[phase, at] = last + transfer
            return found[phase, at][group]

        state = self._begin(everyone)
        kept: list[Events] = []
        for phase in range(self.job.steps + 2):
            events = self._phase(phase, everyone, state, partial(meet, phase))
            if self._block >= self.job.ranks:
                kept.append(events)
        return found, kept

    @property
    def _ends(self) -> dict[tuple[int, int], Ints]:
        return self._first_pass[0]

    @property
    def _block(self) -> int:
        return max(1, _BLOCK_CELLS // (len(self.program.step) * self.job.steps))

    def _begin(self, ranks: Ints) -> State:
        begin = [int(np.random.default_rng((self.job.seed, int(r))).integers(400_000)) for r in ranks]
        return State(np.array(begin, np.int64))

    def _phase(self, phase: int, ranks: Ints, state: State, meet: Meet) -> Events:
        ops = operations(self.program, phase, self.job.steps)
        prices = costs(self.job, self.faults, self.program, phase, ranks)
        return run_phase(self.job, ops, prices, state, meet)

    def _replay(self, ranks: Ints) -> list[Events]:
        ends, state = self._ends, self._begin(ranks)
        groups = {name: group[ranks] for name, group in self.program.groups.items()}

        def meet(phase: int, at: int, op: Operation, _ready: Ints, _transfer: int) -> Ints:
            return ends[phase, at][groups[op.group or ""]]

        return [self._phase(phase, ranks, state, partial(meet, phase)) for phase in range(self.job.steps + 2)]

    def ranks(self, wanted: Sequence[int] | None = None) -> Iterator[RankRun]:
        """The recordings of these ranks (all), in this order; a few at a time are in memory."""
        numbers = np.array(range(self.job.ranks) if wanted is None else wanted, np.int64)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.job.ranks:
            raise UsageError(f"the job has ranks 0 to {self.job.ranks - 1}")
        if whole := self._first_pass[1]:
            for rank in numbers.tolist():
                yield assemble(self.job, self.program, whole, rank, rank)
            return
        for first in range(0, len(numbers), self._block):
            some = numbers[first : first + self._block]
            phases = self._replay(some)
            for column, rank in enumerate(some.tolist()):
                yield assemble(self.job, self.program, phases, column, rank)

    def last_collective_ends(self) -> list[int]:
        """When each step's last collective ended (ns, global): a step lasts from one to the next."""
        return [
            max(int(end.max()) for (of, _), end in self._ends.items() if of == phase)
            for phase in range(1, self.job.steps + 1)
        ]

    def truth(self) -> Truth:
        """The three metrics of every kernel, from the events in global time; see `jitter.simulate.truth`."""
        return truth(list(self.ranks()), self.job.epoch)

    def without(self, *faults: Fault) -> "Run":
        """The same run, noise included, had these faults (all, if none is named) not been."""
        kept = [f for f in self.faults if f not in faults] if faults else []
        return simulate(self.job, kept)


def simulate(job: Job, faults: Sequence[Fault] = ()) -> Run:
    """A run of this job. Raises `UsageError` for faults on ranks, steps or kernels that it does not have."""
    whole = program(job)
    for fault in faults:
        _check(job, whole, fault)
    for fault in faults:
        if fault.kind == "extra_kernel":
            name, duration, grid, block = EXTRA
            whole = whole.with_extra(
                fault.kernel or 0,
                Operation(
                    name,
                    "compute",
                    "cudaLaunchKernel",
                    job.main_stream,
                    duration_ns=fault.delay_ns or duration,
                    cpu_ns=job.cpu_ns,
                    call_ns=job.call_ns,
                    grid=(grid, 1, 1),
                    block=(block, 1, 1),
                ),
            )
    return Run(job, tuple(faults), whole)


def _check(job: Job, whole: Program, fault: Fault) -> None:
    if fault.ranks and max(fault.ranks) >= job.ranks:
        raise UsageError(
            f"the fault {fault.kind} is for rank {max(fault.ranks)}", f"the job has ranks 0 to {job.ranks - 1}"
        )
    steps = job.step_numbers
    if not any(fault.at_step(step) for step in steps):
        raise UsageError(f"the fault {fault.kind} is for no step of the job", f"it has {steps[0]} to {steps[-1]}")
    last = job.kernels - 1
    if (fault.kernel or 0) > last or (fault.kernels and min(fault.kernels) > last):
        raise UsageError(f"the fault {fault.kind} is for a kernel that no step has", f"it has 0 to {last}")
    if fault.kind == "missing_kernel" and whole.step[whole.position(fault.kernel or 0)].kind == "collective":
        raise UsageError(
            f"kernel {fault.kernel} is a collective: a rank without it would hang the job", "name another kernel"
        )
