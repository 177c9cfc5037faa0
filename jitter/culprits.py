"""From what was found to culprits: one thing to repair each, with its cause, its evidence and where to look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jitter.critical_path import Charge, Part
from jitter.diagnosis import Cause, Confidence, Culprit, IndexRange
from jitter.evidence import Evidence
from jitter.examination import Examination, Found
from jitter.numbers import format_numbers
from jitter.replay import CPU, START
from jitter.scopes import Group, group
from jitter.step_pattern import ordinal, step_pattern
from jitter.what_if import Scenario, together
from jitter.words import count_words, percent_words, time_words

_SAME_STEPS = 0.5
"""Ranks late in steps that overlap this much (Jaccard) may be late for one reason."""


@dataclass(frozen=True)
class Case:
    """Findings that are one thing to repair."""

    found: tuple[Found, ...]
    group: Group
    cause: Cause
    evidence: tuple[str, ...]
    parts: frozenset[int]
    """Of own time; empty for transfers."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Positions of the steps it happens in."""
        return tuple(sorted({step for found in self.found for step in found.steps}))

    @property
    def scenario(self) -> Scenario:
        """Its repair."""
        return together(found.scenario for found in self.found)


def cases(examined: Examination, facts: Evidence) -> list[Case]:
    """Put findings together that have one cause and one place."""
    told: dict[tuple[Cause, int], list[tuple[Found, ...]]] = {}
    reasons: dict[int, tuple[str, ...]] = {}
    found_cases = []
    for own in _of_one_rank(examined.found):
        suspect = own[0].suspect
        if suspect is None:
            found_cases.append(_links_case(own[0], facts))
            continue
        cause, evidence = facts.cause(own)
        reasons[id(own)] = evidence
        told.setdefault((cause, suspect.part), []).append(own)
    for (cause, _), members in told.items():
        for alike in _same_steps(members):
            by_rank = {own[0].suspect.rank: own for own in alike if own[0].suspect is not None}
            hidden = [rank for rank, own in by_rank.items() if _is_hidden(own, examined)]
            for which in group(by_rank, facts.places, hidden):
                chosen = [by_rank[rank] for rank in which.ranks]
                worst = max(chosen, key=lambda own: sum(one.suspect.excess_ns for one in own if one.suspect))
                parts = frozenset(one.suspect.part for own in chosen for one in own if one.suspect)
                findings = tuple(one for own in chosen for one in own)
                found_cases.append(Case(findings, which, cause, (*_shared(which), *reasons[id(worst)]), parts))
    return found_cases


def _of_one_rank(found: Sequence[Found]) -> list[tuple[Found, ...]]:
    """A host that is slow throughout is slow before the first kernel too: that is one finding, not two."""
    by_rank: dict[tuple[int, int], Found] = {
        (one.suspect.rank, one.suspect.part): one for one in found if one.suspect is not None
    }
    merged_found: list[tuple[Found, ...]] = []
    for one in found:
        if one.suspect is None:
            merged_found.append((one,))
            continue
        rank, part = one.suspect.rank, one.suspect.part
        start, cpu = by_rank.get((rank, START)), by_rank.get((rank, CPU))
        merged = start is not None and cpu is not None and _excess(start) <= _excess(cpu)
        if part == CPU and merged and start is not None:
            merged_found.append((one, start))
        elif not (part == START and merged):
            merged_found.append((one,))
    return merged_found


def _is_hidden(own: Sequence[Found], examined: Examination) -> bool:
    return max(one.gain_ns for one in own) < min(examined.least_gain(one.steps) for one in own)


def _excess(found: Found) -> float:
    return 0.0 if found.suspect is None else found.suspect.excess_ns


def _same_steps(members: Sequence[tuple[Found, ...]]) -> list[list[tuple[Found, ...]]]:
    clusters: list[tuple[set[int], list[tuple[Found, ...]]]] = []
    for own in members:
        steps = {step for one in own for step in one.steps}
        for known, cluster in clusters:
            if len(known & steps) >= _SAME_STEPS * len(known | steps):
                cluster.append(own)
                break
        else:
            clusters.append((steps, [own]))
    return [cluster for _, cluster in clusters]


def _shared(which: Group) -> tuple[str, ...]:
    if which.scope == "host":
        if which.host is None:
            return (f"ranks {format_numbers(which.ranks)}, by their device numbers one node, are late together",)
        return (f"{count_words(len(which.ranks), 'rank')} of host {which.host} are late in the same steps",)
    if which.scope == "device":
        return (f"device {which.device} is late on {count_words(len(which.ranks), 'host')} in the same steps",)
    if which.every is not None:
        return (f"every {ordinal(which.every)} rank is late in the same steps: they may share a NIC or a switch",)
    return ()


def _links_case(found: Found, facts: Evidence) -> Case:
    assert found.links is not None
    ranks, slow = found.links
    ordered = tuple(sorted(ranks))
    place = facts.places[ordered[0]]
    whole = len(ordered) == len(facts.places)
    hosts = {facts.places[rank].host for rank in ordered}
    if len(ordered) == 1:
        where = Group("rank", ordered, place.host, place.device)
    elif len(hosts) == 1 and not whole and place.host is not None:
        where = Group("host", ordered, host=place.host)
    else:
        where = Group("ranks", ordered)
    return Case((found,), where, "communication", facts.link_evidence(ranks, slow), frozenset())


def culprit(case: Case, gain_ns: float, examined: Examination, facts: Evidence) -> Culprit:
    """Say all of one case; `gain_ns` is what its repair alone would gain."""
    keys, steps = examined.keys, case.steps
    by_rank: dict[int, float] = {}
    for found in case.found:
        if found.suspect is not None:
            by_rank[found.suspect.rank] = by_rank.get(found.suspect.rank, 0.0) + found.suspect.excess_ns
    rank = max(by_rank, key=lambda r: (by_rank[r], -r)) if by_rank else case.group.ranks[0]
    charges = _charges(examined, case, rank)
    if not by_rank and charges:
        rank = facts.usual_last(charges)
    of_steps = [facts.excess_of_step(case.found, number) for number in range(len(keys))]
    excess = sum(by_rank.values()) if by_rank else sum(s.excess_ns for f in case.found if f.links for s in f.links[1])
    usual_step = examined.usual_step_ns
    share = (
        excess / (usual_step * len(steps) * len(case.group.ranks)) if by_rank else excess / (usual_step * len(steps))
    )
    sized = (
        f"{time_words(excess / len(steps) / max(len(by_rank), 1))} a step above "
        f"{'the other ranks' if by_rank else 'what these collectives usually take'} "
        f"({percent_words(share)} of a step), {_sigmas(case):.0f} standard deviations"
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
        step_pattern=step_pattern(keys, steps, of_steps),
        kernel_index=_range(charges, facts, examined.limits.range_share),
        evidence=(sized, *case.evidence),
        look_at=facts.look_at(rank, charges, steps),
    )


def _sigmas(case: Case) -> float:
    own = [found.suspect.sigmas for found in case.found if found.suspect is not None]
    return max(own or [slow.sigmas for found in case.found if found.links for slow in found.links[1]])


def _confidence(case: Case, facts: Evidence) -> Confidence:
    if facts.doubts(case.group.ranks, transfers=not case.parts):
        return "low"
    strong = _sigmas(case) >= 2 * facts.limits.sigmas
    return "high" if strong and facts.compared_with(case.group.ranks) >= 2 else "medium"


def _charges(examined: Examination, case: Case, rank: int) -> Mapping[int, list[Charge]]:
    """The path's charges of this case, by step: those of its worst rank, or of its collectives."""
    found = {}
    meetings = {which for one in case.found if one.links for slow in one.links[1] for which in slow.meetings}
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
