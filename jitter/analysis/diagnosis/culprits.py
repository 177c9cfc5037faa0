"""From what was found to culprits: one thing to repair each, with its cause, its evidence and where to look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jitter.analysis.detection.findings import PricedFinding
from jitter.analysis.detection.outliers import Outlier
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.detection.slow_collectives import SlowCommunication
from jitter.analysis.diagnosis.evidence import Evidence
from jitter.analysis.diagnosis.model import Cause, Confidence, Culprit, IndexRange
from jitter.analysis.diagnosis.scopes import RankGroup, group_late_ranks
from jitter.analysis.diagnosis.step_pattern import describe_step_pattern, format_ordinal
from jitter.analysis.replay.critical_path import Charge, Part
from jitter.analysis.replay.scenario_times import CPU, START
from jitter.analysis.replay.what_if import Scenario, together
from jitter.core.formatting import format_count, format_numbers, format_percent, format_time

_SAME_STEPS = 0.5
"""Ranks late in steps that overlap this much (Jaccard) may be late for one reason."""


@dataclass(frozen=True)
class FindingGroup:
    """Findings that are one thing to repair."""

    found: tuple[PricedFinding, ...]
    group: RankGroup
    cause: Cause
    evidence: tuple[str, ...]

    @property
    def suspects(self) -> list[Outlier]:
        """Ranks' own times among them."""
        return [one.what for one in self.found if isinstance(one.what, Outlier)]

    @property
    def links(self) -> list[SlowCommunication]:
        """Slow links among them."""
        return [one.what for one in self.found if isinstance(one.what, SlowCommunication)]

    @property
    def parts(self) -> frozenset[int]:
        """Of own time; empty for transfers."""
        return frozenset(suspect.part for suspect in self.suspects)

    @property
    def steps(self) -> tuple[int, ...]:
        """Positions of the steps it happens in."""
        return tuple(sorted({step for found in self.found for step in found.steps}))

    @property
    def scenario(self) -> Scenario:
        """Its repair."""
        return together(found.scenario for found in self.found)


def group_findings(examined: RunAnalysis, facts: Evidence) -> list[FindingGroup]:
    """Put findings together that have one cause and one place."""
    told: dict[tuple[Cause, int], list[_OfRank]] = {}
    found_cases = [
        _links_case(one, one.what, facts) for one in examined.found if isinstance(one.what, SlowCommunication)
    ]
    for own in _by_rank(examined.found):
        cause, evidence = facts.cause(own.suspects[0])
        told.setdefault((cause, own.suspects[0].part), []).append(own._replace(evidence=evidence))
    for (cause, _), members in told.items():
        for alike in _same_steps(members):
            by_rank = {own.rank: own for own in alike}
            hidden = [rank for rank, own in by_rank.items() if _is_hidden(own, examined)]
            for which in group_late_ranks(by_rank, facts.places, hidden):
                chosen = [by_rank[rank] for rank in which.ranks]
                worst = max(chosen, key=lambda own: own.excess_ns)
                findings = tuple(one for own in chosen for one in own.found)
                found_cases.append(FindingGroup(findings, which, cause, (*_shared(which), *worst.evidence)))
    return found_cases


class _OfRank(NamedTuple):
    """One rank's own time: one finding, or the two parts of a host that is slow throughout, the worse first."""

    found: tuple[PricedFinding, ...]
    suspects: tuple[Outlier, ...]
    evidence: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        return self.suspects[0].rank

    @property
    def excess_ns(self) -> float:
        return sum(one.excess_ns for one in self.suspects)


def _by_rank(found: Sequence[PricedFinding]) -> list[_OfRank]:
    """A host that is slow throughout is slow before the first kernel too: that is one thing, not two."""
    own = {
        (one.what.rank, one.what.part): _OfRank((one,), (one.what,)) for one in found if isinstance(one.what, Outlier)
    }
    merged = []
    for (rank, part), one in own.items():
        start, cpu = own.get((rank, START)), own.get((rank, CPU))
        throughout = start is not None and cpu is not None and start.excess_ns <= cpu.excess_ns
        if part == CPU and throughout and start is not None:
            merged.append(_OfRank(one.found + start.found, one.suspects + start.suspects))
        elif not (part == START and throughout):
            merged.append(one)
    return merged


def _is_hidden(own: _OfRank, examined: RunAnalysis) -> bool:
    return max(one.gain_ns for one in own.found) < min(examined.least_gain(one.steps) for one in own.found)


def _same_steps(members: Sequence[_OfRank]) -> list[list[_OfRank]]:
    clusters: list[tuple[set[int], list[_OfRank]]] = []
    for own in members:
        steps = {step for one in own.suspects for step in one.steps}
        for known, cluster in clusters:
            if len(known & steps) >= _SAME_STEPS * len(known | steps):
                cluster.append(own)
                break
        else:
            clusters.append((steps, [own]))
    return [cluster for _, cluster in clusters]


def _shared(which: RankGroup) -> tuple[str, ...]:
    if which.scope == "host":
        if which.host is None:
            return (f"ranks {format_numbers(which.ranks)}, by their device numbers one node, are late together",)
        return (f"{format_count(len(which.ranks), 'rank')} of host {which.host} are late in the same steps",)
    if which.scope == "device":
        return (f"device {which.device} is late on {format_count(len(which.ranks), 'host')} in the same steps",)
    if which.every is not None:
        return (
            f"every {format_ordinal(which.every)} rank is late in the same steps: they may share a NIC or a switch",
        )
    return ()


def _links_case(found: PricedFinding, links: SlowCommunication, facts: Evidence) -> FindingGroup:
    ordered = tuple(sorted(links.ranks))
    place = facts.places[ordered[0]]
    whole = len(ordered) == len(facts.places)
    hosts = {facts.places[rank].host for rank in ordered}
    if len(ordered) == 1:
        where = RankGroup("rank", ordered, place.host, place.device)
    elif len(hosts) == 1 and not whole and place.host is not None:
        where = RankGroup("host", ordered, host=place.host)
    else:
        where = RankGroup("ranks", ordered)
    return FindingGroup((found,), where, "communication", facts.link_evidence(links))


def describe_culprit(case: FindingGroup, gain_ns: float, examined: RunAnalysis, facts: Evidence) -> Culprit:
    """Say all of one case; `gain_ns` is what its repair alone would gain."""
    keys, steps = examined.keys, case.steps
    by_rank: dict[int, float] = {}
    for suspect in case.suspects:
        by_rank[suspect.rank] = by_rank.get(suspect.rank, 0.0) + suspect.excess_ns
    rank = max(by_rank, key=lambda r: (by_rank[r], -r)) if by_rank else case.group.ranks[0]
    charges = _charges(examined, case, rank)
    if not by_rank and charges:
        rank = facts.usual_last(charges)
    of_steps = [facts.excess_of_step(case.found, number) for number in range(len(keys))]
    excess = sum(one.what.excess_ns for one in case.found)
    usual_step = examined.usual_step_ns
    share = (
        excess / (usual_step * len(steps) * len(case.group.ranks)) if by_rank else excess / (usual_step * len(steps))
    )
    others = "the other ranks" if facts.compared_with(case.group.ranks) else "its other steps"
    sized = (
        f"{format_time(excess / len(steps) / max(len(by_rank), 1))} a step above "
        f"{others if by_rank else 'what these collectives usually take'} "
        f"({format_percent(share)} of a step), {_sigmas(case):.0f} standard deviations"
    )
    return Culprit(
        scope=case.group.scope,
        rank=rank,
        ranks=case.group.ranks,
        host=facts.places[rank].host if case.group.scope in ("rank", "host") else None,
        device=facts.places[rank].device if case.group.scope in ("rank", "device") else None,
        cause=case.cause,
        confidence=_confidence(case, facts),
        excess_ns=round(excess),
        gain_ns=round(gain_ns),
        steps=tuple(keys[number] for number in steps),
        step_pattern=describe_step_pattern(keys, steps, of_steps),
        kernel_index=_range(charges, facts, examined.limits.range_share),
        evidence=(sized, *case.evidence),
        look_at=facts.look_at(rank, charges, steps),
    )


def _sigmas(case: FindingGroup) -> float:
    return max(one.what.sigmas for one in case.found)


def _confidence(case: FindingGroup, facts: Evidence) -> Confidence:
    if facts.doubts(case.group.ranks, transfers=not case.parts):
        return "low"
    strong = _sigmas(case) >= 2 * facts.limits.sigmas
    return "high" if strong and facts.compared_with(case.group.ranks) >= 2 else "medium"


def _charges(examined: RunAnalysis, case: FindingGroup, rank: int) -> Mapping[int, list[Charge]]:
    """The path's charges of this case, by step: those of its worst rank, or of its collectives."""
    found = {}
    meetings = {which for links in case.links for which in links.meetings}
    for number in case.steps:
        path = examined.paths[number]
        if case.parts:
            parts = {Part(part) for part in case.parts}
            own = [charge for charge in path.charges if charge.rank == rank and charge.part in parts]
        else:
            own = [c for c in path.charges if c.part == Part.TRANSFER and (c.meeting, c.group) in meetings]
        if own:
            found[number] = own
    return found


def _range(charges: Mapping[int, Sequence[Charge]], facts: Evidence, share: float) -> IndexRange | None:
    """The kernels among which nearly all of the excess arose."""
    by_index: dict[int, float] = {}
    for own in charges.values():
        for charge in own:
            index = facts.kernel_index(charge.team, charge.place)
            if index is not None:
                by_index[index] = by_index.get(index, 0.0) + charge.excess_ns
    if not by_index:
        return None
    indices = np.array(sorted(by_index))
    excess = np.maximum([by_index[index] for index in indices.tolist()], 0.0)
    if not excess.sum():
        return None
    running = np.cumsum(excess) / excess.sum()
    first = int(np.argmax(running > (1 - share) / 2))
    last = int(np.argmax(running >= 1 - (1 - share) / 2))
    return IndexRange(int(indices[first]), int(indices[last]))
