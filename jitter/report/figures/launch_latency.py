"""Time from launch to start of each kernel: near its floor, the CPU is not ahead of the GPU."""

from bokeh.plotting import figure

from jitter.report.figures.kernel_axis import KernelAxis
from jitter.report.figures.metric_figure import draw_metric


def build(axis: KernelAxis) -> figure:
    """Draw the figure."""
    title = "Launch latency: launching call to kernel start"
    return draw_metric(axis, "launch_latency", title, title, "launch latency", signed=False)
