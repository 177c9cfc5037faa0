"""Groups late ranks that have something in common: a host, the same device on every host, every Nth rank."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from jitter.analysis.detection.significance import hypergeometric_tail
from jitter.analysis.diagnosis.model import Scope
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.grouping import by_key
from jitter.lake.rank_places import RankPlace, assign_nodes

_ROUNDING: Final = 1e-9
"""Relative error of a probability, so that equal ones compare as equal."""


@dataclass(frozen=True)
class RankGroup:
    """Late ranks that share a reason."""

    scope: Scope
    ranks: tuple[int, ...]
    host: str | None = None
    device: int | None = None
    every: int | None = None
    """For a series (every Nth rank): N."""


def group_late_ranks(
    late: Collection[int], locations: Mapping[int, RankPlace], masked: Collection[int] = ()
) -> list[RankGroup]:
    """Divide late ranks into groups; a rank that shares nothing with the others is a group of its own.

    A host, device or series is named if most of its ranks are late, and so many late ranks, drawn at random from all,
    would seldom lie so in any group of its kind.

    Args:
        late: the ranks to divide.
        locations: of all ranks of the run.
        masked: late ranks whose repair alone saves nothing because others are equally late; several that share nothing
            else form one group.

    """
    remaining = set(late)
    groups: list[RankGroup] = []
    candidates = [*_places(locations), *_series(sorted(locations), remaining)] if len(remaining) > 1 else []
    ungrouped = set(locations)
    for candidate in sorted(candidates, key=lambda group: -len(group.ranks)):
        late_here = remaining & set(candidate.ranks)
        # among many late ranks some are in series by chance: a series must be most of them
        of = max(len(candidate.ranks), len(late) if candidate.every is not None else 0)
        if len(late_here) < 2 or len(late_here) < THRESHOLDS.most_share * of:
            continue
        every = candidates if candidate.every is None else _series(sorted(locations))
        alike = [set(group.ranks) & ungrouped for group in every if group.scope == candidate.scope]
        if (
            chance_of_sharing(set(candidate.ranks) & ungrouped, remaining, alike, len(ungrouped))
            <= THRESHOLDS.max_chance
        ):
            groups.append(
                RankGroup(candidate.scope, tuple(sorted(late_here)), candidate.host, candidate.device, candidate.every)
            )
            remaining -= late_here
            ungrouped -= set(candidate.ranks)
    others = remaining & set(masked)
    if len(others) >= THRESHOLDS.min_repeats:
        groups.append(RankGroup("ranks", tuple(sorted(others))))
        remaining -= others
    single = [RankGroup("rank", (rank,), locations[rank].host, locations[rank].device) for rank in sorted(remaining)]
    return groups + single


def chance_of_sharing(
    group: Collection[int], late: Collection[int], groups: Sequence[Collection[int]], ranks: int
) -> float:
    """Return at most how likely as many random late ranks lie in any of the groups as improbably as these do in one.

    The hypergeometric tail of each group at the least count whose own tail is not above the observed one, summed.

    Args:
        group: the ranks that share something.
        late: the late ranks.
        groups: all groups of its kind, itself included.
        ranks: how many ranks there are.

    """
    drawn = len(late)
    observed = hypergeometric_tail(len(set(group) & set(late)), drawn, len(group), ranks) * (1 + _ROUNDING)
    chance = 0.0
    for size, times in Counter(map(len, groups)).items():

        def tail(count: int, size: int = size) -> float:
            return hypergeometric_tail(count, drawn, size, ranks)

        most = min(size, drawn)
        # tails fall with the count
        least = bisect_left(range(most + 1), -observed, key=lambda count: -tail(count))
        chance += times * (tail(least) if least <= most else 0.0)
    return min(chance, 1.0)


def _places(locations: Mapping[int, RankPlace]) -> list[RankGroup]:
    """Return every host and every device of the run, unless it holds all ranks."""
    nodes = assign_nodes(locations)
    hosts = by_key((nodes[rank], rank) for rank in sorted(locations) if rank in nodes)
    devices = by_key((locations[rank].device, rank) for rank in sorted(locations))
    places = []
    if len(hosts) > 1:
        places += [
            RankGroup("host", tuple(ranks), host=locations[ranks[0]].host) for ranks in hosts.values() if len(ranks) > 1
        ]
        places += [
            RankGroup("device", tuple(ranks), device=device)
            for device, ranks in devices.items()
            if device is not None
            and len({nodes[rank] for rank in ranks if rank in nodes}) > 1
            and len(ranks) < len(locations)
        ]
    return places


def _series(ranks: Sequence[int], shared_by: Collection[int] | None = None) -> list[RankGroup]:
    """Return every Nth rank from each possible first one; of some ranks, the series that two of them share."""
    series = []
    for every in range(2, len(ranks) // THRESHOLDS.min_repeats + 1):
        of_first = None if shared_by is None else Counter(rank % every for rank in shared_by)
        if of_first is not None and max(of_first.values()) < 2:
            continue
        of_remainder = by_key((rank % every, rank) for rank in ranks)
        series += [
            RankGroup("ranks", tuple(of), every=every)
            for first, of in sorted(of_remainder.items())
            if len(of) >= THRESHOLDS.min_repeats and (of_first is None or of_first[first] > 1)
        ]
    return series
