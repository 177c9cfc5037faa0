"""Whether the findings of a group recur: which events of which ranks the test of recurrence is asked about."""

from collections.abc import Sequence

import numpy as np

from jitter.analysis.detection.job_findings import JobFinding
from jitter.analysis.detection.recurrence import Recurrence, Recurs, decide_recurrence, decide_repetition, is_random
from jitter.analysis.detection.slow_communication import SlowCommunication
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.grouping.finding_groups import FindingGroup
from jitter.analysis.thresholds import THRESHOLDS

_ORDER: tuple[Recurs, ...] = ("yes", "together", "no", "unknown")
"""Of several findings of a group, the first of these answers counts."""


def decide_group_recurrence(group: FindingGroup, evidence: Evidence) -> Recurrence:
    """Return whether a group of findings recurs."""
    if group.group.scope == "unrecorded":
        return Recurrence("unknown")
    if not group.parts:
        return _of_communication(group, evidence)
    found = [
        _of_job(one.candidate, evidence)
        for one in group.findings
        if isinstance(one.candidate, JobFinding) and one.candidate.kind != "late_together"
    ]
    return _first(found or _of_ranks(group, evidence))


def _of_ranks(group: FindingGroup, evidence: Evidence) -> list[Recurrence]:
    """Return the answers for each team and part of the group's outliers."""
    alike = {(one.team, one.part): one for one in group.outliers}
    return [
        decide_recurrence(evidence.analysis.standouts_of(one), group.group.ranks, len(group.steps))
        for one in alike.values()
    ]


def _first(found: Sequence[Recurrence]) -> Recurrence:
    return min(found, key=lambda one: (_ORDER.index(one.answer), one.more_steps is None, one.more_steps or 0))


def _of_job(job: JobFinding, evidence: Evidence) -> Recurrence:
    """Return the answer for a finding about many ranks, whose detector compares them in its own way."""
    recorded = len(evidence.analysis.keys)
    if job.kind == "slow_steps":
        return Recurrence("together")
    if job.kind == "random_pauses":
        team = evidence.analysis.deviations_of(job.members[0].team)
        events = np.array([len(job.steps_of_rank.get(rank, ())) for rank in team.ranks.tolist()])
        return Recurrence("no") if is_random(events) else Recurrence("unknown", recorded)
    if recorded < THRESHOLDS.min_steps_to_recur:
        return Recurrence("unknown", THRESHOLDS.min_steps_to_recur - recorded)
    if job.kind == "launch_bound":
        return Recurrence("no")
    return Recurrence("yes" if job.chance < THRESHOLDS.recurrence.max_chance else "unknown")


def _of_communication(group: FindingGroup, evidence: Evidence) -> Recurrence:
    """Return the answer for slow communication: against the other slow communication of the run."""
    recorded, slow = len(evidence.analysis.keys), len(group.steps)
    if slow == recorded >= THRESHOLDS.min_steps_for_scatter:
        return Recurrence("yes")
    if group.group.scope == "job":
        return Recurrence("together") if recorded > 1 else Recurrence("unknown", THRESHOLDS.min_steps_to_recur - 1)
    elsewhere = sum(
        len(one.steps)
        for one in evidence.pricing.findings
        if isinstance(one.candidate, SlowCommunication) and one not in group.findings
    )
    share = len(group.group.ranks) / len(evidence.locations)
    return decide_repetition(slow, elsewhere, share, recorded)
