"""Which kernels changed between two runs, and what each change costs a step.

Places of equal kernels are compared by own time with a t-test whose variance is moderated: few steps tell little of one
place's noise, all places together tell more. Benjamini and Hochberg's procedure bounds false discoveries at 5%. Places
without a partner of the same name are changes of the program, which need no test. A kernel that takes longer on one
rank alone has the usual own time, but its rows cost the step more.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from jitter.analysis.account.losses import LossClass
from jitter.comparison.document import Document, Team
from jitter.comparison.rows import BASE, NEW, AlignedRuns, Row, name_places
from jitter.core.grouping import by_key
from jitter.core.numeric.arrays import Floats
from jitter.core.numeric.stats import known_median
from jitter.core.numeric.student_t import student_tail

Kind = Literal["changed", "appeared", "went", "replaced"]

_FALSE_DISCOVERIES: Final = 0.05
_MIN_CHANGE: Final = 0.03
"""Part of a kernel's time. GPUs of one model differ by 1 to 2% for ever, so two runs on other GPUs do too."""
_MIN_CHANGE_NS: Final = 100.0
"""A few ticks of a profiler's clock."""
_PRIOR_WEIGHT: Final = 4.0
"""Degrees of freedom that all places' variance counts for."""
_MIN_RELATIVE_NOISE: Final = 0.002
_CLASSES: Final = frozenset(one.label for one in (LossClass.GPU, LossClass.TRANSFER, LossClass.OVERLAP))
"""The classes of a kernel's own time, as against that of its launch."""


class KernelChange(msgspec.Struct, frozen=True):
    """Places of one kernel that changed alike; times are per step, ns."""

    kernel_name: str | None
    """Of the base; several names joined by ` + `; None where it appeared."""
    new_kernel_name: str | None
    places: int
    """Of the base."""
    new_places: int
    kind: Kind
    base_ns: int
    """Own time of all places, median over ranks and steps."""
    new_ns: int
    difference_ns: int
    loss_ns: int | None
    """What it adds to the new run's step: the sum of its rows; None where a run has no usual step."""
    rank: int | None
    """The rank whose rows these are; None for those of all ranks but the ones that have a change of their own."""
    p_adjusted: float | None
    """Of the own time; None for changes of the program."""
    kernel_indices: list[int]
    """In the base's sequence; in the new one's where it appeared."""
    in_both: bool
    """Whether a kernel that appeared or went runs in both runs, in one of them more often."""

    @property
    def cost_ns(self) -> int:
        """Return what it adds to a step, or if that is unknown to its own time."""
        return self.difference_ns if self.loss_ns is None else self.loss_ns


class ShapeChange(msgspec.Struct, frozen=True):
    """A kernel that is launched with another shape, and at how many places."""

    kernel_name: str
    base: tuple[int, ...]
    new: tuple[int, ...]
    places: int


class PlaceDifference(NamedTuple):
    """What one kernel of the base's sequence adds to the new run's step."""

    kernel_index: int
    kernel_name: str
    difference_ns: float


class KernelComparison(NamedTuple):
    """The kernels that changed, the largest change first."""

    changes: list[KernelChange]
    shapes: list[ShapeChange]
    names_matched: int
    """Names of kernels and copies of the base that the new run has too."""
    names: int
    differences: list[PlaceDifference]
    """Of every kernel of the base's first team: of its rows, else of its own time."""


class _Place(NamedTuple):
    """One kernel of two aligned teams."""

    team: int
    key: tuple[str | None, str | None, Kind]
    base: int | None
    """Kernel index in the base's sequence."""
    new: int | None
    times: tuple[Floats, Floats]
    """(steps,) own times in either run, ns."""
    weight: float
    """Share of the ranks."""
    cost_of_rank: Mapping[int | None, float]
    """What it adds to the new run's step, ns."""

    @property
    def grown_ns(self) -> float:
        return known_median(self.times[NEW]) - known_median(self.times[BASE])


def compare_kernels(
    runs: AlignedRuns, rows: Sequence[Row] = (), bases: Sequence[Document] = (), least_ns: float = np.inf
) -> KernelComparison:
    """Compare the kernels of aligned teams; a team's own times count with its share of the ranks.

    `bases` are further bases: a change must exceed what a kernel's time differs by between them and the base. Kernels
    whose rows cost at least `least_ns` a step have changed too.
    """
    places = _list_places(runs, rows)
    tested = [at for at, place in enumerate(places) if place.key[2] == "changed"]
    adjusted = _adjust(_p_values([places[at].times for at in tested]))
    p = dict(zip(tested, adjusted.tolist(), strict=True))
    spreads = {
        number: _spread(runs.base, base, bases)
        for number, team in enumerate(runs.teams)
        if (base := team.runs[BASE]) is not None
    }
    of_runs = [[slot.operations[side] for team in runs.teams for slot in team.slots] for side in (BASE, NEW)]
    in_both = set.intersection(*({one.name for one in operations if one is not None} for operations in of_runs))
    changes: list[KernelChange] = []
    for indices in _join_moved(by_key((place.key, at) for at, place in enumerate(places))):
        changed = [at for at in indices if at not in p or _is_changed(places[at], p[at], spreads[places[at].team])]
        own_ns = max(sum(map(known_median, times)) for times in zip(*(places[at].times for at in indices), strict=True))
        least = max(least_ns, _MIN_CHANGE * own_ns)
        cost = _sum_ranks([places[at] for at in indices])
        ranks = [rank for rank, ns in cost.items() if rank is not None and abs(ns) >= least]
        changes += [_describe([places[at] for at in indices], None, [rank], in_both) for rank in ranks]
        others = [rank for rank in cost if rank not in ranks]
        shown = indices if abs(sum(cost[rank] for rank in others)) >= least else changed
        if shown:
            p_adjusted = min((p[at] for at in changed if at in p), default=None)
            changes.append(_describe([places[at] for at in shown], p_adjusted, others if rows else None, in_both))
    differences = [
        PlaceDifference(place.base, place.key[0] or "", sum(place.cost_of_rank.values()) if rows else place.grown_ns)
        for place in places
        if place.base is not None and place.team == places[0].team
    ]
    changes.sort(key=lambda change: -abs(change.cost_ns))
    return KernelComparison(changes, _shapes(runs, places), *_count_names(runs), differences)


def _list_places(runs: AlignedRuns, rows: Sequence[Row]) -> list[_Place]:
    """Return the kernels of the teams with partners, those of most ranks first."""
    cost: dict[tuple[int | None, int | None], dict[int | None, float]] = defaultdict(dict)
    for row in rows:
        if row.loss_class in _CLASSES:
            of_place = cost[row.team, row.slot]
            of_place[row.rank] = of_place.get(row.rank, 0.0) + row.loss_ns
    ranks = sum(len(base_team.ranks) for _, _, base_team, _ in runs.paired)
    places = []
    for number, team, base_team, new_team in runs.paired:
        names = by_key((team.slots[at].block or at, team.slots[at].names) for at, _ in team.kernels)
        for at, (base, new) in team.kernels:
            slot = team.slots[at]
            of_block = zip(*names[slot.block or at], strict=True)
            base_name, new_name = (" + ".join(filter(None, of_side)) or None for of_side in of_block)
            kind: Kind = "changed" if slot.is_same else "went" if new_name is None else "replaced"
            key = base_name, new_name, "appeared" if base_name is None else kind
            times = _times(base_team, base), _times(new_team, new)
            places.append(_Place(number, key, base, new, times, len(base_team.ranks) / ranks, cost[number, at]))
    return places


def _sum_ranks(places: Sequence[_Place]) -> Counter[int | None]:
    cost = Counter[int | None]()
    for place in places:
        cost.update(place.cost_of_rank)
    return cost


def _join_moved(indices_of_key: Mapping[tuple[str | None, str | None, Kind], list[int]]) -> Iterator[list[int]]:
    """Yield the places of each change; a kernel that appeared in some places and went from others moved: it is one."""
    for (base, new, kind), indices in indices_of_key.items():
        partner = indices_of_key.get((None, base, "appeared") if kind == "went" else (new, None, "went"), [])
        if kind == "went":
            yield [*indices, *partner]
        elif kind != "appeared" or not partner:
            yield indices


def _describe(
    places: Sequence[_Place],
    p_adjusted: float | None,
    ranks: Sequence[int | None] | None,
    in_both: Collection[str],
) -> KernelChange:
    """Return the change of these places: what the rows of `ranks` add; None where there are no rows.

    `in_both` are the names of the kernels that both runs have.
    """
    base_indices = [place.base for place in places if place.base is not None]
    new_indices = [place.new for place in places if place.new is not None]
    base_ns, new_ns = (
        round(sum(place.weight * known_median(place.times[run]) for place in places)) for run in (BASE, NEW)
    )
    cost = _sum_ranks(places)
    base_name, new_name, kind = places[0].key
    if kind == "went" and new_indices:  # it moved
        new_name, kind = base_name, "changed"
    return KernelChange(
        base_name,
        new_name,
        len(base_indices),
        len(new_indices),
        kind,
        base_ns,
        new_ns,
        new_ns - base_ns,
        None if ranks is None else round(sum(cost[rank] for rank in ranks)),
        ranks[0] if ranks and len(ranks) == 1 else None,
        p_adjusted,
        sorted(base_indices or new_indices),
        kind in ("appeared", "went") and (base_name or new_name) in in_both,
    )


def _is_changed(place: _Place, p: float, spread: Mapping[int, float]) -> bool:
    least = max(_MIN_CHANGE_NS, _MIN_CHANGE * known_median(place.times[BASE]), spread.get(place.base or 0, 0.0))
    return p < _FALSE_DISCOVERIES and abs(place.grown_ns) > least


def _shapes(runs: AlignedRuns, places: Sequence[_Place]) -> list[ShapeChange]:
    counts: Counter[tuple[str, tuple[int, ...], tuple[int, ...]]] = Counter()
    teams = {number: (base_team, new_team) for number, _, base_team, new_team in runs.paired}
    for place in places:
        if place.base is None or place.new is None or place.key[2] != "changed":
            continue
        base_team, new_team = teams[place.team]
        before, after = base_team.places[place.base].shape, new_team.places[place.new].shape
        if before is not None and after is not None and before != after:
            counts[place.key[0] or "", before, after] += 1
    return [ShapeChange(*change, count) for change, count in counts.items()]


def _count_names(runs: AlignedRuns) -> tuple[int, int]:
    """Return how many of the base's names of kernels and copies the new run has, and how many there are."""
    base_names, new_names = set[str](), set[str]()
    for _, _, *teams in runs.paired:
        for names, document, team in zip((base_names, new_names), (runs.base, runs.new), teams, strict=True):
            names |= {document.names[at] for at in (*(place.name for place in team.places), *team.copies)}
    return len(base_names & new_names), len(base_names)


def _spread(base: Document, team: int, bases: Sequence[Document]) -> dict[int, float]:
    """Return by place what its time differs by between bases that run the same sequence: two standard deviations."""
    sequence = name_places(base, base.teams[team])
    alike = [
        candidate for document in bases for candidate in document.teams if name_places(document, candidate) == sequence
    ]
    if not alike:
        return {}
    every = [base.teams[team], *alike]
    medians = np.array([[known_median(_times(program, at)) for at in range(len(sequence))] for program in every])
    return dict(enumerate((2 * medians.std(axis=0, ddof=1)).tolist()))


def _times(team: Team, place: int | None) -> Floats:
    times = () if place is None else team.times_ns[place]
    return np.array([value for value in times if value is not None], np.float64)


def _p_values(pairs: Sequence[tuple[Floats, Floats]]) -> Floats:
    """Return, (places,), the p-value of each place's difference; 1 where a side has no times."""
    p_values = np.ones(len(pairs))
    usable = [at for at, pair in enumerate(pairs) if min(map(len, pair)) > 1]
    if not usable:
        return p_values
    chosen = [pairs[at] for at in usable]
    # medians bear single slow steps, and a difference of them has about 1.25 times the deviation of that of means
    means = np.array([[float(np.median(times)) for times in pair] for pair in chosen])
    counts = np.array([[len(times) for times in pair] for pair in chosen], np.float64)
    variances = np.array([[times.var(ddof=1) for times in pair] for pair in chosen])
    scale = np.maximum(means.mean(axis=1), 1.0)
    relative = variances / scale[:, None] ** 2
    degrees = counts.sum(axis=1) - 2
    pooled = (relative * (counts - 1)).sum(axis=1) / degrees
    prior = max(float(np.median(pooled)), _MIN_RELATIVE_NOISE**2)
    moderated = (_PRIOR_WEIGHT * prior + degrees * pooled) / (_PRIOR_WEIGHT + degrees)
    deviation = 1.25 * scale * np.sqrt(moderated * (1 / counts).sum(axis=1))
    p_values[usable] = 2 * student_tail(np.abs(means[:, 1] - means[:, 0]) / deviation, degrees + _PRIOR_WEIGHT)
    return p_values


def _adjust(p: Floats) -> Floats:
    order = np.argsort(p)[::-1]
    ranked = p[order] * len(p) / np.arange(len(p), 0, -1)
    adjusted_p = np.empty(len(p))
    adjusted_p[order] = np.minimum.accumulate(ranked).clip(max=1.0)
    return adjusted_p
