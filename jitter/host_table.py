"""Reads what a source told of its rank's host; a file that the lake has lost is said, not taken for a quiet host."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from jitter.lake_paths import host_file
from jitter.records import SourceRecord
from jitter.small_file import read_small, unreadable_file


def host_place(root: Path, record: SourceRecord) -> Path | None:
    """Where it lies; None where the source told nothing. Raises `LakeError` where it did and the file is gone."""
    assert record.rank is not None
    path = root / host_file(record.rank, record.digest)
    if path.exists():
        return path
    if record.host_rows:
        raise unreadable_file(path, FileNotFoundError(2, "No such file or directory"))
    return None


def read_host(root: Path, record: SourceRecord, columns: Sequence[str]) -> pa.Table | None:
    """Read columns (of `schema.HOST`) of one source; None where it told nothing.

    Raises `LakeError` for a file that is lost or damaged.
    """
    path = host_place(root, record)
    return None if path is None else read_small(path, columns)
