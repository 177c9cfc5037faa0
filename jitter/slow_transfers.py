"""Collectives that take long from the last arrival to their end: in some steps, or in some groups all along."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jitter.deviations import scatter
from jitter.meetings import Meetings
from jitter.sheets import Floats
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


def slow_transfers(
    meetings: Meetings,
    seen: Sequence[Mapping[int, Floats]],
    usual: Mapping[int, float],
    step_ns: Floats,
    limits: Limits,
) -> list[SlowTransfers]:
    """Find them; `seen` are each step's transfers by meeting, (groups,) ns, `usual` their medians.

    First those of all ranks in some steps; then those of some groups, in the other steps.
    """
    late = {
        number: np.stack([step[number] - usual[number] for step in seen]) for number in range(len(meetings.meetings))
    }
    families = _families(meetings)
    everyone = frozenset(rank for groups in families for group in groups for rank in group)
    all_meetings = [number for members in families.values() for number, _ in members]
    found = []
    if len(all_meetings) > 1 and (len(families) > 1 or len(next(iter(families))) > 1):
        total = np.nansum([np.nanmedian(late[number], axis=1) for number in all_meetings], axis=0)[:, None]
        every = tuple((number, group) for number in all_meetings for group in range(late[number].shape[1]))
        one = _outside(total, [late[number] for number in all_meetings], 0, step_ns, limits)
        if one is not None:
            found.append(SlowTransfers(everyone, every, *one))
    elsewhere = np.ones(len(seen), np.bool_)
    for slow in found:
        elsewhere[list(slow.steps)] = False
    for groups, members in families.items():
        # (steps, groups), meeting after meeting
        own = [late[number][:, order] for number, order in members]
        total = np.nansum(np.stack(own), axis=0)
        for column, ranks in enumerate(groups):
            one = _outside(total[elsewhere], own, column, step_ns, limits)
            if one is not None:
                steps, excess, sigmas = one
                numbered = tuple(np.flatnonzero(elsewhere)[list(steps)].tolist())
                which = tuple((number, int(order[column])) for number, order in members)
                found.append(SlowTransfers(ranks, which, numbered, excess, sigmas))
    return found


def _outside(
    total: Floats, late: Sequence[Floats], column: int, step_ns: Floats, limits: Limits
) -> tuple[tuple[int, ...], float, float] | None:
    """The steps in which a column of totals (steps, groups) leaves the noise, its excess there, how many sigmas."""
    if not len(total):
        return None
    usual_step = float(np.nanmedian(step_ns)) if not np.isnan(step_ns).all() else 0.0
    chance = float(np.sqrt(sum((_TO_SIGMA * np.nanmedian(np.abs(one))) ** 2 for one in late)))
    noise = max(chance, scatter(total), 1.0)
    own = total[:, column]
    outside = own >= limits.sigmas * noise
    mean, spread = float(own.mean()), noise / np.sqrt(len(own))
    if len(own) > 1 and mean >= limits.run_sigmas * spread and np.median(own) >= mean / 2:
        outside = np.ones(len(own), np.bool_)
    excess = float(own[outside].sum())
    if not outside.any() or excess < limits.worth_replaying * usual_step * outside.sum():
        return None
    return tuple(np.flatnonzero(outside).tolist()), excess, float(own[outside].max() / noise)


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
