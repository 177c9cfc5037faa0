"""The folder of a lake: its records, and the publication of files, completely or not at all.

Files are written into a staging folder under `LAKE/.staging` and renamed into place. The record of a recording is
written last: a recording without a record is not in the lake, and the next ingest adds it. What a record names is safe
from a power cut before the record is there, and the record is when the ingest has ended.
"""

import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from jitter.core.durability import sync_files, sync_path
from jitter.core.errors import DamagedFileError, JitterError, LakeError
from jitter.core.files import errors_name
from jitter.lake import staging
from jitter.lake.integrity.checksums import is_sealed
from jitter.lake.integrity.containment import LAKE_ENTRIES, read_lake_file, refuse_links
from jitter.lake.layout import DERIVED, files_of_record, is_own_file
from jitter.lake.records import SourceRecord, decode_record, encode_record, read_record_files

_MARK = "jitter.json"
_LAYOUT_VERSION = 1
_decode_places = msgspec.json.Decoder(list[str]).decode
_HOW_TO_RECORD_AGAIN = (
    "ingest its trace again: jitter ingest TRACES -o LAKE; without the trace, remove this file, and its rank is missing"
)


class _Mark(msgspec.Struct):
    """Content of the file that makes a folder a lake."""

    layout_version: int


_MARK_CONTENT: Final = msgspec.json.encode(_Mark(_LAYOUT_VERSION))


class LakeFolder:
    """The folder of one lake, as one ingest or one reader uses it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._run = staging.new_run_folder(root)
        self._published: set[Path] = set()
        """Folders that have got records of this run, which are not yet safe."""

    @property
    def sources(self) -> Path:
        return self.root / "sources"

    @property
    def is_lake(self) -> bool:
        """Whether the folder holds a lake, of this or another layout version, even if its mark was lost."""
        return os.path.lexists(self.root / _MARK) or self._has_record()

    def create(self) -> None:
        """Make the folder a lake unless it is one; raise `LakeError` if it holds other files or cannot be made."""
        if self.root.exists() and not self.root.is_dir():
            raise LakeError(f"{self.root}: is a file", "name another place with -o (`jitter report`: -L)")
        try:
            self._create()
        except OSError as error:
            shutil.rmtree(self._run, ignore_errors=True)
            staging.remove_if_empty(self.root)
            raise LakeError(
                f"{self.root}: cannot be made here: {error.strerror}",
                "name another place with -o (`jitter report`: -L)",
            ) from None

    def _create(self) -> None:
        refuse_links(self.root)
        # a run on another machine may put the mark just after the listing
        if self._layout_version() is None and not self._may_be_marked() and self._layout_version() is None:
            raise LakeError(
                f"{self.root}: is not empty and no lake of jitter's", "name another place with -o (`jitter report`: -L)"
            )
        if self._layout_version() is None:
            made = [folder for folder in (self.root, *self.root.absolute().parents) if not folder.exists()]
            self._write(self.root / _MARK, _MARK_CONTENT)
            for folder in made:
                sync_path(folder.parent)
        self.require()
        self.sources.mkdir(exist_ok=True)
        (self.root / "kernels").mkdir(exist_ok=True)

    def require(self) -> None:
        """Raise `LakeError` unless the folder is a lake with a layout that this version reads, and holds no links."""
        refuse_links(self.root)
        layout = self._layout_version()
        if layout is None and self._has_record():  # the mark was lost, and the next ingest writes it anew
            layout = _LAYOUT_VERSION
        if not os.path.lexists(self.root / _MARK) and layout is None:
            hint = f"make one: jitter ingest TRACES -o {self.root}"
            if self.root.is_file() or (self.root.is_dir() and any(self.root.iterdir())):
                hint = f"if it holds traces: jitter ingest {self.root} -o LAKE, then give that lake"
            raise LakeError(f"{self.root}: no lake here", hint)
        if layout is None:
            raise LakeError(f"{self.root / _MARK}: is damaged", f"ingest again: jitter ingest TRACES -o {self.root}")
        if layout != _LAYOUT_VERSION:
            raise LakeError(
                f"{self.root}: was written by another version of jitter (layout {layout}, this one reads "
                f"{_LAYOUT_VERSION})",
                "ingest the traces again into another lake",
            )

    def _layout_version(self) -> int | None:
        """Return the version that the mark states; None if it is missing or damaged."""
        try:
            return msgspec.json.decode(read_lake_file(self.root / _MARK), type=_Mark).layout_version
        except (ValueError, OSError):
            return None

    def _has_record(self) -> bool:
        """Return whether an intact record, of a recording or a log, proves that the folder is a lake."""
        folders = (self.sources, self.root / "logs" / "records")
        return any(_is_record(path) for folder in folders for path in sorted(folder.glob("*.json")))

    def _may_be_marked(self) -> bool:
        """Return whether a folder without a valid mark is a lake that lost it, or is empty but for a dead run."""
        there = {path.name for path in self.root.iterdir()} if self.root.exists() else set()
        if _MARK not in there:
            return there <= {staging.NAME} or self._has_record()
        with suppress(OSError):
            mark = read_lake_file(self.root / _MARK).strip(b"\0")
            return (there <= set(LAKE_ENTRIES) and _MARK_CONTENT.startswith(mark)) or self._has_record()
        return False

    def records(self) -> list[SourceRecord]:
        """Return all records, by name. Raises `LakeError` for one that is damaged or of another version."""
        records, damaged = self.intact_records()
        if damaged:
            raise damaged[0]
        return records

    def intact_records(self) -> tuple[list[SourceRecord], list[DamagedFileError]]:
        """Return the records that can be read, by name, and the errors of the damaged ones.

        To an ingest a damaged record counts as absent: its recording is ingested again. Raises `LakeError` for a
        record of another version.
        """
        paths = sorted(self.sources.glob("*.json"))
        records, damaged = read_record_files(paths, decode_record, "traces", _HOW_TO_RECORD_AGAIN)
        lengths: dict[str, int] = {}
        for record in records:
            if any(lengths.setdefault(step.sequence, step.kernels) != step.kernels for step in record.steps):
                reason = "the record is damaged (its sequence of kernels has another length elsewhere)"
                damaged.append(DamagedFileError(self.sources / record.name, reason, _HOW_TO_RECORD_AGAIN))
        wrong = {error.path.stem for error in damaged}
        return [record for record in records if record.digest not in wrong], damaged

    def records_except(self, known_digests: Collection[str]) -> list[SourceRecord]:
        """Return the records whose digests are not in `known_digests`: records that other runs have added."""
        names = os.listdir(self.sources)  # noqa: PTH208  # called after each recording
        new = (name for name in names if name.endswith(".json") and name.removesuffix(".json") not in known_digests)
        paths = [self.sources / name for name in sorted(new)]
        return read_record_files(paths, decode_record, "traces", _HOW_TO_RECORD_AGAIN)[0]

    def write_record(self, record: SourceRecord) -> None:
        """Write a record, in place of one with the same name, and wait until it is safe."""
        self._write(self.sources / record.name, encode_record(record))

    def remove_records(self, records: Iterable[SourceRecord]) -> None:
        """Remove records, and wait until that is safe: files that take the place of theirs may follow."""
        self.remove(Path("sources", record.name) for record in records)
        sync_path(self.sources)

    def staging(self) -> Path:
        """Make and return the folder, on the lake's file system, for this run's unfinished files."""
        folder = staging.create_folder(self._run)
        (folder / staging.NOTE).touch()
        return folder

    def exclusive_lock(self) -> AbstractContextManager[None]:
        """Return a lock that one run of a lake holds at a time; see `staging.exclusive_lock`."""
        return staging.exclusive_lock(self._run)

    @contextmanager
    def journal(self, old: Iterable[Path], new: Iterable[Path]) -> Iterator[None]:
        """Note files (relative to the root) that are removed and that are made while the block lasts.

        If this run is killed in the block, or writing fails, those that belong to no record are removed. After a power
        cut that holds for the old ones: new ones are written again.
        """
        removed = [str(place) for place in old]
        # always the same file: making and removing one costs more, most of all on a shared file system
        self._note([*removed, *map(str, new)])
        if removed:
            sync_files(self.root, [self._run / staging.NOTE])
        try:
            yield
        except JitterError:  # raised before anything has changed
            self._note([])
            raise
        if removed:  # from their folders, or from those above that have become empty
            places = (self.root / place for place in removed)
            folders = {next(folder for folder in place.parents if folder.exists()) for place in places}
            sync_files(self.root, [self.sources, *folders])
        self._note([])

    def _note(self, places: Sequence[str]) -> None:
        note = self.staging() / staging.NOTE
        with errors_name(note):
            note.write_bytes(msgspec.json.encode(places) if places else b"")

    def publish(self, staged: Path, moves: Sequence[tuple[Path, Path]], record: Path, content: bytes) -> None:
        """Move staged files into the lake (pairs of paths, relative to `staged` and to the root), then their record.

        `record` is its path relative to the root. The record's own entry is safe when this run is closed.
        """
        unfinished = self._staged(content)
        for source, place in moves:
            # as text: for tens of thousands of files, making `Path`s takes as long as moving them
            path, target = f"{staged}/{source}", f"{self.root}/{place}"
            try:
                os.replace(path, target)  # noqa: PTH105
            except FileNotFoundError:  # the folder is new, or another run has emptied and removed it
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)  # noqa: PTH105
        sync_files(self.root, [unfinished, *(self.root / place for _, place in moves)])
        (self.root / record).parent.mkdir(parents=True, exist_ok=True)
        unfinished.replace(self.root / record)
        self._published.add((self.root / record).parent)

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove files (relative to the root) and the folders that become empty.

        Raises `ValueError` for a path that is none of the lake's layout.
        """
        for place in paths:
            if not is_own_file(str(place)):
                raise ValueError(f"{place}: no file of a lake")
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
            if self._published:
                sync_files(self.root, self._published)
        finally:
            shutil.rmtree(self._run, ignore_errors=True)
            self.sweep()

    def remove_empty(self) -> None:
        """Remove the lake if it holds nothing and no other run works in it."""
        if (self.root / staging.NAME).exists():
            return
        with suppress(OSError):  # not empty
            for folder in (self.root / part for part in ("kernels", "host", "times", DERIVED, "sources")):
                if folder.exists():
                    folder.rmdir()
            (self.root / _MARK).unlink()
            self.root.rmdir()

    def remove_derived(self) -> None:
        """Remove the derived files, of older versions too: what they were made from has changed."""
        shutil.rmtree(self.root / DERIVED, ignore_errors=True)

    def sweep(self) -> None:
        """Undo the unfinished changes of dead runs and remove their staging folders. A reader never calls this."""
        for run in staging.dead_runs(self.root):
            self._undo(run)
            shutil.rmtree(run, ignore_errors=True)
        staging.remove_if_empty(self.root)

    def _undo(self, run: Path) -> None:
        """Remove the files that a run was changing when it ended, unless they belong to a record or to another run."""
        paths = _noted(run)
        if paths:
            # notes are read before records: a run empties its note after it has written its record
            kept = {place for other_run in run.parent.iterdir() if other_run != run for place in _noted(other_run)}
            kept |= {str(place) for record in self.intact_records()[0] for place in files_of_record(record)}
            self.remove(Path(place) for place in paths if place not in kept)

    def _write(self, path: Path, content: bytes) -> None:
        unfinished = self._staged(content)
        sync_path(unfinished)
        unfinished.replace(path)
        sync_path(path.parent)

    def _staged(self, content: bytes) -> Path:
        """Write a new file of this run."""
        path = self.staging() / uuid.uuid4().hex
        with errors_name(path):
            path.write_bytes(content)
        return path


def _is_record(path: Path) -> bool:
    """Return whether a file is the record of a recording or a log, of any version."""
    try:
        content = read_lake_file(path)
        return is_sealed(content) or bool(decode_record(content))
    except (OSError, ValueError):
        return False


def _noted(run: Path) -> list[str]:
    """Return the files that a run is changing; entries that are no files of a lake are left out."""
    # a missing note was removed by another run; an empty or incomplete one precedes every change
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):
        return [place for place in _decode_places(read_lake_file(run / staging.NOTE)) if is_own_file(place)]
    return []
