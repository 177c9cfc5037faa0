"""Collectives by message size: time from the last arrival to the end, with the median over the run."""

from typing import Final

from bokeh.models import CustomJSHover, CustomJSTickFormatter, DataRange1d, FixedTicker, HoverTool, LogTicker
from bokeh.plotting import figure
from bokeh.transform import factor_mark

from jitter.core.names.kernels import OPERATIONS
from jitter.report.figures.frame import figure_title, new_figure, read_script
from jitter.report.figures.kernel_axis import KernelAxis
from jitter.report.figures.palette import BACKGROUND_COLOR, COLLECTIVE_COLOR, OTHERS_COLOR, TEXT_COLOR
from jitter.report.views.collective_waits import UNKNOWN_OPERATION

_MARKERS: Final = (
    "circle",
    "square",
    "triangle",
    "diamond",
    "cross",
    "inverted_triangle",
    "plus",
    "hex",
    "star",
    "x",
    "asterisk",
)
_TOOLTIP: Final = """
<div style="max-width:34em;line-height:1.45">
<div><b>@bytes{what}</b></div>
<div>@bytes{size}</div>
<div>@bytes{took}</div>
<div>@bytes{usual}</div>
<div>@bytes{waited}</div>
</div>"""


def build(axis: KernelAxis) -> figure:
    """Draw the figure for the step in view."""
    title = "Collectives of the step in view: last arrival to end, against message size"
    plot = new_figure(
        figure_title(title, "title:collectives"),
        300,
        x_range=DataRange1d(),
        y_range=DataRange1d(),
        x_axis_type="log",
        y_axis_type="log",
        name="figure:collectives",
    )
    plot.scatter(
        "bytes", "usual_ns", source=axis.collectives, marker="dash", size=12, line_color=OTHERS_COLOR, line_width=2.5
    )
    plot.segment(
        "bytes", "least_ns", "bytes", "most_ns", source=axis.collectives, line_color=COLLECTIVE_COLOR, line_width=1
    )
    words = [word.replace("_", " ") for word in (*OPERATIONS, UNKNOWN_OPERATION)]
    took = plot.scatter(
        "bytes",
        "most_ns",
        source=axis.collectives,
        marker=factor_mark("operation", list(_MARKERS), words),
        size=9,
        fill_color=COLLECTIVE_COLOR,
        fill_alpha=0.6,
        line_color=TEXT_COLOR,
        legend_field="operation",
    )
    plot.xaxis.ticker = LogTicker(base=2, desired_num_ticks=8, num_minor_ticks=0)
    # a logarithmic ticker would have only multiples of 100 µs between 20 and 400 µs
    plot.yaxis.ticker = FixedTicker(ticks=[mantissa * 10.0**power for power in range(12) for mantissa in (1, 3)])
    plot.xaxis.formatter = CustomJSTickFormatter(code=read_script("bytes.js"))
    plot.yaxis.formatter = CustomJSTickFormatter(code=read_script("one_tick.js"))
    plot.xaxis.axis_label, plot.yaxis.axis_label = "message size", "last arrival to end"
    legend = plot.legend[0]
    legend.location, legend.background_fill_color, legend.label_text_color = "top_left", BACKGROUND_COLOR, TEXT_COLOR
    legend.border_line_color = None
    rows = CustomJSHover(args={"source": axis.collectives}, code=read_script("collective_hover.js"))
    plot.add_tools(HoverTool(renderers=[took], limit=1, tooltips=_TOOLTIP, formatters={"@bytes": rows}))
    return plot
