"""Bring the compacted files of one step up to date: which ranks to write, and which files that supersedes.

An ingest removes what no reader uses any more.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from jitter.core.errors import LakeError
from jitter.core.step_key import StepKey
from jitter.lake import staging
from jitter.lake.derived.compacted_file import COLUMNS, GROUP_ROWS, RankSpan, write_compacted_file
from jitter.lake.derived.freshness import file_state
from jitter.lake.folder import LakeFolder
from jitter.lake.integrity.checksums import file_checksum
from jitter.lake.layout import ANSWER_CACHE, COMPACTED_STEPS, compacted_folder
from jitter.lake.records import RankStepRecord, SourceRecord, records_by_step
from jitter.lake.step_reader import StepFiles


class StepCompactor:
    """Compacts the steps of one lake, as its records describe them when the compactor is made."""

    def __init__(self, root: Path) -> None:
        self._folder = LakeFolder(root)
        # before the records are read, so that every later change is noticed
        self._states = {path.name: file_state(path) for path in self._folder.sources.glob("*.json")}
        self.held = records_by_step(self._folder.intact_records()[0])
        """The record of each rank's step."""

    def refresh(self, key: StepKey) -> bool:
        """Bring a step up to date and return whether anything had to be written.

        A step whose records change meanwhile, or that the lake does not hold, is left for the next time. Raises
        `LakeError` if a rank's file cannot be read, `OSError` if nothing can be written.
        """
        held = self.held.get(key, {})
        files = StepFiles(self._folder.root, key, held)
        ranks = _plan(files)
        if ranks:
            with staging.temporary_folder(self._folder.root) as run:
                unfinished = staging.create_folder(run) / "compacted"
                try:
                    spans = _write(unfinished, files, held, sorted(ranks))
                except LakeError:
                    if self._have_changed(held.values()):  # the file is of a newer reading than the record
                        return False
                    raise
                if self._have_changed(held.values()):
                    return False
                path = self._folder.root / compacted_folder(key) / f"{_name(spans)}.{file_checksum(unfinished)}.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                unfinished.replace(path)
        return bool(ranks)

    def _have_changed(self, held: Collection[RankStepRecord]) -> bool:
        names = {found.record.name for found in held}
        return any(file_state(self._folder.sources / name) != self._states.get(name) for name in names)


def _plan(files: StepFiles) -> set[int]:
    """Return the ranks to write: those in no file, and those of files with fewer live ranks than are new or stale."""
    ranks = files.digests.keys() - files.file_of_rank.keys()
    live = live_ranks(files)
    for file in sorted(files.compacted, key=lambda file: len(live[file.path])):
        count = len(live[file.path])
        if ranks and count <= max(len(ranks), len(file.spans) - count):
            ranks |= live[file.path]
    return ranks


def live_ranks(files: StepFiles) -> dict[Path, set[int]]:
    """Return the ranks that are read from each compacted file."""
    return {file.path: {rank for rank, own in files.file_of_rank.items() if own is file} for file in files.compacted}


def remove_outdated(root: Path, records: Iterable[SourceRecord]) -> None:
    """Remove the derived files that no reader uses any more; `records` are those of the lake after its change.

    These are all kept answers, and the compacted files that no rank's rows are read from. Only an ingest calls this: a
    reader of a lake removes nothing.
    """
    for path in (root / ANSWER_CACHE).glob("*.json"):
        path.unlink(missing_ok=True)
    held = {compacted_folder(key): (key, of_step) for key, of_step in records_by_step(records).items()}
    for folder in sorted({path.parent for path in (root / COMPACTED_STEPS).rglob("*.parquet")}):
        place = folder.relative_to(root)
        live = live_ranks(StepFiles(root, *held[place])) if place in held else {}
        for path in folder.glob("*.parquet"):
            if not live.get(path):
                path.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()


def _write(path: Path, files: StepFiles, held: Mapping[int, RankStepRecord], ranks: Sequence[int]) -> list[RankSpan]:
    """Write these ranks' rows as one compacted file, with one row group in memory at a time."""
    spans: list[RankSpan] = []

    def groups() -> Iterator[tuple[Sequence[RankSpan], pa.Table]]:
        for some in _batches(ranks, held):
            read = files.read(some, COLUMNS)
            counted = zip(read.ranks, read.rows, strict=True)
            own = [RankSpan(rank, rows, files.digests[rank]) for rank, rows in counted]
            spans.extend(own)
            yield own, read.table

    write_compacted_file(path, groups())
    return spans


def _batches(ranks: Sequence[int], held: Mapping[int, RankStepRecord]) -> Iterator[list[int]]:
    """Split ranks into batches of about `GROUP_ROWS` rows."""
    batch: list[int] = []
    rows = 0
    for rank in ranks:
        batch.append(rank)
        rows += held[rank].step.rows
        if rows >= GROUP_ROWS:
            yield batch
            batch, rows = [], 0
    if batch:
        yield batch


def _name(spans: Sequence[RankSpan]) -> str:
    """Return a file name from the content: two processes that write the same rows write the same file."""
    return hashlib.blake2b(repr(spans).encode(), digest_size=16).hexdigest()
