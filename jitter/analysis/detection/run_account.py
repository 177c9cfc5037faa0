"""The account of a run: what each step loses, and what is charged to each rank, class and step, and to transfers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from jitter.analysis.account.losses import CLASSES_OF_PART, RANK_CLASSES, LossClass
from jitter.analysis.account.step_account import StepAccounts
from jitter.analysis.detection.measured_run import MeasuredRun
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.replay.what_if import Scenario
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class Charges:
    """What the run loses, by whose own time or transfer it is, whichever step ends later for it; ns."""

    ranks: Sequence[int]
    """Ascending."""
    ranks_ns: Floats
    """(steps, ranks, classes)."""
    transfers_ns: Mapping[int, Mapping[int, float]]
    """By group, of all groups of all collectives, then by step."""

    def column(self, rank: int) -> int:
        """Return where a rank stands."""
        return int(np.searchsorted(self.ranks, rank))

    def columns(self, ranks: Sequence[int]) -> list[int]:
        """Return where some ranks stand."""
        return [self.column(rank) for rank in ranks]

    @cached_property
    def own_ns(self) -> Floats:
        """(own parts, steps, ranks) what is charged to the parts of own time."""
        return np.array([self.ranks_ns[:, :, CLASSES_OF_PART[part]].sum(axis=2) for part in OWN_PARTS])

    def without(self, steps: Collection[int]) -> "Charges":
        """Return the charges with none in these steps, numbered in the run."""
        ranks_ns = self.ranks_ns.copy()
        ranks_ns[sorted(steps)] = 0.0
        transfers_ns = {
            group: {number: ns for number, ns in of_steps.items() if number not in steps}
            for group, of_steps in self.transfers_ns.items()
        }
        return Charges(self.ranks, ranks_ns, transfers_ns)

    def totals_ns(self) -> Floats:
        """Return (ranks, own parts) the sums over the run; 0 for a rank that shortens it."""
        totals_ns: Floats = np.maximum(self.own_ns.sum(axis=1), 0.0).T
        return totals_ns

    def all_ns(self) -> float:
        """Return what is charged to ranks, how early or late they came to a step included, and to communication."""
        transfers_ns = sum(sum(of_group.values()) for of_group in self.transfers_ns.values())
        ranks_ns = self.ranks_ns[:, :, RANK_CLASSES].sum(axis=(0, 2))
        return float(np.maximum(ranks_ns, 0.0).sum()) + max(transfers_ns, 0.0)

    def count_last(self, columns: Sequence[int] | Ints) -> tuple[int, int]:
        """Return in how many steps a rank of these columns has the largest share, and of how many."""
        of_steps = self.ranks_ns[:, :, RANK_CLASSES].sum(axis=2)
        of_steps = of_steps[of_steps.max(axis=1) > 0]
        return int(np.isin(np.argmax(of_steps, axis=1), columns).sum()), len(of_steps)


def sum_charges(accounts: StepAccounts, counted: Bools, ranks: Sequence[int]) -> Charges:
    """Add up the losses of the steps that are `counted`, (steps,); `ranks` must ascend."""
    ranks_ns = np.zeros((len(accounts), len(ranks), len(LossClass)))
    transfers_ns: dict[int, dict[int, float]] = {}
    step = accounts.step_of_row
    is_counted = (step >= 0) & counted[step]
    own_rows = np.flatnonzero(is_counted & (accounts.rows.rank >= 0))
    rows = accounts.rows.where(own_rows)
    np.add.at(ranks_ns, (rows.origin, np.searchsorted(ranks, rows.rank), rows.loss_class), rows.loss_ns)
    rows = accounts.rows.where(is_counted & (accounts.rows.loss_class == LossClass.TRANSFER))
    for group, number, ns in zip(rows.group.tolist(), rows.origin.tolist(), rows.loss_ns.tolist(), strict=True):
        of_group = transfers_ns.setdefault(group, {})
        of_group[number] = of_group.get(number, 0.0) + ns
    return Charges(ranks, ranks_ns, transfers_ns)


class RunAccount:
    """The accounts of a run's steps, and sums of them."""

    def __init__(self, measured: MeasuredRun, of_steps: StepAccounts) -> None:
        self._measured, self.of_steps = measured, of_steps

    @cached_property
    def loss_ns(self) -> Floats:
        """(steps,) how much shorter each step would be with every own time and transfer at the baseline."""
        return self.of_steps.loss_ns

    @cached_property
    def charges(self) -> Charges:
        """What is charged to ranks and transfers, for steps of known time."""
        return self._charges_of(~np.isnan(self._measured.step_ns))

    @cached_property
    def uncounted(self) -> Charges:
        """The same for steps of unknown time, which the loss of the run lacks."""
        return self._charges_of(np.isnan(self._measured.step_ns))

    def _charges_of(self, steps: Bools) -> Charges:
        return sum_charges(self.of_steps, steps, sorted(self._measured.steps.run.team_of))

    def loss_of(self, scenario: Scenario) -> float:
        """Return the part of the loss, ns, that is charged to what the scenario repairs."""
        in_team = self._measured.steps.run.team_of
        loss_ns = sum(
            float(self.charges.own_ns[part, sorted(steps), self.charges.column(rank)].sum())
            for (rank, part), steps in scenario.parts.items()
            if rank in in_team
        )
        for rank, (pace, steps) in scenario.paces.items():
            if rank in in_team:  # all of its GPU's time counts where that is repaired too
                other_steps = steps - scenario.parts.get((rank, int(TimePart.GPU)), frozenset())
                loss_ns += self._loss_of_pace(rank, pace, sorted(other_steps))
        for group, steps in scenario.transfers.items():
            loss_ns += sum(ns for number, ns in self.charges.transfers_ns.get(group, {}).items() if number in steps)
        return loss_ns

    def _loss_of_pace(self, rank: int, pace: float, steps: Sequence[int]) -> float:
        """Return what is charged to a rank's GPU in steps, ns: in each at most what its work takes longer by pace.

        Where it is unknown how long its work takes, it is taken to be the usual rank's.
        """
        run, seen = self._measured.steps.run, self._measured.statistics.deviations
        usual_ns = np.nan_to_num(seen.usual_ns[steps, TimePart.GPU, run.team_of[rank]])
        own_ns = usual_ns + np.nan_to_num(seen.total_ns[steps, TimePart.GPU, run.number_of[rank]])
        by_pace_ns = (1 - 1 / pace) * own_ns
        charged_ns = self.charges.own_ns[TimePart.GPU, steps, self.charges.column(rank)]
        return float(np.fmin(charged_ns.clip(0), by_pace_ns).sum())

    def loss_from_noise(self, steps: Iterable[int]) -> float:
        """Return the loss, ns, that operations which vary by themselves cause in some steps of the run."""
        return float(sum(self.of_steps.noise_ns[list(steps)].tolist()))

    @property
    def prolonged_ns(self) -> float:
        """How much longer than recorded the run would take with every own time at the baseline; below 0: shorter.

        The least, with what the first of consecutive steps lost, which the step after it may give back, or without.
        """
        return -max(float(np.nansum(self.loss_ns)), float(self._measured.total(self.loss_ns)))

    @cached_property
    def contradicts_recording(self) -> bool:
        """Whether the run with every own time at the baseline would take longer, or a rank numbers steps otherwise.

        Then operations waited for other ones than the inferred dependencies say: no loss and no saving holds.
        """
        whole_ns = float(self._measured.total(self._measured.assumed_step_ns))
        is_longer = self.prolonged_ns > THRESHOLDS.min_cost_share * whole_ns
        return is_longer or bool(self._measured.shifted_numbers)
