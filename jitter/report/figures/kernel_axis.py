"""The shared parts of the figures over the kernel index: linked axis, crosshair, marks, tooltip."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.models import (
    ColumnDataSource,
    CrosshairTool,
    CustomJSHover,
    DataRange1d,
    HoverTool,
    Range1d,
    Text,
    VSpan,
)
from bokeh.models.annotations import Span
from bokeh.models.renderers import GlyphRenderer
from bokeh.plotting import figure

from jitter.core.formatting import format_time
from jitter.core.kernels import short_name
from jitter.report.figures.frame import figure_title, format_time_axis, new_figure, read_script
from jitter.report.figures.palette import (
    BACKGROUND_COLOR,
    COLLECTIVE_COLOR,
    MARK_COLOR,
    MAX_RANK_COLOR,
    MIN_RANK_COLOR,
    OTHERS_COLOR,
    TEXT_COLOR,
)
from jitter.report.views.step_grid import METRICS
from jitter.report.views.step_view import MetricSeries, StepView

_HEIGHT = 230
_FLAGGED = "ttke"
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


@dataclass(frozen=True)
class KernelAxis:
    """The step in view as Bokeh sources, with the range and the crosshair that its figures share."""

    x_range: Range1d
    names: ColumnDataSource
    series: dict[str, ColumnDataSource]
    collectives: ColumnDataSource
    waits: ColumnDataSource
    marks: ColumnDataSource
    chosen: dict[str, ColumnDataSource]
    """Lines of chosen ranks, by metric; see `rank_lines`."""
    crosshair: Span


def build_sources(view: StepView, prefix: str) -> dict[str, ColumnDataSource]:
    """Return one source per metric, and the sources of collectives, waits and marks, named `<prefix>:<part>`.

    Tags of a metric's source: max rank, min rank, whether values take the place of deviations, number of kernels.
    """
    tags = [view.max_rank, view.min_rank, view.values, view.kernels]
    found = {metric: _series_source(view.series[metric], f"{prefix}:{metric}", tags) for metric in METRICS}
    found["collectives"] = ColumnDataSource(_collectives(view), name=f"{prefix}:collectives")
    waits = list(view.waits)
    found["waits"] = ColumnDataSource({"kernel_index": view.collectives.kernel_index[waits]}, name=f"{prefix}:waits")
    found["marks"] = ColumnDataSource(_marks(view), name=f"{prefix}:marks")
    return found


def _collectives(view: StepView) -> dict[str, Any]:
    columns = {name: values for name, values in vars(view.collectives).items() if name != "operation"}
    return columns | {"operation": [word.replace("_", " ") for word in view.collectives.operation]}


def _marks(view: StepView) -> dict[str, Any]:
    """Return the marks with text: the divergence, and the longest wait."""
    flags = []
    if view.divergence is not None:
        flags.append((view.divergence, "diverges here", 1.0))
    if view.waits:
        met, at = view.collectives, view.waits[0]
        told = f"rank {met.waiter[at]} waited {format_time(float(met.waited_ns[at]))} for rank {met.last[at]}"
        flags.append((int(met.kernel_index[at]), told, 0.0))
    leftwards = [index > 0.5 * view.kernels for index, _, _ in flags]  # on the side with more room
    return {
        "kernel_index": [index for index, _, _ in flags],
        "text": [text for _, text, _ in flags],
        "alpha": [alpha for _, _, alpha in flags],
        "align": ["right" if left else "left" for left in leftwards],
        "offset": [-6 if left else 6 for left in leftwards],
        "height": [0.98 - 0.08 * n for n in range(len(flags))],
    }


def build_kernel_axis(view: StepView, names: list[str]) -> KernelAxis:
    """Build the axis for a view. The page's script replaces the data of the sources named `shown:…`."""
    sources = build_sources(view, "shown")
    pad = max(0.5, 0.01 * view.kernels)  # the same as in the page's script
    return KernelAxis(
        x_range=Range1d(start=-pad, end=view.kernels - 1 + pad, name="kernels"),
        names=ColumnDataSource(_names(names), name="names"),
        series={metric: sources[metric] for metric in METRICS},
        collectives=sources["collectives"],
        waits=sources["waits"],
        marks=sources["marks"],
        chosen={metric: _nothing_chosen(metric) for metric in METRICS},
        crosshair=Span(dimension="height", line_color=OTHERS_COLOR, line_width=1, line_dash="dotted", name="crosshair"),
    )


def show_view(axis: KernelAxis, view: StepView, names: list[str]) -> None:
    """Replace the step that the axis shows. The page's script sets the range."""
    sources = axis.series | {"collectives": axis.collectives, "waits": axis.waits, "marks": axis.marks}
    for part, new in build_sources(view, "shown").items():
        sources[part].update(tags=new.tags, data=dict(new.data))
    if len(names) > len(axis.names.data["full"]):
        axis.names.data = _names(names)


def _names(names: list[str]) -> dict[str, Any]:
    return {"full": list(names), "short": [short_name(name) for name in names]}


def _nothing_chosen(metric: str) -> ColumnDataSource:
    columns: dict[str, Any] = {name: [] for name in ("xs", "ys", "rank", "text", "dash", "x", "y")}
    return ColumnDataSource(columns, name=f"chosen:{metric}")


def draw_metric(axis: KernelAxis, metric: str, title: str, title_of_values: str, y_label: str, signed: bool) -> figure:
    """Draw one metric: max rank, min rank and the band of the other ranks.

    `title_of_values` is the title if the values of a single rank are drawn. `signed`: the tooltip writes plus signs.
    """
    source = axis.series[metric]
    values, flagged = bool(source.tags[2]), metric == _FLAGGED
    y_range = DataRange1d(range_padding=0.5 if flagged else 0.1)  # room for text
    plot = new_figure(
        figure_title(title_of_values if values else title, f"title:{metric}", [title, title_of_values]),
        _HEIGHT + 40 * flagged,
        x_range=axis.x_range,
        y_range=y_range,
        name=f"figure:{metric}",
    )
    format_time_axis(plot, y_label)
    _draw_marks(plot, axis, flagged=flagged)
    band = plot.varea("kernel_index", "low", "high", source=source, fill_color=OTHERS_COLOR, fill_alpha=0.3)
    zero = plot.line("kernel_index", "zero", source=source, line_color=TEXT_COLOR, line_width=1, line_alpha=0.55)
    least = plot.line(
        "kernel_index",
        "min",
        source=source,
        line_color=MIN_RANK_COLOR,
        line_width=1.6,
        line_dash=[5, 2],
        name=f"min:{metric}",
    )
    most = plot.line(
        "kernel_index", "max", source=source, line_color=MAX_RANK_COLOR, line_width=2, name=f"max:{metric}"
    )
    chosen = _draw_chosen(plot, axis.chosen[metric])
    # the strip of marks has its own scale and must not stretch this one
    y_range.renderers = [band, zero, least, most, chosen]
    plot.add_tools(_hover(axis, metric, zero, signed), CrosshairTool(overlay=axis.crosshair))
    return plot


def _series_source(series: MetricSeries, name: str, tags: list[int | bool | None]) -> ColumnDataSource:
    # half the bytes; exact to the nanosecond up to 16 ms, seven digits beyond
    columns = {
        key: values.astype(np.float32) if values.dtype == np.float64 else values for key, values in vars(series).items()
    }
    columns["zero"] = np.zeros(series.kernel_index.size, dtype=np.int8)
    return ColumnDataSource(columns, name=name, tags=tags)


def _draw_marks(plot: figure, axis: KernelAxis, *, flagged: bool) -> None:
    """Mark collectives along the bottom, long waits and the divergence; with text if `flagged`."""
    plot.extra_y_ranges = {"strip": Range1d(start=0, end=1)}
    plot.segment(
        "kernel_index",
        0,
        "kernel_index",
        0.07,
        source=axis.collectives,
        y_range_name="strip",
        line_color=COLLECTIVE_COLOR,
        line_width=2,
    )
    plot.add_glyph(axis.waits, VSpan(x="kernel_index", line_color=COLLECTIVE_COLOR, line_width=1.2, line_alpha=0.8))
    plot.add_glyph(
        axis.marks,
        VSpan(x="kernel_index", line_color=MARK_COLOR, line_dash="dashed", line_width=1.8, line_alpha="alpha"),
    )
    if not flagged:
        return
    flags = Text(
        x="kernel_index",
        y="height",
        text="text",
        text_color=TEXT_COLOR,
        background_fill_color=BACKGROUND_COLOR,
        background_fill_alpha=0.75,
        text_font_size="12px",
        text_align="align",
        text_baseline="top",
        x_offset="offset",
    )
    drawn = plot.add_glyph(axis.marks, flags)
    drawn.y_range_name = "strip"


def _draw_chosen(plot: figure, source: ColumnDataSource) -> "GlyphRenderer[Any]":
    """Draw the chosen ranks, each with a label at the end of its line."""
    lines = plot.multi_line(
        "xs", "ys", source=source, line_color=TEXT_COLOR, line_width=1.2, line_dash={"field": "dash"}
    )
    label = Text(
        x="x",
        y="y",
        text="text",
        text_color=TEXT_COLOR,
        text_font_size="11px",
        text_align="right",
        background_fill_color=BACKGROUND_COLOR,
        background_fill_alpha=0.7,
    )
    plot.add_glyph(source, label)
    return lines


def _hover(axis: KernelAxis, metric: str, target: "GlyphRenderer[Any]", signed: bool) -> HoverTool:
    """Return a tooltip with the values of all lines at the pointer's x."""
    sources = {"source": axis.series[metric], "names": axis.names, "met": axis.collectives}
    rows = CustomJSHover(
        args={**sources, "chosen": axis.chosen[metric], "signed": signed},
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
