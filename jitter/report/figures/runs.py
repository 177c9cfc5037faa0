"""Figures of several runs: those of a comparison on the same axes; a job's runs over time, with its changes."""

from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    DataRange1d,
    FactorRange,
    GridPlot,
    HoverTool,
    NumeralTickFormatter,
    TapTool,
)
from bokeh.plotting import figure

from jitter.analysis.diagnosis.loss.split import LOSS_CLASS_INFO
from jitter.analysis.diagnosis.loss.waterfall import RUNG_WORDS
from jitter.analysis.diagnosis.model import RUNGS
from jitter.comparison.compare_documents import Comparison
from jitter.comparison.document import Document
from jitter.core.formatting import format_percent, format_time
from jitter.core.names.kernels import short_name
from jitter.history.change_points import ChangePoint
from jitter.history.runs import HistoryRun
from jitter.report.figures import colors
from jitter.report.figures.frame import (
    as_float,
    format_bytes_axis,
    format_time_axis,
    new_figure,
    place_legend_above,
    stack_figures,
)
from jitter.report.history import format_change, format_labels, waterfall_parts

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


_RUNG_COLORS = {
    "best": colors.GPU,
    "balance": colors.OTHERS,
    "overlap": colors.TRANSFER,
    "launch": colors.CPU,
    "sync": colors.LATE_START,
    "network": colors.TEXT,
    "steps": colors.MIN_RANK,
    "ranks": colors.MARK,
}
_OPEN_RUN = """
const at = source.selected.indices[0];
if (at == null) return;
const run = document.getElementById(`run-${source.data.digest[at]}`);
if (run) { run.open = true; run.scrollIntoView({ behavior: "smooth" }); }
"""


def draw_history(
    runs: Sequence[HistoryRun], documents: Sequence[Document], changes: Mapping[tuple[str, str], ChangePoint]
) -> GridPlot:
    """Draw the figures; a click on a run opens its comparison in the page."""
    source = ColumnDataSource(
        {
            "at": list(range(1, len(runs) + 1)),
            "digest": [run.digest for run in runs],
            "name": [run.name for run in runs],
            "labels": [format_labels(run) for run in runs],
            "time": [as_float(run.step_time_ns) for run in runs],
            "time_text": [format_time(run.step_time_ns) for run in runs],
            "loss": [as_float(run.loss_fraction) for run in runs],
            "loss_text": [format_percent(run.loss_fraction) for run in runs],
            "change": [format_change(changes.get((run.job, run.digest))) for run in runs],
        },
        name="history:runs",
    )
    marks = [at for at, run in enumerate(runs, 1) if (run.job, run.digest) in changes]
    x_range = DataRange1d()
    return stack_figures(
        [_draw_run_times(source, marks, x_range), _waterfall(documents, x_range), _draw_losses(source, marks, x_range)]
    )


def _draw_run_times(source: ColumnDataSource, marks: Sequence[int], x_range: DataRange1d) -> figure:
    plot = new_figure("Step time of each run; a line marks a change", "history_time", 280, x_range=x_range)
    plot.line("at", "time", source=source, line_color=colors.MIN_RANK, line_width=1.2)
    points = plot.scatter("at", "time", source=source, size=9, fill_color=colors.MIN_RANK, line_color=colors.TEXT)
    tooltips = [("run", "@name"), ("labels", "@labels"), ("step time", "@time_text"), ("change", "@change")]
    plot.add_tools(HoverTool(renderers=[points], tooltips=tooltips), TapTool(renderers=[points]))
    source.selected.js_on_change("indices", CustomJS(args={"source": source}, code=_OPEN_RUN))
    _mark(plot, marks)
    format_time_axis(plot, "step time")
    return plot


def _waterfall(documents: Sequence[Document], x_range: DataRange1d) -> figure:
    title = "Waterfall: what a step takes at best, and what it loses"
    plot = new_figure(title, "history_split", 260, x_range=x_range, y_range=DataRange1d(start=0))
    parts = [waterfall_parts(document) for document in documents]
    labels: dict[str, str] = {"best": "at best"} | {rung: RUNG_WORDS[rung] for rung in reversed(RUNGS[1:])}
    data = {label: [max(0, ns_of_rung[rung] or 0) for ns_of_rung in parts] for rung, label in labels.items()}
    source = ColumnDataSource({"at": list(range(1, len(documents) + 1)), **data}, name="history:split")
    names, rung_colors = list(data), [_RUNG_COLORS[rung] for rung in labels]
    plot.vbar_stack(
        names, x="at", width=0.8, source=source, fill_color=rung_colors, line_color=None, legend_label=names
    )
    format_time_axis(plot, "time a step")
    place_legend_above(plot)
    return plot


def _draw_losses(source: ColumnDataSource, marks: Sequence[int], x_range: DataRange1d) -> figure:
    plot = new_figure("Loss to jitter of each run", "history_loss", 200, x_range=x_range, y_range=DataRange1d(start=0))
    bars = plot.vbar("at", top="loss", width=0.8, source=source, fill_color=colors.MAX_RANK, line_color=None)
    plot.add_tools(HoverTool(renderers=[bars], tooltips=[("run", "@name"), ("loss", "@loss_text")]))
    _mark(plot, marks)
    plot.yaxis.formatter = NumeralTickFormatter(format="0.[0]%")
    plot.yaxis.axis_label, plot.xaxis.axis_label = "loss", "run"
    return plot


def _mark(plot: figure, marks: Sequence[int]) -> None:
    source = ColumnDataSource({"at": [at - 0.5 for at in marks]}, name=f"history:changes:{plot.name}")
    plot.vspan(x="at", source=source, line_color=colors.MARK, line_width=2, line_dash="dashed")
