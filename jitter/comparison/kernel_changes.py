"""Which kernels changed between two runs, and what each change costs a step.

Places of equal kernels are compared by own time with a t-test whose variance is moderated: few steps tell little of one
place's noise, all places together tell more. Benjamini and Hochberg's procedure bounds false discoveries at 5%. Places
without a partner of the same name are changes of the program, which need no test.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np

from jitter.comparison.document import Document, Team
from jitter.comparison.sequence_alignment import Block, TeamPair, align_teams
from jitter.core.numeric.arrays import Floats
from jitter.core.numeric.student_t import student_tail

Kind = Literal["changed", "appeared", "went", "replaced"]

_FALSE_DISCOVERIES: Final = 0.05
MIN_CHANGE: Final = 0.03
"""Part of a kernel's time. GPUs of one model differ by 1 to 2% for ever, so two runs on other GPUs do too."""
_MIN_CHANGE_NS: Final = 100.0
"""A few ticks of a profiler's clock."""
_PRIOR_WEIGHT: Final = 4.0
"""Degrees of freedom that all places' variance counts for."""
_MIN_RELATIVE_NOISE: Final = 0.002


@dataclass
class KernelChange:
    """Places of one kernel that changed alike; times are per step, ns."""

    kernel_name: str | None
    """Of the base; several names joined by ` + `; None where it appeared."""
    new_kernel_name: str | None
    places: int
    """Places of the base; of the new run where it appeared."""
    new_places: int
    kind: Kind
    base_ns: float
    new_ns: float
    p_adjusted: float | None
    """None for changes of the program."""
    indices: list[int] = field(default_factory=list)
    """Positions in the base's sequence; in the new one's where it appeared."""

    @property
    def difference_ns(self) -> float:
        """Return new − base."""
        return self.new_ns - self.base_ns


@dataclass(frozen=True)
class ShapeChange:
    """A kernel that is launched with another shape, and at how many places."""

    kernel_name: str
    base: tuple[int, ...]
    new: tuple[int, ...]
    places: int


class PlaceDifference(NamedTuple):
    """The additional time in the new run of one kernel of the base's sequence."""

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
    """Of every matched place of the most similar pair of teams."""


def compare_kernels(
    base: Document, new: Document, pairs: Sequence[TeamPair], more: Sequence[Document] = ()
) -> KernelComparison:
    """Compare the kernels of paired teams; a team counts with its share of the ranks.

    `more` are further bases: a change must exceed what a kernel's time differs by between them and the base.
    """
    weights = _weights(base, pairs)
    aligned = [(pair, weight, align_teams(base, new, pair)) for pair, weight in zip(pairs, weights, strict=True)]
    tested = [
        (pair, weight, block.base[0], block.new[0])
        for pair, weight, blocks in aligned
        for block in blocks
        if block.is_same
    ]
    old = [_times(base.teams[pair.base], at) for pair, _, at, _ in tested]
    its = [_times(new.teams[pair.new], at) for pair, _, _, at in tested]
    p = _adjust(_p_values(old, its))
    spreads = {pair.base: _spread(base, pair.base, more) for pair in pairs}
    changes: dict[tuple[str | None, str | None, Kind], KernelChange] = {}
    shapes: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
    differences: list[PlaceDifference] = []
    for (pair, weight, at, other), before, after, adjusted in zip(tested, old, its, p.tolist(), strict=True):
        place, partner = base.teams[pair.base].places[at], new.teams[pair.new].places[other]
        name = base.names[place.name]
        if place.shape is not None and partner.shape is not None and place.shape != partner.shape:
            shapes[name, place.shape, partner.shape] = shapes.get((name, place.shape, partner.shape), 0) + 1
        if not len(before) or not len(after):
            continue
        base_ns, new_ns = float(np.median(before)), float(np.median(after))
        if pair is pairs[0]:
            differences.append(PlaceDifference(at, name, new_ns - base_ns))
        least = max(_MIN_CHANGE_NS, MIN_CHANGE * base_ns, spreads[pair.base].get(at, 0.0))
        is_large = abs(new_ns - base_ns) > least
        if adjusted < _FALSE_DISCOVERIES and is_large:
            _add(changes, name, name, "changed", weight * base_ns, weight * new_ns, ([at], [other]), adjusted)
    for pair, weight, blocks in aligned:
        for block in blocks:
            if not block.is_same:
                _add_structural(changes, base, new, pair, weight, block)
    return KernelComparison(
        sorted(changes.values(), key=lambda one: -abs(one.difference_ns)),
        [ShapeChange(*which, count) for which, count in shapes.items()],
        *_count_names(base, new, pairs),
        differences,
    )


def _count_names(base: Document, new: Document, pairs: Sequence[TeamPair]) -> tuple[int, int]:
    """Return how many of the base's names the new run has, and how many there are."""
    old = {name for pair in pairs for name in _names(base, base.teams[pair.base])}
    its = {name for pair in pairs for name in _names(new, new.teams[pair.new])}
    return len(old & its), len(old)


def _names(document: Document, team: Team) -> set[str]:
    return {document.names[at] for at in (*(place.name for place in team.places), *team.copies)}


def _spread(base: Document, team: int, more: Sequence[Document]) -> dict[int, float]:
    """Return by place what its time differs by between bases that run the same sequence: two standard deviations."""
    sequence = _sequence(base, base.teams[team])
    alike = [own for one in more for own in one.teams if _sequence(one, own) == sequence]
    if not alike:
        return {}
    medians = np.array([[_median(own, at) for at in range(len(sequence))] for own in (base.teams[team], *alike)])
    return dict(enumerate((2 * medians.std(axis=0, ddof=1)).tolist()))


def _sequence(document: Document, team: Team) -> list[tuple[str, bool]]:
    return [(document.names[place.name], place.concurrent) for place in team.places]


def _weights(base: Document, pairs: Sequence[TeamPair]) -> list[float]:
    ranks = [len(base.teams[pair.base].ranks) for pair in pairs]
    return [count / sum(ranks) for count in ranks]


def _times(team: Team, place: int) -> Floats:
    return np.array([value for value in team.times_ns[place] if value is not None], np.float64)


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


def _add_structural(
    changes: dict[tuple[str | None, str | None, Kind], KernelChange],
    base: Document,
    new: Document,
    pair: TeamPair,
    weight: float,
    block: Block,
) -> None:
    one, other = base.teams[pair.base], new.teams[pair.new]
    kind: Kind = "replaced" if block.base and block.new else "went" if block.base else "appeared"
    before = sum(_median(one, at) for at in block.base)
    after = sum(_median(other, at) for at in block.new)
    _add(
        changes,
        _joined(base, one, block.base),
        _joined(new, other, block.new),
        kind,
        weight * before,
        weight * after,
        (list(block.base), list(block.new)),
        None,
    )


def _median(team: Team, place: int) -> float:
    times = _times(team, place)
    return float(np.median(times)) if len(times) else 0.0


def _joined(document: Document, team: Team, places: Sequence[int]) -> str | None:
    return " + ".join(document.names[team.places[at].name] for at in places) if places else None


def _add(
    changes: dict[tuple[str | None, str | None, Kind], KernelChange],
    name: str | None,
    new_name: str | None,
    kind: Kind,
    base_ns: float,
    new_ns: float,
    places: tuple[list[int], list[int]],
    p: float | None,
) -> None:
    found = changes.setdefault((name, new_name, kind), KernelChange(name, new_name, 0, 0, kind, 0.0, 0.0, p))
    found.places += len(places[0])
    found.new_places += len(places[1])
    found.indices += places[0] or places[1]
    found.base_ns += base_ns
    found.new_ns += new_ns
    if p is not None:
        found.p_adjusted = min(p, 1.0 if found.p_adjusted is None else found.p_adjusted)
