"""Teams: ranks of a cohort that exchange at the same places of their work, and so can share one program.

A cohort's kernels are alike, but pipeline stages of one cohort interleave them with their exchanges in different
orders: what waits for what differs between them. Ranks are of one team if they have as many collectives and do nearly
as much work before each.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from jitter.analysis.execution.rank_groups import Signature
from jitter.analysis.metrics.cohorts import find_commonest
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COLLECTIVE, COMPUTE
from jitter.core.numeric.arrays import Ints, KindCodes

_LIMITS: Final = THRESHOLDS.matching


def teams(
    usual: Mapping[int, Signature], cohort_of: Mapping[int, int], kinds: Mapping[Signature, KindCodes]
) -> dict[int, int]:
    """Return the team of each rank, numbered from 0.

    `usual` is the signature that each rank's steps have most often, `kinds` are the kinds of its operations.
    """
    places = {signature: _places(kinds[signature]) for signature in set(usual.values())}
    waiting = dict(usual)
    found: dict[int, int] = {}
    number = 0
    while waiting:
        cohort = min(cohort_of[rank] for rank in waiting)
        mine = {rank: signature for rank, signature in waiting.items() if cohort_of[rank] == cohort}
        commonest = find_commonest(mine)
        alike = {signature for signature in set(mine.values()) if _alike(places[signature], places[commonest])}
        own = [rank for rank, signature in mine.items() if signature in alike]
        found |= dict.fromkeys(own, number)
        for rank in own:
            del waiting[rank]
        number += 1
    return dict(sorted(found.items()))


def _places(kind: KindCodes) -> tuple[Ints, int]:
    """Return the number of compute kernels before each collective, and of all compute kernels."""
    compute = np.cumsum(kind == COMPUTE)
    return compute[kind == COLLECTIVE], int(compute[-1]) if len(compute) else 0


def _alike(one: tuple[Ints, int], other: tuple[Ints, int]) -> bool:
    apart = max(_LIMITS.same_place_kernels, _LIMITS.same_place_share * max(one[1], other[1]))
    return len(one[0]) == len(other[0]) and bool((np.abs(one[0] - other[0]) <= apart).all())
