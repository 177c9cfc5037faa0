"""The verdict: one sentence that says what jitter costs, which rank, host or link causes it, and what to check."""

from collections import Counter
from collections.abc import Sequence

from jitter.analysis.detection.thresholds import THRESHOLDS
from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.model import Culprit, Loss, StepAnswer
from jitter.core.formatting import format_count, format_numbers, format_percent, format_time

_MAX_NAMED = 3


def write_verdict(
    loss: Loss,
    culprits: Sequence[Culprit],
    steps: Sequence[StepAnswer],
    all_gain_ns: int,
    ranks: int,
    peerless: Sequence[int],
    *,
    partial: bool,
) -> str:
    """Return the verdict.

    Args:
        loss: of the run.
        culprits: worst first.
        steps: of the run.
        all_gain_ns: what fixing all culprits would save.
        ranks: how many were recorded.
        peerless: those of them that cannot be compared with another.
        partial: whether some exchanges have unknown partners, so that some waiting is not seen.

    """
    if ranks == 1 and not culprits:
        own = "" if loss.ns is None else f"; its own steps lose {format_time(max(loss.ns, 0))} against their median"
        return f"Only one rank was recorded, so jitter between ranks cannot be measured{own}."
    cost = _describe_cost(loss, steps)
    if not culprits and partial:
        return (
            f"{cost} as far as can be told: some exchanges name no partners, so waiting in them cannot be attributed, "
            "and no rank, host or link can be blamed or cleared."
        )
    if not culprits and peerless:
        return f"{cost}; no rank stands out above the run's noise{_slowest(loss, steps)}. {explain_no_peers(peerless)}"
    if not culprits:
        return f"{cost}; no rank, host or link stands out above the run's noise{_slowest(loss, steps)}."
    first = culprits[0]
    said = f"{cost}. {name_culprit(first)} {CAUSES[first.cause].advice} ({first.step_pattern}); {_describe_gain(first)}"
    if len(culprits) > 1:
        others = ", ".join(
            f"{name_culprit(other)[:1].lower()}{name_culprit(other)[1:]} ({CAUSES[other.cause].words})"
            for other in culprits[1:_MAX_NAMED]
        )
        more = f" and {len(culprits) - _MAX_NAMED} more" if len(culprits) > _MAX_NAMED else ""
        said += f". Also {others}{more}; fixing all of them would save about {format_time(all_gain_ns)}"
    return said + "."


def _describe_cost(loss: Loss, steps: Sequence[StepAnswer]) -> str:
    if loss.ns is None:
        return "The cost of jitter is unknown"
    counted = sum(step.loss_ns is not None for step in steps)
    share = "" if loss.fraction is None else f" ({format_percent(max(loss.fraction, 0.0))})"
    return f"Jitter costs {format_time(max(loss.ns, 0))} over {format_count(counted, 'step')}{share}"


def _describe_gain(culprit: Culprit) -> str:
    if culprit.gain_ns <= 0:
        return "fixing it alone would save nothing, because other faults hide it"
    return f"fixing it would save about {format_time(culprit.gain_ns)}"


def _slowest(loss: Loss, steps: Sequence[StepAnswer]) -> str:
    """Name the rank with the most excess on most steps' critical paths, where the loss is not small: a hint."""
    counts = Counter(step.max_rank for step in steps if step.max_rank is not None)
    if not counts or (loss.fraction or 0.0) < THRESHOLDS.min_loss_share:
        return ""
    rank, times = counts.most_common(1)[0]
    if times * 2 <= len(steps) or len(steps) == 1:
        return ""
    return f", although rank {rank} is the slowest in {times} of {len(steps)} steps"


def explain_no_peers(ranks: Sequence[int]) -> str:
    """Say what cannot be seen of ranks without peers."""
    if len(ranks) == 1:
        return f"Rank {ranks[0]} runs a program of its own: a fault that slows it in every step cannot be seen."
    return (
        f"Ranks {format_numbers(ranks)} each run a program of their own: a fault that slows one of them in every step "
        "cannot be seen."
    )


def name_culprit(culprit: Culprit) -> str:
    """Return the culprit's name, as the beginning of a sentence."""
    if culprit.scope == "host":
        ranks = f"ranks {format_numbers(culprit.ranks)}"
        return f"The node of {ranks}" if culprit.host is None else f"Host {culprit.host} ({ranks})"
    if culprit.scope == "device":
        return f"Device {culprit.device} of every host (ranks {format_numbers(culprit.ranks)})"
    if culprit.scope == "ranks":
        return f"The group of ranks {format_numbers(culprit.ranks)}"
    return f"Rank {culprit.rank}" + ("" if culprit.host is None else f" ({culprit.host})")
