"""SQLite databases of recordings and lakes, changed by tests."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database; what the block changes is kept."""
    with closing(sqlite3.connect(path)) as database, database:
        yield database


def run_sql(path: Path, *statements: str) -> Path:
    """Execute SQL statements that change a database; return its path."""
    with open_database(path) as database:
        for statement in statements:
            database.execute(statement)
    return path
