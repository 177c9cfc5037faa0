"""Time to kernel end against its mean: who is late, by how much, from where on."""

from bokeh.plotting import figure

from jitter.report.figures.kernel_axis import KernelAxis, draw_metric


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
