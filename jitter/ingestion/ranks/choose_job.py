"""The job to take where recordings of several jobs are given: the largest group that can be of one job."""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from jitter.core.errors import RejectedForAnotherError
from jitter.core.formatting import format_count
from jitter.core.step_key import StepKey
from jitter.ingestion.ranks.job_identity import (
    RESTART_NS,
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

    def merge(self, other_job: "GivenJob") -> None:
        """Add the recordings of another job, which runs other programs."""
        programs = [*self.programs, *other_job.programs]
        for recording in other_job.recordings:
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
        mismatches = (self.job.find_mismatch(rank, place) for rank in recording.ranks)
        return next((mismatch for mismatch in mismatches if mismatch is not None), None)

    def find_contradiction(self, other_job: "GivenJob", place: str) -> tuple[GivenRecording, Mismatch] | None:
        """Return a recording of another job that cannot be of this one, with the reason; None if all may."""
        for recording in other_job.recordings:
            mismatch = self.find_mismatch(recording, place)
            if mismatch is not None:
                return recording, mismatch
        return None

    def shared_kernels(self, other_job: "GivenJob") -> float:
        """Return the largest share of kernels (0 to 1) that programs of both have in common."""
        pairs = [(program, other_program) for program in self.programs for other_program in other_job.programs]
        return max((program.shared_kernels(other_program) or 0.0 for program, other_program in pairs), default=0.0)

    def time_apart(self, other_job: "GivenJob") -> int:
        """Return the ns between two jobs by wall clock; 0 if they overlap or one has no wall clock."""
        return time_apart(self.job.utc_range, other_job.job.utc_range)

    def describe(self) -> str:
        """Return the job in a few words, with its files."""
        names = [path.name for path in sorted(recording.path for recording in self.recordings)]
        rest_text = f" and {format_count(len(names) - _SHOWN, 'more file')}" if len(names) > _SHOWN else ""
        files = f" ({', '.join(names[:_SHOWN])}{rest_text})" if names else ""
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
        largest.rank_steps >= CLEAR_RATIO * other_job.rank_steps and largest.ranks >= other_job.ranks
        for other_job in others
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
    for recording in sorted(recordings, key=lambda recording: (recording.utc_range or (0, 0), str(recording.path))):
        add_by_program(recording, groups, is_one_run=is_one_run)
    return groups


def _merge(groups: Sequence[GivenJob], lake: GivenJob | None) -> list[GivenJob]:
    """Return the jobs that groups of one program each make, the most alike joined first, where nothing contradicts.

    Stages of a pipeline share some kernels, and those of two jobs fewer. The lake's job comes first.
    """
    job_of = [lake, *groups] if lake is not None else list(groups)
    pairs = [(first, second) for second in range(len(job_of)) for first in range(second)]
    pairs.sort(key=lambda pair: _distance(job_of[pair[0]], job_of[pair[1]]))
    for first, second in pairs:
        job, added = job_of[first], job_of[second]
        if job is added:
            continue
        if added is lake or (job is not lake and len(added.recordings) > len(job.recordings)):
            job, added = added, job
        if job.find_contradiction(added, "") is None:
            job.merge(added)
            job_of = [job if each is added else each for each in job_of]
    return list(dict.fromkeys(job_of))


def _distance(group: GivenJob, other_group: GivenJob) -> tuple[float, int, int]:
    """Return how little two groups have in common: in kernels, in time, and by their size."""
    return -group.shared_kernels(other_group), group.time_apart(other_group), -group.rank_steps - other_group.rank_steps


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
        size = sum(member.size for member in leading.recordings)
        if len(leading.recordings) <= _MAJORITY * self._count or size <= _MAJORITY * self._bytes:
            return []
        members = set(leading.recordings)
        certain = [
            candidate for candidate in self._waiting if candidate in members and candidate not in self._contested
        ]
        for settled in certain:
            del self._waiting[settled]
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
        recordings: dict[GivenRecording, None] = {}
        is_met = False
        for rank in recording.ranks:
            for sequence in rank.sequences:
                if self._rank_of.setdefault(sequence, rank.rank) == rank.rank:
                    self._alone.setdefault(sequence, []).append(recording)
                else:
                    self._rank_of[sequence] = None
                    recordings |= dict.fromkeys(self._alone.pop(sequence, []))
                    is_met = True
        new = [candidate for candidate in recordings if candidate not in self._met and candidate is not recording]
        new += [recording] if is_met else []
        self._met |= set(new)
        return new


_SAME_JOB = "--same-job if it is the same job"


class OtherJobError(RejectedForAnotherError):
    """A recording that cannot belong to the job that is taken; `cause` is the other job in words."""


class UndecidedJobError(OtherJobError):
    """A recording of one of several jobs of similar size, of which none is taken."""


def left_out_errors(choice: JobChoice, lake: Path) -> list[tuple[GivenRecording, OtherJobError]]:
    """Return the recordings that are not taken, each with its error. `lake` is the lake's folder."""
    if choice.taken is None:
        return _undecided_errors(choice)
    errors = []
    place = "in the lake" if choice.is_in_lake else "in the job that is taken"
    for job in choice.left_out:
        for recording, reason in _reasons(choice.taken, job, place):
            if choice.is_in_lake:
                error = not_in_lake_error(recording.path, reason, choice.taken, job, lake)
            else:
                error = _not_taken_error(recording.path, reason, choice.taken, job)
            errors.append((recording, error))
    return errors


def not_in_lake_error(path: Path, reason: str, in_lake: GivenJob, job: GivenJob, lake: Path) -> OtherJobError:
    """Return the error for a recording of `job`, which is another one than the job in the lake."""
    size = "the job in the lake is the smaller one: " if job.rank_steps > in_lake.rank_steps else ""
    replace = f"jitter ingest {shlex.quote(str(_folder(job)))} -o {shlex.quote(str(lake))} --replace"
    error = OtherJobError(
        f"{path}: recorded in another job than the one in the lake: {reason}. In the lake: {in_lake.describe()}. "
        f"Left out: {job.describe()}",
        f"{size}a lake holds one job: use another lake (`ingest -o LAKE`, `report -L LAKE`), `{replace}` to replace "
        f"the job in the lake, or {_SAME_JOB}",
    )
    error.cause = job.describe()
    return error


def _not_taken_error(path: Path, reason: str, taken_job: GivenJob, job: GivenJob) -> OtherJobError:
    error = OtherJobError(
        f"{path}: recorded in another job than most of these traces: {reason}. Taken: "
        f"{taken_job.describe()}. Left out: {job.describe()}",
        f"a lake holds one job: ingest the other one alone into another lake (`ingest -o LAKE`), or {_SAME_JOB}",
    )
    error.cause = job.describe()
    return error


def _undecided_errors(choice: JobChoice) -> list[tuple[GivenRecording, OtherJobError]]:
    """Return one error for all recordings."""
    first, second = choice.jobs[:2]
    (example, reason), *_ = _reasons(first, second, "in the first")
    described = "; ".join(f"{number}) {job.describe()}" for number, job in enumerate(choice.jobs, 1))
    folders = [shlex.quote(str(_folder(job))) for job in choice.jobs]
    way = "move the files of one job into a folder of its own, and ingest that"
    if len(set(folders)) == len(folders):
        way = f"ingest one of them: `jitter ingest {folders[0]}` or `jitter ingest {folders[1]}`"
    error = UndecidedJobError(
        f"{format_count(len(choice.jobs), 'job')} stand here, none of them clearly the largest, and a lake holds one: "
        f"{described}. Of {example.path.name} in the second, {reason}. Nothing was written",
        f"{way}; or give {_SAME_JOB}",
    )
    return [(recording, error) for job in choice.jobs for recording in job.recordings]


def _reasons(taken_job: GivenJob, job: GivenJob, place: str) -> Iterator[tuple[GivenRecording, str]]:
    """Yield each recording of a job with the reason why it is not of the job that is taken."""
    recordings = sorted(job.recordings, key=lambda recording: recording.path)
    mismatches = [(recording, taken_job.find_mismatch(recording, place)) for recording in recordings]
    example = next(
        ((member.path.name, mismatch.reason) for member, mismatch in mismatches if mismatch is not None), None
    )
    for recording, mismatch in mismatches:
        if mismatch is not None:
            yield recording, mismatch.reason
        elif example is not None:
            yield recording, f"it goes with {example[0]}, of which: {example[1]}"
        else:
            yield recording, "its kernels are those of another job"


def _folder(job: GivenJob) -> Path:
    """Return the folder that holds all recordings of a job."""
    return Path(os.path.commonpath([recording.path.parent for recording in job.recordings]))


_REASONS: Final = (
    "which runs the sequence of kernels of more other ranks",
    "which shares more kernels with the other ranks",
    "which was recorded nearer in time to the other ranks",
    "which holds more whole steps",
    "which holds more kernels",
    "which is of the format of more other ranks",
)
"""Why one of two recordings is the more likely one: for each value of `_fit`."""
_SAME_RUN: Final = "a second recording of about the same time, of which one is enough"
_UNDECIDED: Final = "and nothing tells which of the two is right: neither is taken"


Claims = list[tuple[int, StepKey]]
"""Ranks with a step."""
Rivals = dict[GivenRecording, dict[GivenRecording, Claims]]
"""By recording the other ones that hold some of its steps, with these."""


class StepConflict(NamedTuple):
    """A recording that is left out, and another one that holds some of its steps; `reason` describes the other one."""

    recording: GivenRecording
    other: GivenRecording
    rank: int
    steps: list[StepKey]
    reason: str


def find_conflicts(recordings: Iterable[GivenRecording], ranks: Sequence[RecordedRank]) -> list[StepConflict]:
    """Return the recordings to leave out because another one holds the same step of the same rank.

    Of two such recordings the one that is more like the other `ranks` of the job is taken, then the more complete one.
    Of two that nothing tells apart, one is taken if they are of the same time, else none.
    """
    rivals = _rivals(recordings)
    fits = {recording: _fit(recording, ranks) for recording in rivals}
    conflicts: dict[GivenRecording, StepConflict] = {}
    undecided: set[GivenRecording] = set()
    for _, equals in groupby(
        sorted(rivals, key=lambda recording: (fits[recording], _start_and_content(recording))), key=fits.__getitem__
    ):
        best = []
        for recording in equals:
            better = [rival for rival in rivals[recording] if fits[rival] < fits[recording]]
            better = [rival for rival in better if rival not in conflicts or rival in undecided]
            if better:
                conflicts[recording] = _conflict(
                    recording, better[0], rivals[recording], _explain(fits[recording], fits[better[0]])
                )
            else:
                best.append(recording)
        for place, recording in enumerate(best):
            alike = [rival for rival in best if rival in rivals[recording]]
            apart = [rival for rival in alike if not _is_same_time(recording, rival)]
            before = [rival for rival in alike if rival in best[:place] and rival not in conflicts]
            if apart:
                conflicts[recording] = _conflict(recording, apart[0], rivals[recording], _UNDECIDED)
                undecided.add(recording)
            elif before:
                conflicts[recording] = _conflict(recording, before[0], rivals[recording], _SAME_RUN)
    return list(conflicts.values())


def _rivals(recordings: Iterable[GivenRecording]) -> Rivals:
    claims: dict[tuple[int, StepKey], list[GivenRecording]] = {}
    for recording in recordings:
        for rank in recording.ranks:
            for step in rank.record.steps:
                claims.setdefault((rank.rank, step.key), []).append(recording)
    rivals: Rivals = {}
    for claim, holders in claims.items():
        for holder in holders if len(holders) > 1 else ():
            for rival in holders:
                if rival is not holder:
                    rivals.setdefault(holder, {}).setdefault(rival, []).append(claim)
    return rivals


def _fit(recording: GivenRecording, ranks: Sequence[RecordedRank]) -> tuple[float, ...]:
    """Return how unlikely a recording is, compared with `ranks`: the least is the most likely."""
    recorded_ranks = {rank.rank for rank in recording.ranks}
    others = [other_rank for other_rank in ranks if other_rank.rank not in recorded_ranks]
    pairs = [(rank, other_rank) for rank in recording.ranks for other_rank in others]
    steps = [step for rank in recording.ranks for step in rank.record.steps]
    return (
        -sum(bool(rank.sequences & other_rank.sequences) for rank, other_rank in pairs),
        -max((rank.shared_kernels(other_rank) or 0.0 for rank, other_rank in pairs), default=0.0),
        min((time_apart(rank.utc_range, other_rank.utc_range) for rank, other_rank in pairs), default=0),
        -sum(not step.cut for step in steps),
        -sum(step.kernels for step in steps),
        -sum(rank.record.format == other_rank.record.format for rank, other_rank in pairs),
    )


def _start_and_content(recording: GivenRecording) -> tuple[int, str]:
    """Return a key by which the first of several alike recordings is the same one on every rank."""
    return (recording.utc_range or (0,))[0], recording.ranks[0].record.file_digest


def _explain(fit: tuple[float, ...], better: tuple[float, ...]) -> str:
    return next(
        reason for reason, fit_part, better_part in zip(_REASONS, fit, better, strict=True) if fit_part != better_part
    )


def _conflict(
    recording: GivenRecording, rival: GivenRecording, rivals: dict[GivenRecording, Claims], reason: str
) -> StepConflict:
    rank = min(rank for rank, _ in rivals[rival])
    steps = sorted((key for of_rank, key in rivals[rival] if of_rank == rank), key=lambda key: key.order)
    return StepConflict(recording, rival, rank, steps, reason)


def _is_same_time(recording: GivenRecording, rival: GivenRecording) -> bool:
    """Return whether two recordings state wall clocks that overlap: one execution was recorded twice."""
    ranges = recording.utc_range, rival.utc_range
    return None not in ranges and time_apart(*ranges) <= RESTART_NS
