"""The figures of the run, one above the other: step time, loss, min and max rank."""

from bokeh.layouts import gridplot
from bokeh.models import GridPlot

from jitter.report.figures import step_loss, step_ranks, step_time
from jitter.report.figures.step_axis import step_axis
from jitter.run import RunSummary
from jitter.steps import StepKey


def build(run: RunSummary, shown: StepKey, ranks: list[int]) -> GridPlot | None:
    """Draw those of which anything is known; `shown` is the step in view, `ranks` are those of the run."""
    axis = step_axis(run, shown)
    figures = []
    if any(summary.max_rank is not None for step in run.steps for summary in step.cohorts):
        figures += [step_loss.build(axis), step_ranks.build(axis, ranks)]
    if any(step.step_time_ns is not None for step in run.steps):
        figures.append(step_time.build(axis))
    if not figures:
        return None
    grid = gridplot([[one] for one in figures], sizing_mode="stretch_width", merge_tools=True, toolbar_location="right")
    grid.toolbar.logo = None
    return grid
