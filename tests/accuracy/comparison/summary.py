"""The pairs' scores together, and their targets."""

from collections import Counter
from collections.abc import Sequence
from statistics import median

from tests.accuracy.comparison.pairs import Score
from tests.accuracy.table import Target, share


def targets(scores: Sequence[Score]) -> list[Target]:
    """Return the promises of which pairs tell."""
    healthy = [one for one in scores if one.kind == "healthy"]
    changed = [one for one in scores if one.counts]
    sizes = [abs(one.fraction / one.truth - 1) for one in changed if one.fraction is not None]
    unequal = [not one.is_right for one in healthy]
    failed = [one.gate == "FAIL" for one in healthy]
    right = [one.is_right for one in changed]
    first = [one.first_right for one in changed]
    promises = (
        Target("pairs without a change: not `same`", share(unequal), 0.03, False, len(unequal)),
        Target("pairs without a change: exit 1", share(failed), 0.01, False, len(failed)),
        Target("change above twice the noise: verdict right", share(right), 0.98, True, len(right)),
        Target("… size wrong by (median)", median(sizes) if sizes else None, 0.10, False, len(sizes)),
        Target("… changed kernel or part first", share(first), 0.95, True, len(first)),
    )
    return [promise for promise in promises if promise.count]


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
