"""The account of a run: what each step loses, and to which ranks and transfers it is charged."""

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from jitter.analysis.account.charges import Charges, sum_charges
from jitter.analysis.account.step_account import StepAccount
from jitter.analysis.detection.measured_run import MeasuredRun
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.replay.what_if import Scenario
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Floats


class RunAccount:
    """The accounts of a run's steps, and sums of them."""

    def __init__(self, measured: MeasuredRun, of_steps: Sequence[StepAccount]) -> None:
        self._measured, self.of_steps = measured, of_steps

    @cached_property
    def loss_ns(self) -> Floats:
        """(steps,) how much shorter each step would be with every own time and transfer at the baseline."""
        return np.array([account.loss_ns for account in self.of_steps])

    @cached_property
    def charges(self) -> Charges:
        """What is charged to ranks and transfers, for steps of known time."""
        timed = np.flatnonzero(~np.isnan(self._measured.step_ns)).tolist()
        counted = [self.of_steps[number].losses for number in timed]
        return sum_charges(counted, sorted(self._measured.steps.run.team_of), len(self.of_steps))

    def loss_of(self, scenario: Scenario) -> float:
        """Return the part of the loss, ns, that is charged to what the scenario repairs."""
        in_team = self._measured.steps.run.team_of
        loss_ns = sum(
            float(self.charges.own_ns[part, sorted(steps), self.charges.column(rank)].sum())
            for (rank, part), steps in scenario.parts.items()
            if rank in in_team
        )
        for rank, (pace, steps) in scenario.paces.items():
            if rank in in_team and (rank, int(TimePart.GPU)) not in scenario.parts:
                loss_ns += self._loss_of_pace(rank, pace, sorted(steps))
        for group, steps in scenario.transfers.items():
            loss_ns += sum(ns for number, ns in self.charges.transfers_ns.get(group, {}).items() if number in steps)
        return loss_ns

    def _loss_of_pace(self, rank: int, pace: float, steps: Sequence[int]) -> float:
        """Return what is charged to a rank's GPU, ns, as far as its pace, and not more work, is above the others'."""
        charged_ns = self.charges.own_ns[TimePart.GPU, steps, self.charges.column(rank)]
        team = self._measured.deviations_of(self._measured.steps.run.team_of[rank])
        above_ns = np.nan_to_num(team.total_ns[TimePart.GPU, steps, np.searchsorted(team.ranks, rank)])
        by_pace_ns = (1 - 1 / pace) * (team.usual_ns[TimePart.GPU, steps, 0] + above_ns)
        return float((charged_ns * np.fmin(by_pace_ns / np.maximum(above_ns, 1.0), 1.0)).sum())

    def loss_from_noise(self, steps: Iterable[int]) -> float:
        """Return the loss, ns, that operations which vary by themselves cause in some steps of the run."""
        return sum(self.of_steps[number].noise_ns for number in steps)

    @property
    def prolonged_ns(self) -> float:
        """How much longer than recorded the run would take with every own time at the baseline; below 0: shorter.

        The least, with what the first of consecutive steps lost, which the step after it may give back, or without.
        """
        return -max(float(np.nansum(self.loss_ns)), float(self._measured.total(self.loss_ns)))

    @cached_property
    def contradicts_recording(self) -> bool:
        """Whether the run with every own time at the baseline would take longer than recorded.

        Then operations waited for other ones than the inferred dependencies say: no loss and no saving holds.
        """
        whole_ns = float(self._measured.total(self._measured.assumed_step_ns))
        return self.prolonged_ns > THRESHOLDS.min_cost_share * whole_ns
