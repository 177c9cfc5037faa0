"""The pairs' scores together, and their targets."""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from tests.accuracy.comparison.pairs import Score


class Target(NamedTuple):
    """One promise about the pairs."""

    text: str
    value: float | None
    """None where no pair tells."""
    limit: float
    at_most: bool

    @property
    def is_met(self) -> bool:
        """Whether the value keeps the limit."""
        return self.value is None or (self.value <= self.limit if self.at_most else self.value >= self.limit)

    def __str__(self) -> str:
        value = "-" if self.value is None else f"{100 * self.value:.1f}%"
        word = "at most" if self.at_most else "at least"
        return f"{'ok    ' if self.is_met else 'MISSED'} {self.text:58} {value:>7} ({word} {100 * self.limit:g}%)"


def targets(scores: Sequence[Score]) -> list[Target]:
    """Return the promises with their values."""
    healthy = [one for one in scores if one.kind == "healthy"]
    changed = [one for one in scores if one.counts]
    sizes = [abs(one.fraction / one.truth - 1) for one in changed if one.fraction is not None]
    return [
        Target("pairs without a change: not `same`", _share(healthy, lambda one: not one.is_right), 0.03, True),
        Target("pairs without a change: exit 1", _share(healthy, lambda one: one.gate == "FAIL"), 0.01, True),
        Target("pairs with a change above twice the noise: verdict right", _share(changed, _right), 0.98, False),
        Target("… size wrong by (median)", median(sizes) if sizes else None, 0.10, True),
        Target("… changed kernel or part first", _share(changed, lambda one: one.first_right), 0.95, False),
    ]


def _right(one: Score) -> bool:
    return one.is_right


def _share(scores: Sequence[Score], holds: "object") -> float | None:
    return sum(bool(holds(one)) for one in scores) / len(scores) if scores else None  # type: ignore[operator]


def describe(scores: Sequence[Score]) -> list[str]:
    """Return lines: the pairs that went wrong, counts by kind and shape, the promises."""
    wrong = [one for one in scores if (one.kind == "healthy" and not one.is_right) or one.counts]
    wrong = [one for one in wrong if not (one.is_right and one.first_right) or one.kind == "healthy"]
    lines = [
        f"{one.seed} {one.shape} {one.kind}: truth {100 * one.truth:+.2f}%, {one.gate}; {one.about}" for one in wrong
    ]
    counted = Counter(one.kind for one in scores)
    exceeding = Counter(one.kind for one in scores if one.counts)
    lines += [
        "",
        *(f"{kind:10} {count:4} pairs, {exceeding[kind]:4} above twice the noise" for kind, count in counted.items()),
    ]
    return [*lines, "", *map(str, targets(scores))]
