"""Map of ranks by steps, ordered by host: which node, which GPU, which step."""

from collections.abc import Collection
from typing import Any, Final

import numpy as np
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    CustomJS,
    CustomJSTickFormatter,
    HSpan,
    Image,
    LogColorMapper,
    Range1d,
)
from bokeh.plotting import figure

from jitter.core.formatting import abbreviate
from jitter.report.figures import colors
from jitter.report.figures.frame import add_hover
from jitter.report.figures.steps import StepAxis, new_step_figure
from jitter.report.views.excess_heatmap import NETWORK_LAYER, ExcessHeatmap, HeatmapLayer

_LEAST_HEIGHT, _MOST_HEIGHT, _ROW = 120, 300, 17
_FRAME = 44  # px above and below the rows
_LABEL = 10  # characters of a host name
TRANSPARENT: Final = "rgba(0, 0, 0, 0)"
_PICK: Final = """
// A click on a cell picks its rank and step.
const row = Math.round(cb_obj.y), column = Math.floor((cb_obj.x + 0.5) / wide);
const columns = shown.data.image[0].shape[1], i = row * columns + column;
if (row < 0 || row >= rows || column < 0 || column >= columns) return;
const grey = own != null && shown.tags[2] != "unknown" && Number.isNaN(shown.data.image[0][i]);
const { rank, step } = (grey ? own : shown).data;
picked.data = { step: [step[0][i]], rank: [rank[0][i]] };
"""


def draw_heatmap(axis: StepAxis, drawn: ExcessHeatmap, culprits: Collection[int] = ()) -> figure:
    """Draw the first layer, with the sources of all layers attached as `layer:<name>`. A click chooses a cell.

    Rows of the ranks in `culprits` get an arrow.
    """
    rows = len(drawn.rows)
    height = min(max(_LEAST_HEIGHT, _ROW * rows + _FRAME), _MOST_HEIGHT)
    pad = 0.5 + 0.006 * rows  # the first row at the top, with room for half an arrow
    y_range = Range1d(start=rows - 1 + pad, end=-pad)
    plot = new_step_figure(axis, "every rank and step", "excess", y_range, height)
    sources = [_source(layer, f"layer:{layer.name}", axis) for layer in drawn.layers]
    shown = _source(drawn.layers[0], "shown:excess", axis)
    first = drawn.layers[0]
    mapper = LogColorMapper(
        palette=colors.GREY_PALETTE if shown.tags[3] else colors.LIGHT_HEAT_PALETTE,
        low=first.low_ns,
        high=first.high_ns,
        nan_color=TRANSPARENT,
        name="excess:colours",
        tags=[colors.LIGHT_HEAT_PALETTE, colors.DARK_HEAT_PALETTE, colors.GREY_PALETTE],
    )
    wide = drawn.columns[0][1] + 1
    place: dict[str, Any] = {"image": "image", "x": -0.5, "y": -0.5, "dw": wide * len(drawn.columns), "dh": rows}
    self_time_source = None
    if drawn.own is not None:
        self_time_source = ColumnDataSource(_columns(drawn.own), name="own:excess")
        # in grey below the other layers; the page hides it below layers of own time
        below = LogColorMapper(
            palette=colors.GREY_PALETTE, low=drawn.own.low_ns, high=drawn.own.high_ns, nan_color=TRANSPARENT
        )
        grey = plot.add_glyph(self_time_source, Image(**place, color_mapper=below), level="image")
        grey.name, grey.visible = "own:cells", first.shows_loss
    image = plot.add_glyph(shown, Image(**place, color_mapper=mapper), level="image")
    _draw_holes(plot, drawn)
    _draw_hosts(plot, drawn)
    _draw_arrows(plot, drawn, culprits, len(axis.run.steps))
    plot.vspan(x="x", source=axis.shown, line_color=colors.MARK, line_width=2, line_alpha=0.9)
    cursor = ColumnDataSource({"left": [], "right": [], "top": [], "bottom": []}, name="cursor")
    plot.quad("left", "right", "top", "bottom", source=cursor, fill_color=None, line_color=colors.TEXT, line_width=2.5)
    _label(plot, drawn)
    args: dict[str, Any] = {"shown": shown, "steps": axis.steps, "wide": wide, "rows": rows, "own": self_time_source}
    cell = args | {"hosts": list(drawn.hosts)}
    # keyed by rank: Bokeh calls no formatter for a NaN image value
    add_hover(plot, [image], "cell", "rank", ("who", "when", "excess"), cell, point_policy="follow_mouse")
    plot.js_on_event("tap", CustomJS(args=args | {"picked": axis.picked}, code=_PICK))
    plot.tags = sources
    return plot


def _source(layer: HeatmapLayer, name: str, axis: StepAxis) -> ColumnDataSource:
    """Return a layer as a source. Tags: ends of the colour scale, what a cell without a value means, whether grey."""
    unknown = "next to no share of the loss" if layer.shows_loss else "unknown"
    is_grey = axis.run.is_calm and layer.name != NETWORK_LAYER
    return ColumnDataSource(_columns(layer), name=name, tags=[layer.low_ns, layer.high_ns, unknown, is_grey])


def _columns(layer: HeatmapLayer) -> dict[str, Any]:
    # half the bytes where the numbers allow it
    small = np.uint16 if max(layer.rank.max(initial=0), layer.step.max(initial=0)) < 2**16 else np.int32
    return {"image": [layer.excess_ns], "rank": [layer.rank.astype(small)], "step": [layer.step.astype(small)]}


def _draw_holes(plot: figure, drawn: ExcessHeatmap) -> None:
    columns: dict[str, Any] = {
        "left": [drawn.columns[first][0] - 0.5 for _, first, _ in drawn.holes],
        "right": [drawn.columns[last][1] + 0.5 for _, _, last in drawn.holes],
        "top": [row - 0.5 for row, _, _ in drawn.holes],
        "bottom": [row + 0.5 for row, _, _ in drawn.holes],
    }
    plot.quad(
        "left",
        "right",
        "top",
        "bottom",
        source=ColumnDataSource(columns, name="holes"),
        fill_color=None,
        line_color=None,
        hatch_pattern="right_diagonal_line",
        hatch_color=colors.OTHERS,
        hatch_scale=8,
    )


def _draw_hosts(plot: figure, drawn: ExcessHeatmap) -> None:
    """Draw a line between hosts, unless most rows are hosts."""
    borders = [at - 0.5 for at in range(1, len(drawn.rows)) if drawn.hosts[at] != drawn.hosts[at - 1]]
    if len(borders) > len(drawn.rows) / 2:
        borders = []
    thin = len(drawn.rows) > 60
    plot.add_glyph(
        ColumnDataSource({"y": borders}, name="host-borders"),
        HSpan(y="y", line_color=colors.TEXT, line_width=0.5 if thin else 1, line_alpha=0.25 if thin else 0.5),
    )


def _draw_arrows(plot: figure, drawn: ExcessHeatmap, culprits: Collection[int], steps: int) -> None:
    """Draw an arrow at the rows of the findings' ranks, one for neighbours, with a line along them."""
    named = [at for at, ranks in enumerate(drawn.rows) if not set(ranks).isdisjoint(culprits)]
    first = [at for at in named if at - 1 not in named]
    last = [at for at in named if at + 1 not in named]
    x, middle = steps - 0.5 + 0.01 * steps, [(a + b) / 2 for a, b in zip(first, last, strict=True)]
    source = ColumnDataSource({"x": [x] * len(first), "y": middle, "first": first, "last": last}, name="named")
    plot.segment("x", "first", "x", "last", source=source, line_color=colors.TEXT, line_width=2)
    plot.scatter(
        "x",
        "y",
        source=source,
        marker="triangle",
        angle=np.pi / 2,
        size=8,
        fill_color=colors.TEXT,
        line_color=colors.TEXT,
    )


def _label(plot: figure, drawn: ExcessHeatmap) -> None:
    words = []
    for host, ranks in zip(drawn.hosts, drawn.rows, strict=True):
        rank_label = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"
        words.append(rank_label if host is None else f"{abbreviate(host, _LABEL)} · {rank_label}")
    plot.yaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0, desired_num_ticks=max(6, min(len(words), 14)))
    plot.yaxis.formatter = CustomJSTickFormatter(
        args={"words": words}, code="return Number.isInteger(tick) ? words[tick] ?? '' : '';"
    )
    plot.ygrid.grid_line_color = None
