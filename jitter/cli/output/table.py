"""Write rows to stdout or a file as csv, json or parquet, or as text for people.

The rows of a query may be larger than memory: they are formatted batch by batch. A process of its own, which can be
killed, executes the query and formats its rows (`answer_query`); the command copies the text to its place
(`write_rows`).
"""

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jitter.cli.output.stdio import say
from jitter.core.errors import UsageError
from jitter.core.files import atomic_file, check_overwrite
from jitter.core.formatting import csv_text, escape_control, format_columns, json_text
from jitter.core.names.kernels import short_name
from jitter.report.forms import SIGNATURES

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console, OverflowMethod

    from jitter.query.prepared_query import PreparedQuery, QueryResult
    from jitter.report.text.tables import Table as TextTable

TABLE_SCHEMA_VERSION = 1
_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
MAX_TEXT_ROWS: Final = 1000
"""Rows of a table on a terminal."""
ONLY_FIRST_ROWS: Final = f"only the first {MAX_TEXT_ROWS} rows are shown (for all: --format csv)"
_CELLS_AT_ONCE = 1 << 17
"""Cells formatted at once: larger blocks allocate new memory each time, which is slower."""
_DECIMALS: Final = 3
"""Of the fractions of a table; a query's are written in full."""
PARQUET_METADATA = {b"jitter": b"table"}
"""Metadata of every parquet file that jitter writes; identifies the file as its own."""
_HEADING_LENGTH: Final = 64
"""Bytes of a heading that suffice to recognise a file: the heading of 960 ranks is long."""
_JSON_HEAD: Final = f'{{"schema_version": {TABLE_SCHEMA_VERSION}, "rows": ['
_LONGEST_NAME: Final = 44
_UNNAMED: Final = "(not recorded)"
_NARROWEST_TEXT: Final = 16
"""Characters to which the texts of a query's column may be folded."""
_ANY_WIDTH: Final = 1 << 30
_BETWEEN: Final = 2
"""Blanks between columns."""


class Note(str):
    """A message about the rows, for stderr."""


Chunk = str | bytes | Note


class RowFormat(NamedTuple):
    """The form of the rows (text, csv, json or parquet), and the terminal that shows a text."""

    form: str
    width: int | None
    """Columns of the terminal; None: a file or a pipe, whose lines may be of any length."""


def write_table(rows: "pa.Table", form: str | None, output: Path | None, force: bool) -> None:
    """Write rows as csv (fractions to 3 decimals, null an empty cell), json or parquet; on a terminal print them.

    Raises `UsageError` for a file that jitter did not write, and for parquet on a terminal.
    """
    form = choose_row_format(form, output).form
    if form == "text":
        _print_table(rows)
        return
    reader = rows.combine_chunks().to_reader()
    heading = {"csv": _csv_line(rows.column_names)[:_HEADING_LENGTH], "json": SIGNATURES["json"][0].decode()}
    chunks: Iterable[Chunk] = [_as_json(rows)] if form == "json" else _format_csv(reader, _DECIMALS)
    if form == "parquet":
        chunks = format_parquet(reader)
    write_rows(chain([heading.get(form, "")], chunks), form, output, force)


def choose_format(form: str | None, output: Path | None) -> str | None:
    """Return the given form, or the form of the file's suffix; None if neither states one."""
    return form or (_SUFFIXES.get(output.suffix.lower()) if output is not None else None)


def choose_row_format(form: str | None, output: Path | None) -> RowFormat:
    """Return the format of the rows; without a form: that of the file's suffix, text on a terminal, else csv.

    Raises `UsageError` for parquet on a terminal.
    """
    is_terminal = output is None and sys.stdout.isatty()
    form = choose_format(form, output) or ("text" if is_terminal else "csv")
    if form == "parquet" and is_terminal:
        raise UsageError("parquet cannot go to a terminal", "give -o FILE.parquet")
    if form != "text":
        return RowFormat(form, None)
    from rich.console import Console

    return RowFormat(form, Console(file=sys.stdout).width if is_terminal else None)


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
    """Write what `format_rows` yields to stdout or a file, and notes to stderr.

    Raises `UsageError` for a file that jitter did not write.
    """
    heading = next(chunks)
    assert isinstance(heading, str)
    if output is None:
        for chunk in chunks:
            if isinstance(chunk, Note):
                say(chunk)
            elif isinstance(chunk, bytes):
                sys.stdout.buffer.write(chunk)
            else:
                sys.stdout.write(chunk)
        return
    is_own = False
    if form == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        with suppress(OSError, pa.ArrowInvalid):
            is_own = output.is_file() and PARQUET_METADATA.items() <= (pq.read_schema(output).metadata or {}).items()
    elif heading and output.is_file():
        with output.open("rb") as file:
            is_own = file.read(len(heading.encode())) == heading.encode()
    check_overwrite(output, force or is_own)
    with atomic_file(output) as half, half.open("wb") as file:
        for chunk in chunks:
            if isinstance(chunk, Note):
                say(chunk)
            else:
                file.write(chunk if isinstance(chunk, bytes) else chunk.encode())


def format_parquet(rows: "pa.RecordBatchReader | QueryResult") -> Iterator[bytes]:
    """Yield a parquet file, piece by piece."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    try:
        writer = pq.ParquetWriter(file, rows.schema.with_metadata(PARQUET_METADATA))
    except pa.ArrowNotImplementedError as error:
        raise UsageError(f"the query: {error}", "cast the column, as in x::varchar") from None
    with writer:
        for batch in rows:
            writer.write_batch(batch)
            yield _take(file)
    yield _take(file)


def _take(file: io.BytesIO) -> bytes:
    """Return what was written since the last call; the file is then empty."""
    written = file.getvalue()
    file.seek(0)
    file.truncate()
    return written


def _format_csv(rows: "pa.RecordBatchReader | QueryResult", decimals: int | None = None) -> Iterator[str]:
    """Yield lines, with one template for the rows: the csv module would check every number for quotes."""
    yield _csv_line(rows.schema.names)
    for batch in rows:
        empty = '""' if batch.num_columns == 1 else ""  # an empty line would not be a row
        height = max(1, _CELLS_AT_ONCE // max(1, batch.num_columns))
        for first in range(0, batch.num_rows, height):
            block = batch.slice(first, height)
            columns = [
                _cells(column, values, empty, decimals)
                for column, values in zip(block.columns, _values(block), strict=True)
            ]
            template = ",".join(form for form, _ in columns) + "\n"
            yield "".join(map(template.__mod__, zip(*(cells for _, cells in columns), strict=True)))


def _csv_line(names: Sequence[str]) -> str:
    return ",".join(_quoted(csv_text(name)) for name in names) + "\n"


def _cells(column: "pa.Array", values: list[Any], empty: str, decimals: int | None) -> tuple[str, list[Any]]:
    """Return the format of a column's cells, and its values."""
    import pyarrow as pa

    if pa.types.is_floating(column.type) and decimals is not None:
        form = f"%.{decimals}f"
        return ("%s", [empty if v is None else form % v for v in values]) if column.null_count else (form, values)
    if pa.types.is_integer(column.type) and not column.null_count:
        return "%d", values
    texts = [csv_text(value) if isinstance(value, str) else _cell(value) for value in values]
    return "%s", [_quoted(text) if text else empty for text in texts]


@lru_cache(maxsize=1 << 16)
def _quoted(text: str) -> str:
    cell = io.StringIO()
    csv.writer(cell, lineterminator="\n").writerow([text])
    return cell.getvalue()[:-1]


def _as_json(rows: "pa.Table") -> str:
    import msgspec
    import pyarrow as pa

    columns = [
        [None if value is None else round(value, _DECIMALS) for value in values]
        if pa.types.is_floating(column.type)
        else values
        for column, values in zip(rows.columns, _values(rows), strict=True)
    ]
    records = [dict(zip(rows.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
    text = msgspec.json.encode({"schema_version": TABLE_SCHEMA_VERSION, "rows": records})
    return json_text(msgspec.json.format(text, indent=1).decode()) + "\n"


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
        for row in zip(*_values(batch), strict=True):
            named = dict(zip(rows.schema.names, map(_number, row), strict=True))
            lines.append(before + encode(named).decode())
            before = ",\n"
        yield json_text("".join(lines))
    yield "\n]}\n"


def _format_text(rows: "QueryResult", form: RowFormat) -> Iterator[Chunk]:
    from rich.console import Console

    lines = (line for batch in rows for line in zip(*(map(_cell, values) for values in _values(batch)), strict=True))
    shown = [[escape_control(cell) for cell in line] for line in islice(lines, MAX_TEXT_ROWS)]
    text = io.StringIO()
    console = Console(file=text, width=form.width or _ANY_WIDTH, force_terminal=form.width is not None)
    fields_and_cells = zip(rows.schema, *shown, strict=True)
    columns = ((escape_control(field.name), cells, _is_number(field.type)) for field, *cells in fields_and_cells)
    if next(lines, None) is not None:
        yield Note(ONLY_FIRST_ROWS)
    yield from _print_columns(console, columns, len(rows.schema))
    yield text.getvalue()


def _values(rows: "pa.Table | pa.RecordBatch") -> list[list[Any]]:
    """Return each column's values; as text where Python has no such value, such as a date after the year 9999.

    Raises `UsageError` for a column whose values are none of both.
    """
    import pyarrow as pa

    from jitter.core.arrow import to_numpy

    columns = []
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        is_number = pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
        try:
            # numpy is several times as fast
            columns.append(to_numpy(column).tolist() if is_number and not column.null_count else column.to_pylist())
        except (OverflowError, ValueError):
            try:
                columns.append(column.cast(pa.string()).to_pylist())
            except pa.ArrowException:
                raise UsageError(
                    f"the query: column {name!r} has values that cannot be written", f'cast it: "{name}"::varchar'
                ) from None
    return columns


def _cell(value: Any) -> str:
    """Return one value as text: null is empty, a boolean true or false, a float in full, a list or structure JSON."""
    value = _number(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, default=str, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def _number(value: Any) -> Any:
    """Return the int of an integral decimal: DuckDB sums integers as decimals."""
    return int(value) if isinstance(value, Decimal) and value == value.to_integral_value() else value


def print_table(table: "TextTable") -> None:
    """Print a table; on a terminal the first columns that fit it."""
    rows = [tuple(map(escape_control, row)) for row in table.rows]
    if not sys.stdout.isatty():
        sys.stdout.write(format_columns([table.heads, *rows], table.texts))
        return
    from rich.console import Console

    console = Console(file=sys.stdout)
    heads_and_cells = enumerate(zip(table.heads, *rows, strict=True))
    columns = ((head, cells, at not in table.texts) for at, (head, *cells) in heads_and_cells)
    for note in _print_columns(console, columns, len(table.heads), all_of_them="in a pipe"):
        say(note)


def _print_columns(
    console: "Console",
    columns: Iterable[tuple[str, Sequence[str], bool]],
    count: int,
    *,
    all_of_them: str = "--format csv",
    is_folded: bool = True,
) -> list[Note]:
    """Print the first of `count` columns that fit the console: head, cells, whether they are numbers.

    Texts may be folded. Return a note if columns are left out: `all_of_them` says how to see these.
    """
    from rich.table import Table
    from rich.text import Text

    free_width = console.width
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _BETWEEN, 0, 0))
    shown: list[Sequence[str]] = []
    for name, cells, is_number in columns:
        lines = wrap(name, max(map(len, [*name.split(" "), *cells])), break_on_hyphens=False) or [name]
        head, width = "\n".join(lines), max(map(len, [*lines, *cells]))
        is_fixed = is_number or not is_folded
        width = width if is_fixed else min(width, max(_NARROWEST_TEXT, *map(len, lines)))
        if shown and width > free_width:
            break
        free_width -= width + _BETWEEN
        overflow: OverflowMethod = "fold" if is_folded else "ellipsis"
        table.add_column(Text(head), justify="right" if is_number else "left", no_wrap=is_fixed, overflow=overflow)
        shown.append(cells)
    for line in zip(*shown, strict=True):
        table.add_row(*map(Text, line))  # Text, not str: square brackets are no markup
    console.print(table)
    if len(shown) == count:
        return []
    return [Note(f"{len(shown)} of {count} columns fit the terminal (all of them: {all_of_them})")]


def _is_number(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _print_table(rows: "pa.Table") -> None:
    """Print rows on the terminal; say on stderr which rows and columns are left out, and how to see all."""
    from rich.console import Console

    def write(name: str, column: "pa.ChunkedArray") -> tuple[str, list[str], bool]:
        values, is_number = column.to_pylist(), _is_number(column.type)
        if is_number:
            return escape_control(name), ["" if v is None else f"{v:,.1f}".removesuffix(".0") for v in values], True
        return escape_control(name), _shorten_names(values, are_kernels=name.startswith("kernel")), False

    columns = map(write, rows.column_names, rows.slice(0, MAX_TEXT_ROWS).columns)
    for note in _print_columns(Console(file=sys.stdout), columns, rows.num_columns, is_folded=False):
        say(note)
    if rows.num_rows > MAX_TEXT_ROWS:
        say(ONLY_FIRST_ROWS)


def _shorten_names(values: Sequence[Any], *, are_kernels: bool) -> list[str]:
    """Return texts that leave room for others; of kernels the bare names, where these differ."""
    texts = [_UNNAMED if value is None or value == "" else escape_control(str(value)) for value in values]
    short = {name: short_name(name) if are_kernels and name != _UNNAMED else name for name in texts}
    times = Counter(short.values())
    return [_cut(short[name] if times[short[name]] == 1 else name) for name in texts]


def _cut(text: str) -> str:
    if len(text) <= _LONGEST_NAME:
        return text
    half = (_LONGEST_NAME - 1) // 2
    return f"{text[: _LONGEST_NAME - 1 - half]}…{text[-half:]}"
