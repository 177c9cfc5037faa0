"""The parts that all figures share: colours, size, tools, axes in readable units, tooltips."""

import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from bokeh.layouts import group_tools
from bokeh.models import (
    BoxZoomTool,
    CustomJSHover,
    CustomJSTickFormatter,
    DataRange1d,
    GridPlot,
    HoverTool,
    LogTicker,
    PanTool,
    ResetTool,
    SaveTool,
    Toolbar,
    ToolProxy,
    WheelZoomTool,
)
from bokeh.models.annotations import Title
from bokeh.models.renderers import GlyphRenderer
from bokeh.plotting import figure

from jitter.report.figures import colors

LEFT_MARGIN_PX, RIGHT_MARGIN_PX = 74, 12
TOOLTIP: Final = '<div style="max-width:34em;line-height:1.45">{}</div>'


def read_script(*names: str) -> str:
    """Return scripts of this package as one, after the functions that write times and sizes."""
    scripts = files(__package__)
    return "\n".join(scripts.joinpath(name).read_text(encoding="utf-8") for name in ("words.js", *names))


def new_figure(
    title: str, name: str, height: int, left: int = LEFT_MARGIN_PX, titles: Sequence[str] = (), **options: Any
) -> figure:
    """Return an empty figure, as wide as its place on the page. Dragging zooms along x; the wheel scrolls the page.

    `left` is the margin in px for the labels of y; figures that share x have the same margin. `titles` are those that
    the page's script chooses from. Without a range, an axis shows all data.
    """
    options = {"x_range": DataRange1d(), "y_range": DataRange1d()} | options
    words = Title(text=title, name=f"title:{name}", text_font_size="12px", text_color=colors.TEXT, standoff=3)
    words.visible, words.tags = title != "", list(titles)
    zoom = BoxZoomTool(dimensions="width")
    plot = figure(
        title=words,
        height=height,
        sizing_mode="stretch_width",
        tools=[zoom],
        active_drag=zoom,  # the default would be to pan
        active_scroll=None,
        toolbar_location=None,
        outline_line_color=None,
        background_fill_color=colors.BACKGROUND,
        border_fill_color=colors.BACKGROUND,
        min_border_left=left,
        min_border_right=RIGHT_MARGIN_PX,
        min_border_top=2,
        min_border_bottom=4,
        name=f"figure:{name}",
        **options,
    )
    for axis in plot.axis:
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_font_size = "11px"
        axis.axis_line_color = axis.major_tick_line_color = axis.axis_label_text_color = colors.TEXT
        axis.major_label_text_color = colors.TEXT
        axis.minor_tick_line_color = None
    for grid in plot.grid:
        grid.grid_line_color = colors.GRID
    return plot


def format_time_axis(plot: figure, label: str = "") -> None:
    """Format a y axis in ns with one of ns, µs, ms and s, chosen by the ticks."""
    plot.yaxis.formatter = CustomJSTickFormatter(code=read_script("ticks.js"))
    plot.yaxis.axis_label = label


def format_bytes_axis(plot: figure) -> None:
    """Format a logarithmic x axis in bytes, with ticks at powers of two."""
    plot.xaxis.ticker = LogTicker(base=2, desired_num_ticks=8, num_minor_ticks=0)
    plot.xaxis.formatter = CustomJSTickFormatter(code=read_script() + "return bytes(tick);")
    plot.xaxis.axis_label = "message size"


def as_float(value: float | None) -> float:
    """Return a value as a source holds it: NaN for an unknown one."""
    return math.nan if value is None else float(value)


def add_hover(
    plot: figure,
    renderers: "Sequence[GlyphRenderer[Any]]",
    kind: str,
    column: str,
    rows: Sequence[str],
    args: Mapping[str, Any],
    **options: Any,
) -> None:
    """Add a tooltip whose rows `hover.js` writes; the first is bold. `column` is a column of the data, no NaN in it."""
    lines = [f"<div>@{column}{{{row}}}</div>" for row in rows]
    lines[0] = f"<b>{lines[0]}</b>"
    start, *kinds = read_script("hover.js").split("// kind: ")
    (code,) = (block.partition("\n")[2] for block in kinds if block.partition("\n")[0] == kind)
    words = CustomJSHover(args=dict(args), code=start + code)
    tool = HoverTool(
        renderers=list(renderers),
        attachment="horizontal",
        tooltips=TOOLTIP.format("".join(lines)),
        formatters={f"@{column}": words},
        **options,
    )
    plot.add_tools(tool)


def place_legend_above(plot: figure) -> None:
    """Move the legend between title and frame: inside, it would cover what the figure shows."""
    (legend,) = plot.legend
    plot.center = [renderer for renderer in plot.center if renderer is not legend]
    legend.orientation, legend.border_line_color, legend.margin = "horizontal", None, 0
    legend.background_fill_color, legend.label_text_color = colors.BACKGROUND, colors.TEXT
    plot.add_layout(legend, "above")


def stack_figures(figures: Sequence[figure], *, has_toolbar: bool = True) -> GridPlot:
    """Stack figures vertically with one toolbar, or with none: the page of a report has labelled buttons."""
    toolbar = _merge_tools(figures) if has_toolbar else Toolbar(logo=None)
    for renderer in () if has_toolbar else (renderer for plot in figures for renderer in plot.renderers):
        renderer.update(nonselection_glyph=None, muted_glyph=None)  # copies that nothing on a page shows
    return GridPlot(
        children=[(plot, row, 0) for row, plot in enumerate(figures)],
        toolbar=toolbar,
        toolbar_location="right" if has_toolbar else None,
        sizing_mode="stretch_width",
    )


def _merge_tools(figures: Sequence[figure]) -> Toolbar:
    """Return one toolbar for all figures, with tools to pan, zoom by the wheel, reset and save."""
    for plot in figures:
        dimensions: Any = {"dimensions": "width"}
        plot.add_tools(PanTool(**dimensions), WheelZoomTool(**dimensions), ResetTool(), SaveTool())
    # as `gridplot`, which takes a quarter of a second to look for figures in all data of the figures
    merged = group_tools(
        [tool for plot in figures for tool in plot.toolbar.tools],
        merge=lambda kind, _: kind() if issubclass(kind, SaveTool) else None,
    )
    zooms = [tool for tool in merged if isinstance(tool, ToolProxy) and isinstance(tool.tools[0], BoxZoomTool)]
    drag = zooms[0] if zooms else figures[0].toolbar.active_drag
    return Toolbar(tools=merged, logo=None, active_drag=drag, active_scroll=None)
