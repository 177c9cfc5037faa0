"""Whether a finding recurs: the same ranks again, any rank, several ranks at once, or unknown.

A rank stands out in a step by an event (far above its own usual time), or because its usual time is above the other
ranks'. It recurs if so many of all the times that a rank stands out would seldom fall on one rank by chance. The
guide's topic `confidence` has the formulas.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from jitter.analysis.detection.significance import binomial_tail, log_binomial
from jitter.analysis.detection.standouts import Standouts
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Ints

Recurs = Literal["yes", "no", "together", "unknown"]
"""`yes`: these ranks again. `no`: any rank could be next. `together`: several ranks in one step. `unknown`: too few
steps or ranks."""


@dataclass(frozen=True)
class Recurrence:
    """The answer of the test, and what would decide it."""

    answer: Recurs
    more_steps: int | None = None
    """Steps to record beside these until an unknown recurrence can be decided; None if more steps cannot."""


def decide_recurrence(standouts: Standouts, ranks: Collection[int], seen: int) -> Recurrence:
    """Return whether a finding about these ranks recurs.

    Args:
        standouts: of the finding's team and part.
        ranks: of the finding.
        seen: steps in which it occurs.

    """
    columns = standouts.columns(ranks)
    is_late = standouts.is_countable
    steps, all_ranks = is_late.shape
    # a group recurs if most of its ranks are late at the same time
    late = is_late[:, columns].sum(axis=1) >= max(THRESHOLDS.most_share * len(columns), 1)
    others = is_late.sum(axis=1) - is_late[:, columns].sum(axis=1)
    times, elsewhere = int(late.sum()), int(np.ceil(others / max(len(columns), 1)).sum())
    share = len(columns) / all_ranks
    if times and _is_repeated(times, elsewhere, share):
        return Recurrence("yes")
    of_steps = is_late.sum(axis=1)
    events = int(of_steps.sum())
    if late.any():
        together = int(of_steps[late].max())
        if together > 1 and chance_of_repetition(together, events, 1 / steps) < THRESHOLDS.max_chance:
            return Recurrence("together")
    if is_late[:, columns].any() and is_random(is_late.sum(axis=0)):
        return Recurrence("no")
    if not times and 2 * seen > steps >= THRESHOLDS.min_steps:
        return Recurrence("unknown")  # late in most steps, and by no more than the ranks differ for ever
    return Recurrence("unknown", count_more_steps(times or max(seen, 1), elsewhere, share, steps))


def decide_repetition(times: int, elsewhere: int, share: float, steps: int) -> Recurrence:
    """Return whether ranks, or links, recur that stand out in so many steps, and the other ones `elsewhere` times.

    Args:
        times: how often they stand out.
        elsewhere: how often other ones do.
        share: of all ranks.
        steps: recorded ones.

    """
    if _is_repeated(times, elsewhere, share):
        return Recurrence("yes")
    return Recurrence("unknown", count_more_steps(times, elsewhere, share, steps))


def is_random(events: Ints, odds: float = 1.0) -> bool:
    """Return whether events, (ranks,) how many each rank has, show that any rank can have them.

    At least `min_repeats` ranks have some, the rank with the most has no more than chance gives, and nearly all ranks
    have some, or the events are at least `odds` times as likely if all ranks can have them as if only these can.
    """
    count, hit, ranks = int(events.sum()), int((events > 0).sum()), len(events)
    if hit < THRESHOLDS.min_repeats or _is_repeated(int(events.max()), count - int(events.max()), 1 / ranks):
        return False
    return hit >= THRESHOLDS.nearly_all_share * ranks or log_odds_of_all_ranks(count, hit, ranks) >= math.log(odds)


def log_odds_of_all_ranks(events: int, hit: int, ranks: int) -> float:
    """Return the logarithm of how much likelier the events are if all ranks can have them than if only some can.

    Of so many events, all on the `hit` ranks: `(1 / ranks) ^ events` against `(1 / hit) ^ events / C(ranks, hit)`.
    """
    return log_binomial(ranks, hit) + events * math.log(hit / ranks)


def count_more_steps(seen: int, elsewhere: int, share: float, steps: int) -> int | None:
    """Return how many more steps show whether ranks recur that were late in `seen` of these steps.

    If the ranks, `share` of all, go on at this rate and other ranks (`elsewhere` times late) do not. None if it takes
    more than `max_needed` times.
    """
    for needed in range(seen + 1, THRESHOLDS.max_needed + 1):
        if _is_repeated(needed, elsewhere, share):
            return max(math.ceil(needed * steps / seen), THRESHOLDS.min_steps, steps + 1) - steps
    return None


def chance_of_repetition(times: int, of: int, share: float) -> float:
    """Return the probability that chance makes so many of all times fall on one share of what they may fall on.

    The binomial tail, times how many such shares there are.

    >>> round(chance_of_repetition(3, 3, 1 / 4), 4), chance_of_repetition(2, 2, 1 / 2)
    (0.0625, 0.5)
    """
    return min(1.0, binomial_tail(times, of, share) / share)


def _is_repeated(times: int, elsewhere: int, share: float) -> bool:
    """Return whether so many of the times that ranks stand out seldom fall on one share of the ranks by chance."""
    return chance_of_repetition(times, times + elsewhere, share) < THRESHOLDS.max_chance
