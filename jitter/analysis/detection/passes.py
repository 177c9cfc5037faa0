"""What is computed going through the run's steps: as a whole here, or stretch by stretch elsewhere.

A stretch is steps from a first up to but not including a last one; the step before it is looked at for what it leaves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from jitter.analysis.detection.data_quality import StepQuality, assess_step_quality
from jitter.analysis.detection.deviations import StepDeviations
from jitter.analysis.detection.step_statistics import StepStatistics, compute_step_statistics
from jitter.analysis.execution.own_time import OwnTimes
from jitter.analysis.execution.run_model import Observed
from jitter.analysis.replay.critical_path import Charge, PathWalker
from jitter.analysis.replay.run_steps import ExaminedSteps
from jitter.analysis.replay.step_end import StepTimes
from jitter.analysis.replay.step_inputs import StepWork, transfers_of
from jitter.analysis.replay.what_if import Scenario, WhatIf
from jitter.core.arrays import Floats
from jitter.core.step_key import StepKey


@dataclass(frozen=True)
class SeenStep:
    """What the first pass tells of one step."""

    time_ns: float
    """NaN for the first of a stretch of consecutive numbers."""
    transfers: Mapping[int, Floats]
    """(groups,) of each meeting: from the last arrival to the end; NaN where too few of a group were recorded."""
    deviations: tuple[StepDeviations, ...]
    """Each team's."""
    quality: StepQuality
    typical: Mapping[int, OwnTimes]
    """Each team's medians."""


@dataclass(frozen=True)
class StepPath:
    """One step's critical path."""

    key: StepKey
    charges: tuple[Charge, ...]
    waited_ns: Mapping[int, float]
    """How long each rank waited for others at collectives, all together."""


@dataclass(frozen=True)
class Gone:
    """What a pass with the usual transfers tells."""

    gained_ns: Floats
    """(steps, scenarios) how much shorter each step would be; NaN where nobody's step counts."""
    paths: list[StepPath]
    """Each step's; empty if they were not asked for."""


class Passes(Protocol):
    """Goes through all steps of the run."""

    def look(self) -> list[SeenStep]:
        """Look at each step by itself."""

    def go(self, usual: Mapping[int, float], scenarios: Sequence[Scenario], *, walk: bool) -> Gone:
        """Replay the run in each scenario and, if asked, walk each step's path; `usual` are the usual transfers."""


class PassesHere:
    """Goes through them in this process."""

    def __init__(self, steps: ExaminedSteps) -> None:
        self._steps = steps

    def look(self) -> list[SeenStep]:
        """Do as `Passes` says."""
        return look(self._steps, 0, len(self._steps.run.keys))

    def go(self, usual: Mapping[int, float], scenarios: Sequence[Scenario], *, walk: bool) -> Gone:
        """Do as `Passes` says."""
        run = self._steps.run
        replay = WhatIf(run, self._steps.ends, scenarios, usual)
        walker = PathWalker(run.programs, run.rules, run.meetings)
        whole = walk or any(scenario.everything for scenario in scenarios)
        first = 0 if whole else min((step for scenario in scenarios for step in scenario.steps), default=0)
        paths = []
        for number, work in self._steps.works(first):
            replay.step(number, work)
            if walk:
                paths.append(_path(run, walker, work, usual))
            elif replay.is_over(number):
                break
        gained = np.zeros((len(run.keys), len(scenarios)))  # before the first repair, and when all is as recorded again
        gained[first : first + len(replay.gained)] = replay.gained
        return Gone(gained, paths)


def look(steps: ExaminedSteps, first: int, last: int) -> list[SeenStep]:
    """Look at each step of a stretch by itself."""
    run, lake, times, found = steps.run, steps.lake, StepTimes(), []
    tails = run.tails()
    for number, key, laid in run.laid(max(first - 1, 0), last):
        teams = {}
        if number < first - 1:  # only what it leaves is asked for
            for team, own in laid.items():
                tails[team].follow(key, own.recorded)
            continue
        for team, own in laid.items():
            tail, joined = tails[team].before(key, own.ranks)
            alone = steps.alone.get(team)
            one = compute_step_statistics(number, team, run.programs[team], run.rules[team], own, tail, joined, alone)
            tails[team].take(key, own.ranks, one.left)
            teams[team] = one
        places = [(team, steps.ends.of_team(team, one.end.__getitem__)) for team, one in teams.items()]
        time_ns = times.of(key, [(teams[t].ranks, teams[t].end[at]) for t, at in places if at is not None])
        if number < first:
            continue
        quality = assess_step_quality(teams, steps.ends.aligning, lake.indices(key), partial(lake.sheets, key))
        typical = {team: one.typical for team, one in teams.items()}
        deviations = tuple(one.deviations for one in teams.values())
        found.append(SeenStep(time_ns, _transfers(run, teams), deviations, quality, typical))
    return found


def _transfers(run: Observed, teams: Mapping[int, StepStatistics]) -> dict[int, Floats]:
    """Each meeting's, where nearly all its members' step was recorded: else the time includes waiting for them."""
    columns = run.meetings.columns({team: one.ranks for team, one in teams.items()})

    def took(block: int, place: int) -> Floats:
        where, team = columns[block], run.meetings.blocks[block].team
        if team not in teams:
            return np.full(len(where), np.nan)
        return np.where(where >= 0, teams[team].took[place][where], np.nan)

    found = transfers_of(run.meetings, took)
    return {number: np.where(found.mostly[number], its, np.nan) for number, its in found.took.items()}


def walk(steps: ExaminedSteps, first: int, last: int, usual: Mapping[int, float]) -> list[StepPath]:
    """Walk the paths of a stretch."""
    run = steps.run
    walker = PathWalker(run.programs, run.rules, run.meetings)
    found = []
    for number, work in steps.works(max(first - 1, 0), last):
        if number < first:
            walker.pass_by(work)
        else:
            found.append(_path(run, walker, work, usual))
    return found


def _path(run: Observed, walker: PathWalker, work: StepWork, usual: Mapping[int, float]) -> StepPath:
    charges = walker.walk(work, usual, run.schedule.uncoupled)
    return StepPath(work.observed.key, tuple(charges), _waited(run, work))


def _waited(run: Observed, work: StepWork) -> dict[int, float]:
    """Each rank's time between its arrivals and the last ones, over the step's collectives."""
    waited = [np.zeros(len(block.ranks)) for block in run.meetings.blocks]
    for number, meeting in enumerate(run.meetings.meetings):
        took = work.transfers.took[number]
        for member in meeting.members:
            block = work.blocks[member.block].recorded
            own = block.row("end", member.place) - block.row("start", member.place) - took[member.group]
            waited[member.block] += np.nan_to_num(own)
    return {
        rank: ns
        for block, columns, own in zip(run.meetings.blocks, work.columns, waited, strict=True)
        for rank, column, ns in zip(block.ranks, columns.tolist(), own.tolist(), strict=True)
        if column >= 0
    }
