"""The figures of the report as Bokeh objects, for notebooks."""

from collections.abc import Sequence

from bokeh.models import GridPlot

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.api import Lake
from jitter.core.errors import UsageError
from jitter.core.step_key import StepKey
from jitter.report.figures import collective_sizes, run_figures, step_figures, step_split
from jitter.report.figures.frame import stack_figures
from jitter.report.figures.kernel_axis import build_kernel_axis
from jitter.report.figures.rank_lines import draw_ranks
from jitter.report.figures.step_axis import StepAxis, build_step_axis
from jitter.report.views.run_report import RunReport
from jitter.report.views.step_view import KernelNames


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

    def run(self) -> GridPlot:
        """Return the figures over the steps: map of excess, min and max rank, loss, step time.

        Raises `UsageError` if nothing is known of the steps, such as for two steps that are not consecutive.
        """
        page = self._page
        grid = run_figures.build(self._axis(), page.run, page.excess, page.named)
        return _require(grid, "step times are unknown")

    def split(self) -> GridPlot:
        """Return each step's loss by class, in ns: late start, CPU, GPU, communication, rest.

        Raises `UsageError` if no step has a known loss.
        """
        known = any(step.by_class for step in self._page.run.steps)
        return _require(stack_figures([step_split.build(self._axis())]) if known else None, "no step has a known loss")

    def step(self, step: int, epoch: int | None = None, *, ranks: Sequence[int] = ()) -> GridPlot:
        """Return the deviations of ttke, gap and duration over one step's kernels, and launch latency, in ns.

        Max rank, min rank and `ranks` are lines, the other ranks a band. Raises `UsageError` for an unknown step or
        rank, and for a step that no rank recorded completely.
        """
        grid, names = self._page.grid(self.lake.step(step, epoch)), KernelNames()
        axis = build_kernel_axis(self._page.view(grid, names), names.names)
        draw_ranks(axis, grid, ranks)
        return step_figures.build(axis)

    def collectives(self, step: int, epoch: int | None = None) -> GridPlot:
        """Return one step's collectives: time from the last arrival to the end (ns) against message size (bytes).

        Raises `UsageError` for an unknown step, and if message sizes were not recorded.
        """
        key, names = self.lake.step(step, epoch), KernelNames()
        view = self._page.view(self._page.grid(key), names)
        drawn = (
            stack_figures([collective_sizes.build(build_kernel_axis(view, names.names))])
            if view.collectives.sized
            else None
        )
        return _require(drawn, f"{key}: no collective has a recorded size")

    def _axis(self) -> StepAxis:
        run = self._page.run
        return build_step_axis(run, run.position(self.diagnosis.costliest.key), range(len(run.steps)))


def _require(grid: GridPlot | None, otherwise: str) -> GridPlot:
    if grid is None:
        raise UsageError(otherwise, "see the notes of the diagnosis: lake.diagnose().notes")
    return grid
