"""The lake on disk: where things lie, and how they get there whole or not at all.

Files are written into a staging folder under `LAKE/.staging` and renamed into place. A source's record is written
last, so a source without a record did not happen: running ingest again does it again, with the same result.
"""

import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import msgspec

from jitter.core.errors import JitterError, LakeError
from jitter.lake import staging
from jitter.lake.layout import files_of_record
from jitter.lake.records import SourceRecord, decode_record, encode_record

_MARK = "jitter.json"
_LAYOUT_VERSION = 1
_NOTE = "places.json"


class LakeFolder:
    """A lake's folder: its records, and the way into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._run = staging.new_run_folder(root)

    @property
    def sources(self) -> Path:
        """Where the records lie."""
        return self.root / "sources"

    @property
    def is_lake(self) -> bool:
        """Whether the folder holds a lake, of this or another layout version."""
        return (self.root / _MARK).is_file()

    def create(self) -> None:
        """Make the folder a lake, or accept it if it is one; raise `LakeError` if it is something else."""
        if self.root.exists() and not self.root.is_dir():
            raise LakeError(f"{self.root}: is a file", "name another place with -o")
        try:
            self._create()
        except OSError as error:
            raise LakeError(
                f"{self.root}: cannot be made here: {error.strerror}", "name another place with -o"
            ) from None

    def _create(self) -> None:
        there = {path.name for path in self.root.iterdir()} if self.root.exists() else set()
        # a run killed while it made the lake has left its staging folder and no mark; one that is making it on another
        # machine puts the mark first, maybe just behind where we have listed
        if _MARK not in there and there - {staging.NAME} and not (self.root / _MARK).exists():
            raise LakeError(f"{self.root}: is not empty and no lake of jitter's", "name another place with -o")
        if _MARK not in there:
            self._write(self.root / _MARK, json.dumps({"layout_version": _LAYOUT_VERSION}).encode())
        self.require()
        self.sources.mkdir(exist_ok=True)
        (self.root / "kernels").mkdir(exist_ok=True)

    def require(self) -> None:
        """Raise `LakeError` unless this is a lake of a layout that this version reads."""
        mark = self.root / _MARK
        if not mark.exists():
            raise LakeError(f"{self.root}: no lake here", f"make one: jitter ingest TRACES -o {self.root}")
        try:
            found = json.loads(mark.read_bytes())["layout_version"]
        except (ValueError, KeyError, TypeError):
            raise LakeError(f"{mark}: is damaged", "ingest the traces again into another lake") from None
        if found != _LAYOUT_VERSION:
            raise LakeError(
                f"{self.root}: was written by another version of jitter (layout {found}, this one reads "
                f"{_LAYOUT_VERSION})",
                "ingest the traces again into another lake",
            )

    def records(self) -> list[SourceRecord]:
        """All records, by name. One that cannot be read counts as absent: its source is ingested again."""
        return self._read(sorted(self.sources.glob("*.json")))

    @staticmethod
    def _read(paths: Iterable[Path]) -> list[SourceRecord]:
        found = []
        for path in paths:
            try:
                found.append(decode_record(path.read_bytes()))
            except (msgspec.DecodeError, OSError):
                continue
        return found

    def records_besides(self, known: Collection[str]) -> list[SourceRecord]:
        """The records that others have added meanwhile: all but those of these digests."""
        names = os.listdir(self.sources)  # noqa: PTH208  # after each source
        new = (name for name in names if name.endswith(".json") and name.removesuffix(".json") not in known)
        return self._read(self.sources / name for name in sorted(new))

    def write_record(self, record: SourceRecord) -> None:
        """Put a record in place of the one of the same name."""
        self._write(self.sources / record.name, encode_record(record))

    def staging(self) -> Path:
        """Make the folder, on the lake's file system, for this run's unfinished work."""
        return staging.create_folder(self._run)

    def alone(self) -> AbstractContextManager[None]:
        """For what only one run of a lake may do at a time; see `staging.alone`."""
        return staging.exclusive_lock(self._run)

    @contextmanager
    def changing(self, places: Iterable[Path]) -> Iterator[None]:
        """Note places (from the root) that change while the block lasts.

        Should this run be killed in it, or the disk refuse, those of them that no record accounts for are removed.
        """
        note = self.staging() / _NOTE
        # always the same file: to make one and remove it costs more, and most on a disk that many share
        note.write_bytes(json.dumps([str(place) for place in places]).encode())
        try:
            yield
        except JitterError:  # who refuses has not begun
            note.write_bytes(b"")
            raise
        note.write_bytes(b"")

    def publish(self, staged: Path, moves: Iterable[tuple[Path, Path]], record: SourceRecord) -> None:
        """Move staged files to their places (pairs of paths, from `staged` and from the root), then the record."""
        for source, place in moves:
            # as text: of tens of thousands of files, to make the paths would take as long as to move them
            path, target = f"{staged}/{source}", f"{self.root}/{place}"
            try:
                os.replace(path, target)  # noqa: PTH105
            except FileNotFoundError:  # its folder is not made yet, or another run has emptied and removed it
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)  # noqa: PTH105
        self.write_record(record)

    def remove(self, places: Iterable[Path]) -> None:
        """Remove files of the lake (from its root) and the folders they leave empty."""
        for place in places:
            path = self.root / place
            path.unlink(missing_ok=True)
            for folder in path.parents[: len(place.parts) - 2]:
                try:
                    folder.rmdir()
                except OSError:  # not empty, or gone already
                    break

    def close(self) -> None:
        """End this run: take back what it was about to change, clear away its staging, and what dead runs left."""
        try:
            self._undo(self._run)
        finally:
            shutil.rmtree(self._run, ignore_errors=True)
            self.sweep()

    def sweep(self) -> None:
        """Clear away what runs that died on this machine left staging."""
        for run in staging.dead_runs(self.root):
            self._undo(run)
            shutil.rmtree(run, ignore_errors=True)
        staging.remove_if_empty(self.root)

    def _undo(self, run: Path) -> None:
        """Remove what a run was about to put into its place when it ended, unless others account for it."""
        places = _noted(run)
        if places:
            # another's note before the records: it empties the note when its record is there
            kept = {place for other in run.parent.iterdir() if other != run for place in _noted(other)}
            kept |= {str(place) for record in self.records() for place in files_of_record(record)}
            self.remove(Path(place) for place in places if place not in kept)

    def _write(self, path: Path, content: bytes) -> None:
        temporary = self.staging() / uuid.uuid4().hex
        temporary.write_bytes(content)
        temporary.replace(path)


def _noted(run: Path) -> list[str]:
    """The places that a run is about to change."""
    # gone: another has swept it; empty, or cut off: it has not begun to change anything
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):
        found: list[str] = json.loads((run / _NOTE).read_bytes())
        return found
    return []
