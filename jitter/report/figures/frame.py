"""The parts that all figures share: colours, size, tools, axes in readable units, tooltips."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from bokeh.layouts import group_tools
from bokeh.models import (
    BoxZoomTool,
    CustomJSHover,
    CustomJSTickFormatter,
    GridPlot,
    HoverTool,
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

# Colours that colour-blind readers can distinguish (Okabe and Ito); lines also differ in width and dash, for print.
# The page's script knows them by value and replaces them in dark mode: see `templates/appearance.js`.
MAX_RANK_COLOR: Final = "#d55e00"
MIN_RANK_COLOR: Final = "#0072b2"
OTHERS_COLOR: Final = "#999999"
CALM_COLOR: Final = "#57606a"
"""Of the max rank in a step in which no rank stands out."""
COLLECTIVE_COLOR: Final = "#009e73"
MARK_COLOR: Final = "#cc79a7"
TEXT_COLOR: Final = "#1c2128"
GRID_COLOR: Final = "#e6e8eb"
LATE_START_COLOR: Final = "#0072b2"
CPU_COLOR: Final = "#e69f00"
AFTER_LAUNCH_COLOR: Final = "#8c5a00"
GPU_COLOR: Final = "#d55e00"
TRANSFER_COLOR: Final = "#009e73"
RANK_COLORS: Final = ("#2e8b3d", "#a8479c", "#00939e", "#8a6d00", "#7b5fd6", "#c8396b", "#5f7f1c", "#a0522d")
"""Of other ranks; of medium lightness, legible on a light and on a dark ground."""
BACKGROUND_COLOR: Final = "#fefefe"  # not quite white: Bokeh omits default values from the page


def _between(stops: tuple[str, ...], steps: int = 64) -> list[str]:
    """Interpolate colours evenly between the stops."""
    points = [tuple(int(stop[at : at + 2], 16) for at in (1, 3, 5)) for stop in stops]
    shades = []
    for n in range(steps):
        part, share = divmod(n * (len(points) - 1) / (steps - 1), 1)
        low, high = points[int(part)], points[min(int(part) + 1, len(points) - 1)]
        shades.append("#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(low, high, strict=True)))
    return shades


# one hue that darkens (in dark mode: lightens), so that print in grey and all kinds of colour vision keep the order
LIGHT_HEAT_PALETTE: Final = _between(("#f4efe9", "#fdbe85", "#d45e02", "#4a1c00"))
DARK_HEAT_PALETTE: Final = _between(("#22262c", "#7a3a08", "#ff8a33", "#fff3e6"))
# for cells without a share of the loss, and for runs without a finding: grey of growing opacity, on either ground
GREY_PALETTE: Final = [f"#808080{alpha:02x}" for alpha in range(0x08, 0xC8, 6)]
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
    the page's script chooses from.
    """
    words = Title(text=title, name=f"title:{name}", text_font_size="12px", text_color=TEXT_COLOR, standoff=3)
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
        background_fill_color=BACKGROUND_COLOR,
        border_fill_color=BACKGROUND_COLOR,
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
        axis.axis_line_color = axis.major_tick_line_color = axis.axis_label_text_color = TEXT_COLOR
        axis.major_label_text_color = TEXT_COLOR
        axis.minor_tick_line_color = None
    for grid in plot.grid:
        grid.grid_line_color = GRID_COLOR
    return plot


def format_time_axis(plot: figure, label: str = "") -> None:
    """Format a y axis in ns with one of ns, µs, ms and s, chosen by the ticks."""
    plot.yaxis.formatter = CustomJSTickFormatter(code=read_script("ticks.js"))
    plot.yaxis.axis_label = label


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
    legend.background_fill_color, legend.label_text_color = BACKGROUND_COLOR, TEXT_COLOR
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
