"""Per-step computations over a range of steps (step statistics, replays, the account of lost time), on threads here.

A range of steps is from a first up to but not including a last one; the step before it is read for what it leaves.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import numpy as np

from jitter.analysis.account.noise import Noise
from jitter.analysis.account.step_account import Account, StepAccount
from jitter.analysis.detection.data_quality import StepQuality, assess_step_quality
from jitter.analysis.detection.deviations import StepDeviations, deviations_of_step
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.self_times import SelfTimes
from jitter.analysis.execution.step_times import of_team
from jitter.analysis.replay.run_steps import RecordedStep, RunSteps, Transfers
from jitter.analysis.replay.step_end import StepDurations
from jitter.analysis.replay.what_if import Scenario, ScenarioReplay
from jitter.core.numeric.arrays import Floats
from jitter.core.parallel.processes import cpu_count


class Arrivals(NamedTuple):
    """How the ranks of one step came to its collectives with other recorded ranks."""

    waited_ns: Mapping[int, float]
    """How long each rank waited for others, all together."""
    last_at: Mapping[int, int]
    """At how many each rank arrives last."""
    met_at: Mapping[int, int]
    """At how many each rank takes part."""

    @property
    def are_any(self) -> bool:
        """Whether any ranks met."""
        return any(self.met_at.values())


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
    arrivals: Arrivals


@dataclass(frozen=True)
class RunReplay:
    """The run in several scenarios, and its account of lost time."""

    gained_ns: Floats
    """(steps, scenarios) how much shorter each step would be; NaN where no rank's step counts."""
    accounts: list[StepAccount]
    """Each step's; empty if they were not asked for."""


class StepExecutor(Protocol):
    """Goes through all steps of the run."""

    def measure(self) -> list[StepStatistics]:
        """Measure each step by itself."""

    def replay(
        self, usual: Sequence[Floats], scenarios: Sequence[Scenario], noise: Sequence[Noise] | None = None
    ) -> RunReplay:
        """Replay the run in each scenario; with the `noise` of each step keep its account, too.

        `usual` are the usual transfers of each step.
        """


def measure_steps(steps: RunSteps, first: int, last: int, *, ahead: bool = True) -> list[StepStatistics]:
    """Measure each step of a range by itself; `ahead`: read the next step meanwhile."""
    run, times, found = steps.run, StepDurations(), []
    for step in steps.steps(max(first - 1, 0), last, ahead=ahead):
        cells = step.end_cells
        which = cells >= 0
        time_ns = times.of(step.key, run.rank_numbers[which], step.times.end[cells[which]])
        if step.number < first:
            continue
        baseline = steps.baseline(step)
        deviations, quality = deviations_of_step(run, step, baseline), _quality(steps, step)
        found.append(StepStatistics(time_ns, step.transfers, deviations, quality, baseline, _arrivals(run, step)))
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


def _arrivals(run: RunModel, step: RecordedStep) -> Arrivals:
    collectives, numbers = step.collectives, run.rank_numbers
    waited = step.in_collectives - step.transfers.took[collectives.group]
    known = ~np.isnan(waited)
    arrived = np.bincount(collectives.awaiting[known[collectives.by_group]], minlength=len(step.transfers.took))
    met = known & (arrived[collectives.group] > 1)
    here = np.flatnonzero(step.times.row >= 0)
    ranks = numbers[here].tolist()

    def by_rank(weights: Floats) -> list[float]:
        found: list[float] = np.bincount(collectives.rank, weights, len(numbers))[here].tolist()
        return found

    last, all_met = (map(int, by_rank(mask.astype(np.float64))) for mask in (met & (waited <= 0), met))
    return Arrivals(
        dict(zip(ranks, by_rank(np.nan_to_num(waited)), strict=True)),
        dict(zip(ranks, last, strict=True)),
        dict(zip(ranks, all_met, strict=True)),
    )


def replay_steps(
    steps: RunSteps,
    usual: Sequence[Floats],
    scenarios: Sequence[Scenario],
    noise: Sequence[Noise] | None = None,
    pool: ThreadPoolExecutor | None = None,
) -> RunReplay:
    """Replay the run in each scenario, from the first step that one repairs.

    With the `noise` of each step replay all steps and keep their account. The scenarios of a step are replayed on the
    threads of `pool`, if there is one.
    """
    run = steps.run
    replayed = ScenarioReplay(run, steps.ends, scenarios, usual, pool)
    account = None if noise is None else Account(run, steps.ends, usual, noise)
    whole = account is not None or any(scenario.everything for scenario in scenarios)
    first = 0 if whole else min((step for scenario in scenarios for step in scenario.steps), default=0)
    accounts = []
    for step in steps.steps(first, ahead=account is None):
        baseline = steps.baseline(step)
        replayed.step(step, baseline)
        if account is not None:
            accounts.append(account.step(step, baseline))
        elif replayed.is_over(step.number):
            break
        del step  # else it stays in memory while the next one is read
    gained = np.zeros((len(run.keys), len(scenarios)))  # before the first repair, and when all is as recorded again
    gained[first : first + len(replayed.gained)] = replayed.gained
    return RunReplay(gained, accounts)


def step_ranges(steps: int, ranges: int) -> list[tuple[int, int]]:
    """Cut so many steps into ranges as long as each other, no more than there are steps."""
    return list(pairwise(np.linspace(0, steps, min(steps, ranges) + 1).astype(int).tolist()))


_LARGE: Final = 500_000
"""StepActivities from which on a run is worth threads."""
_MOST_THREADS: Final = 8
_MOST_CELLS: Final = 6_000_000
"""Operations × ranks of the steps that are in memory at once, some 100 bytes each."""
_RANGES: Final = 2
"""A thread. Each range reads again some steps before its own."""


class ThreadedStepExecutor:
    """Goes through the steps here."""

    def __init__(self, steps: RunSteps, threads: int | None = None) -> None:
        """Use this number of threads; None: one per processor for a large run."""
        self._steps, self._chosen = steps, threads

    def measure(self) -> list[StepStatistics]:
        """Measure each step by itself."""
        steps, count = self._steps, len(self._steps.run.keys)
        threads = self._threads()
        if threads < 2:
            return measure_steps(steps, 0, count)
        steps.prepare()
        with ThreadPoolExecutor(threads, thread_name_prefix="steps") as pool:
            # one thread reads while another one computes
            ranges = [
                pool.submit(measure_steps, steps, *one, ahead=False) for one in step_ranges(count, _RANGES * threads)
            ]
            try:
                return [seen for found in ranges for seen in found.result()]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def replay(
        self, usual: Sequence[Floats], scenarios: Sequence[Scenario], noise: Sequence[Noise] | None = None
    ) -> RunReplay:
        """See `StepExecutor`."""
        steps = self._steps
        threads = 1 if steps.are_tiny else min(self._threads(), len(scenarios))
        if threads < 2:
            return replay_steps(steps, usual, scenarios, noise)
        with ThreadPoolExecutor(threads, thread_name_prefix="scenarios") as pool:
            return replay_steps(steps, usual, scenarios, noise, pool)

    def _threads(self) -> int:
        steps = self._steps
        if self._chosen is None and steps.lake.source.rows < _LARGE:
            return 1
        in_memory = _MOST_CELLS // max(1, 2 * steps.largest_step)
        return min(self._chosen or min(cpu_count(), _MOST_THREADS), len(steps.run.keys), in_memory)
