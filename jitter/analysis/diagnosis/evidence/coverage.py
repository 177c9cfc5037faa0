"""Coverage: which ranks, members and steps of the job were not recorded, and what waits for them."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from jitter.analysis.detection.findings import Finding
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.replay.what_if import Scenario
from jitter.core.numeric.arrays import Bools
from jitter.core.step_key import StepKey
from jitter.lake.rank_coverage import rank_coverage
from jitter.lake.records import RankStepRecord, SourceRecord


class Coverage:
    """What the recordings of one analysis lack of the job."""

    def __init__(
        self,
        analysis: RunAnalysis,
        records: Mapping[StepKey, Mapping[int, RankStepRecord]],
        unread_ranks: frozenset[int],
    ) -> None:
        """`unread_ranks` are ranks whose recordings could not be ingested or read."""
        self._analysis, self._records, self._unread_ranks = analysis, records, unread_ranks

    @cached_property
    def _sources(self) -> list[SourceRecord]:
        records = [step_record.record for of_step in self._records.values() for step_record in of_step.values()]
        return list({record.digest: record for record in records}.values())

    @cached_property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job without a recording: by world size, holes in the ranks, or unreadable recordings."""
        return tuple(sorted(self.unread_ranks.union(rank_coverage(self._sources).missing, self.incomplete_ranks)))

    @cached_property
    def unread_ranks(self) -> frozenset[int]:
        """Ranks whose only recordings could not be ingested or read."""
        return self._unread_ranks.difference(rank_coverage(self._sources).ranks)

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
        """Whether process groups name ranks that the lake lacks, or rank numbers are missing."""
        ranks = self._analysis.run.team_of
        return max(self._analysis.run.matching.named, max(ranks, default=-1) + 1) > len(ranks)

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
        meetings = analysis.run.collective_arrays.meetings(groups)
        ended = Scenario(transfers=dict.fromkeys(meetings, frozenset(range(len(analysis.keys)))))
        baseline = analysis.transfers.baseline
        usual = analysis.transfers.of_like_steps(lambda numbers: np.where(groups, 0.0, baseline[numbers[0]]))
        return analysis.gain(usual, ended)

    def waits_ns(self, steps: Sequence[int]) -> float:
        """Return how long the ends of some steps may have waited for ranks that were not recorded, ns.

        The time in collectives after the last recorded rank arrives.
        """
        if not self._names_unrecorded:
            return 0.0
        groups = self.incomplete_groups
        return sum(self.transfers_ns(number, groups) for number in steps)

    def transfers_ns(self, number: int, groups: Bools) -> float:
        """Return how long the end of a step waits for transfers of some groups, ns, as the account passes it on."""
        account = self._analysis.account.of_steps[number]
        here = groups[account.groups]
        took_ns = self._analysis.transfers.took[number][account.groups[here]]
        return float(np.nansum(took_ns * account.passed[here]))

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
        collectives = self._analysis.run.matching.collectives
        of_meetings = ((collectives[number], group) for number, group in slow.meetings)
        return {
            rank
            for collective, group in of_meetings
            if collective.is_incomplete(group)
            for rank in collective.absent[group]
        }

    def unrecorded_members(self, slow: Finding) -> tuple[int, ...]:
        """Return the ranks that the job lacks, and members of slow collectives without these or a step of them."""
        lacking = set(self.missing_ranks) | self._absent_members(slow)
        for number in slow.steps:
            records = self._records[self._analysis.keys[number]]
            lacking |= {rank for rank in slow.ranks if rank not in records or records[rank].step.cut}
        return tuple(sorted(lacking))
