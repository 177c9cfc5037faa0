"""Ingest: read trace files with worker processes and publish them into a lake."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from jitter.core.errors import JitterError, UnknownRankError, UnreadableTraceError, UsageError
from jitter.core.formatting import format_count
from jitter.core.parallel.executors import DaskExecutor, Executor, LocalExecutor
from jitter.ingestion import step_numbering
from jitter.ingestion.convert import Outcome, Task
from jitter.ingestion.discovery.discover import DiscoveredFiles, Source, discover
from jitter.ingestion.discovery.unrecognized_files import DamagedTraceError
from jitter.ingestion.ingest_logs import IngestedLogs, ingest_logs
from jitter.ingestion.patterns import compile_collective_pattern, compile_step_pattern
from jitter.ingestion.publish import Patterns, Publisher
from jitter.ingestion.ranks.decide_ranks import RankOptions, parse_rank_options, rank_map_rows
from jitter.ingestion.ranks.job_identity import OtherJobError
from jitter.ingestion.workers import Progress, convert_in_pool
from jitter.lake import catalog
from jitter.lake.folder import LakeFolder
from jitter.lake.layout import DEFAULT_LAKE
from jitter.lake.rank_coverage import coverage_notes
from jitter.lake.records import SourceRecord

Converter = Callable[[Sequence[Task], Progress | None], Iterator[Outcome]]
"""Converts tasks, here or on a cluster, and yields their outcomes in the order of the tasks."""


class RejectedSource(NamedTuple):
    """A source that was not ingested; `reader` is None if no reader accepts it."""

    path: Path
    reader: str | None
    error: JitterError


@dataclass
class IngestReport:
    """The result of an ingest. Every source that was not ingested is in `rejected`, with its error."""

    lake: Path
    added: list[SourceRecord] = field(default_factory=list)
    unchanged: int = 0
    """Number of sources that the lake already held."""
    rejected: list[RejectedSource] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    other_files: int = 0
    """Number of files that are neither traces nor logs."""
    logs: IngestedLogs = field(default_factory=IngestedLogs)

    @property
    def refused(self) -> list[JitterError]:
        """The errors of the rejected sources."""
        return [one.error for one in self.rejected]


def ingest(
    paths: str | Path | Sequence[str | Path],
    lake: str | Path = DEFAULT_LAKE,
    *,
    step_pattern: str | None = None,
    collective: str | None = None,
    rank: int | None = None,
    rank_map: str | Path | None = None,
    rank_pattern: str | None = None,
    label: str | None = None,
    replace: bool = False,
    same_job: bool = False,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> IngestReport:
    """Add all recordings under `paths` (one path or several, files or folders) to the lake, and return a report.

    Sources that the lake already holds are not read again. `step_pattern` is a regular expression with a group
    `step` for step markers. `collective` is a regular expression for names of kernels that communicate, besides those
    that jitter knows. `rank` (one file), `rank_map` (a CSV file of file,rank) and `rank_pattern` (a regular
    expression with a group `rank`) give ranks. Logs beside the traces go into the lake too; `label` names what they
    belong to (default: the folder of each). With `replace`, the newer of two sources for the same rank and step is
    kept, and sources of another job replace the lake's job. A lake holds one job: without `replace`, sources that
    cannot belong to it are rejected, unless `same_job` states that they do. `executor` is where traces are converted:
    one worker process per processor (default), `LocalExecutor()`, `PoolExecutor(workers)` or `DaskExecutor(address)`.
    `progress` is called with bytes done and total bytes.

    Raises `UsageError` for invalid options, `UnreadableTraceError` if no path exists, `LakeError` if the folder is not
    a lake, and `JitterError` if the cluster does not answer. Errors of single sources are in the report.
    """
    options = parse_rank_options(rank, rank_map, rank_pattern)
    compile_step_pattern(step_pattern)
    compile_collective_pattern(collective)
    found = discover(as_paths(paths))
    check_single_rank(rank, found)
    return ingest_discovered(
        found,
        Path(lake),
        Patterns(step_pattern, collective),
        options,
        replace,
        choose_converter(executor),
        progress,
        label,
        same_job,
    )


def as_paths(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return one path or several as a list.

    Raises `UsageError` if none is given, and `UnreadableTraceError` if none exists; a missing path among others is
    rejected like an unreadable source.
    """
    found = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(path) for path in paths]
    if not found:
        raise UsageError("no path given", "give files or folders of traces")
    if not any(os.path.lexists(path) for path in found):
        raise UnreadableTraceError(f"{found[0]}: no such file or directory", "check the path")
    return found


def choose_converter(executor: Executor | None) -> Converter:
    """Return what converts tasks on this executor; None means one worker process per processor."""
    if isinstance(executor, DaskExecutor):
        from jitter.ingestion.dask_workers import convert_on_dask

        return lambda tasks, progress: convert_on_dask(executor.address, tasks, progress)
    jobs = 1 if isinstance(executor, LocalExecutor) else executor.workers if executor is not None else None
    return lambda tasks, progress: convert_in_pool(tasks, jobs, progress, catalog.preload)


def check_single_rank(rank: int | None, found: DiscoveredFiles) -> None:
    """Raise `UsageError` if `--rank` is given for several sources."""
    if rank is not None and len(found.sources) > 1:
        raise UsageError(f"--rank {rank} is for one file, and there are {len(found.sources)}", "use --rank-map")


def ingest_discovered(
    found: DiscoveredFiles,
    lake: Path,
    patterns: Patterns,
    options: RankOptions,
    replace: bool,
    convert: Converter,
    progress: Progress | None,
    label: str | None = None,
    same_job: bool = False,
) -> IngestReport:
    """Ingest discovered sources; see `ingest`."""
    folder = LakeFolder(lake)
    unreadable = [RejectedSource(path, None, error) for path, error in found.unreadable]
    report = IngestReport(folder.root, rejected=unreadable, other_files=found.others, warnings=list(found.notes))
    if (
        not found.sources and not found.logs and not lake.exists()
    ):  # a lake made for a mistyped path would hide the mistake
        report.warnings += _unused_lines(options, [])
        return report
    folder.create()
    folder.sweep()
    publisher = Publisher(folder, replace, same_job)
    fresh = [source for source in found.sources if not publisher.holds(source, patterns, options)]
    report.warnings += _unused_lines(options, found.sources)
    report.unchanged = len(found.sources) - len(fresh)
    report.warnings += publisher.outdated_readers(found.sources)
    staging = folder.staging()
    try:
        known = publisher.digests(patterns, options)
        tasks = [Task(source, staging, *patterns, options, known.get(source.size, frozenset())) for source in fresh]
        _Run(folder, publisher, report, convert).run(tasks, progress)
        for path, error in found.unreadable:
            if isinstance(error, DamagedTraceError):
                publisher.refuse_file(path, error)
        report.warnings += coverage_notes(publisher.records)
        if publisher.replaced:
            report.warnings.append(
                f"{format_count(publisher.replaced, 'source')} of another job removed from {folder.root} (--replace)"
            )
        report.rejected += [RejectedSource(path, None, error) for path, error in folder.intact_records()[1]]
        report.logs = ingest_logs(folder, found.logs, label, replace)
        report.rejected += [RejectedSource(path, None, error) for path, error in report.logs.rejected]
    finally:
        folder.close()
        catalog.refresh(folder.root, lambda: folder.intact_records()[0])
    return report


def _unused_lines(options: RankOptions, sources: Sequence[Source]) -> list[str]:
    """Return a warning for each line of --rank-map that names none of the sources."""
    used = {
        row for source in sources for row in options.by_file if rank_map_rows(source.path, RankOptions(by_file=(row,)))
    }
    return [
        f"--rank-map names {row[0]}, which is not among the files read" for row in options.by_file if row not in used
    ]


class _Run:
    """One ingest: converts tasks, numbers their steps and publishes the outcomes."""

    def __init__(self, folder: LakeFolder, publisher: Publisher, report: IngestReport, convert: Converter) -> None:
        self._folder = folder
        self._publisher = publisher
        self._report = report
        self._convert = convert
        self._seen: dict[str, Path] = {}

    def run(self, tasks: Sequence[Task], progress: Progress | None) -> None:
        """Convert and publish in path order, so that conflicts do not depend on which worker is faster."""
        provisional: list[tuple[Task, Outcome]] = []
        for task, outcome in zip(tasks, self._convert(tasks, progress), strict=True):
            if self._is_new(outcome):
                if step_numbering.has_provisional_steps(outcome):
                    provisional.append((task, outcome))
                else:
                    self._publish(outcome)
        if provisional:
            # held until the last file is published: an ingest on another node would number its steps on its own
            with self._folder.exclusive_lock():
                self._publisher.see_others()
                for outcome in self._in_phase(provisional):
                    self._publish(outcome)

    def _is_new(self, outcome: Outcome) -> bool:
        if outcome.error is not None:
            self._refuse(outcome, outcome.error)
            return False
        if outcome.is_known:
            self._publisher.found_again(outcome)
            self._report.unchanged += 1
            return False
        twin = self._seen.setdefault(outcome.file_digest, outcome.source.path)
        if twin != outcome.source.path:
            self._report.warnings.append(f"{outcome.source.path}: the same content as {twin}, taken once")
            return False
        return True

    def _in_phase(self, provisional: Sequence[tuple[Task, Outcome]]) -> Iterator[Outcome]:
        """Yield sources without markers with equal step numbers; sources cut at another kernel are cut again first."""
        records = self._publisher.records
        mine = {outcome.file_digest for _, outcome in provisional}
        others = [record for record in records if record.file_digest not in mine]
        reference = step_numbering.reference_in_lake(self._folder.root, others)
        outcomes = [outcome for _, outcome in provisional]
        known = step_numbering.step_programs(outcomes, reference)
        again = [n for n, outcome in enumerate(outcomes) if step_numbering.begins_at_other_kernel(outcome, known)]
        for n in again:
            shutil.rmtree(outcomes[n].staging, ignore_errors=True)
        tasks = [provisional[n][0].cut_like(tuple(known)) for n in again]
        for n, outcome in zip(again, self._convert(tasks, None), strict=True):
            outcomes[n] = outcome
        refused = step_numbering.number_steps(outcomes, reference, others)
        for outcome, error in refused:
            self._refuse(outcome, error)
        refused_paths = {outcome.source.path for outcome, _ in refused}
        yield from (outcome for outcome in outcomes if outcome.source.path not in refused_paths)

    def _publish(self, outcome: Outcome) -> None:
        try:
            added = self._publisher.publish(outcome)
        except (UnknownRankError, OtherJobError) as error:
            self._refuse(outcome, error)
            return
        self._report.added += added
        self._report.warnings += [f"{outcome.source.path}: {warning}" for warning in outcome.warnings]

    def _refuse(self, outcome: Outcome, error: JitterError) -> None:
        self._report.rejected.append(RejectedSource(outcome.source.path, outcome.source.reader, error))
        if not isinstance(error, OtherJobError):  # it says nothing of the lake's job
            self._publisher.refuse(outcome, error)
