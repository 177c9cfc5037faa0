"""Groups findings that have one cause and one place, such as a host, the same device on every host or every Nth rank.

Each group is one thing to fix. A lead is one without a test of significance, where nothing else explains the loss.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from jitter.analysis.detection.deviations import compare_with_one_rank
from jitter.analysis.detection.findings import Finding, FindingKind, divide_by_steps, join_outliers, of_one_rank
from jitter.analysis.detection.run_account import Charges
from jitter.analysis.detection.run_analysis import GainRange
from jitter.analysis.detection.significance import hypergeometric_tail
from jitter.analysis.detection.standouts import Outlier, chance_of_repetition
from jitter.analysis.diagnosis.causes import Judgement, find_cause
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.model import Cause, Scope
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.replay.what_if import Scenario, together
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import (
    format_count,
    format_numbers,
    format_ordinal,
    format_percent,
    format_ranks,
    format_some,
)
from jitter.core.grouping import by_key
from jitter.core.numeric.stats import known_medians, lower_median
from jitter.core.numeric.student_t import student_tail
from jitter.lake.rank_places import RankPlace, assign_nodes

_ROUNDING: Final = 1e-9
"""Relative error of a probability, so that equal ones compare as equal."""


@dataclass(frozen=True)
class RankGroup:
    """Late ranks that share a reason."""

    scope: Scope
    ranks: tuple[int, ...]
    host: str | None = None
    device: int | None = None
    every: int | None = None
    """For a series (every Nth rank): N."""


def group_late_ranks(
    late: Collection[int], locations: Mapping[int, RankPlace], masked: Collection[int] = ()
) -> list[RankGroup]:
    """Divide late ranks into groups; a rank that shares nothing with the others is a group of its own.

    A host, device or series is named if most of its ranks are late, and so many late ranks, drawn at random from all,
    would seldom lie so in any group of its kind.

    Args:
        late: the ranks to divide.
        locations: of all ranks of the run.
        masked: late ranks whose repair alone saves nothing because others are equally late; several that share nothing
            else form one group.

    """
    remaining = set(late)
    groups: list[RankGroup] = []
    candidates = [*_places(locations), *_series(sorted(locations), remaining)] if len(remaining) > 1 else []
    ungrouped = set(locations)
    for candidate in sorted(candidates, key=lambda group: -len(group.ranks)):
        late_here = remaining & set(candidate.ranks)
        # among many late ranks some are in series by chance: a series must be most of them
        of = max(len(candidate.ranks), len(late) if candidate.every is not None else 0)
        if len(late_here) < 2 or len(late_here) < THRESHOLDS.most_share * of:
            continue
        every = candidates if candidate.every is None else _series(sorted(locations))
        alike = [set(group.ranks) & ungrouped for group in every if group.scope == candidate.scope]
        if (
            chance_of_sharing(set(candidate.ranks) & ungrouped, remaining, alike, len(ungrouped))
            <= THRESHOLDS.max_chance
        ):
            groups.append(
                RankGroup(candidate.scope, tuple(sorted(late_here)), candidate.host, candidate.device, candidate.every)
            )
            remaining -= late_here
            ungrouped -= set(candidate.ranks)
    others = remaining & set(masked)
    if len(others) >= THRESHOLDS.min_repeats:
        groups.append(RankGroup("ranks", tuple(sorted(others))))
        remaining -= others
    single = [RankGroup("rank", (rank,), locations[rank].host, locations[rank].device) for rank in sorted(remaining)]
    return groups + single


def chance_of_sharing(
    group: Collection[int], late: Collection[int], groups: Sequence[Collection[int]], ranks: int
) -> float:
    """Return at most how likely as many random late ranks lie in any of the groups as improbably as these do in one.

    The hypergeometric tail of each group at the least count whose own tail is not above the observed one, summed.

    Args:
        group: the ranks that share something.
        late: the late ranks.
        groups: all groups of its kind, itself included.
        ranks: how many ranks there are.

    """
    drawn = len(late)
    observed = hypergeometric_tail(len(set(group) & set(late)), drawn, len(group), ranks) * (1 + _ROUNDING)
    chance = 0.0
    for size, times in Counter(map(len, groups)).items():

        def tail(count: int, size: int = size) -> float:
            return hypergeometric_tail(count, drawn, size, ranks)

        most = min(size, drawn)
        # tails fall with the count
        least = bisect_left(range(most + 1), -observed, key=lambda count: -tail(count))
        chance += times * (tail(least) if least <= most else 0.0)
    return min(chance, 1.0)


def _places(locations: Mapping[int, RankPlace]) -> list[RankGroup]:
    """Return every host and every device of the run, unless it holds all ranks."""
    nodes = assign_nodes(locations)
    hosts = by_key((nodes[rank], rank) for rank in sorted(locations) if rank in nodes)
    devices = by_key((locations[rank].device, rank) for rank in sorted(locations))
    places = []
    if len(hosts) > 1:
        places += [
            RankGroup("host", tuple(ranks), host=locations[ranks[0]].host) for ranks in hosts.values() if len(ranks) > 1
        ]
        places += [
            RankGroup("device", tuple(ranks), device=device)
            for device, ranks in devices.items()
            if device is not None
            and len({nodes[rank] for rank in ranks if rank in nodes}) > 1
            and len(ranks) < len(locations)
        ]
    return places


def _series(ranks: Sequence[int], shared_by: Collection[int] | None = None) -> list[RankGroup]:
    """Return every Nth rank from each possible first one; of some ranks, the series that two of them share."""
    series = []
    for every in range(2, len(ranks) // THRESHOLDS.min_repeats + 1):
        of_first = None if shared_by is None else Counter(rank % every for rank in shared_by)
        if of_first is not None and max(of_first.values()) < 2:
            continue
        of_remainder = by_key((rank % every, rank) for rank in ranks)
        series += [
            RankGroup("ranks", tuple(of), every=every)
            for first, of in sorted(of_remainder.items())
            if len(of) >= THRESHOLDS.min_repeats and (of_first is None or of_first[first] > 1)
        ]
    return series


STAGE_KINDS: Final[Mapping[FindingKind, Judgement]] = {
    "unequal_stages": Judgement("unequal_stages", "likely"),
    "slow_stage": Judgement(
        "gpu_time",
        "unknown",
        advice="takes longer for the same kernels than the other pipeline stages, and every micro-batch waits for it: "
        "check the GPU, then the share of the work, as no rank with the same work tells these apart",
    ),
}
"""The causes of findings that compare pipeline stages."""


@dataclass(frozen=True)
class FindingGroup:
    """Findings that are one thing to fix."""

    candidates: tuple[Finding, ...]
    group: RankGroup
    judgement: Judgement
    is_lead: bool = False
    """Whether it rests on the account of the loss alone, without a test of significance."""
    gain_ns: float = 0.0
    """What fixing it alone would save, as `share_ns` once it is priced."""
    share_ns: float = 0.0
    """Its share of the loss."""
    gain_range: GainRange | None = None
    """The least and the most that fixing it alone would save; None where they differ by little."""

    @property
    def cause(self) -> Cause:
        """What the rules say that it has."""
        return self.judgement.cause

    @property
    def rank(self) -> int:
        """The lowest of its ranks."""
        return self.group.ranks[0]

    @property
    def known_gain_ns(self) -> float | None:
        """The saving, where it is no part of the loss; else None."""
        gains = (candidate.known_gain_ns for candidate in self.candidates)
        return next((gain for gain in gains if gain is not None), None)

    @property
    def is_of_stages(self) -> bool:
        """Whether pipeline stages are compared with each other, not ranks with their peers."""
        return any(candidate.kind in STAGE_KINDS for candidate in self.candidates)

    @property
    def outliers(self) -> list[Outlier]:
        """The outliers among the findings."""
        return [member for candidate in self.candidates for member in candidate.members]

    @property
    def parts(self) -> frozenset[TimePart]:
        """The parts of own time; empty for communication."""
        return frozenset(candidate.part for candidate in self.candidates) - {TimePart.TRANSFER}

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Positions in the run of the steps in which it occurs."""
        return tuple(sorted({step for candidate in self.candidates for step in candidate.steps}))

    @property
    def excess_ns(self) -> float:
        """The findings' excess, summed."""
        return sum(candidate.excess_ns for candidate in self.candidates)

    @property
    def sigmas(self) -> float:
        """The deviation of the worst finding, in standard deviations of the noise."""
        return max(candidate.sigmas for candidate in self.candidates)

    @property
    def chance(self) -> float:
        """The probability that chance alone explains the least certain rank's most certain finding.

        Of slow communication, the most certain finding.
        """
        if not self.parts or self.group.scope == "job":
            return min(candidate.chance for candidate in self.candidates)
        by_rank: dict[int, float] = {}
        for outlier in self.outliers:
            by_rank[outlier.rank] = min(by_rank.get(outlier.rank, 1.0), outlier.chance)
        return max(by_rank.values(), default=0.0)

    @property
    def scenario(self) -> Scenario:
        """The what-if scenario in which it is fixed."""
        return together(candidate.repair for candidate in self.candidates)


def group_job_findings(evidence: Evidence) -> list[FindingGroup]:
    """Return the findings whose saving is no part of the loss."""
    candidates = evidence.pricing.beside_loss
    return _group_communication(candidates, evidence) + _group_jobs(candidates, evidence)


def group_findings(evidence: Evidence) -> list[FindingGroup]:
    """Return the priced findings in groups: slow communication first, then ranks by cause, steps and place."""
    told = [late for event in evidence.pricing.beside_loss for late in evidence.pricing.shown_by(event)]
    candidates = [candidate for candidate in evidence.pricing.worth_fixing if candidate not in told]
    groups = _group_communication(candidates, evidence) + _group_jobs(candidates, evidence)
    alike = by_key(((late.cause, late.candidates[0].part), late) for late in _by_rank(candidates, evidence))
    return groups + [group for members in alike.values() for group in _group_ranks(members, evidence)]


def _of_rank(evidence: Evidence, *findings: Finding) -> FindingGroup:
    """Return findings of one rank, with the cause of the first."""
    return FindingGroup(findings, RankGroup("rank", findings[0].ranks), find_cause(evidence, findings[0]))


def _by_rank(candidates: Sequence[Finding], evidence: Evidence) -> list[FindingGroup]:
    """Return each rank's findings; a host that is slow throughout, also before the first kernel, is one thing."""
    late = {
        (candidate.ranks[0], candidate.part): candidate for candidate in candidates if candidate.kind == "late_rank"
    }
    merged = []
    for (rank, part), finding in late.items():
        start, cpu = late.get((rank, TimePart.START)), late.get((rank, TimePart.CPU))
        if start is None or cpu is None or start.excess_ns > cpu.excess_ns or part == TimePart.GPU:
            merged.append(_of_rank(evidence, finding))
        elif part == TimePart.CPU:
            merged.append(_of_rank(evidence, finding, start))
    return merged


def _group_ranks(members: Sequence[FindingGroup], evidence: Evidence) -> list[FindingGroup]:
    """Return groups of ranks by their place: late in the same steps, or single ones of a host, each in its own."""
    groups = []
    for alike in divide_by_steps(members):
        by_rank = {late.rank: late for late in alike}
        masked = [rank for rank, late in by_rank.items() if _is_masked(late, evidence)]
        for group in group_late_ranks(by_rank, evidence.locations, masked):
            groups.append(_join_ranks(by_rank, group, "the same"))
    single = {late.rank: late for late in groups if late.group.scope == "rank"}
    for group in group_late_ranks(single, evidence.locations):
        if group.scope == "host" and len(group.ranks) >= THRESHOLDS.min_repeats:
            groups = [late for late in groups if late.group.scope != "rank" or late.rank not in group.ranks]
            groups.append(_join_ranks(single, group, "different"))
    return groups


def _join_ranks(by_rank: Mapping[int, FindingGroup], group: RankGroup, which_steps: str) -> FindingGroup:
    """Return the findings of the group's ranks as one, with the cause of its worst rank."""
    chosen = [by_rank[rank] for rank in group.ranks]
    worst = max(chosen, key=lambda late: late.excess_ns)
    candidates = tuple(candidate for late in chosen for candidate in late.candidates)
    return FindingGroup(candidates, group, worst.judgement.after(*_describe_place(group, which_steps)))


def _is_masked(late: FindingGroup, evidence: Evidence) -> bool:
    """Return whether fixing the rank's own time alone saves too little, because other ranks are as late."""
    return late.candidates[0].part is not TimePart.TRANSFER and _saves_little_alone(late, evidence)


def _saves_little_alone(late: FindingGroup, evidence: Evidence) -> bool:
    least = min(evidence.pricing.min_gain_ns(candidate.steps) for candidate in late.candidates)
    return max(evidence.analysis.gains([candidate.repair for candidate in late.candidates])) < least


def _describe_place(group: RankGroup, which_steps: str = "the same") -> tuple[str, ...]:
    if group.scope == "host":
        ranks = f"{format_count(len(group.ranks), 'rank')} of host {group.host}"
        if group.host is None:
            ranks = f"ranks {format_numbers(group.ranks)}, one node by their device numbers,"
        return (f"{ranks} are late in {which_steps} steps",)
    if group.scope == "device":
        return (f"device {group.device} is late on {format_count(len(group.ranks), 'host')} in the same steps",)
    if group.every is not None:
        return (f"every {format_ordinal(group.every)} rank is late in the same steps: they may share a NIC or switch",)
    return ()


def _group_jobs(candidates: Sequence[Finding], evidence: Evidence) -> list[FindingGroup]:
    jobs = [one for one in candidates if one.kind != "late_rank" and one.part is not TimePart.TRANSFER]
    return [_group_job(job, evidence) for job in jobs]


def _group_job(job: Finding, evidence: Evidence) -> FindingGroup:
    if job.kind in STAGE_KINDS:
        group = RankGroup("rank" if len(job.ranks) == 1 else "ranks", job.ranks)
        return FindingGroup((job,), group, STAGE_KINDS[job.kind].after(*job.evidence))
    judgement = find_cause(evidence, job)
    is_whole_job = job.kind == "slow_steps" and len(job.ranks) == len(evidence.locations)
    if is_whole_job or job.kind not in ("late_together", "slow_steps", "awaited"):
        return FindingGroup((job,), RankGroup("job", job.ranks), judgement.after(*job.evidence))
    places = group_late_ranks(job.ranks, evidence.locations, job.ranks)
    group = places[0] if len(places) == 1 else RankGroup("ranks", job.ranks)
    shared = _describe_place(group) or _describe_whole_hosts(job.ranks, evidence)
    return FindingGroup((job,), group, judgement.after(*job.evidence, *shared))


def _describe_whole_hosts(ranks: Sequence[int], evidence: Evidence) -> tuple[str, ...]:
    """Say of which hosts the ranks are all ranks; nothing if they share a host with other ranks."""
    nodes = assign_nodes(evidence.locations)
    late = {nodes.get(rank) for rank in ranks}
    if None in late or sum(node in late for node in nodes.values()) > len(ranks):
        return ()
    return (f"they are all ranks of {format_count(len(late), 'host')}",)


def _group_communication(candidates: Sequence[Finding], evidence: Evidence) -> list[FindingGroup]:
    """Return slow communication in groups: the links of single ranks that are slow in the same steps by their place."""
    groups, links = [], list[FindingGroup]()
    for slow in (candidate for candidate in candidates if candidate.part is TimePart.TRANSFER):
        if len(slow.ranks) == 1 and not evidence.coverage.may_delay(slow):
            links.append(_of_rank(evidence, slow))
        else:
            judgement = find_cause(evidence, slow).after(*slow.evidence)
            groups.append(FindingGroup((slow,), _place_of_groups(slow, evidence), judgement))
    return _join_as_slow(groups, evidence) + _group_ranks(links, evidence)


def _join_as_slow(groups: Sequence[FindingGroup], evidence: Evidence) -> list[FindingGroup]:
    """Join groups that communicate slowly in the same steps, of other ranks each, if fixing one alone saves little."""
    joined = []
    for alike in divide_by_steps(groups, lambda slow: (slow.group.scope, _saves_little_alone(slow, evidence))):
        ranks = sorted(rank for slow in alike for rank in slow.group.ranks)
        if len(alike) == 1 or not _saves_little_alone(alike[0], evidence) or len(set(ranks)) < len(ranks):
            joined += alike
            continue
        names = format_some([format_ranks(slow.group.ranks) for slow in alike], THRESHOLDS.min_repeats)
        shared = f"{len(alike)} groups ({names}) are slow in the same steps: look for what they share, as a switch"
        candidates = tuple(candidate for slow in alike for candidate in slow.candidates)
        place = RankGroup("job" if len(ranks) == len(evidence.locations) else "ranks", tuple(ranks))
        joined.append(FindingGroup(candidates, place, alike[0].judgement.after(shared)))
    return joined


def _place_of_groups(slow: Finding, evidence: Evidence) -> RankGroup:
    """Return what the ranks of slow collectives share."""
    if evidence.coverage.may_delay(slow):
        return RankGroup("unrecorded", slow.ranks)
    if len(slow.ranks) == len(evidence.locations):
        return RankGroup("job", slow.ranks)
    of_rank = assign_nodes(evidence.locations)
    nodes = {of_rank.get(rank) for rank in slow.ranks}
    if len(nodes) > 1 or None in nodes:
        return RankGroup("ranks", slow.ranks)
    return RankGroup("host", slow.ranks, host=evidence.locations[slow.ranks[0]].host)


_HOST_PARTS = tuple(part for part in OWN_PARTS if part != TimePart.GPU)


def add_lead(evidence: Evidence, groups: Sequence[FindingGroup], saved_ns: float) -> list[FindingGroup]:
    """Return `groups` of findings, which save `saved_ns`, and the lead that explains the loss where they do not.

    No time is in two of them: late launches on every rank include the random pauses, and leave out a rank that has a
    finding of the same part. What ranks lose in steps that are slow for all of them is of the same event.
    """
    analysis = evidence.analysis
    slow, warm_up = analysis.slow_steps.findings, analysis.slow_steps.warm_up
    told = {number for event in (*slow, *([] if warm_up is None else [warm_up])) for number in event.steps}
    is_timed = ~np.isnan(analysis.measured.step_ns) & ~np.isnan(analysis.account.loss_ns)
    timed = [number for number in np.flatnonzero(is_timed).tolist() if number not in told]
    charges = analysis.account.charges.without(told)
    loss_ns, time_ns = float(analysis.account.loss_ns[timed].sum()), float(analysis.measured.step_ns[timed].sum())
    if (
        len(analysis.run.team_of) < 2
        or analysis.measured.are_uncoupled
        or not timed
        or loss_ns < THRESHOLDS.min_clear_share * time_ns
    ):
        return [*groups]
    left_ns, noise_ns = loss_ns - saved_ns, THRESHOLDS.loss_noise_factor * analysis.account.loss_from_noise(timed)
    if left_ns < THRESHOLDS.min_clear_share * time_ns:
        return [*groups]
    named = {(outlier.rank, outlier.part) for group in groups for outlier in group.outliers}
    is_mostly_told = saved_ns >= THRESHOLDS.main_share * loss_ns
    if is_mostly_told:  # what else such a rank loses may be of the same fault
        named = {(rank, part) for rank, _ in named for part in OWN_PARTS}
    lead = _one_rank(evidence, charges, named, time_ns, left_ns > noise_ns)
    if lead is not None or is_mostly_told:
        return [*groups, *([] if lead is None else [lead])]
    is_above_noise = loss_ns > noise_ns
    pauses = [group for group in groups if all(candidate.kind == "random_pauses" for candidate in group.candidates)]
    others = [group for group in groups if group not in pauses]
    named = {(outlier.rank, outlier.part) for group in others for outlier in group.outliers}
    lead = _every_rank(evidence, charges, named, timed, time_ns, is_above_noise)
    if lead is None:
        return [*groups]
    return [*(group for group in groups if group not in pauses or group.parts != lead.parts), lead]


def _one_rank(
    evidence: Evidence,
    charges: Charges,
    named: Collection[tuple[int, TimePart]],
    time_ns: float,
    is_above_noise: bool,
) -> FindingGroup | None:
    """Return the rank and part with most of the loss that is on none that findings have `named`.

    The rank must have the largest share step after step, half of it by what it takes longer itself, or stand out in
    single steps: chance may cause such a stall, but it did cost the time. In few steps those count as well in which it
    arrives last at more collectives than any other rank. In one step nothing repeats but these arrivals: without them,
    what is left of the loss must be `is_above_noise`.
    """
    analysis, run = evidence.analysis, evidence.analysis.run
    totals_ns, left_ns = charges.totals_ns(), charges.all_ns()
    for named_rank, named_part in named:
        left_ns -= totals_ns[charges.column(named_rank), named_part]
        totals_ns[charges.column(named_rank), named_part] = 0.0
    column, part_number = np.unravel_index(np.argmax(totals_ns), totals_ns.shape)
    rank, part = charges.ranks[int(column)], OWN_PARTS[int(part_number)]
    if totals_ns[column, part] < THRESHOLDS.main_share * left_ns:
        return None
    if any(size < 2 for size in run.sizes.values()):
        return None  # a rank without peers has no other ranks' median
    mine = charges.own_ns[part, :, column]
    standouts = analysis.outliers.standouts[run.team_of[rank], part]
    (at,) = standouts.columns([rank])
    times, steps = charges.count_last(int(column))
    tried = [_count_arrivals(evidence, rank)] if steps == 1 else [(times, steps)]
    if 1 < steps < THRESHOLDS.few_steps:
        tried.append(_count_steps_held_up(evidence, rank))
    chances = [chance_of_repetition(*counts, 1 / len(charges.ranks)) for counts in tried]
    # a host that does not wait for its GPU stays behind, step after step, without being slower
    is_slower = float(np.nansum(standouts.total_ns[mine != 0, at])) >= THRESHOLDS.main_share * float(mine.sum())
    is_repeated = is_slower and min(chances) <= THRESHOLDS.max_lead_chance
    is_far = (standouts.sigmas[:, at] >= THRESHOLDS.outlier_sigmas) & (mine != 0)
    is_stall = bool(is_far.any()) and not is_repeated
    if not is_repeated and not is_stall and not (steps == 1 and is_above_noise):
        return None
    late = tuple(np.flatnonzero(is_far if is_stall else mine > 0).tolist())
    # how far it stands out in its worst step, and the chance of that
    sigmas = float(standouts.sigmas[list(late), at].max(initial=0.0))
    chance = float(standouts.chance_of_step[list(late), at].min(initial=1.0))
    lost_ns = float(mine[list(late)].sum())
    candidate = of_one_rank(Outlier(run.team_of[rank], rank, part, late, lost_ns, sigmas, chance))
    (gain,) = analysis.gains([candidate.repair])
    # in few steps a rank that is behind may hide that the others are as slow
    is_hiding = is_repeated and steps < THRESHOLDS.few_steps and part in _HOST_PARTS
    if gain < THRESHOLDS.min_clear_share * time_ns and not is_hiding:
        return None
    where = f"{times} of {format_count(steps, 'step')}"
    why = f"it has the largest share of the loss {'of the only step' if len(run.keys) == 1 else f'in {where}'}"
    if is_stall:
        share = format_percent(gain / float(np.nansum(analysis.account.loss_ns[~np.isnan(analysis.measured.step_ns)])))
        why = f"what it takes longer in {format_count(len(late), 'step')} is {share} of the loss"
    location = evidence.locations[rank]
    group = RankGroup("rank", (rank,), location.host, location.device)
    arrivals = () if is_stall else _describe_arrivals(evidence, rank)
    judgement = find_cause(evidence, candidate).after(why)
    judgement = judgement._replace(sentences=(*judgement.sentences, *arrivals))
    return FindingGroup((candidate,), group, judgement, is_lead=True)


def _count_arrivals(evidence: Evidence, rank: int) -> tuple[int, int]:
    """Return at how many collectives with other ranks the rank arrives last, and at how many it takes part."""
    arrivals = [step.arrivals for step in evidence.analysis.measured.of_steps]
    return sum(at.last_at.get(rank, 0) for at in arrivals), sum(at.met_at.get(rank, 0) for at in arrivals)


def _count_steps_held_up(evidence: Evidence, rank: int) -> tuple[int, int]:
    """Return in how many steps the rank arrives last at more collectives than any other rank, and of how many."""
    arrivals = [step.arrivals for step in evidence.analysis.measured.of_steps]
    met = [step_arrivals.last_at for step_arrivals in arrivals if step_arrivals.are_any]
    others = [max((times for other, times in last_at.items() if other != rank), default=0) for last_at in met]
    return sum(last_at.get(rank, 0) > most for last_at, most in zip(met, others, strict=True)), len(met)


def _describe_arrivals(evidence: Evidence, rank: int) -> tuple[str, ...]:
    """Say at how many collectives the rank arrives last; nothing if at less than half."""
    times, count = _count_arrivals(evidence, rank)
    if 2 * times <= count:
        return ()
    return (f"it arrives last at {times:,} of {format_count(count, 'collective')}",)


def _every_rank(
    evidence: Evidence,
    charges: Charges,
    named: Collection[tuple[int, TimePart]],
    steps: Sequence[int],
    time_ns: float,
    is_above_noise: bool,
) -> FindingGroup | None:
    """Return what holds up the job on all ranks but those `named` in turn, if it is most of the loss.

    Late launches, where the loss is above noise, or GPU time that varies by rank and step, as that of uneven batches.
    """
    analysis, run = evidence.analysis, evidence.analysis.run
    totals = charges.totals_ns()
    for rank, named_part in named:
        totals[charges.column(rank), named_part] = 0.0
    part = max(OWN_PARTS, key=lambda own_part: float(totals[:, own_part].sum()))
    of_ranks, whole = totals[:, part], float(totals[:, part].sum())
    if whole <= 0 or whole < THRESHOLDS.main_share * charges.all_ns():
        return None
    first, second = np.argsort(-of_ranks, kind="stable")[:2].tolist()
    if of_ranks[first] > THRESHOLDS.max_share_of_one_rank * whole:
        return None
    sigmas, evened_pace = 0.0, None
    if part is TimePart.GPU:
        # operations that vary by themselves lose time between any two collectives, GPUs that differ for ever in no turn
        sigmas, in_turn_ns = _longest_in_turn(evidence, steps)
        is_above_noise = sigmas >= THRESHOLDS.outlier_sigmas and in_turn_ns >= THRESHOLDS.main_share * whole
        waited_ns, evened_pace = _wait_for_experts_ns(evidence, steps), _evened_pace(evidence)
        if not is_above_noise and waited_ns >= THRESHOLDS.main_share * whole:  # another rank in each layer of a step
            usual_ns = max(float(np.nansum(team.usual_ns[part, steps])) for team in analysis.measured.deviations)
            is_above_noise, evened_pace = True, usual_ns / (usual_ns + max(whole - waited_ns, 0.0))
    if not is_above_noise:
        return None
    chance = float(student_tail(sigmas, THRESHOLDS.max_degrees)) * len(charges.ranks)
    members = [
        Outlier(run.team_of[rank], rank, part, tuple(steps), lost_ns, sigmas, min(chance, 1.0), is_in_turn=True)
        for rank, lost_ns in zip(charges.ranks, of_ranks.tolist(), strict=True)
        if (rank, part) not in named
    ]
    candidate = replace(join_outliers("in_turn", members), evened_pace=evened_pace)
    (gain,) = analysis.gains([candidate.repair])
    if gain < THRESHOLDS.min_clear_share * time_ns:
        return None
    involved = int((of_ranks > 0).sum())
    most = ", ".join(f"{charges.ranks[at]} ({100 * of_ranks[at] / whole:.0f}%)" for at in (first, second))
    why = f"{involved} of {format_count(len(run.team_of), 'rank')} hold up the job in turn, most of it ranks {most}"
    group = RankGroup("job", candidate.ranks)
    return FindingGroup((candidate,), group, find_cause(evidence, candidate).after(why), is_lead=True)


def _longest_in_turn(evidence: Evidence, steps: Sequence[int]) -> tuple[float, float]:
    """Return by how much GPU time the longest rank of a step stands out, each compared with its own usual step.

    In standard deviations of operations that vary independently, in the usual step, and in ns over these steps; of
    several teams the one where it is most.
    """
    longest = []
    for team in evidence.analysis.measured.deviations:
        total = team.total_ns[TimePart.GPU, steps]
        varied_ns = np.nan_to_num(total - known_medians(total)).max(axis=1)
        sigmas = float(np.median(varied_ns / np.maximum(team.noise_ns[TimePart.GPU, steps, 0], 1.0)))
        longest.append((float(varied_ns.sum()), sigmas))
    in_turn_ns, sigmas = max(longest)
    return sigmas, in_turn_ns


def _wait_for_experts_ns(evidence: Evidence, steps: Sequence[int]) -> float:
    """Return how long ranks wait for those whose experts have more tokens, over these steps; 0 where that is noise."""
    of_steps = (evidence.analysis.measured.of_steps[number].experts for number in steps)
    experts = [step for step in of_steps if step is not None]
    is_uneven = experts and np.mean([step.ratio for step in experts]) >= 1 + THRESHOLDS.minor_share
    return float(sum(step.waited_ns for step in experts)) if is_uneven else 0.0


def _evened_pace(evidence: Evidence) -> float:
    """Return the GPU time of the baseline, the lower median of the ranks, ÷ their mean, over all steps."""
    median_ns = more_ns = 0.0
    for team in evidence.analysis.measured.deviations:
        apart = compare_with_one_rank(team.total_ns[TimePart.GPU])
        median_ns += float(np.nansum(team.usual_ns[TimePart.GPU])) * len(team.ranks)
        more_ns += float(np.nansum(apart - lower_median(apart)))
    return median_ns / (median_ns + more_ns)
