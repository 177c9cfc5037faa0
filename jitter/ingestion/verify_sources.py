"""Compare the traces and logs of a lake, where they still lie, with what the lake's records state of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from jitter.core.errors import reason_of
from jitter.ingestion.convert import file_digest
from jitter.lake.integrity.verify import Problem, Progress
from jitter.lake.log_records import LogRecord, log_digest
from jitter.lake.records import SourceRecord
from jitter.readers import readers


@dataclass
class SourceVerification:
    """The result of comparing sources with their records."""

    same: int = 0
    """Number of sources whose content is the recorded one."""
    absent: list[Path] = field(default_factory=list)
    """Sources that no longer lie where they were read."""
    problems: list[Problem] = field(default_factory=list)


def verify_sources(
    records: Sequence[SourceRecord], logs: Sequence[LogRecord], progress: Progress | None = None
) -> SourceVerification:
    """Digest every source of these records again; `progress` is called with bytes done and bytes in all."""
    verification = SourceVerification()
    by_file = {record.file: record for record in records}
    total = sum(record.size for record in by_file.values()) + sum(log.size for log in logs)
    done = 0
    for file, record in by_file.items():
        _compare(verification, Path(file), partial(_trace_digest, record), record.file_digest)
        done += record.size
        if progress is not None:
            progress(done, total)
    for log in logs:
        _compare(verification, Path(log.file), partial(_log_digest, log), log.digest)
        done += log.size
        if progress is not None:
            progress(done, total)
    return verification


def _compare(verification: SourceVerification, path: Path, digest_of: Callable[[Path], str], recorded: str) -> None:
    if not (path.is_file() or path.is_dir()):  # or a record names a device or a pipe
        verification.absent.append(path)
        return
    try:
        is_same = digest_of(path) == recorded
    except OSError as error:
        verification.problems.append(Problem(path, f"cannot be read ({reason_of(error)})", "check its permissions"))
        return
    if is_same:
        verification.same += 1
    else:
        verification.problems.append(
            Problem(path, "has changed since it was ingested", "read it again: jitter ingest FILE -o LAKE --replace")
        )


def _trace_digest(record: SourceRecord, path: Path) -> str:
    """Return the digest of a trace and the companion files that its reader reads."""
    name = record.reader or record.format
    return file_digest(readers()[name].files(path).read if name in readers() else [path])


def _log_digest(log: LogRecord, path: Path) -> str:
    return log_digest(file_digest([path]), log.label, path.name)
