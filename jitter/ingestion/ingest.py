"""Ingest: read trace files with worker processes, and logs found beside them or alone, into a lake."""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any, Final, NamedTuple

from jitter.core.errors import (
    FullDiskError,
    JitterError,
    LakeError,
    RejectedForAnotherError,
    UnknownRankError,
    UnreadableTraceError,
    UsageError,
    reason_of,
)
from jitter.core.files import modified_ns
from jitter.core.formatting import format_count
from jitter.core.grouping import by_key
from jitter.core.parallel.executors import Executor
from jitter.ingestion import step_numbering
from jitter.ingestion.convert import Outcome, Task, file_digest
from jitter.ingestion.discovery.discover import DiscoveredFiles, Source, discover
from jitter.ingestion.discovery.unrecognized_files import DamagedTraceError
from jitter.ingestion.nsys_export import find_nsys
from jitter.ingestion.publish import Publisher
from jitter.ingestion.ranks.decide_ranks import ReadOptions, find_host_gpus, parse_options
from jitter.ingestion.ranks.jobs import (
    GivenRecording,
    JobChoice,
    OtherJobError,
    describe_clocks,
    left_out_errors,
    ranks_in_lake,
)
from jitter.ingestion.ranks.windows import find_misread
from jitter.ingestion.workers import Progress, convert_all
from jitter.lake import DEFAULT_LAKE, catalog
from jitter.lake.folder import LakeFolder
from jitter.lake.integrity.verify import log_problems
from jitter.lake.log_records import LogRecord, intact_log_records, log_digest, publish_log, remove_log
from jitter.lake.rank_coverage import coverage_notes
from jitter.lake.records import SourceRecord
from jitter.readers import describe_error


@dataclass
class IngestedLogs:
    """Logs that went into a lake."""

    added: list[LogRecord] = field(default_factory=list)
    unchanged: int = 0
    """Number of logs that the lake already held."""
    rejected: list[tuple[Path, JitterError]] = field(default_factory=list)


def ingest_logs(folder: LakeFolder, paths: Sequence[Path], label: str | None) -> IngestedLogs:
    """Add logs to a lake; `label` names what they belong to (default: each one's folder).

    A log whose file has changed since replaces its former content. A log is read again if its files in the lake are
    missing or damaged, or if an older version of the parsers read it.
    """
    report = IngestedLogs()
    if paths:
        from jitter.logs import VERSION  # imported here: most ingests read no logs
    records, _ = intact_log_records(folder.root)
    held = {record.digest: record for record in records}
    for path in paths:
        try:
            record_label = path.resolve().parent.name if label is None else label
            digest = log_digest(file_digest([path]), record_label, path.name)
            held_log = held.get(digest)
            if held_log is not None and held_log.parsers_version == VERSION and not log_problems(folder.root, held_log):
                report.unchanged += 1
                continue
            record = _publish(folder, path, record_label, digest)
        except Exception as error:  # any error of one log must leave the others unaffected
            report.rejected.append((path, _rejection(path, error)))
            continue
        for former in [
            log_record for log_record in held.values() if log_record.file == record.file and log_record.digest != digest
        ]:
            remove_log(folder, held.pop(former.digest))
        held[digest] = record
        report.added.append(record)
    report.rejected += [(error.path, error) for error in intact_log_records(folder.root)[1]]
    return report


def _rejection(path: Path, error: Exception) -> JitterError:
    if isinstance(error, JitterError):
        return error
    if isinstance(error, OSError):
        return UnreadableTraceError(f"{path}: cannot be read ({reason_of(error)})", "check the file")
    hint = "this is a bug of jitter: please report it, if possible with the file"
    return JitterError(f"{path}: could not be read: {describe_error(error)}", hint)


def _publish(folder: LakeFolder, path: Path, label: str, digest: str) -> LogRecord:
    from jitter.logs import VERSION, parse  # imported here: most ingests read no logs

    state = path.stat()
    file = str(path.resolve())
    parsed = parse(path, label=label, source=file)
    record = LogRecord(
        digest=digest,
        file=file,
        size=state.st_size,
        mtime_ns=modified_ns(state),
        label=label,
        formats=dict(sorted(parsed.records.items())),
        relations={relation: table.num_rows for relation, table in parsed.tables.items()},
        problems=[str(problem) for problem in parsed.problems],
        parsers_version=VERSION,
    )
    publish_log(folder, record, parsed.tables)
    return record


MANY_FILES: Final = 100_000
"""Files of kernels in a lake, one per GPU and step, above which an ingest says what they cost."""


class RejectedSource(NamedTuple):
    """A source that was not ingested; `reader` is None if no reader accepts it."""

    path: Path
    error: JitterError
    reader: str | None = None


@dataclass
class IngestReport:
    """The result of an ingest. Every source that was not ingested is in `rejected`, with its error."""

    lake: Path
    found: DiscoveredFiles
    """What lies under the given paths."""
    added: list[SourceRecord] = field(default_factory=list)
    unchanged: int = 0
    """Number of sources that the lake already held."""
    rejected: list[RejectedSource] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    other_files: int = 0
    """Number of files that are neither traces nor logs."""
    logs: IngestedLogs = field(default_factory=IngestedLogs)
    jobs: JobChoice | None = None
    """The jobs of which the recordings are, and the one that was taken; None if none was read."""

    @property
    def traces_taken(self) -> int:
        """Number of recordings that the lake now holds, whenever it took them."""
        return len({record.file for record in self.added}) + self.unchanged

    @property
    def traces_left_out(self) -> int:
        """Number of recordings that the lake does not hold."""
        logs = {path for path, _ in self.logs.rejected}
        return sum(source.error.files for source in self.rejected if source.path not in logs)

    @property
    def refused(self) -> list[JitterError]:
        """The errors of the rejected sources."""
        return [source.error for source in self.rejected]


def ingest(
    paths: str | Path | Sequence[str | Path],
    lake: str | Path = DEFAULT_LAKE,
    *,
    step_pattern: str | None = None,
    collective: str | None = None,
    rank: int | None = None,
    rank_map: str | Path | None = None,
    rank_pattern: str | None = None,
    hosts: Sequence[str] | None = None,
    nsys: str | Path | None = None,
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
    expression with a group `rank`) give ranks; `hosts`, in the order of their nodes, where the recordings state hosts
    and GPUs and no ranks. `nsys` is the program that exports Nsight Systems reports (default: the
    one on PATH, if there is one). Logs beside the traces go into the lake too; `label` names what they
    belong to (default: the folder of each). With `replace`, the newer of two sources for the same rank and step is
    kept, and sources of another job replace the lake's job. A lake holds one job: without `replace`, sources that
    cannot belong to it are rejected, unless `same_job` states that they do. `executor` is where traces are converted:
    one worker process per processor (default; none where sources are small), `LocalExecutor()`,
    `PoolExecutor(workers)` or `DaskExecutor(address)`.
    `progress` is called with bytes done and total bytes.

    Raises `UsageError` for invalid options, `UnreadableTraceError` if no path exists, `LakeError` if the folder is not
    a lake, and `JitterError` if the cluster does not answer. Errors of single sources are in the report.
    """
    options = parse_options(rank, rank_map, rank_pattern, step_pattern, collective, hosts or ())
    inputs = discover(_as_paths(paths), find_nsys(nsys))
    if rank is not None and len(inputs.sources) > 1:
        raise UsageError(f"--rank {rank} is for one file, and there are {len(inputs.sources)}", "use --rank-map")
    folder = LakeFolder(Path(lake))
    report = IngestReport(folder.root, inputs, other_files=inputs.others, warnings=list(inputs.notes))
    report.rejected += starmap(RejectedSource, inputs.unreadable)
    # a lake made for a mistyped path would hide the mistake
    if not inputs.sources and not inputs.logs and not Path(lake).exists():
        report.warnings += _unused_lines(options, [])
        return report
    is_new = not folder.is_lake
    try:
        folder.create()
    except KeyboardInterrupt:
        folder.close()
        raise
    with _closing(folder, report, is_new):
        folder.sweep()
        publisher = Publisher(folder, options, replace, same_job)
        report.warnings += publisher.check_files(inputs.sources)
        held = [source for source in inputs.sources if publisher.holds(source)]
        held_paths = {source.path for source in held}
        fresh = [source for source in inputs.sources if source.path not in held_paths]
        report.warnings += _unused_lines(options, inputs.sources)
        report.unchanged = len(held)
        report.warnings += publisher.outdated_readers(inputs.sources)
        known = publisher.digests()
        is_only = len(inputs.sources) == 1 and not inputs.unreadable and not options.gives_ranks
        is_only = is_only and {record.file for record in publisher.records} <= {str(inputs.sources[0].path.resolve())}
        unfinished = folder.staging()
        tasks = [
            Task(source, unfinished, options, known.get(source.size, frozenset()), is_only=is_only) for source in fresh
        ]
        if not _Run(folder, publisher, report, executor).run(tasks, held, progress):
            return report
        _complete_report(report, folder, publisher, label)
        if report.added or report.rejected or report.logs.added:
            folder.remove_derived()
    return report


def _complete_report(report: IngestReport, folder: LakeFolder, publisher: Publisher, label: str | None) -> None:
    """Add what is known after the traces are published: damaged files, warnings, logs."""
    for path, error in report.found.unreadable:
        if isinstance(error, DamagedTraceError):
            publisher.refuse_file(path, error)
    report.warnings += publisher.grown
    report.warnings += coverage_notes(publisher.records)
    report.warnings += describe_clocks(ranks_in_lake(publisher.records, folder.root))
    report.warnings += step_numbering.describe_other_kinds(publisher.records)
    if publisher.replaced:
        report.warnings.append(
            f"{format_count(publisher.replaced, 'source')} of another job removed from {folder.root} (--replace)"
        )
    report.rejected += [RejectedSource(error.path, error) for error in folder.intact_records()[1]]
    left_out = _logs_of_others(report)
    if left_out:
        report.warnings.append(
            f"{left_out[0]}: beside recordings that are left out, and left out too"
            + (f" (and {format_count(len(left_out) - 1, 'more log')})" if len(left_out) > 1 else "")
            + "; to add it, give it alone"
        )
    report.logs = ingest_logs(folder, [path for path in report.found.logs if path not in left_out], label)
    report.rejected += starmap(RejectedSource, report.logs.rejected)


def _logs_of_others(report: IngestReport) -> list[Path]:
    """Return the logs whose nearest recordings are all left out in favour of another job or run."""
    rejected = {source.path: source.error for source in report.rejected}
    kept = {folder for source in report.found.sources if source.path not in rejected for folder in source.path.parents}
    others = {
        folder
        for path, error in rejected.items()
        if isinstance(error, RejectedForAnotherError)
        for folder in path.parents
    }
    of_others, either = others - kept, others | kept
    return [
        path
        for path in report.found.logs
        if next((folder for folder in path.parents if folder in either), None) in of_others
    ]


def _as_paths(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """Return one path or several as a list.

    Raises `UsageError` if none is given, and `UnreadableTraceError` if none exists; a missing path among others is
    rejected like an unreadable source.
    """
    given_paths = [Path(paths)] if isinstance(paths, str | os.PathLike) else [Path(path) for path in paths]
    if not given_paths:
        raise UsageError("no path given", "give files or folders of traces")
    if not any(os.path.lexists(path) for path in given_paths):
        raise UnreadableTraceError(f"{given_paths[0]}: no such file or directory", "check the path")
    return given_paths


@contextmanager
def _closing(folder: LakeFolder, report: IngestReport, is_new: bool) -> Iterator[None]:
    """End the run of an ingest after the block, also after an error, which is then the one that is told."""

    def close() -> None:
        folder.close()
        if is_new and report.jobs is not None and report.jobs.taken is None:
            folder.remove_empty()
        else:
            catalog.refresh(folder.root, lambda: folder.intact_records()[0])

    try:
        yield
    except BaseException:
        with suppress(LakeError, OSError):
            close()
        raise
    close()


def _unused_lines(options: ReadOptions, sources: Sequence[Source]) -> list[str]:
    """Return a warning for each line of --rank-map that names none of the sources."""
    used = {line for source in sources for line in options.rank_map_lines(source.path)}
    return [
        f"--rank-map names {file}, which is not among the files read"
        for line, (file, *_) in enumerate(options.by_file)
        if line not in used
    ]


class _Run:
    """One ingest: converts tasks, numbers their steps and publishes the outcomes."""

    def __init__(
        self, folder: LakeFolder, publisher: Publisher, report: IngestReport, executor: Executor | None
    ) -> None:
        self._folder = folder
        self._publisher = publisher
        self._report = report
        self._convert = partial(convert_all, executor)
        self._seen: dict[str, Path] = {}

    def run(self, tasks: Sequence[Task], held: Sequence[Source], progress: Progress | None) -> bool:
        """Convert all, choose the job, and publish its recordings; return whether a job was chosen.

        Before the job is chosen, only what is of it for certain is written into the lake, so that a run that is killed
        need not convert it again. `held` are the sources that the lake holds.
        """
        converted: list[Outcome] = []
        before = self._publisher.records
        are_marked = step_numbering.are_marked(before)
        self._publisher.expect([task.source for task in tasks])
        for outcome in self._convert(tasks, progress):
            if isinstance(outcome.error, FullDiskError):
                raise outcome.error
            if outcome.is_new and not self._is_first(outcome):
                continue
            converted.append(outcome)
            is_numbered = are_marked and outcome.is_new and not step_numbering.has_provisional_steps(outcome)
            if is_numbered and outcome.ranks and not any(map(step_numbering.is_unnumbered, outcome.ranks)):
                self._publisher.publish_certain(outcome)
        converted = self._read_hosts(self._read_windows(converted, held))
        new = [outcome for outcome in converted if outcome.is_new]
        choice = self._publisher.choose_job(new, held)
        self._report.jobs = choice
        self._report.warnings += [] if choice.warning is None else [choice.warning]
        self._leave_out(new, left_out_errors(choice, self._folder.root))
        if choice.taken is None:
            self._report.rejected += [_rejected(outcome, outcome.error) for outcome in converted if outcome.error]
            return False
        marked = [outcome for outcome in new if outcome.is_new and not step_numbering.has_provisional_steps(outcome)]
        self._report.warnings += step_numbering.align_unnumbered(marked, before)
        self._leave_out(marked, self._publisher.find_conflicts(marked))
        added = [staged.record for outcome in new if outcome.is_new for staged in outcome.ranks]
        self._report.warnings += _describe_many_files(before, added)
        self._publish_all(converted)
        return True

    def _read_windows(self, converted: Sequence[Outcome], held: Sequence[Source]) -> list[Outcome]:
        """Convert windows of one process again, as windows of one rank, where their names gave them several or none.

        Windows that the lake holds are read again, too. Where nothing states the rank, it is 0 if the lake will hold
        these windows alone.
        """
        outcomes = {outcome.path.resolve(): outcome for outcome in converted}
        new = {file: window for file, outcome in outcomes.items() if (window := outcome.find_window()) is not None}
        in_lake = self._publisher.windows() if new else {}
        sources = {source.path.resolve(): source for source in held}
        damaged = {path.resolve() for path, _ in self._report.found.unreadable}
        damaged |= {file for file, outcome in outcomes.items() if outcome.error is not None and file not in new}
        others = {*outcomes, *sources, *(Path(record.file) for record in self._publisher.records)} - damaged
        again: dict[Path, Task] = {}
        for files, is_only in find_misread(in_lake | new, outcomes.keys(), sources.keys(), others, damaged):
            task = outcomes[files[0]].task
            task = replace(task, known=frozenset(), is_only=is_only and not task.options.gives_ranks, is_window=True)
            of_files = ((file, outcomes[file].source if file in outcomes else sources[file]) for file in files)
            again |= {file: replace(task, source=source) for file, source in of_files}
        for file in again.keys() & outcomes.keys():
            self._publisher.withdraw(outcomes[file])
            shutil.rmtree(outcomes[file].staging, ignore_errors=True)
        self._report.unchanged -= len(again.keys() - outcomes.keys())
        outcomes |= zip(again, self._convert(list(again.values()), None), strict=True)
        _tell_once([outcomes[file] for file in again])
        return list(outcomes.values())

    def _read_hosts(self, converted: list[Outcome]) -> list[Outcome]:
        """Convert recordings of one GPU each, whose ranks nothing states, again with the numbers of all GPUs of a node.

        Where these are unknown for want of the order of hosts, the errors tell how to give it.
        """
        unknown = {
            number: outcome.window.process
            for number, outcome in enumerate(converted)
            if isinstance(outcome.error, UnknownRankError) and outcome.window is not None
        }
        if not unknown:
            return converted
        places = {converted[number].source.path: (host, device) for number, (_, host, _, device, _) in unknown.items()}
        gpus = find_host_gpus(places, converted[0].task.options)
        for number in unknown if gpus.way is not None else ():
            error = converted[number].error
            if error is not None:
                converted[number].error = UnknownRankError(error.message, f"{gpus.way}; or {error.hint}")
        again = [number for number in unknown if converted[number].source.path in gpus.files]
        self._convert_again(converted, again, devices=gpus.devices)
        _tell_once([converted[number] for number in again])
        return converted

    def _leave_out(self, outcomes: Iterable[Outcome], errors: Mapping[GivenRecording, JitterError]) -> None:
        """Refuse the outcomes with an error."""
        for outcome in outcomes:
            if (error := errors.get(outcome)) is not None:
                outcome.error = error
                self._publisher.withdraw(outcome)
                shutil.rmtree(outcome.staging, ignore_errors=True)

    def _publish_all(self, outcomes: list[Outcome]) -> None:
        """Publish in path order what has not been published; report all in this order."""
        new = [n for n, outcome in enumerate(outcomes) if outcome.is_new]
        if not step_numbering.are_marked(self._publisher.records, [outcomes[n] for n in new]):
            # steps of both kinds cannot be numbered alike; where most have markers `number_steps` rejects the others
            few_marked = [n for n in new if outcomes[n].ranks and not step_numbering.has_provisional_steps(outcomes[n])]
            self._convert_again(outcomes, few_marked, ignores_markers=True)
            for n in few_marked:
                outcomes[n].warnings.append("its step markers are not used: most recordings have none")
        provisional: list[Outcome] = []
        for outcome in sorted(outcomes, key=lambda outcome: str(outcome.path)):
            if outcome.is_new and step_numbering.has_provisional_steps(outcome):
                provisional.append(outcome)
            else:
                self._publish(outcome)
        if provisional:
            # held until the last file is published: an ingest on another node would number its steps on its own
            with self._folder.exclusive_lock():
                self._publisher.see_others()
                self._number_in_phase(provisional)
                numbered = [outcome for outcome in provisional if outcome.is_new]
                self._leave_out(numbered, self._publisher.find_conflicts(numbered))
                for outcome in provisional:
                    self._publish(outcome)

    def _is_first(self, outcome: Outcome) -> bool:
        """Return whether no source before had the same content."""
        twin = self._seen.setdefault(outcome.file_digest, outcome.path)
        if twin != outcome.path:
            self._report.warnings.append(f"{outcome.path}: the same content as {twin}, taken once")
        return twin == outcome.path

    def _number_in_phase(self, outcomes: list[Outcome]) -> None:
        """Cut sources without markers as most ranks are, and give them equal step numbers in an epoch."""
        mine = {outcome.file_digest for outcome in outcomes}
        others = [record for record in self._publisher.records if record.file_digest not in mine]
        reference = step_numbering.reference_in_lake(self._folder.root, others)
        programs = tuple(step_numbering.step_programs(outcomes, reference))
        again = [n for n, outcome in enumerate(outcomes) if step_numbering.is_cut_otherwise(outcome, programs)]
        self._convert_again(outcomes, again, patterns=programs)
        by_epoch = by_key((step_numbering.epoch_of(outcome.ranks), outcome) for outcome in outcomes)
        for epoch, of_epoch in by_epoch.items():
            if epoch is not None:
                held = [record for record in others if record.steps and record.steps[0].epoch == epoch]
                reference = step_numbering.reference_in_lake(self._folder.root, held)
            step_numbering.number_steps(of_epoch, reference, others)

    def _convert_again(self, outcomes: list[Outcome], places: Sequence[int], **changes: Any) -> None:
        """Convert the sources at `places` anew, changed; steps that were found without markers keep their epochs."""
        for n in places:
            shutil.rmtree(outcomes[n].staging, ignore_errors=True)
        converted = self._convert([replace(outcomes[n].task, **changes) for n in places], None)
        for n, outcome in zip(places, converted, strict=True):
            if step_numbering.has_provisional_steps(outcomes[n]):
                for staged in outcome.ranks:
                    step_numbering.move_steps(staged, 0, step_numbering.epoch_of(outcomes[n].ranks))
            outcomes[n] = outcome

    def _publish(self, outcome: Outcome) -> None:
        """Publish an outcome that is neither published, known nor refused; report what has become of it."""
        added = self._publisher.published(outcome)
        if outcome.is_new and not added:
            try:
                added = self._publisher.publish(outcome)
            except UnknownRankError as error:
                outcome.error = error
        if outcome.error is not None:
            self._report.rejected.append(_rejected(outcome, outcome.error))
            if not isinstance(outcome.error, OtherJobError):  # it says nothing of the lake's job
                self._publisher.refuse(outcome, outcome.error)
        elif outcome.is_known:
            self._publisher.found_again(outcome)
            self._report.unchanged += 1
        else:
            self._report.added += added
            self._report.warnings += [f"{outcome.path}: {warning}" for warning in outcome.warnings]
        while self._publisher.yielded:
            record, rejection = self._publisher.yielded.pop(0)
            self._report.rejected.append(RejectedSource(Path(record.file), rejection, record.reader))


def _tell_once(outcomes: Iterable[Outcome]) -> None:
    """Leave each warning with the first of the outcomes that have it."""
    known_warnings: set[str] = set()
    for outcome in outcomes:
        outcome.warnings = [warning for warning in outcome.warnings if warning not in known_warnings]
        known_warnings.update(outcome.warnings)


def _describe_many_files(held: Sequence[SourceRecord], added: Sequence[SourceRecord]) -> list[str]:
    """Return a note if the lake passes `MANY_FILES` files of steps with the records to add."""
    before, new = (sum(len(record.steps) for record in records) for records in (held, added))
    if before + new <= MANY_FILES or not new:
        return []
    return [
        f"the lake comes to {before + new:,} files of kernels, one per GPU and step, of 5 kB or more each: record "
        "fewer steps, or ingest recordings of different steps into lakes of their own (jitter explain lake)"
    ]


def _rejected(outcome: Outcome, error: JitterError) -> RejectedSource:
    return RejectedSource(outcome.path, error, outcome.source.reader)
