"""Per-step computations over a range of steps: step statistics, replays, critical paths.

A range of steps is from a first up to but not including a last one; the step before it is read for what it leaves.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np

from jitter.analysis.detection.data_quality import StepQuality, assess_step_quality
from jitter.analysis.detection.outliers.deviations import StepDeviations, deviations_of_step
from jitter.analysis.execution.recorded.step_times import of_team
from jitter.analysis.execution.self_times import SelfTimes
from jitter.analysis.replay.charges import Charges
from jitter.analysis.replay.critical_path import PathWalker
from jitter.analysis.replay.recorded_step import RecordedStep, Transfers
from jitter.analysis.replay.run_steps import RunSteps
from jitter.analysis.replay.step_end import StepDurations
from jitter.analysis.replay.what_if import Scenario, ScenarioReplay
from jitter.core.numeric.arrays import Floats
from jitter.core.step_key import StepKey


@dataclass(frozen=True)
class StepStatistics:
    """Statistics of one step."""

    time_ns: float
    """NaN for the first of consecutive steps."""
    transfers: Transfers
    deviations: tuple[StepDeviations, ...]
    """Each team's."""
    quality: StepQuality
    baseline: SelfTimes
    """(operations of all teams,) the medians of self times."""


@dataclass(frozen=True)
class StepPath:
    """One step's critical path."""

    key: StepKey
    charges: Charges
    tail: Charges
    """The charges of the step before, after its last collective, that delay this step."""
    waited_ns: Mapping[int, float]
    """How long each rank waited for others at collectives, all together."""
    last_at: Mapping[int, int]
    """At how many collectives with other recorded ranks each rank arrives last."""
    met_at: Mapping[int, int]
    """At how many such collectives each rank takes part."""

    @property
    def whole(self) -> Charges:
        """All charges: those of the step, and those of the step before."""
        return self.charges.joined(self.tail) if len(self.tail) else self.charges


@dataclass(frozen=True)
class ReplayAndPaths:
    """Replays and paths."""

    gained_ns: Floats
    """(steps, scenarios) how much shorter each step would be; NaN where no rank's step counts."""
    paths: list[StepPath]
    """Each step's; empty if they were not asked for."""


class StepExecutor(Protocol):
    """Goes through all steps of the run."""

    def measure(self) -> list[StepStatistics]:
        """Measure each step by itself."""

    def replay(self, usual: Floats, scenarios: Sequence[Scenario], *, walk: bool) -> ReplayAndPaths:
        """Replay the run in each scenario and, if asked, walk each step's path; `usual` are the usual transfers."""


def measure_steps(steps: RunSteps, first: int, last: int, *, ahead: bool = True) -> list[StepStatistics]:
    """Measure each step of a range by itself; `ahead`: read the next step meanwhile."""
    run, times, found = steps.run, StepDurations(), []
    for step in steps.steps(max(first - 1, 0), last, ahead=ahead):
        cells = steps.ends.cells(step.times)
        which = cells >= 0
        time_ns = times.of(step.key, run.rank_numbers[which], step.times.end[cells[which]])
        if step.number < first:
            continue
        baseline = steps.baseline(step)
        deviations, quality = deviations_of_step(run, step, baseline), _quality(steps, step)
        found.append(StepStatistics(time_ns, step.transfers, deviations, quality, baseline))
        del step  # else it stays in memory while the next one is read
    return found


def _quality(steps: RunSteps, step: RecordedStep) -> StepQuality:
    run, lake = steps.run, steps.lake
    teams = {
        team: times
        for team, program in run.programs.items()
        if len((times := of_team(step.times, run.rank_numbers, team, len(program.operations))).ranks)
    }
    return assess_step_quality(teams, steps.ends.aligning, lake.indices(step.key), partial(lake.rank_groups, step.key))


def walk_paths(steps: RunSteps, first: int, last: int, usual: Floats) -> list[StepPath]:
    """Walk the paths of a range of steps."""
    walker, found = PathWalker.of_run(steps.run, usual), []
    for step in steps.steps(max(first - 1, 0), last):
        if step.number < first:
            walker.pass_by(step, steps.baseline(step))
        else:
            found.append(path_of(steps, walker, step))
        del step  # else it stays in memory while the next one is read
    return found


def path_of(steps: RunSteps, walker: PathWalker, step: RecordedStep) -> StepPath:
    """Walk one step's path."""
    walk = walker.walk(step, steps.baseline(step))
    return StepPath(step.key, walk.charges, walk.tail, *_waited(steps, step))


def _waited(steps: RunSteps, step: RecordedStep) -> tuple[dict[int, float], dict[int, int], dict[int, int]]:
    """Return each rank's time between its arrivals and the last ones, and at how many it is last, and takes part."""
    collectives, numbers = step.collectives, steps.run.rank_numbers
    waited = step.in_collectives - step.transfers.took[collectives.group]
    known = ~np.isnan(waited)
    met = known & (np.bincount(collectives.group[known], minlength=len(step.transfers.took))[collectives.group] > 1)
    here = np.flatnonzero(step.times.row >= 0)
    ranks = numbers[here].tolist()

    def by_rank(weights: Floats) -> list[float]:
        found: list[float] = np.bincount(collectives.rank, weights, len(numbers))[here].tolist()
        return found

    last, all_met = (map(int, by_rank(mask.astype(np.float64))) for mask in (met & (waited <= 0), met))
    return (
        dict(zip(ranks, by_rank(np.nan_to_num(waited)), strict=True)),
        dict(zip(ranks, last, strict=True)),
        dict(zip(ranks, all_met, strict=True)),
    )


def replay_steps(
    steps: RunSteps,
    usual: Floats,
    scenarios: Sequence[Scenario],
    walker: PathWalker | None = None,
    pool: ThreadPoolExecutor | None = None,
) -> ReplayAndPaths:
    """Replay the run in each scenario, from the first step that one repairs; with a walker all steps, with paths.

    The scenarios of a step are replayed on the threads of `pool`, if there is one.
    """
    run = steps.run
    replayed = ScenarioReplay(run, steps.ends, scenarios, usual, pool)
    whole = walker is not None or any(scenario.everything for scenario in scenarios)
    first = 0 if whole else min((step for scenario in scenarios for step in scenario.steps), default=0)
    paths = []
    for step in steps.steps(first):
        replayed.step(step, steps.baseline(step))
        if walker is not None:
            paths.append(path_of(steps, walker, step))
        elif replayed.is_over(step.number):
            break
        del step  # else it stays in memory while the next one is read
    gained = np.zeros((len(run.keys), len(scenarios)))  # before the first repair, and when all is as recorded again
    gained[first : first + len(replayed.gained)] = replayed.gained
    return ReplayAndPaths(gained, paths)


def step_ranges(steps: int, ranges: int) -> list[tuple[int, int]]:
    """Cut so many steps into ranges as long as each other, no more than there are steps."""
    return list(pairwise(np.linspace(0, steps, min(steps, ranges) + 1).astype(int).tolist()))
