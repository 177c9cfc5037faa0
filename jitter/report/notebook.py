"""The report's figures of a lake as Bokeh objects, for notebooks."""

from collections.abc import Sequence

from bokeh.models import GridPlot

from jitter.analysis.diagnosis.model import Diagnosis
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
    """What can be drawn of a lake; each call makes new objects, which `bokeh.plotting.show` takes.

    figures = jitter.Figures(jitter.open("jitter-lake"))
    show(figures.run()); show(figures.step(2003, ranks=[5, 6]))
    """

    def __init__(self, lake: Lake, steps: Sequence[StepKey] | None = None) -> None:
        """Draw these steps of the lake (all); nothing is computed before it is asked for."""
        self.lake = lake
        self._page = RunReport(lake, steps)

    @property
    def diagnosis(self) -> Diagnosis:
        """The answers that the figures show."""
        return self._page.diagnosis

    def run(self) -> GridPlot:
        """Ranks × steps by excess, each step's min and max rank, loss and time, one above the other.

        Raises `UsageError` where no step tells anything: of two steps that do not follow each other none has a time.
        """
        page = self._page
        grid = run_figures.build(self._axis(), page.run, page.excess, page.named)
        return _there(grid, "nothing is known of the steps as a whole")

    def split(self) -> GridPlot:
        """Each step's excess on the critical path by where it arose: late start, CPU, GPU, transfers.

        Raises `UsageError` where no critical path leads across ranks.
        """
        known = any(self._page.run.parts_ns)
        return _there(
            stack_figures([step_split.build(self._axis())]) if known else None, "no critical path leads across ranks"
        )

    def step(self, step: int, epoch: int | None = None, *, ranks: Sequence[int] = ()) -> GridPlot:
        """The deviations of ttke, gap and duration along one step's kernels, and launch latency, all in ns.

        Max and min rank are lines, all others a band; `ranks` become lines as well. Raises `UsageError` for a step or
        a rank that is not there, and for a step that no rank recorded whole.
        """
        grid, names = self._page.grid(self.lake.step(step, epoch)), KernelNames()
        axis = build_kernel_axis(self._page.view(grid, names), names.names)
        draw_ranks(axis, grid, ranks)
        return step_figures.build(axis)

    def collectives(self, step: int, epoch: int | None = None) -> GridPlot:
        """One step's collectives: time from the last arrival to the end (ns), against message size (bytes).

        Raises `UsageError` for a step that is not there, and where sizes were not recorded.
        """
        key, names = self.lake.step(step, epoch), KernelNames()
        view = self._page.view(self._page.grid(key), names)
        drawn = (
            stack_figures([collective_sizes.build(build_kernel_axis(view, names.names))])
            if view.collectives.sized
            else None
        )
        return _there(drawn, f"{key}: no collective has a recorded size")

    def _axis(self) -> StepAxis:
        run = self._page.run
        return build_step_axis(run, run.position(self.diagnosis.costliest.key), range(len(run.steps)))


def _there(grid: GridPlot | None, otherwise: str) -> GridPlot:
    if grid is None:
        raise UsageError(otherwise, "the diagnosis says what limits it: lake.diagnose().notes")
    return grid
