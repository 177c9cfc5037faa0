"""Collectives by message size: time from the last arrival to the end, with the median over the run."""

from typing import Final

from bokeh.models import CustomJSTickFormatter, FixedTicker
from bokeh.plotting import figure
from bokeh.transform import factor_mark

from jitter.core.names.kernels import OPERATIONS
from jitter.report.figures import colors
from jitter.report.figures.frame import add_hover, format_bytes_axis, new_figure, read_script
from jitter.report.figures.kernels import KernelAxis
from jitter.report.views.collective_waits import UNKNOWN_OPERATION

_MARKERS: Final = (
    *("circle", "square", "triangle", "diamond", "cross", "inverted_triangle"),
    *("plus", "hex", "star", "x", "asterisk"),
)


def draw_collective_sizes(axis: KernelAxis) -> figure:
    """Draw the figure for the step in view."""
    source = axis.sources["collectives"]
    title = "last arrival to end, against message size"
    plot = new_figure(title, "collectives", 290, x_axis_type="log", y_axis_type="log")
    plot.scatter("bytes", "usual_ns", source=source, marker="dash", size=12, line_color=colors.OTHERS, line_width=2.5)
    plot.scatter("bytes", "expected_ns", source=source, marker="dash", size=12, line_color=colors.TEXT, line_width=2.5)
    plot.segment("bytes", "least_ns", "bytes", "most_ns", source=source, line_color=colors.COLLECTIVE, line_width=1)
    words = [word.replace("_", " ") for word in (*OPERATIONS, UNKNOWN_OPERATION)]
    took = plot.scatter(
        "bytes",
        "most_ns",
        source=source,
        marker=factor_mark("operation", list(_MARKERS), words),
        size=9,
        fill_color=colors.COLLECTIVE,
        fill_alpha=0.6,
        line_color=colors.TEXT,
        legend_field="operation",
    )
    format_bytes_axis(plot)
    # each tick in a unit of its own: one unit does not fit a logarithmic axis;
    # a logarithmic ticker would have only multiples of 100 µs between 20 and 400 µs
    plot.yaxis.ticker = FixedTicker(ticks=[mantissa * 10.0**power for power in range(12) for mantissa in (1, 3)])
    plot.yaxis.formatter = CustomJSTickFormatter(code=read_script() + "return time(tick);")
    plot.yaxis.axis_label = "last arrival to end"
    legend = plot.legend[0]
    legend.location, legend.background_fill_color, legend.label_text_color = "top_left", colors.BACKGROUND, colors.TEXT
    legend.border_line_color = None
    rows = ("what", "size", "took", "expected", "usual", "waited")
    add_hover(plot, [took], "collective", "waiter", rows, {"source": source}, limit=1)
    return plot
