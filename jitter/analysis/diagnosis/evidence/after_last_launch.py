"""Host time between the last launch of a step and its end: optimizer, logging, a pause before memory is freed.

The account charges what precedes the next step's first launch to that step's start. The end of the step's marker
separates it from late starts.
"""

from functools import cached_property
from typing import Final

import numpy as np

from jitter.analysis.account.losses import CLASSES_OF_PART, LossClass, Losses, join_losses, join_some
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Ints, distinct_values
from jitter.core.numeric.stats import middle_value
from jitter.core.step_key import StepKey

_LIMITS: Final = THRESHOLDS.evidence


class TimeAfterLaunches:
    """The shares of each step's loss, with late starts divided at the end of the step before."""

    def __init__(self, analysis: RunAnalysis) -> None:
        """Take an analysis; nothing is computed yet."""
        self._analysis = analysis
        self._divided: dict[int, Losses] = {}
        self._shares: dict[tuple[int, TimePart, tuple[int, ...]], float] = {}

    def losses(self, number: int) -> Losses:
        """Return the shares of the loss of the run's `number`th step."""
        if number not in self._late_steps:
            return self._analysis.account.of_steps[number].losses
        if number not in self._divided:
            self._divided[number] = self._divide(number, self._analysis.account.of_steps[number].losses)
        return self._divided[number]

    def share(self, rank: int, part: TimePart, steps: tuple[int, ...]) -> float:
        """Return the share of what a rank's part costs in these steps that lies after the last launch of a step."""
        if (asked := (rank, part, steps)) not in self._shares:  # by each rule about it
            self._shares[asked] = self._share(*asked)
        return self._shares[asked]

    def _share(self, rank: int, part: TimePart, steps: tuple[int, ...]) -> float:
        classes, whole, after = {*CLASSES_OF_PART[part], LossClass.AFTER}, 0.0, 0.0
        counted = len(self._analysis.account.of_steps)
        # a step may end late for what a rank lost in one before it
        reach = {later for number in steps for later in range(number, number + THRESHOLDS.most_in_flight + 1)}
        tables = [self.losses(number) for number in sorted(reach.intersection(range(counted)))]
        for together in join_some(tables):
            shares = together.of(classes, rank)
            shares = shares.where(np.isin(shares.origin, steps))
            is_late_start = shares.place <= self._analysis.run.job.first_kernel[shares.team]
            shares = shares.where(is_late_start if part == TimePart.START else ~is_late_start)
            whole += float(shares.loss_ns.sum())
            after += float(shares.of([LossClass.AFTER]).loss_ns.sum())
        return after / whole if whole > 0 else 0.0

    @cached_property
    def _late_steps(self) -> frozenset[int]:
        accounts = self._analysis.account.of_steps
        step, of_start = accounts.step_of_row, accounts.rows.loss_class == LossClass.START
        chosen = np.flatnonzero((step >= 0) & of_start)
        starts = np.bincount(step[chosen], np.maximum(accounts.rows.loss_ns[chosen], 0.0), len(accounts))
        least = THRESHOLDS.min_gap_share * self._analysis.measured.usual_step_ns
        late = [at for at in np.argsort(starts)[::-1].tolist() if at and starts[at] > least]
        return frozenset(late[: _LIMITS.max_after_steps])

    def _divide(self, number: int, losses: Losses) -> Losses:
        """Divide the late starts of a step at the ends of the markers of the step before."""
        is_start = (losses.loss_class == LossClass.START) & (losses.origin == number)
        after = np.zeros(len(losses))
        for team in distinct_values(losses.team[is_start]).tolist():
            excess = self._excess_after(number, team)
            of_team = is_start & (losses.team == team)
            for rank in distinct_values(losses.rank[of_team]).tolist():
                of_rank = of_team & (losses.rank == rank)
                charged = float(losses.loss_ns[of_rank].sum())
                if rank in excess and charged > 0:
                    after[of_rank] = min(max(excess[rank], 0.0) / charged, 1.0)
        moved = losses.where(np.flatnonzero(after))
        moved.loss_class[:], moved.excess_ns[:] = LossClass.AFTER, np.nan
        moved.loss_ns[:] *= after[after > 0]
        divided = join_losses([losses, moved])
        divided.loss_ns[: len(losses)] *= 1 - after
        return divided

    def _excess_after(self, number: int, team: int) -> dict[int, float]:
        """Return each rank's time from its last call to the end of the step before, less the team's median."""
        run, before = self._analysis.run, self._analysis.keys[number - 1]
        key = self._analysis.keys[number]
        if before.epoch != key.epoch or before.step != key.step - 1:
            return {}
        step = run.team_times(before, team)
        origins = self._analysis.lake.origins(before)
        ranks: Ints = step.ranks
        ends = np.array([self._end(before, rank) - origins[rank] for rank in ranks.tolist()])
        after = np.maximum(ends - np.fmax.reduce(step.back, axis=0), 0.0)
        is_known = ~np.isnan(after)
        if not is_known.any():
            return {}
        usual = middle_value(after[is_known])
        return {rank: ns - usual for rank, ns in zip(ranks[is_known].tolist(), after[is_known].tolist(), strict=True)}

    def _end(self, key: StepKey, rank: int) -> float:
        recorded = self._analysis.lake.records[key][rank]
        end = recorded.step.end_ns
        return np.nan if end is None or recorded.record.has_guessed_steps else float(end)
