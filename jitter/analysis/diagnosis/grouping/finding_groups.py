"""Groups findings that have one cause and one place: each group is one thing to fix."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from jitter.analysis.detection.job_findings import JobFinding, JobFindingKind
from jitter.analysis.detection.pricing import PricedFinding
from jitter.analysis.detection.slow_communication import SlowCommunication
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.diagnosis.causes import CauseEvidence, find_cause
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.grouping.scopes import RankGroup, assign_nodes, group_late_ranks
from jitter.analysis.diagnosis.grouping.step_pattern import format_ordinal
from jitter.analysis.diagnosis.model import Cause, CauseCertainty
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.replay.what_if import Scenario, together
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_numbers

STAGE_KINDS: Final[Mapping[JobFindingKind, Cause]] = {"unequal_stages": "unequal_stages", "slow_stage": "gpu_compute"}
"""The causes of findings that compare pipeline stages."""


@dataclass(frozen=True)
class FindingGroup:
    """Findings that are one thing to fix."""

    findings: tuple[PricedFinding, ...]
    group: RankGroup
    cause: Cause
    cause_certainty: CauseCertainty
    evidence: tuple[str, ...]
    is_lead: bool = False
    """Whether it rests on the account of the loss alone, without a test of significance."""

    @property
    def known_gain_ns(self) -> float | None:
        """The saving, where it is no part of the loss; else None."""
        candidates = [finding.candidate for finding in self.findings]
        gains = [candidate.known_gain_ns for candidate in candidates if not isinstance(candidate, Outlier)]
        return next((gain for gain in gains if gain is not None), None)

    @property
    def is_of_stages(self) -> bool:
        """Whether pipeline stages are compared with each other, not ranks with their peers."""
        kinds = [finding.candidate.kind for finding in self.findings if isinstance(finding.candidate, JobFinding)]
        return any(kind in STAGE_KINDS for kind in kinds)

    @property
    def outliers(self) -> list[Outlier]:
        """The outliers among the findings."""
        candidates = [finding.candidate for finding in self.findings]
        members = [
            member for candidate in candidates if isinstance(candidate, JobFinding) for member in candidate.members
        ]
        return [candidate for candidate in candidates if isinstance(candidate, Outlier)] + members

    @property
    def slow_communication(self) -> list[SlowCommunication]:
        """The slow communication among the findings."""
        return [finding.candidate for finding in self.findings if isinstance(finding.candidate, SlowCommunication)]

    @property
    def parts(self) -> frozenset[TimePart]:
        """The parts of own time; empty for communication."""
        candidates = (finding.candidate for finding in self.findings)
        return frozenset(candidate.part for candidate in candidates if not isinstance(candidate, SlowCommunication))

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Positions in the run of the steps in which it occurs."""
        return tuple(sorted({step for finding in self.findings for step in finding.steps}))

    @property
    def excess_ns(self) -> float:
        """The findings' excess, summed."""
        return sum(finding.candidate.excess_ns for finding in self.findings)

    @property
    def sigmas(self) -> float:
        """The deviation of the worst finding, in standard deviations of the noise."""
        return max(finding.candidate.sigmas for finding in self.findings)

    @property
    def chance(self) -> float:
        """The probability that chance alone explains the least certain rank's most certain finding.

        Of slow communication, the most certain finding.
        """
        if not self.parts:
            return min(slow.chance for slow in self.slow_communication)
        if self.group.scope == "job":
            return min(
                finding.candidate.chance for finding in self.findings if isinstance(finding.candidate, JobFinding)
            )
        by_rank: dict[int, float] = {}
        for outlier in self.outliers:
            by_rank[outlier.rank] = min(by_rank.get(outlier.rank, 1.0), outlier.chance)
        return max(by_rank.values(), default=0.0)

    @property
    def scenario(self) -> Scenario:
        """The what-if scenario in which it is fixed."""
        return together(finding.scenario for finding in self.findings)


def group_job_findings(evidence: Evidence) -> list[FindingGroup]:
    """Return the findings whose saving is no part of the loss."""
    findings = evidence.pricing.beside_loss
    of_job = [
        _group_job(finding, finding.candidate, evidence)
        for finding in findings
        if isinstance(finding.candidate, JobFinding)
    ]
    return _group_communication(findings, evidence) + of_job


def group_findings(evidence: Evidence) -> list[FindingGroup]:
    """Return the priced findings in groups: slow communication first, then ranks by cause, steps and place."""
    findings = evidence.pricing.findings
    by_cause: dict[tuple[Cause, TimePart], list[RankFindings]] = {}
    groups = _group_communication(findings, evidence)
    groups += [
        _group_job(finding, finding.candidate, evidence)
        for finding in findings
        if isinstance(finding.candidate, JobFinding)
    ]
    for late in _by_rank(findings):
        cause, judged = find_cause(evidence, late.candidates[0])
        by_cause.setdefault((cause, late.candidates[0].part), []).append(late._replace(cause=(cause, judged)))
    for members in by_cause.values():
        groups += _group_ranks(members, evidence)
    return groups


class RankFindings(NamedTuple):
    """Findings of one rank: one, or both parts of a host that is slow throughout, the larger first."""

    rank: int
    findings: tuple[PricedFinding, ...]
    candidates: tuple[Outlier | SlowCommunication, ...]
    cause: tuple[Cause, CauseEvidence] | None = None
    """None where it is not known yet."""

    @property
    def excess_ns(self) -> float:
        return sum(one.excess_ns for one in self.candidates)

    @property
    def steps(self) -> set[int]:
        return {step for one in self.candidates for step in one.steps}


def _by_rank(findings: Sequence[PricedFinding]) -> list[RankFindings]:
    """Return each rank's outliers; a host that is slow throughout, also before the first kernel, is one thing."""
    late = {
        (finding.candidate.rank, finding.candidate.part): RankFindings(
            finding.candidate.rank, (finding,), (finding.candidate,)
        )
        for finding in findings
        if isinstance(finding.candidate, Outlier)
    }
    merged = []
    for (rank, part), rank_findings in late.items():
        start, cpu = late.get((rank, TimePart.START)), late.get((rank, TimePart.CPU))
        if start is None or cpu is None or start.excess_ns > cpu.excess_ns or part == TimePart.GPU:
            merged.append(rank_findings)
        elif part == TimePart.CPU:
            merged.append(
                RankFindings(rank, rank_findings.findings + start.findings, rank_findings.candidates + start.candidates)
            )
    return merged


def _group_ranks(members: Sequence[RankFindings], evidence: Evidence) -> list[FindingGroup]:
    """Return groups of ranks that are late in the same steps, by their place, each with the cause of its worst rank."""
    groups = []
    for alike in _by_steps(members, THRESHOLDS.same_steps_share):
        by_rank = {late.rank: late for late in alike}
        masked = [rank for rank, late in by_rank.items() if _is_masked(late, evidence)]
        for group in group_late_ranks(by_rank, evidence.locations, masked):
            chosen = [by_rank[rank] for rank in group.ranks]
            worst = max(chosen, key=lambda late: late.excess_ns)
            cause, (certainty, sentences) = worst.cause or find_cause(evidence, worst.candidates[0])
            findings = tuple(one for late in chosen for one in late.findings)
            groups.append(FindingGroup(findings, group, cause, certainty, (*_describe_place(group), *sentences)))
    return groups


def _is_masked(late: RankFindings, evidence: Evidence) -> bool:
    """Return whether fixing the rank's own time alone saves too little, because other ranks are as late."""
    if isinstance(late.candidates[0], SlowCommunication):
        return False
    least = min(evidence.pricing.min_gain_ns(finding.steps) for finding in late.findings)
    return max(finding.gain_ns for finding in late.findings) < least


def _by_steps(members: Sequence[RankFindings], share: float) -> list[list[RankFindings]]:
    """Divide ranks into clusters of which any two are late in the same steps: with at least this Jaccard index."""
    clusters: list[list[RankFindings]] = []
    for late in sorted(members, key=lambda late_rank: (-late_rank.excess_ns, late_rank.rank)):
        for cluster in clusters:
            if all(
                len(clustered.steps & late.steps) >= share * len(clustered.steps | late.steps) for clustered in cluster
            ):
                cluster.append(late)
                break
        else:
            clusters.append([late])
    return clusters


def _describe_place(group: RankGroup) -> tuple[str, ...]:
    """Say what the ranks of a group have in common."""
    if group.scope == "host" and group.host is None:
        return (f"ranks {format_numbers(group.ranks)}, one node by their device numbers, are late in the same steps",)
    if group.scope == "host":
        return (f"{format_count(len(group.ranks), 'rank')} of host {group.host} are late in the same steps",)
    if group.scope == "device":
        return (f"device {group.device} is late on {format_count(len(group.ranks), 'host')} in the same steps",)
    if group.every is not None:
        return (f"every {format_ordinal(group.every)} rank is late in the same steps: they may share a NIC or switch",)
    return ()


def _group_job(finding: PricedFinding, job: JobFinding, evidence: Evidence) -> FindingGroup:
    worst = max(job.members, key=lambda outlier: outlier.excess_ns)
    if job.kind in STAGE_KINDS:
        group = RankGroup("rank" if len(job.ranks) == 1 else "ranks", job.ranks)
        return FindingGroup((finding,), group, STAGE_KINDS[job.kind], "likely", job.evidence)
    cause, (certainty, sentences) = find_cause(evidence, worst)
    is_whole_job = job.kind == "slow_steps" and len(job.ranks) == len(evidence.locations)
    if is_whole_job or job.kind not in ("late_together", "slow_steps"):
        return FindingGroup((finding,), RankGroup("job", job.ranks), cause, certainty, (*job.evidence, *sentences))
    places = group_late_ranks(job.ranks, evidence.locations, job.ranks)
    group = places[0] if len(places) == 1 else RankGroup("ranks", job.ranks)
    shared = _describe_place(group) or _describe_whole_hosts(job.ranks, evidence)
    return FindingGroup((finding,), group, cause, certainty, (*job.evidence, *shared, *sentences))


def _describe_whole_hosts(ranks: Sequence[int], evidence: Evidence) -> tuple[str, ...]:
    """Say of which hosts the ranks are all ranks; nothing if they share a host with other ranks."""
    nodes = assign_nodes(evidence.locations)
    late = {nodes.get(rank) for rank in ranks}
    if None in late or sum(node in late for node in nodes.values()) > len(ranks):
        return ()
    return (f"they are all ranks of {format_count(len(late), 'host')}",)


def _group_communication(findings: Sequence[PricedFinding], evidence: Evidence) -> list[FindingGroup]:
    """Return slow communication in groups: the links of single ranks that are slow in the same steps by their place."""
    groups, links = [], list[RankFindings]()
    for finding in findings:
        slow = finding.candidate
        if not isinstance(slow, SlowCommunication):
            continue
        if len(slow.ranks) == 1 and not evidence.waits_for_unrecorded(slow):
            links.append(RankFindings(next(iter(slow.ranks)), (finding,), (slow,)))
        else:
            cause, (certainty, sentences) = find_cause(evidence, slow)
            groups.append(FindingGroup((finding,), _place_of_groups(slow, evidence), cause, certainty, sentences))
    return groups + _group_ranks(links, evidence)


def _place_of_groups(slow: SlowCommunication, evidence: Evidence) -> RankGroup:
    """Return what the ranks of slow collectives share."""
    ordered = tuple(sorted(slow.ranks))
    if evidence.waits_for_unrecorded(slow):
        return RankGroup("unrecorded", ordered)
    if len(ordered) == len(evidence.locations):
        return RankGroup("job", ordered)
    hosts = {evidence.locations[rank].host for rank in ordered}
    (host,) = hosts if len(hosts) == 1 else (None,)
    return RankGroup("ranks", ordered) if host is None else RankGroup("host", ordered, host=host)
