"""Compare the traces and logs of a lake, where they still lie, with what the lake's records state of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
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
    sources: list[SourceRecord | LogRecord] = [*by_file.values(), *logs]
    total, done = sum(source.size for source in sources), 0
    for source in sources:
        _compare(verification, source)
        done += source.size
        if progress is not None:
            progress(done, total)
    return verification


def _compare(verification: SourceVerification, source: SourceRecord | LogRecord) -> None:
    path = Path(source.file)
    if not (path.is_file() or path.is_dir()):  # or a record names a device or a pipe
        verification.absent.append(path)
        return
    try:
        if isinstance(source, LogRecord):
            is_same = log_digest(file_digest([path]), source.label, path.name) == source.digest
        else:
            name = source.reader or source.format
            # with the companion files that the reader reads
            files = readers()[name].files(path).read if name in readers() else [path]
            is_same = file_digest(files) == source.file_digest
    except OSError as error:
        verification.problems.append(Problem(path, f"cannot be read ({reason_of(error)})", "check its permissions"))
        return
    if is_same:
        verification.same += 1
    else:
        verification.problems.append(
            Problem(path, "has changed since it was ingested", "read it again: jitter ingest FILE -o LAKE --replace")
        )
