"""The verdict: one sentence that says what jitter costs, which rank, host or link causes it, and what to check."""

from collections import Counter
from collections.abc import Sequence

from jitter.analysis.detection.thresholds import THRESHOLDS
from jitter.analysis.diagnosis.causes import CAUSES
from jitter.analysis.diagnosis.limitations import NO_COMMON_STEP
from jitter.analysis.diagnosis.loss.parts import describe_split, main_rank
from jitter.analysis.diagnosis.model import Conclusion, Culprit, Loss, LossShare, StepAnswer
from jitter.core.formatting import format_count, format_numbers, format_percent, format_time

_MAX_NAMED = 3


def write_verdict(
    loss: Loss,
    culprits: Sequence[Culprit],
    steps: Sequence[StepAnswer],
    all_gain_ns: int,
    ranks: int,
    conclusion: Conclusion,
    split: Sequence[LossShare] = (),
) -> str:
    """Return the verdict.

    Args:
        loss: of the run.
        culprits: worst first.
        steps: of the run.
        all_gain_ns: what fixing all culprits would save.
        ranks: how many were recorded.
        conclusion: the state of the run, and what keeps ranks from being cleared.
        split: of the loss.

    """
    if ranks == 1 and not culprits:
        return f"{_describe_own_cost(loss)}."
    if ranks == 0:
        return "No rank recorded a step completely, so jitter cannot be measured."
    if NO_COMMON_STEP in conclusion.doubts and not culprits:
        return NO_COMMON_STEP
    cost = _describe_own_cost(loss) if ranks == 1 else _describe_cost(loss, steps)
    if not culprits:
        return " ".join([f"{cost}; {_describe_no_finding(loss, steps, conclusion, split)}.", *conclusion.doubts])
    first = culprits[0]
    lead = ", low confidence" if first.confidence == "low" else ""
    said = (
        f"{cost}. {name_culprit(first)} {describe_advice(first)} ({first.step_pattern}{lead}); {describe_gain(first)}"
    )
    if len(culprits) > 1:
        others = ", ".join(
            f"{name_culprit(other)[:1].lower()}{name_culprit(other)[1:]} ({CAUSES[other.cause].words})"
            for other in culprits[1:_MAX_NAMED]
        )
        more = f" and {len(culprits) - _MAX_NAMED} more" if len(culprits) > _MAX_NAMED else ""
        said += f". Also {others}{more}; fixing all of them would save about {format_time(all_gain_ns)}"
    return said + "."


def describe_advice(culprit: Culprit) -> str:
    """Return what the culprit does and where to look, as the end of a sentence that begins with the culprit."""
    if culprit.scope == "unrecorded":
        return "holds up the recorded ranks: record the ranks that are missing, and check the network"
    info = CAUSES[culprit.cause]
    return info.job_advice if culprit.scope == "job" else info.advice


def _describe_no_finding(
    loss: Loss, steps: Sequence[StepAnswer], conclusion: Conclusion, split: Sequence[LossShare]
) -> str:
    if conclusion.status == "spread":
        parts = describe_split(split)
        told = f": {parts}" if parts else ""
        counted = sum(step.loss_ns is not None for step in steps)
        if (rank := main_rank(split)) is None:
            return f"the loss is spread over the ranks, and none stands out above the run's noise{told}"
        few = "is" if counted == 1 else "are"
        return f"most of the loss is on rank {rank}, but {format_count(counted, 'step')} {few} too few to be sure{told}"
    if conclusion.status == "unknown":
        return "no rank can be blamed or cleared"
    subject = "recorded rank" if conclusion.doubts else "rank, host or link"
    hint = _slowest(loss, steps)
    network = "" if conclusion.unverified_transfers is None else f"; {describe_unverified_network(conclusion)}"
    return f"no {subject} stands out above the run's noise{hint}{network}"


def describe_unverified_network(conclusion: Conclusion) -> str:
    """Return what is not known of the network, as a clause."""
    return (
        "a network that is slow for all ranks in every step is not excluded (transfers take "
        f"{format_percent(conclusion.unverified_transfers)} of the time)"
    )


def _describe_own_cost(loss: Loss) -> str:
    """Return what the steps of the only rank cost, compared with each other."""
    alone = "Only one rank was recorded, so jitter between ranks cannot be measured"
    if loss.ns is None or loss.ns <= 0:
        return alone
    share = "" if loss.fraction is None else f" ({format_percent(loss.fraction)})"
    return f"{alone}; its own steps lose {format_time(loss.ns)}{share} against their median"


def _describe_cost(loss: Loss, steps: Sequence[StepAnswer]) -> str:
    if loss.ns is None:
        return "The cost of jitter is unknown"
    counted = sum(step.loss_ns is not None for step in steps)
    if loss.ns <= 0:
        return f"Jitter costs no measurable time over {format_count(counted, 'step')}"
    share = "" if loss.fraction is None else f" ({format_percent(loss.fraction)})"
    return f"Jitter costs {format_time(loss.ns)} over {format_count(counted, 'step')}{share}"


def describe_gain(culprit: Culprit) -> str:
    """Return what fixing the culprit would save, as a clause."""
    if culprit.gain_ns <= 0 and culprit.confidence == "low":
        return "what fixing it alone would save is too small to measure in these steps"
    if culprit.gain_ns <= 0:
        return "fixing it alone would save nothing, because other faults hide it"
    beyond = " beyond this loss" if culprit.is_beyond_loss else ""
    return f"fixing it would save about {format_time(culprit.gain_ns)}{beyond}"


def _slowest(loss: Loss, steps: Sequence[StepAnswer]) -> str:
    """Name the rank with the most excess on most steps' critical paths, where the loss is not small: a hint."""
    counts = Counter(step.max_rank for step in steps if step.max_rank is not None)
    if not counts or (loss.fraction or 0.0) < THRESHOLDS.min_loss_share:
        return ""
    rank, times = counts.most_common(1)[0]
    if times * 2 <= len(steps) or len(steps) == 1:
        return ""
    return f", although rank {rank} is the slowest in {times} of {len(steps)} steps"


def name_culprit(culprit: Culprit) -> str:
    """Return the culprit's name, as the beginning of a sentence."""
    if culprit.scope == "host":
        ranks = f"ranks {format_numbers(culprit.ranks)}"
        return f"The node of {ranks}" if culprit.host is None else f"Host {culprit.host} ({ranks})"
    if culprit.scope == "device":
        return f"Device {culprit.device} of every host (ranks {format_numbers(culprit.ranks)})"
    if culprit.scope == "job":
        return f"Ranks {format_numbers(culprit.ranks)}" if culprit.is_part_of_job else "All ranks"
    if culprit.scope == "unrecorded":
        return "An unrecorded rank or the network"
    if culprit.scope == "ranks":
        return f"The group of ranks {format_numbers(culprit.ranks)}"
    return f"Rank {culprit.rank}" + ("" if culprit.host is None else f" ({culprit.host})")
