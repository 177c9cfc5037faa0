"""The parts that all figures share: size, tools, axes in readable units."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from bokeh.layouts import group_tools
from bokeh.models import (
    BoxZoomTool,
    CustomJSTickFormatter,
    GridPlot,
    PanTool,
    ResetTool,
    SaveTool,
    Toolbar,
    ToolProxy,
    WheelZoomTool,
)
from bokeh.models.annotations import Title
from bokeh.plotting import figure

from jitter.report.figures.palette import BACKGROUND_COLOR, GRID_COLOR, TEXT_COLOR


def read_script(name: str) -> str:
    """Return the text of a script of this package."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def new_figure(title: Title, height: int, left: int = 84, right: int = 18, **options: Any) -> figure:
    """Return an empty figure, as wide as the page. Dragging zooms along x; the mouse wheel scrolls the page.

    `left` and `right` are the margins in px for the labels of y; figures that share x have the same margins.
    """
    zoom = BoxZoomTool(dimensions="width")
    plot = figure(
        title=title,
        height=height,
        sizing_mode="stretch_width",
        tools=[
            zoom,
            PanTool(dimensions="width"),
            WheelZoomTool(dimensions="width"),
            ResetTool(),
            SaveTool(),
        ],
        active_drag=zoom,  # the default would be to pan
        active_scroll=None,
        toolbar_location=None,
        outline_line_color=None,
        background_fill_color=BACKGROUND_COLOR,
        border_fill_color=BACKGROUND_COLOR,
        min_border_left=left,
        min_border_right=right,
        **options,
    )
    for axis in plot.axis:
        axis.axis_label_text_font_style = "normal"
        axis.axis_line_color = axis.major_tick_line_color = axis.axis_label_text_color = TEXT_COLOR
        axis.major_label_text_color = TEXT_COLOR
        axis.minor_tick_line_color = None
    for grid in plot.grid:
        grid.grid_line_color = GRID_COLOR
    return plot


def format_time_axis(plot: figure, label: str) -> None:
    """Format a y axis in ns with one of ns, µs, ms and s, chosen by the ticks."""
    plot.yaxis.formatter = CustomJSTickFormatter(code=read_script("ticks.js"))
    plot.yaxis.axis_label = label


def figure_title(text: str, name: str, tags: list[str] | None = None) -> Title:
    """Return the title of a figure."""
    return Title(text=text, name=name, text_font_size="13px", text_color=TEXT_COLOR, tags=tags or [])


def place_legend_above(plot: figure) -> None:
    """Move the legend between title and frame: inside, it would cover what the figure shows."""
    (legend,) = plot.legend
    plot.center = [one for one in plot.center if one is not legend]
    legend.orientation, legend.border_line_color, legend.margin = "horizontal", None, 0
    legend.background_fill_color, legend.label_text_color = BACKGROUND_COLOR, TEXT_COLOR
    plot.add_layout(legend, "above")


def stack_figures(figures: Sequence[figure]) -> GridPlot:
    """Stack figures vertically with one toolbar."""
    # as `gridplot`, which takes a quarter of a second to look for figures in all data of the figures
    merged = group_tools(
        [tool for one in figures for tool in one.toolbar.tools],
        merge=lambda kind, _: kind() if issubclass(kind, SaveTool) else None,
    )
    zooms = [t for t in merged if isinstance(t, ToolProxy) and isinstance(t.tools[0], BoxZoomTool)]
    toolbar = Toolbar(
        tools=merged, logo=None, active_drag=zooms[0] if zooms else figures[0].toolbar.active_drag, active_scroll=None
    )
    return GridPlot(
        children=[(one, row, 0) for row, one in enumerate(figures)],
        toolbar=toolbar,
        toolbar_location="right",
        sizing_mode="stretch_width",
    )
