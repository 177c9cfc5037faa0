"""A comparison as Markdown, for an issue, a chat or the summary of a job."""

from typing import Final

from jitter.comparison.model import Comparison
from jitter.report.markdown import escape_markdown, format_markdown_table
from jitter.report.signatures import COMPARISON_MARKDOWN_SIGNATURE
from jitter.report.views.comparison_tables import build_tables, describe_sides

_MOST_ROWS: Final = 20


def render_comparison_markdown(comparison: Comparison) -> str:
    """Return verdict, split and what changed. Text from traces is escaped."""
    lines = [COMPARISON_MARKDOWN_SIGNATURE.decode(), "", f"**{escape_markdown(comparison.sentence)}**", ""]
    lines += [f"- {escape_markdown(line)}" for line in describe_sides(comparison)]
    for table in build_tables(comparison, _MOST_ROWS):
        lines += ["", f"## {table.title}", "", *format_markdown_table(table.heads, table.rows)]
    if comparison.notes:
        lines += ["", "## Notes", "", *(f"- {escape_markdown(note)}" for note in comparison.notes)]
    return "\n".join(lines) + "\n"
