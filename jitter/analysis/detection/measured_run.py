"""What the first pass over a run's steps measures, each step by itself, and what follows of it for the run.

Among it, whether ranks number their steps alike. Ranks that leave a collective together take equally long from one such
end to the next. Where the times between the ends of a rank's steps are those of the other ranks some steps earlier or
later, its steps are numbered otherwise, as by profilers that were started at different steps: then steps of one number
do not belong together.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from jitter.analysis.account.noise import Noise, noise_of_operations
from jitter.analysis.detection.deviations import TeamDeviations, collect_deviations
from jitter.analysis.detection.passes import StepStatistics
from jitter.analysis.execution.self_times import OWN_PARTS, SelfTimes, median_over_steps
from jitter.analysis.replay.run_steps import RunSteps
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Floats
from jitter.core.numeric.stats import known_median, lower_median, middle_value
from jitter.core.step_key import StepKey


class MeasuredRun:
    """Each step's time and data quality, the arrivals at its collectives, and the ranks' deviations."""

    def __init__(self, steps: RunSteps, statistics: StepStatistics) -> None:
        """`statistics` are the results of the first pass."""
        self.steps, self.statistics = steps, statistics

    @cached_property
    def are_uncoupled(self) -> bool:
        """Whether the ranks share no collective: none waits for another, so no delay of one has a price."""
        run = self.steps.run
        alone = len(run.team_of) > 1 and not run.matching.unpaired and not run.has_hidden_communication
        return alone and not self.statistics.arrivals.met_at.any()

    @cached_property
    def step_ns(self) -> Floats:
        """(steps,) each step's time; NaN for the first of consecutive steps.

        Where no step follows another, as in a run of one step, the time of each is its span.
        """
        periods = measure_periods(self.statistics.ends_ns, self.steps.run.keys)
        return self._spans if np.isnan(periods).all() else periods

    @cached_property
    def _spans(self) -> Floats:
        """(steps,) the median over ranks of the time from a step's first start to its last end; NaN without any."""
        spans = []
        for step in self.steps.steps():
            of_ranks = [
                np.fmax.reduce(step.times.end[cells]) - np.fmin.reduce(step.times.start[cells])
                for _, cells in self.steps.run.job.slices_of_ranks(step.times)
            ]
            spans.append(middle_value(np.array(of_ranks)))
            del step  # else it stays in memory while the next one is read
        return np.array(spans)

    def usual_beside(self, numbers: Sequence[int]) -> SelfTimes:
        """Return, (operations of all teams,), the usual self times in the steps like these but for these."""
        (alike,) = (alike for alike in self.steps.alike.by_size if numbers[0] in alike)
        return median_over_steps(self.steps.baselines, np.setdiff1d(alike, numbers))

    @cached_property
    def assumed_step_ns(self) -> Floats:
        """(steps,) each step's time; where unknown the median of the known like ones, else of all, 0 if none."""
        times_ns = self.step_ns.copy()
        for numbers in self.steps.alike.by_size:
            if not np.isnan(times_ns[numbers]).all():
                times_ns[numbers] = np.nan_to_num(times_ns[numbers], nan=known_median(times_ns[numbers]))
        return np.nan_to_num(times_ns, nan=known_median(self.step_ns))

    @property
    def usual_step_ns(self) -> float:
        """The median step's time."""
        return float(np.median(self.assumed_step_ns))

    @cached_property
    def usual_steps_ns(self) -> Floats:
        """(steps,) the median time of the steps that should take as long as each."""
        usual_ns = np.empty(len(self.assumed_step_ns))
        for numbers in self.steps.alike.by_size:
            usual_ns[numbers] = np.median(self.assumed_step_ns[numbers])
        return usual_ns

    @cached_property
    def lossy_ranks(self) -> frozenset[int]:
        """Ranks whose recordings of any step lack many events."""
        return frozenset(rank for quality in self.statistics.qualities for rank in quality.lossy_ranks)

    @cached_property
    def unplaced_ranks(self) -> frozenset[int]:
        """Ranks whose recordings of any step do not tell what waited for them."""
        return frozenset(rank for quality in self.statistics.qualities for rank in quality.unplaced_ranks)

    def total(self, gained: Floats) -> Floats:
        """Return (scenarios,) the sum of (steps, scenarios) over steps of known time.

        When the first of consecutive steps began is unknown, so its gain does not count.
        """
        gain_ns: Floats = np.nansum(gained[~np.isnan(self.step_ns)], axis=0)
        return gain_ns

    @cached_property
    def deviations(self) -> list[TeamDeviations]:
        """Each team's deviations."""
        run, of_sizes, alone = self.steps.run, self.steps.alike.by_known_size, self.steps.alone
        return collect_deviations(self.statistics.deviations, run.rank_numbers, run.job.first_rank, of_sizes, alone)

    def deviations_of(self, team: int) -> TeamDeviations:
        """Return one team's deviations."""
        return next(deviations for deviations in self.deviations if deviations.team == team)

    @cached_property
    def shifted_numbers(self) -> dict[int, int]:
        """By rank how much higher it numbers its steps than its team."""
        run = self.steps.run
        ends_ns = self.statistics.ends_ns
        shifted: dict[int, int] = {}
        for team in run.programs:
            if not len(self.steps.ends.aligning(team)):
                continue  # ranks that leave nothing together, as replicas of an engine, have steps of their own
            columns = [run.number_of[rank] for rank, rank_team in run.team_of.items() if rank_team == team]
            shift_of_column = find_shifted_numbers(ends_ns[:, columns], run.keys)
            shifted |= {int(run.rank_numbers[columns[column]]): shift for column, shift in shift_of_column.items()}
        return shifted

    @cached_property
    def noise(self) -> Noise:
        """(steps, …) the noise of the operations: a part's variance over the step, divided equally among them."""
        run = self.steps.run
        size, before = np.diff(run.job.first), run.job.first_kernel + 1
        operations = np.maximum(np.stack([before, size - before, size], axis=1), 1)
        of_teams = np.array([team.noise_ns[:, :, 0].T for team in self.deviations])  # (teams, steps, parts)
        of_steps = of_teams.reshape(len(size), len(run.keys), len(OWN_PARTS)).swapaxes(0, 1)
        return noise_of_operations(np.ascontiguousarray(of_steps**2 / operations), np.diff(run.job.first_rank).tolist())


def times_between_ends(ends_ns: Floats, keys: Sequence[StepKey]) -> Floats:
    """Return, (steps − 1, ranks), the times from the ends of steps to those of the next ones; NaN for others between.

    `ends_ns` (steps, ranks) are the ends of the steps, NaN where unknown.
    """
    follows = [key == StepKey(before.epoch, before.step + 1) for before, key in pairwise(keys)]
    return np.where(np.array(follows, np.bool_)[:, None], np.diff(ends_ns, axis=0), np.nan)


def measure_periods(ends_ns: Floats, keys: Sequence[StepKey]) -> Floats:
    """Return, (steps,), the time from the end of the step before to its own, median over ranks; NaN for first ones.

    A rank's step that ends no later than the one before has kernels of another step, whose launches were lost: it does
    not count.
    """
    between_ns = times_between_ends(ends_ns, keys)
    periods = lower_median(np.where(between_ns > 0, between_ns, np.nan))
    return np.append(np.nan, periods)[: len(keys)]


def find_shifted_numbers(ends_ns: Floats, keys: Sequence[StepKey]) -> dict[int, int]:
    """Return by column how much higher it numbers its steps than most of a team's ranks; none where all are alike.

    `ends_ns` (steps, ranks) are the ends of the steps on each rank's clock, NaN where unknown. Steps that all take
    equally long tell nothing, and it does not matter there.
    """
    grown = times_between_ends(ends_ns, keys)
    if not len(grown) or grown.shape[1] < 2:
        return {}
    reference = grown[:, int((~np.isnan(grown)).sum(axis=0).argmax())]
    least_ns = THRESHOLDS.min_clear_share * known_median(reference)
    shifts = [_shift_of(reference, of_rank, least_ns) for of_rank in grown.T]
    usual = max(set(shifts), key=shifts.count)
    return {column: shift - usual for column, shift in enumerate(shifts) if shift != usual}


def _shift_of(reference: Floats, grown: Floats, least_ns: float) -> int:
    """Return by how many steps later the same times come in `grown`, (steps,) each; 0 where no other shift fits."""
    apart_ns: dict[int, float] = {}
    every = range(-THRESHOLDS.tried_steps, THRESHOLDS.tried_steps + 1)
    for shift in sorted(every, key=abs):  # most ranks fit without any
        later, earlier = grown[max(shift, 0) :], reference[max(-shift, 0) :]
        count = min(len(later), len(earlier))
        apart = np.abs(later[:count] - earlier[:count])
        apart = apart[~np.isnan(apart)]
        if len(apart) >= THRESHOLDS.few_steps:
            apart_ns[shift] = float(apart.mean())
        if not apart_ns.get(0, 0.0) >= max(least_ns, 1.0):
            return 0
    best = min(apart_ns, key=apart_ns.__getitem__)
    return best if apart_ns[best] <= THRESHOLDS.minor_share * apart_ns[0] else 0
