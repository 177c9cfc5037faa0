"""Where a step ends: at its last aligning collective, else with its last main-stream kernel (METRICS, 3)."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from jitter.analysis.execution.run_model import Observed
from jitter.analysis.replay.step_inputs import StepWork
from jitter.core.arrays import Floats, Ints
from jitter.core.kernels import ALIGNING_OPERATIONS
from jitter.core.step_key import StepKey


class StepEnds:
    """Finds the place at which each team's steps end."""

    def __init__(self, run: Observed) -> None:
        self._run = run
        self._aligning = {team: self._aligning_places(team) for team in run.programs}
        self._kernels = {
            team: [place for place, op in enumerate(program.operations) if op.on_main]
            for team, program in run.programs.items()
        }

    def _aligning_places(self, team: int) -> list[int]:
        """Places of collectives that the whole team leaves together."""
        meetings = self._run.meetings
        blocks = {number for number, block in enumerate(meetings.blocks) if block.team == team}
        operations = self._run.programs[team].operations
        found = []
        for meeting in meetings.meetings:
            here = [member for member in meeting.members if member.block in blocks]
            together = {group for member in here for group in member.group.tolist()}
            if {member.block for member in here} != blocks or len(together) != 1:
                continue
            for place in {member.place for member in here}:
                operation = operations[place].collective
                if operation is None or operation in ALIGNING_OPERATIONS:
                    found.append(place)
        return sorted(found)

    def aligning(self, team: int) -> list[int]:
        """Places of collectives that all of a team leave together."""
        return self._aligning[team]

    def of_team(self, team: int, end: Callable[[int], Floats]) -> int | None:
        """The place where the team's step is over; `end` gives, (ranks,), when an operation ended.

        None if none of its ranks recorded such an operation.
        """
        for places in (self._aligning[team], self._kernels[team]):
            ends = {place: end(place) for place in places}
            known = [place for place in places if not np.isnan(ends[place]).all()]
            if known:
                return max(known, key=lambda place: (float(np.nanmedian(ends[place])), place))
        return None

    def places(self, work: StepWork) -> list[int | None]:
        """Each block's."""
        of_team = {
            team: self.of_team(team, partial(step.recorded.row, "end")) for team, step in work.observed.teams.items()
        }
        return [of_team.get(block.team) for block in self._run.meetings.blocks]


class StepTimes:
    """Measures each step's time: from the end of the step before to its own, median over ranks."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[StepKey, float]] = {}

    def of(self, key: StepKey, ends: Sequence[tuple[Ints, Floats]]) -> float:
        """The time of this step in ns; NaN for the first of a stretch. Give it every step in order.

        `ends` are each team's ranks, and when the step ended for them.
        """
        times: list[Floats] = []
        for ranks, its_ends in ends:
            for rank, end in zip(ranks.tolist(), its_ends.tolist(), strict=True):
                before = self._before.get(rank)
                if before is not None and before[0] == StepKey(key.epoch, key.step - 1):
                    times.append(end - before[1])
                self._before[rank] = (key, end)
        known = sorted(time for time in times if not np.isnan(time))
        return float(known[(len(known) - 1) // 2]) if known else np.nan
