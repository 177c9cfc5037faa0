"""Exchanges in a ring: each rank sends to the next of its group and receives from the one before, in one kernel.

Such a kernel ends once both neighbours have come to theirs: no two ranks leave it together, and no pair of ranks is
enough to tell when it ends. On one clock, which other collectives of the group give, the time from the latest of these
arrivals to the end is then the transfer alone, and varies far less than with any fewer ranks.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from jitter.analysis.alignment.program import Program
from jitter.analysis.collectives.group_inference import TeamEnds, find_peerless
from jitter.analysis.collectives.matching import Group
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Floats, Ints

_LIMITS = THRESHOLDS.group_inference
_Attended = Mapping[int, list[tuple[int, Group | None]]]


def tell_rings(
    programs: Mapping[int, Program],
    team_of: Mapping[int, int],
    attended: _Attended,
    steps: Iterable[Mapping[int, TeamEnds]],
) -> dict[int, list[tuple[int, Group | None]]]:
    """Return each rank's (place, group), with the neighbours of exchanges that are rings.

    `steps` are some steps, by team.
    """
    peerless = find_peerless(programs, team_of, attended)
    exchanges: dict[Group, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    common: dict[Group, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, own in attended.items():
        for place, group in own:
            if group is not None and group.ranks is not None:
                (exchanges if (rank, place) in peerless else common)[group][rank].append(place)
    clocks = {
        group: shared
        for group, of_rank in exchanges.items()
        if _are_alike(group, of_rank) and (shared := _shared_places(group, common))
    }
    # groups that exchange at the same places do so alike, and some may have no rank that waits
    families: dict[tuple[object, ...], list[Group]] = defaultdict(list)
    for group in clocks:
        families[tuple((team_of[rank], *exchanges[group][rank]) for rank in group.ranks or ())].append(group)
    seen: list[list[Floats]] = [[] for _ in families]
    for step in steps if families else ():
        for family, known in zip(families.values(), seen, strict=True):
            times = [_on_one_clock(one.ranks or (), team_of, step, exchanges[one], clocks[one]) for one in family]
            whole = [one for one in times if one is not None]
            known.extend([np.stack(whole)] if len(whole) == len(family) else [])
    rings: dict[Group | None, Group] = {}
    for family, known in zip(families.values(), seen, strict=True):
        if known and (distances := _neighbours(np.stack(known))) is not None:
            rings.update({group: group._replace(waits_for=distances) for group in family})
    return {
        rank: [(place, rings[group] if group in rings and (rank, place) in peerless else group) for place, group in own]
        for rank, own in attended.items()
    }


def _are_alike(group: Group, places: Mapping[int, Sequence[int]]) -> bool:
    """Return whether all ranks of a group of three or more have as many collectives in it."""
    ranks = group.ranks or ()
    return len(ranks) > 2 and set(ranks) == places.keys() and len({len(own) for own in places.values()}) == 1


def _shared_places(
    group: Group, common: Mapping[Group, Mapping[int, Sequence[int]]]
) -> list[Mapping[int, Sequence[int]]]:
    """Return the places, by rank, of the collectives that all ranks of a group leave together."""
    return [
        places
        for other, places in common.items()
        if places.keys() >= set(group.ranks or ()) and len({len(places[rank]) for rank in group.ranks or ()}) == 1
    ]


def _on_one_clock(
    ranks: Sequence[int],
    team_of: Mapping[int, int],
    step: Mapping[int, TeamEnds],
    places: Mapping[int, Sequence[int]],
    clocks: Sequence[Mapping[int, Sequence[int]]],
) -> Floats | None:
    """Return, (start/end, exchanges, ranks), when each rank comes to its exchanges and leaves them; None if unknown."""
    found, together = [], []
    for rank in ranks:
        if team_of[rank] not in step:
            return None
        having, start, end = step[team_of[rank]]
        column = int(np.searchsorted(having, rank))
        if column == len(having) or having[column] != rank:
            return None
        own: Ints = np.asarray(places[rank], np.int64)
        found.append(np.stack([start[own, column], end[own, column]]))
        together.append(np.concatenate([end[np.asarray(one[rank], np.int64), column] for one in clocks]))
    ahead = np.stack(together, axis=1)
    times = np.stack(found, axis=2) - np.median(ahead - ahead[:, :1], axis=0)
    return None if np.isnan(times).any() else times


def _neighbours(times: Floats) -> tuple[int, ...] | None:
    """Return at which distances in its group each rank waits for others.

    None where both neighbours together explain no more than the rank itself, or one of them. Links may be slow: a rank
    whose transfers always take longer counts as such, whatever explains the waits.

    Args:
        times: (steps, groups, start/end, exchanges, ranks of a group) on the clock of each group.

    """
    start, end = times[:, :, 0], times[:, :, 1]
    best: tuple[float, tuple[int, ...]] | None = None
    for distance in range(1, (start.shape[-1] + 1) // 2):
        before, after = (np.maximum(start, np.roll(start, shift, axis=-1)) for shift in (distance, -distance))
        both = np.maximum(before, after)
        usual = np.median(end - both, axis=(0, 2), keepdims=True)
        link = usual - np.median(usual)
        own, *fewer = (_variation(end - link - arrived) for arrived in (both, before, after, start))
        is_transfer = own <= max(_LIMITS.min_wait_ns, _LIMITS.min_wait_share * float(np.median(usual)))
        is_transfer &= bool((end > both).all())
        if is_transfer and own * 2 <= min(fewer) and (best is None or own < best[0]):
            best = own, (-distance, distance)
    return None if best is None else best[1]


def _variation(took: Floats) -> float:
    """Return how far (steps, groups, exchanges, ranks) times are from the median of each exchange, on average."""
    return float(np.abs(took - np.median(took, axis=(0, 1, 3), keepdims=True)).mean())
