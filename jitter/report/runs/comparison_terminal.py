"""A comparison in a terminal."""

from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jitter.comparison.model import Comparison
from jitter.core.formatting import escape_control
from jitter.report.views.comparison_tables import ComparisonTable, build_tables, describe_sides

_MOST_ROWS: Final = 10


def render_comparison_terminal(comparison: Comparison) -> RenderableType:
    """Return the verdict, the split and what changed as an object that rich prints."""
    parts: list[RenderableType] = [Text(escape_control(line), style="dim") for line in describe_sides(comparison)]
    parts.append(Text(escape_control(comparison.sentence), style="bold"))
    parts += [_table(table) for table in build_tables(comparison, _MOST_ROWS)]
    parts += [Text(escape_control(note), style="dim") for note in comparison.notes]
    return Group(*parts)


def _table(table: ComparisonTable) -> Table:
    shown = Table(title=table.title, title_justify="left", title_style="cyan", box=None, padding=(0, 2, 0, 0))
    for number, head in enumerate(table.heads):
        is_text = number == 0
        shown.add_column(head, justify="left" if is_text else "right", overflow="fold" if is_text else "ellipsis")
    for row in table.rows:
        # Text, not str: square brackets in a kernel name are not markup
        shown.add_row(*(Text(escape_control(cell)) for cell in row))
    return shown
