"""The figures over the steps of a run: step time with the loss in it, loss by class, the map of ranks by steps."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    CustomJS,
    CustomJSTickFormatter,
    DataRange1d,
    HSpan,
    Image,
    LogColorMapper,
    Range,
    Range1d,
    VSpan,
)
from bokeh.models.annotations import Legend, LegendItem, Span
from bokeh.plotting import figure

from jitter.core.formatting import abbreviate
from jitter.core.names.kernels import short_name
from jitter.report.figures import colors
from jitter.report.figures.frame import add_hover, as_float, format_time_axis, new_figure
from jitter.report.text.step_text import describe_cause
from jitter.report.views.excess_heatmap import NETWORK_LAYER, ExcessHeatmap, HeatmapLayer
from jitter.report.views.run_report import RunSeries

STEP_MARGIN_PX: Final = 112
"""Room for the labels of hosts and ranks."""
_ROWS: Final = ("step", "time", "loss", "max", "min", "parts", "cause", "began")
# patterns distinguish the classes without colour; the last is the sum of the last three classes of `ClassShares`
_CLASSES: Final = {
    "start": ("late start", colors.LATE_START, "horizontal_line"),
    "cpu": ("CPU", colors.CPU, "right_diagonal_line"),
    "after": ("after last launch", colors.AFTER_LAUNCH, "cross"),
    "gpu": ("GPU", colors.GPU, " "),
    "transfer": ("communication", colors.TRANSFER, "dot"),
    "rest": ("rest", colors.TEXT, "vertical_line"),
}


@dataclass(frozen=True)
class StepAxis:
    """The steps as a source, one row each; x is the position in the run."""

    run: RunSeries
    x_range: Range1d
    steps: ColumnDataSource
    shown: ColumnDataSource
    """Position of the step in view."""
    picked: ColumnDataSource
    """The cell or step that was clicked: `step` (position) and `rank` (NaN for a whole step)."""


def build_step_axis(run: RunSeries, shown: int, embedded: Collection[int]) -> StepAxis:
    """Build the axis of the run. The step at position `shown` is in view; `embedded` steps have details in the page."""
    return StepAxis(
        run,
        Range1d(start=-0.5 - 0.02 * len(run.steps), end=len(run.steps) * 1.02 - 0.5, name="steps-range"),
        ColumnDataSource(_columns(run, embedded), name="steps"),
        ColumnDataSource({"x": [shown]}, name="shown:step"),
        ColumnDataSource({"step": [], "rank": []}, name="picked"),
    )


def new_step_figure(axis: StepAxis, title: str, name: str, y_range: Range, height: int) -> figure:
    plot = new_figure(title, name, height, STEP_MARGIN_PX, x_range=axis.x_range, y_range=y_range)
    plot.xaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    plot.xaxis.formatter = CustomJSTickFormatter(
        args={"labels": list(axis.run.labels)}, code="return Number.isInteger(tick) ? labels[tick] ?? '' : '';"
    )
    plot.xgrid.grid_line_color = None
    return plot


def draw_step_times(axis: StepAxis) -> figure:
    """Draw the time of each step, the loss as the upper part of its bar; a click chooses a step."""
    y_range = DataRange1d(start=0)
    plot = new_step_figure(axis, "step time, loss on top", "step_time", y_range, 110)
    format_time_axis(plot)
    _mark_step_in_view(plot, axis)
    loss = colors.CALM if axis.run.is_calm else colors.MAX_RANK
    bars: list[Any] = [
        plot.vbar("x", top="without", width=0.7, source=axis.steps, fill_color=colors.OTHERS, line_color=None),
        plot.vbar("x", top="time", bottom="without", width=0.7, source=axis.steps, fill_color=loss, line_color=None),
    ]
    y_range.renderers = bars
    plot.yaxis.ticker = BasicTicker(desired_num_ticks=3)
    add_hover(plot, bars, "step", "x", _ROWS, {"source": axis.steps}, mode="vline", limit=1)
    return plot


def draw_loss_by_class(axis: StepAxis) -> figure:
    """Draw each step's loss by class; classes above 0 are stacked upwards, classes below 0 downwards."""
    y_range = DataRange1d()
    plot = new_step_figure(axis, "loss of each step by class", "step_split", y_range, 240)
    format_time_axis(plot, "loss")
    _mark_step_in_view(plot, axis)
    bars: list[Any] = []
    items: list[LegendItem] = []
    for part, (words, colour, pattern) in _CLASSES.items():
        if part in ("after", "rest") and not _is_seen(axis, part):
            continue  # most jobs have none, or nearly
        bar: Any = plot.vbar(
            "x",
            top=f"{part}_to",
            bottom=f"{part}_from",
            width=0.7,
            source=axis.steps,
            fill_color=colour,
            line_color=colors.TEXT,
            line_width=0.5,
            hatch_pattern=pattern,
            hatch_color=colors.TEXT,
            hatch_alpha=0.6,
            hatch_scale=7,
        )
        bars.append(bar)
        items.append(LegendItem(label=words, renderers=[bar]))
    y_range.renderers = bars
    plot.add_layout(Span(location=0, dimension="width", line_color=colors.TEXT, line_width=1, line_alpha=0.55))
    legend = Legend(items=items, orientation="horizontal", border_line_color=None, label_text_color=colors.TEXT)
    legend.background_fill_color, legend.label_text_font_size, legend.margin = colors.BACKGROUND, "11px", 0
    plot.add_layout(legend, "above")
    plot.xaxis.axis_label = "epoch/step" if any("/" in label for label in axis.run.labels) else "step"
    add_hover(plot, bars, "step", "x", _ROWS, {"source": axis.steps}, mode="vline", limit=1)
    return plot


def _mark_step_in_view(plot: figure, axis: StepAxis) -> None:
    plot.add_glyph(axis.shown, VSpan(x="x", line_color=colors.MARK, line_width=9, line_alpha=0.28))
    pick = "const at = Math.round(cb_obj.x); if (at >= 0 && at < count) picked.data = {step: [at], rank: [NaN]};"
    plot.js_on_event("tap", CustomJS(args={"picked": axis.picked, "count": len(axis.run.steps)}, code=pick))


def _is_seen(axis: StepAxis, part: str) -> bool:
    """Return whether a class is at least a hundredth of the largest loss in some step."""
    class_losses, losses = (
        np.abs(np.nan_to_num(np.asarray(axis.steps.data[name], np.float64))) for name in (part, "loss")
    )
    return bool(class_losses.max(initial=0.0) > losses.max(initial=0.0) / 100)


def _columns(run: RunSeries, embedded: Collection[int]) -> dict[str, Any]:
    begins = [step.divergence for step in run.steps]
    times = np.array([as_float(step.step_time_ns) for step in run.steps])
    losses = np.array([as_float(step.loss_ns) for step in run.steps])
    columns: dict[str, Any] = {
        "x": list(range(len(run.steps))),
        "step": [str(step.key) for step in run.steps],
        "label": list(run.labels),
        "time": times,
        "loss": losses,
        "without": times - np.maximum(np.nan_to_num(losses), 0.0),
        "max_rank": [as_float(step.max_rank) for step in run.steps],
        "min_rank": [as_float(step.min_rank) for step in run.steps],
        "cause": [describe_cause(step.cause) for step in run.steps],
        "index": [as_float(None if begin is None else begin.kernel_index) for begin in begins],
        "kernel": ["" if begin is None else short_name(begin.kernel_name)[:120] for begin in begins],
        "embedded": [at in embedded for at in range(len(run.steps))],
    }
    classes = [
        None if ns_of_class is None else (*ns_of_class[:5], sum(ns_of_class[5:]))
        for ns_of_class in (step.by_class for step in run.steps)
    ]
    for number, part in enumerate(_CLASSES):
        columns[part] = [math.nan if ns_of_class is None else ns_of_class[number] for ns_of_class in classes]
        columns[f"{part}_from"], columns[f"{part}_to"] = _stacked(classes, number)
    return columns


def _stacked(classes: Sequence[tuple[int, ...] | None], number: int) -> tuple[list[float], list[float]]:
    """Return where the bars of a class begin and end: stacked on earlier ones of the same sign."""
    begins, ends = [], []
    for parts in classes:
        if parts is None:
            begins.append(math.nan)
            ends.append(math.nan)
            continue
        height_ns = parts[number]
        below = sum(part for part in parts[:number] if (part > 0) == (height_ns > 0))
        begins.append(below)
        ends.append(below + height_ns)
    return begins, ends


_LEAST_HEIGHT, _MOST_HEIGHT, _ROW_PX = 120, 300, 17
_FRAME_PX = 44  # px above and below the rows
_HOST_CHARS = 10  # characters of a host name
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
    height = min(max(_LEAST_HEIGHT, _ROW_PX * rows + _FRAME_PX), _MOST_HEIGHT)
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
        nan_color=colors.TRANSPARENT,
        name="excess:colours",
        tags=[colors.LIGHT_HEAT_PALETTE, colors.DARK_HEAT_PALETTE, colors.GREY_PALETTE],
    )
    wide = drawn.columns[0][1] + 1
    place: dict[str, Any] = {"image": "image", "x": -0.5, "y": -0.5, "dw": wide * len(drawn.columns), "dh": rows}
    self_time_source = None
    if drawn.own is not None:
        self_time_source = ColumnDataSource(_layer_columns(drawn.own), name="own:excess")
        # in grey below the other layers; the page hides it below layers of own time
        below = LogColorMapper(
            palette=colors.GREY_PALETTE, low=drawn.own.low_ns, high=drawn.own.high_ns, nan_color=colors.TRANSPARENT
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
    return ColumnDataSource(_layer_columns(layer), name=name, tags=[layer.low_ns, layer.high_ns, unknown, is_grey])


def _layer_columns(layer: HeatmapLayer) -> dict[str, Any]:
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
        words.append(rank_label if host is None else f"{abbreviate(host, _HOST_CHARS)} · {rank_label}")
    plot.yaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0, desired_num_ticks=max(6, min(len(words), 14)))
    plot.yaxis.formatter = CustomJSTickFormatter(
        args={"words": words}, code="return Number.isInteger(tick) ? words[tick] ?? '' : '';"
    )
    plot.ygrid.grid_line_color = None
