"""The job that is taken, told before all recordings are read: what is of it for certain can be published at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from jitter.core.step_key import StepKey
from jitter.ingestion.ranks.choose_job import GivenJob, GivenRecording, add_by_program, distinct_programs
from jitter.ingestion.ranks.job_identity import RecordedRank

_MAJORITY: Final = 2 / 3
"""Share of the recordings, in number and in bytes, above which their job is taken whatever the others are."""


class LeadingJob:
    """Divides recordings into jobs while they are read, and tells which of them are of the leading job for certain.

    These run the sequence of kernels of another rank, and no other recording holds their steps. The others wait until
    all are read. The job of a lake always leads.
    """

    def __init__(self, in_lake: Sequence[RecordedRank], given: int, given_bytes: int) -> None:
        """`given` is the number of recordings that are to be read, `given_bytes` the bytes of their files."""
        self._has_lake = bool(in_lake)
        self._groups: list[GivenJob] = [GivenJob(is_one_run=False)] if in_lake else []
        self._rank_of: dict[str, int | None] = {}
        """The rank that runs a sequence of kernels; None: several ranks do."""
        self._alone: dict[str, list[GivenRecording]] = {}
        """The recordings of a sequence that one rank runs."""
        self._met: set[GivenRecording] = set()
        self._holder: dict[tuple[int, StepKey], GivenRecording] = {}
        self._contested: set[GivenRecording] = set()
        self._waiting: dict[GivenRecording, None] = {}
        """Recordings that are in a group and have not been returned, in the order in which they came."""
        by_file: dict[str, list[RecordedRank]] = {}
        for rank in in_lake:
            by_file.setdefault(rank.record.file, []).append(rank)
        for file, ranks in by_file.items():
            recording = GivenRecording(Path(file), ranks)
            self._groups[0].add(recording)
            self._claim(recording)
            self._find_met(recording)
            self._met.add(recording)
        if in_lake:
            self._groups[0].programs = distinct_programs(in_lake)
        self._count = given + len(by_file)
        self._bytes = given_bytes + sum(ranks[0].record.size for ranks in by_file.values())

    def add(self, recording: GivenRecording) -> list[GivenRecording]:
        """Add a recording, and return the recordings that have become certain by it."""
        self._claim(recording)
        for met in self._find_met(recording):
            add_by_program(met, self._groups, is_one_run=not self._has_lake)
            self._waiting[met] = None
        largest = self._groups[:1] if self._has_lake else self._groups
        leading = max(largest, key=lambda group: len(group.recordings), default=GivenJob())
        size = sum(one.size for one in leading.recordings)
        if len(leading.recordings) <= _MAJORITY * self._count or size <= _MAJORITY * self._bytes:
            return []
        members = set(leading.recordings)
        certain = [one for one in self._waiting if one in members and one not in self._contested]
        for one in certain:
            del self._waiting[one]
        return certain

    def _claim(self, recording: GivenRecording) -> None:
        """Note the steps that a recording holds, and which recordings hold one of them too."""
        for rank in recording.ranks:
            for step in rank.record.steps:
                holder = self._holder.setdefault((rank.rank, step.key), recording)
                if holder is not recording:
                    self._contested |= {holder, recording}

    def _find_met(self, recording: GivenRecording) -> list[GivenRecording]:
        """Return the recordings of which it turns out that another rank runs their sequence, this one last."""
        found: dict[GivenRecording, None] = {}
        is_met = False
        for rank in recording.ranks:
            for sequence in rank.sequences:
                if self._rank_of.setdefault(sequence, rank.rank) == rank.rank:
                    self._alone.setdefault(sequence, []).append(recording)
                else:
                    self._rank_of[sequence] = None
                    found |= dict.fromkeys(self._alone.pop(sequence, []))
                    is_met = True
        new = [one for one in found if one not in self._met and one is not recording]
        new += [recording] if is_met else []
        self._met |= set(new)
        return new
