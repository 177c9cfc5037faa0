"""Lines of chosen ranks in the figures over the kernels, in addition to max rank, min rank and the band."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitter.core.errors import UsageError
from jitter.report.figures.kernel_axis import KernelAxis
from jitter.report.views.step_grid import METRICS, StepGrid
from jitter.report.views.step_view import build_rank_line

MAX_RANK_LINES = 16
"""Most lines that a reader can distinguish."""
_DASHES = ("solid", "dashed", "dotted", "dotdash")


def draw_ranks(axis: KernelAxis, grid: StepGrid, ranks: Sequence[int]) -> None:
    """Draw these ranks of the step in view, in place of the ranks chosen before.

    Raises `UsageError` for a rank that is not in the step and for more than `MAX_RANK_LINES` ranks.
    """
    if len(ranks) > MAX_RANK_LINES:
        raise UsageError(f"{len(ranks)} ranks are too many lines", f"choose at most {MAX_RANK_LINES}")
    drawn = {metric: _columns(grid, metric, ranks) for metric in METRICS}
    for metric, columns in drawn.items():
        axis.chosen[metric].data = columns


def _columns(grid: StepGrid, metric: str, ranks: Sequence[int]) -> dict[str, Any]:
    lines = [build_rank_line(grid, rank, metric) for rank in ranks]
    # the label is at the end of the line
    last = [np.flatnonzero(~np.isnan(values))[-1:] for _, values in lines]
    return {
        "xs": [at for at, _ in lines],
        "ys": [values for _, values in lines],
        "rank": list(ranks),
        "text": [f"rank {rank}" for rank in ranks],
        "dash": [_DASHES[number % len(_DASHES)] for number in range(len(ranks))],
        "x": [float(at[end[0]]) if end.size else np.nan for (at, _), end in zip(lines, last, strict=True)],
        "y": [float(values[end[0]]) if end.size else np.nan for (_, values), end in zip(lines, last, strict=True)],
    }
