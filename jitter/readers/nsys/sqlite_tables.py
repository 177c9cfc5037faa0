"""Tables of an Nsight Systems export in SQLite, streamed; no file is written next to it."""

import sqlite3
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import adbc_driver_manager
import pyarrow as pa
import pyarrow.compute as pc

from jitter.readers.nsys.tables import BATCH_ROWS, TEXT_BATCH_ROWS, RowFilter, damage_error, looks_like_nsys
from jitter.readers.sqlite import (
    connect,
    connect_adbc,
    is_sqlite,
    quote_columns,
    read_batches,
    reject_unfinished,
    reject_utf16,
    truncation,
)
from jitter.readers.sqlite_pages import UnsupportedTable, read_integer_columns

_HEAD_BYTES = 1 << 18
_VALUES_A_QUERY = 10_000


def is_sqlite_export(path: Path) -> bool:
    """Return whether a file is such an export, possibly damaged. Raises OSError if it cannot be opened."""
    if not is_sqlite(path):
        return False
    try:
        with closing(connect(path)) as connection:
            return looks_like_nsys([name for (name,) in connection.execute("SELECT name FROM sqlite_master")])
    except (sqlite3.Error, UnicodeDecodeError):
        # too damaged to list its tables: look for their definitions in the first pages
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        return b"CREATE TABLE StringIds" in head and (b"CUPTI_ACTIVITY_KIND_" in head or b"TARGET_INFO_" in head)


class _Layout(NamedTuple):
    """Position of a table and its columns in the file."""

    root: int
    """The root page."""
    positions: dict[str, int]
    keys: set[str]


class SqliteTables:
    """The tables of one SQLite export; see `tables.Tables`."""

    export_type = "sqlite"

    def __init__(self, path: Path) -> None:
        """Read the list of tables. Raises UnreadableTraceError for an unfinished or truncated database."""
        self.path = path
        self.size = path.stat().st_size
        reject_unfinished(path, "let `nsys export` finish, or export the report again")
        reject_utf16(path)
        cut = truncation(path)
        if cut is not None:
            raise damage_error(path, cut, self.export_type)
        self.no_integers: Counter[str] = Counter()
        self._layouts: dict[str, _Layout] = {}
        with closing(connect(path)) as connection:
            listed = connection.execute(
                """SELECT tables.name, tables.rootpage, columns.name, columns.cid, columns.pk
                   FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
                   WHERE tables.type = 'table'"""
            )
            for table, root, column, position, key in listed:
                layout = self._layouts.setdefault(table, _Layout(root, {}, set()))
                layout.positions[column] = position
                if key:
                    layout.keys.add(column)
        # one connection for all tables: many are small
        self._database = connect_adbc(path)
        weakref.finalize(self, self._database.close)

    def columns(self, table: str) -> frozenset[str]:
        return frozenset(self._layouts[table].positions) if table in self._layouts else frozenset()

    def has_rows(self, table: str) -> bool:
        return any(read_batches(self._database, {"one": "1"}, {}, f'"{table}" LIMIT 1', 1))

    def rows(self, table: str) -> int:
        # count(*) reads the whole table; the last rowid is one look-up
        try:
            (batch,) = read_batches(self._database, {"last": "ifnull(max(rowid), 0)"}, {}, f'"{table}"', 1)
        except adbc_driver_manager.Error:  # a table WITHOUT ROWID, or damage, which shows again
            (batch,) = read_batches(self._database, {"last": "count(*)"}, {}, f'"{table}"', 1)
        return max(0, int(batch["last"][0].as_py()))

    def read(
        self, table: str, integers: Sequence[str], texts: Sequence[str] = (), only: RowFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        source = f'"{table}"'
        if not texts:
            seen = 0
            try:
                for rows, batch in self._plain(table, integers, only):
                    seen += rows
                    if batch.num_rows:
                        yield batch
                return
            except UnsupportedTable:
                source = f"(SELECT * FROM {source} LIMIT -1 OFFSET {seen})" if seen else source
        for restricted in _restricted(source, only):
            yield from read_batches(
                self._database,
                quote_columns(integers),
                quote_columns(texts),
                restricted,
                TEXT_BATCH_ROWS if texts else BATCH_ROWS,
                self.no_integers,
            )

    def _plain(
        self, table: str, integers: Sequence[str], only: RowFilter | None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the number of rows read and those kept. Raise `UnsupportedTable`, maybe after some rows."""
        layout = self._layouts[table]
        names = list(dict.fromkeys([*integers, *([only.column] if only else [])]))
        if layout.keys.intersection(names):
            raise UnsupportedTable  # it may be the rowid, which is not stored as a column
        positions = [layout.positions[name] for name in names]
        for columns in read_integer_columns(self.path, layout.root, len(layout.positions), positions):
            arrays = {
                name: pa.array(column.values, mask=column.is_null) for name, column in zip(names, columns, strict=True)
            }
            batch = pa.RecordBatch.from_arrays([arrays[name] for name in integers], list(integers))
            if only is not None:
                is_kept = pc.is_in(arrays[only.column], value_set=pa.array(only.values, pa.int64()))
                batch = batch if is_kept.true_count == len(batch) else batch.filter(is_kept)
            yield len(columns[0].values), batch


def _restricted(source: str, only: RowFilter | None) -> Iterator[str]:
    if only is None:
        yield source
        return
    for first in range(0, len(only.values), _VALUES_A_QUERY):
        values = only.values[first : first + _VALUES_A_QUERY]
        yield f'{source} WHERE "{only.column}" IN ({", ".join(str(int(value)) for value in values)})'
