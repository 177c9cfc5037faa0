"""One step as recorded: four times of every operation of every rank, in launch order along the team's program."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from jitter.analysis.execution.rank_groups import IdenticalRanks
from jitter.core.numeric.arrays import Bools, Floats, Ints, IntTimes, unknown_value
from jitter.core.numeric.compilation import compiled


class StepTimes(NamedTuple):
    """Ranks one after another, each with the operations of its team's program; ns from the rank's origin, NaN: unknown.

    An operation that a rank lacks has no times; a synchronising call has those of the host alone.
    """

    team: Ints
    """(ranks of the run,)."""
    row: Ints
    """(ranks of the run,) where each one's operations begin below; -1: the rank has not the step."""
    start: Floats
    """(cells,) on the GPU."""
    end: Floats
    call: Floats
    """(cells,) when the host began the call; of the kernels of one launch only the first has it."""
    back: Floats
    """(cells,) when the call returned."""


class TeamTimes(NamedTuple):
    """One team's step, (operations, ranks): views of `StepTimes`."""

    ranks: Ints
    """(ranks,) the ranks that have the step."""
    start: Floats
    end: Floats
    call: Floats
    back: Floats

    @property
    def present(self) -> Bools:
        """(operations, ranks) whether the rank has the activity."""
        return ~np.isnan(self.start)


def empty_step(team: Ints, operations: Ints, here: Bools) -> StepTimes:
    """Make room for the ranks that are `here`; `operations` (ranks,) is how many each rank's program has."""
    sizes = np.where(here, operations, 0)
    row = np.where(here, np.cumsum(sizes) - sizes, -1)
    return StepTimes(team, row, *(np.full(int(sizes.sum()), np.nan) for _ in range(4)))


def fill_group(step: StepTimes, group: IdenticalRanks, places: Ints, numbers: Iterable[int]) -> None:
    """Put a group's times into the step; `places` (operations of the group,) are those in the program, -1 for none.

    `numbers` (ranks of the group,) are the ranks' in the run; -1 for ranks to leave out.
    """
    row = np.array([-1 if number < 0 else int(step.row[number]) for number in numbers], np.int64)
    is_call = group.row < 0
    nothing = unknown_value(group.times.dtype)
    times = (group.times, group.begun, group.ended, group.since)
    fill_rows(*times, is_call, places, row, nothing, step.start, step.end, step.call, step.back)


@compiled
def fill_rows(
    times: IntTimes,
    begun: Ints,
    ended: Ints,
    since: Floats,
    is_call: Bools,
    places: Ints,
    row: Ints,
    nothing: int,
    start: Floats,
    end: Floats,
    call: Floats,
    back: Floats,
) -> None:
    """Put whole numbers, (ranks, 4, activities), and calls, (ranks, calls), in launch order along the program.

    Of the activities of one launch (a graph's) the first alone keeps the call's times. A blocking copy's launch ends
    where its wait begins: at once if the GPU is busy with the launch before, else no later than the copy starts.
    """
    for rank in range(len(row)):
        if row[rank] < 0:
            continue
        zero = since[rank]
        activity, waited = 0, 0
        for at in range(len(places)):
            cell = row[rank] + places[at]
            if is_call[at]:
                if places[at] >= 0:
                    call[cell] = begun[rank, waited] + zero
                    back[cell] = ended[rank, waited] + zero
                waited += 1
                continue
            called, returned = times[rank, 2, activity], times[rank, 3, activity]
            started = times[rank, 0, activity]
            after = at + 1  # the calls that the host made when it had launched this one, or was launching it
            while after < len(places) and is_call[after]:
                if begun[rank, waited + after - at - 1] == called and called != nothing:
                    is_behind = activity > 0 and times[rank, 1, activity - 1] > called
                    returned = called if is_behind else min(max(started, called), times[rank, 3, activity])
                after += 1
            if activity > 0 and called == times[rank, 2, activity - 1]:
                called = returned = nothing
            if places[at] >= 0:
                start[cell] = math.nan if started == nothing else started + zero
                ended_at = times[rank, 1, activity]
                end[cell] = math.nan if ended_at == nothing else ended_at + zero
                call[cell] = math.nan if called == nothing else called + zero
                back[cell] = math.nan if returned == nothing else returned + zero
            activity += 1


def of_team(step: StepTimes, ranks: Ints, team: int, operations: int) -> TeamTimes:
    """Return one team's part; `ranks` are the run's, by number, `operations` how many the team's program has."""
    here = np.flatnonzero((step.team == team) & (step.row >= 0))
    first = int(step.row[here[0]]) if len(here) else 0
    shape = (len(here), operations)
    cut = (
        values[first : first + shape[0] * operations].reshape(shape).T
        for values in (step.start, step.end, step.call, step.back)
    )
    return TeamTimes(ranks[here], *cut)


def of_rank(step: StepTimes, ranks: Ints, number: int, operations: int) -> TeamTimes:
    """Return one rank's part, (operations, 1)."""
    first = int(step.row[number])
    cut = (values[first : first + operations, None] for values in (step.start, step.end, step.call, step.back))
    return TeamTimes(ranks[number : number + 1], *cut)
