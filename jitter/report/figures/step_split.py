"""Each step's loss by class: CPU, GPU or network."""

from typing import Any, Final

import numpy as np
from bokeh.models import DataRange1d
from bokeh.models.annotations import Legend, LegendItem, Span
from bokeh.plotting import figure

from jitter.report.figures.frame import format_time_axis
from jitter.report.figures.palette import (
    AFTER_LAUNCH_COLOR,
    BACKGROUND_COLOR,
    CPU_COLOR,
    GPU_COLOR,
    LATE_START_COLOR,
    TEXT_COLOR,
    TRANSFER_COLOR,
)
from jitter.report.figures.step_axis import StepAxis, add_step_hover, new_step_figure

# patterns distinguish the parts without colour
_DRAWN: Final = {
    "start": ("late start", LATE_START_COLOR, "horizontal_line"),
    "cpu": ("CPU", CPU_COLOR, "right_diagonal_line"),
    "after": ("after last launch", AFTER_LAUNCH_COLOR, "cross"),
    "gpu": ("GPU", GPU_COLOR, " "),
    "transfer": ("communication", TRANSFER_COLOR, "dot"),
    "rest": ("rest", TEXT_COLOR, "vertical_line"),
}


def build(axis: StepAxis) -> figure:
    """Draw the figure."""
    y_range = DataRange1d()
    title = "Loss of each step by class"
    plot = new_step_figure(axis, title, "step_split", y_range, height=260)
    format_time_axis(plot, "loss")
    bars: list[Any] = []
    items: list[LegendItem] = []
    for part, (words, colour, pattern) in _DRAWN.items():
        if part in ("after", "rest") and not _is_seen(axis, part):
            continue  # most jobs have none, or nearly
        bar = plot.vbar(
            "x",
            top=f"{part}_to",
            bottom=f"{part}_from",
            width=0.7,
            source=axis.steps,
            fill_color=colour,
            line_color=TEXT_COLOR,
            line_width=0.5,
            hatch_pattern=pattern,
            hatch_color=TEXT_COLOR,
            hatch_alpha=0.6,
            hatch_scale=7,
        )
        bars.append(bar)
        items.append(LegendItem(label=words, renderers=bars[-1:]))
    y_range.renderers = bars
    plot.add_layout(Span(location=0, dimension="width", line_color=TEXT_COLOR, line_width=1, line_alpha=0.55))
    plot.add_layout(
        Legend(
            items=items,
            orientation="horizontal",
            border_line_color=None,
            background_fill_color=BACKGROUND_COLOR,
            label_text_color=TEXT_COLOR,
        ),
        "above",
    )
    plot.xaxis.axis_label = "step"
    add_step_hover(plot, bars, axis)
    return plot


def _is_seen(axis: StepAxis, part: str) -> bool:
    """Return whether a class is at least a hundredth of the largest loss in some step."""
    own, losses = (np.abs(np.nan_to_num(np.asarray(axis.steps.data[name], np.float64))) for name in (part, "loss"))
    return bool(own.max(initial=0.0) > losses.max(initial=0.0) / 100)
