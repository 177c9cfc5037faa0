"""SQLite databases of AMD's profilers, streamed without a write anywhere near the file."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import adbc_driver_manager
import pyarrow as pa
import pyarrow.compute as pc

from jitter.errors import UnreadableTraceError
from jitter.readers.rocprof_rows import BATCH_ROWS

_MAGIC: Final = b"SQLite format 3\x00"
DAMAGE: Final = (sqlite3.Error, adbc_driver_manager.Error, pa.ArrowException, OSError)
"""What the libraries raise where a database is damaged."""


def tables_of(path: Path) -> dict[str, frozenset[str]]:
    """The columns of each table and view; empty for a file that is no database or too damaged to list them."""
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return {}
        found: dict[str, set[str]] = {}
        with closing(_connect(path)) as connection:
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
        for suffix in ("-wal", "-journal"):
            rest = path.with_name(path.name + suffix)
            # reading it would mean to recover it, that is, to write beside the user's file
            if rest.exists() and rest.stat().st_size:
                raise UnreadableTraceError(
                    f"{path}: still being written, or its writer was stopped ({rest.name} is not empty)",
                    "let the profiler finish, or record again",
                )
        whole = _whole_size(path)
        if self.size < whole:
            raise self.damaged(EOFError(f"{self.size:,} of {whole:,} bytes"))
        self.tables = tables_of(path)

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
            with closing(_connect(self.path)) as connection:
                return connection.execute(query, values).fetchall()
        except DAMAGE as error:
            raise self.damaged(error) from error

    def stream(
        self, integers: dict[str, str], texts: dict[str, str], source: str, rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Batches of these expressions under their names: int64 and binary, null where unknown.

        `source` is what stands behind FROM. Raises UnreadableTraceError where the database is damaged.
        """
        # the casts fix the columns' types, which ADBC takes from its first batch; a text goes as bytes, for ADBC
        # does not check UTF-8, and never as NULL, for a column that begins with NULLs becomes one of integers
        columns = [f"CAST({expression} AS INTEGER)" for expression in integers.values()]
        columns += [f"CAST(ifnull({one}, '') AS BLOB), {one} IS NULL" for one in texts.values()]
        names = [*integers, *texts]
        batches = self._read(f"SELECT {', '.join(columns)} FROM {source}", rows)
        while True:
            try:
                batch = next(batches, None)
            except DAMAGE as error:
                raise self.damaged(error) from error
            if batch is None:
                return
            arrays = [column.cast(pa.int64()) for column in batch.columns[: len(integers)]]
            for position in range(len(integers), batch.num_columns, 2):
                is_null = batch.column(position + 1).cast(pa.bool_())
                arrays.append(pc.if_else(is_null, None, batch.column(position).cast(pa.binary())))
            yield pa.RecordBatch.from_arrays(arrays, names)

    def damaged(self, error: BaseException) -> UnreadableTraceError:
        """What to tell a person when a library could not read on."""
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        return UnreadableTraceError(
            f"{self.path}: the database is damaged or cut short ({reason})", "copy it again, or record again"
        )

    def _read(self, query: str, rows: int) -> Iterator[pa.RecordBatch]:
        from adbc_driver_sqlite import dbapi  # loaded only where a database is read: it takes a while

        with dbapi.connect(_uri(self.path), autocommit=True) as connection, connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
            cursor.execute(query)
            with cursor.fetch_record_batch() as reader:
                yield from (batch for batch in reader if batch.num_rows)


class Share:
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


def quoted(names: Sequence[str]) -> dict[str, str]:
    """Columns that are read under their own names, for `Database.stream`."""
    return {name: f'"{name}"' for name in names}


def _whole_size(path: Path) -> int:
    """How long the file is by its own header, in bytes; 0 if the header does not say."""
    with path.open("rb") as file:
        header = file.read(100)
    if len(header) < 100 or header[24:28] != header[92:96]:
        return 0
    page_size = int.from_bytes(header[16:18], "big")
    return int.from_bytes(header[28:32], "big") * (65_536 if page_size == 1 else page_size)


def _uri(path: Path) -> str:
    # immutable: no lock, no -shm, no recovery; as_uri quotes blanks, #, ? and %
    return f"{path.absolute().as_uri()}?mode=ro&immutable=1"


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(_uri(path), uri=True)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    return connection
