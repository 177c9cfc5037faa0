"""A table as plain text, columns aligned."""

from collections.abc import Sequence

from jitter.core.formatting import escape_control


def format_text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table, one line a row; the first and the last column are text, the others numbers."""
    lines = [list(heads), *([escape_control(cell) for cell in row] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
    last = len(heads) - 1
    return "".join(
        "  ".join(
            cell.ljust(width) if at in (0, last) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        + "\n"
        for line in lines
    )
