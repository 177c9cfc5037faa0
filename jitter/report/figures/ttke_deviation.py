"""Time to kernel end minus its mean over ranks: which rank is late, by how much, from which kernel."""

from bokeh.plotting import figure

from jitter.report.figures.kernel_axis import KernelAxis
from jitter.report.figures.metric_figure import draw_metric


def build(axis: KernelAxis) -> figure:
    """Draw the figure."""
    return draw_metric(
        axis,
        "ttke",
        "Time to kernel end − its mean over ranks",
        "Time to kernel end",
        "time to kernel end",
        signed=True,
    )
