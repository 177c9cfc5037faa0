"""Each step's time."""

from bokeh.models import DataRange1d
from bokeh.plotting import figure

from jitter.report.figures.frame import time_axis
from jitter.report.figures.palette import INK
from jitter.report.figures.step_axis import StepAxis, add_hover, step_figure


def build(axis: StepAxis) -> figure:
    """Draw the figure."""
    y_range = DataRange1d()
    plot = step_figure(axis, "Step time", "step_time", y_range=y_range)
    time_axis(plot, "step time")
    plot.line("x", "time", source=axis.steps, line_color=INK, line_width=1.2)
    points = plot.scatter("x", "time", source=axis.steps, size=6, fill_color=INK, line_color=INK)
    y_range.renderers = [points]
    add_hover(plot, [points], axis)
    return plot
