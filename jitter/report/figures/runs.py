"""Figures of several runs: those of a comparison on the same axes; a job's runs over time, with its changes."""

from collections.abc import Sequence

from jitter.analysis.diagnosis.loss.split import LOSS_CLASS_INFO
from jitter.analysis.diagnosis.loss.waterfall import RUNG_WORDS
from jitter.analysis.diagnosis.model import RUNGS
from jitter.comparison.compare_documents import Comparison
from jitter.comparison.document import Document
from jitter.core.formatting import format_bandwidth, format_percent, format_time
from jitter.core.names.kernels import short_name
from jitter.history.runs import HistoryRun, format_labels
from jitter.report.figures import colors
from jitter.report.figures.frame import (
    add_legend,
    as_float,
    format_bytes_axis,
    format_time_axis,
    new_figure,
    new_hover,
    stack_figures,
)
from jitter.report.figures.models import Field, Figure, Model, Source, script
from jitter.report.history import format_change, waterfall_parts

_BASE_COLOR, _NEW_COLOR = colors.MIN_RANK, colors.MAX_RANK


def draw_comparison(bases: Sequence[Document], new: Document, comparison: Comparison) -> Model | None:
    """Draw the figures that have data; None if none has."""
    drawn = [draw(comparison) for draw in (_class_changes, _kernel_differences, _bandwidths)]
    figures = [plot for plot in (_step_times(bases, new), *drawn) if plot is not None]
    return stack_figures(figures) if figures else None


def _step_times(bases: Sequence[Document], new: Document) -> Figure | None:
    """Draw step times by position in the run, the base's solid, the new run's with points."""
    runs = [(document, _BASE_COLOR, "base", "circle") for document in bases] + [(new, _NEW_COLOR, "new", "triangle")]
    if not any(step.step_time_ns is not None for document, *_ in runs for step in document.steps):
        return None
    plot = new_figure("Step time of both runs, by position in the run", "comparison_steps", 260)
    drawn: dict[str, list[Model]] = {}
    for number, (document, color, label, marker) in enumerate(runs):
        source = Source(
            {
                "at": list(range(len(document.steps))),
                "time": [as_float(step.step_time_ns) for step in document.steps],
                "step": [f"{document.label}, step {step.step}" for step in document.steps],
                "text": [format_time(step.step_time_ns) for step in document.steps],
            },
            name=f"comparison:steps:{number}",
        )
        dash = "solid" if label == "base" else "dashed"
        place = {"x": Field("at"), "y": Field("time")}
        line = plot.draw(source, Model("Line", **place, line_color=color, line_width=1.4, line_dash=dash))
        point = Model("Scatter", **place, size=6, marker=marker, fill_color=color, line_color=color)
        points = plot.draw(source, point)
        drawn.setdefault(label, []).extend([line, points])
        plot.tools.append(new_hover([points], [("", "@step"), ("step time", "@text")]))
    format_time_axis(plot, "step time")
    add_legend(plot, drawn.items())
    return plot


def _class_changes(comparison: Comparison) -> Figure | None:
    parts = [part for part in comparison.split if part.usual_ns or part.jitter_ns]
    if not parts:
        return None
    factors = [(LOSS_CLASS_INFO[part.part].words, of) for part in parts for of in ("usual step", "jitter")]
    times = [ns for part in parts for ns in (part.usual_ns, part.jitter_ns)]
    x_range, title = Model("FactorRange", factors=factors), "What each class of time adds to the new run's step"
    plot = new_figure(title, "comparison_split", 260, x_range=x_range, x_kind="Categorical")
    source = Source(
        {
            "at": factors,
            "time": [float(ns) for ns in times],
            "color": [_BASE_COLOR, _NEW_COLOR] * len(parts),
            "text": [format_time(ns, signed=True) for ns in times],
        },
        name="comparison:split",
    )
    bar = Model("VBar", x=Field("at"), top=Field("time"), width=0.85, fill_color=Field("color"), line_color=None)
    bars = plot.draw(source, bar)
    plot.tools.append(new_hover([bars], [("", "@at"), ("time", "@text")]))
    plot.x_grid.update(grid_line_color=None)
    format_time_axis(plot, "time a step")
    return plot


def _kernel_differences(comparison: Comparison) -> Figure | None:
    """Draw what each kernel of the base's sequence adds to the new run's step."""
    kernels = comparison.kernels
    if kernels is None or not kernels.differences:
        return None
    title = "What each kernel adds to the new run's step, by index in the base's sequence"
    plot = new_figure(title, "comparison_kernels", 240)
    source = Source(
        {
            "index": [difference.kernel_index for difference in kernels.differences],
            "time": [difference.difference_ns for difference in kernels.differences],
            "name": [short_name(difference.kernel_name) for difference in kernels.differences],
            "text": [format_time(difference.difference_ns, signed=True) for difference in kernels.differences],
        },
        name="comparison:kernels",
    )
    bar = Model("VBar", x=Field("index"), top=Field("time"), width=0.8, fill_color=_NEW_COLOR, line_color=None)
    bars = plot.draw(source, bar)
    tooltips = [("kernel", "@index"), ("name", "@name"), ("difference", "@text")]
    plot.tools.append(new_hover([bars], tooltips))
    format_time_axis(plot, "difference")
    plot.x_axis.update(axis_label="kernel index")
    return plot


def _bandwidths(comparison: Comparison) -> Figure | None:
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
    plot = new_figure(title, "comparison_bandwidth", 260, y_range=Model("DataRange1d", start=0), x_kind="Log")
    drawn = []
    for side, color, marker in (("base", _BASE_COLOR, "circle"), ("new", _NEW_COLOR, "triangle")):
        source = Source(
            {
                "size": [change.size_bytes for change, _ in measured[side]],
                "busbw": [busbw for _, busbw in measured[side]],
                "text": [format_bandwidth(busbw) for _, busbw in measured[side]],
                "operation": [(change.collective or "unknown").replace("_", " ") for change, _ in measured[side]],
            },
            name=f"comparison:bandwidth:{side}",
        )
        point = Model("Scatter", x=Field("size"), y=Field("busbw"), size=9, marker=marker)
        point.update(fill_color=color, line_color=color)
        points = plot.draw(source, point)
        drawn.append((side, [points]))
        tooltips = [("", f"{side}, @operation"), ("bytes", "@size{0,0}"), ("busbw", "@text")]
        plot.tools.append(new_hover([points], tooltips))
    format_bytes_axis(plot)
    plot.y_axis.update(axis_label="GB/s")
    add_legend(plot, drawn)
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


def draw_history(runs: Sequence[HistoryRun], documents: Sequence[Document]) -> Model:
    """Draw the figures; a click on a run opens its comparison in the page."""
    source = Source(
        {
            "at": list(range(1, len(runs) + 1)),
            "digest": [run.digest for run in runs],
            "name": [run.name for run in runs],
            "labels": [format_labels(run) for run in runs],
            "time": [as_float(run.step_time_ns) for run in runs],
            "time_text": [format_time(run.step_time_ns) for run in runs],
            "loss": [as_float(run.loss_fraction) for run in runs],
            "loss_text": [format_percent(run.loss_fraction) for run in runs],
            "change": [format_change(run.change) for run in runs],
        },
        name="history:runs",
    )
    marks = [at for at, run in enumerate(runs, 1) if run.change is not None]
    x_range = Model("DataRange1d")
    return stack_figures(
        [_draw_run_times(source, marks, x_range), _waterfall(documents, x_range), _draw_losses(source, marks, x_range)]
    )


def _draw_run_times(source: Source, marks: Sequence[int], x_range: Model) -> Figure:
    plot = new_figure("Step time of each run; a line marks a change", "history_time", 280, x_range=x_range)
    place = {"x": Field("at"), "y": Field("time")}
    plot.draw(source, Model("Line", **place, line_color=colors.MIN_RANK, line_width=1.2))
    point = Model("Scatter", **place, size=9, fill_color=colors.MIN_RANK, line_color=colors.TEXT)
    points = plot.draw(source, point)
    tooltips = [("run", "@name"), ("labels", "@labels"), ("step time", "@time_text"), ("change", "@change")]
    plot.tools += [new_hover([points], tooltips), Model("TapTool", renderers=[points])]
    selected = Model("Selection")
    selected.on_change("indices", script(_OPEN_RUN, source=source))
    source.update(selected=selected)
    _mark(plot, marks)
    format_time_axis(plot, "step time")
    return plot


def _waterfall(documents: Sequence[Document], x_range: Model) -> Figure:
    title = "Waterfall: what a step takes at best, and what it loses"
    plot = new_figure(title, "history_split", 260, x_range=x_range, y_range=Model("DataRange1d", start=0))
    parts = [waterfall_parts(document) for document in documents]
    labels: dict[str, str] = {"best": "at best"} | {rung: RUNG_WORDS[rung] for rung in reversed(RUNGS[1:])}
    tops = [0.0 for _ in documents]
    columns: dict[str, list[float]] = {"at": list(range(1, len(documents) + 1))}
    for rung in labels:
        columns[f"{rung}_from"] = tops
        tops = [top + max(0, ns_of_rung[rung] or 0) for top, ns_of_rung in zip(tops, parts, strict=True)]
        columns[f"{rung}_to"] = tops
    source = Source(columns, name="history:split")
    drawn = []
    for rung, words in labels.items():
        bar = Model("VBar", x=Field("at"), bottom=Field(f"{rung}_from"), top=Field(f"{rung}_to"), width=0.8)
        bar.update(fill_color=_RUNG_COLORS[rung], line_color=None)
        drawn.append((words, [plot.draw(source, bar)]))
    format_time_axis(plot, "time a step")
    add_legend(plot, drawn)
    return plot


def _draw_losses(source: Source, marks: Sequence[int], x_range: Model) -> Figure:
    plot = new_figure(
        "Loss to jitter of each run", "history_loss", 200, x_range=x_range, y_range=Model("DataRange1d", start=0)
    )
    bar = Model("VBar", x=Field("at"), top=Field("loss"), width=0.8, fill_color=colors.MAX_RANK, line_color=None)
    bars = plot.draw(source, bar)
    plot.tools.append(new_hover([bars], [("run", "@name"), ("loss", "@loss_text")]))
    _mark(plot, marks)
    plot.y_axis.update(formatter=Model("NumeralTickFormatter", format="0.[0]%"), axis_label="loss")
    plot.x_axis.update(axis_label="run")
    return plot


def _mark(plot: Figure, marks: Sequence[int]) -> None:
    source = Source({"at": [at - 0.5 for at in marks]}, name=f"history:changes:{plot.attributes['name']}")
    plot.draw(source, Model("VSpan", x=Field("at"), line_color=colors.MARK, line_width=2, line_dash="dashed"))
