"""Decide whether a file that was made from others still describes them.

Such a file carries the digest `made_from` of its layout and of what it rests on. It is used as long as that digest,
computed from the lake as it is now, is the same; otherwise it counts as absent.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import msgspec


def made_from(layout: int | str, *rests_on: object) -> str:
    """Return the digest of a layout and of the values that a file rests on (32 hexadecimal digits)."""
    return hashlib.blake2b(msgspec.json.encode((layout, rests_on)), digest_size=16).hexdigest()


class FileState(NamedTuple):
    """The state of a file as the file system reports it, which changes when the file is replaced."""

    size: int
    mtime_ns: int
    inode: int


def file_state(path: Path) -> FileState | None:
    """Return the state of a file; None if there is no such file."""
    try:
        stat = os.stat(path)  # noqa: PTH116  # called for each record of a lake
    except FileNotFoundError:
        return None
    return FileState(stat.st_size, stat.st_mtime_ns, stat.st_ino)
