"""Write the rows of a query to stdout or a file in batches; the result may be larger than memory."""

import csv
import sys
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from jitter.cli.output.files import check_overwrite
from jitter.cli.output.table import PARQUET_METADATA, TABLE_SCHEMA_VERSION, choose_format, is_jitter_parquet
from jitter.core.errors import UsageError
from jitter.core.files import atomic_file
from jitter.core.formatting import escape_control, guard_formula

if TYPE_CHECKING:
    import pyarrow as pa

    from jitter.query.run_query import QueryResult

_MAX_TEXT_ROWS = 1000


def write_rows(rows: "QueryResult", form: str | None, output: Path | None, force: bool) -> None:
    """Write rows as text, csv, json or parquet; without a form: text on a terminal, else csv.

    Numbers are written in full, null is an empty cell. Raises `UsageError` for a file that jitter did not write, and
    for parquet on a terminal.
    """
    form = choose_format(form, output) or ("text" if output is None and sys.stdout.isatty() else "csv")
    if form == "parquet":
        _to_parquet(rows, output, force)
        return
    write = {"text": _write_text, "csv": _write_csv, "json": _write_json}[form]
    if output is None:
        write(rows, sys.stdout)
        return
    heading = {"json": _JSON_HEAD, "csv": ",".join(rows.schema.names)[:64]}.get(form, "")
    check_overwrite(output, force or (bool(heading) and _begins(output, heading)), None)
    with atomic_file(output) as half, half.open("w", encoding="utf-8", newline="") as file:
        write(rows, file)


def _write_csv(rows: "QueryResult", file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(rows.schema.names)
    for batch in rows:
        columns = [[_csv_cell(value) for value in values] for values in _columns(batch)]
        writer.writerows(zip(*columns, strict=True))


_JSON_HEAD = f'{{"schema_version": {TABLE_SCHEMA_VERSION}, "rows": ['


def _write_json(rows: "QueryResult", file: TextIO) -> None:
    import msgspec

    twice = [name for name, count in Counter(rows.schema.names).items() if count > 1]
    if twice:
        raise UsageError(f"two columns have the name {twice[0]}", "rename one: … AS other_name")
    encode = msgspec.json.Encoder(enc_hook=str).encode
    file.write(_JSON_HEAD)
    before = "\n"
    for batch in rows:
        for row in zip(*_columns(batch), strict=True):
            named = dict(zip(rows.schema.names, map(_number, row), strict=True))
            file.write(before + encode(named).decode())
            before = ",\n"
    file.write("\n]}\n")


def _write_text(rows: "QueryResult", file: TextIO) -> None:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for field in rows.schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        table.add_column(Text(field.name), justify="right" if number else "left", no_wrap=number, overflow="fold")
    for count, cells in enumerate(_lines(rows)):
        if count == _MAX_TEXT_ROWS:
            print(f"only the first {_MAX_TEXT_ROWS} rows are shown (for all: --format csv)", file=sys.stderr)
            break
        # Text, not str: square brackets are not markup. Control characters would command the terminal
        table.add_row(*(Text("".join(char if char.isprintable() else "�" for char in cell)) for cell in cells))
    Console(file=file).print(table)


def _lines(rows: "QueryResult") -> Iterator[tuple[str, ...]]:
    for batch in rows:
        yield from zip(*([_cell(value) for value in values] for values in _columns(batch)), strict=True)


def _columns(batch: "pa.RecordBatch") -> list[list[Any]]:
    """Return each column's values; as text where Python has no such value, such as a date after the year 9999.

    Raises `UsageError` for a column whose values are none of both.
    """
    import pyarrow as pa

    found = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            found.append(column.to_pylist())
        except (OverflowError, ValueError):
            try:
                found.append(column.cast(pa.string()).to_pylist())
            except pa.ArrowException:
                raise UsageError(
                    f"the query: column {name!r} has values that cannot be written", f'cast it: "{name}"::varchar'
                ) from None
    return found


def _cell(value: Any) -> str:
    """Return one value as text: null is empty, a boolean true or false, a float in full."""
    value = _number(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _csv_cell(value: Any) -> str:
    """Return one value as text; texts are guarded against spreadsheets, and against a terminal that shows them."""
    if not isinstance(value, str):
        return _cell(value)
    return guard_formula(escape_control(value) if sys.stdout.isatty() else value)


def _number(value: Any) -> Any:
    """Return the int of an integral decimal: DuckDB sums integers as decimals."""
    return int(value) if isinstance(value, Decimal) and value == value.to_integral_value() else value


def _to_parquet(rows: "QueryResult", output: Path | None, force: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(where: Any) -> None:
        try:
            writer = pq.ParquetWriter(where, rows.schema.with_metadata(PARQUET_METADATA))
        except pa.ArrowNotImplementedError as error:
            raise UsageError(f"the query: {error}", "cast the column, as in x::varchar") from None
        with writer:
            for batch in rows:
                writer.write_batch(batch)

    if output is not None:
        check_overwrite(output, force or is_jitter_parquet(output), None)
        with atomic_file(output) as half, half.open("wb") as file:
            write(file)
    elif sys.stdout.isatty():
        raise UsageError("parquet cannot go to a terminal", "give -o FILE.parquet")
    else:
        write(sys.stdout.buffer)


def _begins(path: Path, heading: str) -> bool:
    """Return whether a file begins as one that this query would write."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(heading.encode())) == heading.encode()
