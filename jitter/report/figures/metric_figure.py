"""One figure over the kernel index: max rank, min rank, the band of the other ranks, chosen ranks, marks, tooltip."""

from collections.abc import Sequence
from typing import Any

from bokeh.models import ColumnDataSource, CrosshairTool, CustomJS, CustomJSHover, HoverTool, Range1d, Text
from bokeh.models.renderers import GlyphRenderer
from bokeh.plotting import figure

from jitter.report.figures.fit_range import HEADROOM, PADDING, fit_range
from jitter.report.figures.frame import figure_title, format_time_axis, new_figure, read_script
from jitter.report.figures.kernel_axis import KernelAxis
from jitter.report.figures.kernel_marks import draw_marks
from jitter.report.figures.palette import (
    BACKGROUND_COLOR,
    MAX_RANK_COLOR,
    MIN_RANK_COLOR,
    OTHERS_COLOR,
    TEXT_COLOR,
)

_HEIGHT = 230
_TOOLTIP = """
<div style="max-width:34em;line-height:1.45">
<div><b>kernel @kernel_index</b> @code{name}</div>
<div style="color:#b04a00">@code{max}</div>
<div style="color:#005a8e">@code{min}</div>
<div style="color:#555">@code{others}</div>
<div>@code{chosen}</div>
<div>@code{wait}</div>
<div style="color:#666;font-size:10px;overflow-wrap:anywhere;max-height:6em;overflow:hidden">@code{full}</div>
</div>"""


def draw_metric(
    axis: KernelAxis,
    metric: str,
    title: str,
    title_of_values: str,
    y_label: str,
    *,
    signed: bool,
    flagged: bool = False,
    parts: Sequence[str] = (),
) -> figure:
    """Draw one metric, with y fitted to the 1st to 99th percentile of what is in view.

    `title_of_values` is the title if the values of a single rank are drawn. `signed`: the tooltip writes plus signs,
    and y includes 0. `flagged`: marks have text. `parts` are series that the page can show in place of `metric`.
    """
    source = axis.series[metric]
    values = bool(source.tags[2])
    start, end = fit_range(source.data, zero=signed, flagged=flagged)
    y_range = Range1d(start=start, end=end)
    plot = new_figure(
        figure_title(title_of_values if values else title, f"title:{metric}", [title, title_of_values]),
        _HEIGHT + 60 * flagged,
        x_range=axis.x_range,
        y_range=y_range,
        name=f"figure:{metric}",
    )
    format_time_axis(plot, y_label)
    draw_marks(plot, axis.marks, flagged=flagged)
    plot.add_tools(CrosshairTool(overlay=axis.crosshair))
    drawn = [_draw_lines(plot, axis, name, signed=signed, visible=name == metric) for name in (metric, *parts)]
    edges = _draw_edges(plot, metric)
    labels = _draw_labels(plot, metric)
    fit = CustomJS(
        args={
            "plot": plot,
            "kernels": axis.x_range,
            "y_range": y_range,
            "drawn": drawn,
            "sources": [axis.series[name] for name in (metric, *parts)],
            "chosen": [axis.chosen[name] for name in (metric, *parts)],
            "names": axis.names,
            "edges": edges,
            "labels": labels,
            "zero": signed,
            "below": PADDING,
            "above": HEADROOM if flagged else PADDING,
        },
        code=read_script("fit_y.js"),
    )
    for event in ("start", "end"):
        axis.x_range.js_on_change(event, fit)
    plot.js_on_change("inner_height", fit)  # changes when the figure is first drawn, and on a resize
    for renderer, name in zip(drawn, (metric, *parts), strict=True):
        axis.series[name].js_on_change("data", fit)
        axis.chosen[name].js_on_change("data", fit)
        renderer.js_on_change("visible", fit)
    return plot


def _draw_lines(plot: figure, axis: KernelAxis, name: str, *, signed: bool, visible: bool) -> "GlyphRenderer[Any]":
    """Draw the lines of one series; return its zero line, whose visibility stands for that of all."""
    source = axis.series[name]
    band = plot.varea("kernel_index", "low", "high", source=source, fill_color=OTHERS_COLOR, fill_alpha=0.3)
    zero = plot.line("kernel_index", "zero", source=source, line_color=TEXT_COLOR, line_width=1, line_alpha=0.55)
    zero.name = f"lines:{name}"
    least = plot.line("kernel_index", "min", source=source, line_color=MIN_RANK_COLOR, line_width=1.6, line_dash=[5, 2])
    least.name = f"min:{name}"
    most = plot.line("kernel_index", "max", source=source, line_color=MAX_RANK_COLOR, line_width=2)
    most.name = f"max:{name}"
    chosen = plot.multi_line(
        "xs", "ys", source=axis.chosen[name], line_color="color", line_width=1.6, line_dash={"field": "dash"}
    )
    follow = CustomJS(
        args={"others": [band, least, most, chosen]}, code="for (const one of others) one.visible = cb_obj.visible;"
    )
    zero.js_on_change("visible", follow)
    for one in (band, zero, least, most, chosen):
        one.visible = visible
    plot.add_tools(_hover(axis, name, zero, signed))
    return zero


def _draw_edges(plot: figure, metric: str) -> ColumnDataSource:
    """Draw the marks of values beyond the y range, with the value on hover; the script fills the source."""
    columns: dict[str, Any] = {name: [] for name in ("x", "y", "angle", "text", "label", "align", "offset", "height")}
    source = ColumnDataSource(columns, name=f"edges:{metric}")
    marks = plot.scatter(
        "x",
        "y",
        source=source,
        marker="triangle",
        angle="angle",
        size=8,
        fill_color=TEXT_COLOR,
        line_color=BACKGROUND_COLOR,
    )
    words = Text(
        x="x",
        y="y",
        text="label",
        text_color=TEXT_COLOR,
        text_font_size="11px",
        text_align="align",
        text_baseline="middle",
        x_offset="offset",
        y_offset="height",
        background_fill_color=BACKGROUND_COLOR,
        background_fill_alpha=0.9,
    )
    plot.add_glyph(source, words)
    plot.add_tools(HoverTool(renderers=[marks], tooltips="@text", attachment="horizontal"))
    return source


def _draw_labels(plot: figure, metric: str) -> ColumnDataSource:
    """Label the lines of chosen ranks at the right; the script fills the source and keeps labels apart."""
    columns: dict[str, Any] = {name: [] for name in ("x", "y", "text", "color")}
    source = ColumnDataSource(columns, name=f"labels:{metric}")
    label = Text(
        x="x",
        y="y",
        text="text",
        text_color="color",
        text_font_size="11px",
        text_font_style="bold",
        text_align="right",
        text_baseline="middle",
        background_fill_color=BACKGROUND_COLOR,
        background_fill_alpha=0.8,
    )
    plot.add_glyph(source, label)
    return source


def _hover(axis: KernelAxis, name: str, target: "GlyphRenderer[Any]", signed: bool) -> HoverTool:
    """Return a tooltip with the values of all lines at the pointer's x."""
    sources = {"source": axis.series[name], "names": axis.names, "met": axis.collectives}
    rows = CustomJSHover(
        args={**sources, "chosen": axis.chosen[name], "signed": signed},
        code=read_script("kernel_hover.js"),
    )
    return HoverTool(
        renderers=[target],
        limit=1,  # between two kernels, two are equally near
        mode="vline",
        line_policy="nearest",
        point_policy="follow_mouse",
        attachment="horizontal",
        tooltips=_TOOLTIP,
        formatters={"@code": rows},
    )
