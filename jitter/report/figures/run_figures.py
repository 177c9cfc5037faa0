"""The stack of figures over the steps: map of excess, min and max rank, loss, step time."""

from collections.abc import Collection

from bokeh.models import GridPlot

from jitter.report.figures import excess_heatmap, step_loss, step_ranks, step_time
from jitter.report.figures.frame import stack_figures
from jitter.report.figures.step_axis import StepAxis
from jitter.report.views.excess_heatmap import ExcessHeatmap
from jitter.report.views.run_series import RunSeries


def build(
    axis: StepAxis, run: RunSeries, excess: ExcessHeatmap | None, culprits: Collection[int] = ()
) -> GridPlot | None:
    """Draw the figures that have data; return None if none has. `culprits` are the ranks of the findings."""
    figures = []
    if excess is not None:
        figures.append(excess_heatmap.build(axis, excess, culprits))
    if len(run.ranks) > 1 and any(step.max_rank is not None or step.min_rank is not None for step in run.steps):
        figures.append(step_ranks.build(axis, run.ranks))
    if any(step.loss_ns is not None for step in run.steps) and len(run.ranks) > 1:
        figures.append(step_loss.build(axis))
    if any(step.step_time_ns is not None for step in run.steps):
        figures.append(step_time.build(axis))
    if not figures:
        return None
    figures[-1].xaxis.axis_label = "epoch/step" if any("/" in label for label in run.labels) else "step"
    return stack_figures(figures)
