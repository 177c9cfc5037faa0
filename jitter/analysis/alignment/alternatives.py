"""Stretches of a program at which ranks do the same in different ways, as by the heads of different tasks.

No way is that of most ranks, so no operation of them is usual: each way gets places of its own in the program, and the
time of the usual rank there is that of the median rank, whichever way it goes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.grouping import by_key
from jitter.core.names.kernels import COMPUTE, uncounted_name
from jitter.core.numeric.arrays import Ints

if TYPE_CHECKING:
    from jitter.analysis.alignment.program import Operation, Signature

Part = tuple[int, str]
"""A place of a stretch, and the name of the kernel there."""
Way = tuple[int, ...]
"""The numbers of its parts."""


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

    What all have between two such stretches belongs to them, if that is not more. Those with most and longest ways are
    left out where the program would get too long, as that of layers that ranks leave out at random.

    Args:
        operations: of the program.
        counts: in how many steps each signature occurs.
        places_of: by signature the place of each of its operations.
        names_of: their names.

    """
    whole, names = sum(counts.values()), [uncounted_name(operation.name) for operation in operations]
    steps_with = [0] * len(operations)
    """By place, in how many steps it has a kernel of the operation's name."""
    for signature, places in places_of.items():
        for place, name in zip(places, names_of[signature], strict=True):
            if uncounted_name(name) == names[place]:
                steps_with[place] += counts[signature]
    is_varied = [op.kind == COMPUTE and steps < whole for op, steps in zip(operations, steps_with, strict=True)]
    stretches: list[list[range]] = []
    for varies, run in groupby(range(len(operations)), is_varied.__getitem__):
        first, *more = run
        here = range(first, first + len(more) + 1)
        if varies and stretches and _are_near(operations, stretches[-1][-1], here):
            stretches[-1].append(here)
        elif varies:
            stretches.append([here])
    ways_of, parts = [Counter[Way]() for _ in stretches], dict[Part, int]()
    number_of = _number_places(map(chain.from_iterable, stretches))
    for signature, places in places_of.items():
        taken = _ways(places, names_of[signature], number_of, parts)
        for number, ways in enumerate(ways_of):
            ways[taken.get(number, ())] += counts[signature]
    sized_stretches = [
        (sum(map(len, ways)), range(runs[0].start, runs[-1].stop))
        for runs, ways in zip(stretches, ways_of, strict=True)
        if _is_nowhere_usual(ways, whole)
    ]
    sized_stretches.sort(key=itemgetter(0))
    room = THRESHOLDS.matching.most_alternatives * len(operations)
    added = accumulate(size for size, _ in sized_stretches)
    chosen = [stretch for (_, stretch), all_added in zip(sized_stretches, added, strict=True) if all_added <= room]
    return sorted(chosen, key=attrgetter("start"))


def _is_nowhere_usual(ways: Counter[Way], whole: int) -> bool:
    """Return whether nearly all of the `whole` steps have kernels, and most of them no way in common.

    Ways of as many kernels, as other variants of the same ones, are compared place by place.
    """
    is_nowhere_usual = ways[()] <= (1 - THRESHOLDS.whole_share) * whole and 2 * max(ways.values()) <= whole
    return is_nowhere_usual and len(set(map(len, +ways))) > 1


def _are_near(operations: "Sequence[Operation]", before: range, after: range) -> bool:
    """Return whether two stretches of one stream have at most as many operations between them as they have."""
    of_both = {(operation.kind, operation.stream) for operation in operations[before.start : after.stop]}
    return len(of_both) == 1 and after.start - before.stop <= len(before) + len(after)


def _number_places(stretches: Iterable[Iterable[int]]) -> dict[int, int]:
    """Return by place the number of its stretch."""
    return {place: number for number, stretch in enumerate(stretches) for place in stretch}


def _ways(
    places: Sequence[int], names: Sequence[str], number_of: Mapping[int, int], parts: dict[Part, int]
) -> dict[int, Way]:
    """Return by number of a stretch the way that is taken there; `number_of` is by place, new `parts` get a number."""
    of_stretches = (
        (number, parts.setdefault((place, uncounted_name(name)), len(parts)))
        for place, name in zip(places, names, strict=True)
        if (number := number_of.get(place)) is not None
    )
    return {number: tuple(way) for number, way in by_key(of_stretches).items()}


def separate_alternatives(
    operations: "Sequence[Operation]",
    stretches: Sequence[range],
    places_of: "Mapping[Signature, Sequence[int]]",
    names_of: "Mapping[Signature, Sequence[str]]",
) -> Separated:
    """Give each way of these stretches places of its own; arguments are as in `find_alternatives`."""
    number_of, parts = _number_places(stretches), dict[Part, int]()
    taken_by = {
        signature: _ways(places, names_of[signature], number_of, parts) for signature, places in places_of.items()
    }
    operations_of: list[dict[Way, list[Operation]]] = [{} for _ in stretches]
    for signature, places in places_of.items():
        names = names_of[signature]
        rows_of = by_key((number_of[place], row) for row, place in enumerate(places) if place in number_of)
        for number, way in taken_by[signature].items():
            if way not in operations_of[number]:
                rows = rows_of[number]
                operations_of[number][way] = [operations[places[row]]._replace(name=names[row]) for row in rows]
    separate: list[Operation] = []
    new_place: dict[int, int] = {}
    """Of places outside the stretches, those in the new program."""
    places_of_ways: list[dict[Way, tuple[int, ...]]] = [{} for _ in stretches]
    for place, operation in enumerate(operations):
        if (number_here := number_of.get(place)) is None:
            new_place[place] = len(separate)
            separate.append(operation)
        elif place == stretches[number_here].start:
            for way, of_way in operations_of[number_here].items():
                places_of_ways[number_here][way] = tuple(range(len(separate), len(separate) + len(of_way)))
                separate += of_way
    placed: dict[Signature, Ints] = {}
    for signature, places in places_of.items():
        following = {number: iter(places_of_ways[number][way]) for number, way in taken_by[signature].items()}
        placed[signature] = np.array(
            [next(following[number_of[place]]) if place in number_of else new_place[place] for place in places],
            np.int64,
        )
    return Separated(tuple(separate), placed, tuple(tuple(ways.values()) for ways in places_of_ways))
