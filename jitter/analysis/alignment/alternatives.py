"""Stretches of a program at which ranks do the same in different ways, as by the heads of different tasks.

No way is that of most ranks, so no operation of them is usual: each way gets places of its own in the program, and the
time of the usual rank there is that of the median rank, whichever way it goes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COMPUTE, uncounted_name
from jitter.core.numeric.arrays import Ints

if TYPE_CHECKING:
    from jitter.analysis.alignment.program import Operation, Signature

Way = tuple[tuple[int, str], ...]
"""The places that it takes of a stretch, and the names of its kernels there."""


class Separated(NamedTuple):
    """A program in which each way to do what a stretch does has places of its own, one after the other."""

    operations: "tuple[Operation, ...]"
    places: "dict[Signature, Ints]"
    """By signature the place of each of its operations."""
    alternatives: tuple[tuple[tuple[int, ...], ...], ...]
    """By stretch the places of each way."""


def find_alternatives(
    operations: "Sequence[Operation]",
    counts: "Mapping[Signature, int]",
    places_of: "Mapping[Signature, Sequence[int]]",
    names_of: "Mapping[Signature, Sequence[str]]",
) -> list[range]:
    """Return the stretches of one stream at which nearly all steps have kernels, and most of them no way in common.

    What all have between two such stretches belongs to them, if that is not more.

    Args:
        operations: of the program.
        counts: in how many steps each signature occurs.
        places_of: by signature the place of each of its operations.
        names_of: their names.

    """
    whole, steps_with = sum(counts.values()), [Counter[str]() for _ in operations]
    """By place, in how many steps it has a kernel of this name."""
    for signature, places in places_of.items():
        for place, name in zip(places, names_of[signature], strict=True):
            steps_with[place][uncounted_name(name)] += counts[signature]
    is_varied = [op.kind == COMPUTE and max(of.values()) < whole for op, of in zip(operations, steps_with, strict=True)]
    stretches: list[list[range]] = []
    for varies, run in groupby(range(len(operations)), is_varied.__getitem__):
        first, *more = run
        here = range(first, first + len(more) + 1)
        if varies and stretches and _are_near(operations, stretches[-1][-1], here):
            stretches[-1].append(here)
        elif varies:
            stretches.append([here])
    found = []
    for runs in stretches:
        varied, ways = frozenset(chain.from_iterable(runs)), Counter[Way]()
        for signature, places in places_of.items():
            ways[_way(places, names_of[signature], varied)] += counts[signature]
        is_nowhere_usual = ways[()] <= (1 - THRESHOLDS.whole_share) * whole and 2 * max(ways.values()) <= whole
        # ways of as many kernels, as other variants of the same ones, are compared place by place
        if is_nowhere_usual and len(set(map(len, +ways))) > 1:
            found.append(range(runs[0].start, runs[-1].stop))
    return found


def _are_near(operations: "Sequence[Operation]", before: range, after: range) -> bool:
    """Return whether two stretches of one stream have at most as many operations between them as they have."""
    of_both = {(operation.kind, operation.stream) for operation in operations[before.start : after.stop]}
    return len(of_both) == 1 and after.start - before.stop <= len(before) + len(after)


def _way(places: Sequence[int], names: Sequence[str], stretch: range | frozenset[int]) -> Way:
    of_operations = zip(places, names, strict=True)
    return tuple((place, uncounted_name(name)) for place, name in of_operations if place in stretch)


def separate_alternatives(
    operations: "Sequence[Operation]",
    stretches: Sequence[range],
    places_of: "Mapping[Signature, Sequence[int]]",
    names_of: "Mapping[Signature, Sequence[str]]",
) -> Separated:
    """Give each way of these stretches places of its own; arguments are as in `find_alternatives`."""
    separate: list[Operation] = []
    number: dict[int, int] = {}
    """Of places outside the stretches, those in the new program."""
    placed = {signature: np.full(len(places), -1, np.int64) for signature, places in places_of.items()}
    alternatives: list[tuple[tuple[int, ...], ...]] = []
    begin_of = {stretch.start: stretch for stretch in stretches}
    within = frozenset(chain.from_iterable(stretches))
    for place, operation in enumerate(operations):
        if place in begin_of:
            ways: dict[Way, tuple[int, ...]] = {}
            for signature, places in places_of.items():
                names, stretch = names_of[signature], begin_of[place]
                rows = [row for row, there in enumerate(places) if there in stretch]
                if (way := _way(places, names, stretch)) not in ways:
                    ways[way] = tuple(range(len(separate), len(separate) + len(rows)))
                    separate += [operations[places[row]]._replace(name=names[row]) for row in rows]
                placed[signature][rows] = ways[way]
            alternatives.append(tuple(filter(None, ways.values())))
        elif place not in within:
            number[place] = len(separate)
            separate.append(operation)
    for signature, places in places_of.items():
        for row, there in enumerate(places):
            if there in number:
                placed[signature][row] = number[there]
    return Separated(tuple(separate), placed, tuple(alternatives))
