"""Write a file completely or not at all."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from jitter.core.errors import JitterError, reason_of


@contextmanager
def complete_file(path: Path) -> Iterator[Path]:
    """Yield the path that the block writes; remove the file and raise `JitterError` if it cannot be written.

    A part of a trace would be read as a damaged recording.
    """
    try:
        yield path
    except (OSError, sqlite3.Error) as error:
        with suppress(OSError):
            path.unlink()
        raise JitterError(
            f"{path} cannot be written: {reason_of(error)}", "free space on the disk, or choose another folder"
        ) from None
