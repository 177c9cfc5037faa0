"""The min rank and the max rank of every step: does it always hit the same one?"""

from bokeh.models import BasicTicker, Range1d
from bokeh.plotting import figure

from jitter.report.figures.palette import MAX_RANK, MIN_RANK
from jitter.report.figures.step_axis import StepAxis, add_hover, step_figure


def build(axis: StepAxis, ranks: list[int]) -> figure:
    """Draw the figure; `ranks` are all ranks of the run."""
    pad = max(0.5, 0.04 * (ranks[-1] - ranks[0]))
    y_range = Range1d(start=ranks[0] - pad, end=ranks[-1] + pad)
    plot = step_figure(axis, "Min rank and max rank of every step", "step_ranks", y_range, height=260)
    plot.yaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    plot.yaxis.axis_label = "rank"
    plot.xaxis.axis_label = "epoch/step" if axis.labels else "step"
    least = plot.scatter(
        "x",
        "min_rank",
        source=axis.cohorts,
        marker="circle",
        size=8,
        fill_color=None,
        line_color=MIN_RANK,
        line_width=2,
        line_alpha="alpha",
    )
    most = plot.scatter(
        "x",
        "max_rank",
        source=axis.cohorts,
        marker="triangle",
        size=10,
        fill_color=MAX_RANK,
        fill_alpha="alpha",
        line_color=MAX_RANK,
        line_alpha="alpha",
    )
    add_hover(plot, [least, most], axis.cohorts)
    return plot
