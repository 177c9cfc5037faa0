"""Lines of chosen ranks in the figures over the kernels, in addition to max rank, min rank and the band."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from jitter.core.errors import UsageError
from jitter.report.figures.kernel_axis import KernelAxis
from jitter.report.figures.palette import RANK_COLORS
from jitter.report.views.step_grid import StepGrid
from jitter.report.views.step_view import SERIES, build_rank_line

MAX_RANK_LINES: Final = 16
"""Most lines that a reader can distinguish."""
DASHES: Final = ("solid", "dashed")


class RankLine(NamedTuple):
    """How the line of a chosen rank looks."""

    rank: int
    color: str
    dash: str


def style_ranks(ranks: Sequence[int]) -> list[RankLine]:
    """Return the look of each chosen rank, no two the same; for the figures and their legend."""
    return [
        RankLine(rank, RANK_COLORS[at % len(RANK_COLORS)], DASHES[at // len(RANK_COLORS) % len(DASHES)])
        for at, rank in enumerate(ranks)
    ]


def draw_ranks(axis: KernelAxis, grid: StepGrid, ranks: Sequence[int]) -> None:
    """Draw these ranks of the step in view, in place of the ranks chosen before.

    Raises `UsageError` for a rank that is not in the step and for more than `MAX_RANK_LINES` ranks.
    """
    if len(ranks) > MAX_RANK_LINES:
        raise UsageError(f"{len(ranks)} ranks are too many lines", f"choose at most {MAX_RANK_LINES}")
    drawn = {name: _columns(grid, name, ranks) for name in SERIES}
    for name, columns in drawn.items():
        axis.chosen[name].data = columns


def _columns(grid: StepGrid, name: str, ranks: Sequence[int]) -> dict[str, Any]:
    lines = [build_rank_line(grid, rank, name) for rank in ranks]
    styles = style_ranks(ranks)
    return {
        "xs": [at for at, _ in lines],
        "ys": [values for _, values in lines],
        "rank": list(ranks),
        "color": [one.color for one in styles],
        "dash": [one.dash for one in styles],
    }
