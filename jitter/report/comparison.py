"""A comparison for people: its tables as texts, and a terminal, Markdown and a page that show them."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from jitter.analysis.diagnosis.loss.split import LOSS_CLASS_INFO
from jitter.comparison.compare_documents import CollectiveChange, Comparison, CulpritChange
from jitter.comparison.document import Document
from jitter.comparison.gates import JITTER, Gate, format_limit, write_line
from jitter.comparison.kernel_changes import KernelChange
from jitter.comparison.log_tables import QUANTITIES
from jitter.core.formatting import (
    UNKNOWN,
    abbreviate,
    escape_control,
    format_bandwidth,
    format_bytes,
    format_count,
    format_digits,
    format_factor,
    format_percent,
    format_rank,
    format_time,
)
from jitter.core.names.kernels import short_name
from jitter.report.text.tables import (
    Column,
    Measure,
    Shortened,
    Table,
    build_table,
    measure,
    measure_change,
    measure_percent,
    measure_time,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_MOST_ROWS_OF_TERMINAL: Final = 10
_MOST_ROWS_OF_MARKDOWN: Final = 20
_MOST_ROWS_OF_CHECK: Final = 10
_MOST_ROWS_OF_PAGE: Final = 200
_MIN_RATIO_CHANGE: Final = 0.03


def describe_sides(comparison: Comparison) -> list[str]:
    """Return a line for each side: its label and its size."""
    lines = []
    for name, side in (("base", comparison.base), ("new", comparison.new)):
        runs = f"{format_count(side.runs, 'run')}, " if side.runs > 1 else ""
        size = f"{format_count(side.ranks, 'rank')}, {format_count(side.steps, 'step')}"
        lines.append(f"{name}: {side.label} ({runs}{size}{'; ' if side.formats else ''}{', '.join(side.formats)})")
    return lines


def build_tables(comparison: Comparison, most: int) -> list[Table]:
    """Return the tables that have rows, each with at most `most` rows."""
    # of many bandwidths, those at even distances
    every = max(-(-len(comparison.bandwidths) // (2 * most)), 1)
    tables = [
        _tabulate_split(comparison),
        _tabulate_kernels(comparison, most),
        build_table("Collectives", _COLLECTIVES, list(filter(_is_changed, comparison.collectives))[:most]),
        _tabulate_ranks(comparison, most),
        _tabulate_culprits(comparison, most),
        build_table("Environment", _ENVIRONMENT, _list_environment(comparison)),
        build_table("Training, by its log", _THROUGHPUT, comparison.throughput),
        build_table("Bus bandwidth, by benchmarks", _BANDWIDTHS, comparison.bandwidths[::every]),
    ]
    return [table for table in tables if table.rows]


def _tabulate_split(comparison: Comparison) -> Table:
    is_told = comparison.effect is not None and comparison.effect.is_real
    whole_ns = sum(part.difference_ns for part in comparison.split) if is_told else 0
    columns = (
        Column("what the new run adds", lambda part: LOSS_CLASS_INFO[part.part].words),
        Column("usual step", "usual_ns", measure_change),
        Column("jitter", "jitter_ns", measure_change),
        Column("together", "difference_ns", measure_change),
        Column("share", lambda part: measure_percent(part.difference_ns / whole_ns) if whole_ns else ""),
    )
    parts = [part for part in comparison.split if part.usual_ns or part.jitter_ns]
    table = build_table("Where the difference comes from", columns, parts)
    if (effect := comparison.effect) is not None and comparison.split:
        share = measure_percent(effect.fraction)
        table.rows.append(
            (
                f"step: {format_time(effect.base_ns)} to {format_time(effect.new_ns)}",
                measure_change(sum(part.usual_ns for part in comparison.split)),
                measure_change(sum(part.jitter_ns for part in comparison.split)),
                measure_change(effect.difference_ns),
                Measure(f"{share} of a step", share.raw, share.unit),
            )
        )
    return table


def _tabulate_kernels(comparison: Comparison, most: int) -> Table:
    columns = (
        Column("kernel", _name_change),
        Column("places", lambda change: change.places or change.new_places),
        Column("own time", "base_ns", measure_time),
        Column("new", "new_ns", measure_time),
        Column("adds to a step", "cost_ns", measure_change),
        Column("change", lambda change: change.kind if change.rank is None else f"{change.kind}, rank {change.rank}"),
    )
    changes, shapes = ([], []) if (kernels := comparison.kernels) is None else (kernels.changes, kernels.shapes)
    table = build_table("Kernels", columns, changes[:most])
    if len(changes) > most:
        table.rows.append((f"and {len(changes) - most} more", "", "", "", "", ""))
    for shape in shapes[:most]:
        grids = ("{}×{}×{}/{}×{}×{}".format(*launched) for launched in (shape.base, shape.new))
        name = abbreviate(short_name(shape.kernel_name))
        table.rows.append((name, str(shape.places), *grids, "", "launch shape"))
    return table


def _name_change(change: KernelChange) -> Shortened:
    """Name what changed: the kernel, or what stands in its place."""
    names = change.kernel_name, change.new_kernel_name
    base, new = map(_join_names, names)
    text = base or new
    if change.kind == "replaced":
        text = f"{base} → {new}"
        if change.places != change.new_places:
            fusion = " (fusion?)" if change.new_places < change.places else ""
            text = f"{format_count(change.places, 'kernel')} replaced by {change.new_places}{fusion}: {text}"
    return Shortened(text, " → ".join(dict.fromkeys(filter(None, names))))


def _join_names(joined: str | None) -> str:
    names = [] if joined is None else joined.split(" + ")
    shown = [abbreviate(short_name(name), 34) for name in names[: 1 if len(names) > 2 else 2]]
    return " + ".join([*shown, f"{len(names) - 1} more"] if len(names) > 2 else shown)


def _is_changed(change: CollectiveChange) -> bool:
    if change.base_calls_per_step is None or change.new_calls_per_step is None:
        return True
    is_other = change.ratio is not None and abs(change.ratio - 1) >= _MIN_RATIO_CHANGE
    return is_other or round(change.base_calls_per_step, 2) != round(change.new_calls_per_step, 2)


def _name_collective(change: CollectiveChange) -> str:
    size = "" if change.size_bytes is None else f"{change.size_bytes:,} B"
    return " ".join(filter(None, (change.collective, size, change.dtype))) or UNKNOWN


_COLLECTIVES: Final = (
    Column("collective", _name_collective),
    Column("calls/step", "base_calls_per_step", measure("{:,.1f}".format, unknown="none")),
    Column("new", "new_calls_per_step", measure("{:,.1f}".format, unknown="none")),
    Column("busbw GB/s", "base_busbw", measure(format_digits)),
    Column("new", "new_busbw", measure(format_digits)),
    Column("ratio", "ratio", measure(format_factor)),
    Column("wait µs", "base_wait_us", measure("{:,.1f}".format)),
    Column("new", "new_wait_us", measure("{:,.1f}".format)),
)


def _tabulate_ranks(comparison: Comparison, most: int) -> Table:
    columns = (
        Column("rank", lambda change: format_rank(change.rank, change.host)),
        Column("base", "base_ns", measure_time),
        Column("new", "new_ns", measure_time),
        Column("difference", "difference_ns", measure_change),
    )
    least_ns = inf if comparison.effect is None else comparison.effect.noise_fraction * comparison.effect.base_ns
    known = [change for change in comparison.ranks if change.difference_ns is not None]
    changed = [change for change in known if abs(change.difference_ns or 0) >= least_ns]
    changed.sort(key=lambda change: -abs(change.difference_ns or 0))
    return build_table("Ranks that cost a step more or less", columns, changed[:most])


def _tabulate_culprits(comparison: Comparison, most: int) -> Table:
    culprits = comparison.culprits
    runs_of = {"new run": culprits.appeared, "base": culprits.went, "both runs": culprits.stayed}
    changes = [(runs, change) for runs, of_runs in runs_of.items() for change in of_runs]
    kinds = iter(runs for runs, _ in changes)
    columns = (
        Column("finding", lambda change: change.entry.name),
        Column("cause", lambda change: change.entry.cause_in_words),
        Column("confidence", lambda change: change.entry.confidence),
        Column("seen in", _describe_seen),
        Column("recurs", lambda change: change.entry.recurs),
        Column("time saved", lambda change: change.entry.gain_ns, measure_time),
        Column("adds to the usual step", "difference_ns", measure_change),
        Column("in", lambda _: next(kinds)),
    )
    return build_table("Findings", columns, [change for _, change in changes[:most]])


def _describe_seen(change: CulpritChange) -> str:
    steps, of = change.entry.steps, change.entry.of_steps
    # a baseline of version 1 does not tell of how many
    return format_count(steps, "step") if of is None else f"{steps:,} of {of:,} steps"


def _list_environment(comparison: Comparison) -> Iterator[tuple[str, str, str]]:
    labels = {"profilers": "profiler", "nccl": "NCCL", "networks": "network", "transports": "transports"}
    sides = () if comparison.environment is None else comparison.environment.values()
    for field, label in labels.items() if sides else ():
        base, new = (", ".join(getattr(environment, field)) or UNKNOWN for environment in sides)
        if base != new:
            yield label, base, new


_ENVIRONMENT: Final = (Column("", itemgetter(0)), Column("base", itemgetter(1)), Column("new", itemgetter(2)))


_THROUGHPUT: Final = (
    Column("", lambda change: f"{change.label}, {QUANTITIES[change.quantity]}"),
    Column("base", "base", measure(partial(format_digits, digits=4))),
    Column("new", "new", measure(partial(format_digits, digits=4))),
    Column("speed", "speedup", measure(format_factor)),
)
_BANDWIDTHS: Final = (
    Column("", lambda row: f"{row.collective} {format_bytes(row.size_bytes)}{' in place' if row.in_place else ''}"),
    Column("base", "base", measure(format_bandwidth, "GB/s")),
    Column("new", "new", measure(format_bandwidth, "GB/s")),
    Column("ratio", "ratio", measure(format_factor)),
)


def print_comparison(comparison: Comparison, console: "Console | None" = None) -> None:
    """Print the verdict, the split and what changed; to stdout without a console."""
    from rich.console import Console, Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(escape_control(line), style="dim") for line in describe_sides(comparison)]
    parts.append(Text(escape_control(comparison.sentence), style="bold"))
    parts += map(_terminal_table, build_tables(comparison, _MOST_ROWS_OF_TERMINAL))
    parts += [Text(escape_control(note), style="dim") for note in comparison.notes]
    (console or Console(highlight=False)).print(Group(*parts))


def _terminal_table(table: Table) -> "RenderableType":
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(title=table.title, title_justify="left", title_style="cyan", box=None, padding=(0, 2, 0, 0))
    for number, head in enumerate(table.heads):
        of_kind: dict[str, Any] = {"justify": "right", "overflow": "ellipsis"} if number else {"overflow": "fold"}
        shown.add_column(head, **of_kind, min_width=max(map(len, head.split()), default=0))  # a head folds at blanks
    for row in table.rows:
        # Text, not str: square brackets in a kernel name are not markup
        shown.add_row(*(Text(escape_control(cell)) for cell in row))
    return shown


def render_comparison_markdown(comparison: Comparison) -> str:
    """Return verdict, split and what changed, for an issue or a chat. Text from traces is escaped."""
    from jitter.report.markdown import escape_markdown, format_list

    lines = ["# jitter compare", "", f"**{escape_markdown(comparison.sentence)}**", ""]
    lines += _format_changes(comparison, _MOST_ROWS_OF_MARKDOWN)
    if comparison.notes:
        lines += ["", "## Notes", "", *format_list(comparison.notes)]
    return "\n".join(lines) + "\n"


def _write_value(gate: Gate) -> str:
    is_count = gate.gate == "fail-on" and gate.value is not None
    return str(round(gate.value or 0)) if is_count else format_percent(gate.value)


_GATES: Final = (
    Column("gate", lambda gate: gate.gate if gate.rung in (None, JITTER) else f"{gate.gate} {gate.rung}"),
    Column("limit", "limit", lambda limit: UNKNOWN if limit is None else format_limit(limit)),
    Column("value", _write_value),
    Column("95% interval", lambda gate: " to ".join(map(format_percent, gate.interval or ())) or UNKNOWN),
    Column("result", lambda gate: gate.result.name),
)


def render_check_markdown(gates: Sequence[Gate], comparison: Comparison | None) -> str:
    """Return the line, a table of the gates and, with a baseline, what changed, for the summary of a job."""
    from jitter.report.markdown import escape_markdown, format_markdown_table

    lines = ["# jitter check", "", f"**{escape_markdown(write_line(gates))}**", ""]
    lines += format_markdown_table(build_table("", _GATES, gates))
    if comparison is not None:
        lines += ["", escape_markdown(comparison.sentence), "", *_format_changes(comparison, _MOST_ROWS_OF_CHECK)]
    return "\n".join(lines) + "\n"


def _format_changes(comparison: Comparison, most_rows: int) -> Iterable[str]:
    from jitter.report.markdown import format_list, format_markdown_table

    yield from format_list(describe_sides(comparison))
    for table in build_tables(comparison, most_rows):
        yield from ("", f"## {table.title}", "", *format_markdown_table(table))


def render_comparison_html(bases: Sequence[Document], new: Document, comparison: Comparison) -> str:
    """Return the page: verdict, both runs on the same axes, tables. Text from traces is escaped."""
    from jitter.report.figures.runs import draw_comparison
    from jitter.report.page import render_plain_page

    drawn = draw_comparison(bases, new, comparison)
    return render_plain_page(
        "comparison.html.j2",
        f"{comparison.base.label} and {comparison.new.label}",
        {} if drawn is None else {"comparison": drawn},
        comparison=comparison,
        sides=describe_sides(comparison),
        tables=build_tables(comparison, _MOST_ROWS_OF_PAGE),
    )
