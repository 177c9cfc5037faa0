"""Launch to start of each kernel: near its floor the CPU is not ahead, and every hiccup of it opens a gap."""

from bokeh.plotting import figure

from jitter.report.figures.kernel_axis import KernelAxis, metric_figure


def build(axis: KernelAxis) -> figure:
    """Draw the figure."""
    title = "Launch latency: launching call to kernel start"
    return metric_figure(axis, "launch_latency", title, title, "launch latency", signed=False)
