"""The findings of one step as text: loss, max rank, min rank, divergence, waiting."""

from dataclasses import dataclass

from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.model import Cause, StepAnswer
from jitter.analysis.diagnosis.verdict import name_side
from jitter.core.formatting import format_count, format_percent, format_rank, format_time
from jitter.report.text.fix_list import Hosts
from jitter.report.views.step_view import StepView


@dataclass(frozen=True)
class StepText:
    title: str
    sentence: str
    loss: str
    waits: str


def describe_cause(cause: Cause) -> str:
    """Return a cause in words: `late kernel launches (CPU)`; `none` for no cause."""
    return "none" if cause == "none" else name_side(CAUSES[cause].words, CAUSES[cause].side)


def describe_step(step: StepAnswer, view: StepView, hosts: Hosts, cohorts: int) -> StepText:
    """Return the texts of one step, for the view that the page shows; `cohorts` is the run's number of cohorts."""
    title = f"{step.key}{step.kind_in_words}" + ("" if cohorts == 1 else f", cohort {view.cohort}")
    loss = format_time(step.loss_ns)
    if step.loss_ns is not None and step.loss_fraction is not None:
        loss += f" ({format_percent(step.loss_fraction)} of {format_time(step.step_time_ns)})"
    return StepText(title, _sentence(step, view, hosts), loss, _waits(view, step.step_time_ns))


def _sentence(step: StepAnswer, view: StepView, hosts: Hosts) -> str:
    if view.ranks < 2:
        return (
            "Only one rank ran these kernels in this step, so there are no deviations, no max rank and no min rank. "
            "The figures show its own times."
        )
    sentences = []
    if step.max_rank is None:
        sentences.append(f"In {step.key}, the job waited for no rank.")
    else:
        max_rank = format_rank(step.max_rank, hosts.get(step.max_rank))
        if step.max_rank_loss_ns is None:
            sentences.append(
                f"In {step.key}, the ranks share no collective; {max_rank} has the largest time to kernel end."
            )
        else:
            lost = format_time(step.max_rank_loss_ns)
            sentences.append(f"In {step.key}, {max_rank} has the largest share of the loss: {lost}.")
    if view.alignment == "none":
        sentences.append(
            "The clocks of its ranks cannot be aligned (no collective spans all ranks, no wall clock is recorded): "
            "the first gap and the times to kernel end are unknown. Other gaps, durations and launch latencies are "
            "valid."
        )
    return " ".join(sentences)


def _waits(view: StepView, step_ns: int | None) -> str:
    """Return one or two sentences on the collectives that ranks waited in."""
    met = view.collectives
    if not len(met.kernel_index):
        if not view.recorded_collectives:
            return "This step has no collectives."
        unmatched = format_count(view.recorded_collectives, "collective")
        return f"{unmatched} without a kernel index; waiting there is unknown."
    if view.ranks < 2:
        met_words = format_count(len(met.kernel_index), "collective")
        return f"{met_words}; waiting is unknown without the traces of the other ranks."
    if not len(view.waits):
        said = f"{format_count(len(met.kernel_index), 'collective')}; no rank waited long in any of them"
        if view.waited_ns <= 0:
            return f"{said}."
        share = f" ({format_percent(view.waited_ns / step_ns)} of the step)" if step_ns else ""
        return f"{said}; all waits of one rank together: up to {format_time(view.waited_ns)}{share}."
    worst = max(view.waits, key=lambda at: met.waited_ns[at])
    waited = format_count(len(view.waits), "collective")
    return (
        f"Ranks waited in {waited} of {len(met.kernel_index)}; the longest wait was "
        f"{format_time(float(met.waited_ns[worst]))}: rank {met.waiter[worst]} for rank {met.last[worst]}, in kernel "
        f"{met.kernel_index[worst]}."
    )
