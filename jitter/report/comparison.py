"""A comparison for people: its tables as texts, and a terminal, Markdown and a page that show them."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from jitter.analysis.diagnosis.loss.split import LOSS_CLASS_INFO
from jitter.comparison.document import CulpritEntry, Document
from jitter.comparison.gates import Gate, format_limit, write_line
from jitter.comparison.kernel_changes import KernelChange
from jitter.comparison.log_tables import QUANTITIES
from jitter.comparison.model import CollectiveChange, Comparison
from jitter.core.formatting import (
    UNKNOWN,
    abbreviate,
    escape_control,
    format_bytes,
    format_count,
    format_percent,
    format_quantity,
    format_rank,
    format_time,
)
from jitter.core.names.kernels import short_name
from jitter.report.forms import COMPARISON_MARKDOWN_SIGNATURE
from jitter.report.text.cells import Measure, Shortened, measure_percent, measure_time

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_MOST_ROWS_OF_TERMINAL: Final = 10
_MOST_ROWS_OF_MARKDOWN: Final = 20
_MOST_ROWS_OF_CHECK: Final = 10
_MOST_ROWS_OF_PAGE: Final = 200
_MIN_RANK_CHANGE: Final = 0.005
"""Part of a step; a smaller change of what a rank costs is not listed."""
_MIN_RATIO_CHANGE: Final = 0.03


class ComparisonTable(NamedTuple):
    """One table; the first column is text, the others are numbers."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def describe_sides(comparison: Comparison) -> list[str]:
    """Return a line for each side: its label and its size."""
    lines = []
    for name, side in (("base", comparison.base), ("new", comparison.new)):
        runs = f"{format_count(side.runs, 'run')}, " if side.runs > 1 else ""
        size = f"{format_count(side.ranks, 'rank')}, {format_count(side.steps, 'step')}"
        lines.append(f"{name}: {side.label} ({runs}{size}{'; ' if side.formats else ''}{', '.join(side.formats)})")
    return lines


def build_tables(comparison: Comparison, most: int) -> list[ComparisonTable]:
    """Return the tables that have rows, each with at most `most` rows."""
    tables = [ComparisonTable(title, heads, tuple(rows(comparison, most))) for title, heads, rows in _TABLES]
    return [table for table in tables if table.rows]


Rows = Iterator[tuple[str, ...]]


def _split(comparison: Comparison, most: int) -> Rows:
    effect = comparison.effect
    if effect is None or not comparison.split:
        return
    whole = sum(part.difference_ns for part in comparison.split)
    for part in comparison.split:
        if part.usual_ns or part.jitter_ns:
            yield (
                LOSS_CLASS_INFO[part.part].words,
                *(measure_time(ns, signed=True) for ns in (part.usual_ns, part.jitter_ns, part.difference_ns)),
                measure_percent(part.difference_ns / whole) if whole and comparison.verdict != "same" else UNKNOWN,
            )
    share = measure_percent(effect.fraction)
    yield (
        f"step: {format_time(effect.base_ns)} to {format_time(effect.new_ns)}",
        measure_time(sum(part.usual_ns for part in comparison.split), signed=True),
        measure_time(sum(part.jitter_ns for part in comparison.split), signed=True),
        measure_time(effect.difference_ns, signed=True),
        Measure(f"{share} of a step", share.raw, share.unit),
    )


def _kernels(comparison: Comparison, most: int) -> Rows:
    if comparison.kernels is None:
        return
    changes = comparison.kernels.changes
    for change in changes[:most]:
        names = change.kernel_name, change.new_kernel_name
        yield (
            Shortened(name_change(change), " → ".join(dict.fromkeys(filter(None, names)))),
            str(change.places or change.new_places),
            measure_time(change.base_ns),
            measure_time(change.new_ns),
            measure_time(change.cost_ns, signed=True),
            change.kind if change.rank is None else f"{change.kind}, rank {change.rank}",
        )
    if len(changes) > most:
        yield f"and {len(changes) - most} more", "", "", "", "", ""
    for shape in comparison.kernels.shapes[:most]:
        grids = (_shape(shape.base), _shape(shape.new))
        yield abbreviate(short_name(shape.kernel_name)), str(shape.places), *grids, "", "launch shape"


def name_change(change: KernelChange) -> str:
    """Name what changed: the kernel, or what stands in its place."""
    base, new = (_names(name) for name in (change.kernel_name, change.new_kernel_name))
    if change.kind != "replaced":
        return base or new
    if change.places == change.new_places:
        return f"{base} → {new}"
    fusion = " (fusion?)" if change.new_places < change.places else ""
    return f"{format_count(change.places, 'kernel')} replaced by {change.new_places}{fusion}: {base} → {new}"


def _names(joined: str | None) -> str:
    names = [] if joined is None else joined.split(" + ")
    shown = [abbreviate(short_name(name), 34) for name in names[:3]]
    return " + ".join([*shown, "…"] if len(names) > 3 else shown)


def _shape(shape: Sequence[int]) -> str:
    return f"{shape[0]}×{shape[1]}×{shape[2]}/{shape[3]}×{shape[4]}×{shape[5]}"


def _collectives(comparison: Comparison, most: int) -> Rows:
    def is_changed(change: CollectiveChange) -> bool:
        if change.base is None or change.new is None:
            return True
        is_other = change.ratio is not None and abs(change.ratio - 1) >= _MIN_RATIO_CHANGE
        return is_other or round(change.base.calls_per_step, 2) != round(change.new.calls_per_step, 2)

    for change in list(filter(is_changed, comparison.collectives))[:most]:
        size = "" if change.either.size_bytes is None else f"{change.either.size_bytes:,} B"
        sides = change.base, change.new
        yield (
            " ".join(filter(None, (change.either.collective, size, change.either.dtype))),
            *(_number(None if side is None else side.calls_per_step) for side in sides),
            *(_number(None if side is None else side.busbw) for side in sides),
            Measure(UNKNOWN if change.ratio is None else f"×{change.ratio:.2f}", change.ratio, ""),
            *(_number(None if side is None else side.wait_us) for side in sides),
        )


def _ranks(comparison: Comparison, most: int) -> Rows:
    effect = comparison.effect
    least = _MIN_RANK_CHANGE * effect.base_ns if effect is not None else inf
    changed = [(abs(change.difference_ns), change) for change in comparison.ranks if change.difference_ns is not None]
    listed = sorted((pair for pair in changed if pair[0] >= least), key=lambda pair: -pair[0])
    for _, change in listed[:most]:
        yield (
            format_rank(change.rank, change.host),
            measure_time(change.base_ns),
            measure_time(change.new_ns),
            measure_time(change.difference_ns, signed=True),
        )


def _culprits(comparison: Comparison, most: int) -> Rows:
    names = ("appeared", "went", "stayed")
    changes = [(name, change) for name in names for change in getattr(comparison.culprits, name)]
    for name, change in changes[:most]:
        entry = change.entry
        yield (
            name_culprit_entry(entry),
            entry.cause.replace("_", " "),
            entry.confidence,
            # a baseline of version 1 does not tell of how many
            format_count(entry.steps, "step")
            if entry.of_steps is None
            else f"{entry.steps:,} of {entry.of_steps:,} steps",
            entry.recurs or "-",
            measure_time(entry.gain_ns),
            measure_time(change.difference_ns, signed=True),
            name,
        )


def name_culprit_entry(entry: CulpritEntry) -> str:
    if entry.scope == "host" and entry.host is not None:
        return f"host {entry.host}"
    if len(entry.ranks) > 1:
        return f"{format_count(len(entry.ranks), 'rank')} from rank {min(entry.ranks)}"
    return format_rank(entry.rank, entry.host)


def _environment(comparison: Comparison, most: int) -> Rows:
    if comparison.environment is None:
        return
    labels = {"profilers": "profiler", "nccl": "NCCL", "networks": "network", "transports": "transports"}
    for field, label in labels.items():
        texts = [", ".join(getattr(environment, field)) or UNKNOWN for _, environment in comparison.environment]
        if texts[0] != texts[1]:
            yield label, *texts


def _throughput(comparison: Comparison, most: int) -> Rows:
    for change in comparison.throughput:
        yield (
            f"{change.label}, {QUANTITIES[change.quantity]}",
            Measure(format_quantity(change.base), change.base, ""),
            Measure(format_quantity(change.new), change.new, ""),
            Measure(f"{change.speedup:.2f}×", change.speedup, ""),
        )


def _bandwidths(comparison: Comparison, most: int) -> Rows:
    """Yield the benchmarks' bus bandwidths by size; of many rows, those at even distances."""
    every = max(-(-len(comparison.bandwidths) // (2 * most)), 1)
    for change in comparison.bandwidths[::every]:
        yield (
            f"{change.collective} {format_bytes(change.size_bytes)}{' in place' if change.in_place else ''}",
            Measure(f"{change.base:.3g} GB/s", change.base, "GB/s"),
            Measure(f"{change.new:.3g} GB/s", change.new, "GB/s"),
            Measure(f"{change.ratio:.2f}×", change.ratio, ""),
        )


# fmt: off
_TABLES: Final[tuple[tuple[str, tuple[str, ...], Callable[[Comparison, int], Rows]], ...]] = (
    ("Where the difference comes from", ("what the new run adds", "usual step", "jitter", "together", "share"), _split),
    ("Kernels", ("kernel", "places", "own time", "new", "adds to a step", "change"), _kernels),
    ("Collectives", ("collective", "calls/step", "new", "busbw GB/s", "new", "ratio", "wait µs", "new"), _collectives),
    ("Ranks that cost a step more or less", ("rank", "base", "new", "difference"), _ranks),
    ("Findings",
     ("finding", "cause", "confidence", "seen in", "recurs", "time saved", "adds to a step", "in the new run"),
     _culprits),
    ("Environment", ("", "base", "new"), _environment),
    ("Training, by its log", ("", "base", "new", "speed"), _throughput),
    ("Bus bandwidth, by benchmarks", ("", "base", "new", "ratio"), _bandwidths),
)
# fmt: on
"""Title, heads and rows of each table, in their order."""


def _number(value: float | None) -> Measure:
    return Measure(UNKNOWN if value is None else f"{value:,.1f}", value, "")


def render_comparison_terminal(comparison: Comparison) -> "RenderableType":
    """Return the verdict, the split and what changed as an object that rich prints."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(escape_control(line), style="dim") for line in describe_sides(comparison)]
    parts.append(Text(escape_control(comparison.sentence), style="bold"))
    parts += [_terminal_table(table) for table in build_tables(comparison, _MOST_ROWS_OF_TERMINAL)]
    parts += [Text(escape_control(note), style="dim") for note in comparison.notes]
    return Group(*parts)


def _terminal_table(table: ComparisonTable) -> "Table":
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=table.title, title_justify="left", title_style="cyan", box=None, padding=(0, 2, 0, 0))
    for number, head in enumerate(table.heads):
        is_text = number == 0
        widest = max(map(len, head.split()), default=0)  # a narrow terminal folds heads between words
        shown.add_column(
            head,
            justify="left" if is_text else "right",
            overflow="fold" if is_text else "ellipsis",
            min_width=widest,
        )
    for row in table.rows:
        # Text, not str: square brackets in a kernel name are not markup
        shown.add_row(*(Text(escape_control(cell)) for cell in row))
    return shown


def render_comparison_markdown(comparison: Comparison) -> str:
    """Return verdict, split and what changed, for an issue or a chat. Text from traces is escaped."""
    from jitter.report.markdown import escape_markdown, format_list

    lines = [COMPARISON_MARKDOWN_SIGNATURE.decode(), "", f"**{escape_markdown(comparison.sentence)}**", ""]
    lines += format_list(describe_sides(comparison))
    lines += _format_tables(comparison, _MOST_ROWS_OF_MARKDOWN)
    if comparison.notes:
        lines += ["", "## Notes", "", *format_list(comparison.notes)]
    return "\n".join(lines) + "\n"


def render_check_markdown(gates: Sequence[Gate], comparison: Comparison | None) -> str:
    """Return the line, a table of the gates and, with a baseline, what changed, for the summary of a job."""
    from jitter.report.markdown import escape_markdown, format_list, format_markdown_table

    rows = [
        (
            gate.gate,
            UNKNOWN if gate.limit is None else format_limit(gate.limit),
            UNKNOWN
            if gate.value is None
            else str(round(gate.value))
            if gate.gate == "fail-on"
            else format_percent(gate.value),
            UNKNOWN if gate.interval is None else " to ".join(map(format_percent, gate.interval)),
            gate.result.name,
        )
        for gate in gates
    ]
    heads = ("gate", "limit", "value", "95% interval", "result")
    lines = ["# jitter check", "", f"**{escape_markdown(write_line(gates))}**", ""]
    lines += format_markdown_table(heads, rows)
    if comparison is not None:
        lines += ["", escape_markdown(comparison.sentence), ""]
        lines += format_list(describe_sides(comparison))
        lines += _format_tables(comparison, _MOST_ROWS_OF_CHECK)
    return "\n".join(lines) + "\n"


def _format_tables(comparison: Comparison, most_rows: int) -> Iterator[str]:
    from jitter.report.markdown import format_markdown_table

    for table in build_tables(comparison, most_rows):
        yield from ("", f"## {table.title}", "", *format_markdown_table(table.heads, table.rows))


def render_comparison_html(bases: Sequence[Document], new: Document, comparison: Comparison) -> str:
    """Return the page: verdict, both runs on the same axes, tables. Text from traces is escaped."""
    from markupsafe import Markup

    from jitter.report.figures.comparison_figures import draw_comparison
    from jitter.report.page import render_document, template_environment

    drawn = draw_comparison(bases, new, comparison)
    title = f"{comparison.base.label} and {comparison.new.label}"
    body = (
        template_environment()
        .get_template("comparison.html.j2")
        .render(
            title=title,
            comparison=comparison,
            sides=describe_sides(comparison),
            tables=build_tables(comparison, _MOST_ROWS_OF_PAGE),
            roots=drawn is not None,
        )
    )
    return render_document(title, Markup(body), {} if drawn is None else {"comparison": drawn})
