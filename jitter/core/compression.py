"""The bytes of a file that may be packed: plain, gzip or zstd (by the first bytes), complete, cut or damaged.

A packed file of 10 MB can unpack to 10 GB (a "bomb"): the unpacked size is limited.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
from isal import isal_zlib

from jitter.core.errors import UnreadableTraceError

MOST_RATIO: Final = 200
"""Largest ratio of unpacked to packed bytes; JSON of profilers compresses to about a tenth."""
SMALL_BYTES: Final = 64 << 20
"""Bytes that are unpacked whatever the ratio."""

# isal's stub types it as an instance, not a class
_IsalError: type[Exception] = isal_zlib.error  # type: ignore[assignment]
GZIP_DAMAGE: Final = (_IsalError, zlib.error, EOFError, gzip.BadGzipFile)
"""Errors of the libraries for damaged or cut gzip data."""
CHUNK_BYTES: Final = 256 * 1024  # measured: a chunk stays in the processor's cache while it is decoded
_MAGIC: Final = b"\x1f\x8b"
_ZSTD: Final = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", re.DOTALL)
"""The first bytes of a zstd frame, or of a skippable one, which some writers begin with."""
_ZSTD_BYTES: Final = 32 * 1024
"""Unpacked bytes asked for at a time: with an error the decompressor returns none of them."""
_READ_BYTES: Final = 64 * 1024
_MOST_PADDING: Final = 64 << 20
"""Zeros after a gzip member that are read at most."""
_GZIP: Final = 31  # zlib's wbits: largest window, gzip format
_DAMAGE: Final = (*GZIP_DAMAGE, ValueError)


class UnpackedLimit:
    """Counts unpacked bytes of one file; `add` raises `UnreadableTraceError` above the limit.

    The limit holds from what is read so far, so that a file of a terabyte is refused after its first 64 MB.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unpacked = 0

    def add(self, count: int, packed: int) -> None:
        """Count further bytes; `packed` is the number of packed bytes that were read for all of them."""
        self._unpacked += count
        if self._unpacked > max(MOST_RATIO * packed, SMALL_BYTES):
            raise UnreadableTraceError(
                f"{self._path}: its first {packed:,} bytes unpack to more than {self._unpacked - count:,}, over "
                f"{MOST_RATIO} times as many",
                "unpack it yourself if that is right, and give the unpacked file",
            )


def read_chunks(path: Path, piece_bytes: int, advance: Callable[[int], None], problems: list[str]) -> Iterator[bytes]:
    """Yield the decompressed content in chunks of at most `piece_bytes`; append what is lost to `problems`.

    `advance` is called with compressed bytes read; they add up to the file's size. Raises OSError, and
    `UnreadableTraceError` for a file that unpacks to suspiciously many bytes.
    """
    with path.open("rb") as file:
        begin = file.read(4)
        file.seek(0)
        kind = _Unzipped if begin.startswith(_MAGIC) else _Zstd if _ZSTD.match(begin) else None
        if kind is not None:
            limit = UnpackedLimit(path)
            unpacked = kind(file, path.stat().st_size, advance, problems)
            for piece in unpacked.pieces(piece_bytes):
                limit.add(len(piece), unpacked.position)
                yield piece
            return
        while piece := file.read(piece_bytes):
            advance(len(piece))
            yield piece


def is_packed(path: Path) -> bool:
    """Return whether a file is gzip or zstd data by its first bytes."""
    with path.open("rb") as file:
        begin = file.read(4)
    return begin.startswith(_MAGIC) or _ZSTD.match(begin) is not None


def read_head(path: Path, size: int) -> bytes:
    """Return up to `size` unpacked bytes from the beginning of a file; empty if its packed data are not valid."""
    head = b""
    for piece in read_chunks(path, size, lambda _: None, []):
        head += piece
        if len(head) >= size:
            break
    return head[:size]


def sniff_head(path: Path, size: int) -> bytes:
    """Return `read_head` of a file; empty for a folder, and for a file that cannot be read."""
    try:
        return read_head(path, size) if path.is_file() else b""
    except (OSError, UnreadableTraceError):
        return b""


class _Packed:
    """A packed file that is being read."""

    name: str

    def __init__(self, file: BinaryIO, size: int, advance: Callable[[int], None], problems: list[str]) -> None:
        self._file = file
        self._size = size
        self._advance = advance
        self._problems = problems
        self.position = 0
        """Packed bytes read so far."""

    def _read(self, size: int = _READ_BYTES) -> bytes:
        data = self._file.read(size)
        self.position += len(data)
        self._advance(len(data))
        return data

    def _cut(self) -> None:
        self._problems.append(
            f"the file is cut: its {self.name} data stops without an end after {self.position:,} bytes, "
            "and how much is missing cannot be known"
        )

    def _damaged(self, reason: str) -> None:
        lost = self._size - self.position
        self._problems.append(
            f"the {self.name} data is damaged ({reason}) at or before byte {self.position:,} of the file's "
            f"{self._size:,}: {lost:,} bytes after it were not read, and the data just before it may be wrong"
        )
        self._skip_rest()

    def _skip_rest(self) -> None:
        self._advance(self._size - self.position)
        self.position = self._size


class _Zstd(_Packed):
    """Decompresses all frames of a zstd file."""

    name = "zstd"

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        stream = pa.CompressedInputStream(pa.PythonFile(self, mode="r"), "zstd")
        while True:
            parts: list[bytes] = []
            held = 0
            while held < piece_bytes:
                try:
                    part = stream.read(min(_ZSTD_BYTES, piece_bytes - held))
                except (OSError, pa.ArrowException) as error:
                    if self._error is not None:
                        raise self._error from None
                    if parts:
                        yield b"".join(parts)
                    if self._is_at_end:
                        return self._cut()
                    return self._damaged(str(error).rpartition(": ")[2])
                if not part:
                    break
                parts.append(part)
                held += len(part)
            if not parts:
                return None
            yield b"".join(parts)

    # what pyarrow calls of a file object

    closed = False
    _error: OSError | None = None
    """An error of the disk, which pyarrow does not tell from one of the decompressor."""
    _is_at_end = False

    def read(self, size: int) -> bytes:
        """Return packed bytes, at most `size`."""
        try:
            data = self._read(size)
        except OSError as error:
            self._error = error
            raise
        self._is_at_end = not data
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: the file is closed where it was opened."""


class _Unzipped(_Packed):
    """Decompresses all members of a gzip file."""

    name = "gzip"

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        data = b""
        while True:
            data = self._next_member(data)
            if not data:
                return
            member = isal_zlib.decompressobj(_GZIP)
            while not member.eof:
                if not data:
                    data = self._read()
                held = len(data)
                try:
                    # at the end of the file this still returns what the decompressor holds
                    piece = member.decompress(data, piece_bytes)
                except _DAMAGE as error:
                    return self._damaged(str(error))
                data = member.unused_data if member.eof else member.unconsumed_tail
                if piece:
                    yield piece
                elif not member.eof and len(data) == held:
                    if held:
                        return self._damaged("the decompressor makes no progress")
                    return self._cut()

    def _next_member(self, data: bytes) -> bytes:
        """Return the data from the next gzip member on; empty at the end of the file. Zeros are padding."""
        end = self.position
        data = data.lstrip(b"\0")
        while len(data) < 2 and self.position - end < _MOST_PADDING and (next_bytes := self._read()):
            data = (data + next_bytes).lstrip(b"\0")
        if not data or data.startswith(_MAGIC):
            return data
        self._problems.append(
            f"{self._size - self.position + len(data):,} bytes after the end of the gzip data were not read"
        )
        self._skip_rest()
        return b""
