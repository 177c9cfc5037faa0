"""How long the transfers of a run's collectives took, and how long they should: by like ones, or by a benchmark."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from jitter.analysis.detection.findings import Finding
from jitter.analysis.detection.measured_run import MeasuredRun
from jitter.analysis.detection.slow_communication import (
    AlikeTransfers,
    find_slow_collectives,
    number_alike,
    slow_communication,
    slow_in_every_step,
    transfers_by_benchmark,
)
from jitter.analysis.metrics.bandwidth_baseline import Baseline
from jitter.analysis.replay.what_if import baseline_transfers
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats, Ints


class RunTransfers:
    """By step (groups of all collectives,) times from the last arrival to the end, ns: recorded, and baselines."""

    def __init__(self, measured: MeasuredRun, benchmark: Baseline | None) -> None:
        """`benchmark` are bandwidths that the job's network reaches, if they were measured."""
        self.measured, self._benchmark = measured, benchmark
        self._lake, self.run = measured.steps.lake, measured.steps.run
        self.took: list[Floats] = [step.transfers.took for step in measured.of_steps]
        """Those recorded."""

    def of_like_steps(self, compute: Callable[[Ints], Floats]) -> list[Floats]:
        """Return for each step what `compute` gives for the numbers of all steps that should take as long."""
        value_of_step = {
            int(number): value
            for numbers in self.measured.steps.alike.by_size
            for value in [compute(numbers)]
            for number in numbers
        }
        return [value_of_step[number] for number in range(len(self.took))]

    @cached_property
    def alike(self) -> AlikeTransfers:
        """Which transfers should take as long."""
        keys = self.run.keys
        return number_alike(self._lake, self.run, keys[len(keys) // 2], self.took)

    @cached_property
    def _medians(self) -> list[Floats]:
        """The median over like steps.

        Where too few of them have all ranks, the lower one of these and of steps that a few ranks lack: others may have
        waited for these.
        """
        of_steps, alike = [step.transfers for step in self.measured.of_steps], self.alike.numbers
        mostly = [np.where(transfers.mostly_complete, transfers.took, np.nan) for transfers in of_steps]
        whole = [np.where(transfers.complete, transfers.took, np.nan) for transfers in of_steps]

        def usual(numbers: Ints) -> Floats:
            known = np.sum([~np.isnan(whole[number]) for number in numbers], axis=0)
            is_known = np.bincount(alike, known)[alike] >= THRESHOLDS.min_repeats
            complete, most = (baseline_transfers(alike, [of[number] for number in numbers]) for of in (whole, mostly))
            return np.where(is_known, complete, np.fmin(complete, most))

        return self.of_like_steps(usual)

    @cached_property
    def expected(self) -> list[Floats]:
        """The time that a benchmark's bandwidth gives; NaN: unknown."""
        usual, keys = self._medians, self.run.keys
        if not self._benchmark and not self.run.collective_arrays.incomplete.any():
            return self.of_like_steps(lambda numbers: np.full(len(usual[numbers[0]]), np.nan))
        of_run = self._lake, self.run, self._benchmark
        return self.of_like_steps(
            lambda numbers: transfers_by_benchmark(*of_run, usual[numbers[0]], keys[numbers[len(numbers) // 2]])
        )

    @cached_property
    def baseline(self) -> list[Floats]:
        """The baseline: the median over like steps.

        Of groups with unrecorded members that are slow in every one of them, the time of the fastest alike; of
        collectives that ranks of the lake lack in every one, the median of what the other ranks recorded.
        """
        return self.of_like_steps(self._baseline)

    def _baseline(self, numbers: Ints) -> Floats:
        seen, expected = ([of[number] for number in numbers] for of in (self.took, self.expected))
        slow = slow_in_every_step(seen, expected) & self.run.collective_arrays.incomplete
        usual = np.where(slow, expected[0], self._medians[numbers[0]])
        recorded = baseline_transfers(self.alike.numbers, seen)
        return np.where(np.isnan(usual), recorded, usual)

    @cached_property
    def _slow_in_every_step(self) -> Bools:
        return slow_in_every_step(self.took, self.expected)

    def find_slow(self) -> list[Finding]:
        """Return the collectives that are slow at times, or in some groups."""
        return find_slow_collectives(
            self.run.matching,
            self.took,
            self._medians,
            [step.transfers.complete for step in self.measured.of_steps],
            self.measured.assumed_step_ns,
            self.measured.steps.alike.by_program,
        )

    def find_always_slow(self, *, incomplete: bool) -> Finding | None:
        """Return the collectives that reach less than a benchmark's bandwidth in every step; None if none do.

        Those with unrecorded members if `incomplete`, else the other ones.
        """
        chosen = self._slow_in_every_step & (self.run.collective_arrays.incomplete == incomplete)
        slow = slow_communication(self.run, self.took, self.expected, chosen)
        return slow and self.of_slowest_rank(slow, self.expected)

    def of_slowest_rank(self, slow: Finding, usual: Sequence[Floats]) -> Finding:
        """Return slow collectives with their excess above the `usual` times on the rank that they keep longest."""
        arrays, groups = self.run.collective_arrays, self._groups(slow.meetings)
        excess_ns = np.zeros(int(arrays.first_group[-1]))
        excess_ns[groups] = np.nansum([(self.took[at] - usual[at])[groups] for at in slow.steps], axis=0)
        slowest = int(np.bincount(arrays.rank, excess_ns[arrays.group]).argmax())
        attended = np.zeros(len(excess_ns), np.bool_)
        attended[arrays.group[arrays.rank == slowest]] = True
        of_slowest = tuple(meeting for meeting, group in zip(slow.meetings, groups, strict=True) if attended[group])
        return replace(slow, excess_ns=float(excess_ns[groups][attended[groups]].sum()), of_slowest=of_slowest)

    @property
    def at_best(self) -> list[Floats]:
        """The baseline, and what a benchmark gives for collectives that reach less in every step."""
        slow = self._slow_in_every_step & ~self.run.collective_arrays.incomplete
        return [np.where(slow, expected, usual) for expected, usual in zip(self.expected, self.baseline, strict=True)]

    def excess_ns(self, slow: Finding, number: int) -> float:
        """Return how much longer than their baseline the slowest rank's took in the run's `number`th step."""
        return float(np.nansum(self.took[number][self._groups(slow.of_slowest)])) - self.usual_ns(slow, number)

    def usual_ns(self, slow: Finding, number: int) -> float:
        """Return what the slowest rank's should take in the run's `number`th step, all together, ns."""
        of_run = self.baseline if slow.known_gain_ns is None else self.expected
        return float(np.nansum(of_run[number][self._groups(slow.of_slowest)]))

    def has_assumed_sizes(self, slow: Finding) -> bool:
        """Return whether slow collectives are compared with others whose sizes are taken to be equal."""
        return bool(self.alike.have_assumed_sizes[self._groups(slow.meetings)].any())

    def lacks_ranks(self, slow: Finding) -> bool:
        """Return whether half of the excess is in steps that some of the collectives' ranks in the lake lack."""
        groups, lacking, whole = self._groups(slow.meetings), 0.0, 0.0
        partial = [self.measured.of_steps[number].transfers.partial for number in slow.steps]
        if not any(of_step.any() for of_step in partial):
            return False
        for number, of_step in zip(slow.steps, partial, strict=True):
            excess_ns = np.nan_to_num(self.took[number][groups] - self.baseline[number][groups])
            lacking, whole = lacking + float(excess_ns[of_step[groups]].sum()), whole + float(excess_ns.sum())
        return lacking > 0 and lacking >= THRESHOLDS.main_share * whole

    def _groups(self, meetings: Sequence[tuple[int, int]]) -> Ints:
        """Return the numbers of these, of all groups of all collectives."""
        first = self.run.collective_arrays.first_group
        return np.array([first[collective] + group for collective, group in meetings], np.int64)
