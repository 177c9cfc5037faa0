"""Kernel duration minus its mean over ranks: deviations point to the GPU."""

from bokeh.plotting import figure

from jitter.report.figures.kernel_axis import KernelAxis
from jitter.report.figures.metric_figure import draw_metric


def build(axis: KernelAxis) -> figure:
    """Draw the figure."""
    return draw_metric(
        axis, "duration", "Kernel duration − its mean over ranks", "Kernel duration", "duration", signed=True
    )
