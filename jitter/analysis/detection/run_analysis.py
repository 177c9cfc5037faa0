"""The analysis of a run: its passes in their order, and what scenarios would save."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from jitter.analysis.detection.findings import Finding, find_slow_steps, join_late_ranks
from jitter.analysis.detection.measured_run import MeasuredRun
from jitter.analysis.detection.passes import RunReplay, StepExecutor, ThreadedStepExecutor
from jitter.analysis.detection.pipeline_stages import find_unequal_stages
from jitter.analysis.detection.run_account import RunAccount
from jitter.analysis.detection.run_outliers import RunOutliers
from jitter.analysis.detection.run_transfers import RunTransfers
from jitter.analysis.detection.slow_communication import attribute_to_ranks
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.metrics.bandwidth_baseline import Baseline
from jitter.analysis.replay.run_steps import RunSteps
from jitter.analysis.replay.what_if import Scenario, together
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats
from jitter.core.step_key import StepKey
from jitter.lake.records import ON_REQUEST


class RunAnalysis:
    """The passes over a run's steps, in their order: each rests on those before it, and runs when it is first asked."""

    def __init__(
        self,
        lake: RunReader,
        executor: Callable[[RunSteps], StepExecutor] = ThreadedStepExecutor,
        benchmark: Baseline | None = None,
    ) -> None:
        """Analyze the steps of `lake`.

        Args:
            lake: reads the steps.
            executor: makes the object that goes through the steps.
            benchmark: bandwidths that the job's network reaches, if they were measured.

        """
        self._benchmark = benchmark
        self.lake = lake
        self.steps = RunSteps(lake)
        self.run = self.steps.run
        self._make_executor = executor
        self._executor = executor(self.steps)

    @cached_property
    def keys(self) -> list[StepKey]:
        """The steps, in order."""
        return list(self.run.keys)

    @cached_property
    def measured(self) -> MeasuredRun:
        """The first pass over the steps: times, arrivals, deviations, data quality."""
        of_steps = self._executor.measure()
        self.steps.baselines.update((number, step.baseline) for number, step in enumerate(of_steps))
        return MeasuredRun(self.steps, of_steps)

    @cached_property
    def transfers(self) -> RunTransfers:
        """The times of transfers, and their baselines."""
        return RunTransfers(self.measured, self._benchmark)

    @cached_property
    def outliers(self) -> RunOutliers:
        """The ranks that stand out."""
        return RunOutliers(self.measured)

    @cached_property
    def candidates(self) -> list[Finding]:
        """Ranks, groups of ranks and collectives that may cost time: the replay prices them."""
        outliers, random = self.outliers.above_noise
        outliers = [
            outlier
            for outlier in outliers
            if outlier not in self._lone_idle_moments and not (outlier.persistent and self._follows(outlier))
        ]
        halves = [finding for finding in self.outliers.clusters if finding.known_gain_ns is None]
        joined = {(rank, finding.part) for finding in halves for rank in finding.ranks}
        slow = self.transfers.find_slow()
        if self.run.matching.unpaired:
            # what seems a slow transfer may be a wait for a late rank, through exchanges that name no partners
            late = {step for outlier in outliers for step in outlier.steps}
            # nor is known what the ranks ran before the first of consecutive steps, as when a pipeline fills
            late.update(np.flatnonzero(np.isnan(self.measured.step_ns)).tolist())
            slow = [collectives for collectives in slow if not set(collectives.steps) <= late]
            if self.run.following_hosts:  # which step of another rank is late through these is not known
                slow = [collectives for collectives in slow if not self._has_exchanges(collectives)]
        unrecorded = self.transfers.find_always_slow(incomplete=True)
        links = [self.transfers.of_slowest_rank(link, self.transfers.baseline) for link in attribute_to_ranks(slow)]
        if unrecorded is not None and not any(
            set(link.meetings) >= set(unrecorded.meetings) and set(link.steps) >= set(unrecorded.steps)
            for link in links
        ):
            links.append(unrecorded)
        return [
            *join_late_ranks([outlier for outlier in outliers if (outlier.rank, outlier.part) not in joined]),
            *random,
            *halves,
            *links,
        ]

    def _has_exchanges(self, collectives: Finding) -> bool:
        """Whether any of these collectives is a send or a receive."""
        matched = self.run.matching
        members = [member for number, _ in collectives.meetings for member in matched.collectives[number].members]
        places = [(matched.blocks[member.block].team, member.place) for member in members]
        return any(self.run.programs[team].operations[place].is_exchange for team, place in places)

    @cached_property
    def _candidate_scenarios(self) -> list[Scenario]:
        """The candidates' repairs, each alone and all together."""
        alone = [candidate.repair for candidate in self.candidates]
        return alone if len(alone) < 2 else [*alone, together(alone)]

    @cached_property
    def _replay(self) -> RunReplay:
        """The second pass over the steps, which prices the candidates and keeps the account."""
        return self._executor.replay(self.transfers.baseline, self._candidate_scenarios, self.measured.noise)

    @cached_property
    def account(self) -> RunAccount:
        """The account of lost time."""
        return RunAccount(self.measured, self._replay.accounts)

    @cached_property
    def _prices(self) -> "_Prices":
        """What scenarios save over the run."""
        known = zip(self._candidate_scenarios, self.measured.total(self._replay.gained_ns).tolist(), strict=True)
        return _Prices(self, self._executor, list(known))

    @cached_property
    def _bound_prices(self) -> "_Prices | None":
        model = self.run.bound
        return None if model is None else _Prices(self, self._make_executor(self.steps.with_model(model)), [])

    def gains(self, scenarios: Sequence[Scenario]) -> list[float]:
        """Return what each scenario would save over the run, ns; scenarios not replayed before share one pass."""
        return self._prices.of(scenarios)

    def bound_gains(self, scenarios: Sequence[Scenario]) -> list[float]:
        """Return what each scenario would save with the other waits of hosts that the recording allows, ns.

        Where it leaves no choice, what `gains` returns.
        """
        return (self._bound_prices or self._prices).of(scenarios)

    def gain_without_transfers(self, groups: Bools) -> float:
        """Return what the run would gain, ns, if these collectives ended with the last recorded arrival.

        `groups` is a mask, (groups of all collectives,).
        """
        meetings = self.run.collective_arrays.meetings(groups)
        ended = Scenario(transfers=dict.fromkeys(meetings, frozenset(range(len(self.keys)))))
        usual = self.transfers.of_sizes(
            lambda step_numbers: np.where(groups, 0.0, self.transfers.baseline[step_numbers[0]])
        )
        return self._gain(usual, ended)

    def _gain(self, usual: Sequence[Floats], scenario: Scenario) -> float:
        """Return what a scenario saves over the run with these usual transfers of each step, ns."""
        return float(self.measured.total(self._executor.replay(usual, [scenario]).gained_ns)[0])

    @cached_property
    def slow_network(self) -> Finding | None:
        """The collectives that reach less than a benchmark's bandwidth in every step; None if none do."""
        slow = self.transfers.find_always_slow(incomplete=False)
        return slow and replace(slow, known_gain_ns=self._gain(self.transfers.at_best, slow.repair))

    @cached_property
    def job_findings(self) -> list[Finding]:
        """Clusters of ranks and steps that are slow for all, whose saving is no part of the loss."""
        slow_steps = [finding for finding in self._slow_steps if finding is not self.warm_up]
        clusters = [finding for finding in self.outliers.clusters if finding.known_gain_ns is not None]
        stages = find_unequal_stages(
            self.run,
            self.measured.deviations,
            [step.baseline for step in self.measured.of_steps],
            self.lake.kernel_counts,
            self.gains,
            self.outliers.above_noise.of_ranks,
            float(self.measured.assumed_step_ns.sum()),
        )
        return clusters + slow_steps + stages

    @property
    def _slow_steps(self) -> list[Finding]:
        return [
            finding
            for finding in self._steps_slow_for_all
            if not self._may_be_idle(finding) and not all(map(self._follows, finding.members))
        ]

    def _follows(self, late: Outlier) -> bool:
        """Whether the host of a late rank then waits for other ranks: it may be these that are late."""
        return (late.team, late.part) in self.run.following_hosts

    def _may_be_idle(self, late: Finding | Outlier) -> bool:
        """Whether a serving engine may have had no requests before the steps that all recorded ranks start late."""
        return late.part is TimePart.START and all(self.steps.kinds[number] in ON_REQUEST for number in late.steps)

    @cached_property
    def _lone_idle_moments(self) -> list[Outlier]:
        """Those of the only recorded rank."""
        outliers = self.outliers.above_noise.of_ranks if len(self.run.team_of) == 1 else []
        return list(filter(self._may_be_idle, outliers))

    @property
    def steps_after_idle(self) -> list[int]:
        """The numbers of the steps before which a serving engine may have had no requests."""
        of_all = filter(self._may_be_idle, self._steps_slow_for_all)
        steps = [*(late.steps for late in of_all), *(late.steps for late in self._lone_idle_moments)]
        return sorted(set().union(*steps))

    @cached_property
    def _steps_slow_for_all(self) -> list[Finding]:
        of_sizes = (
            find_slow_steps(
                [team.of_steps(numbers) for team in self.measured.deviations],
                self.measured.step_ns[numbers],
                self.account.loss_ns[numbers],
                numbers,
            )
            for numbers in self.steps.of_sizes
        )
        return [finding for finding in of_sizes if finding is not None]

    @cached_property
    def warm_up(self) -> Finding | None:
        """The slow steps, if all ranks are slow in them and they are the first ones of known time."""
        timed = np.flatnonzero(~np.isnan(self.measured.step_ns))
        return next(
            (
                finding
                for finding in self._slow_steps
                if finding.steps == tuple(timed[: len(finding.steps)].tolist())
                and len(finding.ranks) == len(self.run.team_of)
            ),
            None,
        )

    @property
    def has_unrecorded_ranks(self) -> bool:
        """Whether the job has ranks that the lake lacks: process groups name them, or rank numbers are missing."""
        ranks = self.run.team_of
        return max(self.run.matching.named, max(ranks, default=-1) + 1) > len(ranks)

    @property
    def groups_with_unrecorded(self) -> Bools:
        """(groups of all collectives,) which may have members that were not recorded."""
        groups = self.run.collective_arrays.incomplete
        # a collective whose group was not recorded may span all ranks of the job
        return np.ones_like(groups) if self.run.matching.lacks_groups else groups

    def waits_for_unrecorded_ns(self, steps: Sequence[int]) -> float:
        """Return how long the ends of some steps may have waited for ranks that were not recorded, ns.

        The time in collectives after the last recorded rank arrives.
        """
        if not self.has_unrecorded_ranks:
            return 0.0
        waited_ns = 0.0
        for number in steps:
            account = self.account.of_steps[number]
            here = self.groups_with_unrecorded[account.groups]
            took_ns = self.transfers.took[number][account.groups[here]]
            waited_ns += float(np.nansum(took_ns * account.passed[here]))
        return waited_ns

    @property
    def is_unexplained(self) -> bool:
        """Whether waits of hosts that no call records, and that no end explains, make every price doubtful."""
        return self.run.unexplained_fraction > THRESHOLDS.tolerance_share

    @cached_property
    def unverified_transfer_share(self) -> float:
        """The part of the steps' time that its end owes to transfers and that no benchmark gives."""
        whole_ns = float(self.measured.assumed_step_ns.sum())
        unverified_ns = sum(
            self.transfers.unverified_ns(number, account.groups, account.passed)
            for number, account in enumerate(self.account.of_steps)
        )
        return unverified_ns / whole_ns if whole_ns > 0 else 0.0


@dataclass(frozen=True)
class _Prices:
    """What scenarios save over the run, each replayed once."""

    analysis: RunAnalysis
    executor: StepExecutor
    known: list[tuple[Scenario, float]]

    def of(self, scenarios: Sequence[Scenario]) -> list[float]:
        """Return what each scenario saves, ns; new ones share one pass."""
        new: list[Scenario] = []
        for scenario in scenarios:
            if scenario.repairs and scenario not in new and self._of(scenario) is None:
                new.append(scenario)
        if new:
            gone = self.executor.replay(self.analysis.transfers.baseline, new)
            self.known.extend(zip(new, self.analysis.measured.total(gone.gained_ns).tolist(), strict=True))
        return [self._of(scenario) or 0.0 for scenario in scenarios]

    def _of(self, scenario: Scenario) -> float | None:
        return next((gain for priced, gain in self.known if priced == scenario), None)
