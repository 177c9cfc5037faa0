"""The verdict of a comparison as one sentence."""

from collections.abc import Sequence

from jitter.comparison.effect.step_effect import StepEffect
from jitter.comparison.kernel_changes import KernelComparison
from jitter.comparison.model import CulpritChanges, PartChange, Verdict
from jitter.core.formatting import abbreviate, format_count, format_percent, format_time
from jitter.core.names.kernels import short_name

_MIN_SHARE = 0.3
"""Part of the difference from which on a part of the split is named besides the largest."""


def write_sentence(
    verdict: Verdict,
    reasons: Sequence[str],
    effect: StepEffect | None,
    split: Sequence[PartChange],
    kernels: KernelComparison | None,
    culprits: CulpritChanges,
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
        return f"Same step time: {_signed(effect.fraction)} ({size}; {noise}); {describe_kernels(kernels)}.{unknown}"
    size = f"{format_time(abs(effect.difference_ns))} a step, {interval}"
    return (
        f"{format_percent(abs(effect.fraction))} {verdict} ({size}): {describe_parts(split)}; "
        f"{describe_kernels(kernels)}.{_new_culprits(culprits)}{unknown}"
    )


def describe_parts(split: Sequence[PartChange]) -> str:
    """Name the parts that make the difference, the largest first."""
    whole = sum(part.difference_ns for part in split)
    alike = [part for part in split if part.difference_ns * whole > 0]
    ordered = sorted(alike, key=lambda part: -abs(part.difference_ns))
    named = [part for part in ordered if abs(part.difference_ns) >= _MIN_SHARE * abs(whole)] or ordered[:1]
    return ", ".join(f"{part.label} {format_time(part.difference_ns, signed=True)}" for part in named)


def describe_kernels(kernels: KernelComparison) -> str:
    """Say whether kernels changed, and which one costs most."""
    if not kernels.changes:
        return "kernels unchanged"
    worst = kernels.changes[0]
    name = abbreviate(short_name(worst.kernel_name or worst.new_kernel_name or ""))
    if " + " in (worst.kernel_name or worst.new_kernel_name or ""):
        name = format_count(worst.places or worst.new_places, "kernel")
    change = f"{format_time(abs(worst.difference_ns))} {'more' if worst.difference_ns > 0 else 'less'} a step"
    what = {"changed": "takes ", "appeared": "is new, ", "went": "is gone, ", "replaced": "is replaced, "}[worst.kind]
    others = len(kernels.changes) - 1
    also = f"; {format_count(others, 'more change')} of kernels" if others else ""
    return f"{name} {what}{change}{also}"


def _new_culprits(culprits: CulpritChanges) -> str:
    if not culprits.appeared:
        return ""
    worst = culprits.appeared[0]
    where = f"host {worst.host}" if worst.scope == "host" and worst.host else f"rank {worst.rank}"
    return f" New finding: {where} ({worst.cause.replace('_', ' ')})."


def _signed(fraction: float) -> str:
    text = format_percent(fraction)
    return f"+{text}" if fraction > 0 and text[0].isdigit() else text


def _span(effect: StepEffect) -> str:
    low, high = effect.low_ns, effect.high_ns
    if effect.difference_ns < 0 and high < 0:
        low, high = -high, -low
    return f"{format_time(low)} to {format_time(high)}"
