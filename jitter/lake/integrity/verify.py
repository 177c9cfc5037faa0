"""Verify a lake: every file against its checksum and its record; and which recordings a damaged file belongs to."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from jitter.core.errors import DamagedFileError
from jitter.core.formatting import format_count
from jitter.lake import catalog
from jitter.lake.folder import LakeFolder
from jitter.lake.host_events import read_host_events
from jitter.lake.integrity.checksums import file_checksum, is_sealed
from jitter.lake.integrity.containment import read_lake_file
from jitter.lake.layout import ANSWER_CACHE, files_of_record, times_file
from jitter.lake.log_records import LogRecord, intact_log_records, log_record_file, relation_file
from jitter.lake.parquet import (
    HOW_TO_READ_AGAIN,
    find_incomplete,
    incomplete_file_error,
    read_rank_step,
    unreadable_file_error,
    wrong_checksum_error,
)
from jitter.lake.records import RankStepRecord, SourceRecord, decode_record
from jitter.lake.times import TimesReader

Progress = Callable[[int, int], None]

_REMOVE_DERIVED: Final = "remove it: it is made again when it is needed"


class Problem(NamedTuple):
    """One file that is not as it should be."""

    file: Path
    problem: str
    cure: str


@dataclass
class Verification:
    """The result of verifying a lake."""

    records: list[SourceRecord] = field(default_factory=list)
    """The intact records of ingested sources."""
    logs: list[LogRecord] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: int = 0
    size: int = 0
    """Bytes of all files."""


def verify_lake(root: Path, progress: Progress | None = None) -> Verification:
    """Check every file of a lake; `progress` is called with bytes done and bytes in all.

    Raises `LakeError` if the folder is not a lake, or a record is of a version that this version does not read.
    """
    folder = LakeFolder(root)
    folder.require()
    sizes = {path: path.stat().st_size for path in _all_files(root)}
    verification = Verification(files=len(sizes), size=sum(sizes.values()))
    records, damaged = folder.intact_records()
    verification.records = [record for record in records if record.rank is not None]
    verification.logs, damaged_logs = intact_log_records(root)
    verification.problems += map(_as_problem, [*damaged, *damaged_logs])
    done = 0

    def advance(paths: Sequence[Path]) -> None:
        nonlocal done
        done += sum(sizes.get(path, 0) for path in paths)
        if progress is not None:
            progress(min(done, verification.size), verification.size)

    times, without_times = TimesReader(root), 0
    for record in verification.records:
        verification.problems += record_problems(root, record)
        path = root / times_file(record.digest)
        if any(step.times for step in record.steps) and not os.path.lexists(path):
            without_times += 1
        elif any(step.times and times.read([RankStepRecord(record, step)]) == [None] for step in record.steps):
            verification.problems.append(Problem(path, "is damaged; reading is slower without it", HOW_TO_READ_AGAIN))
        advance([root / "sources" / record.name, *(root / place for place in files_of_record(record))])
    for log in verification.logs:
        verification.problems += log_problems(root, log)
        advance([root / relation_file(relation, log.digest) for relation in log.relations])
    verification.problems += _answer_problems(root, advance)
    verification.problems += _catalog_problems(root, records)
    if not damaged and not damaged_logs:  # else files of damaged records would seem to belong to none
        verification.problems += _files_without_record(root, records, verification.logs)
    if without_times:
        missing = format_count(without_times, "recording has no file", "recordings have no file")
        verification.notes.append(f"{missing} of times, which only makes reading faster")
    old = sum(any(step.checksum is None for step in record.steps) for record in verification.records)
    if old:
        verification.notes.append(
            f"{old} of {len(verification.records)} records have no checksums, because an older version wrote them: "
            "of their files only rank and number of rows were checked"
        )
    if progress is not None:
        progress(verification.size, verification.size)
    return verification


def record_problems(root: Path, record: SourceRecord) -> list[Problem]:
    """Return the files of a record that are missing, damaged or not as the record states."""
    steps = (partial(read_rank_step, root, RankStepRecord(record, step), ("rank",)) for step in record.steps)
    problems = []
    for read in (*steps, partial(read_host_events, root, record, ("kind",))):
        try:
            read()
        except DamagedFileError as error:
            problems.append(_as_problem(error))
    return problems


def log_problems(root: Path, record: LogRecord) -> list[Problem]:
    """Return the parquet files of a log that are missing or damaged."""
    problems = []
    for relation in record.relations:
        path = root / relation_file(relation, record.digest)
        try:
            if record.checksums.get(relation) not in (None, file_checksum(path)):
                problems.append(_as_problem(wrong_checksum_error(path)))
        except OSError as error:
            problems.append(_as_problem(unreadable_file_error(path, error)))
    return problems


def _as_problem(error: DamagedFileError) -> Problem:
    return Problem(error.path, error.what, error.hint or "")


def _answer_problems(root: Path, advance: Callable[[Sequence[Path]], None]) -> Iterator[Problem]:
    for path in sorted((root / ANSWER_CACHE).glob("*.json")):
        try:
            content = read_lake_file(path)
            if not is_sealed(content):
                raise ValueError("it has no checksum")
            msgspec.json.decode(content)
        except (OSError, ValueError):
            yield Problem(path, "the kept answers are damaged", _REMOVE_DERIVED)
        advance([path])


def _catalog_problems(root: Path, records: Sequence[SourceRecord]) -> list[Problem]:
    path = root / "catalog.sqlite"
    if not path.exists() or catalog.is_intact(root, records):
        return []
    return [Problem(path, "the catalog is damaged", "remove it: the next ingest makes it anew")]


def _files_without_record(root: Path, records: Sequence[SourceRecord], logs: Sequence[LogRecord]) -> Iterator[Problem]:
    recorded_places = {place for record in records for place in files_of_record(record)}
    recorded_places |= {relation_file(relation, log.digest) for log in logs for relation in log.relations}
    recorded_places |= {log_record_file(log) for log in logs}
    for part in ("kernels", "host", "times", "logs"):
        for path in sorted((root / part).rglob("*")):
            if path.is_file() and path.relative_to(root) not in recorded_places:
                yield Problem(path, "belongs to no record", "remove it, or ingest its trace again")


def _all_files(root: Path) -> Iterator[Path]:
    for part in ("kernels", "host", "times", "logs", "sources", "derived"):
        yield from (path for path in (root / part).rglob("*") if path.is_file())


def find_damage(root: Path, error: DamagedFileError, records: Sequence[SourceRecord]) -> dict[str, DamagedFileError]:
    """Return the error of each recording or log, by digest, that has a damaged file: of `error` and all like it.

    Damaged records are found, and files that are missing or cut; other damage shows only where a file is read.
    """
    place = error.path.relative_to(root)
    holder = next((record.digest for record in records if place in files_of_record(record)), place.stem)
    errors = {holder: error}
    if place.parts[0] == "sources":
        errors |= {damaged.path.stem: damaged for damaged in LakeFolder(root).intact_records()[1]}
    elif place.parts[0] == "logs":
        errors |= {damaged.path.stem: damaged for damaged in intact_log_records(root)[1]}
    else:
        cut = find_incomplete(root, records)
        errors |= {digest: incomplete_file_error(root / path) for digest, path in cut.items() if digest != holder}
    return errors


def has_changed(root: Path, record: SourceRecord) -> bool:
    """Return whether another ingest has replaced or removed a record since it was read."""
    try:
        return decode_record(read_lake_file(root / "sources" / record.name)) != record
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


def describe_left_out(root: Path, digest: str, error: DamagedFileError, records: Sequence[SourceRecord]) -> str:
    """Say which rank or log a damaged file leaves out of every answer."""
    ranks = {record.rank for record in records if record.digest == digest}
    ranks |= {int(path.parent.name.removeprefix("rank=")) for path in root.glob(f"host/rank=*/{digest}.parquet")}
    what = "A log" if error.path.relative_to(root).parts[0] == "logs" else "A recording"
    if len(ranks) == 1:
        what = f"Rank {ranks.pop()}"
    return f"{what} is left out, because a file is damaged: {error.message}. All that is damaged: jitter verify {root}"
