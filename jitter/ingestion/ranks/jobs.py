"""Which recordings are of one job, and which job to take where recordings of several are given."""

import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise, permutations
from pathlib import Path
from statistics import median_low
from typing import Final, Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.errors import JitterError, LakeError, RejectedForAnotherError, UnknownRankError
from jitter.core.formatting import format_count, format_time
from jitter.core.grouping import by_key
from jitter.core.names.kernels import KINDS, MEMORY
from jitter.core.step_key import StepKey
from jitter.ingestion.ranks.decide_ranks import BY_NAME, DEVICE_ORDER
from jitter.lake.layout import kernels_file
from jitter.lake.parquet import read_kernels
from jitter.lake.records import TRAIN, SourceRecord, StepRecord

CLEAR_RATIO: Final = 2
"""How many times the ranks × steps of the second largest job the largest has at least, to be taken."""
SHARED_LEAST: Final = 0.5
"""Share of kernels that two recordings of one rank have in common at least, if they are of one job."""
RERUN_NS: Final = 600 * 10**9
"""ns between recordings of one step by two ranks, above which they are of two runs; clocks of hosts differ by less."""
RESTART_NS: Final = 10**9
"""ns between two recordings of one step by one rank, above which they are of two runs: a restart takes longer."""
PACE_LEAST: Final = 1.25
"""Ratio of the times of the same steps on two ranks from which on they do not wait for each other."""
PACED_STEPS: Final = 8
"""Steps of the same numbers that tell it: a pipeline holds fewer."""
_VENDORS: Final = {"NVIDIA": ("nsys",), "AMD": ("rocp", "rpd")}
"""With the beginnings of the names of their profilers' formats."""
_DAY_NS: Final = 86_400 * 10**9
_LAST_DATE_NS: Final = 253_402_300_799 * 10**9
"""The end of the year 9999 in ns since 1970, the last that a date states."""
_MOST_PROGRAMS: Final = 16
"""Programs of a lake that others are compared with, one rank of each."""
_MAJORITY: Final = 2 / 3
"""Share of the recordings, in number and in bytes, above which their job is taken whatever the others are."""
_SHOWN: Final = 2
"""Files of a job that a message names; it counts the others."""
_SAME_JOB: Final = "--same-job if it is the same job"
_IN_TAKEN: Final = "in the job that is taken"


UtcRange = tuple[int, int]
"""First and last time in ns since 1970."""


class RecordedRank:
    """One rank of a recording: its record, and the files of its steps, which are read where needed."""

    def __init__(self, record: SourceRecord, folder: Path) -> None:
        """`folder` is the lake's."""
        assert record.rank is not None
        self.record = record
        self.rank = record.rank
        self.folder = folder

    def path_of(self, step: StepKey) -> Path:
        """Return the file of a step."""
        return self.folder / kernels_file(step, self.rank)

    @cached_property
    def sequences(self) -> frozenset[str]:
        """Digests of the sequences of kernels of its steps, without empty ones."""
        return frozenset(step.sequence for step in self.record.steps if step.kernels)

    @property
    def vendor(self) -> str | None:
        """The maker of its GPUs, by format or GPU model. GPUs of two makers are never of one job."""
        by_format = (vendor for vendor, formats in _VENDORS.items() if self.record.format.startswith(formats))
        return next(by_format, next(filter((self.record.gpu_model or "").startswith, _VENDORS), None))

    @cached_property
    def kernels(self) -> Counter[str]:
        """How often each kernel runs in a typical step: the one with the lower median of kernels."""
        steps = self.record.steps
        complete = [step for step in steps if not step.cut] or steps
        if not complete:
            return Counter()
        middle = median_low(step.kernels for step in complete)
        rows = self._read(next(step.key for step in complete if step.kernels == middle), "kernel_name", "kind")
        if rows is None:
            return Counter()
        kernels = rows["kernel_name"].cast(pa.string()).filter(pc.not_equal(rows["kind"], KINDS[MEMORY]))
        return Counter({row["values"]: row["counts"] for row in pc.value_counts(kernels).to_pylist()})

    @cached_property
    def groups(self) -> frozenset[frozenset[int]]:
        """The members of the groups of its first step's collectives, as far as the recording names them."""
        rows = self._read(self.record.steps[0].key, "group_ranks")
        return frozenset(frozenset(ranks) for ranks in (rows["group_ranks"].to_pylist() if rows else ()) if ranks)

    def _read(self, step: StepKey, *columns: str) -> pa.Table | None:
        """Return columns of a step; None of a file that is lost from the lake: `verify` and queries name it."""
        with suppress(LakeError):
            return read_kernels(self.path_of(step), columns)
        return None

    @property
    def utc_range(self) -> UtcRange | None:
        """First and last time of its steps; None without a wall clock or steps."""
        return self.record.utc_range

    def shared_kernels(self, other_rank: "RecordedRank") -> float | None:
        """Return the share of kernels (0 to 1) that a typical step of each has in common; None if either has none.

        Kernels count as often as they occur. Steps with equal sequences share all.
        """
        if self.sequences & other_rank.sequences:
            return 1.0
        if not self.kernels or not other_rank.kernels:
            return None
        return (self.kernels & other_rank.kernels).total() / max(self.kernels.total(), other_rank.kernels.total())


Claim = tuple[int, StepKey]
"""A rank and one of its steps."""


def claims_of(ranks: Iterable[RecordedRank]) -> set[Claim]:
    """Return the steps of these ranks."""
    return {(rank.rank, step.key) for rank in ranks for step in rank.record.steps}


def ranks_in_lake(records: Iterable[SourceRecord], root: Path) -> list[RecordedRank]:
    """Return the recorded ranks of a lake's records."""
    return [RecordedRank(record, root) for record in records]


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

    @property
    def has_assumed_rank(self) -> bool:
        """Whether it counts as rank 0 because it is alone, which says nothing of other ranks."""
        return any(rank.record.has_assumed_rank for rank in self.ranks)


Given = TypeVar("Given", bound=GivenRecording)


class RecordedJob:
    """Recorded ranks that can be of one job; tells whether another recording can belong to it.

    World size, date and the GPUs' vendor are compared with every rank, GPU model and kernels with recordings of the
    same rank only, since stages of a pipeline run other kernels.
    """

    def __init__(self, ranks: Iterable[RecordedRank] = (), *, is_one_run: bool = False) -> None:
        """`is_one_run` also takes a step that was run at two very different times for one of two runs."""
        self.is_one_run = is_one_run
        self.recordings: list[GivenRecording] = []
        self.ranks: list[RecordedRank] = []
        """The ranks of `recordings`, and of the lake if the job is in it."""
        self.programs: list[RecordedRank] = []
        """One rank of each program that its ranks run."""
        self._world: dict[int, RecordedRank] = {}
        self._vendors: dict[str, RecordedRank] = {}
        self._of_rank: dict[int, list[RecordedRank]] = {}
        self._extremes: dict[StepKey | None, tuple[RecordedRank, RecordedRank]] = {}
        """By step the rank that ended first and the rank that began last; None: of all ranks, whatever they ran."""
        for rank in ranks:
            self._add_rank(rank)

    def add(self, recording: GivenRecording) -> None:
        """Add a recording, whatever it is."""
        self.recordings.append(recording)
        self.programs = self.programs or list(recording.ranks[:1])
        for rank in recording.ranks:
            self._add_rank(rank)

    def _add_rank(self, rank: RecordedRank) -> None:
        self.ranks.append(rank)
        self._of_rank.setdefault(rank.rank, []).append(rank)
        if rank.record.world_size:
            self._world.setdefault(rank.record.world_size, rank)
        if rank.vendor is not None:
            self._vendors.setdefault(rank.vendor, rank)
        for step in (None, *self._steps_of(rank)) if rank.utc_range is not None else ():
            timed = (*self._extremes.get(step, ()), rank)
            self._extremes[step] = (
                min(timed, key=lambda one: _times(one)[1]),
                max(timed, key=lambda one: _times(one)[0]),
            )

    def merge(self, other_job: "RecordedJob") -> None:
        """Add the recordings of another job, which runs other programs."""
        programs = [*self.programs, *other_job.programs]
        for recording in other_job.recordings:
            self.add(recording)
        self.programs = programs

    @property
    def rank_steps(self) -> int:
        """Ranks × steps: the number of different steps of each rank, summed up."""
        return len(claims_of(self.ranks))

    @property
    def size(self) -> tuple[int, int]:
        """Ranks × steps, and the number of different ranks."""
        return self.rank_steps, len(self._of_rank)

    @property
    def utc_range(self) -> UtcRange | None:
        """First and last time of all steps; None without a wall clock."""
        ranges = [rank.utc_range for rank in self.ranks if rank.utc_range is not None]
        return (min(first for first, _ in ranges), max(last for _, last in ranges)) if ranges else None

    def shared_kernels(self, other_job: "RecordedJob") -> float:
        """Return the largest share of kernels (0 to 1) that programs of both have in common."""
        pairs = [(program, other_program) for program in self.programs for other_program in other_job.programs]
        return max((program.shared_kernels(other_program) or 0.0 for program, other_program in pairs), default=0.0)

    def describe(self) -> str:
        """Return the job in a few words, with its files."""
        names = [path.name for path in sorted(recording.path for recording in self.recordings)]
        rest_text = f" and {format_count(len(names) - _SHOWN, 'more file')}" if len(names) > _SHOWN else ""
        files = f" ({', '.join(names[:_SHOWN])}{rest_text})" if names else ""
        return describe_job([rank.record for rank in self.ranks]) + files

    def find_mismatch(self, ranks: Iterable[RecordedRank], place: str = _IN_TAKEN) -> str | None:
        """Return why one of these ranks is of another job; None if all may belong to this one.

        `place` says where this job is.
        """
        return next((reason for rank in ranks for reason in self._mismatches(rank, place)), None)

    def _mismatches(self, new: RecordedRank, place: str) -> Iterator[str]:
        for size in self._world:
            if new.record.world_size and new.record.world_size != size:
                yield f"its world size is {new.record.world_size}, and {size} {place}"
        for vendor, job_rank in self._vendors.items():
            if new.vendor is not None and new.vendor != vendor:
                yield f"rank {new.rank} ran on {new.vendor}'s GPUs, and rank {job_rank.rank} on {vendor}'s {place}"
        same_rank = self._of_rank.get(new.rank, [])
        if new.utc_range is not None:
            for job_rank in self._extremes.get(None, ()):
                if (apart := time_apart(new.utc_range, job_rank.utc_range)) > _DAY_NS:
                    days = format_count(apart // _DAY_NS, "day")
                    yield f"it was recorded {days} {_order(new, job_rank)} the recordings {place}"
            yield from self._of_another_process(new, same_rank, place)
            yield from self._of_another_run(new, same_rank, place)
        for job_rank in same_rank:
            model, new_model = job_rank.record.gpu_model, new.record.gpu_model
            if model and new_model and model != new_model:
                yield f"rank {new.rank} ran on {new_model}, and on {model} {place}"
        yield from self._of_another_engine(new, place)
        shares = [share for job_rank in same_rank if (share := new.shared_kernels(job_rank)) is not None]
        if shares and max(shares) < SHARED_LEAST:
            yield f"rank {new.rank} shares {max(shares):.0%} of its kernels with rank {new.rank} {place}"

    def _of_another_process(self, new: RecordedRank, same_rank: Sequence[RecordedRank], place: str) -> Iterator[str]:
        """Yield that the rank ran other steps at the time of steps of the same rank."""
        steps = {step.key for step in new.record.steps}
        for job_rank in same_rank:
            others = {step.key for step in job_rank.record.steps}
            if steps & others or new.record.file_digest == job_rank.record.file_digest:
                continue
            # the last step of a recording may end in the next recording
            if -time_between(new.utc_range, job_rank.utc_range) > max(_longest_step(new), _longest_step(job_rank)):
                yield f"rank {new.rank} ran {_some(new)} at the time at which it ran {_some(job_rank)} {place}"

    def _of_another_engine(self, new: RecordedRank, place: str) -> Iterator[str]:
        """Yield that the rank's steps have nothing to do with those of their numbers, as of an engine that prefills."""
        for job_rank in (self.programs or self.ranks)[:1]:
            pace = _pace(new, job_rank)
            share = None if 1 / PACE_LEAST < pace < PACE_LEAST else new.shared_kernels(job_rank)
            if share is not None and share < SHARED_LEAST and not self._meets(new, job_rank):
                yield (
                    f"rank {new.rank} runs another program than rank {job_rank.rank} {place}, and its steps take "
                    f"{pace:.2g} times as long: they wait for each other in no step"
                )

    def _meets(self, new: RecordedRank, job_rank: RecordedRank) -> bool:
        """Return whether a group that the recordings name has the rank and one of this job.

        Of the groups that ranks of this job name, those of `job_rank` are looked at.
        """
        others = self._of_rank.keys() - {new.rank}
        return any(new.rank in members and not members.isdisjoint(others) for members in new.groups) or any(
            {new.rank, job_rank.rank} <= members for members in job_rank.groups
        )

    def _of_another_run(self, new: RecordedRank, same_rank: Sequence[RecordedRank], place: str) -> Iterator[str]:
        steps = self._steps_of(new)
        for job_rank in same_rank if steps else []:
            common = set(steps).intersection(self._steps_of(job_rank))
            apart = time_apart(new.utc_range, job_rank.utc_range)
            # the last step of a recording may end in the next recording
            if apart > RESTART_NS and (len(common) > 1 or len(common) == len(steps)):
                yield _ran_again(min(common, key=lambda key: key.order), new, job_rank, place)
        for step in steps:
            for job_rank in self._extremes.get(step, ()):
                if time_apart(new.utc_range, job_rank.utc_range) > RERUN_NS:
                    yield _ran_again(step, new, job_rank, place)

    def _steps_of(self, rank: RecordedRank) -> list[StepKey]:
        # without markers, numbers of steps hold within a recording only
        is_numbered = self.is_one_run and rank.record.steps_from == "marker"
        return [step.key for step in rank.record.steps] if is_numbered else []


def time_apart(first: UtcRange | None, second: UtcRange | None) -> int:
    """Return the ns between two ranges of time; 0 if they overlap or one is unknown."""
    return max(0, time_between(first, second))


def time_between(first: UtcRange | None, second: UtcRange | None) -> int:
    """Return the ns between two ranges of time; below 0 by what they share if they overlap; 0 if one is unknown."""
    return 0 if first is None or second is None else max(first[0] - second[1], second[0] - first[1])


def _longest_step(rank: RecordedRank) -> int:
    """Return the ns between the starts of two steps in a row, or of one step, at most."""
    steps = rank.record.steps
    periods = [after.start_ns - before.start_ns for before, after in pairwise(steps)]
    lengths = [step.end_ns - step.start_ns for step in steps if step.end_ns is not None]
    return max([*periods, *lengths], default=0)


def _pace(rank: RecordedRank, other: RecordedRank) -> float:
    """Return how many times as long one rank takes for the same marked steps, in the half where less; 1: unknown.

    Ranks of a pipeline that fills, or whose hosts run ahead, differ for a few steps only.
    """
    starts, others = ({step.key: step.start_ns for step in one.record.steps} for one in (rank, other))
    common = sorted(starts.keys() & others.keys(), key=lambda key: key.order)
    is_marked = rank.record.steps_from == other.record.steps_from == "marker"
    if not is_marked or len(common) < PACED_STEPS:
        return 1.0
    borders = (common[0], common[len(common) // 2], common[-1])
    paces = [(starts[last] - starts[first]) / max(others[last] - others[first], 1) for first, last in pairwise(borders)]
    return min(paces) if min(paces) > 1 else max(paces) if max(paces) < 1 else 1.0


def _some(rank: RecordedRank) -> str:
    first, last = rank.record.steps[0].key, rank.record.steps[-1].key
    return str(first) if first == last else f"{first} to {last}"


def records_of_other_job(new: RecordedRank, ranks: Sequence[RecordedRank]) -> list[SourceRecord]:
    """Return the records of the lake's `ranks` that belong to another job than `new`, to replace them.

    These are the records that contradict `new`, and records whose kernels are those of a record that does.
    """
    foreign_ranks = [rank for rank in ranks if RecordedJob([rank]).find_mismatch([new]) is not None]
    for lake_rank in [rank for rank in ranks if rank not in foreign_ranks]:
        to_new = new.shared_kernels(lake_rank)
        if (
            to_new is not None
            and to_new < SHARED_LEAST
            and any((lake_rank.shared_kernels(foreign) or 0.0) >= SHARED_LEAST for foreign in foreign_ranks)
        ):
            foreign_ranks.append(lake_rank)
    return [rank.record for rank in foreign_ranks]


def describe_job(records: Sequence[SourceRecord]) -> str:
    """Return a job in a few words: ranks, world size, GPU models, steps, date, files."""
    ranks = {record.rank for record in records}
    worlds = sorted({record.world_size for record in records if record.world_size is not None})
    steps = sorted({step.key.step for record in records for step in record.steps})
    starts = [span[0] for record in records if (span := record.utc_range) and 0 < span[0] < _LAST_DATE_NS]
    parts = [f"rank {next(iter(ranks))}" if len(ranks) == 1 else format_count(len(ranks), "rank")]
    if worlds:
        parts.append(f"world size {worlds[0]}")
    parts += sorted({record.gpu_model for record in records if record.gpu_model})[:2]
    if steps:
        parts.append(f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}")
        counts = [step.kernels for record in records for step in record.steps]
        parts.append(f"{format_count(median_low(counts), 'kernel')} a step")
    if starts:
        parts.append(f"recorded {datetime.fromtimestamp(min(starts) / 1e9, UTC):%Y-%m-%d %H:%M} UTC")
    parts.append(f"from {Path(records[0].file).parent}")
    return ", ".join(parts)


def _ran_again(step: StepKey, new: RecordedRank, job_rank: RecordedRank, place: str) -> str:
    apart = format_time(time_apart(new.utc_range, job_rank.utc_range))
    return f"it ran {step} {apart} {_order(new, job_rank)} rank {job_rank.rank} {place}"


def _times(rank: RecordedRank) -> UtcRange:
    return rank.utc_range or (0, 0)


def _order(rank: RecordedRank, reference: RecordedRank) -> str:
    return "after" if _times(rank) > _times(reference) else "before"


_MERGED_ERROR_NS: Final = 2_000
"""ns by which times in a merged recording may differ: tools that merge round them to microseconds."""


def find_merged(
    recordings: Sequence[GivenRecording], in_lake: Sequence[RecordedRank]
) -> dict[GivenRecording, RejectedForAnotherError]:
    """Return the recordings of several ranks of which each is also recorded by itself, here or in the lake.

    With the errors with which they are left out. The times of a rank's steps are those of its own recording, on
    whatever clock the merged one is.
    """
    alone = [rank for recording in recordings for rank in recording.ranks if len(recording.ranks) == 1]
    alone += [rank for rank in in_lake if rank.record.parts == 1]
    merged: dict[GivenRecording, RejectedForAnotherError] = {}
    for recording in recordings:
        own_recordings = [next((each for each in alone if _is_same(rank, each)), None) for rank in recording.ranks]
        file_of = {rank: Path(rank.record.file).name for rank in own_recordings if rank is not None}
        if 1 < len(recording.ranks) == len(file_of):
            first = file_of[min(file_of, key=lambda rank: rank.rank)]
            merged[recording] = RejectedForAnotherError(
                f"{recording.path}: {format_count(len(file_of), 'rank')} merged into one file, whose own recordings "
                f"are here too ({first} and {len(file_of) - 1} more) and are read",
                "give it alone to read it instead",
            )
    return merged


def _is_same(rank: RecordedRank, own_rank: RecordedRank) -> bool:
    """Return whether a rank of a merged recording is that of its own recording: the same rank, steps and times.

    A rank that was assumed by the order of devices may be another one.
    """
    if rank.rank != own_rank.rank and rank.record.rank_told_by != DEVICE_ORDER:
        return False
    steps, own_steps = rank.record.steps, own_rank.record.steps
    if not steps or [step.kernels for step in steps] != [step.kernels for step in own_steps]:
        return False
    return _are_at_one_time(zip(steps, own_steps, strict=True))


def _are_at_one_time(pairs: Iterable[tuple[StepRecord, StepRecord]]) -> bool:
    """Return whether two recordings of the same steps state the same starts and ends, each on a clock of its own."""
    shifts = [
        other_ns - own_ns
        for step, other in pairs
        for own_ns, other_ns in ((step.start_ns, other.start_ns), (step.end_ns, other.end_ns))
        if own_ns is not None and other_ns is not None
    ]
    return not shifts or max(shifts) - min(shifts) <= _MERGED_ERROR_NS


class JobChoice(NamedTuple):
    """The jobs among given recordings, the largest first, and the one to take; None: two are of similar size."""

    jobs: list[RecordedJob]
    taken: RecordedJob | None
    is_in_lake: bool
    """Whether the lake held the job before."""
    merged: Mapping[GivenRecording, RejectedForAnotherError] = {}
    """Recordings that belong to no job, with their errors: they hold what others hold."""
    warning: str | None = None
    """Why recordings that seem to be of two runs are taken for one."""


def choose_job(
    recordings: Sequence[GivenRecording],
    in_lake: Sequence[RecordedRank],
    *,
    is_one_run: bool = True,
    is_same_job: bool = False,
) -> JobChoice:
    """Divide the recordings into jobs and choose one: the job of the lake, else the largest in ranks × steps.

    `is_one_run` takes recordings of the same steps by two runs for two jobs; of a lake they are one. `is_same_job`
    takes all recordings for one job, whatever contradicts that. Merged recordings beside the ranks' own are left out.
    """
    if merged := find_merged(recordings, in_lake):
        unmerged = [recording for recording in recordings if recording not in merged]
        choice = choose_job(unmerged, in_lake, is_one_run=is_one_run, is_same_job=is_same_job)
        return choice._replace(merged=merged)
    job = RecordedJob(in_lake, is_one_run=is_one_run and not in_lake)
    for recording in recordings:
        if not is_same_job and job.find_mismatch(recording.ranks) is not None:
            break
        job.add(recording)
    else:
        return JobChoice([job], job, bool(in_lake))
    if not in_lake and (on_clocks := _on_wrong_clocks(recordings)) is not None:
        return on_clocks
    groups: list[RecordedJob] = []
    # in order of time, the recordings of a first run come before those of a second one
    for recording in sorted(recordings, key=lambda recording: (recording.utc_range or (0, 0), str(recording.path))):
        _add_by_program(recording, groups, is_one_run=is_one_run)
    if in_lake:
        lake = RecordedJob(in_lake)
        lake.programs = list({rank.sequences: rank for rank in in_lake}.values())[:_MOST_PROGRAMS]
        return JobChoice(_merge(groups, lake), lake, True)
    jobs = sorted(_merge(groups), key=lambda job: job.size, reverse=True)
    (rank_steps, ranks), *others = (job.size for job in jobs)
    is_clear = all(rank_steps >= CLEAR_RATIO * other[0] and ranks >= other[1] for other in others)
    return JobChoice(jobs, jobs[0] if is_clear else None, False)


def _on_wrong_clocks(recordings: Sequence[GivenRecording]) -> JobChoice | None:
    """Return the one job of recordings that only the clocks of their hosts tell apart; None if they may be of two runs.

    A second run would record a rank again, or run on a host of the first, or at another pace. Of one run no step is
    recorded twice, the ranks of a host agree on the time, and the clocks of two ranks differ by the same time in all
    steps, to within the duration of a step.
    """
    job = RecordedJob()
    hosts: dict[str, RecordedJob] = {}
    for recording in recordings:
        if job.find_mismatch(recording.ranks) is not None:
            return None
        job.add(recording)
        for rank in recording.ranks:
            of_host = hosts.setdefault(rank.record.host or "", RecordedJob(is_one_run=True))
            if not rank.record.host or of_host.find_mismatch([rank]) is not None:
                return None
            of_host._add_rank(rank)
    starts = {rank: {step.key: step.start_ns for step in rank.record.steps} for rank in job.ranks}
    if len({(rank.rank, key) for rank, of_rank in starts.items() for key in of_rank}) < sum(map(len, starts.values())):
        return None
    reference = max(starts, key=lambda rank: len(starts[rank]))
    for rank, of_rank in starts.items():
        ahead = [start_ns - starts[reference][key] for key, start_ns in of_rank.items() if key in starts[reference]]
        if ahead and max(ahead) - min(ahead) > max(_longest_step(rank), _longest_step(reference)):
            return None
    return JobChoice([job], job, is_in_lake=False)


def describe_clocks(ranks: Sequence[RecordedRank]) -> list[str]:
    """Return a note if training steps of one number begin further apart on two ranks than they take.

    Of each recording the first and the last step count, the nearer one: a profiler may start late.
    """
    timed = [rank for rank in ranks if rank.utc_range is not None and rank.record.steps[0].kind == TRAIN]
    of_ranks = by_key((rank.rank, rank) for rank in timed)
    reference = max(of_ranks.values(), key=lambda of_rank: sum(len(one.record.steps) for one in of_rank), default=[])
    starts = {step.key: _start(rank, step) for rank in reference for step in rank.record.steps}
    later: list[tuple[int, RecordedRank]] = [(0, rank) for rank in reference[:1]]
    for rank in timed:
        ends = (rank.record.steps[0], rank.record.steps[-1])
        apart = [_start(rank, step) - starts[step.key] for step in ends if step.key in starts]
        later += [(min(apart, key=abs), rank)] if len(apart) == len({step.key for step in ends}) == 2 else []
    if not later:
        return []
    (least, first), (most, last) = (extreme(later, key=lambda pair: pair[0]) for extreme in (min, max))
    if most - least <= max(RESTART_NS, _longest_step(first), _longest_step(last)):
        return []
    apart_text, hosts = format_time(most - least), (first.record.host, last.record.host)
    if None not in hosts and hosts[0] != hosts[1]:
        what = f"the clocks of hosts differ by up to {apart_text} ({hosts[0]} to {hosts[1]})"
    else:
        what = f"steps of one number begin up to {apart_text} apart (rank {first.rank} to rank {last.rank}): "
        what += f"{'clocks differ, or ' if None in hosts else ''}the ranks number them apart"
    return [f"{what}, or these are two runs, which belong into lakes of their own"]


def _start(rank: RecordedRank, step: StepRecord) -> int:
    """Return the start of a step, UTC."""
    return step.start_ns + (rank.record.utc_offset_ns or 0)


def _add_by_program(recording: GivenRecording, groups: list[RecordedJob], *, is_one_run: bool) -> None:
    """Add a recording to the group that runs its program and does not contradict it, else to a new one."""
    alone = RecordedJob(is_one_run=is_one_run)
    alone.add(recording)
    alike = [
        group
        for group in groups
        if alone.shared_kernels(group) >= SHARED_LEAST and group.find_mismatch(recording.ranks) is None
    ]
    if len(alike) > 1:
        alike.sort(key=lambda group: (time_apart(group.utc_range, alone.utc_range), -group.rank_steps))
    if alike:
        alike[0].add(recording)
    else:
        groups.append(alone)


def _merge(groups: Sequence[RecordedJob], lake: RecordedJob | None = None) -> list[RecordedJob]:
    """Return the jobs that groups of one program each make, the most alike joined first, where nothing contradicts.

    Stages of a pipeline share some kernels, and those of two jobs fewer. The lake's job comes first.
    """

    def distance(pair: tuple[int, int]) -> tuple[float, int, int]:
        """Return how little two groups have in common: in kernels, in time, and by their size."""
        group, other_group = job_of[pair[0]], job_of[pair[1]]
        apart_ns = time_apart(group.utc_range, other_group.utc_range)
        return -group.shared_kernels(other_group), apart_ns, -group.rank_steps - other_group.rank_steps

    job_of = [lake, *groups] if lake is not None else list(groups)
    pairs = [(first, second) for second in range(len(job_of)) for first in range(second)]
    for first, second in sorted(pairs, key=distance):
        job, added = job_of[first], job_of[second]
        if job is added:
            continue
        if added is lake or (job is not lake and len(added.recordings) > len(job.recordings)):
            job, added = added, job
        if all(job.find_mismatch(recording.ranks) is None for recording in added.recordings):
            job.merge(added)
            job_of = [job if each is added else each for each in job_of]
    return list(dict.fromkeys(job_of))


class LeadingJob(Generic[Given]):
    """Collects recordings while they are read, and tells which may be published before the job of all is chosen.

    The job of the lake, else the job of the first recording, takes each recording that does not contradict it. The job
    leads once it has most of the recordings. When all are read, recordings of another job are withdrawn from the lake.
    """

    def __init__(self, in_lake: Sequence[RecordedRank], given: int, given_bytes: int) -> None:
        """`given` is the number of recordings that are to be read, `given_bytes` the bytes of their files."""
        self._job = RecordedJob(in_lake, is_one_run=not in_lake)
        self._claims = claims_of(in_lake)
        self._waiting: list[Given] = []
        sizes = {rank.record.file: rank.record.size for rank in in_lake}
        self._missing = _MAJORITY * (given + len(sizes)) - len(sizes)
        """Recordings that the job lacks to lead."""
        in_lake_bytes = sum(sizes.values())
        self._missing_bytes = _MAJORITY * (given_bytes + in_lake_bytes) - in_lake_bytes

    def add(self, recording: Given) -> list[Given]:
        """Add a recording, and return the recordings that may be published since."""
        claims = claims_of(recording.ranks)
        if claims & self._claims or self._job.find_mismatch(recording.ranks) is not None:
            return []
        self._claims |= claims
        self._job.add(recording)
        self._waiting.append(recording)
        self._missing -= 1
        self._missing_bytes -= recording.size
        if self._missing >= 0 or self._missing_bytes >= 0:
            return []
        leading, self._waiting = self._waiting, []
        return leading


class OtherJobError(RejectedForAnotherError):
    """A recording that cannot belong to the job that is taken; `cause` is the other job in words."""


def left_out_errors(choice: JobChoice, lake: Path) -> dict[GivenRecording, JitterError]:
    """Return the errors of the recordings that are not taken. `lake` is the lake's folder."""
    errors: dict[GivenRecording, JitterError] = dict(choice.merged)
    taken = choice.taken
    if taken is None:
        undecided = _undecided_error(choice.jobs)
        return errors | {recording: undecided for job in choice.jobs for recording in job.recordings}
    for job in choice.jobs:
        if job is taken:
            continue
        for recording, reason in _reasons(taken, job, "in the lake" if choice.is_in_lake else _IN_TAKEN):
            if choice.is_in_lake:
                error = not_in_lake_error(recording.path, reason, taken, job, lake)
            else:
                error = OtherJobError(
                    f"{recording.path}: recorded in another job than the one with the most recorded steps: {reason}. "
                    f"Taken: {taken.describe()}. Left out: {job.describe()}",
                    "a lake holds one job: ingest the other one alone into another lake (`ingest -o LAKE`), or "
                    f"{_SAME_JOB}",
                )
                error.cause = job.describe()
            errors[recording] = error
    return errors


def not_in_lake_error(path: Path, reason: str, in_lake: RecordedJob, job: RecordedJob, lake: Path) -> OtherJobError:
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


def _undecided_error(jobs: Sequence[RecordedJob]) -> OtherJobError:
    """Return the error of all recordings, which are of several jobs of similar size, of which none is taken."""
    (example, reason), *_ = _reasons(jobs[0], jobs[1], "in the first")
    described = "; ".join(f"{number}) {job.describe()}" for number, job in enumerate(jobs, 1))
    folders = [shlex.quote(str(_folder(job))) for job in jobs]
    way = "move the files of one job into a folder of its own, and ingest that"
    if len(set(folders)) == len(folders):
        way = f"ingest one of them: `jitter ingest {folders[0]}` or `jitter ingest {folders[1]}`"
    claims = [claims_of(job.ranks) for job in jobs]
    if any(one & other for place, one in enumerate(claims) for other in claims[:place]):
        way += "; they hold the same steps of the same ranks: `--replace` takes the newer ones"
        apart_in_time = RecordedJob(jobs[0].ranks)  # and in nothing else
        has_epochs = any(step.epoch is not None for claimed in claims for _, step in claimed)
        if not has_epochs and all(apart_in_time.find_mismatch(job.ranks) is None for job in jobs[1:]):
            way += ", and `--same-job`, if they are windows of one run, all as epochs"
        if any(rank.record.has_assumed_rank for job in jobs for rank in job.ranks):
            way += "; if the numbers in their names are ranks, give `--rank-pattern RE`"
    else:
        way += f"; or give {_SAME_JOB}"
    return OtherJobError(
        f"{format_count(len(jobs), 'job')} stand here, none of them clearly the largest, and a lake holds one: "
        f"{described}. Of {example.path.name} in the second, {reason}. Nothing was written",
        way,
    )


def _reasons(taken_job: RecordedJob, job: RecordedJob, place: str) -> Iterator[tuple[GivenRecording, str]]:
    """Yield each recording of a job with the reason why it is not of the job that is taken."""
    reasons = {recording: taken_job.find_mismatch(recording.ranks, place) for recording in job.recordings}
    in_order = sorted(reasons, key=lambda recording: recording.path)
    otherwise = next(
        (f"it goes with {each.path.name}, of which: {reasons[each]}" for each in in_order if reasons[each] is not None),
        "its kernels are those of another job",
    )
    for recording in in_order:
        yield recording, reasons[recording] or otherwise


def _folder(job: RecordedJob) -> Path:
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
REPLACE: Final = "give --replace to take the newer"
CORRECT_RANK: Final = "correct the rank with --rank, --rank-map or --hosts"
_WINDOWS: Final = "--same-job into a new lake to take windows of one run all as epochs, "
_SAME_RUN: Final = "a second recording of about the same time, of which one is enough"
_UNDECIDED: Final = "and nothing tells which of the two is right: neither is taken"
_TWO_RANKS: Final = (
    "run at the same time on another GPU, so that one of the two is another rank, or of another job: neither is taken"
)
_OF_STATED: Final = "run at the same time on another GPU, and stated there"
_CORRECT_RANKS: Final = (
    "ingest each job alone, or correct the ranks: --rank-map CSV (file,rank or file,device,rank), or --rank-pattern RE "
    "(group rank; of recordings of several GPUs each it numbers the recordings, as of nodes), or --hosts HOST,… in the "
    "order of their nodes"
)


def find_conflicts(
    recordings: Iterable[GivenRecording], ranks: Sequence[RecordedRank]
) -> dict[GivenRecording, UnknownRankError]:
    """Return the recordings to leave out because another one holds the same step of the same rank, with the errors.

    Of two such recordings the one that is more like the other `ranks` of the job is taken, then the more complete one.
    Of two that nothing tells apart, one is taken if they are of the same time, else none. Of two that ran at the same
    time on two GPUs the one that states its rank is taken, if the other does not.
    """
    holders = by_key(
        ((rank.rank, step.key), recording)
        for recording in recordings
        for rank in recording.ranks
        for step in rank.record.steps
    )
    rivals: dict[GivenRecording, dict[GivenRecording, list[Claim]]] = {}
    for claim, holding in holders.items():
        for recording, rival in permutations(dict.fromkeys(holding), 2):
            rivals.setdefault(recording, {}).setdefault(rival, []).append(claim)
    conflicts = _two_of_one_number(rivals)
    rivals = {
        recording: {rival: claims for rival, claims in of_recording.items() if rival not in conflicts}
        for recording, of_recording in rivals.items()
        if recording not in conflicts
    }
    fits = {recording: _fit(recording, ranks) for recording in rivals}
    # of several alike recordings the first is the same one on every rank
    ordered = sorted(rivals, key=lambda one: (fits[one], (one.utc_range or (0,))[0], one.ranks[0].record.file_digest))
    undecided: set[GivenRecording] = set()

    def better_than(recording: GivenRecording) -> list[GivenRecording]:
        """Return the more likely rivals that are taken, or might be."""
        better = [rival for rival in rivals[recording] if fits[rival] < fits[recording]]
        return [rival for rival in better if rival not in conflicts or rival in undecided]

    for place, recording in enumerate(ordered):
        if better := better_than(recording):
            pairs = zip(_REASONS, fits[recording], fits[better[0]], strict=True)
            reason = next(words for words, fit, better_fit in pairs if fit != better_fit)
            conflicts[recording] = _conflict(recording, better[0], rivals[recording][better[0]], reason)
            continue
        alike = [
            rival
            for rival in ordered
            if rival in rivals[recording] and fits[rival] == fits[recording] and not better_than(rival)
        ]
        apart = [rival for rival in alike if not _is_same_time(recording, rival)]
        before = [rival for rival in alike if rival in ordered[:place] and rival not in conflicts]
        if apart:
            conflicts[recording] = _conflict(recording, apart[0], rivals[recording][apart[0]], _UNDECIDED)
            undecided.add(recording)
        elif before:
            conflicts[recording] = _conflict(recording, before[0], rivals[recording][before[0]], _SAME_RUN)
    return conflicts


def _two_of_one_number(
    rivals: Mapping[GivenRecording, Mapping[GivenRecording, list[Claim]]],
) -> dict[GivenRecording, UnknownRankError]:
    """Return the recordings that have a step of a rank that another GPU ran at the same time, with the errors.

    A rank that one of the two recordings states is that one's.
    """
    conflicts: dict[GivenRecording, UnknownRankError] = {}
    for recording, claims in rivals.items():
        for rival in claims:
            pairs = [(rank, other) for rank in recording.ranks for other in rival.ranks if rank.rank == other.rank]
            at_once = [
                pair for pair in pairs if time_between(pair[0].utc_range, pair[1].utc_range) < 0 and _differ(*pair)
            ]
            guesses = (DEVICE_ORDER, BY_NAME)
            is_stated, is_rivals = (
                all(pair[place].record.rank_told_by not in guesses for pair in at_once) for place in (0, 1)
            )
            if at_once and (is_rivals or not is_stated):
                reason = _OF_STATED if is_rivals and not is_stated else _TWO_RANKS
                conflicts[recording] = _conflict(recording, rival, claims[rival], reason, _CORRECT_RANKS)
                break
    return conflicts


def _differ(rank: RecordedRank, other_rank: RecordedRank) -> bool:
    """Return whether another GPU ran them: on another host, or whole steps of the same numbers took other times."""
    if None not in (rank.record.host, other_rank.record.host) and rank.record.host != other_rank.record.host:
        return True
    steps, others = ({step.key: step for step in one.record.steps if not step.cut} for one in (rank, other_rank))
    return not _are_at_one_time((steps[key], others[key]) for key in steps.keys() & others.keys())


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


def _conflict(
    recording: GivenRecording,
    rival: GivenRecording,
    claims: list[Claim],
    reason: str,
    way: str | None = None,
) -> UnknownRankError:
    if recording.ranks[0].record.rank_told_by == DEVICE_ORDER:
        way = _CORRECT_RANKS
    is_later = time_apart(recording.utc_range, rival.utc_range) > RESTART_NS
    rank = min(rank for rank, _ in claims)
    steps = sorted((key for of_rank, key in claims if of_rank == rank), key=lambda key: key.order)
    return UnknownRankError(
        f"{recording.ranks[0].record.file}: rank {rank} has {describe_steps(steps)} in {rival.ranks[0].record.file} "
        f"too, {reason}",
        way or f"{REPLACE}, {_WINDOWS if is_later else ''}or {CORRECT_RANK}",
    )


def describe_steps(keys: Sequence[StepKey]) -> str:
    """Return the first and the last of some steps, and their number."""
    return str(keys[0]) if len(keys) == 1 else f"{len(keys)} steps ({keys[0]} to {keys[-1]})"


def _is_same_time(recording: GivenRecording, rival: GivenRecording) -> bool:
    """Return whether one execution was recorded twice: the wall clocks overlap; without them, the steps are equal.

    So are those of a recording and of its copy that was unpacked, or packed anew.
    """
    ranges = recording.utc_range, rival.utc_range
    if None not in ranges:
        return time_apart(*ranges) <= RESTART_NS
    steps, others = (
        {
            (rank.rank, step.key): (step.start_ns, step.end_ns, step.sequence)
            for rank in either.ranks
            for step in rank.record.steps
        }
        for either in (recording, rival)
    )
    return all(steps[claim] == others[claim] for claim in steps.keys() & others.keys())
