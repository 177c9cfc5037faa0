"""The cross-rank critical path of a step, walked back from its last collective: whose time the step took.

METRICS, "From deviations to answers", 4. Every operation passed is charged its own time less the team's median for
it: the excess. All comparisons between ranks are of arrivals at a common end, so no shared clock is needed.
"""

from collections.abc import Generator, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from jitter.analysis.execution.collectives import Meetings
from jitter.analysis.execution.program import Program
from jitter.analysis.execution.rules import Rules
from jitter.analysis.execution.step_model import TeamStep
from jitter.analysis.execution.time_part import TimePart
from jitter.analysis.replay.step_inputs import StepWork
from jitter.core.kernels import COLLECTIVE, SYNC


class Charge(NamedTuple):
    """An operation on the path; `rank` is the last to arrive where it is a transfer."""

    rank: int
    team: int
    place: int
    part: TimePart
    excess_ns: float
    meeting: int | None = None
    group: int | None = None


class _At(NamedTuple):
    block: int
    column: int
    place: int


_Next = tuple[int, int] | _At | None
"""A meeting's group, an operation's start, or the end of the walk."""
_Back = Generator[Charge, None, _Next]


class PathWalker:
    """Walks the paths of a run's steps; remembers where each rank left the step before."""

    def __init__(self, programs: Mapping[int, Program], rules: Mapping[int, Rules], meetings: Meetings) -> None:
        self._programs, self._rules, self._meetings = programs, rules, meetings
        self._first_kernel = {team: program.first_kernel for team, program in programs.items()}
        self._before_on_lane = {team: _before_on_lane(program) for team, program in programs.items()}
        self._meeting_at = {
            (member.block, member.place): (number, member)
            for number, meeting in enumerate(meetings.meetings)
            for member in meeting.members
        }
        self._left: dict[int, float] = {}

    def walk(self, work: StepWork, usual_transfer: Mapping[int, float], uncoupled: frozenset[int]) -> list[Charge]:
        """The step's path, last operation first; empty where ranks do not meet."""
        last = self._last(work, uncoupled)
        charges = [] if last is None else list(_Walk(self, work, usual_transfer, uncoupled).back_from(*last))
        self.pass_by(work)
        return charges

    def pass_by(self, work: StepWork) -> None:
        """Remember only where a step leaves each rank."""
        self._left = {}
        for team, step in work.observed.teams.items():
            collectives = [place for place, op in enumerate(self._programs[team].operations) if op.kind == COLLECTIVE]
            if collectives:
                ends = np.fmax.reduce([step.recorded.row("end", place) for place in collectives])
                self._left.update(zip(step.recorded.ranks.tolist(), ends.tolist(), strict=True))

    def _last(self, work: StepWork, uncoupled: frozenset[int]) -> tuple[int, int] | None:
        """The (meeting, group) that ends the step: of those that come last the largest."""
        best: tuple[tuple[int, float, float], tuple[int, int]] | None = None
        left = [block.recorded.latest_end() for block in work.blocks]
        for number, meeting in enumerate(self._meetings.meetings):
            if number in uncoupled:
                continue
            for group in range(meeting.groups):
                since, size = [], 0
                for member in meeting.members:
                    block = work.blocks[member.block]
                    columns = np.flatnonzero((member.group == group) & block.recorded.present[member.place])
                    size += len(columns)
                    ends = block.recorded.row("end", member.place)
                    since += (left[member.block] - ends)[columns].tolist()
                if size >= 2:
                    # how much of the step comes after it, and its size
                    rank = (-round(float(np.median(since)) / 1e3), float(size), float(-np.median(since)))
                    if best is None or rank > best[0]:
                        best = (rank, (number, group))
        return None if best is None else best[1]


class _Walk:
    def __init__(
        self, walker: PathWalker, work: StepWork, usual_transfer: Mapping[int, float], uncoupled: frozenset[int]
    ) -> None:
        self._walker, self._work = walker, work
        self._usual_transfer, self._uncoupled = usual_transfer, uncoupled

    def back_from(self, number: int, group: int) -> Iterator[Charge]:
        """Walk."""
        at: _Next = (number, group)
        while at is not None:
            if isinstance(at, _At):
                at = yield from self._gpu_start(at)
            else:
                at = yield from self._meeting(*at)

    def _team(self, at: _At) -> tuple[int, TeamStep, int]:
        """The team, its step, and the rank's column there."""
        team = self._walker._meetings.blocks[at.block].team
        return team, self._work.observed.teams[team], int(self._work.columns[at.block][at.column])

    def _meeting(self, number: int, group: int) -> _Back:
        latest, who = -np.inf, None
        for member in self._walker._meetings.meetings[number].members:
            recorded = self._work.blocks[member.block].recorded
            columns = np.flatnonzero((member.group == group) & recorded.present[member.place])
            if not len(columns):
                continue
            late = (recorded.row("start", member.place) - recorded.row("end", member.place))[columns]
            best = int(late.argmax())
            if late[best] > latest:
                latest, who = float(late[best]), _At(member.block, int(columns[best]), member.place)
        if who is None:
            return None
        team, step, column = self._team(who)
        rank = int(step.recorded.ranks[column])
        yield Charge(rank, team, who.place, TimePart.TRANSFER, -latest - self._usual_transfer[number], number, group)
        return who

    def _end(self, at: _At) -> _Back:
        """From an operation's end: to the last that its group waited for, or through its own duration to its start."""
        team, step, column = self._team(at)
        while not step.recorded.present[at.place, column]:
            # this rank lacks it: what was waited for is the one before it on its stream
            previous = self._walker._before_on_lane[team][at.place]
            if previous is None:
                return None
            at = at._replace(place=previous)
        found = self._walker._meeting_at.get((at.block, at.place))
        if found is not None and found[0] not in self._uncoupled:
            number, member = found
            return number, int(member.group[at.column])
        excess = step.column(column).own.gpu[at.place, 0] - self._work.typical[team].gpu[at.place, 0]
        yield Charge(int(step.recorded.ranks[column]), team, at.place, TimePart.GPU, float(excess))
        return at

    def _gpu_start(self, at: _At) -> _Back:
        team, step, column = self._team(at)
        rank = int(step.recorded.ranks[column])
        recorded, ready, own = step.column(column)
        if recorded.start[at.place, 0] <= self._walker._left.get(rank, -np.inf):
            return None
        rules = self._walker._rules[team]
        launched = ready.submit[at.place, 0] + rules.launch_ns
        before = ready.end_before[at.place, 0] + rules.stream_ns
        awaited, other = self._awaited(step, column, at.place, rules)
        delay = float(own.delay[at.place, 0] - self._work.typical[team].delay[at.place, 0])
        if step.joined[column] and np.isnan(before):
            delay = 0.0  # what its stream did before is not known
        held = max((value for value in (launched, before, awaited) if not np.isnan(value)), default=np.nan)
        by_host = bool(held == launched)
        if by_host:
            # the GPU had it before the call returned: that much of the call held nothing up
            delay -= float(own.lead[at.place, 0] - self._work.typical[team].lead[at.place, 0])
        yield Charge(rank, team, at.place, TimePart.CPU if by_host else TimePart.GPU, delay)
        if np.isnan(held):
            return None
        if held == awaited:
            return None if other is None or other < 0 else (yield from self._end(at._replace(place=other)))
        if by_host:
            return (yield from self._host(at))
        previous = self._walker._before_on_lane[team][at.place]
        return None if previous is None else (yield from self._end(at._replace(place=previous)))

    def _host(self, at: _At) -> _Back:
        """Back along the host's calls until one that waited for the GPU or for its queue, or the step before."""
        team, step, column = self._team(at)
        rank = int(step.recorded.ranks[column])
        rules, usual = self._walker._rules[team], self._work.typical[team]
        recorded, _, own = step.column(column)
        border = self._walker._left.get(rank, -np.inf)
        operations = self._walker._programs[team].operations
        first = self._walker._first_kernel[team]
        thread = rules.thread[at.place]
        for place in range(at.place, -1, -1):
            if rules.thread[place] != thread or np.isnan(recorded.call[place, 0]):
                continue
            part = TimePart.START if place <= first else TimePart.CPU
            in_call = float(own.call[place, 0] - usual.call[place, 0])
            yield Charge(rank, team, place, part, in_call)
            called = recorded.call[place, 0]
            if operations[place].kind == SYNC:
                awaited, other = self._awaited(step, column, place, rules)
                if other is not None and awaited > called:
                    return None if other < 0 else (yield from self._end(at._replace(place=other)))
            elif (begun := recorded.back[place, 0] - own.call[place, 0]) > called:
                # the queue was full until this started
                started = np.flatnonzero(recorded.start[:, 0] == begun)
                return (yield from self._gpu_start(at._replace(place=int(started[0])))) if len(started) else None
            if np.isnan(own.host[place, 0]):
                return None
            yield Charge(rank, team, place, part, float(own.host[place, 0] - usual.host[place, 0]))
            if called - own.host[place, 0] <= border:
                return None
        return None

    def _awaited(self, step: TeamStep, column: int, place: int, rules: Rules) -> tuple[float, int | None]:
        latest, which = np.nan, None
        for other in rules.by_place.get(place, ()):
            end = step.column(column).ready.end_by(other)[0] if other >= 0 else step.tail.lane_end[~other, column]
            if not np.isnan(end) and not end <= latest:
                latest, which = float(end), other
        return latest, which


def _before_on_lane(program: Program) -> list[int | None]:
    """For each operation the one before it on its stream, whether a rank has that or not."""
    last: dict[int, int] = {}
    found = []
    for place, operation in enumerate(program.operations):
        found.append(last.get(operation.lane))
        last[operation.lane] = place
    return found
