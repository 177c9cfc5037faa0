"""Compressed sources: the errors of damage, and the limit of the unpacked size.

A file of 10 MB can unpack to 10 GB (a "bomb").
"""

import gzip
import zlib
from pathlib import Path
from typing import Final

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
                "unpack it yourself if that is right, and give the .json",
            )
