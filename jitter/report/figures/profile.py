"""The four figures of the step in view, one above the other on one axis, and the data of the other embedded steps."""

from collections.abc import Sequence

from bokeh.layouts import gridplot
from bokeh.models import GridPlot

from jitter.report.figures import duration_deviation, gap_deviation, launch_latency, ttke_deviation
from jitter.report.figures.kernel_axis import kernel_axis, sources_of
from jitter.report.step_view import StepView


def build(views: Sequence[StepView], names: list[str]) -> GridPlot:
    """Draw the first view; the others' sources travel along as `view-<n>:<part>`."""
    axis = kernel_axis(views[0], names)
    figures = [module.build(axis) for module in (ttke_deviation, gap_deviation, duration_deviation, launch_latency)]
    grid = gridplot([[one] for one in figures], sizing_mode="stretch_width", merge_tools=True, toolbar_location="right")
    grid.toolbar.logo = None
    grid.tags = [source for n, view in enumerate(views[1:], 1) for source in sources_of(view, f"view-{n}").values()]
    return grid
