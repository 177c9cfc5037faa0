"""SQLite files of whatever profiler, read in typed batches and without a write anywhere near them."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.errors import UnreadableTraceError

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

_MAGIC: Final = b"SQLite format 3\x00"


def is_sqlite(path: Path) -> bool:
    """Whether the file begins as a database does; raises OSError if it cannot be opened."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def connect(path: Path) -> sqlite3.Connection:
    """Open for small queries; text that is not UTF-8 is replaced."""
    connection = sqlite3.connect(_uri(path), uri=True)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    return connection


def reject_unfinished(path: Path, hint: str) -> None:
    """Raise UnreadableTraceError if its writer left a log beside it: reading that would mean to write there."""
    for suffix in ("-wal", "-journal"):
        rest = path.with_name(path.name + suffix)
        if rest.exists() and rest.stat().st_size:
            raise UnreadableTraceError(
                f"{path}: still being written, or its writer was stopped ({rest.name} is not empty)", hint
            )


def truncation(path: Path) -> EOFError | None:
    """What is missing of a database that is shorter than its own header says; None for a whole one.

    SQLite itself fills a last page that is cut with zeros, and reads rows of NULLs from it.
    """
    size, whole = path.stat().st_size, _whole_size(path)
    return EOFError(f"{size:,} of {whole:,} bytes") if size < whole else None


def connect_adbc(path: Path) -> "Connection":
    """Open for `read_batches`; to be closed."""
    from adbc_driver_sqlite import dbapi  # loaded only where a database is read: it takes a while

    return dbapi.connect(_uri(path), autocommit=True)


def read_batches(
    database: "Path | Connection", integers: dict[str, str], texts: dict[str, str], source: str, rows: int
) -> Iterator[pa.RecordBatch]:
    """Batches of these expressions under their names: int64 and binary, null where unknown.

    `source` is what stands behind FROM. Raises what sqlite3, ADBC and Arrow raise of a damaged file.
    """
    # the casts fix the columns' types, which ADBC takes from its first batch; a text goes as bytes, for ADBC
    # does not check UTF-8, and never as NULL, for a column that begins with NULLs becomes one of integers
    columns = [f"CAST({expression} AS INTEGER)" for expression in integers.values()]
    columns += [f"CAST(ifnull({one}, '') AS BLOB), {one} IS NULL" for one in texts.values()]
    names = [*integers, *texts]
    for batch in _batches(database, f"SELECT {', '.join(columns)} FROM {source}", rows):
        arrays = [column.cast(pa.int64()) for column in batch.columns[: len(integers)]]
        for position in range(len(integers), batch.num_columns, 2):
            is_null = batch.column(position + 1).cast(pa.bool_())
            arrays.append(pc.if_else(is_null, None, batch.column(position).cast(pa.binary())))
        yield pa.RecordBatch.from_arrays(arrays, names)


def quote_columns(names: Sequence[str]) -> dict[str, str]:
    """Columns that are read under their own names."""
    return {name: f'"{name}"' for name in names}


def _batches(database: "Path | Connection", query: str, rows: int) -> Iterator[pa.RecordBatch]:
    opened = connect_adbc(database) if isinstance(database, Path) else nullcontext(database)
    with opened as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
        cursor.execute(query)
        with cursor.fetch_record_batch() as reader:
            yield from (batch for batch in reader if batch.num_rows)


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
