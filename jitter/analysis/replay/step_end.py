"""End of a step: its last aligning collective, else its last main-stream kernel."""

from collections.abc import Sequence

import numpy as np

from jitter.analysis.collectives.matching import CollectiveMatching
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.step_times import StepTimes, of_team
from jitter.core.names.kernels import ALIGNING_OPERATIONS
from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.step_key import StepKey


class StepEnds:
    """Finds the operation with which each rank's steps end."""

    def __init__(self, run: RunModel) -> None:
        self._run = run
        self._aligning = _aligning_places(run)
        self._kernels = {
            team: [place for place, op in enumerate(program.operations) if op.on_main]
            for team, program in run.programs.items()
        }

    def aligning(self, team: int) -> list[int]:
        """Return the places of collectives that all of a team leave together."""
        return self._aligning[team]

    def cells(self, step: StepTimes) -> Ints:
        """Return, (ranks of the run,), the cell of the operation with which each rank's step ends; -1 if unknown."""
        end_cells = np.full(len(step.row), -1, np.int64)
        for team, program in self._run.programs.items():
            times = of_team(step, self._run.rank_numbers, team, len(program.operations))
            if len(times.ranks):
                place = _last_known(times.end, self._aligning[team])
                place = _last_known(times.end, self._kernels[team]) if place is None else place
                if place is not None:
                    here = (step.team == team) & (step.row >= 0)
                    end_cells[here] = step.row[here] + place
        return end_cells


def _aligning_places(run: RunModel) -> dict[int, list[int]]:
    """Return, by team, the places of collectives that the whole team leaves together."""
    matching: CollectiveMatching = run.matching
    blocks_of: dict[int, set[int]] = {team: set() for team in run.programs}
    for number, block in enumerate(matching.blocks):
        blocks_of[block.team].add(number)
    places_of: dict[int, set[int]] = {team: set() for team in run.programs}
    for collective in matching.collectives:
        teams = {matching.blocks[member.block].team for member in collective.members}
        for team in teams:
            here = [member for member in collective.members if matching.blocks[member.block].team == team]
            groups = {int(member.group.min()) for member in here} | {int(member.group.max()) for member in here}
            if {member.block for member in here} != blocks_of[team] or len(groups) != 1:
                continue
            for member in here:
                operation = run.programs[team].operations[member.place].collective
                if operation is None or operation in ALIGNING_OPERATIONS:
                    places_of[team].add(member.place)
    return {team: sorted(places) for team, places in places_of.items()}


def _last_known(end: Floats, places: Sequence[int]) -> int | None:
    """Return the place whose median end over ranks is the latest; None if no rank recorded any of the places."""
    if not places:
        return None
    ends = end[places]
    is_known = ~np.isnan(ends)
    rows = np.flatnonzero(is_known.any(axis=1))
    if not len(rows):
        return None
    # a place can only be last if its latest end is past every place's earliest
    least = float(np.fmin.reduce(ends[rows], axis=1).max())
    last: list[int] = rows[np.fmax.reduce(ends[rows], axis=1) >= least].tolist()
    if len(last) == 1:
        return places[last[0]]
    return max((float(np.median(ends[row][is_known[row]])), places[row]) for row in last)[1]


class StepDurations:
    """Measures each step's time: from the end of the step before to its own, median over ranks."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[StepKey, float]] = {}

    def of(self, key: StepKey, ranks: Ints, ends: Floats) -> float:
        """Return the time of this step in ns; NaN for the first of consecutive steps. Give it every step in order.

        `ends` (ranks,) is when the step ended for these. A rank's step that ends no later than the one before it has
        kernels of another step, whose launches were lost: it does not count.
        """
        times: list[float] = []
        previous = StepKey(key.epoch, key.step - 1)
        for rank, end in zip(ranks.tolist(), ends.tolist(), strict=True):
            before = self._before.get(rank)
            if before is not None and before[0] == previous:
                times.append(end - before[1])
            self._before[rank] = (key, end)
        durations = sorted(time for time in times if time > 0)
        return float(durations[(len(durations) - 1) // 2]) if durations else np.nan
