"""A table of an answer to stdout or a file, in the form asked for."""

import csv
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jitter.cli.output import check_target, write_whole
from jitter.errors import UsageError
from jitter.whole_file import whole_file

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1
_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
PARQUET_MARK = {b"jitter": b"table"}
"""Metadata by which a parquet file is known to be ours."""
NEVER = b"\0 parquet tells by its metadata, not by its beginning"


def write_table(rows: "pa.Table", form: str | None, output: Path | None, force: bool) -> None:
    """Write rows as csv (fractions to 3 decimals, null an empty cell), json or parquet; parquet to a file only.

    Raises `UsageError` for a file that is not ours and for parquet on a terminal.
    """
    form = form_of(form, output) or "csv"
    if form == "parquet":
        _write_parquet(rows, output, force)
        return
    text = _as_json(rows) if form == "json" else _as_csv(rows)
    if output is None:
        sys.stdout.write(text)
        return
    # the names of 960 ranks make a long heading: its beginning is enough to know it by
    heading = text[: text.find("\n")].encode()[:64] if form == "csv" else b'"schema_version"'
    check_target(output, force, heading)
    write_whole(output, text)


def form_of(form: str | None, output: Path | None) -> str | None:
    """The form asked for, or that of the file's suffix, if it tells any."""
    return form or (_SUFFIXES.get(output.suffix.lower()) if output is not None else None)


def is_our_parquet(path: Path) -> bool:
    """Whether this is a parquet file that jitter wrote."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return path.is_file() and PARQUET_MARK.items() <= (pq.read_schema(path).metadata or {}).items()
    except (OSError, pa.ArrowInvalid):
        return False


def _as_csv(rows: "pa.Table") -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows.column_names)
    writer.writerows(zip(*(_values(column, "%.3f".__mod__) for column in rows.columns), strict=True))
    return text.getvalue()


def _as_json(rows: "pa.Table") -> str:
    import msgspec

    columns = (_values(column, lambda value: round(value, 3)) for column in rows.columns)
    told = [dict(zip(rows.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
    text = msgspec.json.encode({"schema_version": SCHEMA_VERSION, "rows": told})
    return msgspec.json.format(text, indent=1).decode() + "\n"


def _values(column: "pa.ChunkedArray", fraction: Callable[[float], Any]) -> list[Any]:
    """A column's values, fractions put as told."""
    import pyarrow as pa

    from jitter.buffers import numbers

    is_fraction = pa.types.is_floating(column.type)
    if column.null_count or not (is_fraction or pa.types.is_integer(column.type)):
        values: list[Any] = column.to_pylist()
        return [None if value is None else fraction(value) for value in values] if is_fraction else values
    values = numbers(column).tolist()  # several times as fast: a large table is all numbers
    return list(map(fraction, values)) if is_fraction else values


def _write_parquet(rows: "pa.Table", output: Path | None, force: bool) -> None:
    import pyarrow.parquet as pq

    table = rows.replace_schema_metadata(PARQUET_MARK)
    if output is not None:
        check_target(output, force or is_our_parquet(output), NEVER)
        with whole_file(output) as half, half.open("wb") as file:
            pq.write_table(table, file)
    elif sys.stdout.isatty():
        raise UsageError("parquet is not for a terminal", "give -o FILE.parquet")
    else:
        pq.write_table(table, sys.stdout.buffer)
