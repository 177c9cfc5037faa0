"""The bytes of a trace file in chunks: plain or gzip (by its first bytes), complete, cut or damaged."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from isal import isal_zlib

from jitter.readers import Advance
from jitter.readers.compression import GZIP_DAMAGE, UnpackedLimit

CHUNK_BYTES: Final = 256 * 1024  # measured: a chunk stays in the processor's cache while it is decoded
_MAGIC: Final = b"\x1f\x8b"
_READ_BYTES: Final = 64 * 1024
_MOST_PADDING: Final = 64 << 20
"""Zeros after a gzip member that are read at most."""
_GZIP: Final = 31  # zlib's wbits: largest window, gzip format
_DAMAGE: Final = (*GZIP_DAMAGE, ValueError)


def read_chunks(path: Path, piece_bytes: int, advance: Advance, problems: list[str]) -> Iterator[bytes]:
    """Yield the decompressed content in chunks of at most `piece_bytes`; append what is lost to `problems`.

    `advance` is called with compressed bytes read; they add up to the file's size. Raises OSError, and
    `UnreadableTraceError` for a file that unpacks to suspiciously many bytes.
    """
    with path.open("rb") as file:
        zipped = file.read(2) == _MAGIC
        file.seek(0)
        if zipped:
            limit = UnpackedLimit(path)
            unzipped = _Unzipped(file, path.stat().st_size, advance, problems)
            for piece in unzipped.pieces(piece_bytes):
                limit.add(len(piece), unzipped.position)
                yield piece
            return
        while piece := file.read(piece_bytes):
            advance(len(piece))
            yield piece


class _Unzipped:
    """Decompresses all members of a gzip file."""

    def __init__(self, file: BinaryIO, size: int, advance: Advance, problems: list[str]) -> None:
        self._file = file
        self._size = size
        self._advance = advance
        self._problems = problems
        self.position = 0
        """Packed bytes read so far."""

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
                    self._problems.append(
                        f"the file is cut: its gzip data stops without an end after {self.position:,} bytes, "
                        "and how much is missing cannot be known"
                    )
                    return None

    def _read(self) -> bytes:
        data = self._file.read(_READ_BYTES)
        self.position += len(data)
        self._advance(len(data))
        return data

    def _next_member(self, data: bytes) -> bytes:
        """Return the data from the next gzip member on; empty at the end of the file. Zeros are padding."""
        end = self.position
        data = data.lstrip(b"\0")
        while len(data) < 2 and self.position - end < _MOST_PADDING and (more := self._read()):
            data = (data + more).lstrip(b"\0")
        if not data or data.startswith(_MAGIC):
            return data
        self._problems.append(
            f"{self._size - self.position + len(data):,} bytes after the end of the gzip data were not read"
        )
        self._skip_rest()
        return b""

    def _damaged(self, reason: str) -> None:
        lost = self._size - self.position
        self._problems.append(
            f"the gzip data is damaged ({reason}) at or before byte {self.position:,} of the file's {self._size:,}: "
            f"{lost:,} bytes after it were not read, and the data just before it may be wrong"
        )
        self._skip_rest()

    def _skip_rest(self) -> None:
        self._advance(self._size - self.position)
        self.position = self._size
