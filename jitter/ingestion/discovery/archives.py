"""Archives of traces (zip; tar, plain or packed): unpacked member by member into a cache folder, within bounds.

Only regular files are written, each to a new file inside the folder, whatever the archive names.
"""

import os
import re
import shutil
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, Final, NamedTuple

import xxhash

from jitter.core.compression import MOST_RATIO, SMALL_BYTES, read_chunks, read_head
from jitter.core.errors import JitterError, UnreadableTraceError, reason_of
from jitter.core.files import cache_folder

_TRACE: Final = re.compile(
    r"(?i)\.(?:json(?:\.gz|\.zst)?|sqlite3?|nsys-rep|qdrep|db|rpd|xplane\.pb)$|kernel_trace\.csv$|\.pftrace$"
)
_HEAD_BYTES: Final = 1 << 16
_TAR_BLOCK: Final = 512
_ZIP: Final = b"PK\x03\x04"
_PIECE_BYTES: Final = 1 << 20
_MOST_MEMBERS: Final = 100_000
_KEPT_S: Final = 7 * 24 * 3600
"""Unpacked archives that no ingest has used for this time are removed when another one is unpacked."""
_LATEST_S: Final = 1 << 33
"""A member that states a later modification is taken as modified now, as all of a zip are: its times have no zone."""
_DAMAGE: Final = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
"""Errors of the libraries for damaged, encrypted or unknown data; of names that are no text, `ValueError`."""


class Unpacked(NamedTuple):
    """The folder of an archive's files, which has the archive's name, and what is missing in it."""

    folder: Path
    error: JitterError | None
    """Set if the archive is damaged: the files before the damage are in the folder."""
    skipped: int
    """Members without a file: links, devices, names that lead elsewhere or occur twice."""


def is_trace_archive(path: Path, *, named: bool) -> bool:
    """Return whether a file is an archive whose first members are traces; any archive that the user `named`."""
    try:
        head = read_head(path, _HEAD_BYTES)
    except (OSError, JitterError):
        return False
    is_zip = head.startswith(_ZIP)
    if not is_zip and head[257:262] != b"ustar":
        return False
    # names of the first members, as far as its beginning shows
    members = _first_zip_members(head) if is_zip else _first_tar_members(head)
    return named or any(_TRACE.search(name) for name in members)


def unpack(path: Path) -> Unpacked:
    """Unpack an archive, unless the cache holds what it unpacked to.

    Raises `UnreadableTraceError` if it grows suspiciously much, `JitterError` if the cache has too little space or
    cannot be written.
    """
    state = path.stat()
    digest = xxhash.xxh3_64_hexdigest(f"{path.resolve()}|{state.st_size}|{state.st_mtime_ns}".encode())
    root = cache_folder("archives")
    folder = root / digest
    try:
        if folder.is_dir():
            os.utime(folder)
            return Unpacked(folder / path.name, None, 0)
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        _remove_old(root)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=root, ignore_cleanup_errors=True) as unfinished:
            unpacked = _Writer(path, Path(unfinished, "files", path.name), state.st_size).run()
            if unpacked.error is not None:  # nothing incomplete is kept under the name
                folder = folder.with_name(f"{folder.name}-{time.time_ns()}")
            unpacked.folder.parent.rename(folder)
            return unpacked._replace(folder=folder / path.name)
    except OSError as error:
        raise JitterError(
            f"{path}: cannot be unpacked into {root} ({reason_of(error)})",
            "set XDG_CACHE_HOME to a folder with space, or unpack it yourself and give the folder",
        ) from None


class _Writer:
    def __init__(self, path: Path, folder: Path, size: int) -> None:
        self._path, self._folder = path, folder
        self._most_bytes = max(MOST_RATIO * size, SMALL_BYTES)
        self._written = self._members = self._skipped = 0

    def run(self) -> Unpacked:
        """Write all members that can be read."""
        self._folder.mkdir(mode=0o700, parents=True)
        error: JitterError | None = None
        try:
            with self._path.open("rb") as file:
                is_zip = file.read(4) == _ZIP
            problems: list[str] = []
            for name, content, changed_s in self._zip_members() if is_zip else self._tar_members(problems):
                self._write(name, content, changed_s)
            if problems:
                error = self._damaged(problems[0])
        except (*_DAMAGE, ValueError) as reason:
            error = self._damaged(str(reason) or type(reason).__name__)
        return Unpacked(self._folder, error, self._skipped)

    def _damaged(self, reason: str) -> JitterError:
        return UnreadableTraceError(
            f"{self._path}: a damaged archive ({reason})", "copy it again; its files before are read"
        )

    def _zip_members(self) -> Iterator[tuple[str, IO[bytes] | None, float | None]]:
        with zipfile.ZipFile(self._path) as archive:
            for member in archive.infolist():
                if not member.is_dir():
                    kind = member.external_attr >> 28  # of the file type in Unix' mode: 8 is a regular file
                    with archive.open(member) as content:
                        yield member.filename, content if kind in (0, 8) else None, None

    def _tar_members(self, problems: list[str]) -> Iterator[tuple[str, IO[bytes] | None, float | None]]:
        chunks = _Chunks(read_chunks(self._path, _HEAD_BYTES, lambda _: None, problems))
        with tarfile.open(fileobj=chunks, mode="r|") as archive:  # type: ignore[call-overload]
            for member in archive:
                archive.members.clear()  # else it keeps each
                if not member.isdir():
                    is_file = member.isreg() and not member.issparse()
                    yield member.name, archive.extractfile(member) if is_file else None, member.mtime

    def _write(self, name: str, content: IO[bytes] | None, changed_s: float | None) -> None:
        self._members += 1
        if self._members > _MOST_MEMBERS:
            raise self._too_large(f"{_MOST_MEMBERS:,} files")
        parts = PurePosixPath(name).parts
        if content is None or not parts or name.startswith("/") or ".." in parts or "\0" in name or "\\" in name:
            self._skipped += 1
            return
        target = self._folder.joinpath(*parts)
        try:
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = target.open("xb")
        except (FileExistsError, NotADirectoryError, UnicodeEncodeError):
            self._skipped += 1
            return
        with file:
            while piece := content.read(_PIECE_BYTES):
                self._written += len(piece)
                if self._written > self._most_bytes:
                    raise self._too_large(f"{self._most_bytes:,} bytes")
                if shutil.disk_usage(self._folder).free < 2 * len(piece):
                    raise JitterError(
                        f"{self._path}: no space left to unpack it in {self._folder.parents[2]}",
                        "free space on that disk, or set XDG_CACHE_HOME to a folder on another disk",
                    )
                file.write(piece)
        if changed_s is not None and 0 <= changed_s < _LATEST_S:
            os.utime(target, (changed_s, changed_s))

    def _too_large(self, what: str) -> UnreadableTraceError:
        return UnreadableTraceError(
            f"{self._path}: unpacks to more than {what}", "unpack it yourself if that is right, and give the folder"
        )


class _Chunks:
    """Chunks as the file of a tar stream, which takes what `read` returns, however much it asked for."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chain(chunks, [b""])

    def read(self, _size: int) -> bytes:
        """Return the next chunk, at the end nothing; raise `EOFError` behind it, where a stated size may lead."""
        if (chunk := next(self._chunks, None)) is None:
            raise EOFError("unexpected end of data")
        return chunk


def _remove_old(root: Path) -> None:
    for folder in root.iterdir():
        with suppress(OSError):  # other processes remove them too
            if time.time() - folder.lstat().st_mtime > _KEPT_S:
                shutil.rmtree(folder)


def _first_zip_members(head: bytes) -> Iterator[str]:
    at = 0
    while head.startswith(_ZIP, at) and at + 30 <= len(head):
        packed, name, extra = (
            int.from_bytes(head[at + n : at + n + size], "little") for n, size in ((18, 4), (26, 2), (28, 2))
        )
        yield head[at + 30 : at + 30 + name].decode("utf-8", "replace")
        at += 30 + name + extra + packed


def _first_tar_members(head: bytes) -> Iterator[str]:
    at = 0
    while head[at + 257 : at + 262] == b"ustar":
        yield head[at : at + 100].rstrip(b"\0").decode("utf-8", "replace")
        size = head[at + 124 : at + 136].rstrip(b"\0 ")
        if not size.isdigit() or set(size) - set(b"01234567"):
            return
        if head[at + 156 : at + 157] == tarfile.GNUTYPE_LONGNAME:  # a longer name than the header of the file holds
            yield head[at + _TAR_BLOCK : at + _TAR_BLOCK + int(size, 8)].rstrip(b"\0").decode("utf-8", "replace")
        at += _TAR_BLOCK * (1 + -(-int(size, 8) // _TAR_BLOCK))
