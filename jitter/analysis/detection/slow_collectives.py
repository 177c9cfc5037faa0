"""Collectives that take long from the last arrival to their end: in some steps, or in some groups in all steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jitter.analysis.detection.deviations import estimate_sigma
from jitter.analysis.detection.thresholds import Thresholds
from jitter.analysis.execution.collectives import Meetings
from jitter.analysis.execution.time_part import TimePart
from jitter.core.arrays import Floats, Ints
from jitter.core.stats import MAD_TO_SIGMA


@dataclass(frozen=True)
class SlowCollectives:
    """Collectives of one set of ranks that took longer than their baseline."""

    ranks: frozenset[int]
    meetings: tuple[tuple[int, int], ...]
    """(meeting, group) of each collective of these ranks."""
    steps: tuple[int, ...]
    excess_ns: float
    sigmas: float


@dataclass(frozen=True)
class SlowCommunication:
    """Ranks whose links explain slow collectives, and those collectives."""

    ranks: frozenset[int]
    slow: tuple[SlowCollectives, ...]

    @property
    def steps(self) -> tuple[int, ...]:
        """Positions of the steps in which any of the collectives is slow."""
        return tuple(sorted({step for one in self.slow for step in one.steps}))

    @property
    def meetings(self) -> tuple[tuple[int, int], ...]:
        """(meeting, group) of each of the collectives."""
        return tuple(which for one in self.slow for which in one.meetings)

    @property
    def part(self) -> TimePart:
        """The part of time its excess is in."""
        return TimePart.TRANSFER

    @property
    def excess_ns(self) -> float:
        """The time of the collectives above their baseline, summed."""
        return sum(one.excess_ns for one in self.slow)

    @property
    def sigmas(self) -> float:
        """The excess of the worst collective, in standard deviations of the noise."""
        return max(one.sigmas for one in self.slow)


def find_slow_collectives(
    meetings: Meetings,
    seen: Sequence[Mapping[int, Floats]],
    usual: Mapping[int, float],
    step_ns: Floats,
    thresholds: Thresholds,
) -> list[SlowCollectives]:
    """Return slow collectives: first those of all ranks in some steps, then those of some groups in the other steps.

    Args:
        meetings: the run's collectives.
        seen: each step's transfers by meeting, (groups,) ns.
        usual: the baseline of each meeting's transfer, ns.
        step_ns: (steps,) each step's time, NaN where unknown.
        thresholds: what counts as slow.

    """
    late = {
        number: np.stack([step[number] - usual[number] for step in seen]) for number in range(len(meetings.meetings))
    }
    families = _families(meetings)
    found = []
    everywhere = _everywhere(families, late, step_ns, thresholds)
    if everywhere is not None:
        everyone = frozenset(rank for groups in families for group in groups for rank in group)
        every = tuple(
            (number, group)
            for members in families.values()
            for number, _ in members
            for group in range(late[number].shape[1])
        )
        found.append(SlowCollectives(everyone, every, *everywhere))
    elsewhere = np.ones(len(seen), np.bool_)
    for slow in found:
        elsewhere[list(slow.steps)] = False
    for groups, members in families.items():
        # (steps, groups), meeting after meeting
        own = [late[number][:, order] for number, order in members]
        total = np.nansum(np.stack(own), axis=0)
        for column, ranks in enumerate(groups):
            one = _outside(total[elsewhere], own, column, step_ns, thresholds)
            if one is not None:
                steps, excess, sigmas = one
                numbered = tuple(np.flatnonzero(elsewhere)[list(steps)].tolist())
                which = tuple((number, int(order[column])) for number, order in members)
                found.append(SlowCollectives(ranks, which, numbered, excess, sigmas))
    return found


def _everywhere(
    families: Mapping[tuple[frozenset[int], ...], Sequence[tuple[int, Ints]]],
    late: Mapping[int, Floats],
    step_ns: Floats,
    thresholds: Thresholds,
) -> tuple[tuple[int, ...], float, float] | None:
    """Return the steps in which the collectives of nearly all groups are slow, the excess, and its sigmas."""
    if sum(len(groups) for groups in families) < 2:
        return None  # with one group, all ranks and the group are the same
    steps: set[int] | None = None
    sigmas, total = np.inf, np.zeros(len(step_ns))
    for groups, members in families.items():
        own = [late[number][:, order] for number, order in members]
        # a slow link slows the groups of its rank; a slow network slows the least affected quarter of groups too
        least = np.sum([np.nan_to_num(np.sort(one, axis=1)[:, len(groups) // 4]) for one in own], axis=0)[:, None]
        total = total + least[:, 0]
        one = _outside(least, own, 0, np.array([np.nan]), thresholds)
        here = set() if one is None else set(one[0])
        steps = here if steps is None else steps & here
        sigmas = min(sigmas, 0.0 if one is None else one[2])
    if not steps:
        return None
    ordered = tuple(sorted(steps))
    excess = float(total[list(ordered)].sum())
    usual_step = float(np.nanmedian(step_ns)) if not np.isnan(step_ns).all() else 0.0
    return (ordered, excess, sigmas) if excess >= thresholds.min_excess_share * usual_step * len(ordered) else None


def _outside(
    total: Floats, late: Sequence[Floats], column: int, step_ns: Floats, thresholds: Thresholds
) -> tuple[tuple[int, ...], float, float] | None:
    """Return the steps in which a column of totals (steps, groups) stands out, its excess there, and its sigmas."""
    if not len(total):
        return None
    usual_step = float(np.nanmedian(step_ns)) if not np.isnan(step_ns).all() else 0.0
    chance = float(np.sqrt(sum((MAD_TO_SIGMA * np.nanmedian(np.abs(one))) ** 2 for one in late)))
    noise = max(chance, estimate_sigma(total), 1.0)
    own = total[:, column]
    outside = own >= thresholds.step_sigmas * noise
    mean, spread = float(own.mean()), noise / np.sqrt(len(own))
    if len(own) > 1 and mean >= thresholds.run_sigmas * spread and np.median(own) >= mean / 2:
        outside = np.ones(len(own), np.bool_)
    excess = float(own[outside].sum())
    if not outside.any() or excess < thresholds.min_excess_share * usual_step * outside.sum():
        return None
    return tuple(np.flatnonzero(outside).tolist()), excess, float(own[outside].max() / noise)


def _families(
    meetings: Meetings,
) -> dict[tuple[frozenset[int], ...], list[tuple[int, Ints]]]:
    """Return meetings with equal groups of ranks: by those groups, each meeting and its numbers of the groups."""
    found: dict[tuple[frozenset[int], ...], list[tuple[int, Ints]]] = {}
    for number, meeting in enumerate(meetings.meetings):
        ranks: dict[int, set[int]] = {}
        for member in meeting.members:
            for rank, group in zip(meetings.blocks[member.block].ranks, member.group.tolist(), strict=True):
                ranks.setdefault(group, set()).add(rank)
        if any(len(group) < 2 for group in ranks.values()):
            continue  # the group's other ranks were not recorded
        ordered = sorted(ranks, key=lambda group: min(ranks[group]))
        key = tuple(frozenset(ranks[group]) for group in ordered)
        found.setdefault(key, []).append((number, np.array(ordered)))
    return found


def attribute_to_ranks(slow: Sequence[SlowCollectives]) -> list[SlowCommunication]:
    """Return the ranks whose links explain the slow collectives, worst first.

    Groups that share steps and ranks with the worst group are explained, with it, by the ranks that all of them have in
    common; if they have none in common, the worst group is explained by itself.
    """
    left = list(slow)
    explained = []
    while left:
        worst = max(left, key=lambda one: one.excess_ns)
        same = [one for one in left if set(one.steps) & set(worst.steps) and one.ranks & worst.ranks]
        shared = frozenset.intersection(*(one.ranks for one in same))
        if not shared:
            same, shared = [worst], worst.ranks
        explained.append(SlowCommunication(shared, tuple(same)))
        left = [one for one in left if one not in same]
    return explained
