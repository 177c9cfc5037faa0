"""The shared parts of the figures over the steps: linked axis, source, tooltip, chosen step."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from bokeh.models import (
    BasicTicker,
    ColumnDataSource,
    CustomJS,
    CustomJSHover,
    CustomJSTickFormatter,
    HoverTool,
    Range,
    Range1d,
    VSpan,
)
from bokeh.models.renderers import GlyphRenderer
from bokeh.plotting import figure

from jitter.core.names.kernels import short_name
from jitter.report.figures.frame import figure_title, new_figure, read_script
from jitter.report.figures.palette import MARK_COLOR
from jitter.report.text.step_text import describe_cause
from jitter.report.views.run_series import RunSeries

LEFT_MARGIN_PX = 132
"""Room for the labels of hosts and ranks."""
RIGHT_MARGIN_PX = 92
"""Room for the colour scale of the map."""
_CLASSES: Final = ("start", "cpu", "after", "gpu", "transfer", "rest")
"""Columns of the loss by class, in the order of `ClassShares`, the last three of which are one."""
_NAN = float("nan")
_TOOLTIP = """
<div style="max-width:34em;line-height:1.45">
<div><b>@x{step}</b></div>
<div>@x{time}</div>
<div>@x{loss}</div>
<div style="color:#b04a00">@x{max}</div>
<div style="color:#005a8e">@x{min}</div>
<div>@x{parts}</div>
<div>@x{cause}</div>
<div>@x{began}</div>
</div>"""


@dataclass(frozen=True)
class StepAxis:
    """The steps as a source, one row each; x is the position in the run."""

    x_range: Range1d
    labels: tuple[str, ...]
    steps: ColumnDataSource
    shown: ColumnDataSource
    """Position of the step in view."""
    picked: ColumnDataSource
    """The cell or step that was clicked: `step` (position) and `rank` (NaN for a whole step)."""


def build_step_axis(run: RunSeries, shown: int, embedded: Collection[int]) -> StepAxis:
    """Build the axis of the run. The step at position `shown` is in view; `embedded` steps have details in the page."""
    return StepAxis(
        x_range=Range1d(start=-0.5 - 0.02 * len(run.steps), end=len(run.steps) * 1.02 - 0.5, name="steps-range"),
        labels=run.labels,
        steps=ColumnDataSource(_columns(run, embedded), name="steps"),
        shown=ColumnDataSource({"x": [shown]}, name="shown:step"),
        picked=ColumnDataSource({"step": [], "rank": []}, name="picked"),
    )


def new_step_figure(axis: StepAxis, title: str, name: str, y_range: Range, height: int = 170) -> figure:
    """Return an empty figure over the steps, with the step in view marked; a click chooses a step."""
    plot = new_bare_step_figure(axis, title, name, y_range, height)
    plot.add_glyph(axis.shown, VSpan(x="x", line_color=MARK_COLOR, line_width=9, line_alpha=0.28))
    pick = "const at = Math.round(cb_obj.x); if (at >= 0 && at < count) picked.data = {step: [at], rank: [NaN]};"
    plot.js_on_event("tap", CustomJS(args={"picked": axis.picked, "count": len(axis.labels)}, code=pick))
    return plot


def new_bare_step_figure(axis: StepAxis, title: str, name: str, y_range: Range, height: int) -> figure:
    """Return an empty figure over the steps, without marks."""
    plot = new_figure(
        figure_title(title, f"title:{name}"),
        height,
        LEFT_MARGIN_PX,
        RIGHT_MARGIN_PX,
        x_range=axis.x_range,
        y_range=y_range,
        name=f"figure:{name}",
    )
    plot.xaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    plot.xaxis.formatter = CustomJSTickFormatter(
        args={"labels": list(axis.labels)}, code="return Number.isInteger(tick) ? labels[tick] ?? '' : '';"
    )
    plot.xgrid.grid_line_color = None
    return plot


def add_step_hover(
    plot: figure, renderers: "Sequence[GlyphRenderer[Any]]", axis: StepAxis, mode: Literal["mouse", "vline"] = "vline"
) -> None:
    """Add the tooltip of a step."""
    rows = CustomJSHover(args={"source": axis.steps}, code=read_script("step_hover.js"))
    plot.add_tools(
        HoverTool(
            renderers=list(renderers),
            limit=1,
            mode=mode,
            point_policy="follow_mouse",
            attachment="horizontal",
            tooltips=_TOOLTIP,
            formatters={"@x": rows},
        )
    )


def _columns(run: RunSeries, embedded: Collection[int]) -> dict[str, Any]:
    begins = [step.divergence for step in run.steps]
    columns: dict[str, Any] = {
        "x": list(range(len(run.steps))),
        "step": [str(step.key) for step in run.steps],
        "label": list(run.labels),
        "time": [_known(step.step_time_ns) for step in run.steps],
        "loss": [_known(step.loss_ns) for step in run.steps],
        "bar": [max(_known(step.loss_ns), 0.0) for step in run.steps],
        "max_rank": [_known(step.max_rank) for step in run.steps],
        "min_rank": [_known(step.min_rank) for step in run.steps],
        "cause": [describe_cause(step.cause) for step in run.steps],
        "index": [_known(None if begin is None else begin.kernel_index) for begin in begins],
        "kernel": ["" if begin is None else short_name(begin.kernel_name)[:120] for begin in begins],
        "embedded": [at in embedded for at in range(len(run.steps))],
    }
    classes = [None if one is None else (*one[:5], sum(one[5:])) for one in (step.by_class for step in run.steps)]
    for number, part in enumerate(_CLASSES):
        columns[part] = [_NAN if one is None else one[number] for one in classes]
        above, below = _stacked(classes, number)
        columns[f"{part}_from"], columns[f"{part}_to"] = above, below
    return columns


def _stacked(classes: Sequence[tuple[int, ...] | None], number: int) -> tuple[list[float], list[float]]:
    """Return where the bars of a class begin and end: stacked on earlier ones of the same sign."""
    begins, ends = [], []
    for parts in classes:
        if parts is None:
            begins.append(_NAN)
            ends.append(_NAN)
            continue
        own = parts[number]
        below = sum(part for part in parts[:number] if (part > 0) == (own > 0))
        begins.append(below)
        ends.append(below + own)
    return begins, ends


def _known(value: float | None) -> float:
    return _NAN if value is None else float(value)
