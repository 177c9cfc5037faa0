"""Figures of a job's history: step time with change points, the waterfall, the loss, over the runs."""

from collections.abc import Mapping, Sequence

from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    DataRange1d,
    GridPlot,
    HoverTool,
    NumeralTickFormatter,
    TapTool,
)
from bokeh.plotting import figure

from jitter.analysis.diagnosis.loss.waterfall import RUNG_WORDS
from jitter.analysis.diagnosis.model import RUNGS
from jitter.comparison.document import Document
from jitter.core.formatting import format_percent, format_time
from jitter.history.change_points import ChangePoint
from jitter.history.runs import HistoryRun
from jitter.report.figures import colors
from jitter.report.figures.frame import as_float, format_time_axis, new_figure, place_legend_above, stack_figures
from jitter.report.history import format_change, format_labels, waterfall_parts

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
        [_step_time(source, marks, x_range), _waterfall(documents, x_range), _loss(source, marks, x_range)]
    )


def _step_time(source: ColumnDataSource, marks: Sequence[int], x_range: DataRange1d) -> figure:
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


def _loss(source: ColumnDataSource, marks: Sequence[int], x_range: DataRange1d) -> figure:
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
