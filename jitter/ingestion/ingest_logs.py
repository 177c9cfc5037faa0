"""Logs of a job: found beside traces or alone, parsed, and published into the lake."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jitter.core.errors import JitterError, UnreadableTraceError, reason_of
from jitter.core.files import modified_ns
from jitter.ingestion.convert import file_digest
from jitter.lake.folder import LakeFolder
from jitter.lake.integrity.verify import log_problems
from jitter.lake.log_records import LogRecord, intact_log_records, log_digest, publish_log, remove_log
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
    report.rejected += intact_log_records(folder.root)[1]
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
