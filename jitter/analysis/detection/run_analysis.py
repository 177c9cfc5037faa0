"""The analysis of a run: each step's time and account of lost time, the outliers, and replays of what-if scenarios."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from jitter.analysis.account.charges import Charges, sum_charges
from jitter.analysis.account.noise import Noise, noise_of_operations
from jitter.analysis.account.step_account import StepAccount
from jitter.analysis.detection.deviations import TeamDeviations, collect_deviations
from jitter.analysis.detection.expert_imbalance import ExpertImbalance
from jitter.analysis.detection.findings import (
    Clusters,
    Finding,
    find_clusters,
    find_fast_ranks,
    find_slow_steps,
    join_late_ranks,
    split_random_events,
)
from jitter.analysis.detection.launched_work import WorkOfTeams, compare_launched_work, find_outliers_by_work
from jitter.analysis.detection.passes import (
    Arrivals,
    RunReplay,
    StepExecutor,
    StepQuality,
    StepStatistics,
    ThreadedStepExecutor,
)
from jitter.analysis.detection.pipeline_stages import find_unequal_stages
from jitter.analysis.detection.slow_communication import (
    AlikeTransfers,
    attribute_to_ranks,
    find_slow_collectives,
    number_alike,
    slow_communication,
    slow_in_every_step,
    transfers_by_benchmark,
)
from jitter.analysis.detection.standouts import Outlier, Standouts, find_standouts
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.self_times import OWN_PARTS, SelfTimes, TimePart
from jitter.analysis.metrics.bandwidth_baseline import Baseline
from jitter.analysis.replay.run_steps import RunSteps
from jitter.analysis.replay.what_if import Scenario, baseline_transfers, together
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.stats import known_median
from jitter.core.step_key import StepKey


class RunAnalysis:
    """Passes over the run's steps, and their results. Nothing is computed before it is used."""

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

    @property
    def kinds(self) -> list[str]:
        """The kind of each step: `train`, `prefill`, `decode`, …."""
        return self.steps.kinds

    @cached_property
    def _seen(self) -> list[StepStatistics]:
        """Each step's result of the first pass."""
        seen = self._executor.measure()
        self.steps.baselines.update((number, step_statistics.baseline) for number, step_statistics in enumerate(seen))
        return seen

    @property
    def baselines(self) -> list[SelfTimes]:
        """Each step's medians of self times, (operations of all teams,)."""
        return [seen.baseline for seen in self._seen]

    @cached_property
    def arrivals(self) -> list[Arrivals]:
        """How the ranks of each step came to their collectives."""
        return [seen.arrivals for seen in self._seen]

    @cached_property
    def are_uncoupled(self) -> bool:
        """Whether the ranks share no collective: none is known to wait for another, so no delay of one has a price."""
        alone = len(self.run.team_of) > 1 and not self.run.matching.unpaired
        return alone and not any(step_arrivals.are_any for step_arrivals in self.arrivals)

    @cached_property
    def experts(self) -> list[ExpertImbalance | None]:
        """Each step's imbalance of expert work; None without any."""
        return [seen.experts for seen in self._seen]

    @cached_property
    def qualities(self) -> list[StepQuality]:
        """Each step's data quality."""
        return [seen.quality for seen in self._seen]

    @cached_property
    def step_ns(self) -> Floats:
        """(steps,) each step's time; NaN for the first of consecutive steps.

        Where no step follows another, as in a run of one step, the time of each is its span.
        """
        periods = np.array([seen.time_ns for seen in self._seen])
        return self._spans if np.isnan(periods).all() else periods

    @cached_property
    def _spans(self) -> Floats:
        """(steps,) the median over ranks of the time from a step's first start to its last end; NaN without any."""
        spans = []
        for step in self.steps.steps():
            here = np.flatnonzero(step.times.row >= 0)
            rows = np.split(np.arange(len(step.times.start)), step.times.row[here][1:]) if len(here) else []
            of_ranks = [np.fmax.reduce(step.times.end[row]) - np.fmin.reduce(step.times.start[row]) for row in rows]
            known_ns = sorted(span for span in of_ranks if not np.isnan(span))
            spans.append(known_ns[(len(known_ns) - 1) // 2] if known_ns else np.nan)
            del step  # else it stays in memory while the next one is read
        return np.array(spans)

    @property
    def has_unrecorded_ranks(self) -> bool:
        """Whether the job has ranks that the lake lacks: process groups name them, or rank numbers are missing."""
        ranks = self.run.team_of
        return max(self.run.matching.named, max(ranks, default=-1) + 1) > len(ranks)

    @cached_property
    def deviations(self) -> list[TeamDeviations]:
        """Each team's deviations."""
        return collect_deviations(
            [step_deviations for seen in self._seen for step_deviations in seen.deviations], self.steps.of_kinds
        )

    def deviations_of(self, team: int) -> TeamDeviations:
        """Return one team's deviations."""
        return next(deviations for deviations in self.deviations if deviations.team == team)

    @property
    def is_unexplained(self) -> bool:
        """Whether waits of hosts that no call records, and that no end explains, make every price doubtful."""
        return self.run.unexplained_fraction > THRESHOLDS.tolerance_share

    def total(self, gained: Floats) -> Floats:
        """Return (scenarios,) the sum of (steps, scenarios) over steps of known time.

        When the first of consecutive steps began is unknown, so its gain does not count.
        """
        gain_ns: Floats = np.nansum(gained[~np.isnan(self.step_ns)], axis=0)
        return gain_ns

    @cached_property
    def contradicts_recording(self) -> bool:
        """Whether the run with every own time at the baseline would take longer than recorded.

        Then operations waited for other ones than the inferred dependencies say: no loss and no saving holds.
        """
        return self.prolonged_ns > THRESHOLDS.min_cost_share * float(self.total(self.assumed_step_ns))

    @property
    def prolonged_ns(self) -> float:
        """How much longer than recorded the run would take with every own time at the baseline; below 0: shorter.

        The least, with what the first of consecutive steps lost, which the step after it may give back, or without.
        """
        return -max(float(np.nansum(self.loss_ns)), float(self.total(self.loss_ns)))

    @property
    def usual_step_ns(self) -> float:
        """The median step's time."""
        return float(np.median(self.assumed_step_ns))

    def collective_excess_ns(self, slow: Finding, number: int) -> float:
        """Return how much longer than their baseline slow collectives took in the run's `number`th step."""
        groups = self._groups(slow.meetings)
        return float(np.nansum(self.transfers[number][groups])) - self.usual_transfer_ns(slow, number)

    def usual_transfer_ns(self, slow: Finding, number: int) -> float:
        """Return what slow collectives should take in the run's `number`th step, all together, ns."""
        of_run = self.baseline_transfers if slow.known_gain_ns is None else self.expected_transfers
        return float(np.nansum(of_run[number][self._groups(slow.meetings)]))

    def has_assumed_sizes(self, slow: Finding) -> bool:
        """Return whether slow collectives are compared with others whose sizes are taken to be equal."""
        return bool(self._alike.have_assumed_sizes[self._groups(slow.meetings)].any())

    def lacks_ranks(self, slow: Finding) -> bool:
        """Return whether half of the excess is in steps that some of the collectives' ranks in the lake lack."""
        partial = [number for number in slow.steps if self._seen[number].transfers.partial.any()]
        if not partial:
            return False
        groups = self._groups(slow.meetings)
        lacking = 0.0
        for number in partial:
            of_step = groups[self._seen[number].transfers.partial[groups]]
            lacking += float(np.nansum(self.transfers[number][of_step] - self.baseline_transfers[number][of_step]))
        return lacking > 0 and lacking >= THRESHOLDS.main_share * slow.excess_ns

    def _groups(self, collectives: Sequence[tuple[int, int]]) -> Ints:
        """Return the numbers, of all groups of all collectives, of these (collective, group)."""
        first = self.run.collective_arrays.first_group
        return np.array([first[collective] + group for collective, group in collectives], np.int64)

    @cached_property
    def unverified_transfer_share(self) -> float:
        """The part of the steps' time that its end owes to transfers and that no benchmark gives."""
        incomplete = self.run.collective_arrays.incomplete  # their time is that of unrecorded ranks, too
        total = 0.0
        for took, expected, account in zip(self.transfers, self.expected_transfers, self.accounts, strict=True):
            unverified = np.isnan(expected[account.groups]) & ~incomplete[account.groups]
            total += float(np.nansum(took[account.groups[unverified]] * account.passed[unverified]))
        whole = float(self.assumed_step_ns.sum())
        return total / whole if whole > 0 else 0.0

    @cached_property
    def transfers(self) -> list[Floats]:
        """By step (groups of all collectives,) each one's time from the last arrival to the end, ns."""
        return [seen.transfers.took for seen in self._seen]

    def _of_kinds(self, compute: Callable[[Ints], Floats]) -> list[Floats]:
        """Return for each step what `compute` gives for the numbers of all steps of its kind."""
        value_of_step = {
            int(number): value for numbers in self.steps.of_kinds for value in [compute(numbers)] for number in numbers
        }
        return [value_of_step[number] for number in range(len(self.keys))]

    @cached_property
    def _median_transfers(self) -> list[Floats]:
        """Of each step (groups of all collectives,) the median over like steps from the last arrival to the end, ns."""
        seen = [
            np.where(transfers.mostly_complete, transfers.took, np.nan)
            for transfers in (seen.transfers for seen in self._seen)
        ]
        return self._of_kinds(
            lambda numbers: baseline_transfers(self._alike.numbers, [seen[number] for number in numbers])
        )

    @cached_property
    def _alike(self) -> AlikeTransfers:
        """Which transfers should take as long."""
        return number_alike(self.lake, self.run, self.keys[len(self.keys) // 2], self.transfers)

    @cached_property
    def expected_transfers(self) -> list[Floats]:
        """Of each step (groups of all collectives,) the time that a benchmark's bandwidth gives, ns; NaN: unknown."""
        usual = self._median_transfers
        if not self._benchmark and not self.run.collective_arrays.incomplete.any():
            return self._of_kinds(lambda numbers: np.full(len(usual[numbers[0]]), np.nan))
        of_run = self.lake, self.run, self._benchmark
        return self._of_kinds(
            lambda numbers: transfers_by_benchmark(*of_run, usual[numbers[0]], self.keys[numbers[len(numbers) // 2]])
        )

    @cached_property
    def baseline_transfers(self) -> list[Floats]:
        """Of each step (groups of all collectives,) the baseline from the last arrival to the end, ns.

        The median over steps of its kind; of groups with unrecorded members that are slow in every one of them, the
        time of the fastest alike; of collectives that ranks of the lake lack in every one, the median of what the other
        ranks recorded.
        """
        return self._of_kinds(self._baseline_transfers)

    def _baseline_transfers(self, numbers: Ints) -> Floats:
        seen, expected = ([of[number] for number in numbers] for of in (self.transfers, self.expected_transfers))
        slow = slow_in_every_step(seen, expected) & self.run.collective_arrays.incomplete
        usual = np.where(slow, expected[0], self._median_transfers[numbers[0]])
        recorded = baseline_transfers(self._alike.numbers, seen)
        return np.where(np.isnan(usual), recorded, usual)

    @cached_property
    def standouts(self) -> dict[tuple[int, TimePart], Standouts]:
        """When ranks stand out, by team and part of their time."""
        return {
            (team.team, part): find_standouts(
                team, part, self.assumed_step_ns, self.steps.of_kinds, self._tests(team.team)
            )
            for team in self.deviations
            for part in OWN_PARTS
        }

    @cached_property
    def standouts_by_work(self) -> dict[int, Standouts]:
        """When ranks stand out by GPU time for the launched work, of teams whose launches vary in size."""
        return {
            team: find_standouts(work.deviations, TimePart.GPU, self.assumed_step_ns, tests=self._tests(team))
            for team, work in self.launched_work.items()
        }

    def _tests(self, team: int) -> int:
        """Return how many parts of a rank's time are tested."""
        return len(OWN_PARTS) + (team in self.launched_work)

    def standouts_of(self, outlier: Outlier) -> Standouts:
        """Return when the ranks of an outlier's team stand out with its part of their time."""
        if outlier.pace is None:
            return self.standouts[outlier.team, outlier.part]
        return self.standouts_by_work[outlier.team]

    @cached_property
    def _outliers(self) -> tuple[list[Outlier], list[Finding]]:
        """Outliers above the noise, whether they cost time or not, and random pauses."""
        step_ns = self.assumed_step_ns
        outliers: list[Outlier] = []
        job: list[Finding] = []
        for team in self.deviations:
            team_outliers = [
                outlier for part in OWN_PARTS for outlier in self.standouts[team.team, part].outliers(step_ns)
            ]
            if (work := self.launched_work.get(team.team)) is not None:
                team_outliers = find_outliers_by_work(work, self.standouts_by_work[team.team], team_outliers, step_ns)
            for part in OWN_PARTS:
                of_part = [outlier for outlier in team_outliers if outlier.part is part]
                alone, shared = split_random_events(of_part, len(team.ranks), len(self.keys))
                outliers += alone
                job += shared
        return outliers, job

    @cached_property
    def _clusters(self) -> list[Finding]:
        """Slow clusters of each team's ranks; those of known saving are no part of the loss."""
        outliers, findings = self._outliers[0], []
        for team in self.deviations:
            team_outliers = [outlier for outlier in outliers if outlier.team == team.team]
            findings += find_clusters(team, self.step_ns, team_outliers)
        return findings

    @cached_property
    def candidates(self) -> list[Finding]:
        """Ranks, groups of ranks and collectives that may cost time: the replay prices them."""
        step_ns = self.assumed_step_ns
        outliers, job = self._outliers
        halves = [finding for finding in self._clusters if finding.known_gain_ns is None]
        joined = {(rank, finding.part) for finding in halves for rank in finding.ranks}
        slow = find_slow_collectives(
            self.run.matching, self.transfers, self._median_transfers, step_ns, self.steps.of_kinds
        )
        if self.run.matching.unpaired:
            # what seems a slow transfer may be a wait for a late rank, through exchanges that name no partners
            late = {step for outlier in outliers for step in outlier.steps}
            slow = [collectives for collectives in slow if not set(collectives.steps) <= late]
        always = self._slow_in_every_step & self.run.collective_arrays.incomplete
        unrecorded = slow_communication(self.run, self.transfers, self.expected_transfers, always)
        links = attribute_to_ranks(slow)
        if unrecorded is not None and not any(
            set(link.meetings) >= set(unrecorded.meetings) and set(link.steps) >= set(unrecorded.steps)
            for link in links
        ):
            links.append(unrecorded)
        return [
            *join_late_ranks([outlier for outlier in outliers if (outlier.rank, outlier.part) not in joined]),
            *job,
            *halves,
            *links,
        ]

    @cached_property
    def _slow_in_every_step(self) -> Bools:
        return slow_in_every_step(self.transfers, self.expected_transfers)

    @cached_property
    def slow_network(self) -> Finding | None:
        """The collectives that reach less than a benchmark's bandwidth in every step; None if none do."""
        slow = self._slow_in_every_step & ~self.run.collective_arrays.incomplete
        communication = slow_communication(self.run, self.transfers, self.expected_transfers, slow)
        if communication is None:
            return None
        at_best = [
            np.where(slow, expected, usual)
            for expected, usual in zip(self.expected_transfers, self.baseline_transfers, strict=True)
        ]
        gone = self._executor.replay(at_best, [communication.repair])
        return replace(communication, known_gain_ns=float(self.total(gone.gained_ns)[0]))

    @cached_property
    def launched_work(self) -> WorkOfTeams:
        """GPU times for the launched work, of teams whose launches vary in size."""
        work_of_team = {team.team: compare_launched_work(self.steps, self.lake, team) for team in self.deviations}
        return {team: work for team, work in work_of_team.items() if work is not None}

    @cached_property
    def job_findings(self) -> list[Finding]:
        """Clusters of ranks and steps that are slow for all, whose saving is no part of the loss."""
        slow_steps = [finding for finding in self._slow_steps if finding is not self.warm_up]
        clusters = [finding for finding in self._clusters if finding.known_gain_ns is not None]
        stages = find_unequal_stages(
            self.run,
            self.deviations,
            self.baselines,
            self.lake.kernel_counts,
            self.gains,
            self._outliers[0],
            float(self.assumed_step_ns.sum()),
        )
        return clusters + slow_steps + stages

    @cached_property
    def _slow_steps(self) -> list[Finding]:
        found = (
            find_slow_steps(
                [team.of_steps(numbers) for team in self.deviations],
                self.step_ns[numbers],
                self.loss_ns[numbers],
                numbers,
            )
            for numbers in self.steps.of_kinds
        )
        return [finding for finding in found if finding is not None]

    @cached_property
    def warm_up(self) -> Finding | None:
        """The slow steps, if all ranks are slow in them and they are the first ones of known time."""
        timed = np.flatnonzero(~np.isnan(self.step_ns))
        return next(
            (
                finding
                for finding in self._slow_steps
                if finding.steps == tuple(timed[: len(finding.steps)].tolist())
                and len(finding.ranks) == len(self.run.team_of)
            ),
            None,
        )

    @cached_property
    def fast_ranks(self) -> list[Clusters]:
        """The clusters of teams of which few ranks are much faster than the others: a doubt, and no finding."""
        fast_by_team = (find_fast_ranks(team, self.usual_step_ns) for team in self.deviations)
        return [team_ranks for team_ranks in fast_by_team if team_ranks is not None]

    @cached_property
    def assumed_step_ns(self) -> Floats:
        """(steps,) each step's time; where unknown the median of the known ones of its kind, else of all, 0 if none."""
        times_ns = self.step_ns.copy()
        for numbers in self.steps.of_kinds:
            if not np.isnan(times_ns[numbers]).all():
                times_ns[numbers] = np.nan_to_num(times_ns[numbers], nan=known_median(times_ns[numbers]))
        return np.nan_to_num(times_ns, nan=known_median(self.step_ns))

    @cached_property
    def noise(self) -> list[Noise]:
        """The noise of the operations of each step: a part's variance over the step, divided equally among them."""
        size, before = np.diff(self.run.job.first), self.run.job.first_kernel + 1
        operations = np.maximum(np.stack([before, size - before, size], axis=1), 1)
        of_teams = np.array([team.noise_ns[:, :, 0].T for team in self.deviations])  # (teams, steps, parts)
        of_steps = of_teams.reshape(len(size), len(self.keys), len(OWN_PARTS)).swapaxes(0, 1)
        sizes = [self.run.sizes[team] for team in sorted(self.run.programs)]
        noise = noise_of_operations(np.ascontiguousarray(of_steps**2 / operations), sizes)
        return [Noise(*of_step) for of_step in zip(*noise, strict=True)]

    def loss_from_noise(self, steps: Iterable[int]) -> float:
        """Return the loss, ns, that operations which vary by themselves cause in some steps of the run."""
        return sum(self.accounts[number].noise_ns for number in steps)

    def loss_of(self, scenario: Scenario) -> float:
        """Return the part of the loss, ns, that is charged to what the scenario repairs."""
        paces = {(rank, int(TimePart.GPU)): steps for rank, (_, steps) in scenario.paces.items()}
        loss_ns = sum(
            float(self.charges.own_ns[part, sorted(steps), self.charges.column(rank)].sum())
            for (rank, part), steps in [*scenario.own.items(), *paces.items()]
            if rank in self.run.team_of
        )
        for group, steps in scenario.transfers.items():
            loss_ns += sum(ns for number, ns in self.charges.transfers_ns.get(group, {}).items() if number in steps)
        return loss_ns

    @cached_property
    def charges(self) -> Charges:
        """What is charged to ranks and transfers, for steps of known time."""
        counted = [self.accounts[number].losses for number in np.flatnonzero(~np.isnan(self.step_ns)).tolist()]
        return sum_charges(counted, sorted(self.run.team_of), len(self.keys))

    @property
    def accounts(self) -> list[StepAccount]:
        """Each step's account of lost time."""
        return self._first_replay[1].accounts

    @cached_property
    def _first_replay(self) -> tuple[list[Scenario], RunReplay]:
        """The candidates' scenarios, each alone and all together, and the pass that prices them, with the account."""
        alone = [candidate.repair for candidate in self.candidates]
        scenarios = alone if len(alone) < 2 else [*alone, together(alone)]
        return scenarios, self._executor.replay(self.baseline_transfers, scenarios, self.noise)

    @cached_property
    def _prices(self) -> "_Prices":
        """What scenarios save over the run."""
        scenarios, gone = self._first_replay
        known = zip(scenarios, self.total(gone.gained_ns).tolist(), strict=True)
        return _Prices(self, self._executor, list(known))

    def gains(self, scenarios: Sequence[Scenario]) -> list[float]:
        """Return what each scenario would save over the run, ns; scenarios not replayed before share one pass."""
        return self._prices.of(scenarios)

    def gain_without_transfers(self, groups: Bools) -> float:
        """Return what the run would gain, ns, if these collectives ended with the last recorded arrival.

        `groups` is a mask, (groups of all collectives,).
        """
        meetings = self.run.collective_arrays.meetings(groups)
        ended = Scenario(transfers=dict.fromkeys(meetings, frozenset(range(len(self.keys)))))
        gone = self._executor.replay(
            self._of_kinds(lambda step_numbers: np.where(groups, 0.0, self.baseline_transfers[step_numbers[0]])),
            [ended],
        )
        return float(self.total(gone.gained_ns)[0])

    def bound_gains(self, scenarios: Sequence[Scenario]) -> list[float]:
        """Return what each scenario would save with the other waits of hosts that the recording allows, ns.

        Where it leaves no choice, what `gains` returns.
        """
        return (self._bound_prices or self._prices).of(scenarios)

    @cached_property
    def _bound_prices(self) -> "_Prices | None":
        model = self.run.bound
        return None if model is None else _Prices(self, self._make_executor(self.steps.with_model(model)), [])

    @cached_property
    def loss_ns(self) -> Floats:
        """(steps,) how much shorter each step would be with every own time and transfer at the baseline."""
        return np.array([account.loss_ns for account in self.accounts])


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
            gone = self.executor.replay(self.analysis.baseline_transfers, new)
            self.known.extend(zip(new, self.analysis.total(gone.gained_ns).tolist(), strict=True))
        return [self._of(scenario) or 0.0 for scenario in scenarios]

    def _of(self, scenario: Scenario) -> float | None:
        return next((gain for priced, gain in self.known if priced == scenario), None)
