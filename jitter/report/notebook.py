"""The figures of the report as Bokeh objects, for notebooks."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.api import Lake
from jitter.core.errors import UsageError
from jitter.core.step_key import StepKey
from jitter.report.figures.frame import stack_figures
from jitter.report.figures.kernels import (
    build_kernel_axis,
    draw_collective_sizes,
    draw_divergence,
    draw_kernel_map,
    draw_kernel_strip,
    draw_other_series,
    rank_columns,
)
from jitter.report.figures.models import Figure, as_bokeh
from jitter.report.figures.steps import StepAxis, build_step_axis, draw_loss_by_class, draw_run
from jitter.report.views.run_report import RunReport

if TYPE_CHECKING:
    from bokeh.models import GridPlot


class Figures:
    """The figures of a lake. Each method returns a new Bokeh object for `bokeh.plotting.show`.

    figures = jitter.Figures(jitter.open("jitter-lake"))
    show(figures.run()); show(figures.step(2003, ranks=[5, 6]))
    """

    def __init__(self, lake: Lake, steps: Sequence[StepKey] | None = None) -> None:
        """Use these steps of the lake; all by default. Nothing is computed yet."""
        self.lake = lake
        self._page = RunReport(lake, steps)

    def __repr__(self) -> str:
        """Return the lake and its size, without reading it again."""
        lake = self.lake
        return f"<Figures of {lake.root}: {len(self._page.steps)} steps, {len(lake.ranks)} ranks>"

    @property
    def diagnosis(self) -> Diagnosis:
        """The diagnosis that the figures show."""
        return self._page.diagnosis

    def run(self) -> "GridPlot":
        """Return the figures over the steps: map of ranks by steps, and step times with the loss in them.

        Raises `UsageError` if nothing is known of the steps, such as for two steps that are not consecutive.
        """
        return _require(draw_run(self._axis(), self._page.excess, self._page.named), "step times are unknown")

    def split(self) -> "GridPlot":
        """Return each step's loss by class, in ns: late start, CPU, GPU, communication, rest.

        Raises `UsageError` if no step has a known loss.
        """
        has_loss = any(step.by_class for step in self._page.run.steps)
        return _require([draw_loss_by_class(self._axis())] if has_loss else [], "no step has a known loss")

    def step(self, step: int, epoch: int | None = None, *, ranks: Sequence[int] = ()) -> "GridPlot":
        """Return the divergence along one step's kernels, in ns: cumulative, gap, duration, waits, ttke, latency.

        Max rank, min rank and `ranks` are lines, the other ranks a band. Raises `UsageError` for an unknown step or
        rank, and for a step that no rank recorded completely.
        """
        grid = self._page.grid(self.lake.step(step, epoch))
        view = self._page.view(grid)
        axis = build_kernel_axis(view)
        for name, columns in rank_columns(grid, ranks).items():
            axis.chosen[name].update(data=columns)
        return as_bokeh(stack_figures([*draw_divergence(axis, [view]), *draw_other_series(axis, [view])]))

    def kernels(self, step: int, epoch: int | None = None) -> "GridPlot":
        """Return what each kernel of a step adds on each rank, as a map of ranks by kernels, in ns.

        Raises `UsageError` for an unknown step and for a single rank.
        """
        view = self._page.view(self._page.grid(self.lake.step(step, epoch)))
        drawn = [] if view.map is None else [draw_kernel_map(build_kernel_axis(view), view.map)]
        return _require(drawn, "a single rank has no other ranks to compare with")

    def kernel(self, kernel: int, step: int, epoch: int | None = None) -> "GridPlot":
        """Return the duration of one kernel on each rank over all steps, in ns; `kernel` is its index in `step`.

        Raises `UsageError` for an unknown step or kernel.
        """
        grid = self._page.grid(self.lake.step(step, epoch))
        has_kernel = kernel in grid.kernel_index
        drawn = [draw_kernel_strip(self._page.durations(grid, [kernel]), kernel)] if has_kernel else []
        return _require(drawn, f"{grid.key} has no kernel {kernel}")

    def collectives(self, step: int, epoch: int | None = None) -> "GridPlot":
        """Return one step's collectives: time from the last arrival to the end (ns) against message size (bytes).

        Raises `UsageError` for an unknown step, and if message sizes were not recorded.
        """
        key = self.lake.step(step, epoch)
        view = self._page.view(self._page.grid(key))
        drawn = [draw_collective_sizes(build_kernel_axis(view))] if view.collectives.sized else []
        return _require(drawn, f"{key}: no collective has a recorded size")

    def _axis(self) -> StepAxis:
        run = self._page.run
        return build_step_axis(run, run.position(self.diagnosis.costliest.key), range(len(run.steps)))


def _require(drawn: Sequence[Figure], otherwise: str) -> "GridPlot":
    if not drawn:
        raise UsageError(otherwise, "see the notes of the diagnosis: lake.diagnose().notes")
    return as_bokeh(stack_figures(drawn))
