"""The figures over the steps of a run: step time with the loss in it, loss by class, the map of ranks by steps."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from jitter.core.formatting import abbreviate
from jitter.core.names.kernels import short_name
from jitter.report.figures import colors
from jitter.report.figures.frame import add_hover, add_legend, as_float, format_ticks, format_time_axis, new_figure
from jitter.report.figures.models import EDGES, Field, Figure, Model, Source, script
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
    x_range: Model
    steps: Source
    shown: Source
    """Position of the step in view."""
    picked: Source
    """The cell or step that was clicked: `step` (position) and `rank` (NaN for a whole step)."""


def build_step_axis(run: RunSeries, shown: int, embedded: Collection[int]) -> StepAxis:
    """Build the axis of the run. The step at position `shown` is in view; `embedded` steps have details in the page."""
    return StepAxis(
        run,
        Model("Range1d", start=-0.5 - 0.02 * len(run.steps), end=len(run.steps) * 1.02 - 0.5, name="steps-range"),
        Source(_columns(run, embedded), name="steps"),
        Source({"x": [shown]}, name="shown:step"),
        Source({"step": [], "rank": []}, name="picked"),
    )


def new_step_figure(axis: StepAxis, title: str, name: str, y_range: Model, height: int) -> Figure:
    plot = new_figure(title, name, height, STEP_MARGIN_PX, x_range=axis.x_range, y_range=y_range)
    code = "return Number.isInteger(tick) ? labels[tick] ?? '' : '';"
    ticker = Model("BasicTicker", min_interval=1, num_minor_ticks=0)
    plot.x_axis.update(ticker=ticker, formatter=format_ticks(code, labels=list(axis.run.labels)))
    plot.x_grid.update(grid_line_color=None)
    return plot


def draw_run(axis: StepAxis, drawn: ExcessHeatmap | None, culprits: Collection[int]) -> list[Figure]:
    """Draw the map of ranks by steps, and the time of each step, where they are known."""
    figures = [] if drawn is None else [draw_heatmap(axis, drawn, culprits)]
    has_times = any(step.step_time_ns is not None for step in axis.run.steps)
    return [*figures, draw_step_times(axis)] if has_times else figures


def draw_step_times(axis: StepAxis) -> Figure:
    """Draw the time of each step, the loss as the upper part of its bar; a click chooses a step."""
    y_range = Model("DataRange1d", start=0)
    plot = new_step_figure(axis, "step time, loss on top", "step_time", y_range, 110)
    format_time_axis(plot)
    _mark_step_in_view(plot, axis)
    loss = colors.CALM if axis.run.is_calm else colors.MAX_RANK
    bar: dict[str, Any] = {"x": Field("x"), "width": 0.7, "line_color": None}
    usual = Model("VBar", **bar, top=Field("without"), fill_color=colors.OTHERS)
    lost = Model("VBar", **bar, top=Field("time"), bottom=Field("without"), fill_color=loss)
    bars = [plot.draw(axis.steps, glyph) for glyph in (usual, lost)]
    y_range.update(renderers=bars)
    plot.y_axis.update(ticker=Model("BasicTicker", desired_num_ticks=3))
    add_hover(plot, bars, "step", "x", _ROWS, {"source": axis.steps}, mode="vline", limit=1)
    return plot


def draw_loss_by_class(axis: StepAxis) -> Figure:
    """Draw each step's loss by class; classes above 0 are stacked upwards, classes below 0 downwards."""
    y_range = Model("DataRange1d")
    plot = new_step_figure(axis, "loss of each step by class", "step_split", y_range, 240)
    format_time_axis(plot, "loss")
    _mark_step_in_view(plot, axis)
    bars: dict[str, Model] = {}
    for part, (words, colour, pattern) in _CLASSES.items():
        if part in ("after", "rest") and not _is_seen(axis, part):
            continue  # most jobs have none, or nearly
        bar = Model(
            "VBar",
            x=Field("x"),
            top=Field(f"{part}_to"),
            bottom=Field(f"{part}_from"),
            width=0.7,
            fill_color=colour,
            line_color=colors.TEXT,
            line_width=0.5,
            hatch_pattern=pattern,
            hatch_color=colors.TEXT,
            hatch_alpha=0.6,
            hatch_scale=7,
        )
        bars[words] = plot.draw(axis.steps, bar)
    y_range.update(renderers=list(bars.values()))
    zero = Model("Span", location=0, dimension="width", line_color=colors.TEXT, line_width=1, line_alpha=0.55)
    plot.attributes["center"].append(zero)
    add_legend(plot, [(words, [bar]) for words, bar in bars.items()])
    plot.x_axis.update(axis_label="epoch/step" if any("/" in label for label in axis.run.labels) else "step")
    add_hover(plot, list(bars.values()), "step", "x", _ROWS, {"source": axis.steps}, mode="vline", limit=1)
    return plot


def _mark_step_in_view(plot: Figure, axis: StepAxis) -> None:
    plot.draw(axis.shown, Model("VSpan", x=Field("x"), line_color=colors.MARK, line_width=9, line_alpha=0.28))
    pick = "const at = Math.round(cb_obj.x); if (at >= 0 && at < count) picked.data = {step: [at], rank: [NaN]};"
    plot.on_event("tap", script(pick, picked=axis.picked, count=len(axis.run.steps)))


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
    heights = np.full((len(_CLASSES), len(run.steps)), np.nan)
    for at, step in enumerate(run.steps):
        if step.by_class is not None:
            heights[:, at] = *step.by_class[:5], sum(step.by_class[5:])
    for number, part in enumerate(_CLASSES):
        height, earlier = heights[number], heights[:number]
        below = np.where((earlier > 0) == (height > 0), earlier, 0.0).sum(axis=0) + 0.0 * height  # of the same sign
        columns |= {part: height, f"{part}_from": below, f"{part}_to": below + height}
    return columns


_LEAST_HEIGHT, _MOST_HEIGHT, _ROW_PX = 120, 300, 17
_FRAME_PX = 44  # px above and below the rows
_LABEL_PX = 13  # px of the label of a row
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


def draw_heatmap(axis: StepAxis, drawn: ExcessHeatmap, culprits: Collection[int] = ()) -> Figure:
    """Draw the first layer, with the sources of all layers attached as `layer:<name>`. A click chooses a cell.

    Rows of the ranks in `culprits` get an arrow.
    """
    rows = len(drawn.rows)
    height = min(max(_LEAST_HEIGHT, _ROW_PX * rows + _FRAME_PX), _MOST_HEIGHT)
    pad = 0.5 + 0.006 * rows  # the first row at the top, with room for half an arrow
    y_range = Model("Range1d", start=rows - 1 + pad, end=-pad)
    plot = new_step_figure(axis, "every rank and step", "excess", y_range, height)
    sources = [_source(layer, f"layer:{layer.name}", axis) for layer in drawn.layers]
    shown = _source(drawn.layers[0], "shown:excess", axis)
    first = drawn.layers[0]
    mapper = Model(
        "LogColorMapper",
        palette=colors.GREY_PALETTE if _is_grey(first, axis) else colors.LIGHT_HEAT_PALETTE,
        low=first.low_ns,
        high=first.high_ns,
        nan_color=colors.TRANSPARENT,
        name="excess:colours",
        tags=[colors.LIGHT_HEAT_PALETTE, colors.DARK_HEAT_PALETTE, colors.GREY_PALETTE],
    )
    wide = drawn.columns[0][1] + 1
    place: dict[str, Any] = {"image": Field("image"), "x": -0.5, "y": -0.5, "dw": wide * len(drawn.columns), "dh": rows}
    self_time_source = None
    if drawn.own is not None:
        self_time_source = Source(_layer_columns(drawn.own), name="own:excess")
        # in grey below the other layers; the page hides it below layers of own time
        below = Model("LogColorMapper", palette=colors.GREY_PALETTE, nan_color=colors.TRANSPARENT)
        below.update(low=drawn.own.low_ns, high=drawn.own.high_ns)
        grey = Model("Image", **place, color_mapper=below)
        plot.draw(self_time_source, grey, level="image", name="own:cells", visible=first.shows_loss)
    image = plot.draw(shown, Model("Image", **place, color_mapper=mapper), level="image")
    _draw_holes(plot, drawn)
    _draw_hosts(plot, drawn)
    named = [at for at, ranks in enumerate(drawn.rows) if not set(ranks).isdisjoint(culprits)]
    _draw_arrows(plot, named, len(axis.run.steps))
    plot.draw(axis.shown, Model("VSpan", x=Field("x"), line_color=colors.MARK, line_width=2, line_alpha=0.9))
    cursor = Source({"left": [], "right": [], "top": [], "bottom": []}, name="cursor")
    plot.draw(cursor, Model("Quad", **EDGES, fill_color=None, line_color=colors.TEXT, line_width=2.5))
    _label(plot, drawn, named, apart=math.ceil(_LABEL_PX * rows / (height - _FRAME_PX)))
    args: dict[str, Any] = {"shown": shown, "steps": axis.steps, "wide": wide, "rows": rows, "own": self_time_source}
    cell = args | {"hosts": list(drawn.hosts)}
    # keyed by rank: Bokeh calls no formatter for a NaN image value
    add_hover(plot, [image], "cell", "rank", ("who", "when", "excess"), cell, point_policy="follow_mouse")
    plot.on_event("tap", script(_PICK, **args, picked=axis.picked))
    plot.update(tags=sources)
    return plot


def _source(layer: HeatmapLayer, name: str, axis: StepAxis) -> Source:
    """Return a layer as a source. Tags: ends of the colour scale, what a cell without a value means, whether grey."""
    unknown = "next to no share of the loss" if layer.shows_loss else "unknown"
    return Source(_layer_columns(layer), name, [layer.low_ns, layer.high_ns, unknown, _is_grey(layer, axis)])


def _is_grey(layer: HeatmapLayer, axis: StepAxis) -> bool:
    return axis.run.is_calm and layer.name != NETWORK_LAYER


def _layer_columns(layer: HeatmapLayer) -> dict[str, Any]:
    # half the bytes where the numbers allow it
    small = np.uint16 if max(layer.rank.max(initial=0), layer.step.max(initial=0)) < 2**16 else np.int32
    return {"image": [layer.excess_ns], "rank": [layer.rank.astype(small)], "step": [layer.step.astype(small)]}


def _draw_holes(plot: Figure, drawn: ExcessHeatmap) -> None:
    columns: dict[str, Any] = {
        "left": [drawn.columns[first][0] - 0.5 for _, first, _ in drawn.holes],
        "right": [drawn.columns[last][1] + 0.5 for _, _, last in drawn.holes],
        "top": [row - 0.5 for row, _, _ in drawn.holes],
        "bottom": [row + 0.5 for row, _, _ in drawn.holes],
    }
    pattern = {"hatch_pattern": "right_diagonal_line", "hatch_color": colors.OTHERS, "hatch_scale": 8}
    plot.draw(Source(columns, "holes"), Model("Quad", **EDGES, fill_color=None, line_color=None, **pattern))


def _draw_hosts(plot: Figure, drawn: ExcessHeatmap) -> None:
    """Draw a line between hosts, unless most rows are hosts."""
    borders = [at - 0.5 for at in range(1, len(drawn.rows)) if drawn.hosts[at] != drawn.hosts[at - 1]]
    if len(borders) > len(drawn.rows) / 2:
        borders = []
    thin = len(drawn.rows) > 60
    line = Model("HSpan", y=Field("y"), line_color=colors.TEXT)
    line.update(line_width=0.5 if thin else 1, line_alpha=0.25 if thin else 0.5)
    plot.draw(Source({"y": borders}, "host-borders"), line)


def _draw_arrows(plot: Figure, named: Collection[int], steps: int) -> None:
    """Draw an arrow at the rows of the findings' ranks, one for neighbours, with a line along them."""
    first = [at for at in named if at - 1 not in named]
    last = [at for at in named if at + 1 not in named]
    x, middle = steps - 0.5 + 0.01 * steps, [(a + b) / 2 for a, b in zip(first, last, strict=True)]
    source = Source({"x": [x] * len(first), "y": middle, "first": first, "last": last}, name="named")
    line = Model("Segment", x0=Field("x"), y0=Field("first"), x1=Field("x"), y1=Field("last"))
    line.update(line_color=colors.TEXT, line_width=2)
    arrow = Model("Scatter", x=Field("x"), y=Field("y"), marker="triangle", angle=math.pi / 2, size=8)
    arrow.update(fill_color=colors.TEXT, line_color=colors.TEXT)
    for glyph in (line, arrow):
        plot.draw(source, glyph)


def _label(plot: Figure, drawn: ExcessHeatmap, named: Sequence[int], apart: int) -> None:
    """Label rows that are so far apart: those of findings, then the first of each host, then the others."""
    words = []
    for host, ranks in zip(drawn.hosts, drawn.rows, strict=True):
        rank_label = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"
        words.append(rank_label if host is None else f"{abbreviate(host, _HOST_CHARS)} · {rank_label}")
    borders = [at for at in range(len(words)) if at == 0 or drawn.hosts[at] != drawn.hosts[at - 1]]
    ticks: list[int] = []
    for at in (*named, *borders, *range(len(words))):
        if all(abs(at - tick) >= apart for tick in ticks):
            ticks.append(at)
    ticker = Model("FixedTicker", ticks=sorted(ticks))
    formatter = format_ticks("return Number.isInteger(tick) ? words[tick] ?? '' : '';", words=words)
    plot.y_axis.update(ticker=ticker, formatter=formatter)
    plot.y_grid.update(grid_line_color=None)
