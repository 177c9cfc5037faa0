"""Cumulative excess of own time: which rank falls behind by its own time, by how much, along the whole step."""

from typing import Final

from bokeh.plotting import figure

from jitter.report.figures.kernel_axis import KernelAxis
from jitter.report.figures.metric_figure import draw_metric
from jitter.report.views.self_excess import SELF_EXCESS, SELF_EXCESS_SERIES

TITLE: Final = "Cumulative excess of own time: time to kernel end without waiting for other ranks − the median's"


def build(axis: KernelAxis) -> figure:
    """Draw the figure; the page chooses among CPU and GPU together, CPU, GPU and communication."""
    title_of_values = "Cumulative excess of own time over the median of its other steps"
    return draw_metric(
        axis,
        SELF_EXCESS,
        TITLE,
        title_of_values,
        "own excess",
        signed=True,
        flagged=True,
        parts=SELF_EXCESS_SERIES[1:],
    )
