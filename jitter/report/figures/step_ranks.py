"""Min rank and max rank of each step: is it always the same rank?"""

from collections.abc import Sequence

from bokeh.models import BasicTicker, Range1d
from bokeh.plotting import figure

from jitter.report.figures.palette import MAX_RANK_COLOR, MIN_RANK_COLOR
from jitter.report.figures.step_axis import StepAxis, add_step_hover, new_step_figure


def build(axis: StepAxis, ranks: Sequence[int]) -> figure:
    """Draw the figure; `ranks` are all ranks of the run, ascending."""
    pad = max(0.5, 0.04 * (ranks[-1] - ranks[0]))
    y_range = Range1d(start=ranks[0] - pad, end=ranks[-1] + pad)
    title = "Max rank (largest share of the loss) and min rank (waits longest) of each step"
    plot = new_step_figure(axis, title, "step_ranks", y_range, height=230)
    plot.yaxis.ticker = BasicTicker(min_interval=1, num_minor_ticks=0)
    plot.yaxis.axis_label = "rank"
    least = plot.scatter(
        "x",
        "min_rank",
        source=axis.steps,
        marker="circle",
        size=8,
        fill_color=None,
        line_color=MIN_RANK_COLOR,
        line_width=2,
    )
    most = plot.scatter(
        "x",
        "max_rank",
        source=axis.steps,
        marker="triangle",
        size=10,
        fill_color=MAX_RANK_COLOR,
        line_color=MAX_RANK_COLOR,
    )
    add_step_hover(plot, [least, most], axis, mode="mouse")
    return plot
