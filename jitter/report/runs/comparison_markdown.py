"""A comparison, or the result of `jitter check`, as Markdown: for an issue, a chat or the summary of a job."""

from collections.abc import Iterator, Sequence
from typing import Final

from jitter.comparison.gates import Gate, format_limit, write_line
from jitter.comparison.model import Comparison
from jitter.core.formatting import UNKNOWN, format_percent
from jitter.report.markdown import escape_markdown, format_markdown_table
from jitter.report.signatures import COMPARISON_MARKDOWN_SIGNATURE
from jitter.report.views.comparison_tables import build_tables, describe_sides

_MOST_ROWS: Final = 20
_MOST_ROWS_OF_CHECK: Final = 10


def render_comparison_markdown(comparison: Comparison) -> str:
    """Return verdict, split and what changed. Text from traces is escaped."""
    lines = [COMPARISON_MARKDOWN_SIGNATURE.decode(), "", f"**{escape_markdown(comparison.sentence)}**", ""]
    lines += [f"- {escape_markdown(line)}" for line in describe_sides(comparison)]
    lines += _format_tables(comparison, _MOST_ROWS)
    if comparison.notes:
        lines += ["", "## Notes", "", *(f"- {escape_markdown(note)}" for note in comparison.notes)]
    return "\n".join(lines) + "\n"


def render_check_markdown(gates: Sequence[Gate], comparison: Comparison | None) -> str:
    """Return the line, a table of the gates and, with a baseline, what changed. Text from traces is escaped."""
    rows = [
        (
            gate.gate,
            UNKNOWN if gate.limit is None else format_limit(gate.limit),
            _value(gate),
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
        lines += [f"- {escape_markdown(line)}" for line in describe_sides(comparison)]
        lines += _format_tables(comparison, _MOST_ROWS_OF_CHECK)
    return "\n".join(lines) + "\n"


def _value(gate: Gate) -> str:
    if gate.value is None:
        return UNKNOWN
    return str(round(gate.value)) if gate.gate == "fail-on" else format_percent(gate.value)


def _format_tables(comparison: Comparison, most_rows: int) -> Iterator[str]:
    for table in build_tables(comparison, most_rows):
        yield from ("", f"## {table.title}", "", *format_markdown_table(table.heads, table.rows))
