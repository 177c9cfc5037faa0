"""Events on random ranks: outliers in single steps, of which no rank has more than chance gives."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from jitter.analysis.detection.job_findings import JobFinding, join_outliers
from jitter.analysis.detection.outliers.find_outliers import Outlier
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count

_LIMITS: Final = THRESHOLDS.random_events


def split_random_events(found: Sequence[Outlier], ranks: int, steps: int) -> tuple[list[Outlier], list[JobFinding]]:
    """Join events on random ranks; return the other outliers, and the joined ones.

    An event is one step in which one rank stands out. Events are random if at least `min_random_ranks` ranks have some,
    and so many thrown at random ranks and steps would share ranks, and share steps, as often by chance.

    Args:
        found: one team's outliers of one part.
        ranks: how many ranks the team has.
        steps: how many steps the run has.

    """
    single = [one for one in found if not one.persistent]
    others = [one for one in found if one.persistent]
    events = [(one.rank, step) for one in single for step in one.steps]
    if not events or ranks < 2:
        return list(found), []
    is_even = _is_by_chance([rank for rank, _ in events], ranks, THRESHOLDS.max_chance)
    if not is_even:
        return list(found), []
    is_scattered = _is_by_chance([step for _, step in events], steps, THRESHOLDS.medium_chance)
    if len(single) >= THRESHOLDS.min_random_ranks and is_scattered and steps >= THRESHOLDS.min_steps_for_scatter:
        return others, [_random_pauses(single)]
    return list(found), []


def _random_pauses(members: Sequence[Outlier]) -> JobFinding:
    events = sum(len(one.steps) for one in members)
    told = (
        f"{format_count(events, 'event')} on {format_count(len(members), 'rank')}, each on one rank in one step: "
        "no rank has more of them than chance gives"
    )
    return join_outliers("random_pauses", members, told, min(one.chance for one in members))


def _is_by_chance(places: Sequence[int], size: int, max_chance: float) -> bool:
    """Return whether so many events thrown at so many places share places as often as these do, or more often."""
    count = min(len(places), _LIMITS.max_events)
    seen = sum(n * (n - 1) for n in Counter(places[:count]).values())
    drawn = np.random.default_rng(0).integers(0, size, (_LIMITS.draws, count))
    drawn.sort(axis=1)
    first = np.flatnonzero(np.diff(drawn, axis=1, prepend=-1))  # of each run of equal values, which ends with its row
    shared = np.diff(first, append=drawn.size)
    pairs = np.bincount(first // count, shared * (shared - 1))
    return bool((pairs >= seen).mean() > max_chance)
