"""Time of each step."""

import numpy as np
from bokeh.models import Range1d
from bokeh.plotting import figure

from jitter.report.figures.frame import format_time_axis
from jitter.report.figures.palette import TEXT_COLOR
from jitter.report.figures.step_axis import StepAxis, add_step_hover, new_step_figure


def build(axis: StepAxis) -> figure:
    """Draw the figure."""
    plot = new_step_figure(axis, "Step time", "step_time", _y_range(axis))
    format_time_axis(plot, "step time")
    plot.line("x", "time", source=axis.steps, line_color=TEXT_COLOR, line_width=1.2)
    points = plot.scatter("x", "time", source=axis.steps, size=6, fill_color=TEXT_COLOR, line_color=TEXT_COLOR)
    add_step_hover(plot, [points], axis)
    return plot


def _y_range(axis: StepAxis) -> Range1d:
    """Return a range of all times, no narrower than 1%: ticks of equal times would be fractions of a ns."""
    times = np.array(axis.steps.data["time"], np.float64)
    least, most = float(np.nanmin(times)), float(np.nanmax(times))
    pad = max(0.12 * (most - least), 0.005 * most, 1.0)
    return Range1d(start=least - pad, end=most + pad)
