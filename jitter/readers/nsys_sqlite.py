"""Tables of an Nsight Systems export in SQLite, streamed without a write anywhere near the file."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from jitter.errors import UnreadableTraceError
from jitter.readers.nsys_tables import BATCH_ROWS, TEXT_BATCH_ROWS, Only, damaged, looks_like_nsys

_MAGIC = b"SQLite format 3\x00"
_HEAD_BYTES = 1 << 18
_VALUES_A_QUERY = 10_000


def sniff_sqlite(path: Path) -> bool:
    """Whether the file is such an export, damaged ones included; raises OSError if it cannot be opened."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            return False
    try:
        with closing(_connect(path)) as connection:
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
        for suffix in ("-wal", "-journal"):
            rest = path.with_name(path.name + suffix)
            # reading it would mean to recover it, that is, to write beside the user's file
            if rest.exists() and rest.stat().st_size:
                raise UnreadableTraceError(
                    f"{path}: still being written, or its writer was stopped ({rest.name} is not empty)",
                    "let `nsys export` finish, or export the report again",
                )
        whole = _whole_size(path)
        if self.size < whole:
            # SQLite itself fills a last page that is cut with zeros, and reads rows of NULLs from it
            cut = EOFError(f"{self.size:,} of {whole:,} bytes")
            raise damaged(path, cut, self.export_type)
        self._columns: dict[str, set[str]] = {}
        with closing(_connect(path)) as connection:
            listed = connection.execute(
                """SELECT tables.name, columns.name
                   FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
                   WHERE tables.type = 'table'"""
            )
            for table, column in listed:
                self._columns.setdefault(table, set()).add(column)

    def columns(self, table: str) -> frozenset[str]:
        return frozenset(self._columns.get(table, ()))

    def rows(self, table: str) -> int:
        # count(*) would read the whole table; the last rowid is one look-up
        with closing(_connect(self.path)) as connection:
            (last,) = connection.execute(f'SELECT max(rowid) FROM "{table}"').fetchone()
        return max(0, last) if isinstance(last, int) else 0

    def read(
        self, table: str, integers: Sequence[str], texts: Sequence[str] = (), only: Only | None = None
    ) -> Iterator[pa.RecordBatch]:
        # the casts fix the columns' types, which ADBC takes from its first batch; a text goes as bytes, for ADBC
        # does not check UTF-8, and never as NULL, for a column that begins with NULLs becomes one of integers
        columns = [f'CAST("{name}" AS INTEGER)' for name in integers]
        columns += [f'CAST(ifnull("{name}", \'\') AS BLOB), "{name}" IS NULL' for name in texts]
        select = f'SELECT {", ".join(columns)} FROM "{table}"'
        names = [*integers, *texts]
        for query in _restricted(select, only):
            for batch in _stream(self.path, query, TEXT_BATCH_ROWS if texts else BATCH_ROWS):
                arrays = batch.columns[: len(integers)]
                for position in range(len(integers), batch.num_columns, 2):
                    is_null = batch.column(position + 1).cast(pa.bool_())
                    arrays.append(pc.if_else(is_null, None, batch.column(position).cast(pa.binary())))
                yield pa.RecordBatch.from_arrays(arrays, names)


def _whole_size(path: Path) -> int:
    """How long the file is by its own header, in bytes; 0 if the header does not say."""
    with path.open("rb") as file:
        header = file.read(100)
    if len(header) < 100 or header[24:28] != header[92:96]:
        return 0
    page_size = int.from_bytes(header[16:18], "big")
    return int.from_bytes(header[28:32], "big") * (65_536 if page_size == 1 else page_size)


def _restricted(select: str, only: Only | None) -> Iterator[str]:
    if only is None:
        yield select
        return
    for first in range(0, len(only.values), _VALUES_A_QUERY):
        values = only.values[first : first + _VALUES_A_QUERY]
        yield f'{select} WHERE "{only.column}" IN ({", ".join(str(int(value)) for value in values)})'


def _stream(path: Path, query: str, rows: int) -> Iterator[pa.RecordBatch]:
    from adbc_driver_sqlite import dbapi  # loaded only where an export is read: it takes a while

    with dbapi.connect(_uri(path), autocommit=True) as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
        cursor.execute(query)
        with cursor.fetch_record_batch() as reader:
            yield from (batch for batch in reader if batch.num_rows)


def _uri(path: Path) -> str:
    # immutable: no lock, no -shm, no recovery; as_uri quotes blanks, #, ? and %
    return f"{path.absolute().as_uri()}?mode=ro&immutable=1"


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(_uri(path), uri=True)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    return connection
