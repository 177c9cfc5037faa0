"""What an ingest would take in: the same reading, with nothing written."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jitter.convert import Outcome, Task
from jitter.discover import discover
from jitter.errors import JitterError
from jitter.ranks import told_by_user
from jitter.records import SourceRecord
from jitter.steps import step_pattern_of
from jitter.workers import Progress, convert_all


@dataclass(frozen=True)
class Finding:
    """One source: its records (one a GPU), or why it cannot be taken in."""

    path: Path
    format: str | None
    records: tuple[SourceRecord, ...]
    error: JitterError | None
    warnings: tuple[str, ...]


def inspect(
    paths: Sequence[str | Path],
    *,
    step_pattern: str | None = None,
    rank: int | None = None,
    rank_map: str | Path | None = None,
    rank_pattern: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> list[Finding]:
    """Read all recordings under `paths` and tell what is in them; steps without markers are numbered a file each.

    Raises `UsageError` for options that cannot be.
    """
    told = told_by_user(rank, rank_map, rank_pattern)
    step_pattern_of(step_pattern)
    found = discover([Path(path) for path in paths])
    findings = [Finding(Path(error.message.split(":")[0]), None, (), error, ()) for error in found.unreadable]
    with tempfile.TemporaryDirectory(prefix="jitter-") as staging:
        tasks = [Task(source, Path(staging), step_pattern, told) for source in found.sources]
        findings += [_finding(outcome) for outcome in convert_all(tasks, jobs, progress)]
    return findings


def _finding(outcome: Outcome) -> Finding:
    records = tuple(part.record for part in outcome.parts)
    return Finding(outcome.source.path, outcome.source.reader, records, outcome.error, tuple(outcome.warnings))
