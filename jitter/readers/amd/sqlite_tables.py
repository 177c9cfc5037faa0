"""SQLite databases of AMD's profilers, streamed; no file is written next to them."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from jitter.core.arrow import map_distinct
from jitter.core.errors import UnreadableTraceError
from jitter.readers import first_line
from jitter.readers.amd.batches import BATCH_ROWS, decode_text
from jitter.readers.sqlite import (
    DAMAGE,
    connect,
    describe_no_integers,
    is_sqlite,
    read_batches,
    reject_unfinished,
    reject_utf16,
    truncation,
)

VALUES_PER_QUERY: Final = 5_000


def list_tables(path: Path) -> dict[str, frozenset[str]]:
    """Return the columns of each table and view; empty for a file that is no database or too damaged to list them."""
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
                    continue  # a view with functions that this SQLite lacks
    except (OSError, sqlite3.Error, UnicodeDecodeError):
        return {}
    return {table: frozenset(columns) for table, columns in found.items()}


class Database:
    """A database, opened for reading."""

    def __init__(self, path: Path) -> None:
        """List the tables. Raises UnreadableTraceError for a truncated or unfinished database."""
        self.path = path
        self.size = path.stat().st_size
        reject_unfinished(path, "let the profiler finish, or record again")
        reject_utf16(path)
        cut = truncation(path)
        if cut is not None:
            raise self.damaged(cut)
        self.tables = list_tables(path)
        self._no_integers: Counter[str] = Counter()

    def has(self, table: str, *columns: str) -> bool:
        """Return whether the table exists with these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def count(self, table: str) -> int:
        """Return the approximate number of rows, for progress, without reading the table."""
        try:
            rows = self.rows(f'SELECT max(rowid) FROM "{table}"')
        except UnreadableTraceError:  # a table WITHOUT ROWID, or damage, which shows again
            rows = self.rows(f'SELECT count(*) FROM "{table}"')
        return int(rows[0][0] or 0) if rows and isinstance(rows[0][0], int) else 0

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return all rows of a small query. Raises UnreadableTraceError for a damaged database."""
        try:
            with closing(connect(self.path)) as connection:
                return connection.execute(query, values).fetchall()
        except DAMAGE as error:
            raise self.damaged(error) from error

    def stream(
        self, integers: dict[str, str], texts: dict[str, str], source: str, rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of SQL expressions under their names: int64 and binary, null where unknown.

        `source` is the SQL after FROM. Raises UnreadableTraceError for a damaged database.
        """
        try:
            yield from read_batches(self.path, integers, texts, source, rows, self._no_integers)
        except DAMAGE as error:
            raise self.damaged(error) from error

    def problems(self) -> list[str]:
        """Return a sentence about values read so far that should be integers and state none, if there are any."""
        return describe_no_integers(self._no_integers)

    def damaged(self, error: BaseException) -> UnreadableTraceError:
        """Return the error for a database that a library could not read."""
        return UnreadableTraceError(
            f"{self.path}: the database is damaged or cut short ({first_line(error)})", "copy it again, or record again"
        )


class StringTable:
    """The strings of a table with the columns `id` and `string`, cached: names of calls and kernels are few."""

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table = table
        self._known: dict[int | None, str] = {None: ""}

    def texts(self, ids: pa.Array) -> pa.Array:
        """Return the strings of ids; "" where the id is null or absent."""
        wanted = [id_ for id_ in ids.unique().to_pylist() if id_ not in self._known]
        for first in range(0, len(wanted), VALUES_PER_QUERY):
            some = ", ".join(map(str, wanted[first : first + VALUES_PER_QUERY]))
            found = self._database.rows(f'SELECT id, "string" FROM "{self._table}" WHERE id IN ({some})')
            self._known |= {id_: decode_text(text) for id_, text in found}
        return map_distinct(ids, lambda id_: self._known.get(id_, ""), pa.string())


class RowProgress:
    """Progress in bytes through a database, in proportion to the rows read."""

    def __init__(self, size: int, total: int) -> None:
        self._size = size
        self._total = max(total, 1)
        self._seen = 0
        self._reported = 0

    def seen(self, rows: int) -> int:
        """Return the bytes to report for these further rows."""
        self._seen += rows
        # the total is an estimate: the rest is reported at the end
        return self._report(self._size * min(self._seen, self._total) // self._total)

    def rest(self) -> int:
        """Return the bytes not yet reported."""
        return self._report(self._size)

    def _report(self, due: int) -> int:
        further, self._reported = due - self._reported, due
        return further
