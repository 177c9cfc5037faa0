"""SQLite files read in typed Arrow batches; no file is written next to them."""

import shlex
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

import adbc_driver_manager
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.errors import UnreadableTraceError
from jitter.core.formatting import format_count

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

DAMAGE: Final = (sqlite3.Error, adbc_driver_manager.Error, pa.ArrowException, OSError, UnicodeDecodeError)
"""Errors of the libraries for a damaged database; sqlite3 raises the last for names that are not UTF-8."""
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


def reject_unfinished(path: Path, hint: str) -> None:
    """Raise UnreadableTraceError if a log of an unfinished writer exists; reading it would write next to the file."""
    for suffix in ("-wal", "-journal"):
        rest = path.with_name(path.name + suffix)
        if rest.exists() and rest.stat().st_size:
            raise UnreadableTraceError(
                f"{path}: still being written, or its writer was stopped ({rest.name} is not empty)", hint
            )


def reject_utf16(path: Path) -> None:
    """Raise UnreadableTraceError for a database whose text encoding is UTF-16; profilers write UTF-8."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if int.from_bytes(header[56:60], "big") in (2, 3):
        raise UnreadableTraceError(
            f"{path}: a UTF-16 database, which jitter does not read",
            f"convert it: sqlite3 {shlex.quote(str(path))} .dump | sqlite3 converted{path.suffix}",
        )


def truncation(path: Path) -> EOFError | None:
    """Return what a database lacks that is shorter than its header states; None for a complete one.

    SQLite itself fills a truncated last page with zeros and reads rows of NULLs from it.
    """
    size, whole = path.stat().st_size, _whole_size(path)
    return EOFError(f"{size:,} of {whole:,} bytes") if size < whole else None


def connect_adbc(path: Path) -> "Connection":
    """Return an ADBC connection for `read_batches`; the caller closes it."""
    from adbc_driver_sqlite import dbapi  # imported here: the import is slow, and most recordings do not need it

    return dbapi.connect(_uri(path), autocommit=True)


def read_batches(
    database: "Path | Connection",
    integers: dict[str, str],
    texts: dict[str, str],
    source: str,
    rows: int,
    no_integers: Counter[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield batches of at most `rows` rows: `integers` as int64, `texts` as binary, null where unknown.

    `integers` and `texts` map column names to SQL expressions; `source` is the SQL after FROM. Values among the
    integers that are of another type and state no integer are null, and counted by column name in `no_integers`.
    Raises the errors of sqlite3, ADBC and Arrow for a damaged file.
    """
    # casts fix the types, which ADBC takes from its first batch; texts are bytes because ADBC does not check UTF-8,
    # and never NULL because ADBC makes a column that starts with NULLs one of integers
    columns = [f"CAST({one} AS INTEGER)" for one in integers.values()]
    # a value that states no integer differs from what the cast makes of it: zero, or the nearest integer
    differ = [f"((({one}) <> CAST({one} AS INTEGER)) IS TRUE) << {bit}" for bit, one in enumerate(integers.values())]
    columns.append(" | ".join(["0", *(f"({one})" for one in differ)]))
    columns += [f"CAST(ifnull({one}, '') AS BLOB), {one} IS NULL" for one in texts.values()]
    names = [*integers, *texts]
    for batch in _batches(database, f"SELECT {', '.join(columns)} FROM {source}", rows):
        arrays = [column.cast(pa.int64()) for column in batch.columns[: len(integers)]]
        bits = batch.column(len(integers)).cast(pa.int64()).to_numpy()
        for bit, name in enumerate(integers) if bits.any() else ():
            is_other = bits >> bit & 1 != 0
            arrays[bit] = pc.if_else(pa.array(is_other), pa.scalar(None, pa.int64()), arrays[bit])
            if no_integers is not None:
                no_integers[name] += int(is_other.sum())
        for position in range(len(integers) + 1, batch.num_columns, 2):
            is_null = batch.column(position + 1).cast(pa.bool_())
            arrays.append(pc.if_else(is_null, None, batch.column(position).cast(pa.binary())))
        yield pa.RecordBatch.from_arrays(arrays, names)


def describe_no_integers(counts: Mapping[str, int]) -> list[str]:
    """Return a sentence about values that are unknown because they state no integer, if there are any."""
    columns = ", ".join(sorted(name for name, count in counts.items() if count))
    total = format_count(sum(counts.values()), "value is", "values are")
    return [f"{total} unknown, because no integer stands there ({columns})"] if columns else []


def quote_columns(names: Sequence[str]) -> dict[str, str]:
    """Return quoted SQL expressions that read columns under their own names."""
    return {name: f'"{name}"' for name in names}


def _batches(database: "Path | Connection", query: str, rows: int) -> Iterator[pa.RecordBatch]:
    opened = connect_adbc(database) if isinstance(database, Path) else nullcontext(database)
    with opened as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
        cursor.execute(query)
        with cursor.fetch_record_batch() as reader:
            yield from (batch for batch in reader if batch.num_rows)


def _whole_size(path: Path) -> int:
    """Return the size in bytes that the header states; 0 if it states none."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES or header[24:28] != header[92:96]:
        return 0
    page_size = int.from_bytes(header[16:18], "big")
    return int.from_bytes(header[28:32], "big") * (65_536 if page_size == 1 else page_size)


def _uri(path: Path) -> str:
    # immutable: no lock, no -shm, no recovery; as_uri quotes blanks, #, ? and %
    return f"{path.absolute().as_uri()}?mode=ro&immutable=1"
