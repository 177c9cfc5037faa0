"""Write a table to stdout or a file as csv, json or parquet; on a terminal with names cut to its width."""

import csv
import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jitter.cli.output.stdio import say
from jitter.core.errors import UsageError
from jitter.core.files import atomic_file, check_overwrite
from jitter.core.formatting import csv_text, escape_control, json_text
from jitter.core.names.kernels import short_name

if TYPE_CHECKING:
    import pyarrow as pa

    from jitter.query.prepared_query import QueryResult

TABLE_SCHEMA_VERSION = 1
_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
MAX_TEXT_ROWS: Final = 1000
"""Rows of a table on a terminal."""
ONLY_FIRST_ROWS: Final = f"only the first {MAX_TEXT_ROWS} rows are shown (for all: --format csv)"
_CELLS_AT_ONCE = 1 << 17
"""Cells formatted at once: larger blocks allocate new memory each time, which is slower."""
PARQUET_METADATA = {b"jitter": b"table"}
"""Metadata of every parquet file that jitter writes; identifies the file as its own."""
_LONGEST_NAME: Final = 44
_UNNAMED: Final = "(not recorded)"
_BETWEEN: Final = 2
"""Blanks between columns."""


class Note(str):
    """A message about the rows, for stderr."""


Chunk = str | bytes | Note


def write_table(rows: "pa.Table", form: str | None, output: Path | None, force: bool) -> None:
    """Write rows as csv (fractions to 3 decimals, null an empty cell), json or parquet; on a terminal print them.

    Raises `UsageError` for a file that jitter did not write, and for parquet on a terminal.
    """
    form = choose_format(form, output)
    if form is None and output is None and sys.stdout.isatty():
        _print_table(rows)
        return
    if form == "parquet":
        check_parquet_output(output, force)
        write_chunks(format_parquet(rows.combine_chunks().to_reader()), output)
        return
    text = _as_json(rows) if form == "json" else _as_csv(rows)
    if output is not None:
        # the first bytes suffice as a signature: the heading of 960 ranks is long
        check_overwrite(output, force, b'"schema_version"' if form == "json" else text[: text.find("\n")].encode()[:64])
    write_chunks([text], output)


def write_chunks(chunks: Iterable[Chunk], output: Path | None) -> None:
    """Write pieces of a document to stdout or a file, and notes to stderr."""
    if output is None:
        for chunk in chunks:
            if isinstance(chunk, Note):
                say(chunk)
            elif isinstance(chunk, bytes):
                sys.stdout.buffer.write(chunk)
            else:
                sys.stdout.write(chunk)
        return
    with atomic_file(output) as half, half.open("wb") as file:
        for chunk in chunks:
            if isinstance(chunk, Note):
                say(chunk)
            else:
                file.write(chunk if isinstance(chunk, bytes) else chunk.encode())


def choose_format(form: str | None, output: Path | None) -> str | None:
    """Return the given form, or the form of the file's suffix; None if neither states one."""
    return form or (_SUFFIXES.get(output.suffix.lower()) if output is not None else None)


def check_parquet_output(output: Path | None, force: bool) -> None:
    """Raise `UsageError` for a terminal, and for a file that jitter did not write."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if output is None:
        if sys.stdout.isatty():
            raise UsageError("parquet cannot go to a terminal", "give -o FILE.parquet")
        return
    is_own = False
    with suppress(OSError, pa.ArrowInvalid):
        is_own = output.is_file() and PARQUET_METADATA.items() <= (pq.read_schema(output).metadata or {}).items()
    check_overwrite(output, force or is_own, None)


def format_parquet(rows: "pa.RecordBatchReader | QueryResult") -> Iterator[bytes]:
    """Yield a parquet file, piece by piece."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = _Pieces()
    try:
        writer = pq.ParquetWriter(file, rows.schema.with_metadata(PARQUET_METADATA))
    except pa.ArrowNotImplementedError as error:
        raise UsageError(f"the query: {error}", "cast the column, as in x::varchar") from None
    with writer:
        for batch in rows:
            writer.write_batch(batch)
            yield file.take()
    yield file.take()


class _Pieces(io.RawIOBase):
    """A file that keeps what is written until it is taken."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self._pieces.append(bytes(piece))
        return len(piece)

    def take(self) -> bytes:
        content = b"".join(self._pieces)
        self._pieces.clear()
        return content


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


def _print_table(rows: "pa.Table") -> None:
    """Print rows on the terminal; say on stderr which rows and columns are left out, and how to see all."""
    import pyarrow as pa
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, _BETWEEN, 0, 0))
    columns: list[list[str]] = []
    free_width = console.width
    for name, column in zip(rows.column_names, rows.slice(0, MAX_TEXT_ROWS).columns, strict=True):
        is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        values = column.to_pylist()
        cells = _format_numbers(values) if is_number else _shorten_names(values, are_kernels=name.startswith("kernel"))
        width = max(map(len, [name, *cells]))
        if columns and width > free_width:
            break
        free_width -= width + _BETWEEN
        table.add_column(Text(escape_control(name)), justify="right" if is_number else "left", no_wrap=True)
        columns.append(cells)
    for line in zip(*columns, strict=True):
        table.add_row(*map(Text, line))  # Text, not str: square brackets are no markup
    console.print(table)
    if len(columns) < rows.num_columns:
        say(f"{len(columns)} of {rows.num_columns} columns fit the terminal (all of them: --format csv)")
    if rows.num_rows > MAX_TEXT_ROWS:
        say(ONLY_FIRST_ROWS)


def _format_numbers(values: Sequence[Any]) -> list[str]:
    return ["" if value is None else f"{value:,.1f}".removesuffix(".0") for value in values]


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
