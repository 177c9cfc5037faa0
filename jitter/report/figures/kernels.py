"""The figures of one step: max and min rank along its kernels, maps of ranks by kernels, collectives by size.

Collectives have a strip of their own, so that waiting sets the scale of no other figure. No scale is finer than 1% of
the step.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from jitter.core.errors import UsageError
from jitter.core.formatting import format_time
from jitter.core.names.kernels import OPERATIONS, short_name
from jitter.report.figures import colors
from jitter.report.figures.frame import (
    add_hover,
    add_legend,
    format_bytes_axis,
    format_ticks,
    format_time_axis,
    new_figure,
    read_script,
)
from jitter.report.figures.models import EDGES, Field, Figure, Model, Source, script
from jitter.report.views.step_view import (
    SELF_EXCESS,
    SERIES,
    UNKNOWN_OPERATION,
    KernelDurations,
    KernelMap,
    StepGrid,
    StepView,
    build_rank_line,
    is_known,
)

LINES: Final = ("max", "min", "low", "high")
MAX_WAITS: Final = 12
"""Most long waits with a line; the longest."""
MAX_RANK_LINES: Final = 16
"""Most lines of chosen ranks that a reader can distinguish."""
DASHES: Final = ("solid", "dashed")
CHOSEN_COLUMNS: Final = ("xs", "ys", "rank", "color", "dash")
"""Columns of a source of chosen ranks: one line a rank."""
_LABELLED_WIDTH: Final = 0.03
"""Least part of the kernels that a piece of the band takes to have its rank written in it."""
_PICK_KERNEL: Final = "kernels.tags = [Math.round(cb_obj.x)];"
_ROWS: Final = ("name", "max", "min", "others", "chosen", "wait", "full")


class PanelText(NamedTuple):
    """The words of one figure over the kernels."""

    title: str
    title_of_values: str
    """If the values of a single rank are drawn."""
    height: int
    is_signed: bool = True


PANELS: Final[Mapping[str, PanelText]] = {
    SELF_EXCESS: PanelText(
        "cumulative: own time behind the median rank", "cumulative: own time above its other steps", 144
    ),
    "gap": PanelText("gap before the kernel − mean, without waits (CPU)", "gap before the kernel", 104),
    "duration": PanelText("duration − mean, compute only (GPU)", "kernel duration", 104),
    "ttke": PanelText("time to kernel end − mean over ranks", "time to kernel end", 170),
    "launch_latency": PanelText("launch latency: launching call to start", "launch latency", 130, False),
}


@dataclass(frozen=True)
class KernelAxis:
    """The step in view as Bokeh sources, with the range and the crosshair that its figures share."""

    x_range: Model
    sources: dict[str, Source]
    """Named `shown:<part>`, one for each part of `view_columns`."""
    chosen: dict[str, Source]
    """Lines of chosen ranks, by series."""
    matches: Source
    """Kernels that a search matches (`x`)."""
    crosshair: Model


class RankLine(NamedTuple):
    """How the line of a chosen rank looks."""

    rank: int
    color: str
    dash: str


def view_columns(view: StepView) -> dict[str, dict[str, Any]]:
    """Return the data of a step by source: one for each series, `view`, `names`, `collectives`, `runs` and marks."""
    # half the bytes; exact to the nanosecond up to 16 ms, seven digits beyond
    columns: dict[str, dict[str, Any]] = {
        name: {key: _compact(values) for key, values in vars(view.series[name]).items()} for name in SERIES
    }
    for name in SERIES:
        columns[name]["zero"] = np.zeros(view.series[name].kernel_index.size, np.int8)
    columns["view"] = {
        "max_rank": [view.max_rank],
        "min_rank": [view.min_rank],
        "values": [view.values],
        "kernels": [view.kernels],
        "scale_ns": [view.scale_ns],
        "is_calm": [view.is_calm],
    }
    columns["names"] = {"full": list(view.names), "short": [short_name(name) for name in view.names]}
    columns["runs"] = _run_columns(view)
    columns["collectives"] = {
        name: _compact(values) for name, values in vars(view.collectives).items() if name != "operation"
    }
    columns["collectives"]["operation"] = [word.replace("_", " ") for word in view.collectives.operation]
    columns["waits"] = {"kernel_index": view.collectives.kernel_index[list(view.waits[:MAX_WAITS])]}
    columns["marks"] = _mark_columns(view)
    return columns


def _compact(values: Any) -> Any:
    return values.astype(np.float32) if isinstance(values, np.ndarray) and values.dtype == np.float64 else values


def _run_columns(view: StepView) -> dict[str, Any]:
    runs = view.runs
    fixed = {view.max_rank: colors.MAX_RANK, view.min_rank: colors.MIN_RANK}
    rank_colors = [
        colors.OTHERS if view.is_calm else fixed.get(rank, colors.RANKS[rank % len(colors.RANKS)])
        for rank in runs.rank.tolist()
    ]
    is_labelled = runs.right - runs.left >= _LABELLED_WIDTH * view.kernels
    return {
        "row": runs.row,
        "left": _compact(runs.left),
        "right": _compact(runs.right),
        "bottom": _compact(1.06 - runs.row),
        "top": _compact(1.94 - runs.row),
        "rank": runs.rank,
        "clear": runs.is_clear.astype(np.int8),
        "color": rank_colors,
        "alpha": _compact(np.where(runs.is_clear, 0.8, 0.18)),
        "middle": _compact((runs.left + runs.right) / 2),
        "height": _compact(1.5 - runs.row),
        "text": [str(rank) if wide else "" for rank, wide in zip(runs.rank.tolist(), is_labelled, strict=True)],
    }


def _mark_columns(view: StepView) -> dict[str, Any]:
    """Return the marks with text: the divergence, and the longest wait."""
    flags = []
    if view.divergence is not None:
        flags.append((view.divergence, f"diverges at kernel {view.divergence}", 1.0))
    if view.waits:
        met, at = view.collectives, view.waits[0]
        # another rank that came last may have waited itself
        whom = f" for rank {met.last[at]}" if met.last[at] == view.max_rank else ""
        words = f"rank {met.waiter[at]} waited {format_time(float(met.waited_ns[at]))}{whom}"
        flags.append((int(met.kernel_index[at]), words, 0.0))
    leftwards = [index > 0.5 * view.kernels for index, _, _ in flags]  # on the side with more room
    return {
        "kernel_index": [index for index, _, _ in flags],
        "text": [text for _, text, _ in flags],
        "alpha": [alpha for _, _, alpha in flags],
        "align": ["right" if is_left else "left" for is_left in leftwards],
        "offset": [-6 if is_left else 6 for is_left in leftwards],
        "height": [0.62 - 0.11 * n for n in range(len(flags))],
    }


def build_kernel_axis(view: StepView) -> KernelAxis:
    """Build the axis for a view. The page's script replaces the data of the sources named `shown:…`."""
    pad = max(0.5, 0.01 * view.kernels)  # the same as in the page's script
    empty: dict[str, Any] = {column: [] for column in CHOSEN_COLUMNS}
    return KernelAxis(
        Model("Range1d", start=-pad, end=view.kernels - 1 + pad, name="kernels"),
        {part: Source(columns, name=f"shown:{part}") for part, columns in view_columns(view).items()},
        {name: Source(dict(empty), name=f"chosen:{name}") for name in SERIES},
        Source({"x": []}, name="matches"),
        Model("Span", dimension="height", line_color=colors.OTHERS, line_width=1, line_dash="dotted", name="crosshair"),
    )


def draw_divergence(axis: KernelAxis, views: Iterable[StepView]) -> list[Figure]:
    """Draw the cumulative divergence, the band of ranks, gap, duration, waits and transfers of collectives.

    The cumulative divergence is that of own time; of the time to kernel end if own time is known in none of the views.
    """
    cumulative = SELF_EXCESS if any(is_known(view.series[SELF_EXCESS]) for view in views) else "ttke"
    drawn = [draw_series(axis, cumulative, is_flagged=True)]
    if not axis.sources["view"].data["values"][0]:
        drawn.append(_draw_rank_band(axis))
    drawn += [draw_series(axis, "gap"), draw_series(axis, "duration"), _draw_waits(axis)]
    for plot in drawn[:-1]:
        plot.x_axis.update(visible=False)
    drawn[-1].x_axis.update(axis_label="kernel index (launch order in the step)")
    return drawn


def draw_other_series(axis: KernelAxis, views: Sequence[StepView]) -> list[Figure]:
    """Draw the series that the divergence does not: time to kernel end, and launch latency where it is known."""
    drawn = [draw_series(axis, "ttke")]
    if any(is_known(view.series["launch_latency"]) for view in views):
        drawn.append(draw_series(axis, "launch_latency"))
    return drawn


def draw_series(axis: KernelAxis, name: str, *, is_flagged: bool = False) -> Figure:
    """Draw max rank, min rank, the band of the other ranks and chosen ranks; with marks and text if `is_flagged`."""
    source, words, view = axis.sources[name], PANELS[name], axis.sources["view"]
    titles = words.title, words.title_of_values
    plot = _new_panel(axis, name, titles[view.data["values"][0]], words.height, titles=titles)
    max_color = colors.CALM if view.data["is_calm"][0] else colors.MAX_RANK
    x = {"x": Field("kernel_index")}
    plot.draw(source, Model("VArea", **x, y1=Field("low"), y2=Field("high"), fill_color=colors.OTHERS, fill_alpha=0.3))
    zero = Model("Line", **x, y=Field("zero"), line_color=colors.TEXT, line_width=1, line_alpha=0.55)
    read = plot.draw(source, zero)
    least = Model("Line", **x, y=Field("min"), line_color=colors.MIN_RANK, line_width=1.6, line_dash=[5, 2])
    plot.draw(source, least)
    most = Model("Line", **x, y=Field("max"), line_color=max_color, line_width=2, name="max-line")
    most.update(tags=[colors.MAX_RANK, colors.CALM])
    plot.draw(source, most)
    lines = Model("MultiLine", xs=Field("xs"), ys=Field("ys"), line_color=Field("color"), line_dash=Field("dash"))
    lines.update(line_width=1.6)
    plot.draw(axis.chosen[name], lines)
    plot.draw(axis.matches, Model("VSpan", x=Field("x"), line_color=colors.MARK, line_width=3, line_alpha=0.35))
    if is_flagged:
        _draw_flags(plot, axis)
    args = {"source": source, "chosen": axis.chosen[name], "signed": words.is_signed}
    args |= {part: axis.sources[part] for part in ("names", "view", "collectives")}
    # limit: between two kernels, two are equally near
    add_hover(
        plot,
        [read],
        "kernel",
        "kernel_index",
        _ROWS,
        args,
        limit=1,
        mode="vline",
        line_policy="nearest",
        point_policy="follow_mouse",
    )
    _follow(axis, plot, source, axis.chosen[name], LINES, has_floor=not words.is_signed)
    return plot


def _new_panel(
    axis: KernelAxis, name: str, title: str, height: int, y_range: Model | None = None, titles: Sequence[str] = ()
) -> Figure:
    plot = new_figure(title, name, height, titles=titles, x_range=axis.x_range, y_range=y_range or Model("Range1d"))
    format_time_axis(plot)
    plot.y_axis.update(ticker=Model("BasicTicker", desired_num_ticks=max(3, height // 45)))
    plot.tools.append(Model("CrosshairTool", overlay=axis.crosshair))
    plot.on_event("tap", script(_PICK_KERNEL, kernels=axis.x_range))
    return plot


def _follow(
    axis: KernelAxis,
    plot: Figure,
    source: Source,
    chosen: Source | None,
    lines: Sequence[str],
    *,
    has_floor: bool,
) -> None:
    """Fit y to the lines in view, now and when the data or the range of kernels changes."""
    view = axis.sources["view"]
    start, end = fit_range([source.data[line] for line in lines], view.data["scale_ns"][0], has_floor=has_floor)
    y_range: Model = plot.attributes["y_range"]
    y_range.update(start=start, end=end)
    plot.y_axis.update(axis_label="≥ 1% of step")
    args = {"kernels": axis.x_range, "view": view, "source": source, "chosen": chosen, "lines": list(lines)}
    fit = script(read_script("fit.js"), **args, y_range=y_range, floor=has_floor)
    for end_of_range in ("start", "end"):
        axis.x_range.on_change(end_of_range, fit)
    for data_source in (source, view, *(() if chosen is None else (chosen,))):
        data_source.on_change("data", fit)


def fit_range(lines: Iterable[Any], least: float, *, has_floor: bool = False) -> tuple[float, float]:
    """Return start and end of y that show all lines and 0, and at least `least`; from 0 up with `has_floor`.

    `fit.js` computes the same for the kernels in view.
    """
    finite_lines = [values[np.isfinite(values)] for values in (np.asarray(line, np.float64) for line in lines)]
    low = min([0.0, *(float(finite_line.min()) for finite_line in finite_lines if finite_line.size)])
    high = max([0.0, *(float(finite_line.max()) for finite_line in finite_lines if finite_line.size)])
    missing, pad = max(0.0, least - (high - low)), 0.06 * max(high - low, least)
    if has_floor:
        return 0.0, high + missing + pad
    return low - missing / 2 - pad, high + missing / 2 + pad


def _draw_flags(plot: Figure, axis: KernelAxis) -> None:
    plot.update(extra_y_ranges={"strip": Model("Range1d", start=0, end=1)})
    waits, marks, x = axis.sources["waits"], axis.sources["marks"], {"x": Field("kernel_index")}
    plot.draw(waits, Model("VSpan", **x, line_color=colors.COLLECTIVE, line_width=1.2, line_alpha=0.7))
    line = Model("VSpan", **x, line_color=colors.MARK, line_dash="dashed", line_width=1.8, line_alpha=Field("alpha"))
    plot.draw(marks, line)
    text = Model("Text", **x, y=Field("height"), text=Field("text"), text_color=colors.TEXT, text_font_size="12px")
    text.update(text_align=Field("align"), text_baseline="top", x_offset=Field("offset"))
    text.update(background_fill_color=colors.BACKGROUND, background_fill_alpha=0.75)
    plot.draw(marks, text, y_range_name="strip", name="flags")


def _draw_rank_band(axis: KernelAxis) -> Figure:
    """Draw which ranks are furthest behind and ahead at each kernel; pale where all ranks are close together."""
    plot = _new_panel(axis, "ranks", "", 50, Model("Range1d", start=0, end=2))
    formatter = format_ticks("return tick > 1 ? 'behind' : 'ahead';")
    plot.y_axis.update(ticker=Model("FixedTicker", ticks=[0.5, 1.5]), formatter=formatter)
    for grid in (plot.x_grid, plot.y_grid):
        grid.update(grid_line_color=None)
    source = axis.sources["runs"]
    piece = Model("Quad", **EDGES, fill_color=Field("color"), fill_alpha=Field("alpha"), line_color=colors.BACKGROUND)
    pieces = plot.draw(source, piece)
    words = Model("Text", x=Field("middle"), y=Field("height"), text=Field("text"), text_color=colors.TEXT)
    words.update(text_font_size="11px", text_align="center", text_baseline="middle")
    plot.draw(source, words)
    args = {"source": source}
    add_hover(plot, [pieces], "run", "left", ("who", "where", "clear"), args, point_policy="follow_mouse")
    return plot


def _draw_waits(axis: KernelAxis) -> Figure:
    """Draw of each collective the transfer, on top of it the longest wait of a rank, and what a benchmark gives."""
    source = axis.sources["collectives"]
    has_benchmark = np.isfinite(source.data["expected_ns"]).any()
    parts = "wait (pale), transfer, benchmark (–)" if has_benchmark else "longest wait (pale), transfer (dark)"
    title = f"collectives: {parts}"  # no longer: it has to fit a phone
    plot = _new_panel(axis, "waits", title, 112)
    x = {"x": Field("kernel_index")}
    bar = {"x0": Field("kernel_index"), "y0": 0, "x1": Field("kernel_index"), "line_color": colors.COLLECTIVE}
    for end, alpha in (("waiter_ns", 0.4), ("most_ns", 1.0)):
        plot.draw(source, Model("Segment", **bar, y1=Field(end), line_width=4, line_alpha=alpha))
    plot.draw(source, _dash(**x, y=Field("expected_ns"), size=11, line_color=colors.TEXT, line_width=2))
    dot = Model("Scatter", **x, y=Field("waiter_ns"), size=5, fill_color=colors.COLLECTIVE)
    dot.update(line_color=colors.COLLECTIVE)
    dots = plot.draw(source, dot)
    rows = ("what", "waited", "took", "expected", "size")
    add_hover(plot, [dots], "collective", "waiter", rows, {"source": source}, mode="vline", limit=1)
    _follow(axis, plot, source, None, ("waiter_ns", "most_ns", "expected_ns"), has_floor=True)
    return plot


def _dash(**attributes: Any) -> Model:
    return Model("Scatter", marker="dash", **attributes)


def style_ranks(ranks: Sequence[int]) -> list[RankLine]:
    """Return the look of each chosen rank, no two the same; for the figures and their legend."""
    return [
        RankLine(rank, colors.RANKS[at % len(colors.RANKS)], DASHES[at // len(colors.RANKS) % len(DASHES)])
        for at, rank in enumerate(ranks)
    ]


def rank_columns(grid: StepGrid, ranks: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return the lines of chosen ranks, by series; `grid` is the grid of a view.

    Raises `UsageError` for a rank that is not in the step and for more than `MAX_RANK_LINES` ranks.
    """
    if len(ranks) > MAX_RANK_LINES:
        raise UsageError(f"{len(ranks)} ranks are too many lines", f"choose at most {MAX_RANK_LINES}")
    styles = style_ranks(ranks)
    columns = {}
    for name in SERIES:
        lines = [build_rank_line(grid, rank, name) for rank in ranks]
        columns[name] = {
            "xs": [at for at, _ in lines],
            "ys": [values for _, values in lines],
            "rank": list(ranks),
            "color": [style.color for style in styles],
            "dash": [style.dash for style in styles],
        }
    return columns


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


def draw_kernel_map(axis: KernelAxis, cells: KernelMap) -> Figure:
    """Draw what each kernel adds on each rank; a click chooses the kernel."""
    columns = {name: Source(data, name=f"shown:{name}") for name, data in map_columns(cells).items()}
    source, labels = columns["map"], columns["cells"]
    rows = len(cells.ranks)
    y_range = Model("Range1d", start=rows - 0.5, end=-0.5, name="map-ranks")
    height = min(max(150, 14 * rows + 70), 420)
    title = "rank × kernel: gap and duration above their mean"
    plot = new_figure(title, "map", height, x_range=axis.x_range, y_range=y_range)
    scale_ns = axis.sources["view"].data["scale_ns"][0]
    mapper = Model(
        "LogColorMapper",
        palette=colors.LIGHT_HEAT_PALETTE,
        nan_color=colors.TRANSPARENT,
        low=scale_ns / 50,
        high=map_ceiling(cells, scale_ns),
        low_color=colors.TRANSPARENT,
        name="map:colours",
        tags=[colors.LIGHT_HEAT_PALETTE, colors.DARK_HEAT_PALETTE],
    )
    glyph = Model("Image", image=Field("image"), x=-0.5, y=-0.5, dw=Field("dw"), dh=Field("dh"), color_mapper=mapper)
    image = plot.draw(source, glyph, level="image")
    code = "return Number.isInteger(tick) ? cells.data.rows[0][tick] ?? '' : '';"
    ticker = Model("BasicTicker", min_interval=1, num_minor_ticks=0)
    plot.y_axis.update(ticker=ticker, formatter=format_ticks(code, cells=labels), axis_label="rank")
    plot.x_axis.update(axis_label="kernel index")
    plot.y_grid.update(grid_line_color=None)
    args = {"source": source, "cells": labels}
    add_hover(plot, [image], "map", "here", ("who", "where", "added"), args, point_policy="follow_mouse")
    plot.on_event("tap", script(_PICK_KERNEL, kernels=axis.x_range))
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


def draw_kernel_strip(durations: KernelDurations, kernel: int) -> Figure:
    """Draw the duration of one kernel on each rank, its steps side by side."""
    source = Source(strip_columns(durations, kernel), name="strip")
    ranks = [str(rank) for rank in durations.ranks]
    x_range = Model("Range1d", start=-0.6, end=len(ranks) - 0.4)
    title = "one kernel: its duration on each rank, the steps side by side"
    plot = new_figure(title, "strip", 200, x_range=x_range, y_range=Model("DataRange1d", start=0))
    format_time_axis(plot, "duration")
    point = Model("Scatter", x=Field("x"), y=Field("took"), size=5, fill_color=colors.MIN_RANK, fill_alpha=0.7)
    point.update(line_color=colors.TEXT, line_alpha=0.3)
    points = plot.draw(source, point)
    code = "return Number.isInteger(tick) ? ranks[tick] ?? '' : '';"
    ticker = Model("BasicTicker", min_interval=1, num_minor_ticks=0, desired_num_ticks=min(len(ranks), 16))
    plot.x_axis.update(ticker=ticker, formatter=format_ticks(code, ranks=ranks), axis_label="rank")
    add_hover(plot, [points], "strip", "rank", ("who", "took"), {"source": source})
    return plot


_MARKERS: Final = (
    *("circle", "square", "triangle", "diamond", "cross", "inverted_triangle"),
    *("plus", "hex", "star", "x", "asterisk"),
)


def draw_collective_sizes(axis: KernelAxis) -> Figure:
    """Draw the figure for the step in view."""
    source = axis.sources["collectives"]
    title = "last arrival to end, against message size"
    plot = new_figure(title, "collectives", 290, x_kind="Log", y_kind="Log")
    x = {"x": Field("bytes")}
    plot.draw(source, _dash(**x, y=Field("usual_ns"), size=12, line_color=colors.OTHERS, line_width=2.5))
    plot.draw(source, _dash(**x, y=Field("expected_ns"), size=12, line_color=colors.TEXT, line_width=2.5))
    line = Model("Segment", x0=Field("bytes"), y0=Field("least_ns"), x1=Field("bytes"), y1=Field("most_ns"))
    line.update(line_color=colors.COLLECTIVE, line_width=1)
    plot.draw(source, line)
    words = [word.replace("_", " ") for word in (*OPERATIONS, UNKNOWN_OPERATION)]
    marker = Field("operation", Model("CategoricalMarkerMapper", factors=words, markers=list(_MARKERS)))
    point = Model("Scatter", **x, y=Field("most_ns"), marker=marker, size=9, line_color=colors.TEXT)
    point.update(fill_color=colors.COLLECTIVE, fill_alpha=0.6)
    took = plot.draw(source, point)
    format_bytes_axis(plot)
    # each tick in a unit of its own: one unit does not fit a logarithmic axis;
    # a logarithmic ticker would have only multiples of 100 µs between 20 and 400 µs
    ticks = [mantissa * 10.0**power for power in range(12) for mantissa in (1, 3)]
    formatter = format_ticks(read_script() + "return time(tick);")
    plot.y_axis.update(ticker=Model("FixedTicker", ticks=ticks), formatter=formatter, axis_label="last arrival to end")
    add_legend(plot, [(Field("operation"), [took])])
    rows = ("what", "size", "took", "expected", "usual", "waited")
    add_hover(plot, [took], "collective", "waiter", rows, {"source": source}, limit=1)
    return plot
