"""In which order the operations of all blocks of ranks can be computed, so that what each waits for is known."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jitter.analysis.execution.collectives import Meetings
from jitter.analysis.execution.program import NO_LANE, Program
from jitter.analysis.execution.rules import Rules


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


def schedule(programs: Mapping[int, Program], rules: Mapping[int, Rules], meetings: Meetings) -> Schedule:
    """Order the work of all blocks."""
    of_place = {
        (member.block, member.place): number
        for number, meeting in enumerate(meetings.meetings)
        for member in meeting.members
    }
    arrivals = [len(meeting.members) for meeting in meetings.meetings]
    held: set[int] = set()
    blocks = [
        _Block(number, programs[block.team], rules[block.team], of_place)
        for number, block in enumerate(meetings.blocks)
    ]
    instructions: list[Run | Meet] = []
    uncoupled: set[int] = set()
    while not all(block.done for block in blocks):
        moved = False
        for block in blocks:
            first = block.at
            for arrived in block.advance(held):
                arrivals[arrived] -= 1
            if block.at > first:
                moved = True
                instructions.append(Run(block.number, first, block.at))
            ready = [m for m in block.arrived if not arrivals[m] and m not in held]
            instructions += map(Meet, ready)
            held.update(ready)
            moved |= bool(ready)
        if not moved:
            # the recorded groups cannot be right: let the first that somebody waits for be everyone's own
            stuck = next(m for block in blocks for m in block.arrived if m not in held)
            uncoupled.add(stuck)
            held.add(stuck)
    return Schedule((*instructions,), frozenset(uncoupled))


class _Block:
    def __init__(self, number: int, program: Program, rules: Rules, of_place: Mapping[tuple[int, int], int]) -> None:
        self.number = number
        self.at = 0
        self.arrived: list[int] = []
        self._size = len(program.operations)
        self._meeting = [of_place.get((number, place)) for place in range(self._size)]
        self._needs = [self._needed(program, rules, place) for place in range(self._size)]

    @property
    def done(self) -> bool:
        return self.at == self._size

    def _needed(self, program: Program, rules: Rules, place: int) -> Sequence[int]:
        lane = program.operations[place].lane
        before = next((other for other in range(place - 1, -1, -1) if program.operations[other].lane == lane), None)
        awaited = [other for other in rules.by_place.get(place, ()) if other >= 0]
        places = [*awaited, *([before] if before is not None and lane != NO_LANE else [])]
        return [self._meeting[other] for other in places if self._meeting[other] is not None]  # type: ignore[misc]

    def advance(self, held: set[int]) -> list[int]:
        """Go on as far as the meetings held so far allow; returns those arrived at on the way."""
        new = []
        while self.at < self._size and all(meeting in held for meeting in self._needs[self.at]):
            if (meeting := self._meeting[self.at]) is not None:
                new.append(meeting)
            self.at += 1
        self.arrived += new
        return new
