"""Culprits: each group of findings with its confidence, evidence, kernels and place in the profile."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.evidence.locations import find_profile_location
from jitter.analysis.diagnosis.grouping.finding_groups import FindingGroup
from jitter.analysis.diagnosis.grouping.step_pattern import describe_step_pattern
from jitter.analysis.diagnosis.model import Confidence, Culprit, IndexRange, Pause
from jitter.analysis.execution.time_part import TimePart
from jitter.analysis.metrics.step_kernels import UNMATCHED
from jitter.analysis.replay.charges import Charge, Charges
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_percent, format_time

_LIMITS: Final = THRESHOLDS.sentences
_UNKNOWN_GAIN = "whether that delays other ranks is unknown: some exchanges name no partners"


def make_culprit(
    group: FindingGroup, gain_ns: float, share_ns: float, max_gain_ns: float | None, evidence: Evidence
) -> Culprit:
    """Return the culprit of a group of findings.

    Args:
        group: the findings.
        gain_ns: what fixing them alone would save.
        share_ns: their share of what fixing all findings would save.
        max_gain_ns: the loss, which no saving exceeds; None if unknown.
        evidence: of the analysis.

    """
    analysis, steps = evidence.analysis, group.steps
    by_rank: dict[int, float] = {}
    for outlier in group.outliers:
        by_rank[outlier.rank] = by_rank.get(outlier.rank, 0.0) + outlier.excess_ns
    rank = max(by_rank, key=lambda r: (by_rank[r], -r)) if by_rank else group.group.ranks[0]
    charges = _charges(group, rank, evidence)
    if group.group.scope == "job" and group.parts:
        rank = _most_excess(group, evidence)
        charges = _charges(group, rank, evidence)
    elif not by_rank and charges:
        rank = _most_often_last(charges)
    excess_of_steps = [evidence.excess_of_step(group.findings, number) for number in range(len(analysis.keys))]
    location = evidence.locations[rank]
    ranks = group.group.ranks
    recorded = rank if rank in ranks else ranks[0]
    if group.group.scope == "unrecorded":
        ranks = evidence.unrecorded_members(group.slow_communication[0]) or ranks
    pricing = evidence.pricing
    is_unknown = gain_ns < pricing.min_gain_ns(steps) and any(
        pricing.unpriced_ns(one.candidate) > 0 for one in group.findings
    )
    saved_ns = max(gain_ns, 0.0) if group.is_lead or is_unknown else gain_ns
    return Culprit(
        scope=group.group.scope,
        rank=rank if rank in ranks else ranks[0],
        ranks=ranks,
        host=location.host if group.group.scope in ("rank", "host") else None,
        device=location.device if group.group.scope in ("rank", "device") else None,
        cause=group.cause,
        confidence="low" if is_unknown else _confidence(group, evidence),
        excess_ns=round(group.excess_ns),
        gain_ns=cap_gain(saved_ns, max_gain_ns),
        share_ns=cap_gain(max(share_ns, 0.0), max_gain_ns),
        steps=tuple(analysis.keys[number] for number in steps),
        step_pattern=describe_step_pattern(analysis.keys, steps, excess_of_steps),
        kernel_index=_kernel_range(charges, evidence),
        evidence=(
            describe_excess(group, evidence),
            *group.evidence,
            *_describe_share(gain_ns, share_ns, evidence),
            *_describe_chance(group, evidence),
            *((_UNKNOWN_GAIN,) if is_unknown else ()),
        ),
        look_at=find_profile_location(analysis, evidence.records, recorded, charges, steps),
        is_beyond_loss=group.known_gain_ns is not None,
        pauses=_longest_pauses(group, evidence) if group.group.scope == "job" else (),
        has_unknown_gain=is_unknown,
        is_part_of_job=group.group.scope == "job" and len(group.group.ranks) < len(evidence.locations),
    )


def _describe_share(gain_ns: float, share_ns: float, evidence: Evidence) -> tuple[str, ...]:
    """Say what the findings' share of the joint saving is, where it differs from what they save alone."""
    share_ns = max(share_ns, 0.0)
    if abs(share_ns - max(gain_ns, 0.0)) < THRESHOLDS.min_gain_share * evidence.analysis.usual_step_ns:
        return ()
    return (f"its share of what fixing all findings would save is {format_time(share_ns)}",)


def _describe_chance(group: FindingGroup, evidence: Evidence) -> tuple[str, ...]:
    """Say why a finding is no more than a lead although its excess is far above the noise."""
    if not group.outliers or not all(outlier.may_be_random for outlier in group.outliers):
        return ()
    seen = f"{len(group.steps)} of {format_count(len(evidence.analysis.keys), 'step')}"
    return (f"seen in {seen}: too few to tell this rank from a pause that could hit any rank",)


def cap_gain(gain_ns: float, max_gain_ns: float | None) -> int:
    """Return the gain in whole ns, at most the loss: fixing part of the run cannot save more than fixing all of it."""
    return round(gain_ns if max_gain_ns is None else min(gain_ns, max(max_gain_ns, 0.0)))


def describe_excess(group: FindingGroup, evidence: Evidence) -> str:
    """Say how much slower the group is than its baseline, per step and rank."""
    ranks = {outlier.rank for outlier in group.outliers}
    if group.known_gain_ns is not None or (group.group.scope == "job" and group.parts):
        per_step = group.excess_ns / len(group.steps)
        share = _format_share(per_step / evidence.analysis.usual_step_ns)
        where = "on these ranks"
        if group.is_lead:
            where = "on the critical path"
        elif group.known_gain_ns is None:
            where = "over all ranks together"
        return f"{format_time(per_step)} per step {where} ({share})"
    # what precedes the first recorded step is unknown
    unknown = min((outlier.unknown_steps for outlier in group.outliers), default=0)
    per_step = group.excess_ns / max(len(group.steps) - unknown, 1) / max(len(ranks), 1)
    if group.is_lead:
        baseline = "the median of the same operations, on the critical path"
    elif not ranks:
        baseline = "the baseline of these collectives"
    elif any(outlier.pace is not None for outlier in group.outliers):
        baseline = "the median of the other ranks for the same work"
    elif evidence.peers(group.group.ranks):
        baseline = "the median of the other ranks"
    else:
        baseline = "the median of its other steps"
    share = _format_share(per_step / evidence.analysis.usual_step_ns)
    # not of a lead, which passes no test; nor of a drift, whose growth counts as variation from step to step
    told = share if group.is_lead or group.sigmas < _LIMITS.min_sigmas else f"{share}, {_format_sigmas(group.sigmas)}"
    return f"{format_time(per_step)} per step above {baseline} ({told})"


def _format_share(share: float) -> str:
    return (
        f"{format_percent(share)} of a step"
        if share <= _LIMITS.max_step_share
        else f"more than {_LIMITS.max_step_share:.0f} steps' time"
    )


def _format_sigmas(sigmas: float) -> str:
    return f"> {_LIMITS.max_sigmas:.0f}σ" if sigmas > _LIMITS.max_sigmas else f"{sigmas:.0f}σ"


def _confidence(group: FindingGroup, evidence: Evidence) -> Confidence:
    if (
        group.is_lead
        or group.group.scope == "unrecorded"
        or evidence.analysis.lacks_sync_calls
        or evidence.has_guessed_steps
        or evidence.is_doubtful(group.group.ranks, communication=not group.parts)
    ):
        return "low"
    if not group.parts:
        is_strong = group.sigmas >= THRESHOLDS.high_confidence_factor * THRESHOLDS.step_sigmas
        if group.chance > THRESHOLDS.medium_chance:
            return "low"
        return "high" if is_strong and group.chance <= THRESHOLDS.high_chance else "medium"
    chance = group.chance
    if group.cause == "gpu_time" or not all(evidence.has_launches(outlier.team) for outlier in group.outliers):
        chance = max(chance, THRESHOLDS.high_chance * 2)
    if evidence.peers(group.group.ranks) < THRESHOLDS.min_peers_for_high or chance > THRESHOLDS.medium_chance:
        return "low"
    return "high" if chance <= THRESHOLDS.high_chance else "medium"


def _charges(group: FindingGroup, rank: int, evidence: Evidence) -> Mapping[int, Charges]:
    """Return the critical path's charges of a group, by step: those of its worst rank, or of its collectives."""
    found = {}
    meetings = {which for slow in group.slow_communication for which in slow.meetings}
    for number in group.steps:
        charges = evidence.analysis.paths[number].charges
        if group.parts:
            own = charges.where((charges.rank == rank) & np.isin(charges.part, list(group.parts)))
        else:
            own = charges.where(charges.part == TimePart.TRANSFER)
            places = zip(own.collective.tolist(), own.group.tolist(), strict=True)
            own = own.where(np.array([place in meetings for place in places], np.bool_))
        if len(own):
            found[number] = own
    return found


def _most_excess(group: FindingGroup, evidence: Evidence) -> int:
    """Return the rank with the most excess of the group's parts on the critical path; of equals the lowest."""
    sums: Counter[int] = Counter()
    for number in group.steps:
        charges = evidence.analysis.paths[number].whole
        own = charges.where(np.isin(charges.part, list(group.parts)))
        for rank, excess_ns in zip(own.rank.tolist(), own.excess_ns.tolist(), strict=True):
            sums[rank] += excess_ns
    return max(group.group.ranks, key=lambda rank: (sums[rank], -rank))


def _longest_pauses(group: FindingGroup, evidence: Evidence) -> tuple[Pause, ...]:
    """Return the host's pauses with the most excess on the critical paths of the group's steps."""
    parts = [part for part in group.parts if part != TimePart.GPU]
    found: list[tuple[float, int, Charge]] = []
    for number in group.steps if parts else ():
        charges = evidence.analysis.paths[number].charges
        own = charges.where(np.isin(charges.part, parts) & np.isin(charges.rank, group.group.ranks))
        longest = np.argsort(-own.excess_ns, kind="stable")[: _LIMITS.max_named].tolist()
        found += [(float(own.excess_ns[at]), number, own[at]) for at in longest if own.excess_ns[at] > 0]
    pauses = []
    for excess_ns, number, charge in sorted(found, key=lambda one: -one[0])[: _LIMITS.max_named]:
        key = evidence.analysis.keys[number]
        kernel = evidence.kernels.locate(key, charge)
        if kernel is not None:
            pauses.append(Pause(key, charge.rank, kernel.kernel_index, round(excess_ns)))
    return tuple(pauses)


def _most_often_last(charges: Mapping[int, Charges]) -> int:
    """Return the rank that arrived last most often; of equals the lowest."""
    counts = Counter[int](rank for own in charges.values() for rank in own.rank.tolist())
    return max(counts, key=lambda rank: (counts[rank], -rank))


def _kernel_range(charges: Mapping[int, Charges], evidence: Evidence) -> IndexRange | None:
    """Return the kernel indices, each of its own step, among which nearly all of the excess arose."""
    by_index: dict[int, float] = {}
    for number, own in charges.items():
        located = evidence.kernels.locate_all(evidence.analysis.keys[number], own)
        for index, excess_ns in zip(located.tolist(), own.excess_ns.tolist(), strict=True):
            if index != UNMATCHED:
                by_index[index] = by_index.get(index, 0.0) + excess_ns
    if not by_index:
        return None
    indices = np.array(sorted(by_index))
    excess = np.maximum([by_index[index] for index in indices.tolist()], 0.0)
    if not excess.sum():
        return None
    running = np.cumsum(excess) / excess.sum()
    tail = (1 - THRESHOLDS.kernel_range_share) / 2
    return IndexRange(int(indices[np.argmax(running > tail)]), int(indices[np.argmax(running >= 1 - tail)]))
