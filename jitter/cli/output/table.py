"""Write a table to stdout or a file as csv, json or parquet."""

import csv
import io
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jitter.core.errors import UsageError
from jitter.core.files import atomic_file, check_overwrite, write_text
from jitter.core.formatting import csv_text, json_text

if TYPE_CHECKING:
    import pyarrow as pa

TABLE_SCHEMA_VERSION = 1
_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
MAX_TEXT_ROWS: Final = 1000
"""Rows of a table on a terminal."""
ONLY_FIRST_ROWS: Final = f"only the first {MAX_TEXT_ROWS} rows are shown (for all: --format csv)"
_CELLS_AT_ONCE = 1 << 17
"""Cells formatted at once: larger blocks allocate new memory each time, which is slower."""
PARQUET_METADATA = {b"jitter": b"table"}
"""Metadata of every parquet file that jitter writes; identifies the file as its own."""


def write_table(rows: "pa.Table", form: str | None, output: Path | None, force: bool) -> None:
    """Write rows as csv (fractions to 3 decimals, null an empty cell), json or parquet; on a terminal print them.

    Raises `UsageError` for a file that jitter did not write, and for parquet on a terminal.
    """
    form = choose_format(form, output)
    if form is None and output is None and sys.stdout.isatty():
        from jitter.cli.output.terminal_table import print_table

        print_table(rows)
        return
    form = form or "csv"
    if form == "parquet":
        _write_parquet(rows, output, force)
        return
    text = _as_json(rows) if form == "json" else _as_csv(rows)
    if output is None:
        sys.stdout.write(text)
        return
    # the first bytes suffice as a signature: the heading of 960 ranks is long
    heading = text[: text.find("\n")].encode()[:64] if form == "csv" else b'"schema_version"'
    check_overwrite(output, force, heading)
    write_text(output, text)


def choose_format(form: str | None, output: Path | None) -> str | None:
    """Return the given form, or the form of the file's suffix; None if neither states one."""
    return form or (_SUFFIXES.get(output.suffix.lower()) if output is not None else None)


def is_jitter_parquet(path: Path) -> bool:
    """Return whether a file is a parquet file that jitter wrote."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return path.is_file() and PARQUET_METADATA.items() <= (pq.read_schema(path).metadata or {}).items()
    except (OSError, pa.ArrowInvalid):
        return False


def _as_csv(rows: "pa.Table") -> str:
    heading = ",".join(_quoted(csv_text(name)) for name in rows.column_names) + "\n"
    height = max(1, _CELLS_AT_ONCE // max(1, rows.num_columns))
    blocks = (rows.slice(first, height) for first in range(0, rows.num_rows, height))
    return heading + "".join(line for block in blocks for line in _lines(block))


def _lines(rows: "pa.Table") -> Iterator[str]:
    """Yield one line per row from one template: the csv module would check every number for quotes."""
    empty = '""' if rows.num_columns == 1 else ""  # an empty line would not be a row
    columns = [_cells(column, empty) for column in rows.columns]
    template = ",".join(form for form, _ in columns) + "\n"
    return map(template.__mod__, zip(*(cells for _, cells in columns), strict=True))


def _cells(column: "pa.ChunkedArray", empty: str) -> tuple[str, list[Any]]:
    """Return the format of a column's cells, and its values."""
    import pyarrow as pa

    values = _values(column)
    if pa.types.is_floating(column.type):
        return ("%s", [empty if v is None else f"{v:.3f}" for v in values]) if column.null_count else ("%.3f", values)
    if pa.types.is_integer(column.type) and not column.null_count:
        return "%d", values
    return "%s", [empty if v is None or v == "" else _quoted(_text(v)) for v in values]


def _text(value: Any) -> str:
    return csv_text(value) if isinstance(value, str) else str(value)


@lru_cache(maxsize=1 << 16)
def _quoted(text: str) -> str:
    """Quote a text as csv does."""
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
    records = [dict(zip(rows.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
    text = msgspec.json.encode({"schema_version": TABLE_SCHEMA_VERSION, "rows": records})
    return json_text(msgspec.json.format(text, indent=1).decode()) + "\n"


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
        check_overwrite(output, force or is_jitter_parquet(output), None)
        with atomic_file(output) as half, half.open("wb") as file:
            pq.write_table(table, file)
    elif sys.stdout.isatty():
        raise UsageError("parquet cannot go to a terminal", "give -o FILE.parquet")
    else:
        pq.write_table(table, sys.stdout.buffer)
