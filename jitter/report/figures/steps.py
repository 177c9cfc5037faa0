"""The figures over the steps: step time with the loss in it, loss by class; linked axis, tooltip, step in view."""

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
    Range,
    Range1d,
    VSpan,
)
from bokeh.models.annotations import Legend, LegendItem, Span
from bokeh.plotting import figure

from jitter.core.names.kernels import short_name
from jitter.report.figures import colors
from jitter.report.figures.frame import add_hover, as_float, format_time_axis, new_figure
from jitter.report.text.step_text import describe_cause
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
