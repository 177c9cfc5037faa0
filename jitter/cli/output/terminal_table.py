"""A table of metrics on a terminal: names shortened to the width, as many ranks as fit."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from jitter.cli.output.stdio import say
from jitter.cli.output.table import MAX_TEXT_ROWS, ONLY_FIRST_ROWS
from jitter.core.formatting import escape_control
from jitter.core.names.kernels import short_name

if TYPE_CHECKING:
    import pyarrow as pa

_LONGEST_NAME: Final = 44
_UNNAMED: Final = "(not recorded)"
_BETWEEN: Final = 2
"""Blanks between columns."""


def print_table(rows: "pa.Table") -> None:
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
        cells = _numbers(values) if is_number else _names(values, are_kernels=name.startswith("kernel"))
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


def _numbers(values: Sequence[Any]) -> list[str]:
    return ["" if value is None else f"{value:,.1f}".removesuffix(".0") for value in values]


def _names(values: Sequence[Any], *, are_kernels: bool) -> list[str]:
    """Return texts that leave room for others; of kernels the bare names, where these differ."""
    texts = [_UNNAMED if value is None or value == "" else escape_control(str(value)) for value in values]
    short = {name: short_name(name) if are_kernels and name != _UNNAMED else name for name in texts}
    times = Counter(short.values())
    return [_cut(short[name] if times[short[name]] == 1 else name) for name in texts]


def _cut(text: str) -> str:
    """Return a text without its middle, if it is long."""
    if len(text) <= _LONGEST_NAME:
        return text
    half = (_LONGEST_NAME - 1) // 2
    return f"{text[: _LONGEST_NAME - 1 - half]}…{text[-half:]}"
