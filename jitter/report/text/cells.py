"""Texts and table cells of a page as HTML: code in prose, and values that a copy as CSV takes instead of their text."""

import re
from collections.abc import Iterable
from typing import Final

from markupsafe import Markup, escape

from jitter.report.text.tables import Measure, Shortened, measure_change, measure_percent, measure_time

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
    full = text.full if isinstance(text, Shortened) else str(text)
    place = Markup(' class="text" title="{}"').format(full) if is_text else Markup("")
    if isinstance(text, Shortened):
        place += Markup(' data-text="{}"').format(full)
    if isinstance(text, Measure):
        raw = "" if text.raw is None else format(text.raw, ".12g" if isinstance(text.raw, float) else "d")
        place += Markup(' data-raw="{}" data-unit="{}"').format(raw, text.unit)
    return Markup("<td{}>{}</td>").format(place, str(text))


def time_cell(ns: float | None, *, signed: bool = False) -> Markup:
    return render_cell((measure_change if signed else measure_time)(ns))


def percent_cell(fraction: float | None) -> Markup:
    return render_cell(measure_percent(fraction))


def render_sentences(texts: Iterable[str]) -> Markup:
    """Return texts as one paragraph's HTML."""
    return Markup(" ").join(map(render_prose, texts))
