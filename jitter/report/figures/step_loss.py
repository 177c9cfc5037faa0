"""What jitter costs each step, and the magnitude: how late its max rank is."""

from bokeh.models import DataRange1d
from bokeh.plotting import figure

from jitter.report.figures.frame import time_axis
from jitter.report.figures.palette import MAX_RANK, OTHERS
from jitter.report.figures.step_axis import StepAxis, add_hover, step_figure


def build(axis: StepAxis) -> figure:
    """Draw the figure."""
    y_range = DataRange1d()
    plot = step_figure(axis, "Loss and magnitude of every step", "step_loss", y_range=y_range)
    time_axis(plot, "time")
    bars = plot.vbar("x", top="loss", width=0.7, source=axis.steps, fill_color=OTHERS, line_color=None, fill_alpha=0.7)
    points = plot.scatter(
        "x", "magnitude", source=axis.steps, marker="triangle", size=9, fill_color=MAX_RANK, line_color=MAX_RANK
    )
    y_range.renderers = [bars, points]
    add_hover(plot, [bars], axis.steps)
    return plot
