"""SQLite databases as a source: their tables, and typed Arrow batches of SQL expressions; nothing is written."""

import shlex
import sqlite3
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import adbc_driver_manager
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import map_distinct
from jitter.core.errors import UnreadableTraceError
from jitter.core.formatting import format_count
from jitter.readers import first_line
from jitter.readers.columns import ColumnMap, Progress, complete_columns

DAMAGE: Final = (sqlite3.Error, adbc_driver_manager.Error, pa.ArrowException, OSError, UnicodeDecodeError)
"""Errors of the libraries for a damaged database; sqlite3 raises the last for names that are not UTF-8."""
_VALUES_PER_QUERY: Final = 5_000
"""Values that a query lists at most."""
_HEADER_BYTES: Final = 100
_MAGIC: Final = b"SQLite format 3\x00"


def is_sqlite(path: Path) -> bool:
    """Return whether the file starts with SQLite's magic number. Raises OSError if it cannot be opened."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def connect(path: Path) -> sqlite3.Connection:
    """Return a read-only connection for small queries; invalid UTF-8 in texts is replaced."""
    connection = sqlite3.connect(_uri(path), uri=True)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    return connection


def where_in(column: str, values: Iterable[int]) -> list[str]:
    """Return the conditions of queries that together select the rows with one of these values in a column."""
    texts = list(map(str, values))
    parts = (texts[first : first + _VALUES_PER_QUERY] for first in range(0, len(texts), _VALUES_PER_QUERY))
    return [f' WHERE "{column}" IN ({", ".join(part)})' for part in parts]


def list_tables(path: Path) -> dict[str, frozenset[str]]:
    """Return the columns of each table and view. Raises an error of `DAMAGE` if they cannot be listed."""
    tables: dict[str, frozenset[str]] = {}
    with closing(connect(path)) as connection:
        listed = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        for (table,) in connection.execute(listed).fetchall():
            tables[table] = frozenset()
            with suppress(sqlite3.Error):  # a view with functions that this SQLite lacks
                columns = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
                tables[table] = frozenset(name for (name,) in columns)
    return tables


def sniff_tables(path: Path) -> dict[str, frozenset[str]]:
    """Return `list_tables` of a database, whatever its suffix; empty for other and for damaged files."""
    try:
        if path.is_file() and is_sqlite(path):
            return list_tables(path)
    except DAMAGE:
        pass
    return {}


class Database:
    """A database, opened for reading. All methods raise UnreadableTraceError for a damaged one."""

    what = "database"
    """The kind of file, in messages."""
    if_damaged = "copy it again, or record again"
    if_unfinished = "let the profiler finish, or record again"

    def __init__(self, path: Path) -> None:
        """List the tables. Raises UnreadableTraceError for a truncated, an unfinished or a UTF-16 database."""
        self.path = path
        for suffix in ("-wal", "-journal"):  # of a writer that has not ended; reading it would write next to the file
            rest = path.with_name(path.name + suffix)
            if rest.exists() and rest.stat().st_size:
                what = f"{path}: still being written, or its writer was stopped ({rest.name} is not empty)"
                raise UnreadableTraceError(what, self.if_unfinished)
        try:
            self.size = path.stat().st_size
            """Bytes of the file."""
            with path.open("rb") as file:
                header = file.read(_HEADER_BYTES)
            if int.from_bytes(header[56:60], "big") in (2, 3):
                raise UnreadableTraceError(
                    f"{path}: a UTF-16 database, which jitter does not read",
                    f"convert it: sqlite3 {shlex.quote(str(path))} .dump | sqlite3 converted{path.suffix}",
                )
            whole = _whole_size(header)
            if self.size < whole:
                # SQLite itself fills a truncated last page with zeros and reads rows of NULLs from it
                raise OSError(f"{self.size:,} of {whole:,} bytes")
            self.tables = list_tables(path)
        except DAMAGE as error:
            raise self.damaged(error) from error
        self.no_integers: Counter[str] = Counter()
        """Number of values read so far that should be integers and state none, by column."""
        self._progress: Progress | None = None

    def report(self, progress: Progress, rows: int) -> None:
        """Report the rows that are streamed from now on, about `rows` in all."""
        progress.expect(rows)
        self._progress = progress

    def has(self, table: str, *columns: str) -> bool:
        """Return whether the table exists with these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def count(self, table: str) -> int:
        """Return the approximate number of rows, for progress, without reading the table."""
        try:
            rows = self.rows(f'SELECT max(rowid) FROM "{table}"')
        except UnreadableTraceError:  # a table WITHOUT ROWID or a view, or damage, which shows again
            rows = []
        if not rows or not isinstance(rows[0][0], int):
            rows = self.rows(f'SELECT count(*) FROM (SELECT 1 FROM "{table}")')
        return max(0, int(rows[0][0]))

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return all rows of a small query."""
        try:
            with closing(connect(self.path)) as connection:
                return connection.execute(query, values).fetchall()
        except DAMAGE as error:
            raise self.damaged(error) from error

    def read_table(self, table: str, columns: ColumnMap, rows: int, where: str = "") -> Iterator[pa.RecordBatch]:
        """Yield columns of a table as `stream` does, null where it lacks them; nothing if there is no such table."""
        if table in self.tables:
            expressions = {name: f'"{name}"' for name in self.tables[table]}
            yield from self.stream(*columns.select(expressions), f'"{table}"{where}', rows)

    def stream(
        self, integers: Mapping[str, str | None], texts: Mapping[str, str | None], source: str, rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of at most `rows` rows: `integers` as int64, `texts` as binary, null where unknown.

        Both map column names to SQL expressions, or to None for a column of nulls; `source` is the SQL after FROM. Rows
        of nulls alone are none.
        Values among the integers that are of another type and state no integer are null, and counted.
        """
        stated = _stated(integers), _stated(texts)
        if not any(stated):
            return
        try:
            for batch in self._stream(*stated, source, rows):
                yield complete_columns(batch, integers, texts)
                if self._progress is not None:
                    self._progress.rows(batch.num_rows)
        except DAMAGE as error:
            raise self.damaged(error) from error

    def problems(self) -> list[str]:
        """Return a sentence about values read so far that should be integers and state none, if there are any."""
        return describe_no_integers(self.no_integers)

    def damaged(self, error: BaseException) -> UnreadableTraceError:
        """Return the error for a database that a library could not read."""
        return damage_error(self.path, error, self.what, self.if_damaged)

    def _stream(
        self, integers: Mapping[str, str], texts: Mapping[str, str], source: str, rows: int
    ) -> Iterator[pa.RecordBatch]:
        # texts are bytes because ADBC does not check UTF-8, and never NULL because ADBC makes a column that starts
        # with NULLs one of integers
        columns = [f"CAST(ifnull({expression}, '') AS BLOB), {expression} IS NULL" for expression in texts.values()]
        done = 0
        # nearly always all values are integers, and reading them as they are takes half the time; ADBC raises an error
        # for a value that is not of the type of its column's first ones
        with suppress(*DAMAGE):
            for batch in self._query([*integers.values(), *columns], source, rows):
                if any(kind != pa.int64() for kind in batch.schema.types[: len(integers)]):
                    break
                done += batch.num_rows
                yield _with_texts(batch.columns[: len(integers)], batch, integers, texts)
            else:
                return
        numbers = [f"CAST({expression} AS INTEGER)" for expression in integers.values()]
        # a value that states no integer differs from what the cast makes of it: zero, or the nearest integer
        differ = [f"((({expression}) <> CAST({expression} AS INTEGER)) IS TRUE)" for expression in integers.values()]
        for batch in self._query([*numbers, *columns, *differ], f"{source} LIMIT -1 OFFSET {done}", rows):
            arrays = [column.cast(pa.int64()) for column in batch.columns[: len(integers)]]
            others = batch.columns[batch.num_columns - len(integers) :]
            for position, (name, is_other) in enumerate(zip(integers, others, strict=True)):
                if count := pc.sum(is_other).as_py():
                    self.no_integers[name] += count
                    arrays[position] = pc.if_else(is_other.cast(pa.bool_()), None, arrays[position])
            yield _with_texts(arrays, batch, integers, texts)

    def _query(self, columns: Sequence[str], source: str, rows: int) -> Iterator[pa.RecordBatch]:
        with self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
            cursor.execute(f"SELECT {', '.join(columns)} FROM {source}")
            with cursor.fetch_record_batch() as reader:
                yield from (batch for batch in reader if batch.num_rows)

    @cached_property
    def _connection(self) -> Any:
        """One connection for all tables: many are small."""
        from adbc_driver_sqlite import dbapi  # imported here: the import is slow, and most recordings do not need it

        connection = dbapi.connect(_uri(self.path), autocommit=True)
        weakref.finalize(self, connection.close)
        return connection


class StringTable:
    """The strings of a table with the columns `id` and `string`, cached: names of calls and kernels are few."""

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table = table
        self._known: dict[int | None, str] = {None: ""}

    def texts(self, ids: pa.Array) -> pa.Array:
        """Return the strings of ids; "" where the id is null or absent."""
        for condition in where_in("id", (id_ for id_ in ids.unique().to_pylist() if id_ not in self._known)):
            rows = self._database.rows(f'SELECT id, "string" FROM "{self._table}"{condition}')
            self._known |= {id_: str(text or "") for id_, text in rows}
        return map_distinct(ids, lambda id_: self._known.get(id_, ""), pa.string())


def _with_texts(
    arrays: Sequence[pa.Array], batch: pa.RecordBatch, integers: Mapping[str, str], texts: Mapping[str, str]
) -> pa.RecordBatch:
    """Return a batch of the integers in `arrays` and the texts, whose values and nulls follow them in `batch`."""
    text_columns = []
    for position in range(len(integers), len(integers) + 2 * len(texts), 2):
        is_null = batch.column(position + 1).cast(pa.bool_())
        text_columns.append(pc.if_else(is_null, None, batch.column(position).cast(pa.binary())))
    return pa.RecordBatch.from_arrays([*arrays, *text_columns], [*integers, *texts])


def damage_error(path: Path, error: BaseException, what: str, hint: str) -> UnreadableTraceError:
    """Return the error for a file or folder that a library could not read; `what` names its kind."""
    if isinstance(error, OSError) and error.strerror:
        return UnreadableTraceError(f"{path}: cannot be read ({error.strerror})", "check the path and its permissions")
    return UnreadableTraceError(f"{path}: the {what} is damaged or cut short ({first_line(error)})", hint)


def describe_no_integers(counts: Mapping[str, int]) -> list[str]:
    """Return a sentence about values that are unknown because they state no integer, if there are any."""
    columns = ", ".join(sorted(name for name, count in counts.items() if count))
    total = format_count(sum(counts.values()), "value is", "values are")
    return [f"{total} unknown, because no integer stands there ({columns})"] if columns else []


def _stated(columns: Mapping[str, str | None]) -> dict[str, str]:
    return {name: expression for name, expression in columns.items() if expression is not None}


def _whole_size(header: bytes) -> int:
    """Return the size in bytes that a database's header states; 0 if it states none."""
    if len(header) < _HEADER_BYTES or header[24:28] != header[92:96]:
        return 0
    page_size = int.from_bytes(header[16:18], "big")
    return int.from_bytes(header[28:32], "big") * (65_536 if page_size == 1 else page_size)


def _uri(path: Path) -> str:
    # immutable: no lock, no -shm, no recovery; as_uri quotes blanks, #, ? and %
    return f"{path.absolute().as_uri()}?mode=ro&immutable=1"
