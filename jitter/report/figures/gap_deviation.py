"""Gap before a kernel against the mean gap before it: is it the CPU?"""

from bokeh.plotting import figure

from jitter.report.figures.kernel_axis import KernelAxis, metric_figure


def build(axis: KernelAxis) -> figure:
    """Draw the figure."""
    return metric_figure(
        axis, "gap", "Gap before the kernel − its mean over ranks", "Gap before the kernel", "gap", signed=True
    )
