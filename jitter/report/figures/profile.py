"""The four figures of the step in view, one above the other on one axis, and the data of the other embedded steps."""

from collections.abc import Sequence

from bokeh.models import GridPlot

from jitter.report.figures import duration_deviation, gap_deviation, launch_latency, ttke_deviation
from jitter.report.figures.frame import stack
from jitter.report.figures.kernel_axis import KernelAxis, sources_of
from jitter.report.step_view import StepView


def build(axis: KernelAxis, others: Sequence[StepView] = ()) -> GridPlot:
    """Draw the view that the axis shows; the others' sources travel along as `view-<n>:<part>`, from 1 on."""
    figures = [module.build(axis) for module in (ttke_deviation, gap_deviation, duration_deviation, launch_latency)]
    grid = stack(figures)
    grid.tags = [source for n, view in enumerate(others, 1) for source in sources_of(view, f"view-{n}").values()]
    return grid
