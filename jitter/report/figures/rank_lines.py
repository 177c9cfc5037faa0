"""Ranks of one's own choice as lines in the figures along the kernels, beside max rank, min rank and the band."""

import numpy as np
import numpy.typing as npt
import pandas as pd
from bokeh.models import ColumnDataSource, DataRange1d, GridPlot, HoverTool, Text
from bokeh.plotting import figure

from jitter.report.figures.palette import GROUND, INK
from jitter.report.step_view import COLUMNS, MOST_POINTS
from jitter.report.thinning import thin

MOST_RANKS = 16
"""More lines cannot be told apart."""
_DASHES = ("solid", "dashed", "dotted", "dotdash")


def add(grid: GridPlot, metric: str, table: pd.DataFrame) -> None:
    """Add the ranks of a table, as of `Lake.table`, to the metric's figure in `profile`'s grid."""
    plot = grid.select_one({"name": f"figure:{metric}"})
    assert isinstance(plot, figure)
    at = table.index.to_numpy(dtype=np.int32)
    for number, column in enumerate(table.columns.drop(["kernel_name", "mean"])):
        values = table[column].to_numpy(dtype=np.float64, na_value=np.nan)
        _draw(plot, f"{column}:{metric}", column.replace("_", " "), _DASHES[number % len(_DASHES)], at, values)


def _draw(
    plot: figure, name: str, words: str, dash: str, at: npt.NDArray[np.int32], values: npt.NDArray[np.float64]
) -> None:
    if at.size > MOST_POINTS:
        kept = thin(at, (values,), COLUMNS)
        at, values = at[kept], values[kept]
    source = ColumnDataSource({"kernel_index": at, "ns": values}, name=name)
    line = plot.line(
        "kernel_index", "ns", source=source, line_color=INK, line_dash=dash, line_width=1.2, name=f"line:{name}"
    )
    # the figure's scale follows the lines named to it only
    assert isinstance(plot.y_range, DataRange1d)
    followed = plot.y_range.renderers
    assert isinstance(followed, list)
    plot.y_range.renderers = [*followed, line]
    plot.add_tools(HoverTool(renderers=[line], tooltips=[(words, "kernel @kernel_index: @ns{0,0} ns")]))
    known = np.flatnonzero(~np.isnan(values))
    if known.size:
        _label(plot, words, int(at[known[-1]]), float(values[known[-1]]))


def _label(plot: figure, words: str, x: int, y: float) -> None:
    """Name the line where it ends."""
    label = Text(
        x="x",
        y="y",
        text="text",
        text_color=INK,
        text_font_size="11px",
        text_align="right",
        background_fill_color=GROUND,
        background_fill_alpha=0.7,
    )
    plot.add_glyph(ColumnDataSource({"x": [x], "y": [y], "text": [words]}), label)
