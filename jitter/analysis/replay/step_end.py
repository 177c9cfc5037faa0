"""End of a step: its last aligning collective, else its last main-stream kernel."""

import math
from math import isnan

import numpy as np

from jitter.analysis.collectives.matching import CollectiveMatching
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.step_times import StepTimes
from jitter.core.names.kernels import ALIGNING_OPERATIONS
from jitter.core.numeric.arrays import Floats, Ints, begins_of, joined
from jitter.core.numeric.compilation import compiled
from jitter.core.numeric.selection import select_median
from jitter.core.step_key import StepKey


class StepEnds:
    """Finds the operation with which each rank's steps end."""

    def __init__(self, run: RunModel) -> None:
        self._aligning = _aligning_places(run)
        teams = sorted(run.programs)
        kernels = [[place for place, op in enumerate(run.programs[team].operations) if op.on_main] for team in teams]
        self._first_rank = begins_of(run.sizes[team] for team in teams)
        self._candidates = [
            (begins_of(map(len, places)), joined(np.array(team_places, np.int64) for team_places in places))
            for places in ([self._aligning[team] for team in teams], kernels)
        ]

    def are_shared(self, team: int) -> bool:
        """Return whether the ranks of a team leave any collective together."""
        return bool(self._aligning[team])

    def shared(self, team: int, end: Floats) -> Floats:
        """Return, (collectives, ranks), the ends of collectives that ranks of a team leave together, the last one last.

        Of ends (operations, ranks), NaN for what a rank lacks: of the collectives that all these ranks have.
        """
        ends = end[self._aligning[team]]
        ends = ends[~np.isnan(ends).any(axis=1)]
        return ends[np.argsort(np.median(ends, axis=1), kind="stable")] if ends.size else ends[:0]

    def cells(self, step: StepTimes) -> Ints:
        """Return, (ranks of the run,), the cell of the operation with which each rank's step ends; -1 if unknown."""
        end_cells, room = np.full(len(step.row), -1, np.int64), np.empty(len(step.row))
        for first, places in self._candidates:
            find_end_cells(step.row, step.end, self._first_rank, first, places, room, end_cells)
        return end_cells


@compiled
def find_end_cells(
    row: Ints, end: Floats, first_rank: Ints, first: Ints, places: Ints, room: Floats, end_cells: Ints
) -> None:
    """Fill in the cells of the place that ends last of each team whose ranks have none yet.

    `first` (teams + 1,) is where each team's candidates begin in `places`, which ascend; `room` (ranks,) is
    overwritten.
    """
    for team in range(len(first_rank) - 1):
        is_open = False
        for rank in range(first_rank[team], first_rank[team + 1]):
            is_open = is_open or (row[rank] >= 0 and end_cells[rank] < 0)
        last = -1
        if is_open:
            last = find_last_place(
                row[first_rank[team] : first_rank[team + 1]], end, places[first[team] : first[team + 1]], room
            )
        for rank in range(first_rank[team], first_rank[team + 1]):
            if last >= 0 and row[rank] >= 0:
                end_cells[rank] = row[rank] + last


@compiled
def find_last_place(row: Ints, end: Floats, places: Ints, room: Floats) -> int:
    """Return the place whose median end over ranks is the latest, of equal ones the last; -1 if no rank has any."""
    # a place can only be last if its latest end is past every place's earliest
    least = -math.inf
    for at in range(len(places)):
        earliest = math.inf
        for rank in range(len(row)):
            if row[rank] >= 0 and end[row[rank] + places[at]] < earliest:
                earliest = end[row[rank] + places[at]]
        if earliest < math.inf:
            least = max(least, earliest)
    last, last_ns = -1, -math.inf
    for at in range(len(places)):
        count, latest = 0, -math.inf
        for rank in range(len(row)):
            if row[rank] >= 0 and not isnan(end[row[rank] + places[at]]):
                room[count] = end[row[rank] + places[at]]
                latest = max(latest, room[count])
                count += 1
        if count > 0 and latest >= least:
            median_ns = select_median(room, count)
            if median_ns >= last_ns:
                last, last_ns = places[at], median_ns
    return int(last)


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


class StepDurations:
    """Measures each step's time: from the end of the step before to its own, median over ranks."""

    def __init__(self) -> None:
        self._before: tuple[StepKey, Floats] | None = None
        """The last step, and when it ended for each rank."""

    def of(self, key: StepKey, ends: Floats) -> float:
        """Return the time of this step in ns; NaN for the first of consecutive steps. Give it every step in order.

        `ends` (ranks of the run,) is when the step ended for each, NaN where unknown. A rank's step that ends no later
        than the one before it has kernels of another step, whose launches were lost: it does not count.
        """
        before, self._before = self._before, (key, ends)
        if before is None or before[0] != StepKey(key.epoch, key.step - 1):
            return math.nan
        durations = ends - before[1]
        durations = np.sort(durations[durations > 0])
        return float(durations[(len(durations) - 1) // 2]) if len(durations) else math.nan
