"""Tell what an ingest would do, without a lake, and what an expected recording lacks."""

import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from jitter.core.errors import JitterError, UsageError
from jitter.core.formatting import format_count, format_numbers, format_ranks
from jitter.core.grouping import by_key
from jitter.core.step_key import StepKey
from jitter.ingestion.ingest import IngestReport, ingest
from jitter.lake.log_records import LogRecord
from jitter.lake.records import SourceRecord

_FORM: Final = re.compile(r"(?P<ranks>[0-9]{1,7})[x×](?P<steps>[0-9]{1,7})")
_MOST: Final = 1_000_000
_SHOWN: Final = 4
"""Sets of ranks that lack the same steps which the sentence shows."""


class Expectation(NamedTuple):
    """Numbers of ranks, from 0 on, and of steps that each of them should have recorded."""

    ranks: int
    steps: int


@dataclass(frozen=True)
class MissingSteps:
    """What a recording lacks of an expectation. Only complete steps count as recorded."""

    expected: Expectation
    ranks: tuple[int, ...]
    """Ranks without a complete step."""
    steps: Mapping[StepKey, tuple[int, ...]]
    """By step, the recorded ranks that lack it. Expected are as many steps as stated, the most often recorded ones."""
    recorded: tuple[StepKey, ...]
    """The expected steps that were recorded, in order."""

    @property
    def absent_steps(self) -> int:
        """Return the number of expected steps that no rank recorded."""
        return self.expected.steps - len(self.recorded)

    def __bool__(self) -> bool:
        return bool(self.ranks or self.steps or self.absent_steps)

    def __str__(self) -> str:
        """Return one sentence for people."""
        shape = f"{format_count(self.expected.ranks, 'rank')} x {format_count(self.expected.steps, 'step')}"
        if not self:
            return f"all of the expected {shape} are recorded ({_describe_steps(self.recorded)})"
        parts = []
        if self.ranks:
            parts.append(f"{format_ranks(self.ranks)} ({len(self.ranks):,} of {self.expected.ranks:,})")
        by_ranks = by_key((ranks, key) for key, ranks in self.steps.items())
        groups = [f"{_describe_steps(keys)} on {format_ranks(ranks)}" for ranks, keys in by_ranks.items()]
        parts += groups[:_SHOWN]
        if len(groups) > _SHOWN:
            others = sum(len(keys) for keys in list(by_ranks.values())[_SHOWN:])
            parts.append(f"{format_count(others, 'more step')} on other ranks")
        if self.absent_steps:
            has = f" (recorded: {_describe_steps(self.recorded)})" if self.recorded else ""
            parts.append(f"{self.absent_steps:,} of {format_count(self.expected.steps, 'step')} on every rank{has}")
        return f"of the expected {shape}, missing: {'; '.join(parts)}"


def parse_expectation(text: str) -> Expectation:
    """Return the expectation in a text such as `512x10`: ranks x steps. Raises `UsageError` for others."""
    match = _FORM.fullmatch(text.strip())
    numbers = (0, 0) if match is None else (int(match["ranks"]), int(match["steps"]))
    if not all(0 < number <= _MOST for number in numbers):
        raise UsageError(f"--expect: {text!r} states no number of ranks and steps", "write it like 512x10")
    return Expectation(*numbers)


def find_missing(records: Iterable[SourceRecord], expected: Expectation) -> MissingSteps:
    """Return what the records lack of the expected ranks and steps."""
    held: dict[StepKey, set[int]] = defaultdict(set)
    for record in records:
        if record.rank is not None and record.rank < expected.ranks:
            for step in record.steps:
                if not step.cut:
                    held[step.key].add(record.rank)
    present = set().union(*held.values())
    common = sorted(held, key=lambda key: (-len(held[key]), key.order))[: expected.steps]
    common.sort(key=lambda key: key.order)
    lacking = {key: tuple(sorted(present - held[key])) for key in common}
    return MissingSteps(
        expected,
        tuple(rank for rank in range(expected.ranks) if rank not in present),
        {key: ranks for key, ranks in lacking.items() if ranks},
        tuple(common),
    )


def _describe_steps(keys: Iterable[StepKey]) -> str:
    return ", ".join(
        f"{'' if epoch is None else f'epoch {epoch} '}step{'s' if len(steps) > 1 else ''} {format_numbers(steps)}"
        for epoch, steps in by_key((key.epoch, key.step) for key in keys).items()
    )


@dataclass(frozen=True)
class InspectedJob:
    """One of several jobs of which the recordings are."""

    description: str
    is_taken: bool
    """Whether an ingest takes it; it takes none if two are of similar size."""


@dataclass(frozen=True)
class InspectedSource:
    """One source: its records (one per GPU), or the error for which an ingest rejects it."""

    path: Path
    format: str | None
    records: tuple[SourceRecord, ...]
    error: JitterError | None
    warnings: tuple[str, ...]
    log: LogRecord | None = None
    """Set if the source is a log; `format` is the one that most of its records have, None if none can be read."""
    job: InspectedJob | None = None
    """The job that its ranks are of, if the recordings are of several."""


@dataclass(frozen=True)
class Inspection:
    """What an ingest would read, and its notes on the whole job: links to folders, missing ranks, options unused."""

    sources: list[InspectedSource]
    notes: list[str]


def inspect(paths: str | Path | Sequence[str | Path], **options: Any) -> Inspection:
    """Read all recordings under `paths` and return what `ingest` with these options accepts and rejects for a new lake.

    Raises `UsageError` for invalid options.
    """
    with tempfile.TemporaryDirectory(prefix="jitter-") as folder:
        report = ingest(paths, Path(folder, "lake"), **options)
    findings = [
        InspectedSource(rejection.path, None, (), rejection.error, ())
        for rejection in report.rejected
        if rejection.reader is None
    ]
    added = by_key((record.file, record) for record in report.added)
    errors = {rejection.path: rejection.error for rejection in report.rejected if rejection.reader is not None}
    by_job = _by_job(report)
    recordings = []
    for source in report.found.sources:
        prefix = f"{source.path}: "
        warnings = (warning.removeprefix(prefix) for warning in report.warnings if warning.startswith(prefix))
        job, of_job = by_job.get(source.path, (None, ()))
        records = tuple(added.get(str(source.path.resolve()), of_job))
        recordings.append(
            InspectedSource(source.path, source.reader, records, errors.get(source.path), tuple(warnings), job=job)
        )
    of_sources = {f"{rejection.path}: {warning}" for rejection in recordings for warning in rejection.warnings}
    notes = [warning for warning in report.warnings if warning not in of_sources]
    shown = {str(path.resolve()): path for path in report.found.logs}
    logs = [
        InspectedSource(
            shown[record.file], max(record.formats, key=record.formats.__getitem__, default=None), (), None, (), record
        )
        for record in report.logs.added
    ]
    return Inspection([*findings, *recordings, *logs], notes)


def _by_job(report: IngestReport) -> dict[Path, tuple[InspectedJob, list[SourceRecord]]]:
    """Return the job of each recording, and its records, by its path; empty if all are of one job."""
    if report.jobs is None or len(report.jobs.jobs) < 2:
        return {}
    job_of_path: dict[Path, tuple[InspectedJob, list[SourceRecord]]] = {}
    for job in report.jobs.jobs:
        described = InspectedJob(job.describe(), job is report.jobs.taken)
        for recording in job.recordings:
            job_of_path[recording.path] = described, [rank.record for rank in recording.ranks]
    return job_of_path
