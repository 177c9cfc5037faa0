"""The analysis of a run: its passes in their order, and what scenarios would save."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from jitter.analysis.detection.findings import Finding, join_late_ranks
from jitter.analysis.detection.measured_run import MeasuredRun
from jitter.analysis.detection.passes import RunReplay, StepExecutor, ThreadedStepExecutor
from jitter.analysis.detection.pipeline_stages import find_unequal_stages
from jitter.analysis.detection.run_account import RunAccount
from jitter.analysis.detection.run_outliers import RunOutliers, SlowSteps, find_slow_steps
from jitter.analysis.detection.run_transfers import RunTransfers, attribute_to_ranks
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.metrics.bandwidth_baseline import Baseline
from jitter.analysis.replay.run_steps import RunSteps
from jitter.analysis.replay.what_if import Scenario, together
from jitter.core.numeric.arrays import Floats
from jitter.core.step_key import StepKey


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
        return find_candidates(self.outliers, self.transfers)

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
    def slow_steps(self) -> SlowSteps:
        """The steps in which all ranks are slow."""
        return find_slow_steps(self.measured, self.account.loss_ns, self.outliers)

    @cached_property
    def slow_network(self) -> Finding | None:
        """The collectives that reach less than a benchmark's bandwidth in every step; None if none do."""
        slow = self.transfers.find_always_slow(incomplete=False)
        return slow and replace(slow, known_gain_ns=self.gain(self.transfers.at_best, slow.repair))

    @cached_property
    def job_findings(self) -> list[Finding]:
        """Clusters of ranks and steps that are slow for all, whose saving is no part of the loss."""
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
        return clusters + self.slow_steps.findings + stages

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

    def gain(self, usual: Sequence[Floats], scenario: Scenario) -> float:
        """Return what a scenario saves over the run with these usual transfers of each step, ns."""
        return float(self.measured.total(self._executor.replay(usual, [scenario]).gained_ns)[0])


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


def find_candidates(outliers: RunOutliers, transfers: RunTransfers) -> list[Finding]:
    """Return the candidates: late ranks, random pauses, halves of the ranks, and links."""
    run = transfers.run
    above_noise = [
        outlier
        for outlier in outliers.above_noise.of_ranks
        if outlier not in outliers.idle_moments and not (outlier.persistent and run.follows(outlier.team, outlier.part))
    ]
    halves = [finding for finding in outliers.clusters if finding.known_gain_ns is None]
    joined = {(rank, finding.part) for finding in halves for rank in finding.ranks}
    return [
        *join_late_ranks([outlier for outlier in above_noise if (outlier.rank, outlier.part) not in joined]),
        *outliers.above_noise.random,
        *halves,
        *_find_links(transfers, above_noise),
    ]


def _find_links(transfers: RunTransfers, outliers: list[Outlier]) -> list[Finding]:
    """Return slow collectives by the rank whose link explains them, and slow ones with unrecorded members."""
    run, slow = transfers.run, transfers.find_slow()
    if run.matching.unpaired:
        # what seems a slow transfer may be a wait for a late rank, through exchanges that name no partners
        late = {step for outlier in outliers for step in outlier.steps}
        # nor is known what the ranks ran before the first of consecutive steps, as when a pipeline fills
        late.update(np.flatnonzero(np.isnan(transfers.measured.step_ns)).tolist())
        slow = [collectives for collectives in slow if not set(collectives.steps) <= late]
        if run.following_hosts:  # which step of another rank is late through these is not known
            slow = [collectives for collectives in slow if not _has_exchanges(run, collectives)]
    links = [transfers.of_slowest_rank(link, transfers.baseline) for link in attribute_to_ranks(slow)]
    unrecorded = transfers.find_always_slow(incomplete=True)
    if unrecorded is not None and not any(
        set(link.meetings) >= set(unrecorded.meetings) and set(link.steps) >= set(unrecorded.steps) for link in links
    ):
        links.append(unrecorded)
    return links


def _has_exchanges(run: RunModel, collectives: Finding) -> bool:
    """Return whether any of these collectives is a send or a receive."""
    places = [place for number, _ in collectives.meetings for place in run.matching.places(number)]
    return any(run.programs[team].operations[place].is_exchange for team, place in places)
