"""Whether a recording belongs to the job that a lake holds: its rank's program and GPU model, world size and date."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median_low
from typing import Final, NamedTuple

import pyarrow.parquet as pq

from jitter.core.errors import JitterError
from jitter.core.formatting import format_count
from jitter.core.names.kernels import KINDS, MEMORY
from jitter.lake.layout import kernels_file
from jitter.lake.records import SourceRecord, StepRecord

SHARED_LEAST: Final = 0.5
"""Share of kernels that two recordings of one rank have in common at least, if they are of one job."""
_DAY_NS: Final = 86_400 * 10**9
_HINT: Final = (
    "a lake holds one job: use another lake (`ingest -o LAKE`, `report -L LAKE`), `jitter ingest --replace` to replace "
    "the job in the lake, or --same-job if it is the same job"
)


class OtherJobError(JitterError):
    """A recording that cannot belong to the job that the lake holds."""


class StepFile(NamedTuple):
    """One step of a rank: its record and its parquet file."""

    step: StepRecord
    path: Path


class Mismatch(NamedTuple):
    """Why a recording is not of the same job as another."""

    other: SourceRecord
    reason: str


def find_mismatch(
    new: SourceRecord, program: Sequence[StepFile], records: Iterable[SourceRecord], root: Path
) -> Mismatch | None:
    """Return why `new` is of another job than `records`, those of the lake in `root`; None if it may belong to it.

    `program` are the new recording's staged steps. The world size and the date are compared with every record, the
    GPU model and the kernels with those of the same rank, since stages of a pipeline run other kernels.
    """
    same_rank: list[SourceRecord] = []
    own = _utc_range(new)
    for other in records:
        if other.file_digest == new.file_digest:
            continue
        reason = _of_another_run(new, own, other)
        if reason is not None:
            return Mismatch(other, reason)
        if other.rank == new.rank:
            same_rank.append(other)
    for other in same_rank:
        if other.gpu_model and new.gpu_model and other.gpu_model != new.gpu_model:
            return Mismatch(other, f"rank {new.rank} ran on {new.gpu_model}, and on {other.gpu_model} in the lake")
    if not same_rank:
        return None
    shared = [(shared_kernels(program, step_files(other, root)), other) for other in same_rank]
    known = [(share, other) for share, other in shared if share is not None]
    if known and max(share for share, _ in known) < SHARED_LEAST:
        share, other = max(known, key=lambda one: one[0])
        return Mismatch(other, f"rank {new.rank} shares {share:.0%} of its kernels with rank {new.rank} in the lake")
    return None


def records_of_other_job(
    new: SourceRecord, program: Sequence[StepFile], records: Sequence[SourceRecord], root: Path
) -> list[SourceRecord]:
    """Return the records of the lake that belong to another job than `new`, to replace them.

    These are the records that contradict `new`, and records whose kernels are those of a record that does.
    """
    found = [record for record in records if find_mismatch(new, program, [record], root) is not None]
    kept = [record for record in records if record not in found]
    programs = [step_files(record, root) for record in found]
    for record in kept:
        own = step_files(record, root)
        to_new = shared_kernels(program, own)
        if to_new is not None and to_new < SHARED_LEAST and any(_are_alike(own, other) for other in programs):
            found.append(record)
    return found


def other_job_error(new: SourceRecord, mismatch: Mismatch, records: Sequence[SourceRecord]) -> OtherJobError:
    """Return the error for a recording of another job; it describes both jobs."""
    return OtherJobError(
        f"{new.file}: recorded in another job than the one in the lake: {mismatch.reason}. In the lake: "
        f"{describe_job(records)}. This recording: {describe_job([new])}",
        _HINT,
    )


def describe_job(records: Sequence[SourceRecord]) -> str:
    """Return a job in a few words: ranks, world size, GPU models, date, steps, a folder."""
    ranks = {record.rank for record in records}
    worlds = sorted({record.world_size for record in records if record.world_size is not None})
    steps = sorted({step.key.step for record in records for step in record.steps})
    starts = [found[0] for record in records if (found := _utc_range(record)) is not None]
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


def step_files(record: SourceRecord, root: Path) -> list[StepFile]:
    """Return the steps of a record in the lake in `root`, with their files."""
    assert record.rank is not None
    return [StepFile(step, root / kernels_file(step.key, record.rank)) for step in record.steps]


def shared_kernels(one: Sequence[StepFile], other: Sequence[StepFile]) -> float | None:
    """Return the share of kernels (0 to 1) that a typical step of each has in common; None if either has no kernel.

    Kernels count as often as they occur. Steps with equal sequences share all.
    """
    if {file.step.sequence for file in one if file.step.kernels} & {file.step.sequence for file in other}:
        return 1.0
    first, second = _kernel_counts(one), _kernel_counts(other)
    if not first or not second:
        return None
    return (first & second).total() / max(first.total(), second.total())


def _are_alike(one: Sequence[StepFile], other: Sequence[StepFile]) -> bool:
    share = shared_kernels(one, other)
    return share is not None and share >= SHARED_LEAST


def _kernel_counts(files: Sequence[StepFile]) -> Counter[str]:
    """Return how often each kernel runs in a typical step: the one with the lower median of kernels."""
    complete = [file for file in files if not file.step.cut] or list(files)
    if not complete:
        return Counter()
    middle = median_low(file.step.kernels for file in complete)
    path = next(file.path for file in complete if file.step.kernels == middle)
    try:
        rows = pq.read_table(path, columns=["kernel_name", "kind"], partitioning=None)
    except (OSError, ValueError):  # a file lost from the lake: `verify` and queries name it
        return Counter()
    counts: Counter[str] = Counter()
    for group in rows.group_by(["kernel_name", "kind"]).aggregate([([], "count_all")]).to_pylist():
        if group["kind"] != KINDS[MEMORY]:
            counts[group["kernel_name"]] += group["count_all"]
    return counts


def _of_another_run(new: SourceRecord, own: tuple[int, int] | None, other: SourceRecord) -> str | None:
    """Return why two records are not of one run; `own` is the UTC range of `new`, which is compared with many."""
    if new.world_size and other.world_size and new.world_size != other.world_size:
        return f"its world size is {new.world_size}, and {other.world_size} in the lake"
    theirs = None if own is None else _utc_range(other)
    if own is not None and theirs is not None:
        apart = max(own[0] - theirs[1], theirs[0] - own[1])
        if apart > _DAY_NS:
            days = format_count(apart // _DAY_NS, "day")
            return f"it was recorded {days} {'after' if own[0] > theirs[1] else 'before'} the recordings in the lake"
    return None


def _utc_range(record: SourceRecord) -> tuple[int, int] | None:
    """Return the first and last time of the record's steps in ns since 1970; None without a wall clock or steps."""
    if record.utc_offset_ns is None or not record.steps:
        return None
    last = record.steps[-1]
    return (
        record.utc_offset_ns + record.steps[0].start_ns,
        record.utc_offset_ns + (last.start_ns if last.end_ns is None else last.end_ns),
    )
