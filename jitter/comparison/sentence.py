"""The verdict of a comparison as one sentence."""

from collections.abc import Sequence
from typing import Final

from jitter.analysis.diagnosis.loss.split import LOSS_CLASS_INFO
from jitter.comparison.kernel_changes import KernelChange, KernelComparison
from jitter.comparison.model import Cost, PartChange, Verdict
from jitter.comparison.significance import StepEffect
from jitter.core.formatting import abbreviate, format_count, format_percent, format_time
from jitter.core.names.kernels import short_name

_MIN_SHARE: Final = 0.3
"""Part of the difference from which on a class is named besides the largest."""
_MOST: Final = 0.5
"""Part of a class from which on a rank or kernel explains most of it."""


def write_sentence(
    verdict: Verdict,
    reasons: Sequence[str],
    effect: StepEffect | None,
    split: Sequence[PartChange],
    costs: Sequence[Cost],
    kernels: KernelComparison | None,
    bases: int,
) -> str:
    """Return the verdict with its size, its interval and what makes it."""
    if effect is None or kernels is None:
        return f"Not comparable: {'; '.join(reasons)}."
    interval = f"95% interval {_span(effect)}"
    size = f"{format_time(effect.difference_ns, signed=True)} a step, {interval}"
    unknown = "" if bases > 1 else " The spread between runs is unknown: there is one base."
    if verdict == "same":
        noise = f"noise {format_percent(effect.noise_fraction)}"
        changed = f"; {_describe_kernel(kernels)}" if kernels.changes else ""
        sign = "+" if effect.fraction >= 0.0001 else ""
        return f"Same step time: {sign}{format_percent(effect.fraction)} ({size}; {noise}){changed}.{unknown}"
    size = f"{format_time(abs(effect.difference_ns))} a step, {interval}"
    what = "; ".join(filter(None, (describe_parts(split, costs), _describe_kernel(kernels))))
    return f"{format_percent(abs(effect.fraction))} {verdict} ({size}){f': {what}' if what else ''}.{unknown}"


def describe_parts(split: Sequence[PartChange], costs: Sequence[Cost]) -> str:
    """Name the classes of time that make the difference, the largest first, each with the rank that has most of it."""
    whole = sum(part.difference_ns for part in split)
    alike = [part for part in split if part.difference_ns * whole > 0]
    ordered = sorted(alike, key=lambda part: -abs(part.difference_ns))
    named = [part for part in ordered if abs(part.difference_ns) >= _MIN_SHARE * abs(whole)] or ordered[:1]
    return ", ".join(
        f"{LOSS_CLASS_INFO[part.part].words}{_of_rank(part, costs)} {format_time(part.difference_ns, signed=True)}"
        for part in named
    )


def _of_rank(part: PartChange, costs: Sequence[Cost]) -> str:
    by_rank: dict[int | None, float] = {}
    for cost in costs:
        if cost.loss_class == part.part:
            by_rank[cost.rank] = by_rank.get(cost.rank, 0.0) + cost.loss_ns
    rank = max(by_rank, key=lambda candidate: by_rank[candidate] * part.difference_ns, default=None)
    return "" if rank is None or by_rank[rank] / part.difference_ns < _MOST else f" of rank {rank}"


def _describe_kernel(kernels: KernelComparison) -> str:
    if not kernels.changes:
        return ""
    others = len(kernels.changes) - 1
    also = f"; {format_count(others, 'more change')} of kernels" if others else ""
    return describe_change(kernels.changes[0]) + also


def describe_change(kernel: KernelChange) -> str:
    """Say what a changed kernel adds to a step."""
    name = abbreviate(short_name(kernel.kernel_name or kernel.new_kernel_name or ""))
    if " + " in (kernel.kernel_name or kernel.new_kernel_name or ""):
        name = format_count(kernel.places or kernel.new_places, "kernel")
    change = f"{format_time(abs(kernel.cost_ns))} {'more' if kernel.cost_ns > 0 else 'less'} a step"
    what = {"changed": "takes ", "appeared": "is new, ", "went": "is gone, ", "replaced": "is replaced, "}[kernel.kind]
    return f"{name} {what}{change}"


def _span(effect: StepEffect) -> str:
    low, high = effect.low_ns, effect.high_ns
    if effect.difference_ns < 0 and high < 0:
        low, high = -high, -low
    return f"{format_time(low)} to {format_time(high)}"
