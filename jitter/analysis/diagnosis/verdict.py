"""The verdict: one sentence a person can act on."""

from collections import Counter
from collections.abc import Sequence

from jitter.analysis.diagnosis.model import Culprit, Loss, StepAnswer
from jitter.core.formatting import format_count, format_numbers, format_percent, format_time

_DO = {
    "late_start": "starts its steps late: look at its data loading and host",
    "cpu_launch": "launches its kernels late: look at its host's CPU",
    "gpu_compute": "computes the same kernels more slowly: look at its GPU's clocks and neighbours",
    "workload_imbalance": "has more or other work than its peers: look at how work is divided",
    "communication": "exchanges slowly although all arrive together: look at its network",
}
_NAMED = 3
_WORTH_A_LOOK = 0.01


def write_verdict(
    loss: Loss,
    culprits: Sequence[Culprit],
    steps: Sequence[StepAnswer],
    together_ns: int,
    ranks: int,
    lone: Sequence[int],
    *,
    partial: bool,
) -> str:
    """Say what to do, or that there is nothing to do; `ranks` is how many were recorded.

    `lone` are those of them without peers. `partial`: there are exchanges of unknown partners, so that not all that
    holds ranks up is seen.
    """
    if ranks == 1 and not culprits:
        alone = "Only one rank was recorded: what jitter between ranks costs, and who is behind it, cannot be told"
        own = "" if loss.ns is None else f"; its own steps lose {format_time(max(loss.ns, 0))} against their median"
        return f"{alone}{own}."
    counted = sum(step.loss_ns is not None for step in steps)
    cost = (
        "What jitter costs cannot be told"
        if loss.ns is None
        else f"Jitter costs {format_time(max(loss.ns, 0))} over {format_count(counted, 'step')}"
        + ("" if loss.fraction is None else f" ({format_percent(max(loss.fraction, 0.0))})")
    )
    if not culprits and partial:
        return (
            f"{cost} as far as can be told: some exchanges name no partners, so who waits for whom in them is not "
            "known, and no rank, host or link can be blamed or cleared."
        )
    if not culprits and lone:
        return f"{cost}; nothing leaves the noise{_often_last(loss, steps)}. {explain_no_peers(lone)}"
    if not culprits:
        return f"{cost}; nothing leaves the noise: no rank, host or link is to blame{_often_last(loss, steps)}."
    first = culprits[0]
    gain = f"repairing it gains {format_time(first.gain_ns)}"
    told = f"{cost}. {name_culprit(first)} {_DO[first.cause]} ({first.step_pattern}); {gain}"
    if len(culprits) > 1:
        others = ", ".join(
            f"{name_culprit(other)[:1].lower()}{name_culprit(other)[1:]} ({other.cause})"
            for other in culprits[1:_NAMED]
        )
        more = f" and {len(culprits) - _NAMED} more" if len(culprits) > _NAMED else ""
        told += f". Also {others}{more}; repairing all of them gains {format_time(together_ns)}"
    return told + "."


def explain_no_peers(lone: Sequence[int]) -> str:
    """Say what cannot be told of ranks without peers."""
    who, whom = (f"Rank {lone[0]} runs", "it") if len(lone) == 1 else (f"Ranks {format_numbers(lone)} each run", "them")
    own = "its own" if len(lone) == 1 else "their own"
    return f"{who} a program of {own}: with nobody to compare {whom} with, what slows {whom} in every step is not seen."


def _often_last(loss: Loss, steps: Sequence[StepAnswer]) -> str:
    """A rank that comes last most of the time, where that costs something: worth a look, not a verdict."""
    last = Counter(step.max_rank for step in steps if step.max_rank is not None)
    if not last or (loss.fraction or 0.0) < _WORTH_A_LOOK:
        return ""
    rank, times = last.most_common(1)[0]
    if times * 2 <= len(steps) or len(steps) == 1:
        return ""
    return f", though rank {rank} comes last in {times} of {len(steps)} steps"


def name_culprit(culprit: Culprit) -> str:
    """Name what is to be repaired."""
    if culprit.scope == "host":
        ranks = f"ranks {format_numbers(culprit.ranks)}"
        return f"The node of {ranks}" if culprit.host is None else f"Host {culprit.host} ({ranks})"
    if culprit.scope == "device":
        return f"Device {culprit.device} of every host (ranks {format_numbers(culprit.ranks)})"
    if culprit.scope == "ranks":
        return f"The group of ranks {format_numbers(culprit.ranks)}"
    return f"Rank {culprit.rank}" + ("" if culprit.host is None else f" ({culprit.host})")
