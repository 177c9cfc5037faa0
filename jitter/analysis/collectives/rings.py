"""Exchanges in a ring, or in a line: each rank exchanges with the one before and the next of its group in one kernel.

Such a kernel ends once both neighbours have come to theirs: no two ranks leave it together, and no pair of ranks is
enough to tell when it ends. On one clock, which other collectives of the group give, the time from the latest of these
arrivals to the end is then the transfer alone, and varies far less than with any fewer ranks. In a stated group with
unrecorded ranks those tell it whose neighbours are recorded.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

import numpy as np

from jitter.analysis.alignment.program import Program
from jitter.analysis.collectives.exchange_matching import varying_transfer_ns
from jitter.analysis.collectives.group_inference import TeamEnds, find_unnamed_peers
from jitter.analysis.collectives.leaving_together import regular_groups
from jitter.analysis.collectives.matching import Attended, Group
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.stats import known_median, known_medians

_LIMITS: Final = THRESHOLDS.group_inference
_NEIGHBOURHOOD: Final = 3
"""A rank and both neighbours."""


def tell_rings(
    programs: Mapping[int, Program],
    team_of: Mapping[int, int],
    attended: Attended,
    steps: Iterable[Mapping[int, TeamEnds]],
) -> Attended:
    """Return each rank's (place, group), with the neighbours of exchanges that are rings.

    `steps` are some steps, by team.
    """
    peerless = find_unnamed_peers(programs, team_of, attended)
    exchanges: dict[Group, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    common: dict[Group, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, attendances in attended.items():
        for place, group in attendances:
            if group is not None and group.ranks is not None:
                (exchanges if (rank, place) in peerless else common)[group][rank].append(place)
    clocks = {
        group: shared
        for group, of_rank in exchanges.items()
        if _are_alike(group, of_rank, team_of.keys()) and (shared := _shared_places(of_rank.keys(), common))
    }
    # groups that exchange at the same places do so alike, and some may have no rank that waits
    families: dict[tuple[object, ...], list[Group]] = defaultdict(list)
    for group in clocks:
        places = [(team_of[rank], *exchanges[group][rank]) for rank in group.ranks or () if rank in exchanges[group]]
        families[len(group.ranks or ()), *dict.fromkeys(places)].append(group)
    seen: list[list[Floats]] = [[] for _ in families]
    for step in steps if families else ():
        for family, family_times in zip(families.values(), seen, strict=True):
            times = [
                _on_one_clock(group.ranks or (), team_of, step, exchanges[group], clocks[group]) for group in family
            ]
            whole = [group_times for group_times in times if group_times is not None]
            family_times.extend([np.stack(whole)] if len(whole) == len(family) else [])
    rings: dict[Group | None, Group] = {}
    for family, family_times in zip(families.values(), seen, strict=True):
        # the one that more ranks can tell, as their neighbours are recorded; of two that as many can, the better fit
        fitting = [
            (-_count_known(family_times[0], is_open=is_open), variation_ns, is_open)
            for is_open in (False, True)
            if family_times and (variation_ns := _vary(np.stack(family_times), is_open=is_open)) is not None
        ]
        if fitting:
            rings.update({group: group._replace(is_ring=True, is_open=min(fitting)[-1]) for group in family})
    return {
        rank: [
            (place, rings[group] if group in rings and (rank, place) in peerless else group)
            for place, group in attendances
        ]
        for rank, attendances in attended.items()
    }


def tell_unstated_rings(
    programs: Mapping[int, Program],
    attended: Attended,
    inferred: Attended,
    team_of: Mapping[int, int],
    steps: Iterable[Mapping[int, TeamEnds]],
) -> Attended:
    """Return each rank's (place, group) with rings where no rank states the group of its exchanges.

    Rings of a job are ranks at equal distances, as its groups are: of those that fit, the rings that fit best.

    Args:
        programs: of each team.
        attended: each rank's (place, group) as stated.
        inferred: the same with inferred groups; those of other collectives give the clocks.
        team_of: the team of each rank.
        steps: some steps, by team.

    """
    of_team = {
        team: {place for place, operation in enumerate(program.operations) if operation.is_exchange}
        for team, program in programs.items()
    }
    if not all(of_team[team_of[rank]] for rank in attended):
        return inferred
    exchanges = {
        rank: [place for place, group in attendances if group is None and place in of_team[team_of[rank]]]
        for rank, attendances in attended.items()
    }
    common: dict[Group, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, attendances in inferred.items():
        for place, group in attendances:
            if group is not None and place not in of_team[team_of[rank]]:
                common[group][rank].append(place)
    every = Group(tuple(sorted(exchanges)))
    clocks = (
        _shared_places(exchanges.keys(), common)
        if _are_alike(every, exchanges, team_of.keys()) and all(exchanges.values())
        else []
    )
    ranks = every.ranks or ()
    seen = [_on_one_clock(ranks, team_of, step, exchanges, clocks) for step in (steps if clocks else ())]
    known_times = [times for times in seen if times is not None]
    if not known_times:
        return inferred
    times = np.stack(known_times)[:: -(-len(known_times) // THRESHOLDS.few_steps)]
    times = times[:, :, :: -(-times.shape[2] // THRESHOLDS.max_tried)]
    fitting = [
        (variation_ns, rings.tolist())
        for rings in regular_groups(len(ranks), _NEIGHBOURHOOD)
        if (variation_ns := _vary(times[..., rings].transpose(0, 3, 1, 2, 4))) is not None
    ]
    members = [tuple(ranks[at] for at in ring) for ring in min(fitting)[1]] if fitting else []
    group_of = {rank: Group(ring, is_ring=True) for ring in members for rank in ring}
    return {
        rank: [
            (place, group_of[rank] if group_of and place in exchanges[rank] else group) for place, group in attendances
        ]
        for rank, attendances in inferred.items()
    }


def _are_alike(group: Group, places: Mapping[int, Sequence[int]], recorded: Set[int]) -> bool:
    """Return whether three or more ranks of a group are recorded, and all of these have as many collectives in it."""
    return (
        len(places) >= _NEIGHBOURHOOD
        and places.keys() == set(group.ranks or ()) & recorded
        and len({len(rank_places) for rank_places in places.values()}) == 1
    )


def _shared_places(
    ranks: Set[int], common: Mapping[Group, Mapping[int, Sequence[int]]]
) -> list[Mapping[int, Sequence[int]]]:
    """Return the places, by rank, of the collectives that all these ranks leave together."""
    return [
        places
        for places in common.values()
        if places.keys() >= ranks and len({len(places[rank]) for rank in ranks}) == 1
    ]


def _on_one_clock(
    ranks: Sequence[int],
    team_of: Mapping[int, int],
    step: Mapping[int, TeamEnds],
    places: Mapping[int, Sequence[int]],
    clocks: Sequence[Mapping[int, Sequence[int]]],
) -> Floats | None:
    """Return, (start/end, exchanges, ranks), when each rank comes to its exchanges and leaves them; None if unknown.

    NaN for ranks without a recording, which have no `places`.
    """
    is_recorded: Bools = np.array([rank in places for rank in ranks])
    exchange_times, together = [], []
    for rank in (rank for rank in ranks if rank in places):
        if team_of[rank] not in step:
            return None
        having, start, end = step[team_of[rank]]
        column = int(np.searchsorted(having, rank))
        if column == len(having) or having[column] != rank:
            return None
        rank_places: Ints = np.asarray(places[rank], np.int64)
        exchange_times.append(np.stack([start[rank_places, column], end[rank_places, column]]))
        together.append(np.concatenate([end[np.asarray(clock[rank], np.int64), column] for clock in clocks]))
    ahead = np.stack(together, axis=1)
    recorded = np.stack(exchange_times, axis=2) - np.median(ahead - ahead[:, :1], axis=0)
    times = np.full((*recorded.shape[:2], len(ranks)), np.nan)
    times[..., is_recorded] = recorded
    return None if np.isnan(recorded).any() else times


def _vary(times: Floats, *, is_open: bool = False) -> float | None:
    """Return how far the transfers of rings vary, ns, on average.

    None where both neighbours explain no more than the rank itself, or one of them, or no less than the whole group:
    these are no rings. Links may be slow: a rank whose transfers always take longer counts as such, whatever explains
    the waits.

    Args:
        times: (steps, groups, start/end, exchanges, ranks of a group) on the clock of each group; NaN: not recorded.
        is_open: whether the first and the last rank do not exchange with each other.

    """
    start, end = times[:, :, 0], times[:, :, 1]
    if start.shape[0] * start.shape[2] < THRESHOLDS.min_repeats:
        return None
    before, after = _up_to_neighbours(start, is_open=is_open)
    both, whole = np.maximum(before, after), np.fmax.reduce(start, axis=-1, keepdims=True)
    end = np.where(np.isnan(both), np.nan, end)
    if np.isnan(end).all() or (end <= both).any():
        return None
    links = _links(end - both)
    variation_ns, *fewer = (_variation(end - arrived - links) for arrived in (both, before, after, start))
    if variation_ns > varying_transfer_ns(known_median(end - both)) or variation_ns * 2 > min(fewer):
        return None
    is_whole = start.shape[-1] > _NEIGHBOURHOOD and not (end <= whole).any()
    return None if is_whole and _variation(end - whole - _links(end - whole)) <= variation_ns else variation_ns


def _up_to_neighbours(start: Floats, *, is_open: bool) -> tuple[Floats, Floats]:
    """Return (…, ranks) when a rank and the one before it have started, and it and the next; NaN where one has none."""
    before, after = np.roll(start, 1, axis=-1), np.roll(start, -1, axis=-1)
    if is_open:
        before[..., 0] = after[..., -1] = -np.inf
    return np.maximum(start, before), np.maximum(start, after)


def _count_known(times: Floats, *, is_open: bool) -> int:
    """Return how many ranks have all their neighbours recorded; `times` are those of one step, as in `_vary`."""
    known: Bools = ~np.isnan(sum(_up_to_neighbours(times[:, 0, 0], is_open=is_open)))
    return int(known.sum())


def _links(transfer: Floats) -> Floats:
    """Return, (1, groups, 1, ranks), by how much longer than usual each rank's transfers always take."""
    usual = known_medians(np.moveaxis(transfer, 2, 1).reshape(-1, *transfer.shape[1::2]))
    extra_ns: Floats = (usual - known_median(usual))[None, :, None]
    return extra_ns


def _variation(took: Floats) -> float:
    """Return how far (steps, groups, exchanges, ranks) times are from the usual of each exchange, on average.

    Times the usual ratio to that of a step and group: the messages of one may be longer than those of another.
    """
    steps, groups, exchanges, _ = took.shape
    by_exchange = np.moveaxis(took, 2, 0).reshape(exchanges, -1)
    usual = np.maximum(known_medians(by_exchange, axis=1), _LIMITS.resolution_ns)[:, None]
    ratio = known_medians((took / usual).reshape(steps * groups, -1), axis=1).reshape(steps, groups, 1, 1)
    return float(np.nanmean(np.abs(took - usual * ratio)))
