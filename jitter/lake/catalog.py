"""`LAKE/catalog.sqlite`: the records as tables, for queries. Derived: rebuilt when they have changed."""

import hashlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path

from jitter.lake import staging
from jitter.lake.records import SourceRecord

_VERSION = 2
"""Of its tables: a catalogue of another version is stale."""

_TRIES = 5
"""What others still add after that, the next reader takes in."""


def fingerprint(root: Path) -> str:
    """What the records looked like: names, sizes and times of change of all of them."""
    digest = hashlib.blake2b(f"{_VERSION}\n".encode(), digest_size=16)
    for path in sorted((root / "sources").glob("*.json")):
        with suppress(FileNotFoundError):  # another run may have replaced it just now
            state = path.stat()
            digest.update(f"{path.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def is_current(root: Path) -> bool:
    """Whether the catalogue was built from the records as they are now."""
    path = root / "catalog.sqlite"
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT fingerprint FROM state").fetchall() == [(fingerprint(root),)]
    except sqlite3.Error:
        return False


def refresh(root: Path, records: Callable[[], Sequence[SourceRecord]]) -> None:
    """Rebuild the catalogue if the records have changed since it was built.

    Where many runs end at once, one that is slow may put an old one in place of a new one: it looks again.
    """
    for _ in range(_TRIES):
        if is_current(root) or not os.access(root, os.W_OK):
            return
        _rebuild(root, records)


def load() -> None:
    """Load what a rebuild needs; else it does when its time comes. For threads that run while others work."""
    import_module("jitter.lake.catalog_schema")


def _rebuild(root: Path, records: Callable[[], Sequence[SourceRecord]]) -> None:
    """Write the catalogue anew and put it in place of the old one."""
    mark = fingerprint(root)  # before the records are read: one that comes later makes the catalogue stale
    found = records()
    with staging.temporary_folder(root) as run:
        from jitter.lake.catalog_schema import write

        temporary = staging.create_folder(run) / "catalog.sqlite"
        write(temporary, mark, found)
        temporary.replace(root / "catalog.sqlite")
