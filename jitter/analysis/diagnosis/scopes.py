"""Whether late ranks have something in common: a host, the same device on every host, every Nth rank."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Scope = Literal["rank", "host", "device", "ranks"]
_MOST_OF_THEM: Final = 0.6
"""A host, device or series is behind it if this part of its ranks is late."""
_LEAST_SERIES: Final = 3
_LEAST_TOGETHER: Final = 3


@dataclass(frozen=True)
class RankLocation:
    """Where a rank runs; null where the trace does not tell."""

    host: str | None
    device: int | None


@dataclass(frozen=True)
class RankGroup:
    """Late ranks that are late for one reason."""

    scope: Scope
    ranks: tuple[int, ...]
    host: str | None = None
    device: int | None = None
    every: int | None = None
    """Of a series: every how many ranks."""


def group_late_ranks(
    late: Collection[int], places: Mapping[int, RankLocation], hidden: Collection[int] = ()
) -> list[RankGroup]:
    """Divide late ranks into groups; `places` are all ranks of the run. Who shares nothing stands alone.

    But the repair of a `hidden` one alone would gain nothing, since others are as late: several of these that share
    nothing else are late together all the same.
    """
    left = set(late)
    found: list[RankGroup] = []
    candidates = _candidates(places) if len(left) > 1 else []
    for candidate in sorted(candidates, key=lambda one: -len(one.ranks)):
        own = left & set(candidate.ranks)
        # among many late ranks some are in series by chance: a series must be most of them
        least = _MOST_OF_THEM * max(len(candidate.ranks), len(late) if candidate.every is not None else 0)
        if len(own) >= 2 and len(own) >= least:
            found.append(
                RankGroup(candidate.scope, tuple(sorted(own)), candidate.host, candidate.device, candidate.every)
            )
            left -= own
    together = left & set(hidden)
    if len(together) >= _LEAST_TOGETHER:
        found.append(RankGroup("ranks", tuple(sorted(together))))
        left -= together
    return found + [RankGroup("rank", (rank,), places[rank].host, places[rank].device) for rank in sorted(left)]


def _candidates(places: Mapping[int, RankLocation]) -> list[RankGroup]:
    """All groups but those that are the whole run."""
    nodes = assign_nodes(places)
    hosts: dict[object, list[int]] = {}
    devices: dict[int, list[int]] = {}
    for rank, place in sorted(places.items()):
        if rank in nodes:
            hosts.setdefault(nodes[rank], []).append(rank)
        if place.device is not None:
            devices.setdefault(place.device, []).append(rank)
    found = []
    if len(hosts) > 1:
        found += [
            RankGroup("host", tuple(ranks), host=places[ranks[0]].host) for ranks in hosts.values() if len(ranks) > 1
        ]
        found += [
            RankGroup("device", tuple(ranks), device=device)
            for device, ranks in devices.items()
            if len({nodes[rank] for rank in ranks if rank in nodes}) > 1 and len(ranks) < len(places)
        ]
    return found + _series(sorted(places))


def assign_nodes(places: Mapping[int, RankLocation]) -> dict[int, object]:
    """Which node each rank is on: its host, or, where no trace names one, told by the ranks' device numbers.

    Ranks are numbered node after node, and devices from 0 on each: where a device number does not rise, a node begins.
    """
    if any(place.host is not None for place in places.values()):
        return {rank: place.host for rank, place in places.items() if place.host is not None}
    if any(place.device is None for place in places.values()):
        return {}
    found: dict[int, object] = {}
    node, before = -1, 0
    for rank in sorted(places):
        device = places[rank].device or 0
        node += not found or device <= before
        found[rank], before = node, device
    return found


def _series(ranks: Sequence[int]) -> list[RankGroup]:
    """Every Nth rank from some first one on."""
    found = []
    for every in range(2, len(ranks) // _LEAST_SERIES + 1):
        own: dict[int, list[int]] = {}
        for rank in ranks:
            own.setdefault(rank % every, []).append(rank)
        found += [
            RankGroup("ranks", tuple(of), every=every) for _, of in sorted(own.items()) if len(of) >= _LEAST_SERIES
        ]
    return found
