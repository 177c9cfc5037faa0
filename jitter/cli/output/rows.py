"""Write the rows of a query to stdout or a file in batches; the result may be larger than memory.

A process of its own, which can be killed, executes the query and formats its rows (`answer_query`); the command copies
the text to its place (`write_rows`).
"""

import csv
import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jitter.cli.output.table import (
    MAX_TEXT_ROWS,
    ONLY_FIRST_ROWS,
    TABLE_SCHEMA_VERSION,
    Chunk,
    Note,
    check_parquet_output,
    choose_format,
    format_parquet,
    write_chunks,
)
from jitter.core.errors import UsageError
from jitter.core.files import check_overwrite
from jitter.core.formatting import csv_text, escape_control, json_text

if TYPE_CHECKING:
    import pyarrow as pa

    from jitter.query.prepared_query import PreparedQuery, QueryResult

_HEADING_LENGTH: Final = 64
_JSON_HEAD: Final = f'{{"schema_version": {TABLE_SCHEMA_VERSION}, "rows": ['


class RowFormat(NamedTuple):
    """The form of the rows (text, csv, json or parquet), and the terminal that shows a text."""

    form: str
    width: int | None
    """Columns of the terminal; None: not known."""
    is_terminal: bool


def choose_row_format(form: str | None, output: Path | None) -> RowFormat:
    """Return the format of the rows; without a form: that of the file's suffix, text on a terminal, else csv.

    Raises `UsageError` for parquet on a terminal.
    """
    is_terminal = output is None and sys.stdout.isatty()
    form = choose_format(form, output) or ("text" if is_terminal else "csv")
    if form == "parquet" and is_terminal:
        raise UsageError("parquet cannot go to a terminal", "give -o FILE.parquet")
    if form != "text":
        return RowFormat(form, None, False)
    from rich.console import Console

    return RowFormat(form, Console(file=sys.stdout).width if output is None else None, is_terminal)


def answer_query(query: "PreparedQuery", memory_bytes: int, form: RowFormat) -> Iterator[Chunk]:
    """Execute a query in this process, whose memory it limits for good, and yield what `format_rows` does."""
    from jitter.core.memory import limit_memory
    from jitter.query.prepared_query import memory_error

    try:
        with query.execute(lambda: limit_memory(memory_bytes)) as rows:
            yield from format_rows(rows, form)
    except MemoryError:
        raise memory_error() from None


def format_rows(rows: "QueryResult", form: RowFormat) -> Iterator[Chunk]:
    """Yield the rows in a form, piece by piece: first the beginning by which a file of the same query is recognised.

    Numbers are written in full, null is an empty cell.
    """
    yield {"csv": _csv_line(rows.schema.names)[:_HEADING_LENGTH], "json": _JSON_HEAD}.get(form.form, "")
    if form.form == "text":
        yield from _format_text(rows, form)
    else:
        yield from {"csv": _format_csv, "json": _format_json, "parquet": format_parquet}[form.form](rows)


def write_rows(chunks: Iterator[Chunk], form: str, output: Path | None, force: bool) -> None:
    """Write what `format_rows` yields; raise `UsageError` for a file that jitter did not write."""
    heading = next(chunks)
    assert isinstance(heading, str)
    if form == "parquet":
        check_parquet_output(output, force)
    elif output is not None:
        check_overwrite(output, force or (bool(heading) and _begins(output, heading)), None)
    write_chunks(chunks, output)


def _format_csv(rows: "QueryResult") -> Iterator[Chunk]:
    yield _csv_line(rows.schema.names)
    for batch in rows:
        columns = [
            [csv_text(value) if isinstance(value, str) else _cell(value) for value in values]
            for values in _columns(batch)
        ]
        yield _csv_lines(zip(*columns, strict=True))


def _csv_line(cells: Sequence[str]) -> str:
    return _csv_lines([[csv_text(cell) for cell in cells]])


def _csv_lines(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _format_json(rows: "QueryResult") -> Iterator[Chunk]:
    import msgspec

    twice = [name for name, count in Counter(rows.schema.names).items() if count > 1]
    if twice:
        raise UsageError(f"two columns have the name {twice[0]}", "rename one: … AS other_name")
    encode = msgspec.json.Encoder(enc_hook=str).encode
    yield _JSON_HEAD
    before = "\n"
    for batch in rows:
        lines = []
        for row in zip(*_columns(batch), strict=True):
            named = dict(zip(rows.schema.names, map(_number, row), strict=True))
            lines.append(before + encode(named).decode())
            before = ",\n"
        yield json_text("".join(lines))
    yield "\n]}\n"


def _format_text(rows: "QueryResult", form: RowFormat) -> Iterator[Chunk]:
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for field in rows.schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type)
        heading = Text(escape_control(field.name))
        table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
    lines = _lines(rows)
    for cells in islice(lines, MAX_TEXT_ROWS):
        table.add_row(*(Text(escape_control(cell)) for cell in cells))  # Text, not str: square brackets are no markup
    if next(lines, None) is not None:
        yield Note(ONLY_FIRST_ROWS)
    text = io.StringIO()
    Console(file=text, width=form.width, force_terminal=form.is_terminal).print(table)
    yield text.getvalue()


def _lines(rows: "QueryResult") -> Iterator[tuple[str, ...]]:
    for batch in rows:
        yield from zip(*([_cell(value) for value in values] for values in _columns(batch)), strict=True)


def _columns(batch: "pa.RecordBatch") -> list[list[Any]]:
    """Return each column's values; as text where Python has no such value, such as a date after the year 9999.

    Raises `UsageError` for a column whose values are none of both.
    """
    import pyarrow as pa

    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            columns.append(column.to_pylist())
        except (OverflowError, ValueError):
            try:
                columns.append(column.cast(pa.string()).to_pylist())
            except pa.ArrowException:
                raise UsageError(
                    f"the query: column {name!r} has values that cannot be written", f'cast it: "{name}"::varchar'
                ) from None
    return columns


def _cell(value: Any) -> str:
    """Return one value as text: null is empty, a boolean true or false, a float in full."""
    value = _number(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _number(value: Any) -> Any:
    """Return the int of an integral decimal: DuckDB sums integers as decimals."""
    return int(value) if isinstance(value, Decimal) and value == value.to_integral_value() else value


def _begins(path: Path, heading: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(heading.encode())) == heading.encode()
