"""The job to take where recordings of several jobs are given: the largest group that can be of one job."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from jitter.core.formatting import format_count
from jitter.ingestion.ranks.job_identity import (
    SHARED_LEAST,
    JobRanks,
    Mismatch,
    RecordedRank,
    UtcRange,
    describe_job,
    time_apart,
)

CLEAR_RATIO: Final = 2
"""How many times the ranks × steps of the second largest job the largest has at least, to be taken."""
_MOST_PROGRAMS: Final = 16
"""Programs of a lake that others are compared with."""
_SHOWN: Final = 2
"""Files of a job that a message names; it counts the others."""


@dataclass(eq=False)
class GivenRecording:
    """One recording: the file it was read from, and its ranks."""

    path: Path
    ranks: Sequence[RecordedRank]

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return self.ranks[0].record.size

    @property
    def utc_range(self) -> UtcRange | None:
        """First and last time of its steps, as `RecordedRank.utc_range`."""
        return next((rank.utc_range for rank in self.ranks if rank.utc_range is not None), None)


class GivenJob:
    """Recordings that can be of one job."""

    def __init__(self, *, is_one_run: bool = True) -> None:
        self.recordings: list[GivenRecording] = []
        self.job = JobRanks(is_one_run=is_one_run)
        self.programs: list[RecordedRank] = []
        """One rank of each program that its ranks run."""

    def add(self, recording: GivenRecording) -> None:
        """Add a recording, whatever it is."""
        self.recordings.append(recording)
        self.programs = self.programs or list(recording.ranks[:1])
        for rank in recording.ranks:
            self.job.add(rank)

    def merge(self, other: "GivenJob") -> None:
        """Add the recordings of another job, which runs other programs."""
        programs = [*self.programs, *other.programs]
        for recording in other.recordings:
            self.add(recording)
        self.programs = programs

    @property
    def ranks(self) -> int:
        """The number of different ranks."""
        return len({rank.rank for rank in self.job.ranks})

    @property
    def rank_steps(self) -> int:
        """Ranks × steps: the number of different steps of each rank, summed up."""
        return len({(rank.rank, step.key) for rank in self.job.ranks for step in rank.record.steps})

    def find_mismatch(self, recording: GivenRecording, place: str = "in the job that is taken") -> Mismatch | None:
        """Return why the recording is of another job; None if it may belong to this one."""
        found = (self.job.find_mismatch(rank, place) for rank in recording.ranks)
        return next((mismatch for mismatch in found if mismatch is not None), None)

    def find_contradiction(self, other: "GivenJob", place: str) -> tuple[GivenRecording, Mismatch] | None:
        """Return a recording of another job that cannot be of this one, with the reason; None if all may."""
        for recording in other.recordings:
            mismatch = self.find_mismatch(recording, place)
            if mismatch is not None:
                return recording, mismatch
        return None

    def shared_kernels(self, other: "GivenJob") -> float:
        """Return the largest share of kernels (0 to 1) that programs of both have in common."""
        pairs = [(one, two) for one in self.programs for two in other.programs]
        return max((one.shared_kernels(two) or 0.0 for one, two in pairs), default=0.0)

    def time_apart(self, other: "GivenJob") -> int:
        """Return the ns between two jobs by wall clock; 0 if they overlap or one has no wall clock."""
        return time_apart(self.job.utc_range, other.job.utc_range)

    def describe(self) -> str:
        """Return the job in a few words, with its files."""
        names = [path.name for path in sorted(recording.path for recording in self.recordings)]
        more = f" and {format_count(len(names) - _SHOWN, 'more file')}" if len(names) > _SHOWN else ""
        files = f" ({', '.join(names[:_SHOWN])}{more})" if names else ""
        return describe_job([rank.record for rank in self.job.ranks]) + files


class JobChoice(NamedTuple):
    """The jobs among given recordings, the largest first, and the one to take; None: two are of similar size."""

    jobs: list[GivenJob]
    taken: GivenJob | None
    is_in_lake: bool
    """Whether the lake held the job before."""

    @property
    def left_out(self) -> list[GivenJob]:
        """The jobs that are not taken."""
        return [job for job in self.jobs if job is not self.taken]


def choose_job(
    recordings: Sequence[GivenRecording], in_lake: Sequence[RecordedRank], *, is_one_run: bool = True
) -> JobChoice:
    """Divide the recordings into jobs and choose one: the job of the lake, else the largest in ranks × steps.

    `is_one_run` takes recordings of the same steps by two runs for two jobs; of a lake they are one.
    """
    lake = GivenJob(is_one_run=is_one_run and not in_lake)
    for rank in in_lake:
        lake.job.add(rank)
    if _all_fit(recordings, lake):
        for recording in recordings:
            lake.add(recording)
        return JobChoice([lake], lake, bool(in_lake))
    lake.programs = distinct_programs(in_lake)
    jobs = _merge(_divide_by_program(recordings, is_one_run=is_one_run), lake if in_lake else None)
    if in_lake:
        return JobChoice(jobs, lake, True)
    jobs.sort(key=lambda job: (-job.rank_steps, -job.ranks))
    largest, *others = jobs
    is_clear = all(
        largest.rank_steps >= CLEAR_RATIO * other.rank_steps and largest.ranks >= other.ranks for other in others
    )
    return JobChoice(jobs, largest if is_clear else None, False)


def take_as_one_job(recordings: Iterable[GivenRecording]) -> JobChoice:
    """Return the choice of all recordings, whatever contradicts it."""
    job = GivenJob()
    for recording in recordings:
        job.add(recording)
    return JobChoice([job], job, False)


def distinct_programs(ranks: Iterable[RecordedRank]) -> list[RecordedRank]:
    """Return one rank of each of the programs of a lake's ranks, as many as recordings are compared with."""
    return list({rank.sequences: rank for rank in ranks}.values())[:_MOST_PROGRAMS]


def add_by_program(recording: GivenRecording, groups: list[GivenJob], *, is_one_run: bool) -> None:
    """Add a recording to the group that runs its program and does not contradict it, else to a new one."""
    alone = GivenJob(is_one_run=is_one_run)
    alone.add(recording)
    alike = [
        group
        for group in groups
        if alone.shared_kernels(group) >= SHARED_LEAST and group.find_mismatch(recording) is None
    ]
    if len(alike) > 1:
        alike.sort(key=lambda group: (group.time_apart(alone), -group.rank_steps))
    if alike:
        alike[0].add(recording)
    else:
        groups.append(alone)


def _all_fit(recordings: Iterable[GivenRecording], lake: GivenJob) -> bool:
    """Return whether nothing contradicts that the recordings are of one job; looks at few kernels."""
    job = GivenJob(is_one_run=lake.job.is_one_run)
    for rank in lake.job.ranks:
        job.job.add(rank)
    for recording in recordings:
        if job.find_mismatch(recording) is not None:
            return False
        job.add(recording)
    return True


def _divide_by_program(recordings: Iterable[GivenRecording], *, is_one_run: bool) -> list[GivenJob]:
    """Return groups of recordings that run one program and do not contradict each other.

    In order of time, the recordings of a first run come before those of a second one.
    """
    groups: list[GivenJob] = []
    for recording in sorted(recordings, key=lambda one: (one.utc_range or (0, 0), str(one.path))):
        add_by_program(recording, groups, is_one_run=is_one_run)
    return groups


def _merge(groups: Sequence[GivenJob], lake: GivenJob | None) -> list[GivenJob]:
    """Return the jobs that groups of one program each make, the most alike joined first, where nothing contradicts.

    Stages of a pipeline share some kernels, and those of two jobs fewer. The lake's job comes first.
    """
    job_of = [lake, *groups] if lake is not None else list(groups)
    pairs = [(one, other) for other in range(len(job_of)) for one in range(other)]
    pairs.sort(key=lambda pair: _distance(job_of[pair[0]], job_of[pair[1]]))
    for one, other in pairs:
        job, added = job_of[one], job_of[other]
        if job is added:
            continue
        if added is lake or (job is not lake and len(added.recordings) > len(job.recordings)):
            job, added = added, job
        if job.find_contradiction(added, "") is None:
            job.merge(added)
            job_of = [job if each is added else each for each in job_of]
    return list(dict.fromkeys(job_of))


def _distance(one: GivenJob, other: GivenJob) -> tuple[float, int, int]:
    """Return how little two groups have in common: in kernels, in time, and by their size."""
    return -one.shared_kernels(other), one.time_apart(other), -one.rank_steps - other.rank_steps
