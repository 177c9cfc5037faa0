"""Decide whether a derived file still describes the records that it was made from.

A derived file carries the digest `made_from` of its layout version and of what it rests on. It is used as long as that
digest, computed from the records as they are now, is the same; otherwise the data are read as if the file were absent.
"""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import msgspec

from jitter.lake.records import SourceRecord


class Reading(NamedTuple):
    """One reading of one recording: a record with the same values describes the same rows."""

    digest: str
    reader_version: int
    step_pattern: str | None
    collective_pattern: str | None


def reading_of(record: SourceRecord) -> Reading:
    """Return the reading that a record describes."""
    return Reading(record.digest, record.reader_version, record.step_pattern, record.collective_pattern)


def made_from(layout_version: int | str, *rests_on: object) -> str:
    """Return the digest of a layout version and of the values that a derived file rests on (32 hexadecimal digits)."""
    content = msgspec.json.encode((layout_version, rests_on))
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class FileState(NamedTuple):
    """The state of a file as the file system reports it, which changes when the file is replaced."""

    size: int
    mtime_ns: int
    inode: int


def file_state(file: Path | int) -> FileState | None:
    """Return the state of a file, given by path or descriptor; None if there is no such file."""
    try:
        found = os.fstat(file) if isinstance(file, int) else file.stat()
    except FileNotFoundError:
        return None
    return FileState(found.st_size, found.st_mtime_ns, found.st_ino)
