"""What stands out, one type for all of it; and findings about many ranks: at random, and in clusters."""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from jitter.analysis.detection.deviations import (
    TeamDeviations,
    compare_with_one_rank,
)
from jitter.analysis.detection.significance import changes_once, differ_steadily
from jitter.analysis.detection.standouts import Outlier, chance_of_repetition, is_random_over, log_odds_of_all_ranks
from jitter.analysis.execution.rank_clusters import least_gap, separate_clusters
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.replay.what_if import Scenario
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_numbers, format_time
from jitter.core.grouping import by_key
from jitter.core.numeric.arrays import Floats
from jitter.core.numeric.stats import known_median, known_medians
from jitter.core.numeric.student_t import student_tail

FindingKind = Literal[
    "late_rank",
    "slow_transfers",
    "random_transfers",
    "in_turn",
    "uneven_ranks",
    "slow_steps",
    "awaited",
    "random_pauses",
    "two_clusters",
    "late_together",
    "unequal_stages",
    "slow_stage",
    "stage_slow_at_times",
]
"""`late_rank`: one rank stands out. `slow_transfers`: collectives take long from the last arrival on.
`random_transfers`: those of any group do so at times. `in_turn`: one rank after another holds up the others.
`uneven_ranks`: the same ranks hold up the others, by their work. `slow_steps`: all ranks are slow in some steps.
`awaited`: they seem to wait for the hosts of a few. `random_pauses`: single ranks pause in steps that chance may
choose. `two_clusters`: the ranks fall into a slow and a fast group. `late_together`: many ranks are late in the same
steps. `unequal_stages`: a pipeline stage has more work than the others. `slow_stage`: it runs the same kernels more
slowly. `stage_slow_at_times`: only in some steps.
"""


@dataclass(frozen=True)
class Finding:
    """Time of one part above its baseline, on some ranks, in the steps in which each of them is slow."""

    kind: FindingKind
    part: TimePart
    steps_of_rank: Mapping[int, tuple[int, ...]]
    """Positions in the run of the steps in which each rank is slow. Of transfers: the ranks whose links explain them.
    """
    excess_ns: float
    """Time above the baseline, summed over these ranks and steps.

    Of slow transfers, that of the rank which they keep longest: groups meet side by side.
    """
    sigmas: float
    """The excess in standard deviations of the noise."""
    evidence: tuple[str, ...] = ()
    """Sentences with the numbers that the finding rests on."""
    chance: float = 1.0
    """At most this is the probability that chance alone explains it."""
    members: tuple[Outlier, ...] = ()
    """Each rank's own part of it, where ranks stand out by themselves."""
    known_gain_ns: float | None = None
    """Time that fixing it would save, where replay of the run's baseline does not tell; None: that tells."""
    transfers: tuple[int, ...] = ()
    """The slow ones by their groups, of all groups of all collectives."""
    of_slowest: tuple[int, ...] = ()
    """Those of them that the rank attends which they keep longest."""
    is_incomplete: bool = False
    """Whether slow transfers are of groups with members that were not recorded."""
    evened_pace: float | None = None
    """Of work that is uneven: the baseline's GPU time ÷ the mean over ranks, which each has once work is even."""
    excess_of_step: Mapping[int, float] = field(default_factory=dict)
    """Of slow steps: by position how much longer each like step takes than its usual time, ns."""
    taken_over: Mapping[int, float] = field(default_factory=dict)
    """Of a stage with more work: by rank of another stage, its GPU time ÷ that with a part of this work."""

    @property
    def repair(self) -> Scenario:
        """The what-if scenario in which its excess is gone."""
        steps_of = {rank: frozenset(steps) for rank, steps in self.steps_of_rank.items()}
        if self.transfers:
            return Scenario(transfers=dict.fromkeys(self.transfers, frozenset(self.steps)))
        paces = {member.rank: member.pace for member in self.members if member.pace is not None}
        whole_steps = {(rank, int(self.part)): steps for rank, steps in steps_of.items() if rank not in paces}
        if self.evened_pace is not None:
            paces = dict.fromkeys(steps_of, self.evened_pace)
        every = frozenset(self.steps)
        divided = {rank: (pace, every) for rank, pace in self.taken_over.items()}
        return Scenario(whole_steps, paces=divided | {rank: (pace, steps_of[rank]) for rank, pace in paces.items()})

    @property
    def worst(self) -> Outlier:
        """The member with the most excess."""
        return max(self.members, key=lambda member: member.excess_ns)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks, ascending."""
        return tuple(sorted(self.steps_of_rank))

    @property
    def steps(self) -> tuple[int, ...]:
        """Positions in the run of the steps in which any of the ranks is slow."""
        return tuple(sorted({step for steps in self.steps_of_rank.values() for step in steps}))

    def contains(self, slow: "Finding") -> bool:
        """Return whether another finding is of no other part of time, ranks or steps than this one."""
        rank_steps = self.steps_of_rank
        return slow.part is self.part and all(
            set(steps).issubset(rank_steps.get(rank, ())) for rank, steps in slow.steps_of_rank.items()
        )

    def is_shown_by(self, late: "Finding") -> bool:
        """Return whether what is late is ranks of this finding, or hosts that wait for these, in its steps or after."""
        is_of_event = late.part in (TimePart.START, TimePart.CPU) or set(late.ranks) <= set(self.ranks)
        steps = {at + after for at in self.steps for after in (0, 1)}
        return self.kind == "awaited" and not late.transfers and is_of_event and steps.issuperset(late.steps)


def join_outliers(
    kind: FindingKind,
    members: Sequence[Outlier],
    *evidence: str,
    are_late_together: bool = False,
    gain_ns: float | None = None,
) -> Finding:
    """Return the finding of one or several ranks that stand out with one part of their time.

    Ranks that are late together, each by as much, lose the time of one. Of ranks with different chances the least
    certain one counts, of random events the most certain one.
    """
    chances = [outlier.chance for outlier in members]
    excess_ns = [outlier.excess_ns for outlier in members]
    return Finding(
        kind,
        members[0].part,
        {outlier.rank: outlier.steps for outlier in members},
        excess_ns[0] if are_late_together else sum(excess_ns),
        max(outlier.sigmas for outlier in members),
        evidence,
        min(chances) if kind == "random_pauses" else max(chances),
        tuple(members),
        gain_ns,
    )


def of_one_rank(outlier: Outlier) -> Finding:
    """Return the finding that a rank stands out."""
    return join_outliers("late_rank", [outlier])


def join_late_ranks(outliers: Sequence[Outlier]) -> list[Finding]:
    """Return at most `max_priced_outliers` candidates, those with the most excess.

    Of more outliers, ranks that are late with one part of their time in the same steps are joined, the most ranks
    first: to leave out some of them would hide what fixing all of them saves.
    """
    single = sorted(outliers, key=lambda outlier: -outlier.excess_ns)
    clusters = sorted(divide_by_steps(single, part_and_measure), key=len)
    joined: list[Finding] = []
    while len(single) + len(joined) > THRESHOLDS.max_priced_outliers and clusters:
        members = clusters.pop()
        if len(members) < THRESHOLDS.min_repeats:
            break
        sentence = f"{format_count(len(members), 'rank')} are late in the same steps"
        joined.append(join_outliers("late_together", members, sentence))
        ranks = {(outlier.rank, outlier.part) for outlier in members}
        single = [outlier for outlier in single if (outlier.rank, outlier.part) not in ranks]
    every = [*joined, *map(of_one_rank, single)]
    return sorted(every, key=lambda candidate: -candidate.excess_ns)[: THRESHOLDS.max_priced_outliers]


class _Late(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def steps(self) -> Collection[int]: ...
    @property
    def excess_ns(self) -> float: ...


_LateT = TypeVar("_LateT", bound=_Late)


def are_same_steps(steps: Iterable[int], others: Iterable[int]) -> bool:
    """Return whether at least `main_share` of the steps of both are steps of each (the Jaccard index)."""
    these, other = set(steps), set(others)
    return len(these & other) >= THRESHOLDS.main_share * len(these | other)


def divide_by_steps(late: Iterable[_LateT], kind: Callable[[_LateT], object] = lambda _: None) -> list[list[_LateT]]:
    """Divide what is late into clusters of one kind, of which any two are late in the same steps, the worst first."""
    clusters: list[tuple[object, list[set[int]], list[_LateT]]] = []
    for item in sorted(late, key=lambda item: (-item.excess_ns, item.rank)):
        steps = set(item.steps)
        for of_kind, steps_of_members, members in clusters:
            if kind(item) == of_kind and all(are_same_steps(steps, other) for other in steps_of_members):
                members.append(item)
                if steps not in steps_of_members:
                    steps_of_members.append(steps)
                break
        else:
            clusters.append((kind(item), [steps], [item]))
    return [members for *_, members in clusters]


def part_and_measure(outlier: Outlier) -> tuple[TimePart, bool]:
    """Return what outliers must share to be one: the part of their time, and whether it is measured by its pace."""
    return outlier.part, outlier.pace is not None


def split_random_events(
    outliers: Sequence[Outlier],
    ranks: int,
    steps: int,
    node_of: Mapping[int, object],
    beside: Sequence[Outlier] = (),
) -> tuple[list[Outlier], list[Finding]]:
    """Join events on random ranks; return the other outliers, and the joined ones.

    An event is one step in which one rank stands out. Events are random unless they show that only some ranks have
    them, or some steps or one node more than chance gives. Those of another size, as a long stall among short pauses
    that any host makes, are asked by themselves.

    Args:
        outliers: the outliers of one part, of a team or of all of them.
        ranks: how many ranks these teams have.
        steps: how many steps the run has.
        node_of: the nodes of these teams' ranks, where known.
        beside: the outliers of another part of these ranks' time that has the same causes.

    """
    single, too = ([late for late in some if not late.persistent] for some in (outliers, beside))
    random = list[Finding]()
    while single:
        # the usual event tells the size: of pauses that any host makes the longest ones vary most
        most_ns = float(np.median([late.event_ns for late in single])) / THRESHOLDS.tolerance_share
        alike, beside_these = ([late for late in some if late.event_ns <= most_ns] for some in (single, too))
        single, too = ([late for late in some if late.event_ns > most_ns] for some in (single, too))
        longer = {late.rank for late in single}
        nodes = {rank: node for rank, node in node_of.items() if rank not in longer}
        sentence = _describe_random_events(alike, ranks - len(longer), steps, nodes, beside_these)
        if sentence is not None:
            in_turn = [replace(late, is_in_turn=True) for late in alike]
            random.append(join_outliers("random_pauses", in_turn, sentence))
    joined = {member.rank for finding in random for member in finding.members}
    return [outlier for outlier in outliers if outlier.persistent or outlier.rank not in joined], random


def _describe_random_events(
    single: Sequence[Outlier], ranks: int, steps: int, node_of: Mapping[int, object], beside: Sequence[Outlier]
) -> str | None:
    """Return a sentence on events that are random; None if they are not. The arguments are as above."""
    is_late = np.zeros((steps, ranks), np.bool_)
    for number, outlier in enumerate(single):
        is_late[list(outlier.steps), number] = True
    if not is_random_over(is_late):
        return None
    # nor are as many in the steps of one node, or on its ranks in one step: each is as likely as it has ranks
    events = {(late.rank, step) for late in (*single, *beside) for step in late.steps}
    places = Counter((node_of.get(rank, rank), step) for rank, step in events)
    times, sizes = Counter(node for node, _ in places), Counter(node_of.values())
    shares = {node: size / ranks for node, size in sizes.items() if size < ranks}
    chances = [chance_of_repetition(times[node], len(places), share) for node, share in shares.items()]
    chances += [
        chance_of_repetition(count, places.total(), shares[node] / steps)
        for (node, _), count in places.items()
        if node in shares
    ]
    # nor are steps of one node, or of ranks that are late in the same, that follow each other without those of others
    of_nodes = by_key(places).values()
    of_several = [some for some, ranks_with in Counter(late.steps for late in single).items() if ranks_with > 1]
    with_events = np.unique([step for _, step in places])
    if any(changes_once(np.isin(with_events, some)) for some in (*of_nodes, *of_several)):
        return None
    if min(chances, default=1.0) <= THRESHOLDS.medium_chance:
        return None
    counted, late = format_count(int(is_late.sum()), "event"), format_count(len(single), "rank")
    nodes = len(sizes) + ranks - len(node_of)  # a rank whose node is unknown counts as one
    odds = log_odds_of_all_ranks(places.total(), len(places), nodes * steps) if shares else 0.0
    return (
        f"{counted} on {late}, in each step on ranks of one node or few: look for what runs on one node after another"
        if odds <= math.log(THRESHOLDS.medium_chance)
        else f"{counted} on {late}, each on one rank in one step: no rank has more of them than chance gives"
    )


class Clusters(NamedTuple):
    """One team's ranks, cut into a fast and a slow cluster by one part of their time."""

    fast: tuple[int, ...]
    """Ranks, ascending, as are the slow ones."""
    slow: tuple[int, ...]
    excess_ns: float
    """Per step, of the clusters' means."""
    gap_ns: float
    """Per step, from the slowest fast rank to the fastest slow one."""
    sigmas: float
    """The excess in standard deviations within the clusters."""


def _cut_ranks(
    deviations: TeamDeviations, part: TimePart, usual_step_ns: float, apart: Collection[int] = ()
) -> Clusters | None:
    """Return the two clusters of one team's ranks, without the ranks `apart`; None if there is only one cluster.

    The ranks' medians over steps are cut where the clusters' means differ most, in standard deviations within them.
    The clusters must differ steadily, and by what is worth a report.
    """
    total, is_cut = deviations.total_ns[part], ~np.isin(deviations.ranks, list(apart))
    ranks, numbers = int(is_cut.sum()), deviations.ranks[is_cut]
    if ranks <= 2 or not usual_step_ns > 0 or np.isnan(total).all(axis=0).any():
        return None
    relative_ns = compare_with_one_rank(total)[:, is_cut]
    levels = np.nanmedian(relative_ns, axis=0)
    order = np.argsort(levels)
    ordered = levels[order]
    share = THRESHOLDS.gpu_spread_share if part is TimePart.GPU else THRESHOLDS.host_spread_share
    floor = max(share * float(np.nanmedian(deviations.usual_ns[part])), 1.0)
    sigmas = np.zeros(ranks - 2)
    # other cuts lie in no gap
    for at in np.flatnonzero(np.diff(ordered)[:-1] >= least_gap(ranks, floor)).tolist():
        sigmas[at] = separate_clusters(ordered[: at + 1], ordered[at + 1 :], floor)
    cut = 1 + int(np.argmax(sigmas))
    (low, high), (fast, slow) = np.split(ordered, [cut]), np.split(order, [cut])
    excess_ns = float(high.mean() - low.mean())
    is_much = excess_ns >= THRESHOLDS.min_clear_share * usual_step_ns
    if sigmas[cut - 1] < THRESHOLDS.outlier_sigmas or not is_much or not differ_steadily(relative_ns, slow, fast):
        return None
    named = [tuple(np.sort(numbers[columns]).tolist()) for columns in (fast, slow)]
    return Clusters(named[0], named[1], excess_ns, float(high[0] - low[-1]), float(sigmas[cut - 1]))


def find_clusters(deviations: TeamDeviations, step_ns: Floats, outliers: Sequence[Outlier]) -> list[Finding]:
    """Return the parts in which one team's ranks fall into a slow and a fast cluster, the slow one not fewer.

    Args:
        deviations: of the team.
        step_ns: (steps,) each step's time, NaN where unknown.
        outliers: the team's outliers; slow ranks that are all among them need no other finding.

    """
    ranks = deviations.total_ns.shape[2]
    findings = []
    for part in OWN_PARTS if ranks >= THRESHOLDS.min_robust_ranks else ():
        of_part = [outlier for outlier in outliers if outlier.part is part]
        latest = sorted((late for late in of_part if late.persistent), key=lambda late: -late.excess_ns)
        always = [late.rank for late in latest[: THRESHOLDS.min_repeats]]
        # a few ranks that are far later may hide that the others of their cluster are one
        cuts = (_cut_ranks(deviations, part, known_median(step_ns), always[:count]) for count in range(len(always) + 1))
        clusters = next((cut for cut in cuts if cut is not None and 2 <= len(cut.fast) <= ranks / 2), None)
        if clusters is None or set(clusters.slow) <= {outlier.rank for outlier in of_part}:
            continue
        relative_ns = compare_with_one_rank(deviations.total_ns[part])
        slow_ns, fast_ns = (
            known_medians(relative_ns[:, np.isin(deviations.ranks, cluster)], axis=1)
            for cluster in (clusters.slow, clusters.fast)
        )
        apart_ns = slow_ns - fast_ns
        late, is_known = apart_ns >= clusters.excess_ns / 2, ~np.isnan(apart_ns)
        excess_ns = float(apart_ns[late].mean())
        late |= ~is_known & late[is_known].all()  # a step is no exception of which no rank's total is known
        steps = tuple(np.flatnonzero(late).tolist())
        chance = float(student_tail(clusters.sigmas, THRESHOLDS.max_degrees)) * ranks * len(OWN_PARTS)
        members = [
            Outlier(
                *(deviations.team, rank, part, steps, excess_ns * len(steps), clusters.sigmas, chance),
                peers=clusters.fast,
            )
            for rank in clusters.slow
        ]
        sentence = (
            f"ranks {format_numbers(clusters.slow)} take {format_time(excess_ns)} longer than the other "
            f"{format_count(len(clusters.fast), 'rank')} in {format_count(len(steps), 'step')}, and differ less among "
            "themselves"
        )
        gain = None  # of equal halves the lower median is the fast one's: the loss contains it
        if len(clusters.fast) < ranks / 2:
            sentence += ": the loss, which compares with the median rank, does not contain it"
            # they are late together: a step is shorter by what one of them takes longer
            gain = excess_ns * int((late & ~np.isnan(step_ns)).sum())
        findings.append(join_outliers("two_clusters", members, sentence, are_late_together=True, gain_ns=gain))
    return findings


def find_fast_ranks(deviations: TeamDeviations, usual_step_ns: float) -> Clusters | None:
    """Return the clusters of a team of which a minority has much faster GPUs than all others; None if none has."""
    clusters = _cut_ranks(deviations, TimePart.GPU, usual_step_ns)
    if clusters is None or len(clusters.fast) >= len(clusters.slow):
        return None
    if clusters.gap_ns * clusters.sigmas < THRESHOLDS.outlier_sigmas * clusters.excess_ns:
        return None  # the slow ranks spread widely: the fast ones may be the end of that
    return clusters
