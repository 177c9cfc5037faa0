"""The folder of a lake: its records, and the publication of files, completely or not at all.

Files are written into a staging folder under `LAKE/.staging` and renamed into place. The record of a recording is
written last: a recording without a record is not in the lake, and the next ingest adds it.
"""

import json
import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from jitter.core.errors import JitterError, LakeError
from jitter.lake import staging
from jitter.lake.layout import files_of_record
from jitter.lake.records import DamagedRecord, SourceRecord, decode_record, encode_record, read_record_files

_MARK = "jitter.json"
_LAYOUT_VERSION = 1
_NOTE = "places.json"
_HOW_TO_RECORD_AGAIN = (
    "ingest its trace again: jitter ingest TRACES -o LAKE; without the trace, remove this file, and its rank is missing"
)


class LakeFolder:
    """The folder of one lake, as one ingest or one reader uses it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._run = staging.new_run_folder(root)

    @property
    def sources(self) -> Path:
        """The folder of the records."""
        return self.root / "sources"

    @property
    def is_lake(self) -> bool:
        """Whether the folder holds a lake, of this or another layout version."""
        return (self.root / _MARK).is_file()

    def create(self) -> None:
        """Make the folder a lake unless it is one; raise `LakeError` if it holds other files or cannot be made."""
        if self.root.exists() and not self.root.is_dir():
            raise LakeError(f"{self.root}: is a file", "name another place with -o (`jitter report`: -L)")
        try:
            self._create()
        except OSError as error:
            raise LakeError(
                f"{self.root}: cannot be made here: {error.strerror}",
                "name another place with -o (`jitter report`: -L)",
            ) from None

    def _create(self) -> None:
        there = {path.name for path in self.root.iterdir()} if self.root.exists() else set()
        # a run killed while it made the lake leaves its staging folder and no mark; a run on another machine may have
        # put the mark just after the listing
        if _MARK not in there and there - {staging.NAME} and not (self.root / _MARK).exists():
            raise LakeError(
                f"{self.root}: is not empty and no lake of jitter's", "name another place with -o (`jitter report`: -L)"
            )
        if _MARK not in there:
            self._write(self.root / _MARK, json.dumps({"layout_version": _LAYOUT_VERSION}).encode())
        self.require()
        self.sources.mkdir(exist_ok=True)
        (self.root / "kernels").mkdir(exist_ok=True)

    def require(self) -> None:
        """Raise `LakeError` unless the folder is a lake with a layout that this version reads."""
        mark = self.root / _MARK
        if not mark.exists():
            hint = f"make one: jitter ingest TRACES -o {self.root}"
            if self.root.is_file() or (self.root.is_dir() and any(self.root.iterdir())):
                hint = f"if it holds traces: jitter ingest {self.root} -o LAKE, then give that lake"
            raise LakeError(f"{self.root}: no lake here", hint)
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
        """Return all records, by name. Raises `LakeError` for one that is damaged or of another version."""
        records, damaged = self.intact_records()
        if damaged:
            raise damaged[0].error
        return records

    def intact_records(self) -> tuple[list[SourceRecord], list[DamagedRecord]]:
        """Return the records that can be read, by name, and the damaged ones.

        To an ingest a damaged record counts as absent: its recording is ingested again. Raises `LakeError` for a
        record of another version.
        """
        paths = sorted(self.sources.glob("*.json"))
        return read_record_files(paths, decode_record, "traces", _HOW_TO_RECORD_AGAIN)

    def records_except(self, known: Collection[str]) -> list[SourceRecord]:
        """Return the records whose digests are not in `known`: records that other runs have added."""
        names = os.listdir(self.sources)  # noqa: PTH208  # called after each recording
        new = (name for name in names if name.endswith(".json") and name.removesuffix(".json") not in known)
        paths = [self.sources / name for name in sorted(new)]
        return read_record_files(paths, decode_record, "traces", _HOW_TO_RECORD_AGAIN)[0]

    def write_record(self, record: SourceRecord) -> None:
        """Write a record, in place of one with the same name."""
        self._write(self.sources / record.name, encode_record(record))

    def staging(self) -> Path:
        """Make and return the folder, on the lake's file system, for this run's unfinished files."""
        return staging.create_folder(self._run)

    def exclusive_lock(self) -> AbstractContextManager[None]:
        """Return a lock that one run of a lake holds at a time; see `staging.exclusive_lock`."""
        return staging.exclusive_lock(self._run)

    @contextmanager
    def journal(self, paths: Iterable[Path]) -> Iterator[None]:
        """Note files (relative to the root) that change while the block lasts.

        If this run is killed in the block, or writing fails, those that belong to no record are removed.
        """
        note = self.staging() / _NOTE
        # always the same file: making and removing one costs more, most of all on a shared file system
        note.write_bytes(json.dumps([str(place) for place in paths]).encode())
        try:
            yield
        except JitterError:  # raised before anything has changed
            note.write_bytes(b"")
            raise
        note.write_bytes(b"")

    def publish(self, staged: Path, moves: Iterable[tuple[Path, Path]], record: SourceRecord) -> None:
        """Move staged files into the lake (pairs of paths, relative to `staged` and to the root), then the record."""
        for source, place in moves:
            # as text: for tens of thousands of files, making `Path`s takes as long as moving them
            path, target = f"{staged}/{source}", f"{self.root}/{place}"
            try:
                os.replace(path, target)  # noqa: PTH105
            except FileNotFoundError:  # the folder is new, or another run has emptied and removed it
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)  # noqa: PTH105
        self.write_record(record)

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove files (relative to the root) and the folders that become empty."""
        for place in paths:
            path = self.root / place
            path.unlink(missing_ok=True)
            for folder in path.parents[: len(place.parts) - 2]:
                try:
                    folder.rmdir()
                except OSError:  # not empty, or gone already
                    break

    def close(self) -> None:
        """End this run: undo an unfinished change, remove its staging folder and those of dead runs."""
        try:
            self._undo(self._run)
        finally:
            shutil.rmtree(self._run, ignore_errors=True)
            self.sweep()

    def sweep(self) -> None:
        """Undo the unfinished changes of dead runs and remove their staging folders."""
        for run in staging.dead_runs(self.root):
            self._undo(run)
            shutil.rmtree(run, ignore_errors=True)
        staging.remove_if_empty(self.root)

    def _undo(self, run: Path) -> None:
        """Remove the files that a run was changing when it ended, unless they belong to a record or to another run."""
        paths = _noted(run)
        if paths:
            # notes are read before records: a run empties its note after it has written its record
            kept = {place for other in run.parent.iterdir() if other != run for place in _noted(other)}
            kept |= {str(place) for record in self.intact_records()[0] for place in files_of_record(record)}
            self.remove(Path(place) for place in paths if place not in kept)

    def _write(self, path: Path, content: bytes) -> None:
        temporary = self.staging() / uuid.uuid4().hex
        temporary.write_bytes(content)
        temporary.replace(path)


def _noted(run: Path) -> list[str]:
    """Return the files that a run is changing."""
    # a missing note was removed by another run; an empty or incomplete one precedes every change
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):
        found: list[str] = json.loads((run / _NOTE).read_bytes())
        return found
    return []
