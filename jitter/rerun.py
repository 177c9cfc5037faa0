"""The run replayed in several ways at once: as it was, with every rank at the median, with some ranks repaired."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from jitter.cells import COMPUTE, Floats, Ints
from jitter.meetings import Meetings
from jitter.observed import TeamStep, Observed, ObservedStep
from jitter.own_time import OwnTimes, typical
from jitter.replay import BlockStep, Replay
from jitter.steps import StepKey


@dataclass(frozen=True)
class StepWork:
    """One step, ready to be computed again."""

    observed: ObservedStep
    typical: Mapping[int, OwnTimes]
    """By team, (operations, 1): the median of each own time."""
    blocks: Sequence[BlockStep]
    columns: Sequence[Ints]
    """For each block its ranks' columns in their team's arrays, -1 for those that have not the step."""
    transfers: Mapping[int, Floats]
    """(groups,) of each meeting: from the last arrival to the end; NaN where nobody came."""


def transfers_of(meetings: Meetings, blocks: Sequence[BlockStep]) -> dict[int, Floats]:
    """Measure, for each meeting's groups, the time from the last arrival to the end."""
    found = {}
    for number, meeting in enumerate(meetings.meetings):
        least = np.full(meeting.groups, np.inf)
        for member in meeting.members:
            block = blocks[member.block].recorded
            took = block.end[member.place] - block.start[member.place]
            known = ~np.isnan(took)
            np.minimum.at(least, member.group[known], took[known])
        found[number] = np.where(np.isinf(least), np.nan, least)
    return found


def work_of(run: Observed, step: ObservedStep) -> StepWork:
    """Cut a step into the blocks that meet each other."""
    blocks, columns = [], []
    for block in run.meetings.blocks:
        team = step.teams.get(block.team)
        program = run.programs[block.team]
        where = np.full(len(block.ranks), -1, np.int64)
        if team is not None:
            column_of = {rank: column for column, rank in enumerate(team.arrays.ranks.tolist())}
            where = np.array([column_of.get(rank, -1) for rank in block.ranks], np.int64)
        here = where >= 0
        blocks.append(BlockStep(_spread(team, where, len(program.operations)), here, _joined(team, where)))
        columns.append(where)
    usual = {
        number: OwnTimes(*(typical(getattr(team.own, field.name)) for field in fields(OwnTimes)))
        for number, team in step.teams.items()
    }
    return StepWork(step, usual, blocks, columns, transfers_of(run.meetings, blocks))


def _spread(team: TeamStep | None, where: Ints, operations: int):  # noqa: ANN202
    from jitter.step_arrays import StepArrays

    if team is not None and (where >= 0).all():
        a = team.arrays
        return StepArrays(
            a.ranks[where], a.present[:, where], a.start[:, where], a.end[:, where], a.call[:, where],
            a.back[:, where], a.ordinal[:, where],
        )
    shape = (operations, len(where))
    empty = StepArrays(
        np.full(len(where), -1), np.zeros(shape, bool), *(np.full(shape, np.nan) for _ in range(4)), np.full(shape, -1)
    )
    if team is not None:
        there = np.flatnonzero(where >= 0)
        for field in fields(StepArrays):
            values, own = getattr(empty, field.name), getattr(team.arrays, field.name)
            values[..., there] = own[..., where[there]]
    return empty


def _joined(team: TeamStep | None, where: Ints):  # noqa: ANN202
    joined = np.ones(len(where), bool)
    if team is not None:
        joined[where >= 0] = team.joined[where[where >= 0]]
    return joined
