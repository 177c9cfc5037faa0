"""Tables of an Nsight Systems export in SQLite, streamed without a write anywhere near the file."""

import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from jitter.readers.nsys_tables import BATCH_ROWS, TEXT_BATCH_ROWS, Only, damaged, looks_like_nsys
from jitter.readers.sqlite_file import (
    connect,
    connect_for_batches,
    cut_short,
    is_sqlite,
    quoted,
    read,
    refuse_unfinished,
)

_HEAD_BYTES = 1 << 18
_VALUES_A_QUERY = 10_000


def sniff_sqlite(path: Path) -> bool:
    """Whether the file is such an export, damaged ones included; raises OSError if it cannot be opened."""
    if not is_sqlite(path):
        return False
    try:
        with closing(connect(path)) as connection:
            return looks_like_nsys([name for (name,) in connection.execute("SELECT name FROM sqlite_master")])
    except sqlite3.Error:
        # too damaged to list its tables: their definitions still stand in the first pages
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        return b"CREATE TABLE StringIds" in head and (b"CUPTI_ACTIVITY_KIND_" in head or b"TARGET_INFO_" in head)


class SqliteTables:
    """The tables of one SQLite export; see `nsys_tables.Tables`."""

    export_type = "sqlite"

    def __init__(self, path: Path) -> None:
        """Read the list of tables. Raises UnreadableTraceError for a database that its writer has not finished."""
        self.path = path
        self.size = path.stat().st_size
        refuse_unfinished(path, "let `nsys export` finish, or export the report again")
        cut = cut_short(path)
        if cut is not None:
            raise damaged(path, cut, self.export_type)
        self._columns: dict[str, set[str]] = {}
        with closing(connect(path)) as connection:
            listed = connection.execute(
                """SELECT tables.name, columns.name
                   FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
                   WHERE tables.type = 'table'"""
            )
            for table, column in listed:
                self._columns.setdefault(table, set()).add(column)
        # one for all tables: many are small
        self._database = connect_for_batches(path)
        weakref.finalize(self, self._database.close)

    def columns(self, table: str) -> frozenset[str]:
        return frozenset(self._columns.get(table, ()))

    def has_rows(self, table: str) -> bool:
        return any(read(self._database, {"one": "1"}, {}, f'"{table}" LIMIT 1', 1))

    def rows(self, table: str) -> int:
        # count(*) would read the whole table; the last rowid is one look-up
        (batch,) = read(self._database, {"last": "ifnull(max(rowid), 0)"}, {}, f'"{table}"', 1)
        return max(0, int(batch["last"][0].as_py()))

    def read(
        self, table: str, integers: Sequence[str], texts: Sequence[str] = (), only: Only | None = None
    ) -> Iterator[pa.RecordBatch]:
        for source in _restricted(table, only):
            yield from read(
                self._database, quoted(integers), quoted(texts), source, TEXT_BATCH_ROWS if texts else BATCH_ROWS
            )


def _restricted(table: str, only: Only | None) -> Iterator[str]:
    if only is None:
        yield f'"{table}"'
        return
    for first in range(0, len(only.values), _VALUES_A_QUERY):
        values = only.values[first : first + _VALUES_A_QUERY]
        yield f'"{table}" WHERE "{only.column}" IN ({", ".join(str(int(value)) for value in values)})'
