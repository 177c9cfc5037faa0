"""The order in which the operations of all blocks of ranks are computed, so that what each waits for is known."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jitter.analysis.alignment.program import NO_STREAM, Program
from jitter.analysis.collectives.matching import CollectiveMatching
from jitter.analysis.execution.dependencies import Dependencies
from jitter.core.names.kernels import COMPUTE
from jitter.core.numeric.arrays import Ints


class Schedule(NamedTuple):
    """Instructions in order."""

    instructions: tuple[tuple[int, int, int], ...]
    """A block and the places of it to compute, the first and the last (not included); or -1, a collective all of whose
    ranks have arrived, so that its end is known, and 0.
    """
    uncoupled: frozenset[int]
    """Collectives whose matching contradicts the order: each rank ends its own."""

    def array(self) -> Ints:
        """(instructions, 3)."""
        return np.array(self.instructions, np.int64).reshape(-1, 3)


def schedule(
    programs: Mapping[int, Program], rules: Mapping[int, Dependencies], matching: CollectiveMatching
) -> Schedule:
    """Return the order of all blocks' operations and of all collectives."""
    of_place: list[dict[int, int]] = [{} for _ in matching.blocks]
    for number, collective in enumerate(matching.collectives):
        for member in collective.members:
            of_place[member.block][member.place] = number
    missing = [len(collective.members) for collective in matching.collectives]
    met: set[int] = set()
    blocks = [
        _Block(number, programs[block.team], rules[block.team], of_place[number])
        for number, block in enumerate(matching.blocks)
    ]
    instructions: list[tuple[int, int, int]] = []
    uncoupled: set[int] = set()
    while not all(block.done for block in blocks):
        moved = False
        for block in blocks:
            first = block.at
            for arrived in block.advance(met):
                missing[arrived] -= 1
            if block.at > first:
                moved = True
                instructions.append((block.number, first, block.at))
            block.arrived = [m for m in block.arrived if m not in met]
            ready = [m for m in block.arrived if not missing[m]]
            instructions += [(-1, number, 0) for number in ready]
            met.update(ready)
            moved |= bool(ready)
        if not moved and not any(block.release(met) for block in blocks):
            # the recorded groups cannot be right: let the first that a block waits for be every rank's own
            stuck = next(m for block in blocks for m in block.arrived if m not in met)
            uncoupled.add(stuck)
            met.add(stuck)
    return Schedule((*instructions,), frozenset(uncoupled))


class _Block:
    def __init__(self, number: int, program: Program, rules: Dependencies, collective_at: Mapping[int, int]) -> None:
        self.number = number
        self.at = 0
        self.arrived: list[int] = []
        self._size = len(program.operations)
        self._collective_at = collective_at
        self._needs = _needed(program, rules, collective_at)
        self._slowed_by = _slowing(program, collective_at) if rules.interference else {}

    @property
    def done(self) -> bool:
        return self.at == self._size

    def advance(self, met: set[int]) -> list[int]:
        """Go on as far as the collectives that are over allow; return those arrived at on the way."""
        new = []
        while self.at < self._size and met.issuperset(
            (*self._needs.get(self.at, ()), *self._slowed_by.get(self.at, ()))
        ):
            if (collective := self._collective_at.get(self.at)) is not None:
                new.append(collective)
            self.at += 1
        self.arrived += new
        return new

    def release(self, met: set[int]) -> bool:
        """Let the block go on where it only waits to know what slows a kernel down; return whether it did."""
        stopped = not self.done and met.issuperset(self._needs.get(self.at, ()))
        return stopped and self._slowed_by.pop(self.at, None) is not None


def _slowing(program: Program, collective_at: Mapping[int, int]) -> dict[int, Sequence[int]]:
    """Return, by place of a compute kernel, the collectives since the kernel before it: they may slow it."""
    slowing: dict[int, Sequence[int]] = {}
    since: list[int] = []
    for place, kind in enumerate(program.kinds.tolist()):
        if place in collective_at:
            since.append(collective_at[place])
        elif kind == COMPUTE and since:
            slowing[place], since = since, []
    return slowing


def _needed(program: Program, rules: Dependencies, collective_at: Mapping[int, int]) -> dict[int, Sequence[int]]:
    """Return, by place, the collectives that must be over before it: those it waits for, the last one on its stream."""
    needed: dict[int, Sequence[int]] = {}
    last: dict[int, int] = {}
    waits, of_hosts = rules.by_place, rules.of_hosts
    for place, stream in enumerate(program.streams.tolist()):
        awaited = (*waits.get(place, ()), *of_hosts.get(place, ()))
        others = [wait.on_op_index for wait in awaited if wait.on_op_index >= 0 and not wait.steps_back]
        if stream != NO_STREAM and stream in last:
            others.append(last[stream])
        if needs := [collective_at[awaited_op] for awaited_op in others if awaited_op in collective_at]:
            needed[place] = needs
        last[stream] = place
    return needed
