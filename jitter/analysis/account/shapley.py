"""Shapley values of a maximum between two settings: whose change moved it, shared equally where several moved it alike.

For inputs with the values r_i in one setting and b_i in the other, the game is v(S) = max(r_i for i in S, b_i for the
others). At a level t at which no input is above in both settings, let p inputs be above in r only and q in b only. Each
of the p gets q! (p − 1)! / (p + q)! dt, each of the q gets −(q − 1)! p! / (p + q)! dt. (Shapley 1953; for q = 0 the
airport game of Littlechild and Owen 1973.)
"""

import math
from math import exp, lgamma

from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.numeric.compilation import compiled


@compiled
def divide_maximum(  # noqa: PLR0912  # one formula
    count: int, upper: Floats, lower: Floats, shift: float, factor: Floats, order: Ints
) -> float:
    """Divide the change of a maximum among its inputs; return the part of a multiplier that goes to the anchor.

    The maximum is measured from an anchor that differs by `shift` between the settings: an input that differs by as
    much has not changed. A change of the maximum by its multiplier is one of input i by `factor[i]` times it.

    Args:
        count: the number of inputs, at least 1.
        upper: (count or more,) the inputs in the setting whose change is divided, ns.
        lower: likewise in the other setting.
        shift: how much greater the anchor is in the first setting, ns.
        factor: (count or more,) is filled.
        order: (count or more,) is overwritten.

    """
    highest, level = 0, -math.inf
    for at in range(count):
        factor[at] = 0.0
        least = min(upper[at], lower[at] + shift)
        if least > level:
            highest, level = at, least
    others = -math.inf
    for at in range(count):
        if at != highest:
            others = max(others, upper[at], lower[at] + shift)
    if others <= level:  # it is the maximum whatever the others do
        factor[highest] = 1.0
        return 0.0
    active, rising, falling = 0, 0, 0
    for at in range(count):
        if max(upper[at], lower[at] + shift) > level:
            order[active] = at
            active += 1
            if upper[at] > lower[at] + shift:
                rising += 1
            else:
                falling += 1
    sort_by_height(active, upper, lower, shift, order)
    gained, lost, anchored = 0.0, 0.0, 1.0
    for position in range(active):
        at = order[position]
        height = max(upper[at], lower[at] + shift)
        if height > level:
            if rising > 0:
                gained += (height - level) * weight_of_one(rising, falling)
            if falling > 0:
                lost += (height - level) * weight_of_one(falling, rising)
            level = height
        change = upper[at] - lower[at] - shift
        if change > 0:
            factor[at] = gained / change
            rising -= 1
        else:
            factor[at] = -lost / change
            falling -= 1
        anchored -= factor[at]
    return anchored


@compiled
def shapley_value(values: Floats, players: int, player: int) -> float:
    """Return the Shapley value of a player in a game of few players, whose `values` are by subset (bits)."""
    value = 0.0
    for subset in range(1 << players):
        if not subset >> player & 1:
            size = 0
            for bit in range(players):
                size += subset >> bit & 1
            value += (values[subset | 1 << player] - values[subset]) * weight_of_one(size + 1, players - 1 - size)
    return value


@compiled
def weight_of_one(alike: int, opposed: int) -> float:
    """Return opposed! (alike − 1)! / (alike + opposed)!, one input's part of a level."""
    if opposed == 0:
        return 1.0 / alike
    return exp(lgamma(alike) + lgamma(opposed + 1.0) - lgamma(alike + opposed + 1.0))


@compiled
def sort_by_height(count: int, upper: Floats, lower: Floats, shift: float, order: Ints) -> None:
    """Sort the first `count` inputs of `order` by their greater value, ascending (Shell's sort)."""
    gap = count // 2
    while gap > 0:
        for at in range(gap, count):
            moving = order[at]
            height = max(upper[moving], lower[moving] + shift)
            to = at
            while to >= gap:
                before = order[to - gap]
                if max(upper[before], lower[before] + shift) <= height:
                    break
                order[to] = before
                to -= gap
            order[to] = moving
        gap = gap // 2 if gap != 2 else 1
