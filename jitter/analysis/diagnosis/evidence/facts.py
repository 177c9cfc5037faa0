"""Facts from the lake and the analysis that causes, confidence and evidence rest on, and what the recordings lack."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from statistics import median_low
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.account.losses import CLASSES_OF_PART, Losses, join_losses
from jitter.analysis.detection.findings import Finding
from jitter.analysis.detection.run_analysis import Pricing, RunAnalysis
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.diagnosis.diagnosed_lake import DiagnosedLake
from jitter.analysis.diagnosis.evidence.after_last_launch import TimeAfterLaunches
from jitter.analysis.diagnosis.evidence.host_operations import Gap, HostGaps, LongOperation, RankStep
from jitter.analysis.diagnosis.evidence.locations import KernelLocator, stages_of_ranks
from jitter.analysis.diagnosis.evidence.workload import (
    WorkloadComparison,
    compare_for_work,
    compare_workload,
)
from jitter.analysis.diagnosis.loss.waterfall import LowerRungs, choose_steps, judge_lower_rungs
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.metrics.bandwidth_baseline import Baseline
from jitter.analysis.replay.what_if import Scenario
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_time
from jitter.core.grouping import by_key
from jitter.core.names.kernels import COLLECTIVE, SYNC
from jitter.core.names.marker_numbers import parse_marker_numbers
from jitter.core.numeric.arrays import Bools, Floats, spread_positions
from jitter.core.numeric.stats import known_medians
from jitter.core.step_key import StepKey
from jitter.lake.host_events import HostEvents, HostTimes
from jitter.lake.rank_coverage import rank_coverage
from jitter.lake.records import SIDE_WORK


class Coverage:
    """What the recordings of one analysis lack of the job."""

    def __init__(self, analysis: RunAnalysis, traces: DiagnosedLake) -> None:
        self._analysis, self._traces = analysis, traces
        self._records, self._sources = analysis.lake.records, analysis.lake.sources

    @cached_property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job without a recording: by world size, holes in the ranks, or unreadable recordings."""
        return tuple(sorted(self.unread_ranks.union(rank_coverage(self._sources).missing, self.incomplete_ranks)))

    @cached_property
    def unread_ranks(self) -> frozenset[int]:
        """Ranks whose only recordings could not be ingested or read."""
        return self._traces.unread_ranks.difference(rank_coverage(self._sources).ranks)

    @cached_property
    def unplaced(self) -> int:
        """How many recordings of unknown rank were left out that may be of ranks without a recording."""
        coverage = rank_coverage(self._sources)
        return self._traces.unplaced if coverage.world_size is None or coverage.missing else 0

    @cached_property
    def incomplete_ranks(self) -> frozenset[int]:
        """Ranks of which no step counts: each one is cut before its last collective."""
        recorded = {rank for key in self._analysis.keys for rank in self._records[key]}
        return frozenset(recorded.difference(self._analysis.run.team_of))

    @property
    def has_unrecorded_ranks(self) -> bool:
        """Whether the job has ranks that the lake lacks."""
        return bool(self.missing_ranks) or self._names_unrecorded

    @property
    def _names_unrecorded(self) -> bool:
        """Whether groups name ranks that the lake lacks, numbers are missing, or a recording may be of another rank."""
        ranks = self._analysis.run.team_of
        named = max(self._analysis.run.matching.named, max(ranks, default=-1) + 1)
        return named > len(ranks) or self.unplaced > 0

    @property
    def has_guessed_steps(self) -> bool:
        """Whether the steps of some recording were found without markers."""
        return any(source.has_guessed_steps for source in self._sources)

    @property
    def has_assumed_rank(self) -> bool:
        """Whether nothing states the rank of the lake's only recording."""
        return any(source.has_assumed_rank for source in self._sources)

    @property
    def incomplete_groups(self) -> Bools:
        """(groups of all collectives,) which may have members that were not recorded."""
        groups = self._analysis.run.collective_arrays.incomplete
        # a collective whose group was not recorded may span all ranks of the job
        return np.ones_like(groups) if self._analysis.run.matching.lacks_groups else groups

    def bound_ns(self) -> float:
        """Return what the run would gain, ns, if the incomplete groups left with their last recorded arrival."""
        analysis, groups = self._analysis, self.incomplete_groups
        every = frozenset(range(len(analysis.keys)))
        ended = Scenario(transfers=dict.fromkeys(np.flatnonzero(groups).tolist(), every))
        baseline = analysis.transfers.baseline
        usual = analysis.transfers.of_like_steps(lambda numbers: np.where(groups, 0.0, baseline[numbers[0]]))
        return analysis.gain(usual, ended)

    def waits_ns(self, steps: Sequence[int]) -> float:
        """Return how long the ends of some steps may have waited for ranks that were not recorded, ns.

        The time in collectives after the last recorded rank arrives.
        """
        if not self._names_unrecorded:
            return 0.0
        return float(sum(self.transfers_ns(self.incomplete_groups)[list(steps)].tolist()))

    def transfers_ns(self, groups: Bools) -> Floats:
        """Return, (steps,), how long the ends of steps wait for transfers of some groups, as the account passes it on.

        `groups` is (groups of all collectives,) or (steps, groups of all collectives).
        """
        accounts, took_ns = self._analysis.account.of_steps, self._analysis.transfers.took
        step = np.arange(len(took_ns)).repeat(np.diff(accounts.first_group))
        chosen = np.broadcast_to(groups, took_ns.shape)[step, accounts.groups]
        each_ns = np.where(chosen, np.nan_to_num(took_ns[step, accounts.groups] * accounts.passed), 0.0)
        return np.bincount(step, each_ns, len(took_ns)).astype(np.float64, copy=False)

    def may_delay(self, slow: Finding) -> bool:
        """Return whether slow collectives have members without a recording, which their ranks may wait for.

        Members lack the job's recordings, those of the steps with half of the excess, or the collective's events.
        """
        run = self._analysis.run
        if self._absent_members(slow) or len(run.team_of) == 1:
            return True
        # a collective whose group was not recorded may span all ranks of the job
        if self.has_unrecorded_ranks and run.matching.lacks_groups:
            return True
        # groups were inferred for a part of the collectives: ranks that lost events may be of these groups too
        if run.matching.inferred and run.matching.unrecorded and len(slow.ranks) < len(run.team_of):
            return True
        return self._analysis.transfers.lacks_ranks(slow)

    def _absent_members(self, slow: Finding) -> set[int]:
        """Return the named members of the collectives that recorded none of them, as ranks that lost events."""
        return {rank for transfer in slow.transfers for rank in self._analysis.run.matching.absent[transfer]}

    def unrecorded_members(self, slow: Finding) -> tuple[int, ...]:
        """Return the ranks that the job lacks, and members of slow collectives without these or a step of them."""
        lacking = set(self.missing_ranks) | self._absent_members(slow)
        for number in slow.steps:
            records = self._records[self._analysis.keys[number]]
            lacking |= {rank for rank in slow.ranks if rank not in records or records[rank].step.cut}
        return tuple(sorted(lacking))


class OwnTime(NamedTuple):
    """Median time per step of one kind on a rank's host, beside its baseline."""

    own_ns: float
    others_ns: float | None
    """That of the other ranks, or of the rank's other steps; None without any."""


_DETAILS: Final = {"source_line": "Python stacks", "operator": "operators"}
"""Columns of kernels whose recording slows the host, in words."""


class Evidence:
    """Answers questions about ranks, steps and findings of one analysis."""

    def __init__(
        self,
        analysis: RunAnalysis,
        traces: DiagnosedLake,
        benchmark: Baseline | None = None,
    ) -> None:
        """`benchmark` has the bandwidths that the network reaches, if measured."""
        self.analysis, self.records, self.traces, self.benchmark = analysis, analysis.lake.records, traces, benchmark
        self.coverage = Coverage(analysis, traces)
        self.locations, self.nodes = analysis.lake.places, analysis.lake.nodes
        """Host and device of each rank; and its node, as far as it is known."""
        self.kernels = KernelLocator(analysis)
        self.pricing = Pricing(analysis)
        self._workloads: dict[Outlier, WorkloadComparison] = {}
        self._operations: dict[tuple[Outlier, bool], LongOperation | None] = {}

    @cached_property
    def host_gaps(self) -> HostGaps:
        """What hosts do between launches."""
        return HostGaps(self.analysis.lake, self.traces)

    @cached_property
    def window(self) -> tuple[int, int]:
        """The first of the steps that stand for the run, and the one after their last."""
        return choose_steps(self.analysis.lake)

    @cached_property
    def rungs(self) -> LowerRungs:
        """The rungs of the waterfall below `ranks`."""
        return judge_lower_rungs(self.analysis, *self.window)

    @cached_property
    def after_launches(self) -> TimeAfterLaunches:
        """The late starts that lie before the end of the step before."""
        return TimeAfterLaunches(self.analysis)

    def locate_transfers(self, transfers: Losses, rank: int | None = None) -> Losses:
        """Return shares of transfers with the rank, team and place of the first member, or of `rank` if it is one."""
        run = self.analysis.run
        collectives = run.collective_arrays
        located = []
        for group in transfers.group.tolist():
            members = collectives.arrivals(group)
            ranks = run.rank_numbers[collectives.rank[members]].tolist()
            at = ranks.index(rank) if rank in ranks else 0
            located.append((ranks[at], run.team_of[ranks[at]], int(collectives.place[members[at]])))
        placed = Losses(transfers.numbers.copy(), transfers.ns)
        placed.rank[:], placed.team[:], placed.place[:] = np.array(located, np.int64).reshape(-1, 3).T
        return placed

    def has_launches(self, team: int) -> bool:
        """Return whether launches of a team's ranks were recorded."""
        return self.analysis.run.dependencies[team].has_launches

    @property
    def is_single_rank(self) -> bool:
        """Whether the lake holds one rank only."""
        return len(self.analysis.run.team_of) == 1

    def peers(self, ranks: Collection[int]) -> int:
        """Return how many other ranks these ranks were compared with; of several teams the fewest."""
        run = self.analysis.run
        return min(run.sizes[run.team_of[rank]] for rank in ranks if rank in run.team_of) - 1

    @cached_property
    def _stages(self) -> Mapping[int, frozenset[int]]:
        return stages_of_ranks(self.analysis.run)

    def stage_as_late(self, rank: int, part: TimePart) -> frozenset[int]:
        """Return the ranks of a rank's pipeline stage if all stand out by this part in nearly all steps; else none."""
        least = THRESHOLDS.nearly_all_share * len(self.analysis.keys)
        members = (member for candidate in self.analysis.candidates for member in candidate.members)
        late = {member.rank for member in members if member.part is part and len(member.steps) >= least}
        stage = self._stages.get(rank, frozenset())
        return stage if stage <= late and len(set(self._stages.values())) > 1 else frozenset()

    def excess_of_steps(self, findings: Iterable[Finding]) -> Floats:
        """Return (steps,) the findings' excess, ns, also where it does not stand out."""
        total_ns: Floats = np.sum([self._excess_of_finding(finding) for finding in findings], axis=0)
        return total_ns

    def _excess_of_finding(self, finding: Finding) -> Floats:
        steps = len(self.analysis.keys)
        if finding.part is TimePart.TRANSFER:
            return self.analysis.transfers.excess_ns(finding, range(steps))
        if finding.kind == "late_rank":
            return self.excess_ns(finding.worst)
        if finding.kind == "slow_steps":
            return np.array([finding.excess_of_step.get(step, 0.0) for step in range(steps)])
        if finding.known_gain_ns is not None:
            return np.where(np.isin(np.arange(steps), finding.steps), finding.excess_ns / len(finding.steps), 0.0)
        charges = self.analysis.account.charges
        of_ranks: Floats = charges.own_ns[finding.part][:, charges.columns(finding.ranks)].sum(axis=1)
        return of_ranks

    def excess_ns(self, outlier: Outlier) -> Floats:
        """Return (steps,) a rank's own time above its peers'."""
        team = self.analysis.measured.deviations_of(outlier.team)
        if outlier.pace is not None:
            team = self.analysis.outliers.launched_work[outlier.team].deviations
        total_ns = team.total_ns[outlier.part]
        above_ns = total_ns[:, np.searchsorted(team.ranks, outlier.rank)]
        if outlier.peers:
            above_ns = above_ns - known_medians(total_ns[:, np.isin(team.ranks, outlier.peers)], axis=1)
        excess_ns: Floats = np.nan_to_num(above_ns)
        return excess_ns

    def worst_steps(self, outlier: Outlier) -> list[int]:
        """Return the steps with the most excess, as positions in the run; the cause is decided from these."""
        return self._by_excess(outlier)[: THRESHOLDS.tried_steps]

    def _telling_steps(self, outlier: Outlier) -> list[int]:
        """Return the steps that tell how long an outlier takes: its worst; of a usual one, those of middle excess."""
        ordered = self._by_excess(outlier)
        first = max(len(ordered) - THRESHOLDS.tried_steps, 0) // 2 if outlier.persistent else 0
        return ordered[first : first + THRESHOLDS.tried_steps]

    def _by_excess(self, outlier: Outlier) -> list[int]:
        excess_ns = self.excess_ns(outlier)
        return sorted(outlier.steps, key=lambda number: -excess_ns[number])

    def workload(self, outlier: Outlier) -> WorkloadComparison:
        """Compare the work of an outlier's GPU operations with the other ranks', in its worst steps."""
        if outlier not in self._workloads:
            self._workloads[outlier] = (
                compare_workload(self.analysis, outlier, self.worst_steps(outlier))
                if outlier.pace is None
                else compare_for_work(self.analysis.outliers.launched_work[outlier.team].times(outlier.rank))
            )
        return self._workloads[outlier]

    def share_between_kernels(self, outlier: Outlier) -> float:
        """Return the share of a rank's excess on its GPU, in its worst steps, that no operation takes longer by."""
        if outlier.pace is not None or outlier.is_of_all_ranks or self.analysis.run.sizes[outlier.team] == 1:
            return 0.0
        whole_ns = float(self.excess_ns(outlier)[self.worst_steps(outlier)].sum())
        return 1 - self.workload(outlier).excess_ns / whole_ns if whole_ns > 0 else 0.0

    def share_in_own_launches(self, outlier: Outlier) -> float:
        """Return the share of a rank's loss, in its worst steps, at launches that most other ranks do not make."""
        run, own_ns, all_ns = self.analysis.run, 0.0, 0.0
        for number in self.worst_steps(outlier):
            key, counts = self.analysis.keys[number], np.zeros(run.operation_counts[outlier.team], np.int64)
            ranks = run.ranks(key, outlier.team)
            chosen = [ranks[at] for at in spread_positions(len(ranks), THRESHOLDS.sampled_ranks)]
            for rank in chosen:
                places = run.operations_of(key, rank)[1]
                counts[places[places >= 0]] += 1
            later = self.analysis.account.of_steps[number : number + THRESHOLDS.most_in_flight + 1]
            losses = join_losses([step.losses for step in later]).of(CLASSES_OF_PART[outlier.part], outlier.rank)
            longer = losses.where((losses.loss_ns > 0) & (losses.origin == number))
            is_launch = (longer.place >= 0) & (run.programs[outlier.team].kinds[longer.place] < SYNC)
            is_own = is_launch & (2 * counts[longer.place] <= len(chosen))
            own_ns, all_ns = own_ns + float(longer.loss_ns[is_own].sum()), all_ns + float(longer.loss_ns.sum())
        return own_ns / max(all_ns, 1.0)

    def share_in_exchanges(self, outlier: Outlier) -> float:
        """Return which part of its loss on the GPU lies in communication, where some exchanges name no partners.

        It may wait there for other ranks.
        """
        account, run = self.analysis.account, self.analysis.run
        if outlier.part is not TimePart.GPU or not run.matching.unpaired:
            return 0.0
        losses = join_losses([account.of_steps[number].losses for number in outlier.steps])
        own_losses = losses.of(CLASSES_OF_PART[TimePart.GPU], outlier.rank)
        longer = own_losses.where(own_losses.loss_ns > 0)
        communicates = (longer.place >= 0) & (run.programs[outlier.team].kinds[longer.place] == COLLECTIVE)
        return float(longer.loss_ns[communicates].sum()) / max(float(longer.loss_ns.sum()), 1.0)

    def marker_numbers(self, outlier: Outlier) -> tuple[str, ...]:
        """Return a sentence on the first number of its markers that is larger than all others' in its worst steps.

        Nothing where markers have different numbers of numbers, or other ranks did not record the steps.
        """
        keys = [self.analysis.keys[number] for number in self.worst_steps(outlier)]
        larger: list[tuple[tuple[int, str], tuple[float, float]]] = []
        for key in keys:
            numbers = {
                peer: parse_marker_numbers(step_record.step.marker or "", key.step, key.epoch, peer)
                for peer, step_record in self.records[key].items()
                if peer == outlier.rank or outlier.is_compared_with(peer)
            }
            stated = numbers.pop(outlier.rank, ())
            if not stated or not numbers or any(len(of_peer) != len(stated) for of_peer in numbers.values()):
                return ()
            for at, number in enumerate(stated):
                others = [of_peer[at].value for of_peer in numbers.values()]
                if number.value >= (1 + THRESHOLDS.min_clear_share) * max(others) and number.value > max(others):
                    larger.append(((at, number.name), (number.value, median_low(others))))
        for (_, name), values in by_key(larger).items():
            if len(values) == len(keys):
                what, (own_value, other_value) = name.replace("_", " "), values[0]
                return (
                    f"its step markers state more work: {what} is {own_value:g} against {other_value:g} on the other "
                    "ranks",
                )
        return ()

    def own_details(self, outlier: Outlier) -> list[str]:
        """Return what costs host time to record, and is known of the rank's launches but not of most other ranks'."""
        records = self.records[self.analysis.keys[self.worst_steps(outlier)[0]]]
        of_rank = records[outlier.rank].record
        others = [of_peer.record for rank, of_peer in records.items() if outlier.is_compared_with(rank)]
        details = []
        for column, words in _DETAILS.items():
            stated = sum(column not in other.empty_columns for other in others)
            if column not in of_rank.empty_columns and 2 * stated < len(others):
                details.append(words)
        return details

    def data_loading(self, outlier: Outlier, *, is_most: bool) -> OwnTime | None:
        """Return the time in data-loading ranges in steps of an outlier, as `_compare_hosts`."""
        return self._compare_hosts(outlier, HostEvents.loading, self._main_ns(outlier) if is_most else -math.inf)

    def held_up(self, outlier: Outlier, pattern: re.Pattern[str], *, is_after: bool) -> OwnTime | None:
        """Return how long events whose name the pattern matches held up the host for most of what makes it late.

        If `is_after`, at the ends of steps that its time after their last launches makes late.
        """
        return self._compare_hosts(
            outlier,
            lambda host, key: host.of_events(pattern, key, is_after=is_after),
            self._main_ns(outlier),
            is_after=is_after,
        )

    def _main_ns(self, outlier: Outlier) -> float:
        """Return what most of an outlier's excess is at least, ns per step."""
        return THRESHOLDS.main_share * outlier.excess_ns / len(outlier.steps)

    def long_operation(self, outlier: Outlier, *, is_after: bool = False) -> LongOperation | None:
        """Return the operation between launches that takes most of what makes a host late in its worst steps.

        If `is_after`, at the ends of steps that its time after their last launches makes late.
        """
        if (asked := (outlier, is_after)) not in self._operations:  # by each rule about it
            self._operations[asked] = self._find_operation(*asked)
        return self._operations[asked]

    def _find_operation(self, outlier: Outlier, is_after: bool) -> LongOperation | None:
        keys = self._keys_of(outlier, self.worst_steps(outlier), is_after=is_after)
        others = self._others(outlier, keys)
        sampled = [others[at] for at in spread_positions(len(others), THRESHOLDS.sampled_ranks)]
        start: Gap = "before the first kernel" if outlier.part == TimePart.START else "between launches"
        return self.host_gaps.find_operation(
            [(key, outlier.rank) for key in keys],
            sampled,
            "after the last launch" if is_after else start,
            self._main_ns(outlier),
        )

    def _keys_of(self, outlier: Outlier, steps: Sequence[int], *, is_after: bool = False) -> list[StepKey]:
        """Return steps of an outlier; if `is_after`, those with the last launches before its late time."""
        # the account charges it to the next step's start where that is late
        back = int(is_after and outlier.part == TimePart.START)
        return [self.analysis.keys[number - back] for number in steps if number >= back]

    def _others(self, outlier: Outlier, keys: Sequence[StepKey]) -> list[RankStep]:
        """Return what an outlier's steps are compared with: the other ranks'; of all ranks alike, its other steps."""
        if not outlier.is_of_all_ranks:
            return [(key, rank) for key in keys for rank in self.records[key] if outlier.is_compared_with(rank)]
        late = {self.analysis.keys[number] for number in outlier.steps}.union(keys)
        others = (key for key in self.analysis.keys if key not in late)
        return [(key, outlier.rank) for key in others if outlier.rank in self.records[key]]

    def _compare_hosts(
        self,
        outlier: Outlier,
        of_step: Callable[[HostEvents, StepKey], HostTimes],
        least_ns: float,
        *,
        is_after: bool = False,
    ) -> OwnTime | None:
        """Return a rank's time beside that of the other ranks; of all ranks alike, beside that in its other steps.

        None where it is not above its baseline by `least_ns` per step, or no recording states any.
        """
        keys = self._keys_of(outlier, self._telling_steps(outlier), is_after=is_after)

        def times_ns(key: StepKey, rank: int) -> float:
            return of_step(self.analysis.lake.host(key, rank), key).total_ns if rank in self.records[key] else 0.0

        own_times_ns = [times_ns(key, outlier.rank) for key in keys]
        if (own_ns := float(np.median(own_times_ns))) < least_ns:
            return None  # the others' files are read only where they matter
        others = [times_ns(*other) for other in self._others(outlier, keys)]
        others_ns = float(np.median(others)) if others else None
        is_more = own_ns - (others_ns or 0.0) >= least_ns
        return OwnTime(own_ns, others_ns) if is_more and any((*own_times_ns, *others)) else None

    @cached_property
    def side_work_times(self) -> Mapping[str, Mapping[StepKey, Mapping[int, int]]]:
        """By kind of side work that occurs: its time, ns, by step and rank, as the records state it."""
        times_of: dict[str, dict[StepKey, dict[int, int]]] = {}
        for key, ranks in self.records.items():
            for rank, (_, step) in ranks.items():
                for kind in SIDE_WORK:
                    if (ns := getattr(step, f"{kind}_ns")) is not None:
                        times_of.setdefault(kind, {}).setdefault(key, {})[rank] = ns
        return dict(sorted(times_of.items()))

    def side_work(self, outlier: Outlier, *, is_after: bool = False) -> dict[str, str]:
        """Return evidence, by kind, that a checkpoint or validation explains most of an outlier; empty if none does.

        If `is_after`, of its time after the last launches of steps.
        """
        keys = self._keys_of(outlier, self.worst_steps(outlier), is_after=is_after)
        recorded = [key for key in keys if outlier.rank in self.records[key]]
        hosts = {key: self.analysis.lake.host(key, outlier.rank) for key in recorded}
        sentences = {}
        for kind in SIDE_WORK:
            times = [host.of_events(kind, key, is_after=is_after) for key, host in hosts.items()]
            of_rank = [each.total_ns for each in times if len(each.names)]
            if of_rank and sum(of_rank) / len(keys) >= self._main_ns(outlier):
                where = "one step" if len(keys) == 1 else f"{len(of_rank)} of {len(keys)} steps"
                sentences[kind] = (
                    f"a {kind} takes {format_time(sum(of_rank) / len(of_rank))} of its host's time in {where} "
                    f"(`{next(each.names[0] for each in times if each.names)}`)"
                )
        return sentences
