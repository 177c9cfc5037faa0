"""In which order the operations of all blocks of ranks can be computed, so that what each waits for is known."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jitter.analysis.execution.collectives import Meetings
from jitter.analysis.execution.program import NO_LANE, Program
from jitter.analysis.execution.rules import Rules
from jitter.core.arrays import Ints


class Run(NamedTuple):
    """Compute these places (first up to but not including last) of a block."""

    block: int
    first: int
    last: int


class Meet(NamedTuple):
    """All have arrived: compute when this meeting ends."""

    meeting: int


class Schedule(NamedTuple):
    """Instructions in order; `uncoupled` are meetings whose matching contradicts the order: each rank has its own."""

    instructions: tuple[Run | Meet, ...]
    uncoupled: frozenset[int]

    def array(self) -> Ints:
        """(instructions, 3): block, first and last; of a collective -1, its number, 0."""
        rows = [(-1, one.meeting, 0) if isinstance(one, Meet) else one for one in self.instructions]
        return np.array(rows, np.int64).reshape(len(rows), 3)


def schedule(programs: Mapping[int, Program], rules: Mapping[int, Rules], meetings: Meetings) -> Schedule:
    """Order the work of all blocks."""
    of_place: list[dict[int, int]] = [{} for _ in meetings.blocks]
    for number, meeting in enumerate(meetings.meetings):
        for member in meeting.members:
            of_place[member.block][member.place] = number
    missing = [len(meeting.members) for meeting in meetings.meetings]
    met: set[int] = set()
    blocks = [
        _Block(number, programs[block.team], rules[block.team], of_place[number])
        for number, block in enumerate(meetings.blocks)
    ]
    instructions: list[Run | Meet] = []
    uncoupled: set[int] = set()
    while not all(block.done for block in blocks):
        moved = False
        for block in blocks:
            first = block.at
            for arrived in block.advance(met):
                missing[arrived] -= 1
            if block.at > first:
                moved = True
                instructions.append(Run(block.number, first, block.at))
            block.arrived = [m for m in block.arrived if m not in met]
            ready = [m for m in block.arrived if not missing[m]]
            instructions += map(Meet, ready)
            met.update(ready)
            moved |= bool(ready)
        if not moved:
            # the recorded groups cannot be right: let the first that a block waits for be every rank's own
            stuck = next(m for block in blocks for m in block.arrived if m not in met)
            uncoupled.add(stuck)
            met.add(stuck)
    return Schedule((*instructions,), frozenset(uncoupled))


class _Block:
    def __init__(self, number: int, program: Program, rules: Rules, meeting_at: Mapping[int, int]) -> None:
        self.number = number
        self.at = 0
        self.arrived: list[int] = []
        self._size = len(program.operations)
        self._meeting_at = meeting_at
        self._needs = _needed(program, rules, meeting_at)

    @property
    def done(self) -> bool:
        return self.at == self._size

    def advance(self, met: set[int]) -> list[int]:
        """Go on as far as the meetings that are over allow; return those arrived at on the way."""
        new = []
        while self.at < self._size and met.issuperset(self._needs.get(self.at, ())):
            if (meeting := self._meeting_at.get(self.at)) is not None:
                new.append(meeting)
            self.at += 1
        self.arrived += new
        return new


def _needed(program: Program, rules: Rules, meeting_at: Mapping[int, int]) -> dict[int, Sequence[int]]:
    """By place the meetings that must be over before it: of what it waits for, and of the one before on its stream."""
    found: dict[int, Sequence[int]] = {}
    last: dict[int, int] = {}
    waits = rules.by_place
    for place, lane in enumerate(program.lanes.tolist()):
        others = [other for other in waits.get(place, ()) if other >= 0]
        if lane != NO_LANE and lane in last:
            others.append(last[lane])
        if needs := [meeting_at[other] for other in others if other in meeting_at]:
            found[place] = needs
        last[lane] = place
    return found
