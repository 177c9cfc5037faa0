"""Brings one compacted step up to date: which ranks to write into a new part, and which parts that supersedes."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from jitter.core.step_key import StepKey
from jitter.lake import staging
from jitter.lake.derived.compacted_file import COLUMNS, GROUP_ROWS, RankSpan, write_compacted_file
from jitter.lake.folder import LakeFolder
from jitter.lake.layout import compacted_folder
from jitter.lake.records import RankStepRecord, records_by_step
from jitter.lake.step_reader import StepFiles

_State = tuple[int, int, int]


class StepCompactor:
    """Does it for the steps of one lake, as its records told when this was made."""

    def __init__(self, root: Path) -> None:
        self._folder = LakeFolder(root)
        # before the records are read: what changes from here on is noticed
        self._states = {path.name: self._state(path.name) for path in self._folder.sources.glob("*.json")}
        self.held = records_by_step(self._folder.records())
        """Which recording holds which rank's step."""

    def refresh(self, key: StepKey) -> bool:
        """Bring a step up to date and tell whether anything had to be written.

        If its sources change meanwhile it is left for the next time, as it is if the lake does not hold it. Raises
        `LakeError` where a rank's file cannot be read, `OSError` where nothing can be written.
        """
        held = self.held.get(key, {})
        files = StepFiles(self._folder.root, key, held)
        ranks, kept = _plan(files)
        if ranks:
            with staging.temporary_folder(self._folder.root) as run:
                half = staging.create_folder(run) / "part"
                pieces = _write(half, files, held, sorted(ranks))
                if self._have_changed(held.values()):
                    return False
                place = self._folder.root / compacted_folder(key) / f"{_name(pieces)}.parquet"
                place.parent.mkdir(parents=True, exist_ok=True)
                half.replace(place)
            kept.add(place)
        for path in set(files.paths) - kept:
            path.unlink(missing_ok=True)
        return bool(ranks)

    def _have_changed(self, held: Collection[RankStepRecord]) -> bool:
        return any(self._state(one.record.name) != self._states.get(one.record.name) for one in held)

    def _state(self, record: str) -> _State | None:
        """What a record's file looks like; None where there is none."""
        try:
            found = (self._folder.sources / record).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def _plan(files: StepFiles) -> tuple[set[int], set[Path]]:
    """Which ranks to write, and which parts stay: those that hold more ranks than are written, and fewer stale ones."""
    ranks = files.stamps.keys() - files.holder.keys()
    kept: set[Path] = set()
    mine = {part.path: {rank for rank, holder in files.holder.items() if holder is part} for part in files.parts}
    for part in sorted(files.parts, key=lambda part: len(mine[part.path])):
        live = len(mine[part.path])
        if live and not (ranks and live <= max(len(ranks), len(part.pieces) - live)):
            kept.add(part.path)
        else:
            ranks |= mine[part.path]
    return ranks, kept


def _write(path: Path, files: StepFiles, held: Mapping[int, RankStepRecord], ranks: Sequence[int]) -> list[RankSpan]:
    """Write these ranks' rows as a part, one row group of them in memory at a time."""
    pieces: list[RankSpan] = []

    def groups() -> Iterator[tuple[Sequence[RankSpan], pa.Table]]:
        for some in _batches(ranks, held):
            read = files.read(some, COLUMNS)
            its = [RankSpan(rank, rows, files.stamps[rank]) for rank, rows in zip(read.ranks, read.rows, strict=True)]
            pieces.extend(its)
            yield its, read.table

    write_compacted_file(path, groups())
    return pieces


def _batches(ranks: Sequence[int], held: Mapping[int, RankStepRecord]) -> Iterator[list[int]]:
    """Split ranks so that each lot has about a row group's rows."""
    lot: list[int] = []
    rows = 0
    for rank in ranks:
        lot.append(rank)
        rows += held[rank].step.rows
        if rows >= GROUP_ROWS:
            yield lot
            lot, rows = [], 0
    if lot:
        yield lot


def _name(pieces: Sequence[RankSpan]) -> str:
    """Name a part by what is in it: two processes that make the same part write the same file."""
    return hashlib.blake2b(repr(pieces).encode(), digest_size=16).hexdigest()
