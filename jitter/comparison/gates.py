"""Gates: limits on a run's loss, its regression against a baseline, its findings; see `jitter explain compare`."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, get_args

from jitter.analysis.diagnosis.loss.waterfall import RUNG_WORDS
from jitter.analysis.diagnosis.model import Cause, Rung
from jitter.comparison.compare_documents import Comparison, describe_costs, describe_lone, describe_rare
from jitter.comparison.document import Document
from jitter.comparison.significance import MIN_STEPS, Statistic, StepEffect, measure_loss
from jitter.core.errors import UsageError
from jitter.core.formatting import format_count, format_pace, format_percent

GateName = Literal["max-loss", "max-regression", "fail-on"]
JITTER: Final[Rung] = "ranks"
"""The rung that loses jitter: its ranks are unlike."""
_LIMIT: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)")


class Result(IntEnum):
    """The result of a gate, from best to worst: the worst of several gates counts."""

    PASS = 0
    UNKNOWN = 1
    FAIL = 2


@dataclass(frozen=True)
class Gate:
    """One gate, measured."""

    gate: GateName
    limit: float | None
    """A fraction; None for `fail-on`."""
    value: float | None
    """A fraction; of `fail-on` the number of findings; None if unknown."""
    interval: tuple[float, float] | None
    """95% interval of the value."""
    result: Result
    text: str
    """The value and the limit in words, without the result."""
    statistic: Statistic | None = None
    """Of `max-regression`: whether the median or the mean step decides."""
    rung: Rung | None = None
    """Of `max-loss`: the rung of the waterfall that loses it."""


def unknown_gate(gate: GateName, limit: float | None, why: str, rung: Rung | None = None) -> Gate:
    return Gate(gate, limit, None, None, Result.UNKNOWN, why, rung=rung)


def parse_limit(text: str, option: str) -> float:
    """Return a limit such as `3%` or `0.03` as a fraction; raise `UsageError` for any other text."""
    match = _LIMIT.fullmatch(text.strip())
    value = None if match is None else float(match[1]) / (100 if match[2] else 1)
    if value is None or (match is not None and not match[2] and value >= 1):
        raise UsageError(f"{option}: {text!r} is no limit", "write it like 3% or 0.03")
    return value


def parse_losses(text: str) -> dict[Rung, float]:
    """Return the limits in a list such as `5%,steps=10%` by rung: one without a rung is of `ranks`, which is jitter.

    Raises `UsageError` for any other text.
    """
    limits: dict[Rung, float] = {}
    for word in text.split(","):
        name, equals, limit = word.rpartition("=")
        rung = next((known for known in RUNG_WORDS if known == (name.strip() if equals else JITTER)), None)
        if rung is None:
            raise UsageError(f"--max-loss: no rung is called {name.strip()!r}", f"there are {', '.join(RUNG_WORDS)}")
        if rung in limits:
            raise UsageError(f"--max-loss: two limits of {rung}", "give one")
        limits[rung] = parse_limit(limit, "--max-loss")
    return limits


def parse_causes(text: str) -> list[str]:
    """Return the causes in a list such as `gpu_compute,communication`; raise `UsageError` for an unknown one."""
    known_causes = [cause for cause in get_args(Cause) if cause != "none"]
    causes = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [cause for cause in causes if cause not in known_causes]
    if unknown or not causes:
        named = f"no cause is called {unknown[0]!r}" if unknown else f"{text!r} names no cause"
        raise UsageError(f"--fail-on: {named}", f"there are {', '.join(known_causes)}")
    return causes


def check_rung(run: Document, rung: Rung, limit: float) -> Gate:
    """Compare what a rung of the waterfall loses, of `ranks` the run's loss to jitter, with a limit.

    Below `ranks` the loss of the usual step is one number without an interval, and decides alone.
    """
    if rung == JITTER:
        return check_loss(run, limit)
    whole_ns = next((time.step_time_ns for time in run.waterfall if time.rung == "recorded"), None)
    lost_ns = next((time.loss_ns for time in run.waterfall if time.rung == rung), None)
    if not whole_ns or lost_ns is None:
        return unknown_gate("max-loss", limit, f"what {RUNG_WORDS[rung]} cost is not known", rung)
    lost, result = lost_ns / whole_ns, Result.PASS if lost_ns <= limit * whole_ns else Result.FAIL
    text = f"{RUNG_WORDS[rung]} {format_percent(lost)} (limit {format_limit(limit)})"
    return Gate("max-loss", limit, lost, None, result, text, rung=rung)


def check_loss(run: Document, limit: float) -> Gate:
    """Compare the run's loss to jitter with a limit; the whole interval decides.

    The loss compares with the median rank. Where most ranks are slow, what they lose to the fast ones fails it, too.
    What all ranks lose alike is no jitter: findings of it above the limit are named beside it.
    """
    interval = measure_loss(run)
    if isinstance(interval, str):
        return unknown_gate("max-loss", limit, interval, JITTER)
    low, high = interval
    result = Result.PASS if high <= limit else Result.FAIL if low > limit else Result.UNKNOWN
    why = ": the interval holds the limit" if result == Result.UNKNOWN else ""
    others = [
        finding
        for finding in run.culprits
        if finding.rung != "ranks" and finding.confidence != "low" and (finding.fraction or 0.0) > limit
    ]
    if any(finding.rung is None for finding in others):
        result, why = Result.FAIL, ": most ranks are slow, and lose more than the limit to the others"
    whose = " of the recorded ranks alone" if run.has_unrecorded_ranks else ""
    beside = "".join(
        f"; beside it {finding.name}, {finding.cause_in_words}: {format_percent(finding.fraction)}"
        for finding in others
    )
    measured = f"limit {format_limit(limit)}; {_span(interval)}"
    text = f"loss{whose} {format_percent(run.loss_fraction)} ({measured}){why}{beside}"
    return Gate("max-loss", limit, run.loss_fraction, interval, result, text, rung=JITTER)


def check_regression(comparison: Comparison, limit: float) -> Gate:
    """Compare the regression of the median step and of the mean step against a baseline with a limit: the worse counts.

    The whole interval of the median decides. Pauses in few steps leave the median as it is, and make the mean's
    interval wide: a mean above the limit does not pass, and fails where its whole interval is above.
    """
    effect, mean = comparison.effect, comparison.mean_effect
    if effect is None or mean is None:
        return unknown_gate("max-regression", limit, f"incomparable: {'; '.join(comparison.reasons)}")
    if any(side.steps < MIN_STEPS * side.runs for side in (comparison.base, comparison.new)):
        return unknown_gate("max-regression", limit, f"too few steps: a check needs {MIN_STEPS} of each run")
    low, high = effect.interval
    change, within = format_percent(effect.fraction), f"limit {format_limit(limit)}"
    if comparison.base.left_out:
        within += f"; without {', '.join(comparison.base.left_out)}, unlike the other bases"
    if comparison.base.ranks != comparison.new.ranks:
        within += f"; {comparison.new.ranks} ranks, {comparison.base.ranks} in the baseline"
    measured, of_mean = f"{within}; {_span(effect.interval)}", f"mean step {format_pace(mean.fraction)}"
    if low > limit and effect.is_real:
        parts = describe_costs(comparison, effect)
        result, text = Result.FAIL, f"slower than baseline by {change} ({within}){f': {parts} a step' if parts else ''}"
    elif high <= limit:
        result, text = Result.PASS, f"median step {format_pace(effect.fraction)} than baseline ({measured}), {of_mean}"
    else:
        why = "the interval holds the limit" if low <= limit else "the difference is within the noise"
        result, text = Result.UNKNOWN, f"median step {format_pace(effect.fraction)} than baseline ({measured}): {why}"
    if result < (result_of_mean := _judge_mean(mean, limit)):
        rare = "; ".join(describe_rare(comparison, effect))
        text = (
            f"{of_mean} than baseline ({within}; {_span(mean.interval)}), median step {format_pace(effect.fraction)}: "
            f"{rare or _name_largest(comparison)}"
        )
        return Gate("max-regression", limit, mean.fraction, mean.interval, result_of_mean, text, "mean")
    return Gate("max-regression", limit, effect.fraction, effect.interval, result, text, "median")


def _name_largest(comparison: Comparison) -> str:
    """Return which finding of the new run alone costs most, and in which of its steps."""
    appeared = [change.entry for change in comparison.culprits.appeared]
    largest = max(appeared, key=lambda entry: entry.loss_ns or 0, default=None)
    if largest is None or not largest.loss_ns:
        return "not all steps make the difference"
    return describe_lone("new run", largest)


def _judge_mean(mean: StepEffect, limit: float) -> Result:
    if mean.fraction <= limit:
        return Result.PASS
    return Result.FAIL if mean.interval[0] > limit and mean.is_real else Result.UNKNOWN


def check_findings(run: Document, causes: Collection[str]) -> Gate:
    """Look for findings of high confidence with one of these causes.

    One that may not recur does not fail a run: a single pause could hit any run.
    """
    certain = [finding for finding in run.culprits if finding.confidence == "high" and finding.cause in causes]
    findings = [finding for finding in certain if finding.recurs != "unknown"]
    if findings:
        entry = findings[0]
        text = f"{entry.name}: {entry.cause}, high confidence"
        rest_text = f" and {format_count(len(findings) - 1, 'more finding')}" if len(findings) > 1 else ""
        return Gate("fail-on", None, len(findings), None, Result.FAIL, text + rest_text)
    if not run.steps or run.ranks < 2:
        why = "the run has no steps" if not run.steps else "one rank has no peers to compare with"
        return unknown_gate("fail-on", None, f"no findings are possible: {why}")
    once = format_count(len(certain), "finding") if certain else "no finding"
    text = f"{once} of high confidence with cause {' or '.join(causes)}{', which may not recur' if certain else ''}"
    return Gate("fail-on", None, 0, None, Result.PASS, text)


def worst(gates: Sequence[Gate]) -> Result:
    return max((gate.result for gate in gates), default=Result.UNKNOWN)


def write_line(gates: Sequence[Gate]) -> str:
    """Return the gates as one line, the worst first."""
    texts = dict.fromkeys(gate.text for gate in sorted(gates, key=lambda gate: -gate.result))
    return f"{worst(gates).name} {'; '.join(texts)}"


def format_limit(limit: float) -> str:
    """Write a limit as it is given: `3%`, `2.5%`."""
    return f"{100 * limit:.6g}%"


def _span(interval: tuple[float, float]) -> str:
    low, high = interval
    return f"95% interval {format_percent(low)} to {format_percent(high)}"
