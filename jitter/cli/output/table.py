"""A table of an answer to stdout or a file, in the form asked for."""

import csv
import io
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitter.cli.output.files import check_overwrite, write_text
from jitter.core.errors import UsageError
from jitter.core.files import atomic_file

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_SCHEMA_VERSION = 1
_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
_CELLS_AT_ONCE = 1 << 17
"""Put into lines together: memory for more would be fresh each time, which costs more than to touch it again."""
PARQUET_METADATA = {b"jitter": b"table"}
"""Metadata by which a parquet file is known to be ours."""
NEVER = b"\0 parquet tells by its metadata, not by its beginning"


def write_table(rows: "pa.Table", form: str | None, output: Path | None, force: bool) -> None:
    """Write rows as csv (fractions to 3 decimals, null an empty cell), json or parquet; parquet to a file only.

    Raises `UsageError` for a file that is not ours and for parquet on a terminal.
    """
    form = choose_format(form, output) or "csv"
    if form == "parquet":
        _write_parquet(rows, output, force)
        return
    text = _as_json(rows) if form == "json" else _as_csv(rows)
    if output is None:
        sys.stdout.write(text)
        return
    # the names of 960 ranks make a long heading: its beginning is enough to know it by
    heading = text[: text.find("\n")].encode()[:64] if form == "csv" else b'"schema_version"'
    check_overwrite(output, force, heading)
    write_text(output, text)


def choose_format(form: str | None, output: Path | None) -> str | None:
    """The form asked for, or that of the file's suffix, if it tells any."""
    return form or (_SUFFIXES.get(output.suffix.lower()) if output is not None else None)


def is_jitter_parquet(path: Path) -> bool:
    """Whether this is a parquet file that jitter wrote."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return path.is_file() and PARQUET_METADATA.items() <= (pq.read_schema(path).metadata or {}).items()
    except (OSError, pa.ArrowInvalid):
        return False


def _as_csv(rows: "pa.Table") -> str:
    heading = ",".join(map(_quoted, rows.column_names)) + "\n"
    height = max(1, _CELLS_AT_ONCE // max(1, rows.num_columns))
    blocks = (rows.slice(first, height) for first in range(0, rows.num_rows, height))
    return heading + "".join(line for block in blocks for line in _lines(block))


def _lines(rows: "pa.Table") -> Iterator[str]:
    """A line a row, all by one template: a large table is nearly all numbers, and `csv` would look at each of them."""
    empty = '""' if rows.num_columns == 1 else ""  # a line of nothing would be no row
    columns = [_cells(column, empty) for column in rows.columns]
    template = ",".join(form for form, _ in columns) + "\n"
    return map(template.__mod__, zip(*(cells for _, cells in columns), strict=True))


def _cells(column: "pa.ChunkedArray", empty: str) -> tuple[str, list[Any]]:
    """A column's values, and how each is put into a line."""
    import pyarrow as pa

    values = _values(column)
    if pa.types.is_floating(column.type):
        return ("%s", [empty if v is None else f"{v:.3f}" for v in values]) if column.null_count else ("%.3f", values)
    if pa.types.is_integer(column.type) and not column.null_count:
        return "%d", values
    return "%s", [empty if v is None or v == "" else _quoted(str(v)) for v in values]


@lru_cache(maxsize=1 << 16)
def _quoted(text: str) -> str:
    """Put a text as csv has it."""
    cell = io.StringIO()
    csv.writer(cell, lineterminator="\n").writerow([text])
    return cell.getvalue()[:-1]


def _as_json(rows: "pa.Table") -> str:
    import msgspec
    import pyarrow as pa

    columns = []
    for column in rows.columns:
        values = _values(column)
        if pa.types.is_floating(column.type):
            values = [None if value is None else round(value, 3) for value in values]
        columns.append(values)
    told = [dict(zip(rows.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
    text = msgspec.json.encode({"schema_version": TABLE_SCHEMA_VERSION, "rows": told})
    return msgspec.json.format(text, indent=1).decode() + "\n"


def _values(column: "pa.ChunkedArray") -> list[Any]:
    import pyarrow as pa

    from jitter.core.arrow import to_numpy

    is_number = pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
    if column.null_count or not is_number:
        values: list[Any] = column.to_pylist()
    else:
        values = to_numpy(column).tolist()  # several times as fast
    return values


def _write_parquet(rows: "pa.Table", output: Path | None, force: bool) -> None:
    import pyarrow.parquet as pq

    table = rows.replace_schema_metadata(PARQUET_METADATA)
    if output is not None:
        check_overwrite(output, force or is_jitter_parquet(output), NEVER)
        with atomic_file(output) as half, half.open("wb") as file:
            pq.write_table(table, file)
    elif sys.stdout.isatty():
        raise UsageError("parquet is not for a terminal", "give -o FILE.parquet")
    else:
        pq.write_table(table, sys.stdout.buffer)
