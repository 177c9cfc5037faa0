"""Kernel duration against the mean duration of that kernel: is it the GPU?"""

from bokeh.plotting import figure

from jitter.report.figures.kernel_axis import KernelAxis, metric_figure


def build(axis: KernelAxis) -> figure:
    """Draw the figure."""
    return metric_figure(
        axis, "duration", "Kernel duration − its mean over ranks", "Kernel duration", "duration", signed=True
    )
