"""Loss of each step."""

from bokeh.models import DataRange1d
from bokeh.plotting import figure

from jitter.report.figures.frame import format_time_axis
from jitter.report.figures.palette import MAX_RANK_COLOR
from jitter.report.figures.step_axis import StepAxis, add_step_hover, new_step_figure


def build(axis: StepAxis) -> figure:
    """Draw the figure."""
    y_range = DataRange1d(start=0)
    plot = new_step_figure(
        axis, "Loss of each step: time saved if every rank ran at the median speed", "step_loss", y_range
    )
    format_time_axis(plot, "loss")
    bars = plot.vbar("x", top="bar", width=0.7, source=axis.steps, fill_color=MAX_RANK_COLOR, line_color=None)
    y_range.renderers = [bars]
    add_step_hover(plot, [bars], axis)
    return plot
