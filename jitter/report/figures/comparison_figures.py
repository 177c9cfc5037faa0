"""Figures of a comparison: step times, what classes of time and kernels add, bandwidth by size."""

from collections.abc import Sequence
from typing import Any

from bokeh.models import ColumnDataSource, DataRange1d, FactorRange, GridPlot, HoverTool
from bokeh.plotting import figure

from jitter.analysis.diagnosis.loss.split import LOSS_CLASS_INFO
from jitter.comparison.document import Document
from jitter.comparison.model import Comparison
from jitter.core.formatting import format_time
from jitter.core.names.kernels import short_name
from jitter.report.figures import colors
from jitter.report.figures.frame import (
    as_float,
    format_bytes_axis,
    format_time_axis,
    new_figure,
    place_legend_above,
    stack_figures,
)

_BASE_COLOR, _NEW_COLOR = colors.MIN_RANK, colors.MAX_RANK


def draw_comparison(bases: Sequence[Document], new: Document, comparison: Comparison) -> GridPlot | None:
    """Draw the figures that have data; None if none has."""
    drawn = [draw(comparison) for draw in (_class_changes, _kernel_differences, _bandwidths)]
    figures = [plot for plot in (_step_times(bases, new), *drawn) if plot is not None]
    return stack_figures(figures) if figures else None


def _step_times(bases: Sequence[Document], new: Document) -> figure | None:
    """Draw step times by position in the run, the base's solid, the new run's with points."""
    runs = [(document, _BASE_COLOR, "base", "circle") for document in bases] + [(new, _NEW_COLOR, "new", "triangle")]
    if not any(step.step_time_ns is not None for document, *_ in runs for step in document.steps):
        return None
    plot = new_figure("Step time of both runs, by position in the run", "comparison_steps", 260)
    for number, (document, color, label, marker) in enumerate(runs):
        source = ColumnDataSource(
            {
                "at": list(range(len(document.steps))),
                "time": [as_float(step.step_time_ns) for step in document.steps],
                "step": [f"{document.label}, step {step.step}" for step in document.steps],
                "text": [format_time(step.step_time_ns) for step in document.steps],
            },
            name=f"comparison:steps:{number}",
        )
        dash = "solid" if label == "base" else "dashed"
        plot.line("at", "time", source=source, line_color=color, line_width=1.4, line_dash=dash, legend_label=label)
        points = plot.scatter(
            "at", "time", source=source, size=6, marker=marker, fill_color=color, line_color=color, legend_label=label
        )
        plot.add_tools(HoverTool(renderers=[points], tooltips=[("", "@step"), ("step time", "@text")]))
    format_time_axis(plot, "step time")
    place_legend_above(plot)
    return plot


def _class_changes(comparison: Comparison) -> figure | None:
    parts = [part for part in comparison.split if part.usual_ns or part.jitter_ns]
    if not parts:
        return None
    factors = [(LOSS_CLASS_INFO[part.part].words, of) for part in parts for of in ("usual step", "jitter")]
    times = [ns for part in parts for ns in (part.usual_ns, part.jitter_ns)]
    options: dict[str, Any] = {"x_range": FactorRange(factors=factors)}
    plot = new_figure("What each class of time adds to the new run's step", "comparison_split", 260, **options)
    source = ColumnDataSource(
        {
            "at": factors,
            "time": [float(ns) for ns in times],
            "color": [_BASE_COLOR, _NEW_COLOR] * len(parts),
            "text": [format_time(ns, signed=True) for ns in times],
        },
        name="comparison:split",
    )
    bars = plot.vbar("at", top="time", width=0.85, source=source, fill_color="color", line_color=None)
    plot.add_tools(HoverTool(renderers=[bars], tooltips=[("", "@at"), ("time", "@text")]))
    plot.xgrid.grid_line_color = None
    format_time_axis(plot, "time a step")
    return plot


def _kernel_differences(comparison: Comparison) -> figure | None:
    """Draw what each kernel of the base's sequence adds to the new run's step."""
    kernels = comparison.kernels
    if kernels is None or not kernels.differences:
        return None
    title = "What each kernel adds to the new run's step, by index in the base's sequence"
    plot = new_figure(title, "comparison_kernels", 240)
    source = ColumnDataSource(
        {
            "index": [difference.kernel_index for difference in kernels.differences],
            "time": [difference.difference_ns for difference in kernels.differences],
            "name": [short_name(difference.kernel_name) for difference in kernels.differences],
            "text": [format_time(difference.difference_ns, signed=True) for difference in kernels.differences],
        },
        name="comparison:kernels",
    )
    bars = plot.vbar("index", top="time", width=0.8, source=source, fill_color=_NEW_COLOR, line_color=None)
    tooltips = [("kernel", "@index"), ("name", "@name"), ("difference", "@text")]
    plot.add_tools(HoverTool(renderers=[bars], tooltips=tooltips))
    format_time_axis(plot, "difference")
    plot.xaxis.axis_label = "kernel index"
    return plot


def _bandwidths(comparison: Comparison) -> figure | None:
    measured = {
        side: [
            (change, busbw)
            for change in comparison.collectives
            if (busbw := getattr(change, f"{side}_busbw")) and change.size_bytes
        ]
        for side in ("base", "new")
    }
    if not any(measured.values()):
        return None
    title = "Bus bandwidth of collectives, by message size"
    plot = new_figure(title, "comparison_bandwidth", 260, y_range=DataRange1d(start=0), x_axis_type="log")
    for side, color, marker in (("base", _BASE_COLOR, "circle"), ("new", _NEW_COLOR, "triangle")):
        source = ColumnDataSource(
            {
                "size": [change.size_bytes for change, _ in measured[side]],
                "busbw": [busbw for _, busbw in measured[side]],
                "operation": [(change.collective or "unknown").replace("_", " ") for change, _ in measured[side]],
            },
            name=f"comparison:bandwidth:{side}",
        )
        points = plot.scatter(
            "size", "busbw", source=source, size=9, marker=marker, fill_color=color, line_color=color, legend_label=side
        )
        tooltips = [("", f"{side}, @operation"), ("bytes", "@size{0,0}"), ("busbw", "@busbw{0.0} GB/s")]
        plot.add_tools(HoverTool(renderers=[points], tooltips=tooltips))
    format_bytes_axis(plot)
    plot.yaxis.axis_label = "GB/s"
    place_legend_above(plot)
    return plot
