"""A step cut into the blocks of ranks that meet each other, with its medians: what replay and path work on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from jitter.analysis.execution.carried_state import Tails
from jitter.analysis.execution.collectives import Meetings
from jitter.analysis.execution.own_time import OwnTimes
from jitter.analysis.execution.program import Program
from jitter.analysis.execution.rules import Rules
from jitter.analysis.execution.run_model import Observed
from jitter.analysis.execution.step_model import ObservedStep, TeamStep
from jitter.analysis.execution.step_times import StepArrays
from jitter.analysis.replay.replay import BlockStep
from jitter.core.arrays import Bools, Floats, Ints
from jitter.core.stats import lower_median
from jitter.core.step_key import StepKey

_FEW_ABSENT = 0.25
"""With so many of a group not recorded the last arrival that was recorded is still near the last."""


@dataclass(frozen=True)
class Transfers:
    """A step's meetings, (groups,) of each."""

    took: Mapping[int, Floats]
    """From the last arrival to the end; NaN where nobody came."""
    whole: Mapping[int, Bools]
    """Whether this step of all its members was recorded."""
    mostly: Mapping[int, Bools]
    """Whether it was of nearly all that are in the lake."""


@dataclass(frozen=True)
class StepWork:
    """One step, ready to be computed again."""

    observed: ObservedStep
    typical: Mapping[int, OwnTimes]
    """By team, (operations, 1): the median of each own time."""
    blocks: Sequence[BlockStep]
    columns: Sequence[Ints]
    """For each block its ranks' columns in their team's arrays, -1 for those that have not the step."""
    transfers: Transfers


def usual_of(step: ObservedStep, alone: Mapping[int, OwnTimes]) -> dict[int, OwnTimes]:
    """Each team's medians in a step; `alone` are those over steps of teams of one rank, which has no peers."""
    return {team: alone[team] if team in alone else medians(found.own) for team, found in step.teams.items()}


def work_of(run: Observed, step: ObservedStep, usual: Mapping[int, OwnTimes]) -> StepWork:
    """Cut a step into blocks; `usual` are its teams' medians."""
    columns = run.meetings.columns({team: found.recorded.ranks for team, found in step.teams.items()})
    blocks = []
    for block, where in zip(run.meetings.blocks, columns, strict=True):
        team = block.team
        its = (run.programs[team], run.rules[team], usual.get(team))
        blocks.append(_block(step.key, step.teams.get(team), where, *its))

    def took(block: int, place: int) -> Floats:
        recorded = blocks[block].recorded
        return recorded.row("end", place) - recorded.row("start", place)

    return StepWork(step, usual, blocks, columns, transfers_of(run.meetings, took))


def medians(own: OwnTimes) -> OwnTimes:
    """(operations, 1): the lower median of each own time."""
    return OwnTimes(*(lower_median(getattr(own, field.name)) for field in fields(OwnTimes)))


def _block(
    key: StepKey, team: TeamStep | None, where: Ints, program: Program, rules: Rules, usual: OwnTimes | None
) -> BlockStep:
    shape = (len(program.operations), len(where))
    if team is None or usual is None:
        nothing, nobody = np.zeros((shape[0], 1)), _nobody(shape)
        tail, joined = Tails(program, rules.thread, rules.queue).before(key, nobody.ranks)
        return BlockStep(nobody, OwnTimes(nothing, nothing, nothing, nothing, nothing), joined, tail)
    if np.array_equal(where, np.arange(len(team.recorded.ranks))):  # the whole team: nothing is copied
        return BlockStep(team.recorded, usual, team.joined, team.tail)
    if (where >= 0).all():
        return BlockStep(team.recorded.columns(where), usual, team.joined[where], team.tail.columns(where))
    there = np.flatnonzero(where >= 0)
    arrays = _nobody(shape)
    for field in fields(arrays):
        getattr(arrays, field.name)[..., there] = getattr(team.recorded, field.name)[..., where[there]]
    joined = np.ones(len(where), np.bool_)
    joined[there] = team.joined[where[there]]
    # of those that are not there, any tail: they have joined when they come
    return BlockStep(arrays, usual, joined, team.tail.columns(where))


def _nobody(shape: tuple[int, int]) -> StepArrays:
    start, end, call, back = (np.full(shape, np.nan) for _ in range(4))
    return StepArrays(np.full(shape[1], -1), np.zeros(shape, np.bool_), start, end, call, back)


def transfers_of(meetings: Meetings, took: Callable[[int, int], Floats]) -> Transfers:
    """Measure each meeting; `took` gives (ranks,) of a block at a place: from each one's arrival to its end."""
    found, whole, mostly = {}, {}, {}
    for number, meeting in enumerate(meetings.meetings):
        least = np.full(meeting.groups, np.inf)
        members, absent = np.zeros((2, meeting.groups), np.int64)
        for member in meeting.members:
            own = took(member.block, member.place)
            known = ~np.isnan(own)
            np.minimum.at(least, member.group[known], own[known])
            np.add.at(members, member.group, 1)
            np.add.at(absent, member.group[~known], 1)
        found[number] = np.where(np.isinf(least), np.nan, least)
        whole[number] = (absent == 0) & ~meeting.incomplete
        mostly[number] = absent <= _FEW_ABSENT * members
    return Transfers(found, whole, mostly)
