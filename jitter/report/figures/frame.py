"""What all figures share: size, tools, axes in readable units."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from bokeh.layouts import gridplot
from bokeh.models import (
    BoxZoomTool,
    CustomJSTickFormatter,
    GridPlot,
    PanTool,
    ResetTool,
    SaveTool,
    ToolProxy,
    WheelZoomTool,
)
from bokeh.models.annotations import Title
from bokeh.plotting import figure

from jitter.report.figures.palette import BACKGROUND_COLOR, GRID_COLOR, TEXT_COLOR


def read_script(name: str) -> str:
    """The text of a script beside this file."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def new_figure(title: Title, height: int, left: int = 84, right: int = 18, **options: Any) -> figure:
    """Make an empty figure: as wide as the page, zoom along x by dragging; scrolling is left to the page.

    `left` and `right` are room beside it, px, for the labels of y and the like: the same in figures that share x.
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
        active_drag=zoom,  # left to itself Bokeh would pan
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
    """Write y in ns as ns, µs, ms or s, whichever the ticks need."""
    plot.yaxis.formatter = CustomJSTickFormatter(code=read_script("ticks.js"))
    plot.yaxis.axis_label = label


def figure_title(text: str, name: str, tags: list[str] | None = None) -> Title:
    """Make a figure's title."""
    return Title(text=text, name=name, text_font_size="13px", text_color=TEXT_COLOR, tags=tags or [])


def stack_figures(figures: Sequence[figure]) -> GridPlot:
    """Put figures that belong together one above the other, with one toolbar."""
    grid = gridplot([[one] for one in figures], sizing_mode="stretch_width", merge_tools=True, toolbar_location="right")
    grid.toolbar.logo = None
    # the merged toolbar has proxies of the figures' tools, and chooses anew
    zooms = [t for t in grid.toolbar.tools if isinstance(t, ToolProxy) and isinstance(t.tools[0], BoxZoomTool)]
    grid.toolbar.active_drag = zooms[0] if zooms else figures[0].toolbar.active_drag
    return grid
