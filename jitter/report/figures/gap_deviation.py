"""Gap before a kernel minus its mean over ranks: deviations point to the CPU."""

from bokeh.plotting import figure

from jitter.report.figures.kernel_axis import KernelAxis
from jitter.report.figures.metric_figure import draw_metric


def build(axis: KernelAxis) -> figure:
    """Draw the figure."""
    return draw_metric(
        axis, "gap", "Gap before the kernel − its mean over ranks", "Gap before the kernel", "gap", signed=True
    )
