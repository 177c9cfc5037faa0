"""Tables as data: columns that say their head and how a cell is written, the same in every form; cells as HTML."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from markupsafe import Markup, escape

from jitter.core.formatting import UNKNOWN, format_percent, format_time

UNKNOWN_CELL: Final = "-"


class Measure(str):
    """The text of a value, with the value itself and its unit."""

    raw: float | int | None
    unit: str

    def __new__(cls, text: str, raw: float | int | None, unit: str = "") -> "Measure":
        made = super().__new__(cls, text)
        made.raw, made.unit = raw, unit
        return made


class Shortened(str):
    """A text that is cut for people, with the whole text."""

    full: str

    def __new__(cls, text: str, full: str) -> "Shortened":
        made = super().__new__(cls, text)
        made.full = full
        return made


class Column(NamedTuple):
    """One column: its head, the value that a row has in it, and the text of a value."""

    head: str
    value: str | Callable[[Any], Any]
    """Name of a field of the row, or a function of the row."""
    write: Callable[[Any], str] | None = None
    """Text of a value, None included; by default that of `str`, and a dash for None."""
    is_text: bool = False
    """Whether it holds text, as the first column does, and no numbers."""

    def cell(self, row: Any) -> str:
        value = getattr(row, self.value) if isinstance(self.value, str) else self.value(row)
        if self.write is not None:
            return self.write(value)
        return value if isinstance(value, str) else UNKNOWN_CELL if value is None else str(value)


class Table(NamedTuple):
    """One table."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]
    texts: frozenset[int]
    """Positions of the columns that hold text."""


def build_table(title: str, columns: Sequence[Column], rows: Iterable[Any]) -> Table:
    """Return the table of these rows."""
    return Table(
        title,
        tuple(column.head for column in columns),
        [tuple(column.cell(row) for column in columns) for row in rows],
        frozenset(at for at, column in enumerate(columns) if column.is_text or not at),
    )


def measure(
    write: Callable[[Any], str], unit: str = "", unknown: str = UNKNOWN
) -> Callable[[float | int | None], Measure]:
    """Return what makes a cell of a value."""
    return lambda value: Measure(unknown if value is None else write(value), value, unit)


measure_time: Final = measure(format_time, "ns")
measure_change: Final = measure(partial(format_time, signed=True), "ns")
"""Of a difference, with its sign."""


def measure_percent(fraction: float | None) -> Measure:
    return Measure(format_percent(fraction), None if fraction is None else 100 * fraction, "%")


_CODE: Final = re.compile(r"`([^`\n]+)`")
_BOUND: Final = re.compile(r"(?<=&gt;) (?=\d)")


def render_prose(text: str) -> Markup:
    """Return a text as HTML: escaped, what stands between backticks as code, no line break within `> 10σ`.

    >>> str(render_prose("launched by `aten::add_` in <b>"))
    'launched by <code>aten::add_</code> in &lt;b&gt;'
    """
    return Markup(_BOUND.sub("\u00a0", _CODE.sub(r"<code>\1</code>", str(escape(text)))))


def render_cell(text: str, *, is_text: bool = False) -> Markup:
    """Return a table cell with a text; of a `Measure` also the value and its unit, of a `Shortened` the whole text."""
    full = escape(text.full if isinstance(text, Shortened) else str(text))
    place = f' class="text" title="{full}"' if is_text else ""
    if isinstance(text, Shortened):
        place += f' data-text="{full}"'
    if isinstance(text, Measure):
        raw = "" if text.raw is None else format(text.raw, ".12g" if isinstance(text.raw, float) else "d")
        place += f' data-raw="{raw}" data-unit="{escape(text.unit)}"'
    return Markup(f"<td{place}>{escape(str(text))}</td>")  # not by `format` of `Markup`: thousands of cells a page


def time_cell(ns: float | None, *, signed: bool = False) -> Markup:
    return render_cell((measure_change if signed else measure_time)(ns))


def percent_cell(fraction: float | None) -> Markup:
    return render_cell(measure_percent(fraction))


def render_sentences(texts: Iterable[str]) -> Markup:
    """Return texts as one paragraph's HTML."""
    return Markup(" ").join(map(render_prose, texts))
