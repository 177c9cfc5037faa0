"""Maxima that one input decides whatever the others do: most of a step's, told apart by numbers alone.

Listing the inputs of a maximum and finding its anchor takes calls with many arrays, some hundred ns each.
"""

import math

from jitter.analysis.execution.collectives.matching import CollectiveArrays
from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.numeric.compilation import compiled


@compiled
def is_latest(upper: float, lower: float, other_upper: float, other_lower: float) -> bool:
    """Return whether an input is later than another one in both settings; False where one is unknown."""
    return upper > other_upper and lower > other_lower


@compiled
def is_sole(upper: float, lower: float, other_upper: float, other_lower: float, since: float) -> bool:
    """Return whether an input, measured from its own head, leaves another one no part of the maximum.

    `since` is how much later the head is in the upper setting, ns; NaN: it is not the anchor, and the answer is False.
    """
    if not is_latest(upper, lower, other_upper, other_lower):
        return False
    return upper >= other_lower + since and lower + since >= other_upper


@compiled
def waits_for_stream(start: float, end: float, free: float) -> bool:
    """Return whether an operation runs wholly after its stream was free: then its end alone is the stream's."""
    return start >= free and end >= free


@compiled
def head_moved(
    head: int,
    rank: int,
    shift: float,
    collective: Ints,
    attendance: Ints,
    groups: Ints,
    block: Ints,
    column: Ints,
    group_at: Ints,
    moved: Floats,
) -> float:
    """Return how much later a node's head is in the upper setting, ns; NaN where the node's rank does not attend it.

    The arrays are those of `Structure` (`collective`, `attendance`, and its `group` as `groups`), `CollectiveArrays`
    (`block`, `column`, and its `group` as `group_at`) and `Heads` (`moved`); `shift` is that of the step before.
    """
    if head < 0:
        return shift
    group = groups[head]
    at = attendance[collective[group], block[rank]]
    if at < 0 or group_at[at + column[rank]] != group:
        return math.nan
    return float(moved[head])


@compiled
def is_attended(
    collective: Ints, attendance: Ints, collectives: CollectiveArrays, group: int, rank: int, by: int
) -> bool:
    """Return whether a rank, or all ranks of the group `by` unless that is -1, attend a group of a collective."""
    number = collective[group]
    low, high = (0, 1) if by < 0 else (collectives.first_in_group[by], collectives.first_in_group[by + 1])
    for index in range(low, high):
        one = rank if by < 0 else collectives.rank[collectives.by_group[index]]
        at = attendance[number, collectives.block[one]]
        if at < 0 or collectives.group[at + collectives.column[one]] != group:
            return False
    return True
