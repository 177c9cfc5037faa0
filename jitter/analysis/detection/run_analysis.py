"""The analysis of a run: its passes in their order, what scenarios would save, and which findings are worth fixing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.detection.findings import Finding, divide_by_steps, join_late_ranks, of_one_rank, part_and_measure
from jitter.analysis.detection.measured_run import MeasuredRun
from jitter.analysis.detection.passes import RunReplay, StepExecutor, ThreadedStepExecutor
from jitter.analysis.detection.pipeline_stages import find_unequal_stages
from jitter.analysis.detection.run_account import RunAccount
from jitter.analysis.detection.run_outliers import RunOutliers, SlowSteps, find_slow_steps
from jitter.analysis.detection.run_transfers import RunTransfers, attribute_to_ranks
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.metrics.bandwidth_baseline import Baseline
from jitter.analysis.replay.run_steps import RunSteps
from jitter.analysis.replay.what_if import Scenario, together
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_ranks
from jitter.core.names.kernels import SEND_RECV
from jitter.core.numeric.arrays import Floats
from jitter.core.numeric.stats import known_median
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
        return MeasuredRun(self.steps, self._executor.measure())

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
        assert self._replay.accounts is not None
        return RunAccount(self.measured, self._replay.accounts)

    @cached_property
    def slow_steps(self) -> SlowSteps:
        """The steps in which all ranks are slow."""
        return find_slow_steps(self.measured, self.account, self.outliers)

    @cached_property
    def slow_network(self) -> Finding | None:
        """The collectives that reach less than a benchmark's bandwidth in every step; None if none do."""
        slow = self.transfers.find_always_slow(incomplete=False)
        return slow and replace(slow, known_gain_ns=self.gain(self.transfers.at_best, slow.repair))

    @cached_property
    def job_findings(self) -> list[Finding]:
        """Clusters of ranks and steps that are slow for all, whose saving is no part of the loss."""
        clusters = [self._price_most_ranks(slow) for slow in self.outliers.clusters if slow.known_gain_ns is not None]
        # the median rank is one of a slow majority or stage: the steps in which that is slow are so for the same reason
        larger = [*clusters, *self.long_stages]
        return [*larger, *(slow for slow in self.slow_steps.findings if not any(one.contains(slow) for one in larger))]

    @cached_property
    def long_stages(self) -> list[Finding]:
        """Pipeline stages that take longer than the others for the same kernels, or have more of them."""
        return find_unequal_stages(self.measured, self.outliers.above_noise.of_ranks, self.gains)

    def _price_most_ranks(self, slow: Finding) -> Finding:
        """Return a finding about most ranks with what giving them the other ranks' times saves, if replay tells."""
        if self.run.matching.unpaired or self.run.following_hosts or self.measured.are_uncoupled:
            return slow
        executor = ThreadedStepExecutor(self.steps.leaving_aside(slow.ranks))
        return replace(slow, known_gain_ns=self.gain(self.transfers.baseline, slow.repair, executor))

    @cached_property
    def _prices(self) -> "_Prices":
        """What scenarios save over the run."""
        known = zip(self._candidate_scenarios, self.measured.total(self._replay.gained_ns).tolist(), strict=True)
        return _Prices(self, self._executor, list(known))

    @cached_property
    def bound_steps(self) -> RunSteps | None:
        """The steps with the other waits of hosts that the recording allows; None where it leaves no choice."""
        model = self.run.bound
        return None if model is None else self.steps.with_model(model)

    @cached_property
    def _bound_prices(self) -> "_Prices | None":
        return None if self.bound_steps is None else _Prices(self, self._make_executor(self.bound_steps), [])

    def gains(self, scenarios: Sequence[Scenario]) -> list[float]:
        """Return what each scenario would save over the run, ns; scenarios not replayed before share one pass."""
        return self._prices.of(scenarios)

    def bound_gains(self, scenarios: Sequence[Scenario]) -> list[float]:
        """Return what each scenario would save with the other waits of hosts that the recording allows, ns.

        Where it leaves no choice, what `gains` returns.
        """
        return (self._bound_prices or self._prices).of(scenarios)

    def gain(self, usual: Sequence[Floats], scenario: Scenario, executor: StepExecutor | None = None) -> float:
        """Return what a scenario saves over the run with these usual transfers of each step, ns."""
        replayed = (executor or self._executor).replay(usual, [scenario])
        return float(self.measured.total(replayed.gained_ns)[0])


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
    explained = attribute_to_ranks(slow, run.reader.nodes, partial(transfers.find_clear, slow))
    links = [transfers.of_slowest_rank(link, transfers.baseline) for link in explained]
    unrecorded = transfers.find_always_slow(incomplete=True)
    if unrecorded is not None and not any(
        set(link.transfers) >= set(unrecorded.transfers) and set(link.steps) >= set(unrecorded.steps) for link in links
    ):
        links.append(unrecorded)
    return links


def _has_exchanges(run: RunModel, collectives: Finding) -> bool:
    """Return whether any of these collectives is a send or a receive."""
    numbers = run.collective_arrays.collective[list(collectives.transfers)].tolist()
    return any(SEND_RECV in run.operations_of_collective(number) for number in numbers)


class GainRange(NamedTuple):
    """The least and the most that fixing something alone would save, ns."""

    least_ns: int
    most_ns: int
    unknown: tuple[str, ...]
    """What is not known, as clauses."""


HOST_GAPS: Final = "which host gaps are waits for the GPU is not recorded"
PARTNERS: Final = "some exchanges name no partners"
LOST: Final = "launches or kernels are missing in the recordings of {}"
GRAPHS: Final = "CUDA graphs without their kernels may hold collectives"
UNCOUPLED: Final = "no communication between the ranks is recognised"
HOSTS: Final = "hosts wait for other ranks without a recorded call"
UNRECORDED_PARTNERS: Final = "the ranks with which it communicates were not recorded"
UNRECORDED: Final = "ranks that were not recorded may be as late"
UNMEASURED: Final = "no equal collectives tell how long the others of these links should take"


class Pricing:
    """Prices findings of an analysis by replay."""

    def __init__(self, analysis: RunAnalysis) -> None:
        self._analysis = analysis
        self._with_unmeasured_ns: dict[tuple[int, ...], float] = {}
        """By the slow transfers: each is a pass over the run."""

    @cached_property
    def worth_fixing(self) -> list[Finding]:
        """The candidates worth fixing, the costliest first."""
        candidates = self._analysis.candidates
        scenarios = [candidate.repair for candidate in candidates]
        gains, losses = self._analysis.gains(scenarios), list(map(self._analysis.account.loss_of, scenarios))
        most = self.most(scenarios, gains)
        together = self._worth_fixing_together(candidates, losses)
        costs = [
            (max(gain_ns, loss_ns), candidate)
            for candidate, gain_ns, most_ns, loss_ns in zip(candidates, gains, most, losses, strict=True)
            if self.is_worth_fixing(candidate, most_ns, loss_ns) or not together.isdisjoint(candidate.members)
        ]
        return [candidate for _, candidate in sorted(costs, key=lambda cost: -cost[0])]

    def _worth_fixing_together(self, candidates: Sequence[Finding], losses_ns: Sequence[float]) -> set[Outlier]:
        """Return ranks that are late in the same steps and share a loss: each of a node's GPUs has an eighth of it.

        Ranks that later ones of them mask have hardly a share, but are kept if the repair of all needs them.
        """
        loss_of = {
            candidate.members[0]: max(loss_ns, 0.0)
            for candidate, loss_ns in zip(candidates, losses_ns, strict=True)
            if candidate.kind == "late_rank" and not self._analysis.measured.are_uncoupled
        }
        kept: set[Outlier] = set()
        for alike in divide_by_steps(loss_of, part_and_measure):
            shared_ns, least_ns = sum(loss_of[outlier] for outlier in alike), self.min_gain_ns(alike[0].steps)
            if shared_ns >= THRESHOLDS.much_more * least_ns:
                masked = [outlier for outlier in alike if loss_of[outlier] < shared_ns / len(alike) / 2]
                kept.update(outlier for outlier in alike if outlier not in masked)
                repaired = [alike, *([other for other in alike if other is not outlier] for outlier in masked)]
                scenarios = [together(of_one_rank(outlier).repair for outlier in some) for some in repaired]
                whole_ns, *without_ns = self._analysis.gains(scenarios)
                kept.update(
                    outlier
                    for outlier, gain_ns in zip(masked, without_ns, strict=True)
                    if whole_ns - gain_ns >= least_ns
                )
        return kept

    @cached_property
    def beside_loss(self) -> list[Finding]:
        """Findings whose saving is no part of the loss, with the largest first."""
        network = self._analysis.slow_network
        kept = [
            candidate
            for candidate in [*self._analysis.job_findings, *([] if network is None else [network])]
            if (candidate.known_gain_ns or 0.0) >= self.min_gain_ns(candidate.steps)
        ]
        return sorted(kept, key=lambda candidate: -(candidate.known_gain_ns or 0.0))

    def shown_by(self, event: Finding) -> list[Finding]:
        """Return what stands out as one of `beside_loss` shows in the loss, too: it saves less."""
        late = [candidate for candidate in self.worth_fixing if event.is_shown_by(candidate)]
        gains = self._analysis.gains([candidate.repair for candidate in late])
        return [
            late_candidate
            for late_candidate, gain_ns in zip(late, gains, strict=True)
            if gain_ns < (event.known_gain_ns or 0.0)
        ]

    def variation_in(self, event: Finding) -> Scenario:
        """Return the repair of what ranks vary by in steps that are slow for all of them: the loss contains it.

        Ranks that stand out by themselves with that part of their time have findings of their own.
        """
        named = {(rank, late.part) for late in self.worth_fixing for rank in late.ranks}
        ranks = [rank for rank in event.ranks if (rank, event.part) not in named]
        steps = {(rank, int(event.part)): frozenset(event.steps_of_rank[rank]) for rank in ranks}
        return Scenario(steps if event.kind == "slow_steps" else {})

    def most(self, scenarios: Sequence[Scenario], alone_ns: Sequence[float]) -> list[float]:
        """Return the most that each scenario may save alone, ns: waits of hosts without a record may be or not be."""
        return list(map(max, alone_ns, self._analysis.bound_gains(scenarios)))

    def ranges(
        self,
        scenarios: Sequence[Scenario],
        alone_ns: Sequence[float],
        more: Sequence[Mapping[str, float]],
        waits_ns: Sequence[float],
    ) -> list[GainRange | None]:
        """Return the least and the most that each scenario may save alone, ns; None where they differ by little.

        `more` is what each may save, ns, by what is not known; `waits_ns` what the steps may have waited for unrecorded
        ranks after the recorded ones.
        """
        bounds, is_unexplained = self._analysis.bound_gains(scenarios), self._analysis.run.is_unexplained
        ranges: list[GainRange | None] = []
        for gain_ns, other_ns, may_save, wait_ns in zip(alone_ns, bounds, more, waits_ns, strict=True):
            low, high = sorted((gain_ns, other_ns))
            unknown = (HOST_GAPS,) if is_unexplained or _differ(low, high) else ()
            for because, saved_ns in may_save.items():
                if saved_ns > high and _differ(low, saved_ns):
                    unknown, high = (*unknown, because), saved_ns
            if _differ(least := max(low - wait_ns, min(low, 0.0)), low):
                unknown, low = (*unknown, UNRECORDED), least
            ranges.append(GainRange(round(low), round(high), unknown) if unknown else None)
        return ranges

    def is_worth_fixing(self, candidate: Finding, alone_ns: float, loss_ns: float) -> bool:
        """Return whether fixing the candidate alone saves enough, or the account charges enough to it."""
        least = self.min_gain_ns(candidate.steps)
        if self._analysis.measured.are_uncoupled:  # it delays itself alone, and the loss is the mean over all ranks
            return loss_ns * len(self._analysis.run.team_of) / len(candidate.ranks) >= least
        if candidate.part is TimePart.TRANSFER:
            # the group may wait for unrecorded ranks, which waited for another fault: nothing is saved then
            sure_ns = min(alone_ns, loss_ns)
            if self._analysis.transfers.lacks_ranks(candidate):
                return sure_ns >= max(least, THRESHOLDS.minor_share * candidate.excess_ns)
            if candidate.is_incomplete:
                return sure_ns >= THRESHOLDS.much_more * least
        if self.unpriced_ns(candidate) >= THRESHOLDS.much_more * least:
            return True
        if max(alone_ns, loss_ns) >= least:
            return True
        return bool(candidate.transfers) and self.with_unmeasured_ns(candidate) >= THRESHOLDS.much_more * least

    def unpriced_ns(self, candidate: Finding) -> float:
        """Return the excess of a rank whose effect on other ranks replay cannot tell; 0 of others.

        In the replay, exchanges that name no partners delay no other rank, which matters where there are many, nor does
        a host another one, nor a graph that was recorded as a whole, nor anything ranks that share no collective. Where
        another rank's events are missing, what waits for what is not known. What ranks that were not recorded wait for
        is not known either.
        """
        run = self._analysis.run
        if candidate.kind != "late_rank" or run.follows(candidate.worst.team, candidate.part):
            return 0.0
        unplaced = self._analysis.measured.unplaced_ranks
        is_unplaced = bool(unplaced) and unplaced.isdisjoint(candidate.ranks)
        # a host may be late for nothing, as its GPU has work queued
        is_alone = candidate.part is TimePart.GPU and not run.lone_ranks.isdisjoint(candidate.ranks)
        hides_effect = run.misses_partners or run.following_hosts or run.has_hidden_communication
        is_unknown = hides_effect or is_unplaced or is_alone or self._analysis.measured.are_uncoupled
        return candidate.excess_ns if is_unknown else 0.0

    def with_unmeasured_ns(self, slow: Finding) -> float:
        """Return what repairing slow transfers saves if others of their ranks, which nothing measures, are as slow.

        0 where there are no others.
        """
        if slow.transfers not in self._with_unmeasured_ns:
            repaired = self._analysis.transfers.with_unmeasured(slow)
            self._with_unmeasured_ns[slow.transfers] = 0.0 if repaired is None else self._analysis.gain(*repaired)
        return self._with_unmeasured_ns[slow.transfers]

    @property
    def unpriced_because(self) -> str:
        """Why replay cannot tell the effect of a rank on others, as a clause."""
        run = self._analysis.run
        if self._analysis.measured.are_uncoupled:
            return UNCOUPLED
        if run.has_hidden_communication and not run.following_hosts:
            return GRAPHS
        if run.following_hosts:
            return HOSTS
        if unplaced := self._analysis.measured.unplaced_ranks:
            return LOST.format(format_ranks(sorted(unplaced)))
        return UNRECORDED_PARTNERS if run.lone_ranks and not run.misses_partners else PARTNERS

    def min_gain_ns(self, steps: Sequence[int]) -> float:
        """Return what fixing something that occurs in these steps must save for it to be reported."""
        # by their usual time: a restart within one of them makes no other fault smaller
        usual_ns = known_median(self._analysis.measured.assumed_step_ns[list(steps)])
        return THRESHOLDS.min_cost_share * usual_ns * len(steps)


def _differ(low_ns: float, high_ns: float) -> bool:
    """Return whether two savings differ by more than the error of one."""
    return high_ns - low_ns > THRESHOLDS.tolerance_share * max(high_ns, -low_ns)
