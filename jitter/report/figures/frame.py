"""The parts that all figures share: colours, size, tools, axes in readable units, tooltips."""

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Literal

from jitter.core.grouping import by_key
from jitter.report.figures import colors
from jitter.report.figures.models import Field, Figure, Model, Text

LEFT_MARGIN_PX, RIGHT_MARGIN_PX = 74, 12
AxisKind = Literal["Linear", "Log", "Categorical"]
TOOLTIP: Final = '<div style="max-width:34em;line-height:1.45">{}</div>'


def read_script(*names: str) -> str:
    """Return scripts of this package as one, after the functions that write times and sizes."""
    scripts = files(__package__)
    return "\n".join(scripts.joinpath(name).read_text(encoding="utf-8") for name in ("words.js", *names))


def new_figure(
    title: str,
    name: str,
    height: int,
    left: int = LEFT_MARGIN_PX,
    titles: Sequence[str] = (),
    *,
    x_range: Model | None = None,
    y_range: Model | None = None,
    x_kind: AxisKind = "Linear",
    y_kind: AxisKind = "Linear",
) -> Figure:
    """Return an empty figure, as wide as its place on the page. Dragging zooms along x; the wheel scrolls the page.

    `left` is the margin in px for the labels of y; figures that share x have the same margin. `titles` are those that
    the page's script chooses from. Without a range, an axis shows all data.
    """
    words = Model("Title", text=title, name=f"title:{name}", text_font_size="12px", text_color=colors.TEXT, standoff=3)
    words.update(visible=title != "", tags=list(titles))
    plot = Figure(
        new_axis(x_kind),
        new_axis(y_kind),
        title=words,
        height=height,
        sizing_mode="stretch_width",
        toolbar_location=None,
        outline_line_color=None,
        background_fill_color=colors.BACKGROUND,
        border_fill_color=colors.BACKGROUND,
        min_border_left=left,
        min_border_right=RIGHT_MARGIN_PX,
        min_border_top=2,
        min_border_bottom=4,
        name=f"figure:{name}",
        x_range=x_range or Model("DataRange1d"),
        y_range=y_range or Model("DataRange1d"),
        x_scale=Model(f"{x_kind}Scale"),
        y_scale=Model(f"{y_kind}Scale"),
    )
    zoom = Model("BoxZoomTool", dimensions="width")
    plot.tools.append(zoom)
    # without the first, dragging would pan
    plot.update(toolbar=Model("Toolbar", tools=plot.tools, active_drag=zoom, active_scroll=None))
    for grid in (plot.x_grid, plot.y_grid):
        grid.update(grid_line_color=colors.GRID)
    return plot


def new_axis(kind: AxisKind) -> Model:
    return Model(
        f"{kind}Axis",
        axis_label_text_font_style="normal",
        axis_label_text_font_size="11px",
        axis_label_text_color=colors.TEXT,
        axis_line_color=colors.TEXT,
        major_tick_line_color=colors.TEXT,
        major_label_text_color=colors.TEXT,
        minor_tick_line_color=None,
    )


def format_ticks(code: str, **args: Any) -> Model:
    """Return a formatter of ticks: a script that returns the text of `tick`."""
    return Model("CustomJSTickFormatter", code=code, args=args)


def format_time_axis(plot: Figure, label: str = "") -> None:
    """Format a y axis in ns with one of ns, µs, ms and s, chosen by the ticks."""
    plot.y_axis.update(formatter=format_ticks(read_script("ticks.js")), axis_label=label)


def format_bytes_axis(plot: Figure) -> None:
    """Format a logarithmic x axis in bytes, with ticks at powers of two."""
    ticker = Model("LogTicker", base=2, desired_num_ticks=8, num_minor_ticks=0)
    formatter = format_ticks(read_script() + "return bytes(tick);")
    plot.x_axis.update(ticker=ticker, formatter=formatter, axis_label="message size")


def as_float(value: float | None) -> float:
    """Return a value as a source holds it: NaN for an unknown one."""
    return math.nan if value is None else float(value)


def add_hover(
    plot: Figure,
    renderers: Sequence[Model],
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
    words = Model("CustomJSHover", args=dict(args), code=start + code)
    tooltips = TOOLTIP.format("".join(lines))
    tool = new_hover(renderers, tooltips, attachment="horizontal", formatters={f"@{column}": words}, **options)
    plot.tools.append(tool)


def new_hover(renderers: Sequence[Model], tooltips: str | Sequence[tuple[str, str]], **options: Any) -> Model:
    """Return a tool that shows tooltips: HTML, or rows of a label and a value."""
    return Model("HoverTool", renderers=list(renderers), tooltips=tooltips, **options)


def add_legend(plot: Figure, items: Iterable[tuple[str | Field, Sequence[Model]]]) -> None:
    """Place a legend between title and frame: inside, it would cover what the figure shows."""
    labels = [(Text(label) if isinstance(label, str) else label, list(renderers)) for label, renderers in items]
    legend = Model(
        "Legend",
        items=[Model("LegendItem", label=label, renderers=renderers) for label, renderers in labels],
        orientation="horizontal",
        border_line_color=None,
        background_fill_color=colors.BACKGROUND,
        label_text_color=colors.TEXT,
        label_text_font_size="11px",
        margin=0,
    )
    plot.update(above=[legend])


def stack_figures(figures: Sequence[Figure], *, has_toolbar: bool = True) -> Model:
    """Stack figures vertically with one toolbar, or with none: the page of a report has labelled buttons."""
    toolbar = _merge_tools(figures) if has_toolbar else Model("Toolbar", logo=None)
    for renderer in () if has_toolbar else (renderer for plot in figures for renderer in plot.renderers):
        renderer.update(nonselection_glyph=None, muted_glyph=None)  # copies that nothing on a page shows
    return Model(
        "GridPlot",
        children=[(plot, row, 0) for row, plot in enumerate(figures)],
        toolbar=toolbar,
        toolbar_location="right" if has_toolbar else None,
        sizing_mode="stretch_width",
    )


def _merge_tools(figures: Sequence[Figure]) -> Model:
    """Return one toolbar for all figures; it also pans, zooms by the wheel, resets and saves."""
    for plot in figures:
        plot.tools += [Model("PanTool", dimensions="width"), Model("WheelZoomTool", dimensions="width")]
        plot.tools.append(Model("ResetTool"))
    of_kind = by_key((tool.kind, tool) for plot in figures for tool in plot.tools)
    merged = {kind: Model("ToolProxy", tools=tools) for kind, tools in of_kind.items()}
    tools = [*merged.values(), Model("SaveTool")]
    return Model("Toolbar", tools=tools, logo=None, active_drag=merged["BoxZoomTool"], active_scroll=None)
