"""What one step answers, in words: how much, who, from where on, and of what it is made."""

from collections.abc import Mapping
from dataclasses import dataclass

from jitter.analysis.diagnosis.model import Split, StepAnswer
from jitter.core.formatting import abbreviate, format_count, format_percent, format_rank, format_time
from jitter.core.kernels import short_name
from jitter.report.views.step_view import StepView

Hosts = Mapping[int, str | None]


@dataclass(frozen=True)
class ExcessShare:
    """One part of the path's excess; `share` of the sum of their sizes, 0 to 1."""

    name: str
    words: str
    share: float
    late: bool


@dataclass(frozen=True)
class StepText:
    """One step of one cohort in words. The parts are empty where the step does not tell."""

    title: str
    sentence: str
    loss: str
    max_rank: str
    min_rank: str
    began: str
    began_full: str
    waits: str
    parts: tuple[ExcessShare, ...]


def describe_step(step: StepAnswer, view: StepView, hosts: Hosts, cohorts: int, transfers_ns: float | None) -> StepText:
    """Put one step into words as its view shows it.

    `cohorts` is how many the run has, `transfers_ns` how much longer than usual the path's transfers took.
    """
    title = str(step.key) if cohorts == 1 else f"{step.key}, cohort {view.cohort}"
    began = step.divergence
    return StepText(
        title=title,
        sentence=_sentence(step, view, hosts),
        loss=_loss(step),
        max_rank="none" if step.max_rank is None else format_rank(step.max_rank, hosts.get(step.max_rank)),
        min_rank="none" if view.min_rank is None else format_rank(view.min_rank, hosts.get(view.min_rank)),
        began="nowhere: nothing stands out above the run's noise"
        if began is None
        else f"kernel {began.kernel_index}, {abbreviate(short_name(began.kernel_name))}",
        began_full="" if began is None else began.kernel_name,
        waits=_waits(view),
        parts=_parts(step.split, transfers_ns),
    )


def _sentence(step: StepAnswer, view: StepView, hosts: Hosts) -> str:
    if view.ranks < 2:
        return (
            "Only one rank ran these kernels in this step: there is nobody to compare it with, so no deviation, "
            "no min rank and no max rank. The figures show its own times."
        )
    told = []
    if step.max_rank is None:
        told.append(f"In {step.key} no rank took longer than the others where it held the step up.")
    else:
        who = format_rank(step.max_rank, hosts.get(step.max_rank))
        if step.split is None:
            told.append(
                f"In {step.key} no critical path leads across ranks; {who} has the greatest time to kernel end."
            )
        else:
            excess = step.split.start_ns + step.split.cpu_ns + step.split.gpu_ns
            told.append(
                f"In {step.key} {who} has the most excess on the critical path: {format_time(excess)} more than the "
                "median of the same operations."
            )
    if view.alignment == "none":
        told.append(
            "Its ranks cannot be aligned (no collective of all, no wall clock): the gap before the first kernel is "
            "unknown, and so is every time to kernel end; durations, other gaps and launch latencies hold."
        )
    return " ".join(told)


def _loss(step: StepAnswer) -> str:
    if step.loss_ns is None or step.loss_fraction is None:
        return format_time(step.loss_ns)
    share = format_percent(max(step.loss_fraction, 0.0))
    return f"{format_time(step.loss_ns)} ({share} of {format_time(step.step_time_ns)})"


def _waits(view: StepView) -> str:
    """Say at which collectives the others waited."""
    met = view.collectives
    if not len(met.kernel_index):
        return "No collective lies in this step."
    if view.ranks < 2:
        met_words = format_count(len(met.kernel_index), "collective")
        return f"{met_words}; who waited there, only the other ranks' traces could tell."
    if not len(view.waits):
        return f"{format_count(len(met.kernel_index), 'collective')}; nobody waited long in any of them."
    worst = max(view.waits, key=lambda at: met.waited_ns[at])
    return (
        f"Others waited in {format_count(len(view.waits), 'collective')} of {len(met.kernel_index)}; the longest was "
        f"rank {met.waiter[worst]}, {format_time(float(met.waited_ns[worst]))} for rank {met.last[worst]}, "
        f"in kernel {met.kernel_index[worst]}."
    )


def _parts(split: Split | None, transfers_ns: float | None) -> tuple[ExcessShare, ...]:
    """Late start, CPU and GPU of the max rank, and the path's transfers, which are nobody's own."""
    own = () if split is None else (split.start_ns, split.cpu_ns, split.gpu_ns)
    named = [*zip(("late start", "CPU", "GPU"), own, strict=False)]
    if transfers_ns is not None:
        named.append(("transfers, nobody's own", round(transfers_ns)))
    whole = sum(abs(ns) for _, ns in named) or 1
    return tuple(ExcessShare(name, format_time(ns, signed=True), abs(ns) / whole, ns > 0) for name, ns in named)
