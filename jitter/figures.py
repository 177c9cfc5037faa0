"""The report's figures of a lake as Bokeh objects: for notebooks, and for the live page."""

from collections.abc import Sequence
from functools import cached_property

from bokeh.models import GridPlot

from jitter.analysis import Lake
from jitter.diagnosis import Diagnosis, StepAnswer
from jitter.errors import UsageError
from jitter.examination import Examination, StepPath
from jitter.report.excess import ExcessMap, excess_map
from jitter.report.figures import collective_sizes, per_step, profile, rank_lines, step_split
from jitter.report.figures.frame import stack
from jitter.report.figures.kernel_axis import KernelAxis, kernel_axis
from jitter.report.figures.step_axis import StepAxis, step_axis
from jitter.report.html import first_layer
from jitter.report.run_view import RunView, run_view
from jitter.report.step_view import METRICS, KernelNames, StepView, step_view
from jitter.steps import StepKey


class Figures:
    """What can be drawn of a lake; each call makes new objects, which `bokeh.plotting.show` takes.

    figures = jitter.Figures(jitter.open("jitter-lake"))
    show(figures.run()); show(figures.step(2003, ranks=[5, 6]))
    """

    def __init__(self, lake: Lake, steps: Sequence[StepKey] | None = None) -> None:
        """Draw these steps of the lake (all); nothing is computed before it is asked for."""
        self.lake = lake
        self._steps = lake.steps if steps is None else list(steps)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The answers that the figures show."""
        return self.lake.diagnosis(self._steps)

    def run(self) -> GridPlot:
        """Ranks × steps by excess, each step's min and max rank, loss and time, one above the other.

        Raises `UsageError` where no step tells anything: of two steps that do not follow each other none has a time.
        """
        return _there(self.run_along(self.step_axis()), "nothing is known of the steps as a whole")

    def split(self) -> GridPlot:
        """Each step's excess on the critical path by where it arose: late start, CPU, GPU, transfers.

        Raises `UsageError` where no critical path leads across ranks.
        """
        return _there(self.split_along(self.step_axis()), "no critical path leads across ranks")

    def step(self, step: int, epoch: int | None = None, *, ranks: Sequence[int] = ()) -> GridPlot:
        """The deviations of ttke, gap and duration along one step's kernels, and launch latency, all in ns.

        Max and min rank are lines, all others a band; `ranks` become lines as well. Raises `UsageError` for a step or
        a rank that is not there, and for a step that no rank recorded whole.
        """
        return self.profile(*self.along_kernels(self.lake.step(step, epoch)), ranks)

    def collectives(self, step: int, epoch: int | None = None) -> GridPlot:
        """One step's collectives: time from the last arrival to the end (ns), against message size (bytes).

        Raises `UsageError` for a step that is not there, and where sizes were not recorded.
        """
        key = self.lake.step(step, epoch)
        return _there(self.sizes(*self.along_kernels(key)), f"{key}: no collective has a recorded size")

    def step_axis(self, shown: StepKey | None = None) -> StepAxis:
        """Lay out the axis of the steps, `shown` (the costliest) marked."""
        key = self.costliest if shown is None else shown
        return step_axis(self._run, self._run.position(key), range(len(self._run.steps)))

    def run_along(self, axis: StepAxis) -> GridPlot | None:
        """Do as `run` does, on a given axis; None where nothing is known."""
        named = {rank for culprit in self.diagnosis.culprits for rank in culprit.ranks}
        return per_step.build(axis, self._run, self._excess, named)

    def split_along(self, axis: StepAxis) -> GridPlot | None:
        """Do as `split` does, on a given axis; None where no path is known."""
        return stack([step_split.build(axis)]) if any(self._run.parts_ns) else None

    def along_kernels(self, key: StepKey) -> tuple[StepView, KernelAxis]:
        """Lay out one step's kernels, and what is drawn of them; raises `UsageError` where no rank has it whole."""
        names = KernelNames()
        view = step_view(self.lake, self._examined, self.answer(key), self._paths[key], names)
        if view is None:
            raise UsageError(f"{key}: no rank recorded it whole", "choose another step")
        return view, kernel_axis(view, names.names)

    def profile(self, view: StepView, axis: KernelAxis, ranks: Sequence[int] = ()) -> GridPlot:
        """Do as `step` does, on a given axis; raises `UsageError` for ranks that are not in the view's cohort."""
        if len(ranks) > rank_lines.MOST_RANKS:
            raise UsageError(f"{len(ranks)} ranks are too many lines", f"choose at most {rank_lines.MOST_RANKS}")
        grid = profile.build(axis)
        for metric in METRICS if ranks else ():
            table = self.lake.table(
                metric,
                view.key.step,
                view.key.epoch,
                cohort=view.cohort,
                deviation=metric != "launch_latency" and not view.values,
                ranks=ranks,
            )
            rank_lines.add(grid, metric, table)
        return grid

    def sizes(self, view: StepView, axis: KernelAxis) -> GridPlot | None:
        """Do as `collectives` does, on a given axis; None where no size was recorded."""
        return stack([collective_sizes.build(axis)]) if view.collectives.sized else None

    def answer(self, key: StepKey) -> StepAnswer:
        """One step's answer; raises `UsageError` for a step that is left out."""
        for found in self.diagnosis.steps:
            if found.key == key:
                return found
        raise UsageError(f"{key} is not among the steps of these figures", "name one of them")

    @property
    def costliest(self) -> StepKey:
        """The step that jitter costs most; of steps of unknown loss, the first."""
        worst = max(self.diagnosis.steps, key=lambda step: -1.0 if step.loss_ns is None else float(step.loss_ns))
        return worst.key

    @cached_property
    def _examined(self) -> Examination:
        return self.lake.examination(self._steps)

    @cached_property
    def _paths(self) -> dict[StepKey, StepPath]:
        return {path.key: path for path in self._examined.paths}

    @cached_property
    def _run(self) -> RunView:
        return run_view(self.diagnosis, self._examined.paths, sorted(self._examined.run.team_of))

    @cached_property
    def _excess(self) -> ExcessMap | None:
        return excess_map(self.lake, self._examined, first_layer(self.diagnosis))


def _there(grid: GridPlot | None, otherwise: str) -> GridPlot:
    if grid is None:
        raise UsageError(otherwise, "the diagnosis says what limits it: lake.diagnosis().notes")
    return grid
