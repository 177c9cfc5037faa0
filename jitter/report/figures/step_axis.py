"""What the figures along the run's steps share: the linked axis, the rows, the tooltip."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bokeh.models import BasicTicker, ColumnDataSource, CustomJSHover, HoverTool, Range, Range1d, VSpan
from bokeh.models.renderers import GlyphRenderer
from bokeh.plotting import figure

from jitter.kernels import short_name
from jitter.report.figures.frame import frame, heading, script
from jitter.report.figures.palette import MARK
from jitter.run import RunSummary, StepOfRun
from jitter.steps import StepKey
from jitter.summary import StepSummary

_NAN = float("nan")
_TOOLTIP = """
<div style="max-width:34em;line-height:1.45">
<div><b>@row{step}</b></div>
<div>@row{time}</div>
<div>@row{loss}</div>
<div style="color:#b04a00">@row{max}</div>
<div style="color:#005a8e">@row{min}</div>
<div>@row{began}</div>
</div>"""


@dataclass(frozen=True)
class StepAxis:
    """The run's steps as sources: `steps` one row a step, `cohorts` one a cohort and step."""

    x_range: Range1d
    labels: dict[int, str]
    """Replaces positions by steps where step numbers alone do not order the run."""
    steps: ColumnDataSource
    cohorts: ColumnDataSource
    shown: ColumnDataSource


def places(run: RunSummary) -> dict[StepKey, int]:
    """Where each step stands along x: its number, or its position where epochs repeat the numbers."""
    keys = [step.step for step in run.steps]
    if len({key.epoch for key in keys}) == 1:
        return {key: key.step for key in keys}
    return {key: position for position, key in enumerate(keys)}


def step_axis(run: RunSummary, shown: StepKey) -> StepAxis:
    """Lay the run along x, with the step in view marked."""
    place = places(run)
    several_epochs = len({key.epoch for key in place}) > 1
    xs = list(place.values())
    rows = [(step, summary) for step in run.steps for summary in step.cohorts]
    return StepAxis(
        x_range=Range1d(start=min(xs) - 0.7, end=max(xs) + 0.7),
        labels={x: f"{key.epoch}/{key.step}" for key, x in place.items()} if several_epochs else {},
        steps=_source([(step, step.worst) for step in run.steps], place, "steps"),
        cohorts=_source(rows, place, "cohorts"),
        shown=ColumnDataSource({"x": [place[shown]]}, name="shown:step"),
    )


def step_figure(axis: StepAxis, title: str, name: str, y_range: Range, height: int = 190) -> figure:
    """Make an empty figure along the steps, the one in view marked."""
    plot = frame(heading(title, f"title:{name}"), height, x_range=axis.x_range, y_range=y_range, name=f"figure:{name}")
    plot.xaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    plot.xaxis.major_label_overrides = dict(axis.labels.items())
    plot.xgrid.grid_line_color = None
    plot.add_glyph(axis.shown, VSpan(x="x", line_color=MARK, line_width=9, line_alpha=0.28))
    return plot


def add_hover(plot: figure, renderers: "Sequence[GlyphRenderer[Any]]", source: ColumnDataSource) -> None:
    """Tell a step's figures where the pointer is at it."""
    rows = CustomJSHover(args={"source": source}, code=script("step_hover.js"))
    plot.add_tools(
        HoverTool(
            renderers=list(renderers),
            limit=1,
            mode="vline" if source.name == "steps" else "mouse",
            point_policy="follow_mouse",
            attachment="horizontal",
            tooltips=_TOOLTIP,
            formatters={"@row": rows},
        )
    )


def _source(rows: Sequence[tuple[StepOfRun, StepSummary]], place: dict[StepKey, int], name: str) -> ColumnDataSource:
    begins = [summary.divergence for _, summary in rows]
    several = len({summary.cohort for _, summary in rows}) > 1
    return ColumnDataSource(
        {
            "row": list(range(len(rows))),
            "x": [place[step.step] for step, _ in rows],
            "step": [str(step.step) + (f", cohort {s.cohort}" if several else "") for step, s in rows],
            "time": [_known(step.step_time_ns) for step, _ in rows],
            "loss": [_known(summary.loss_ns) for _, summary in rows],
            "magnitude": [_known(summary.max_deviation_ns) for _, summary in rows],
            "early": [_known(summary.min_deviation_ns) for _, summary in rows],
            "max_rank": [_known(summary.max_rank) for _, summary in rows],
            "min_rank": [_known(summary.min_rank) for _, summary in rows],
            "alpha": [1.0 if summary is step.worst else 0.35 for step, summary in rows],
            "index": [_known(None if begin is None else begin.kernel_index) for begin in begins],
            "kernel": ["" if begin is None else short_name(begin.kernel_name)[:120] for begin in begins],
        },
        name=name,
    )


def _known(value: float | None) -> float:
    return _NAN if value is None else value
