"""Map of excess, ranks by steps, ordered by host: which node, which GPU, which step."""

from collections.abc import Collection
from typing import Any, Final

import numpy as np
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    CustomJS,
    CustomJSHover,
    CustomJSTickFormatter,
    FixedTicker,
    HoverTool,
    HSpan,
    Image,
    LogColorMapper,
    Range1d,
)
from bokeh.models.annotations import ColorBar
from bokeh.plotting import figure

from jitter.core.formatting import abbreviate
from jitter.report.figures.frame import read_script
from jitter.report.figures.palette import (
    BACKGROUND_COLOR,
    DARK_HEAT_PALETTE,
    GREY_PALETTE,
    LIGHT_HEAT_PALETTE,
    MARK_COLOR,
    OTHERS_COLOR,
    TEXT_COLOR,
)
from jitter.report.figures.step_axis import StepAxis, new_bare_step_figure
from jitter.report.views.excess_heatmap import ExcessHeatmap, HeatmapLayer

_LEAST_HEIGHT, _MOST_HEIGHT, _ROW = 170, 640, 16
_FRAME = 62  # px above and below the rows
_LABEL = 16  # characters of a host name
_TOOLTIP: Final = """
<div style="max-width:34em;line-height:1.45">
<div><b>@rank{who}</b></div>
<div>@rank{when}</div>
<div>@rank{excess}</div>
</div>"""


def build(axis: StepAxis, drawn: ExcessHeatmap, culprits: Collection[int] = ()) -> figure:
    """Draw the first layer, with the sources of all layers attached as `layer:<name>`. A click chooses a cell.

    Rows of the ranks in `culprits` get an arrow.
    """
    rows = len(drawn.rows)
    height = min(max(_LEAST_HEIGHT, _ROW * rows + _FRAME), _MOST_HEIGHT)
    plot = new_bare_step_figure(axis, _title(drawn.layers[0]), "excess", _y_range(rows), height)
    sources = [_source(layer, f"layer:{layer.name}") for layer in drawn.layers]
    shown = _source(drawn.layers[0], "shown:excess")
    mapper = LogColorMapper(
        palette=LIGHT_HEAT_PALETTE,
        low=drawn.layers[0].low_ns,
        high=drawn.layers[0].high_ns,
        nan_color="rgba(0, 0, 0, 0)",
        name="excess:colours",
        tags=[LIGHT_HEAT_PALETTE, DARK_HEAT_PALETTE],
    )
    wide = drawn.columns[0][1] + 1
    own = None if drawn.own is None else ColumnDataSource(_columns(drawn.own), name="own:excess")
    if own is not None:
        _draw_own(plot, drawn, own, wide)
    cells = Image(image="image", x=-0.5, y=-0.5, dw=wide * len(drawn.columns), dh=rows, color_mapper=mapper)
    image = plot.add_glyph(shown, cells, level="image")
    _draw_holes(plot, drawn)
    _draw_hosts(plot, drawn)
    _draw_arrows(plot, drawn, culprits, len(axis.labels))
    plot.vspan(x="x", source=axis.shown, line_color=MARK_COLOR, line_width=2, line_alpha=0.9)
    cursor = ColumnDataSource({"left": [], "right": [], "top": [], "bottom": []}, name="cursor")
    plot.quad("left", "right", "top", "bottom", source=cursor, fill_color=None, line_color=TEXT_COLOR, line_width=2.5)
    _label(plot, drawn)
    bar = ColorBar(
        color_mapper=mapper,
        width=10,
        padding=4,
        ticker=FixedTicker(ticks=[mantissa * 10.0**power for power in range(11) for mantissa in (1, 3)]),
        formatter=CustomJSTickFormatter(code=read_script("one_tick.js")),
        background_fill_color=BACKGROUND_COLOR,
        major_label_text_color=TEXT_COLOR,
        major_tick_line_color=TEXT_COLOR,
    )
    plot.add_layout(bar, "right")
    args: dict[str, Any] = {"shown": shown, "steps": axis.steps, "wide": wide, "rows": rows, "own": own}
    cell = CustomJSHover(args=args | {"hosts": list(drawn.hosts)}, code=read_script("excess_hover.js"))
    hover = HoverTool(renderers=[image], point_policy="follow_mouse", attachment="horizontal", tooltips=_TOOLTIP)
    hover.formatters = {"@rank": cell}  # keyed by rank: Bokeh calls no formatter for a NaN image value
    plot.add_tools(hover)
    plot.js_on_event("tap", CustomJS(args=args | {"picked": axis.picked}, code=read_script("excess_pick.js")))
    plot.tags = sources
    return plot


def _y_range(rows: int) -> Range1d:
    """Return the y range, first row at the top, with room for half an arrow."""
    pad = 0.5 + 0.006 * rows
    return Range1d(start=rows - 1 + pad, end=-pad)


def _title(layer: HeatmapLayer) -> str:
    return f"Every rank and step: {layer.title}"


def _source(layer: HeatmapLayer, name: str) -> ColumnDataSource:
    """Return a layer as a source. Tags: title, ends of the colour scale, what a cell without a value means."""
    unknown = "next to no share of the loss" if layer.shows_loss else "unknown"
    return ColumnDataSource(_columns(layer), name=name, tags=[_title(layer), layer.low_ns, layer.high_ns, unknown])


def _columns(layer: HeatmapLayer) -> dict[str, Any]:
    return {"image": [layer.excess_ns], "rank": [layer.rank], "step": [layer.step]}


def _draw_own(plot: figure, drawn: ExcessHeatmap, own: ColumnDataSource, wide: int) -> None:
    """Draw own excess in grey below the other layers; the page hides it below layers of own time."""
    assert drawn.own is not None
    mapper = LogColorMapper(
        palette=GREY_PALETTE, low=drawn.own.low_ns, high=drawn.own.high_ns, nan_color="rgba(0, 0, 0, 0)"
    )
    cells = Image(image="image", x=-0.5, y=-0.5, dw=wide * len(drawn.columns), dh=len(drawn.rows), color_mapper=mapper)
    grey = plot.add_glyph(own, cells, level="image")
    grey.name, grey.visible = "own:cells", drawn.layers[0].shows_loss


def _draw_holes(plot: figure, drawn: ExcessHeatmap) -> None:
    """Hatch the cells without a recording."""
    source = ColumnDataSource(
        {
            "left": [drawn.columns[hole.first][0] - 0.5 for hole in drawn.holes],
            "right": [drawn.columns[hole.last][1] + 0.5 for hole in drawn.holes],
            "top": [hole.row - 0.5 for hole in drawn.holes],
            "bottom": [hole.row + 0.5 for hole in drawn.holes],
        },
        name="holes",
    )
    plot.quad(
        "left",
        "right",
        "top",
        "bottom",
        source=source,
        fill_color=None,
        line_color=None,
        hatch_pattern="right_diagonal_line",
        hatch_color=OTHERS_COLOR,
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
        HSpan(y="y", line_color=TEXT_COLOR, line_width=0.5 if thin else 1, line_alpha=0.25 if thin else 0.5),
    )


def _draw_arrows(plot: figure, drawn: ExcessHeatmap, culprits: Collection[int], steps: int) -> None:
    """Draw an arrow at the rows of the findings' ranks."""
    named = [at for at, ranks in enumerate(drawn.rows) if not set(ranks).isdisjoint(culprits)]
    plot.scatter(
        "x",
        "y",
        source=ColumnDataSource({"x": [steps - 0.5 + 0.01 * steps] * len(named), "y": named}, name="named"),
        marker="triangle",
        angle=np.pi / 2,
        size=8,
        fill_color=TEXT_COLOR,
        line_color=TEXT_COLOR,
    )


def _label(plot: figure, drawn: ExcessHeatmap) -> None:
    """Label the rows with host and rank, as many as fit."""
    words = []
    for host, ranks in zip(drawn.hosts, drawn.rows, strict=True):
        which = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"
        words.append(which if host is None else f"{abbreviate(host, _LABEL)} · {which}")
    plot.yaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0, desired_num_ticks=max(6, min(len(words), 28)))
    plot.yaxis.formatter = CustomJSTickFormatter(
        args={"words": words}, code="return Number.isInteger(tick) ? words[tick] ?? '' : '';"
    )
    plot.ygrid.grid_line_color = None
    plot.yaxis.axis_label = "host · rank" if any(host is not None for host in drawn.hosts) else "rank"
