"""Groups findings that have one cause and one place, such as a host, the same device on every host or every Nth rank.

Each group is one thing to fix.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from jitter.analysis.detection.findings import Finding, FindingKind, divide_by_steps, of_one_rank
from jitter.analysis.detection.run_analysis import GainRange
from jitter.analysis.detection.significance import hypergeometric_tail
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.diagnosis.causes import Judgement, find_cause
from jitter.analysis.diagnosis.evidence.facts import Evidence
from jitter.analysis.diagnosis.model import Cause, Scope
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.replay.what_if import Scenario, together
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_numbers, format_ordinal, format_ranks, format_some
from jitter.core.grouping import by_key
from jitter.lake.rank_places import RankPlace, assign_nodes, number_gpus

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
    gpus: tuple[int, ...] = ()
    """For half of a host: the numbers of its GPUs there."""


def group_late_ranks(
    late: Collection[int],
    locations: Mapping[int, RankPlace],
    masked: Collection[int] = (),
    fewest_masked: int = THRESHOLDS.min_repeats,
) -> list[RankGroup]:
    """Divide late ranks into groups; a rank that shares nothing with the others is a group of its own.

    A host, half of one, device or series is named if most of its ranks are late, and so many late ranks, drawn at
    random from all, would seldom lie so in any group of its kind.

    Args:
        late: the ranks to divide.
        locations: of all ranks of the run.
        masked: late ranks whose repair alone saves nothing because others are as late. Those in no other group are one.
        fewest_masked: how many are a group.

    """
    remaining = set(late)
    groups: list[RankGroup] = []
    candidates = [*_places(locations), *_series(sorted(locations), remaining)] if len(remaining) > 1 else []
    ungrouped = set(locations)
    for candidate in sorted(candidates, key=lambda group: -len(group.ranks)):
        late_here = remaining & set(candidate.ranks)
        # among many late ranks some are in series by chance: a series must be most of them
        group_size = max(len(candidate.ranks), len(late) if candidate.every is not None else 0)
        if len(late_here) < 2 or len(late_here) < THRESHOLDS.most_share * group_size:
            continue
        every = candidates if candidate.every is None else _series(sorted(locations))
        alike = [set(group.ranks) & ungrouped for group in every if _kind(group) == _kind(candidate)]
        if (
            chance_of_sharing(set(candidate.ranks) & ungrouped, remaining, alike, len(ungrouped))
            <= THRESHOLDS.max_chance
        ):
            groups.append(replace(candidate, ranks=tuple(sorted(late_here))))
            remaining -= late_here
            ungrouped -= set(candidate.ranks)
    others = remaining & set(masked)
    if len(others) >= fewest_masked:
        groups.append(RankGroup("ranks", tuple(sorted(others))))
        remaining -= others
    single = [RankGroup("rank", (rank,), locations[rank].host, locations[rank].device) for rank in sorted(remaining)]
    return groups + single


def _kind(group: RankGroup) -> tuple[Scope, bool, bool]:
    return group.scope, group.every is None, bool(group.gpus)


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
    """Return every host, half of a host and device of the run, unless it holds all ranks."""
    nodes = assign_nodes(locations)
    hosts = by_key((nodes[rank], rank) for rank in sorted(locations) if rank in nodes)
    devices = by_key((locations[rank].device, rank) for rank in sorted(locations))
    places = _halves(hosts.values(), locations)
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


def _halves(hosts: Collection[Sequence[int]], locations: Mapping[int, RankPlace]) -> list[RankGroup]:
    """Return the halves of hosts by the numbers of their GPUs, as two CPU sockets have them."""
    numbers = number_gpus(locations)
    half = (max(numbers.values(), default=0) + 1) // 2
    halves = []
    for ranks in hosts if half >= THRESHOLDS.min_repeats else ():
        of_half = by_key((numbers[rank] >= half, rank) for rank in ranks if rank in numbers)
        halves += [
            RankGroup("ranks", tuple(some), locations[some[0]].host, gpus=tuple(sorted(numbers[rank] for rank in some)))
            for some in of_half.values()
            if THRESHOLDS.min_repeats <= len(some) < len(ranks)
        ]
    return halves


def _series(ranks: Sequence[int], shared_by: Collection[int] | None = None) -> list[RankGroup]:
    """Return every Nth rank from each possible first one; of some ranks, the series that two of them share."""
    series = []
    for every in range(2, len(ranks) // THRESHOLDS.min_repeats + 1):
        of_first = None if shared_by is None else Counter(rank % every for rank in shared_by)
        if of_first is not None and max(of_first.values()) < 2:
            continue
        of_remainder = by_key((rank % every, rank) for rank in ranks)
        series += [
            RankGroup("ranks", tuple(members), every=every)
            for first, members in sorted(of_remainder.items())
            if len(members) >= THRESHOLDS.min_repeats and (of_first is None or of_first[first] > 1)
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
    "stage_slow_at_times": Judgement(
        "gpu_compute",
        "likely",
        ("in its other steps these kernels take as long as on the other stages: the GPUs are slow at times",),
    ),
}
"""The causes of findings that compare pipeline stages."""
_UNEVEN: Final = (
    "have more work than the other ranks: check how evenly work is divided (parts of tensors or sequences, batches)"
)


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

    @cached_property
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
    def excess_of_one_ns(self) -> float:
        """The mean excess of its ranks, or of its groups of slow communication, each summed over the steps."""
        if not self.outliers:
            return self.excess_ns / len(self.candidates)
        return sum(late.excess_ns for late in self.outliers) / len({late.rank for late in self.outliers})

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
    shown_by_events = [late for event in evidence.pricing.beside_loss for late in evidence.pricing.shown_by(event)]
    worth = evidence.pricing.worth_fixing
    candidates = [candidate for candidate in worth if candidate not in shown_by_events]
    masked = [
        finding for finding in evidence.analysis.candidates if finding.kind == "late_rank" and finding not in worth
    ]
    groups = _group_communication(candidates, evidence) + _group_jobs(candidates, evidence)
    every = _by_rank(candidates, masked, evidence)
    late = by_key((_reason(one), one) for one in every)
    placed = [group for members in late.values() for group in _group_ranks(members, evidence)]
    nodes = evidence.nodes
    reasons_of_node = by_key(((nodes.get(one.rank), _is_of_host(one)), _reason(one)) for one in every if _is_told(one))

    def reason(group: FindingGroup) -> Hashable:
        """Return why ranks are late; where nothing tells that, what alone their node's other ranks tell."""
        if _is_told(group):
            return _reason(group)
        of_node = set(reasons_of_node.get((nodes.get(group.rank), _is_of_host(group)), ()))
        return of_node.pop() if len(of_node) == 1 else _is_of_host(group) or _reason(group)

    alike = by_key((reason(group), group) for group in placed)
    return groups + [joined for some in alike.values() for joined in _join_by_node(some, every, masked, evidence)]


def _reason(late: FindingGroup) -> tuple[Hashable, ...]:
    """Return why a rank is late: what its host was recorded to do, before or within steps, else cause and part."""
    is_recorded = _is_of_host(late) and late.judgement.advice
    return (late.judgement.advice,) if is_recorded else (late.cause, late.candidates[0].part)


def _of_rank(evidence: Evidence, finding: Finding) -> FindingGroup:
    return FindingGroup((finding,), RankGroup("rank", finding.ranks), find_cause(evidence, finding))


def _by_rank(candidates: Sequence[Finding], masked: Sequence[Finding], evidence: Evidence) -> list[FindingGroup]:
    """Return each rank's findings; a host that is slow throughout, also before the first kernel, is one thing.

    So is one that the same work holds up before and after a step begins. So it is with what is `masked`: late ranks
    that alone are not worth fixing, as others are later.
    """
    worth = {(finding.ranks[0], finding.part): finding for finding in candidates if finding.kind == "late_rank"}
    late = {(finding.ranks[0], finding.part): finding for finding in masked} | worth
    groups, events = dict[tuple[int, TimePart], FindingGroup](), list[FindingGroup]()
    for place, finding in worth.items():
        groups[place], *further = _by_cause(evidence, finding)
        events += further
    for rank in dict.fromkeys(rank for rank, part in worth if part is not TimePart.GPU):
        start, cpu = late.get((rank, TimePart.START)), late.get((rank, TimePart.CPU))
        if start is None or cpu is None:
            continue
        first, second = (start, cpu) if start.excess_ns > cpu.excess_ns else (cpu, start)
        main, other = (groups.get((rank, finding.part)) or _of_rank(evidence, finding) for finding in (first, second))
        if first is cpu or main.judgement.advice == other.judgement.advice != "":
            groups.pop((rank, second.part), None)
            groups[rank, first.part] = replace(main, candidates=(first, second))
    return [*groups.values(), *events]


def _by_cause(evidence: Evidence, finding: Finding) -> list[FindingGroup]:
    """Return the finding of a rank; if its far longer steps are so for another reason, that of these apart."""
    late, loss_of = finding.worst, evidence.analysis.account.loss_of
    split = [of_one_rank(part) for part in evidence.analysis.outliers.standouts_of(late).split_events(late)]
    if split and all(loss_of(part.repair) >= evidence.pricing.min_gain_ns(part.steps) for part in split):
        apart = [_of_rank(evidence, part) for part in split]
        if len(set(map(_reason, apart))) > 1:
            return apart
    return [_of_rank(evidence, finding)]


def _is_of_host(late: FindingGroup) -> bool:
    """Return whether it is a host that makes ranks late."""
    return late.candidates[0].part in (TimePart.START, TimePart.CPU)


def _is_told(late: FindingGroup) -> bool:
    """Return whether it is known why ranks are late: a GPU may be slow or have more work."""
    return _is_told_of_host(late) if _is_of_host(late) else late.judgement.certainty != "unknown"


def _is_told_of_host(late: FindingGroup) -> bool:
    """Return whether something recorded says with what a host is late; else it may pause anywhere."""
    return _is_of_host(late) and late.judgement.certainty != "unknown" and bool(late.judgement.advice)


def _group_ranks(members: Sequence[FindingGroup], evidence: Evidence) -> list[FindingGroup]:
    """Return groups of ranks that are late in the same steps, by their place."""
    groups = []
    for alike in divide_by_steps(members):
        by_rank = {late.rank: late for late in alike}
        hidden = [rank for rank, late in by_rank.items() if _is_masked(late, evidence)]
        # two ranks that are always late may be so each for itself; in the same few steps they are of one event
        is_event = not any(outlier.persistent for late in alike for outlier in late.outliers)
        fewest = 2 if is_event else THRESHOLDS.min_repeats
        for group in group_late_ranks(by_rank, evidence.locations, hidden, fewest):
            groups.append(_join_ranks(by_rank, group, evidence))
    return groups


def _join_by_node(
    groups: Sequence[FindingGroup], every: Sequence[FindingGroup], masked: Sequence[Finding], evidence: Evidence
) -> list[FindingGroup]:
    """Join the ranks of a node that are late for one reason, each in steps of its own, into one finding.

    With them go ranks that are not worth a finding by themselves, as others are later in their steps (`masked`).
    `every` are the findings of single ranks from which `groups` were made, and others.
    """
    nodes = evidence.nodes
    few = [late for late in groups if _are_of_no_place(late.group, nodes)]
    of_few_nodes = {nodes.get(late.rank) for late in few}
    few += [late for late in groups if late.group.scope == "host" and nodes.get(late.rank) in of_few_nodes]
    of_few = [candidate for late in few for candidate in late.candidates]
    single: dict[int, FindingGroup] = {}
    for late in every:
        if late.candidates[0] in of_few:
            first, *second = sorted(filter(None, (single.get(late.rank), late)), key=lambda group: -group.excess_ns)
            single[late.rank] = replace(
                first, candidates=tuple(candidate for one in (first, *second) for candidate in one.candidates)
            )
    masked_too = _masked_beside(single, masked, evidence)
    joined = list(groups)
    for group in group_late_ranks(single.keys() | masked_too.keys(), evidence.locations):
        named = single.keys() & set(group.ranks)
        if group.scope == "host" and len(group.ranks) >= THRESHOLDS.min_repeats and named:
            joined = [late for late in joined if late not in few or named.isdisjoint(late.group.ranks)]
            joined.append(_join_ranks(masked_too | single, group, evidence))
    return joined


def _are_of_no_place(group: RankGroup, nodes: Mapping[int, object]) -> bool:
    """Return whether late ranks are one rank, or some ranks of one node that are no series and no half of it."""
    of_one_node = len({nodes.get(rank, rank) for rank in group.ranks}) == 1
    is_series = group.every is not None or bool(group.gpus)
    return group.scope == "rank" or (group.scope == "ranks" and not is_series and of_one_node)


def _masked_beside(
    single: Mapping[int, FindingGroup], masked: Sequence[Finding], evidence: Evidence
) -> dict[int, FindingGroup]:
    """Return masked ranks that are late as single ones of their node are."""
    nodes = evidence.nodes
    alike = {(nodes.get(late.rank), late.cause, late.candidates[0].part) for late in single.values()}
    places = {(node, part) for node, _, part in alike if node is not None}
    beside = [
        _of_rank(evidence, finding)
        for finding in masked
        if (nodes.get(finding.ranks[0]), finding.part) in places and finding.ranks[0] not in single
    ]
    return {late.rank: late for late in beside if (nodes[late.rank], late.cause, late.candidates[0].part) in alike}


def _join_ranks(by_rank: Mapping[int, FindingGroup], group: RankGroup, evidence: Evidence) -> FindingGroup:
    """Return the findings of the group's ranks as one, with the cause of the worst rank of which most is known."""
    chosen = [by_rank[rank] for rank in group.ranks]
    worst = max(chosen, key=lambda late: (_is_told(late), late.excess_ns))
    candidates = tuple(candidate for late in chosen for candidate in late.candidates)
    which_steps = "the same" if len(divide_by_steps(chosen)) == 1 else "different"
    described = _describe_place(group, evidence, candidates[0].part, which_steps)
    return FindingGroup(candidates, group, worst.judgement.after(*described))


def _is_masked(late: FindingGroup, evidence: Evidence) -> bool:
    """Return whether fixing the rank's own time alone saves too little, because other ranks are as late."""
    return late.candidates[0].part is not TimePart.TRANSFER and _saves_little_alone(late, evidence)


def _saves_little_alone(late: FindingGroup, evidence: Evidence) -> bool:
    least = min(evidence.pricing.min_gain_ns(candidate.steps) for candidate in late.candidates)
    return max(evidence.analysis.gains([candidate.repair for candidate in late.candidates])) < least


def _describe_place(
    group: RankGroup, evidence: Evidence, part: TimePart, which_steps: str = "the same"
) -> tuple[str, ...]:
    """Say what the ranks of a group share that are late with a part of their time."""
    if group.scope == "host":
        ranks = f"{format_count(len(group.ranks), 'rank')} of host {group.host}"
        if group.host is None:
            ranks = f"ranks {format_numbers(group.ranks)}, one node by their device numbers,"
        return (f"{ranks} are late in {which_steps} steps",)
    if group.scope == "device":
        return (f"device {group.device} is late on {format_count(len(group.ranks), 'host')} in the same steps",)
    if group.every is not None:
        shared = "" if part is TimePart.GPU else ": they may share a NIC or switch"
        return (f"every {format_ordinal(group.every)} rank is late in the same steps{shared}",)
    if group.gpus:
        of_host = "one host" if group.host is None else f"host {group.host}"
        return (
            f"they are GPUs {format_numbers(group.gpus)} of {of_host}, half of it: look for what these share, as a CPU "
            "socket, its memory and its PCIe switches",
        )
    nodes = evidence.nodes
    late = {nodes.get(rank) for rank in group.ranks}
    if len(group.ranks) < 2 or None in late or sum(node in late for node in nodes.values()) > len(group.ranks):
        return ()
    hosts = sorted({host for rank in group.ranks if (host := evidence.locations[rank].host) is not None})
    named = f" ({format_some(hosts, THRESHOLDS.sentences.max_named)})" if len(hosts) == len(late) else ""
    every = "all recorded ranks" if evidence.coverage.has_unrecorded_ranks else "all ranks"
    return (f"they are {every} of {format_count(len(late), 'host')}{named}",)


def _group_jobs(candidates: Sequence[Finding], evidence: Evidence) -> list[FindingGroup]:
    jobs = [finding for finding in candidates if finding.kind != "late_rank" and finding.part is not TimePart.TRANSFER]
    return [_group_job(job, evidence) for job in jobs]


def _group_job(job: Finding, evidence: Evidence) -> FindingGroup:
    if job.kind in STAGE_KINDS:
        group = RankGroup("rank" if len(job.ranks) == 1 else "ranks", job.ranks)
        return FindingGroup((job,), group, STAGE_KINDS[job.kind].after(*job.evidence))
    judgement = find_cause(evidence, job)
    if job.kind == "two_clusters" and judgement.cause == "workload_imbalance":
        judgement = judgement._replace(job_advice=judgement.advice or _UNEVEN)
        if job.known_gain_ns is not None:  # divided evenly each rank has as much work as the mean of all
            fast = len(job.members[0].peers)
            job = replace(job, known_gain_ns=job.known_gain_ns * fast / (fast + len(job.ranks)))
    is_whole_job = job.kind == "slow_steps" and len(job.ranks) == len(evidence.locations)
    if is_whole_job or job.kind not in ("late_together", "slow_steps", "awaited", "two_clusters"):
        return FindingGroup((job,), RankGroup("job", job.ranks), judgement.after(*job.evidence))
    group, *more = group_late_ranks(job.ranks, evidence.locations, job.ranks)
    if more or (job.kind == "two_clusters" and group.scope != "host"):
        group = RankGroup("job" if job.kind == "two_clusters" else "ranks", job.ranks)
    return FindingGroup((job,), group, judgement.after(*job.evidence, *_describe_place(group, evidence, job.part)))


def _group_communication(candidates: Sequence[Finding], evidence: Evidence) -> list[FindingGroup]:
    """Return slow communication in groups: the links of single ranks that are slow in the same steps by their place."""
    groups, links = [], list[FindingGroup]()
    for slow in (candidate for candidate in candidates if candidate.part is TimePart.TRANSFER):
        if len(slow.ranks) == 1 and not evidence.coverage.may_delay(slow):
            links.append(_of_rank(evidence, slow))
        else:
            place = _place_of_groups(slow, evidence)
            shared = _describe_groups(slow, evidence) if place.scope == "ranks" else ()
            groups.append(FindingGroup((slow,), place, find_cause(evidence, slow).after(*slow.evidence, *shared)))
    return join_as_slow(groups, evidence) + _join_by_node(_group_ranks(links, evidence), links, (), evidence)


def join_as_slow(groups: Sequence[FindingGroup], evidence: Evidence) -> list[FindingGroup]:
    """Join groups that communicate slowly in the same steps if fixing one alone saves little.

    First those within a host, as of all its links, then those of other ranks each.
    """
    within = _join_places(groups, evidence, lambda place: (place.scope, place.host))
    return _join_places(within, evidence, lambda place: place.scope)


def _join_places(
    groups: Sequence[FindingGroup], evidence: Evidence, place_of: Callable[[RankGroup], Hashable]
) -> list[FindingGroup]:
    joined, little = list[FindingGroup](), list[FindingGroup]()
    for slow in groups:
        (little if _saves_little_alone(slow, evidence) else joined).append(slow)
    for alike in divide_by_steps(little, lambda slow: place_of(slow.group)):
        hosts, every = {slow.group.host for slow in alike}, [rank for slow in alike for rank in slow.group.ranks]
        ranks, is_one_host = tuple(sorted(set(every))), len(hosts) == 1 and alike[0].group.scope == "host"
        if len(alike) == 1 or (len(ranks) < len(every) and not is_one_host):
            joined += alike
            continue
        shared = _slow_together([slow.group.ranks for slow in alike])
        candidates = tuple(candidate for slow in alike for candidate in slow.candidates)
        scope: Scope = "host" if is_one_host else "job" if len(ranks) == len(evidence.locations) else "ranks"
        place = RankGroup(scope, ranks, hosts.pop() if is_one_host else None)
        joined.append(FindingGroup(candidates, place, alike[0].judgement.after(shared)))
    return joined


def _describe_groups(slow: Finding, evidence: Evidence) -> tuple[str, ...]:
    """Say which groups are slow, if they have no rank in common."""
    groups = sorted(set(map(evidence.analysis.run.ranks_of_group, slow.transfers)))
    is_apart = len(groups) > 1 and len(set().union(*groups)) == sum(map(len, groups))
    return (_slow_together(groups),) if is_apart else ()


def _slow_together(groups: Sequence[Sequence[int]]) -> str:
    names = format_some([format_ranks(ranks) for ranks in groups], THRESHOLDS.min_repeats)
    return f"{len(groups)} groups ({names}) are slow in the same steps: look for what they share, as a switch"


def _place_of_groups(slow: Finding, evidence: Evidence) -> RankGroup:
    """Return what the ranks of slow collectives share."""
    if evidence.coverage.may_delay(slow):
        return RankGroup("unrecorded", slow.ranks)
    if len(slow.ranks) == len(evidence.locations):
        return RankGroup("job", slow.ranks)
    nodes = {evidence.nodes.get(rank) for rank in slow.ranks}
    if len(nodes) > 1 or None in nodes:
        return RankGroup("ranks", slow.ranks)
    return RankGroup("host", slow.ranks, host=evidence.locations[slow.ranks[0]].host)
