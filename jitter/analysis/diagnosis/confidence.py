"""Whether the ranks of a finding lost the time, and whether they will again: its confidence and its recurrence.

Confidence is that of the attribution: doubtful is what the clocks, missing recordings, exchanges without partners and
inferred waits leave open. How often the finding was seen does not count: that is its recurrence.
"""

import numpy as np

from jitter.analysis.detection.findings import Finding
from jitter.analysis.detection.recurrence import Recurrence, Recurs, decide_recurrence, decide_repetition, is_random
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.grouping.finding_groups import FindingGroup
from jitter.analysis.diagnosis.model import Confidence
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.thresholds import THRESHOLDS


def judge_confidence(group: FindingGroup, evidence: Evidence) -> Confidence:
    """Return the confidence of a group of findings."""
    if _is_doubtful(group, evidence):
        return "low"
    if group.chance <= THRESHOLDS.high_chance or group.sigmas > THRESHOLDS.sentences.max_sigmas:
        # host time that no launches were recorded for, but gaps of the GPU
        is_inferred = any(
            outlier.part != TimePart.GPU and not evidence.has_launches(outlier.team) for outlier in group.outliers
        )
        return "medium" if is_inferred else "high"
    return "medium" if group.chance <= THRESHOLDS.medium_chance else "low"


def _is_doubtful(group: FindingGroup, evidence: Evidence) -> bool:
    """Return whether something that was not recorded may explain a finding as well."""
    return (
        group.group.scope == "unrecorded"
        or evidence.analysis.account.contradicts_recording
        or evidence.analysis.run.is_unexplained
        or (not group.is_of_stages and _hinges_on_unrecorded(group, evidence))
        or _exceeds_clocks(group, evidence)
        or _hinges_on_waits(group, evidence)
    )


def _hinges_on_unrecorded(group: FindingGroup, evidence: Evidence) -> bool:
    """Return whether ranks, partners or groups that were not recorded may explain it."""
    matching = evidence.analysis.run.matching
    if not group.parts:
        # of exchanges without partners, waiting cannot be told from transfers
        return evidence.coverage.has_unrecorded_ranks or matching.unpaired > 0
    # what a rank without peers waits for is known from the groups of its collectives alone
    return evidence.peers(group.group.ranks) < 1 and (evidence.coverage.has_unrecorded_ranks or matching.lacks_groups)


def _exceeds_clocks(group: FindingGroup, evidence: Evidence) -> bool:
    """Return whether the clocks of the ranks err by more than a part of the excess of one rank in one step."""
    measured = evidence.analysis.measured.of_steps
    error_ns = max((measured[number].quality.uncertainty_ns or 0 for number in group.steps), default=0)
    ranks = len({outlier.rank for outlier in group.outliers}) or 1
    return error_ns > THRESHOLDS.main_share * group.excess_ns / max(len(group.steps), 1) / ranks


def _hinges_on_waits(group: FindingGroup, evidence: Evidence) -> bool:
    """Return whether host time is worth no report if hosts wait otherwise, as the recording allows as well.

    Waits decide what is a host's own time; a GPU's is known, whatever its repair saves.
    """
    if group.known_gain_ns is not None or group.parts <= {TimePart.GPU}:
        return False
    (gain_ns,) = evidence.analysis.gains([group.scenario])
    (other_ns,) = evidence.analysis.bound_gains([group.scenario])
    return other_ns < evidence.pricing.min_gain_ns(group.steps) <= gain_ns


_ORDER: tuple[Recurs, ...] = ("yes", "together", "no", "unknown")
"""Of several findings of a group, the first of these answers counts."""


def decide_group_recurrence(group: FindingGroup, evidence: Evidence) -> Recurrence:
    """Return whether a group of findings recurs."""
    if not group.parts:
        return _of_communication(group, evidence)
    answers = [
        _of_job(candidate, evidence)
        for candidate in group.candidates
        if candidate.kind not in ("late_rank", "late_together")
    ]
    alike = {(outlier.team, outlier.part): outlier for outlier in group.outliers}
    answers = answers or [
        decide_recurrence(evidence.analysis.outliers.standouts_of(outlier), group.group.ranks, len(group.steps))
        for outlier in alike.values()
    ]
    return min(answers, key=lambda one: (_ORDER.index(one.answer), one.more_steps is None, one.more_steps or 0))


def _of_job(job: Finding, evidence: Evidence) -> Recurrence:
    """Return the answer for a finding about many ranks, whose detector compares them in its own way."""
    recorded = len(evidence.analysis.keys)
    if job.kind == "slow_steps":
        return Recurrence("together")
    if job.kind == "random_pauses":
        team = evidence.analysis.measured.deviations_of(job.members[0].team)
        events = np.array([len(job.steps_of_rank.get(rank, ())) for rank in team.ranks.tolist()])
        return Recurrence("no") if is_random(events) else Recurrence("unknown", recorded)
    if recorded < THRESHOLDS.min_steps:
        return Recurrence("unknown", THRESHOLDS.min_steps - recorded)
    if job.kind == "in_turn":
        return Recurrence("no")
    return Recurrence("yes" if job.chance < THRESHOLDS.medium_chance else "unknown")


def _of_communication(group: FindingGroup, evidence: Evidence) -> Recurrence:
    """Return the answer for slow communication: against the other slow communication of the run."""
    recorded, slow = len(evidence.analysis.keys), len(group.steps)
    if slow == recorded >= THRESHOLDS.min_repeats:
        return Recurrence("yes")
    if group.group.scope == "unrecorded":
        return Recurrence("unknown")  # the same rank each time, or any of them
    if group.group.scope == "job":
        return Recurrence("together") if recorded > 1 else Recurrence("unknown", THRESHOLDS.min_steps - 1)
    elsewhere = sum(
        len(candidate.steps)
        for candidate in evidence.pricing.worth_fixing
        if candidate.part is TimePart.TRANSFER and candidate not in group.candidates
    )
    share = len(group.group.ranks) / len(evidence.locations)
    return decide_repetition(slow, elsewhere, share, recorded)
