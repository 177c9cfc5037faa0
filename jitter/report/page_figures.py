"""The figures of the page by placeholder, for a written and a live page."""

from collections.abc import Collection, Sequence

from bokeh.models import LayoutDOM

from jitter.report.figures import collective_sizes, run_figures, step_figures, step_split
from jitter.report.figures.frame import stack_figures
from jitter.report.figures.kernel_axis import KernelAxis, build_kernel_axis
from jitter.report.figures.step_axis import build_step_axis
from jitter.report.views.run_report import RunReport, StepSection


def draw_page_figures(
    page: RunReport, sections: Sequence[StepSection], names: list[str], there: Collection[int]
) -> tuple[dict[str, LayoutDOM], KernelAxis]:
    """Draw the figures that have data, with the first section in view and the data of the other sections attached.

    `there` are the positions of the steps that a click can show. Returns the figures, and the axis of the step in view.
    """
    views = [section.view for section in sections]
    along_steps = build_step_axis(page.run, sections[0].place, there)
    along_kernels = build_kernel_axis(views[0], names)
    items: dict[str, LayoutDOM | None] = {
        "run": run_figures.build(along_steps, page.run, page.excess, page.named),
        "profile": step_figures.build(along_kernels, views[1:]),
        "split": stack_figures([step_split.build(along_steps)])
        if any(step.by_class for step in page.run.steps)
        else None,
        "collectives": stack_figures([collective_sizes.build(along_kernels)])
        if any(view.collectives.sized for view in views)
        else None,
    }
    return {name: item for name, item in items.items() if item is not None}, along_kernels
