"""Which kernels changed between two runs, and what each change costs a step.

Places of equal kernels are compared by own time with a t-test whose variance is moderated: few steps tell little of one
place's noise, all places together tell more. Benjamini and Hochberg's procedure bounds false discoveries at 5%. Places
without a partner of the same name are changes of the program, which need no test. A kernel that takes longer on one
rank alone has the usual own time, but its rows cost the step more.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np

from jitter.analysis.account.losses import LossClass
from jitter.comparison.document import Document, Team
from jitter.comparison.rows import AlignedRuns, AlignedTeam, Row
from jitter.core.numeric.arrays import Floats
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
_OF_ONE_RANK: Final = 0.6
"""Part of what a kernel costs from which on the rank that has it is named."""
_CLASSES: Final = frozenset(one.label for one in (LossClass.GPU, LossClass.TRANSFER, LossClass.OVERLAP))
"""The classes of a kernel's own time, as against that of its launch."""

_Key = tuple[str | None, str | None, Kind]
_Cost = dict[tuple[int | None, int | None], dict[int | None, float]]
"""By team and slot, and rank, ns."""


@dataclass
class KernelChange:
    """Places of one kernel that changed alike; times are per step, ns."""

    kernel_name: str | None
    """Of the base; several names joined by ` + `; None where it appeared."""
    new_kernel_name: str | None
    kind: Kind
    places: int = 0
    """Places of the base; of the new run where it appeared."""
    new_places: int = 0
    base_ns: float = 0.0
    """Own time of all places, median over ranks and steps."""
    new_ns: float = 0.0
    loss_ns: float | None = None
    """What it adds to the new run's step: the sum of its rows; None where a run has no usual step."""
    rank: int | None = None
    """The rank that alone has most of it."""
    p_adjusted: float | None = None
    """Of the own time; None for changes of the program."""
    indices: list[int] = field(default_factory=list)
    """Kernel indices in the base's sequence; in the new one's where it appeared."""

    @property
    def cost_ns(self) -> float:
        """Return what it adds to a step, or if that is unknown to its own time."""
        return self.new_ns - self.base_ns if self.loss_ns is None else self.loss_ns


@dataclass(frozen=True)
class ShapeChange:
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


@dataclass(frozen=True)
class KernelComparison:
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
    slot: int
    key: _Key
    base: int | None
    """Kernel index in the base's sequence."""
    new: int | None
    old_ns: Floats
    """(steps,) own times in the base."""
    new_ns: Floats
    weight: float
    """Share of the ranks."""


def compare_kernels(
    runs: AlignedRuns, rows: Sequence[Row] = (), more: Sequence[Document] = (), least_ns: float = np.inf
) -> KernelComparison:
    """Compare the kernels of aligned teams; a team's own times count with its share of the ranks.

    `more` are further bases: a change must exceed what a kernel's time differs by between them and the base. Kernels
    whose rows cost at least `least_ns` a step have changed too.
    """
    places = _list_places(runs)
    tested = [at for at, one in enumerate(places) if one.key[2] == "changed"]
    adjusted = _adjust(_p_values([places[at].old_ns for at in tested], [places[at].new_ns for at in tested]))
    p = dict(zip(tested, adjusted.tolist(), strict=True))
    spreads = {
        number: _spread(runs.base, team.base, more) for number, team in enumerate(runs.teams) if team.base is not None
    }
    cost: _Cost = defaultdict(dict)
    for row in rows:
        if row.loss_class in _CLASSES:
            of_place = cost[row.team, row.slot]
            of_place[row.rank] = of_place.get(row.rank, 0.0) + row.loss_ns
    changes: dict[_Key, KernelChange] = {}
    for key, own in _by_key(places).items():
        changed = [at for at in own if at not in p or _is_changed(places[at], p[at], spreads[places[at].team])]
        if rows and abs(sum(_by_rank(cost, places, own).values())) >= least_ns:
            changed = own
        if changed:
            by_rank = _by_rank(cost, places, changed)
            changes[key] = _describe(key, [places[at] for at in changed], [p[at] for at in changed if at in p])
            changes[key].loss_ns = sum(by_rank.values()) if rows else None
            changes[key].rank = _main_rank(by_rank)
    differences = [
        PlaceDifference(one.base, one.key[0] or "", sum(cost[one.team, one.slot].values()) if rows else _grown(one))
        for one in places
        if one.base is not None and one.team == places[0].team
    ]
    return KernelComparison(
        sorted(changes.values(), key=lambda one: -abs(one.cost_ns)),
        _shapes(runs, places),
        *_count_names(runs),
        differences,
    )


def _list_places(runs: AlignedRuns) -> list[_Place]:
    """Return the kernels of the teams with partners, those of most ranks first."""
    paired = [
        (number, team) for number, team in enumerate(runs.teams) if team.base is not None and team.new is not None
    ]
    of_base = {number: runs.base.teams[team.base or 0] for number, team in paired}
    ranks = sum(len(one.ranks) for one in of_base.values())
    found = []
    for number, team in paired:
        blocks: dict[int, list[int]] = defaultdict(list)
        for at, _, _ in team.kernels:
            blocks[team.slots[at].block].append(at)
        keys = {block: _key(team, own) for block, own in blocks.items()}
        old, its = of_base[number], runs.new.teams[team.new or 0]
        for at, base, new in team.kernels:
            key, weight = keys[team.slots[at].block], len(old.ranks) / ranks
            found.append(_Place(number, at, key, base, new, _times(old, base), _times(its, new), weight))
    return found


def _key(team: AlignedTeam, slots: Sequence[int]) -> _Key:
    base, new = (" + ".join(filter(None, (team.names[at][side] for at in slots))) or None for side in (0, 1))
    if team.slots[slots[0]].is_same:
        return base, new, "changed"
    return base, new, "went" if new is None else "appeared" if base is None else "replaced"


def _by_rank(cost: _Cost, places: Sequence[_Place], chosen: Sequence[int]) -> dict[int | None, float]:
    """Return by rank what some of the places add to the step, ns."""
    found: dict[int | None, float] = {}
    for at in chosen:
        for rank, ns in cost[places[at].team, places[at].slot].items():
            found[rank] = found.get(rank, 0.0) + ns
    return found


def _by_key(places: Sequence[_Place]) -> dict[_Key, list[int]]:
    found: dict[_Key, list[int]] = defaultdict(list)
    for at, one in enumerate(places):
        found[one.key].append(at)
    return found


def _describe(key: _Key, places: Sequence[_Place], p: Sequence[float]) -> KernelChange:
    base, new = (
        [at for at in side if at is not None] for side in zip(*((one.base, one.new) for one in places), strict=True)
    )
    return KernelChange(
        *key,
        len(base),
        len(new),
        sum(one.weight * _median(one.old_ns) for one in places),
        sum(one.weight * _median(one.new_ns) for one in places),
        p_adjusted=min(p, default=None),
        indices=base or new,
    )


def _is_changed(one: _Place, p: float, spread: Mapping[int, float]) -> bool:
    base_ns = _median(one.old_ns)
    least = max(_MIN_CHANGE_NS, _MIN_CHANGE * base_ns, spread.get(one.base or 0, 0.0))
    return p < _FALSE_DISCOVERIES and abs(_grown(one)) > least


def _grown(one: _Place) -> float:
    return _median(one.new_ns) - _median(one.old_ns)


def _main_rank(by_rank: Mapping[int | None, float]) -> int | None:
    """Return the rank that has most of what a kernel costs; None if none has, or it costs nothing."""
    whole = sum(by_rank.values())
    rank = max(by_rank, key=lambda one: by_rank[one] * whole, default=None)
    return rank if whole and by_rank[rank] / whole >= _OF_ONE_RANK else None


def _shapes(runs: AlignedRuns, places: Sequence[_Place]) -> list[ShapeChange]:
    found: Counter[tuple[str, tuple[int, ...], tuple[int, ...]]] = Counter()
    for one in places:
        team = runs.teams[one.team]
        if one.base is None or one.new is None or team.base is None or team.new is None or one.key[2] != "changed":
            continue
        before, after = (
            runs.base.teams[team.base].places[one.base].shape,
            runs.new.teams[team.new].places[one.new].shape,
        )
        if before is not None and after is not None and before != after:
            found[one.key[0] or "", before, after] += 1
    return [ShapeChange(*which, count) for which, count in found.items()]


def _count_names(runs: AlignedRuns) -> tuple[int, int]:
    """Return how many of the base's names of kernels and copies the new run has, and how many there are."""
    paired = [team for team in runs.teams if team.base is not None and team.new is not None]
    old = {name for team in paired for name in _names(runs.base, runs.base.teams[team.base or 0])}
    its = {name for team in paired for name in _names(runs.new, runs.new.teams[team.new or 0])}
    return len(old & its), len(old)


def _names(document: Document, team: Team) -> set[str]:
    return {document.names[at] for at in (*(place.name for place in team.places), *team.copies)}


def _spread(base: Document, team: int, more: Sequence[Document]) -> dict[int, float]:
    """Return by place what its time differs by between bases that run the same sequence: two standard deviations."""
    sequence = _sequence(base, base.teams[team])
    alike = [own for one in more for own in one.teams if _sequence(one, own) == sequence]
    if not alike:
        return {}
    every = [base.teams[team], *alike]
    medians = np.array([[_median(_times(own, at)) for at in range(len(sequence))] for own in every])
    return dict(enumerate((2 * medians.std(axis=0, ddof=1)).tolist()))


def _sequence(document: Document, team: Team) -> list[tuple[str, bool]]:
    return [(document.names[place.name], place.concurrent) for place in team.places]


def _times(team: Team, place: int | None) -> Floats:
    times = () if place is None else team.times_ns[place]
    return np.array([value for value in times if value is not None], np.float64)


def _median(times: Floats) -> float:
    return float(np.median(times)) if len(times) else 0.0


def _p_values(old: Sequence[Floats], its: Sequence[Floats]) -> Floats:
    """Return, (places,), the p-value of each place's difference; 1 where a side has no times."""
    found = np.ones(len(old))
    usable = [at for at, (one, other) in enumerate(zip(old, its, strict=True)) if len(one) > 1 and len(other) > 1]
    if not usable:
        return found
    first, second = [old[at] for at in usable], [its[at] for at in usable]
    # medians bear single slow steps, and a difference of them has about 1.25 times the deviation of that of means
    means = np.array(
        [[float(np.median(one)), float(np.median(other))] for one, other in zip(first, second, strict=True)]
    )
    counts = np.array([[len(one), len(other)] for one, other in zip(first, second, strict=True)], np.float64)
    variances = np.array([[one.var(ddof=1), other.var(ddof=1)] for one, other in zip(first, second, strict=True)])
    scale = np.maximum(means.mean(axis=1), 1.0)
    relative = variances / scale[:, None] ** 2
    degrees = counts.sum(axis=1) - 2
    pooled = (relative * (counts - 1)).sum(axis=1) / degrees
    prior = max(float(np.median(pooled)), _MIN_RELATIVE_NOISE**2)
    moderated = (_PRIOR_WEIGHT * prior + degrees * pooled) / (_PRIOR_WEIGHT + degrees)
    deviation = 1.25 * scale * np.sqrt(moderated * (1 / counts).sum(axis=1))
    found[usable] = 2 * student_tail(np.abs(means[:, 1] - means[:, 0]) / deviation, degrees + _PRIOR_WEIGHT)
    return found


def _adjust(p: Floats) -> Floats:
    """Return the p-values adjusted after Benjamini and Hochberg."""
    if not len(p):
        return p
    order = np.argsort(p)[::-1]
    ranked = p[order] * len(p) / np.arange(len(p), 0, -1)
    found = np.empty(len(p))
    found[order] = np.minimum.accumulate(ranked).clip(max=1.0)
    return found
