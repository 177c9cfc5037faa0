"""One step of the run as recorded: each team's, and what follows from that for all of its ranks or one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from jitter.analysis.execution.own_time import OwnTimes, own_times
from jitter.analysis.execution.program import Program
from jitter.analysis.execution.ready_times import Readiness, Tail, readiness
from jitter.analysis.execution.rules import Rules
from jitter.analysis.execution.step_times import Recorded
from jitter.core.arrays import Bools
from jitter.core.step_key import StepKey


class OneRank(NamedTuple):
    """One rank's step, (operations, 1): as recorded, what held each operation back, and its own times."""

    recorded: Recorded
    ready: Readiness
    own: OwnTimes


@dataclass(frozen=True)
class TeamStep:
    """One team in one step; columns are its ranks of the run that have the step."""

    program: Program
    rules: Rules
    recorded: Recorded
    tail: Tail
    """How the step before left these ranks."""
    joined: Bools
    """(ranks,) whose step before is not known."""
    _columns: dict[int, OneRank] = field(default_factory=dict, repr=False)

    @cached_property
    def own(self) -> OwnTimes:
        """All operations', on all ranks."""
        return self._own_times(self.recorded, self.tail)[1]

    def column(self, column: int) -> OneRank:
        """What one rank did; who asks again is given the same."""
        if column not in self._columns:
            which = slice(column, column + 1)
            recorded = self.recorded.columns(which)
            self._columns[column] = OneRank(recorded, *self._own_times(recorded, self.tail.columns(which)))
        return self._columns[column]

    def _own_times(self, arrays: Recorded, tail: Tail) -> tuple[Readiness, OwnTimes]:
        ready = readiness(self.program, self.rules.thread, arrays, tail)
        return ready, own_times(self.program, self.rules, arrays, ready, tail)


@dataclass(frozen=True)
class ObservedStep:
    """All teams in one step."""

    key: StepKey
    teams: Mapping[int, TeamStep]
