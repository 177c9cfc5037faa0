"""Inspect: an ingest into a temporary folder, reported per source."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jitter.core.errors import JitterError
from jitter.core.parallel.executors import Executor
from jitter.ingestion.discovery.discover import Source
from jitter.ingestion.ingest import IngestReport, ingest
from jitter.ingestion.ranks.choose_job import GivenRecording
from jitter.ingestion.workers import Progress
from jitter.lake.log_records import LogRecord
from jitter.lake.records import SourceRecord


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


def inspect(
    paths: str | Path | Sequence[str | Path],
    *,
    step_pattern: str | None = None,
    collective: str | None = None,
    rank: int | None = None,
    rank_map: str | Path | None = None,
    rank_pattern: str | None = None,
    nsys: str | Path | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Read all recordings under `paths` and return what an ingest into a new lake would accept and reject.

    Raises `UsageError` for invalid options.
    """
    with tempfile.TemporaryDirectory(prefix="jitter-") as folder:
        report = ingest(
            paths,
            Path(folder, "lake"),
            step_pattern=step_pattern,
            collective=collective,
            rank=rank,
            rank_map=rank_map,
            rank_pattern=rank_pattern,
            nsys=nsys,
            executor=executor,
            progress=progress,
        )
    findings = [
        InspectedSource(rejection.path, None, (), rejection.error, ())
        for rejection in report.rejected
        if rejection.reader is None
    ]
    by_job = _by_job(report)
    recordings = [_finding(source, report, by_job) for source in report.found.sources]
    of_sources = {f"{rejection.path}: {warning}" for rejection in recordings for warning in rejection.warnings}
    notes = [warning for warning in report.warnings if warning not in of_sources]
    return Inspection([*findings, *recordings, *_logs(report.found.logs, report)], notes)


def _logs(paths: Sequence[Path], report: IngestReport) -> list[InspectedSource]:
    shown = {str(path.resolve()): path for path in paths}
    return [
        InspectedSource(
            shown[record.file], max(record.formats, key=record.formats.__getitem__, default=None), (), None, (), record
        )
        for record in report.logs.added
    ]


def _by_job(report: IngestReport) -> dict[Path, tuple[InspectedJob, GivenRecording]]:
    """Return the job of each recording by its path; empty if all are of one job."""
    if report.jobs is None or len(report.jobs.jobs) < 2:
        return {}
    job_of_path: dict[Path, tuple[InspectedJob, GivenRecording]] = {}
    for job in report.jobs.jobs:
        described = InspectedJob(job.describe(), job is report.jobs.taken)
        job_of_path |= {recording.path: (described, recording) for recording in job.recordings}
    return job_of_path


def _finding(
    source: Source, report: IngestReport, by_job: Mapping[Path, tuple[InspectedJob, GivenRecording]]
) -> InspectedSource:
    file, prefix = str(source.path.resolve()), f"{source.path}: "
    job, recording = by_job.get(source.path, (None, None))
    records = tuple(record for record in report.added if record.file == file)
    if recording is not None:
        records = records or tuple(rank.record for rank in recording.ranks)
    return InspectedSource(
        source.path,
        source.reader,
        records,
        next(
            (
                rejection.error
                for rejection in report.rejected
                if rejection.reader is not None and rejection.path == source.path
            ),
            None,
        ),
        tuple(warning.removeprefix(prefix) for warning in report.warnings if warning.startswith(prefix)),
        job=job,
    )
