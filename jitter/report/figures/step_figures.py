"""The stack of figures over the kernels of the step in view, with the data of the other embedded steps."""

from collections.abc import Sequence

import numpy as np
from bokeh.models import ColumnDataSource, GridPlot

from jitter.report.figures import duration_deviation, gap_deviation, launch_latency, self_excess, ttke_deviation
from jitter.report.figures.frame import stack_figures
from jitter.report.figures.kernel_axis import KernelAxis, build_sources
from jitter.report.views.self_excess import SELF_EXCESS, SELF_EXCESS_SERIES
from jitter.report.views.step_view import StepView


def build(axis: KernelAxis, others: Sequence[StepView] = ()) -> GridPlot:
    """Draw the step in view. The sources of the other steps are attached as `view-<n>:<part>`, n from 1.

    Own excess and launch latency are drawn only if a view has them.
    """
    views = [build_sources(view, f"view-{n}") for n, view in enumerate(others, 1)]
    modules = [ttke_deviation, gap_deviation, duration_deviation]
    undrawn: list[ColumnDataSource] = []
    if _known([axis.series[SELF_EXCESS], *(sources[SELF_EXCESS] for sources in views)]):
        modules.insert(0, self_excess)
    else:
        undrawn += [axis.series[name] for name in SELF_EXCESS_SERIES]
    if _known([axis.series["launch_latency"], *(sources["launch_latency"] for sources in views)]):
        modules.append(launch_latency)
    else:
        undrawn.append(axis.series["launch_latency"])
    figures = [module.build(axis) for module in modules]
    figures[-1].xaxis.axis_label = "kernel index (launch order in the step)"
    grid = stack_figures(figures)
    # sources without a renderer are attached as tags
    grid.tags = undrawn + [source for sources in views for source in sources.values()]
    return grid


def _known(sources: Sequence[ColumnDataSource]) -> bool:
    """Return whether any line has a value."""
    return any(np.isfinite(source.data[line]).any() for source in sources for line in ("max", "min", "high"))
