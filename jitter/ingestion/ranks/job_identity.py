"""Whether recordings can be of one job: program and GPU model of a rank, world size, date, time of a step."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Final, NamedTuple

import pyarrow.parquet as pq

from jitter.core.formatting import format_count, format_time
from jitter.core.names.kernels import KINDS, MEMORY
from jitter.core.step_key import StepKey
from jitter.lake.layout import kernels_file
from jitter.lake.records import SourceRecord

SHARED_LEAST: Final = 0.5
"""Share of kernels that two recordings of one rank have in common at least, if they are of one job."""
RERUN_NS: Final = 600 * 10**9
"""ns between recordings of one step by two ranks, above which they are of two runs; clocks of hosts differ by less."""
RESTART_NS: Final = 10**9
"""ns between two recordings of one step by one rank, above which they are of two runs: a restart takes longer."""
_DAY_NS: Final = 86_400 * 10**9
_LAST_DATE_NS: Final = 253_402_300_799 * 10**9
"""The end of the year 9999 in ns since 1970, the last that a date states."""


UtcRange = tuple[int, int]
"""First and last time in ns since 1970."""


class RecordedRank:
    """One rank of a recording: its record, and the files of its steps, which are read where needed."""

    def __init__(self, record: SourceRecord, path_of: Callable[[StepKey], Path]) -> None:
        """`path_of` returns the parquet file of a step."""
        assert record.rank is not None
        self.record = record
        self.rank = record.rank
        self._path_of = path_of

    @cached_property
    def sequences(self) -> frozenset[str]:
        """Digests of the sequences of kernels of its steps, without empty ones."""
        return frozenset(step.sequence for step in self.record.steps if step.kernels)

    @cached_property
    def kernels(self) -> Counter[str]:
        """How often each kernel runs in a typical step: the one with the lower median of kernels."""
        steps = self.record.steps
        complete = [step for step in steps if not step.cut] or steps
        if not complete:
            return Counter()
        middle = median_low(step.kernels for step in complete)
        path = self._path_of(next(step.key for step in complete if step.kernels == middle))
        try:
            rows = pq.read_table(path, columns=["kernel_name", "kind"], partitioning=None)
        except (OSError, ValueError):  # a file lost from the lake: `verify` and queries name it
            return Counter()
        counts: Counter[str] = Counter()
        for group in rows.group_by(["kernel_name", "kind"]).aggregate([([], "count_all")]).to_pylist():
            if group["kind"] != KINDS[MEMORY]:
                counts[group["kernel_name"]] += group["count_all"]
        return counts

    @cached_property
    def utc_range(self) -> UtcRange | None:
        """First and last time of its steps; None without a wall clock or steps."""
        record = self.record
        if record.utc_offset_ns is None or not record.steps:
            return None
        last = record.steps[-1]
        return (
            record.utc_offset_ns + record.steps[0].start_ns,
            record.utc_offset_ns + (last.start_ns if last.end_ns is None else last.end_ns),
        )

    def shared_kernels(self, other_rank: "RecordedRank") -> float | None:
        """Return the share of kernels (0 to 1) that a typical step of each has in common; None if either has none.

        Kernels count as often as they occur. Steps with equal sequences share all.
        """
        if self.sequences & other_rank.sequences:
            return 1.0
        if not self.kernels or not other_rank.kernels:
            return None
        return (self.kernels & other_rank.kernels).total() / max(self.kernels.total(), other_rank.kernels.total())


def ranks_in_lake(records: Iterable[SourceRecord], root: Path) -> list[RecordedRank]:
    """Return the recorded ranks of a lake's records."""

    def paths(rank: int | None) -> Callable[[StepKey], Path]:
        assert rank is not None
        return lambda key: root / kernels_file(key, rank)

    return [RecordedRank(record, paths(record.rank)) for record in records]


class Mismatch(NamedTuple):
    """Why a recorded rank is not of the same job as another."""

    other: RecordedRank
    reason: str


class JobRanks:
    """Recorded ranks of one job: tells whether another one can belong to it.

    World size and date are compared with every rank, GPU model and kernels with recordings of the same rank only,
    since stages of a pipeline run other kernels.
    """

    def __init__(self, ranks: Iterable[RecordedRank] = (), *, is_one_run: bool = False) -> None:
        """`is_one_run` also takes a step that was run at two very different times for one of two runs."""
        self.ranks: list[RecordedRank] = []
        self.is_one_run = is_one_run
        self._world: dict[int, RecordedRank] = {}
        self._of_rank: dict[int, list[RecordedRank]] = {}
        self._first_to_end: RecordedRank | None = None
        self._last_to_begin: RecordedRank | None = None
        self._of_step: dict[StepKey, tuple[RecordedRank, RecordedRank]] = {}
        for rank in ranks:
            self.add(rank)

    @property
    def utc_range(self) -> UtcRange | None:
        """First and last time of all steps; None without a wall clock."""
        ranges = [rank.utc_range for rank in self.ranks if rank.utc_range is not None]
        return (min(first for first, _ in ranges), max(last for _, last in ranges)) if ranges else None

    def add(self, rank: RecordedRank) -> None:
        """Add a rank, whatever it is."""
        self.ranks.append(rank)
        self._of_rank.setdefault(rank.rank, []).append(rank)
        if rank.record.world_size:
            self._world.setdefault(rank.record.world_size, rank)
        if rank.utc_range is None:
            return
        self._first_to_end = min(self._first_to_end or rank, rank, key=_end)
        self._last_to_begin = max(self._last_to_begin or rank, rank, key=_begin)
        for step in self._steps_of(rank):
            first, last = self._of_step.get(step, (rank, rank))
            self._of_step[step] = min(first, rank, key=_end), max(last, rank, key=_begin)

    def find_mismatch(self, new: RecordedRank, place: str) -> Mismatch | None:
        """Return why `new` is of another job; None if it may belong to this one. `place` says where this job is."""
        for size, job_rank in self._world.items():
            if new.record.world_size and new.record.world_size != size:
                return Mismatch(job_rank, f"its world size is {new.record.world_size}, and {size} {place}")
        return self._of_another_time(new, place) or self._of_another_program(new, place)

    def _of_another_time(self, new: RecordedRank, place: str) -> Mismatch | None:
        if new.utc_range is None or self._first_to_end is None or self._last_to_begin is None:
            return None
        for job_rank in (self._first_to_end, self._last_to_begin):
            apart = self._apart(new, job_rank)
            if apart > _DAY_NS:
                days, order = format_count(apart // _DAY_NS, "day"), _order(new, job_rank)
                return Mismatch(job_rank, f"it was recorded {days} {order} the recordings {place}")
        return self._of_another_process(new, place) or self._of_another_run(new, place)

    def _of_another_process(self, new: RecordedRank, place: str) -> Mismatch | None:
        """Return the mismatch of a rank that ran other steps at the time of steps of the same rank."""
        steps = {step.key for step in new.record.steps}
        for job_rank in self._of_rank.get(new.rank, []):
            others = {step.key for step in job_rank.record.steps}
            if steps & others or new.record.file_digest == job_rank.record.file_digest:
                continue
            # the last step of a recording may end in the next recording
            if _overlap(new, job_rank) > max(_longest_step(new), _longest_step(job_rank)):
                ran = f"rank {new.rank} ran {_some(new)} at the time at which it ran {_some(job_rank)} {place}"
                return Mismatch(job_rank, ran)
        return None

    def _of_another_run(self, new: RecordedRank, place: str) -> Mismatch | None:
        steps = self._steps_of(new)
        for job_rank in self._of_rank.get(new.rank, []) if steps else []:
            common = set(steps).intersection(self._steps_of(job_rank))
            # the last step of a recording may end in the next recording
            if self._apart(new, job_rank) > RESTART_NS and (len(common) > 1 or len(common) == len(steps)):
                return _ran_again(min(common, key=lambda key: key.order), new, job_rank, place)
        for step in steps:
            for job_rank in self._of_step.get(step, ()):
                if self._apart(new, job_rank) > RERUN_NS:
                    return _ran_again(step, new, job_rank, place)
        return None

    def _of_another_program(self, new: RecordedRank, place: str) -> Mismatch | None:
        same_rank = self._of_rank.get(new.rank, [])
        for job_rank in same_rank:
            model, new_model = job_rank.record.gpu_model, new.record.gpu_model
            if model and new_model and model != new_model:
                return Mismatch(job_rank, f"rank {new.rank} ran on {new_model}, and on {model} {place}")
        shared = [(new.shared_kernels(job_rank), job_rank) for job_rank in same_rank]
        known_shares = [(share, job_rank) for share, job_rank in shared if share is not None]
        if known_shares and max(share for share, _ in known_shares) < SHARED_LEAST:
            share, job_rank = max(known_shares, key=lambda share_and_rank: share_and_rank[0])
            return Mismatch(job_rank, f"rank {new.rank} shares {share:.0%} of its kernels with rank {new.rank} {place}")
        return None

    @staticmethod
    def _apart(first: RecordedRank, second: RecordedRank) -> int:
        return time_apart(first.utc_range, second.utc_range)

    def _steps_of(self, rank: RecordedRank) -> list[StepKey]:
        # without markers, numbers of steps hold within a recording only
        is_numbered = self.is_one_run and rank.record.steps_from == "marker"
        return [step.key for step in rank.record.steps] if is_numbered else []


def time_apart(first: UtcRange | None, second: UtcRange | None) -> int:
    """Return the ns between two ranges of time; 0 if they overlap or one is unknown."""
    return 0 if first is None or second is None else max(0, first[0] - second[1], second[0] - first[1])


def _overlap(first: RecordedRank, second: RecordedRank) -> int:
    """Return the ns that two ranges of time share; 0 if one is unknown."""
    if first.utc_range is None or second.utc_range is None:
        return 0
    return max(0, min(first.utc_range[1], second.utc_range[1]) - max(first.utc_range[0], second.utc_range[0]))


def _longest_step(rank: RecordedRank) -> int:
    """Return the ns between the starts of two steps in a row, or of one step, at most."""
    steps = rank.record.steps
    periods = [after.start_ns - before.start_ns for before, after in pairwise(steps)]
    lengths = [step.end_ns - step.start_ns for step in steps if step.end_ns is not None]
    return max([*periods, *lengths], default=0)


def _some(rank: RecordedRank) -> str:
    first, last = rank.record.steps[0].key, rank.record.steps[-1].key
    return str(first) if first == last else f"{first} to {last}"


def records_of_other_job(new: RecordedRank, ranks: Sequence[RecordedRank]) -> list[SourceRecord]:
    """Return the records of the lake's `ranks` that belong to another job than `new`, to replace them.

    These are the records that contradict `new`, and records whose kernels are those of a record that does.
    """
    foreign_ranks = [
        lake_rank for lake_rank in ranks if JobRanks([lake_rank]).find_mismatch(new, "in the lake") is not None
    ]
    for lake_rank in [lake_rank for lake_rank in ranks if lake_rank not in foreign_ranks]:
        to_new = new.shared_kernels(lake_rank)
        if (
            to_new is not None
            and to_new < SHARED_LEAST
            and any(_are_alike(lake_rank, foreign_rank) for foreign_rank in foreign_ranks)
        ):
            foreign_ranks.append(lake_rank)
    return [lake_rank.record for lake_rank in foreign_ranks]


def describe_job(records: Sequence[SourceRecord]) -> str:
    """Return a job in a few words: ranks, world size, GPU models, steps, date, files."""
    ranks = {record.rank for record in records}
    worlds = sorted({record.world_size for record in records if record.world_size is not None})
    steps = sorted({step.key.step for record in records for step in record.steps})
    starts = [
        record.utc_offset_ns + record.steps[0].start_ns
        for record in records
        if record.utc_offset_ns is not None and record.steps
    ]
    starts = [start for start in starts if 0 < start < _LAST_DATE_NS]
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


def _are_alike(first: RecordedRank, second: RecordedRank) -> bool:
    share = first.shared_kernels(second)
    return share is not None and share >= SHARED_LEAST


def _begin(rank: RecordedRank) -> int:
    assert rank.utc_range is not None
    return rank.utc_range[0]


def _end(rank: RecordedRank) -> int:
    assert rank.utc_range is not None
    return rank.utc_range[1]


def _ran_again(step: StepKey, new: RecordedRank, job_rank: RecordedRank, place: str) -> Mismatch:
    apart = format_time(time_apart(new.utc_range, job_rank.utc_range))
    return Mismatch(job_rank, f"it ran {step} {apart} {_order(new, job_rank)} rank {job_rank.rank} {place}")


def _order(rank: RecordedRank, reference: RecordedRank) -> str:
    return "after" if _begin(rank) > _begin(reference) else "before"
