"""SQLite databases of AMD's profilers, streamed without a write anywhere near the file."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import adbc_driver_manager
import pyarrow as pa

from jitter.core.errors import UnreadableTraceError
from jitter.readers.amd.batches import BATCH_ROWS
from jitter.readers.sqlite import connect, is_sqlite, read_batches, reject_unfinished, truncation

DAMAGE: Final = (sqlite3.Error, adbc_driver_manager.Error, pa.ArrowException, OSError)
"""What the libraries raise where a database is damaged."""


def list_tables(path: Path) -> dict[str, frozenset[str]]:
    """The columns of each table and view; empty for a file that is no database or too damaged to list them."""
    try:
        if not is_sqlite(path):
            return {}
        found: dict[str, set[str]] = {}
        with closing(connect(path)) as connection:
            for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"):
                found[table] = set()
            for table, columns in found.items():
                try:
                    listed = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
                    columns |= {name for (name,) in listed}
                except sqlite3.Error:
                    continue  # a view of functions that this SQLite has not
    except (OSError, sqlite3.Error):
        return {}
    return {table: frozenset(columns) for table, columns in found.items()}


class Database:
    """One database, opened for reading."""

    def __init__(self, path: Path) -> None:
        """Raises UnreadableTraceError for a database that is cut off or that its writer has not finished."""
        self.path = path
        self.size = path.stat().st_size
        reject_unfinished(path, "let the profiler finish, or record again")
        cut = truncation(path)
        if cut is not None:
            raise self.damaged(cut)
        self.tables = list_tables(path)

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def count(self, table: str) -> int:
        """About how many rows the table has, without reading it: for progress only."""
        rows = self.rows(f'SELECT max(rowid) FROM "{table}"')
        return int(rows[0][0] or 0) if rows and isinstance(rows[0][0], int) else 0

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of a small query. Raises UnreadableTraceError where the database is damaged."""
        try:
            with closing(connect(self.path)) as connection:
                return connection.execute(query, values).fetchall()
        except DAMAGE as error:
            raise self.damaged(error) from error

    def stream(
        self, integers: dict[str, str], texts: dict[str, str], source: str, rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Batches of these expressions under their names: int64 and binary, null where unknown.

        `source` is what stands behind FROM. Raises UnreadableTraceError where the database is damaged.
        """
        batches = read_batches(self.path, integers, texts, source, rows)
        while True:
            try:
                batch = next(batches, None)
            except DAMAGE as error:
                raise self.damaged(error) from error
            if batch is None:
                return
            yield batch

    def damaged(self, error: BaseException) -> UnreadableTraceError:
        """What to tell a person when a library could not read on."""
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return UnreadableTraceError(
            f"{self.path}: the database is damaged or cut short ({reason})", "copy it again, or record again"
        )


class RowProgress:
    """Progress through a database: bytes in proportion to rows seen, for rows have no place in the file."""

    def __init__(self, size: int, total: int) -> None:
        self._size = size
        self._total = max(total, 1)
        self._seen = 0
        self._reported = 0

    def seen(self, rows: int) -> int:
        """The further bytes that these further rows stand for."""
        self._seen += rows
        # the total is an estimate, so the last word on the size comes at the end
        return self._report(self._size * min(self._seen, self._total) // self._total)

    def rest(self) -> int:
        """The bytes not yet reported."""
        return self._report(self._size)

    def _report(self, due: int) -> int:
        further, self._reported = due - self._reported, due
        return further
