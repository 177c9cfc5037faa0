"""Teams: ranks of a cohort that exchange at the same places of their work, and so can share one program.

A cohort's kernels are alike, but pipeline stages of one cohort interleave them with their exchanges in different
orders: what waits for what differs between them. Ranks are of one team if they have as many collectives, do nearly as
much work before each, and, where they exchange with neighbours, the same work: a stage that runs a forward pass where
another one runs a backward pass is of another team.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from itertools import zip_longest
from typing import Final

import numpy as np

from jitter.analysis.alignment.kernel_index import find_commonest
from jitter.analysis.alignment.program import Example, Signature
from jitter.analysis.alignment.sequences import lcs_length
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COLLECTIVE, COMPUTE
from jitter.core.numeric.arrays import Ints, KindCodes

_LIMITS: Final = THRESHOLDS.matching


def teams(
    usual: Mapping[int, Signature],
    cohort_of: Mapping[int, int],
    kinds: Mapping[Signature, KindCodes],
    example: Callable[[Signature], Example],
    cut: AbstractSet[int] = frozenset(),
) -> dict[int, int]:
    """Return the team of each rank, numbered from 0.

    `usual` is the signature that each rank's steps have most often, `kinds` are the kinds of its operations, and
    `example` returns the operations themselves. Ranks in `cut` have no whole step, so operations that they lack tell
    nothing: each joins the team of its cohort with which it shares most operations.
    """
    found = _split({rank: own for rank, own in usual.items() if rank not in cut}, cohort_of, kinds, example)
    members: dict[int, dict[int, Signature]] = {}
    for rank, team in found.items():
        members.setdefault(team, {})[rank] = usual[rank]
    alone: dict[int, Signature] = {}
    for rank in sorted(cut):
        near = [team for team, own in members.items() if cohort_of[min(own)] == cohort_of[rank]]
        if len(near) > 1:
            shared = {team: _shared(example(usual[rank]), example(find_commonest(members[team]))) for team in near}
            near = [max(near, key=shared.__getitem__)]
        if near:
            found[rank] = near[0]
        else:
            alone[rank] = usual[rank]
    more = _split(alone, cohort_of, kinds, example)
    found |= {rank: len(members) + team for rank, team in more.items()}
    return dict(sorted(found.items()))


def _shared(one: Example, other: Example) -> int:
    """Return how many operations of two ranks have the same names in the same order."""
    number: dict[str, int] = {}
    first, second = ([number.setdefault(name, len(number)) for name in own.names] for own in (one, other))
    return lcs_length(first, second)


def _split(
    usual: Mapping[int, Signature],
    cohort_of: Mapping[int, int],
    kinds: Mapping[Signature, KindCodes],
    example: Callable[[Signature], Example],
) -> dict[int, int]:
    """Return the team of each of these ranks, numbered from 0."""
    places = {signature: _places(kinds[signature]) for signature in set(usual.values())}
    waiting = dict(usual)
    found: dict[int, int] = {}
    number = 0
    while waiting:
        cohort = min(cohort_of[rank] for rank in waiting)
        mine = {rank: signature for rank, signature in waiting.items() if cohort_of[rank] == cohort}
        commonest = find_commonest(mine)
        alike = {signature for signature in set(mine.values()) if _alike(places[signature], places[commonest])}
        if len(alike) > 1 and "send_recv" in (usual_order := example(commonest)).collectives:
            alike -= {one for one in alike - {commonest} if _exchanges_differ(example(one), usual_order)}
        own = [rank for rank, signature in mine.items() if signature in alike]
        found |= dict.fromkeys(own, number)
        for rank in own:
            del waiting[rank]
        number += 1
    return found


def _places(kind: KindCodes) -> tuple[Ints, int]:
    """Return the number of compute kernels before each collective, and of all compute kernels."""
    compute = np.cumsum(kind == COMPUTE)
    return compute[kind == COLLECTIVE], int(compute[-1]) if len(compute) else 0


def _alike(one: tuple[Ints, int], other: tuple[Ints, int]) -> bool:
    apart = max(_LIMITS.same_place_kernels, _LIMITS.same_place_share * max(one[1], other[1]))
    return len(one[0]) == len(other[0]) and bool((np.abs(one[0] - other[0]) <= apart).all())


def _exchanges_differ(one: Example, other: Example) -> bool:
    """Return whether two ranks exchange in different orders: with other neighbours, or after other work."""
    return _streams_of_exchanges(one) != _streams_of_exchanges(other) or _is_reordered(one, other)


def _streams_of_exchanges(example: Example) -> list[int]:
    """Return the stream of each send and receive: a neighbour, or a direction, has a stream of its own."""
    return [
        stream
        for stream, collective in zip(example.streams, example.collectives, strict=True)
        if collective == "send_recv"
    ]


def _is_reordered(one: Example, other: Example) -> bool:
    """Return whether two ranks run some of the same kernels before different collectives.

    Kernels that only one of them runs anywhere, such as another choice of an autotuner, do not count.
    """
    ahead: Counter[str] = Counter()  # how many more kernels of a name the one has run than the other
    only_one = only_other = 0
    lacking: list[tuple[int, int]] = []  # before each collective: what only one of them has run by then
    for first, second in zip_longest(*map(_names_between_collectives, (one, other)), fillvalue=()):
        for name in first:
            only_one += ahead[name] >= 0
            only_other -= ahead[name] < 0
            ahead[name] += 1
        for name in second:
            only_one -= ahead[name] > 0
            only_other += ahead[name] <= 0
            ahead[name] -= 1
        lacking.append((only_one, only_other))
    return any(
        min(before_one - only_one, before_other - only_other) > _LIMITS.same_place_kernels
        for before_one, before_other in lacking
    )


def _names_between_collectives(example: Example) -> list[list[str]]:
    """Return the names of the compute kernels before each collective, and after the last one."""
    found: list[list[str]] = [[]]
    for kind, name in zip(example.kind, example.names, strict=True):
        if kind == COLLECTIVE:
            found.append([])
        elif kind == COMPUTE:
            found[-1].append(name)
    return found
