"""Contract test for readers: `check(reader, path)` raises an error that lists every violation.

from jitter.readers.testing import check

def test_contract(tmp_path):
    check(MyReader(), make_trace(tmp_path))
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from jitter.core.errors import JitterError
from jitter.readers import Batch, Files, ReaderError, Recording, SourceReader, describe_error, size_of
from jitter.readers.validation import BatchValidator

_MOST_BATCH_BYTES: Final = 64 << 20
_GARBAGE: Final = bytes(range(256)) * 8


def check(reader: SourceReader, path: str | Path) -> Recording:
    """Check that `reader` keeps the contract of `jitter.readers.SourceReader` on the source at `path`.

    Reads the source twice, and damaged copies of it in a temporary folder. Returns the recording of the first reading.
    Raises `ReaderError` with one line per violation.
    """
    return _Check(reader, Path(path)).run()


class _Check:
    def __init__(self, reader: SourceReader, path: Path) -> None:
        self._reader = reader
        self._path = path
        self._violations: list[str] = []

    def run(self) -> Recording:
        self._check_attributes()
        before = _listing(self._path)
        files = self._check_files()
        recording, rows = self._check_reading(files)
        with self._noting("a second reading"):
            _, again = self._read(self._path)
            if [batch.table for batch in rows] != [batch.table for batch in again] or not all(
                batch.rows.equals(other.rows) for batch, other in zip(rows, again, strict=True)
            ):
                self._note("a second reading yields other rows")
        if _listing(self._path) != before:
            self._note("reading changed the folder of the source")
        with tempfile.TemporaryDirectory(prefix="jitter-reader-") as folder:
            self._check_foreign(Path(folder))
            self._check_damaged(Path(folder), files)
        if self._violations:
            listed = "\n".join(f"- {violation}" for violation in self._violations)
            name = getattr(self._reader, "name", self._reader)
            raise ReaderError(f"{self._path}: reader {name!r} breaks the contract:\n{listed}")
        return recording

    def _note(self, violation: str) -> None:
        self._violations.append(violation)

    @contextmanager
    def _noting(self, where: str, *allowed: type[Exception]) -> Iterator[None]:
        """Note any exception that is not allowed here."""
        try:
            yield
        except allowed:
            pass
        except Exception as error:
            self._note(f"{where}: raises {describe_error(error)}")

    def _check_attributes(self) -> None:
        if not isinstance(getattr(self._reader, "name", None), str):
            self._note("name is no str")
        version = getattr(self._reader, "version", None)
        if type(version) is not int or version < 1:
            self._note(f"version is {version!r}, not an int of at least 1")

    def _check_files(self) -> Files:
        with self._noting("sniff"):
            if self._reader.sniff(self._path) is not True:
                self._note("sniff does not return True for the source")
        files = Files((self._path,))
        with self._noting("files"):
            files = self._reader.files(self._path)
            if not files.read or files.read[0] != self._path:
                self._note(f"files.read begins with {files.read[:1]}, not with the source")
            absent = [file for file in (*files.read, *files.spare) if not file.exists()]
            if absent:
                self._note(f"files names {absent[0]}, which does not exist")
        return files

    def _check_reading(self, files: Files) -> tuple[Recording, list[Batch]]:
        recording, batches = Recording(self._path, ""), list[Batch]()
        advanced: list[int] = []
        with self._noting("reading"):
            recording, batches = self._read(self._path, advanced)
        if recording.path != self._path:
            self._note(f"Recording.path is {recording.path}")
        if not recording.format:
            self._note("Recording.format is empty")
        if not any(batch.table == "activities" and batch.rows.num_rows for batch in batches):
            self._note("no activities: a source without GPU activity must raise UnreadableTraceError")
        for batch in batches:
            if batch.rows.nbytes > _MOST_BATCH_BYTES:
                bytes_text = f"{batch.rows.nbytes:,} bytes: batches must be about 10 MB at most"
                self._note(f"a batch of {batch.table} has {bytes_text}")
        for process in recording.processes:
            for name in ("rank", "launcher_rank"):
                rank = getattr(process, name)
                if rank is not None and (type(rank) is not int or rank < 0):
                    self._note(f"Process.{name} is {rank!r}")
        if not all(isinstance(problem, str) for problem in recording.problems):
            self._note("Recording.problems holds something that is no str")
        size = size_of(*files.read)
        if any(number < 0 for number in advanced) or sum(advanced) != size:
            self._note(f"advance got {sum(advanced):,} bytes in all; the files have {size:,}")
        return recording, batches

    def _read(self, path: Path, advanced: list[int] | None = None) -> tuple[Recording, list[Batch]]:
        recording, read = self._reader.open(path)
        validator = BatchValidator(str(getattr(self._reader, "name", "")), path)
        batches = []
        for batch in read((advanced if advanced is not None else []).append):
            validator.check(batch)
            batches.append(batch)
        validator.finish(recording)
        return recording, batches

    def _check_foreign(self, folder: Path) -> None:
        """Sniff sources of no format."""
        suffix = "".join(self._path.suffixes[-2:])
        names = (folder / f"other{number}{suffix}" for number in count())
        empty, garbage, absent, directory = (next(names) for _ in range(4))
        empty.touch()
        garbage.write_bytes(_GARBAGE)
        directory.mkdir()
        for path, what in (
            (empty, "an empty file"),
            (garbage, "a file of random bytes"),
            (absent, "a missing file"),
            (directory, "an empty folder"),
        ):
            with self._noting(f"sniff of {what}"):
                if self._reader.sniff(path):
                    self._note(f"sniff accepts {what}")

    def _check_damaged(self, folder: Path, files: Files) -> None:
        """Read copies whose first file is cut: each is read in part or refused with a `JitterError`."""
        if self._path.is_dir():
            return
        for share in (0.0, 0.25, 0.5, 0.9):
            copies = folder / f"cut-{share}"
            copies.mkdir()
            for file in (path for path in files.read if path.is_file()):
                shutil.copy(file, copies)
            cut = copies / self._path.name
            cut.chmod(0o600)
            cut.write_bytes(self._path.read_bytes()[: int(size_of(self._path) * share)])
            with self._noting(f"a copy cut to {share:.0%}", JitterError):
                if self._reader.sniff(cut):
                    self._read(cut)


def _listing(path: Path) -> list[tuple[str, int, int]]:
    folder = path if path.is_dir() else path.parent
    states = [(file.name, file.stat()) for file in sorted(folder.iterdir())]
    return [(name, state.st_size, state.st_mtime_ns) for name, state in states]
