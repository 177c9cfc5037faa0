"""Ranks by kernels of one step, and one kernel on each rank over the steps."""

from typing import Any

import numpy as np
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    CustomJS,
    CustomJSTickFormatter,
    DataRange1d,
    Image,
    LogColorMapper,
    Range1d,
)
from bokeh.plotting import figure

from jitter.report.figures import colors
from jitter.report.figures.frame import add_hover, format_time_axis, new_figure
from jitter.report.figures.heatmap import TRANSPARENT
from jitter.report.figures.kernels import KernelAxis
from jitter.report.views.kernel_durations import KernelDurations
from jitter.report.views.step_view import KernelMap

_STRIP_WIDTH = 0.7
"""Of a rank's place: its steps are side by side in it, in their order."""


def map_columns(cells: KernelMap) -> dict[str, dict[str, Any]]:
    """Return the map as columns: the image with its extent, and the labels of rows and columns."""
    wide = cells.kernels[0][1] - cells.kernels[0][0] + 1
    return {
        "map": {
            "image": [cells.added_ns],
            "dw": [float(wide * len(cells.kernels))],
            "dh": [float(len(cells.ranks))],
            "here": [0],
        },
        "cells": {
            "rows": [[str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}" for ranks in cells.ranks]],
            "columns": [[str(a) if a == b else f"{a} to {b}" for a, b in cells.kernels]],
        },
    }


def draw_kernel_map(axis: KernelAxis, cells: KernelMap) -> figure:
    """Draw what each kernel adds on each rank; a click chooses the kernel."""
    columns = {name: ColumnDataSource(data, name=f"shown:{name}") for name, data in map_columns(cells).items()}
    source, labels = columns["map"], columns["cells"]
    rows = len(cells.ranks)
    y_range = Range1d(start=rows - 0.5, end=-0.5, name="map-ranks")
    height = min(max(150, 14 * rows + 70), 420)
    title = "rank × kernel: gap and duration above their mean"
    plot = new_figure(title, "map", height, x_range=axis.x_range, y_range=y_range)
    scale_ns = axis.sources["view"].data["scale_ns"][0]
    mapper = LogColorMapper(palette=colors.LIGHT_HEAT_PALETTE, nan_color=TRANSPARENT, name="map:colours")
    mapper.low, mapper.high, mapper.low_color = scale_ns / 50, map_ceiling(cells, scale_ns), TRANSPARENT
    mapper.tags = [colors.LIGHT_HEAT_PALETTE, colors.DARK_HEAT_PALETTE]
    glyph = Image(image="image", x=-0.5, y=-0.5, dw="dw", dh="dh", color_mapper=mapper)
    image = plot.add_glyph(source, glyph, level="image")
    plot.yaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    plot.yaxis.formatter = CustomJSTickFormatter(
        args={"cells": labels}, code="return Number.isInteger(tick) ? cells.data.rows[0][tick] ?? '' : '';"
    )
    plot.yaxis.axis_label, plot.xaxis.axis_label = "rank", "kernel index"
    plot.ygrid.grid_line_color = None
    args = {"source": source, "cells": labels}
    add_hover(plot, [image], "map", "here", ("who", "where", "added"), args, point_policy="follow_mouse")
    pick = "kernels.tags = [Math.round(cb_obj.x)];"
    plot.js_on_event("tap", CustomJS(args={"kernels": axis.x_range}, code=pick))
    return plot


def map_ceiling(cells: KernelMap, scale_ns: float) -> float:
    """Return the end of the colour scale: the highest value, at least the finest scale of the step."""
    return max(float(np.nanmax(cells.added_ns, initial=0.0)), scale_ns)


def strip_columns(durations: KernelDurations, kernel: int) -> dict[str, Any]:
    """Return the durations of one kernel as points: `x` is the rank's position, moved by the step."""
    durations_ns = durations.duration_ns[durations.kernel_index.index(kernel)]
    rank, step = np.nonzero(~np.isnan(durations_ns))
    moved = (step + 0.5) / durations_ns.shape[1] - 0.5
    return {
        "x": rank + _STRIP_WIDTH * moved,
        "took": durations_ns[rank, step],
        "rank": np.asarray(durations.ranks)[rank],
        "step": [str(durations.steps[at].step) for at in step.tolist()],
    }


def draw_kernel_strip(durations: KernelDurations, kernel: int) -> figure:
    """Draw the duration of one kernel on each rank, its steps side by side."""
    source = ColumnDataSource(strip_columns(durations, kernel), name="strip")
    ranks = [str(rank) for rank in durations.ranks]
    x_range = Range1d(start=-0.6, end=len(ranks) - 0.4)
    title = "one kernel: its duration on each rank, the steps side by side"
    plot = new_figure(title, "strip", 200, x_range=x_range, y_range=DataRange1d(start=0))
    format_time_axis(plot, "duration")
    points = plot.scatter("x", "took", source=source, size=5, fill_color=colors.MIN_RANK, line_color=colors.TEXT)
    points.glyph.fill_alpha, points.glyph.line_alpha = 0.7, 0.3
    plot.xaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0, desired_num_ticks=min(len(ranks), 16))
    plot.xaxis.formatter = CustomJSTickFormatter(
        args={"ranks": ranks}, code="return Number.isInteger(tick) ? ranks[tick] ?? '' : '';"
    )
    plot.xaxis.axis_label = "rank"
    add_hover(plot, [points], "strip", "rank", ("who", "took"), {"source": source})
    return plot
