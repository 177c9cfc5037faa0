"""Collectives that take long from the last arrival to their end: in some steps, or in some groups all along."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jitter.cells import Floats
from jitter.deviations import spread_of
from jitter.meetings import Meetings
from jitter.suspects import Limits

_TO_SIGMA = 1.4826


@dataclass(frozen=True)
class SlowTransfers:
    """Collectives of one set of ranks that took longer than theirs usually take."""

    ranks: frozenset[int]
    meetings: tuple[tuple[int, int], ...]
    """(meeting, group) of all the collectives of these ranks."""
    steps: tuple[int, ...]
    excess_ns: float
    sigmas: float
    whole: bool
    """Whether these are all ranks of the meetings: then there is no other group to compare with."""


def slow_transfers(
    meetings: Meetings,
    seen: Sequence[Mapping[int, Floats]],
    usual: Mapping[int, float],
    step_ns: Floats,
    limits: Limits,
) -> list[SlowTransfers]:
    """Find them; `seen` are each step's transfers by meeting, (groups,) ns, `usual` their medians."""
    families = _families(meetings)
    usual_step = float(np.nanmedian(step_ns)) if not np.isnan(step_ns).all() else 0.0
    found = []
    for groups, members in families.items():
        # (steps, groups), meeting after meeting: how much longer than usual
        late = [np.stack([step[number][order] - usual[number] for step in seen]) for number, order in members]
        total = np.nansum(np.stack(late), axis=0)
        chance = float(np.sqrt(sum((_TO_SIGMA * np.nanmedian(np.abs(one))) ** 2 for one in late)))
        noise = max(chance, _seen_spread(total), 1.0)
        for column, ranks in enumerate(groups):
            own = total[:, column]
            outside = own >= limits.sigmas * noise
            mean, spread = float(own.mean()), noise / np.sqrt(len(own))
            if len(own) > 1 and mean >= limits.run_sigmas * spread and np.median(own) >= mean / 2:
                outside = np.ones(len(own), np.bool_)
            excess = float(own[outside].sum())
            if outside.any() and excess >= limits.worth_replaying * usual_step * outside.sum():
                found.append(
                    SlowTransfers(
                        ranks,
                        tuple((number, int(order[column])) for number, order in members),
                        tuple(np.flatnonzero(outside).tolist()),
                        excess,
                        float(own[outside].max() / noise),
                        len(groups) == 1,
                    )
                )
    return found


def _families(
    meetings: Meetings,
) -> dict[tuple[frozenset[int], ...], list[tuple[int, np.ndarray]]]:
    """Meetings that divide the same ranks into the same groups, with each one's numbers of these groups."""
    found: dict[tuple[frozenset[int], ...], list[tuple[int, np.ndarray]]] = {}
    for number, meeting in enumerate(meetings.meetings):
        ranks: dict[int, set[int]] = {}
        for member in meeting.members:
            for rank, group in zip(meetings.blocks[member.block].ranks, member.group.tolist(), strict=True):
                ranks.setdefault(group, set()).add(rank)
        if any(len(group) < 2 for group in ranks.values()):
            continue  # one rank alone exchanges with ranks that were not recorded
        ordered = sorted(ranks, key=lambda group: min(ranks[group]))
        key = tuple(frozenset(ranks[group]) for group in ordered)
        found.setdefault(key, []).append((number, np.array(ordered)))
    return found


def _seen_spread(total: Floats) -> float:
    steps, groups = total.shape
    if steps < 3:
        return spread_of(total) if groups > 3 else 0.0
    return spread_of(total - np.median(total, axis=0, keepdims=True))


def behind(slow: Sequence[SlowTransfers], meetings: Meetings) -> list[tuple[frozenset[int], list[SlowTransfers]]]:
    """Whose links they are: ranks that all slow groups share, and no other group has.

    Returns (ranks, the slow transfers that they explain). A rank in a slow group of every family it belongs to is
    behind them; where that leaves no one, each group answers for itself.
    """
    left = list(slow)
    explained = []
    while left:
        worst = max(left, key=lambda one: one.excess_ns)
        same = [one for one in left if set(one.steps) & set(worst.steps) and one.ranks & worst.ranks]
        shared = frozenset.intersection(*(one.ranks for one in same))
        if not shared:
            same, shared = [worst], worst.ranks
        explained.append((shared, same))
        left = [one for one in left if one not in same]
    return explained
