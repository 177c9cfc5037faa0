"""The report as one HTML file that contains the figures, their data and BokehJS, and needs no network."""

from collections.abc import Sequence

from jitter.analysis.diagnosis.model import StepAnswer
from jitter.api import Lake
from jitter.core.step_key import StepKey
from jitter.report.page import render_page
from jitter.report.text.fix_list import costliest_step
from jitter.report.views.run_report import RunReport

MAX_EMBEDDED_STEPS = 6
"""Steps with embedded details."""
MAX_EMBEDDED_CULPRITS = 3
"""Findings of which one step is always embedded."""


def render_html(lake: Lake, steps: Sequence[StepKey] | None = None) -> str:
    """Return the page for these steps of the lake; all by default."""
    report = RunReport(lake, steps)
    wanted = [step.key for step in choose_embedded_steps(report)] if report.steps else []
    return render_page(report, report.sections(wanted), live=False)


def choose_embedded_steps(report: RunReport) -> list[StepAnswer]:
    """Return the steps to embed: the headline's, then the costliest first, one of each of the first findings."""
    by_cost = [report.answer(key) for key in report.by_cost]
    findings = report.diagnosis.culprits[:MAX_EMBEDDED_CULPRITS]
    worst = [costliest_step(one, report.diagnosis) for one in findings]
    chosen: set[StepKey] = {by_cost[0].key, *(step.key for step in worst if step is not None)}
    for step in by_cost:
        if len(chosen) < MAX_EMBEDDED_STEPS:
            chosen.add(step.key)
    return [step for step in by_cost if step.key in chosen]
