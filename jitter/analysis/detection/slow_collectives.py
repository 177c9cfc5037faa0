"""Collectives that take long from the last arrival to their end: in some steps, or in some groups all along."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jitter.analysis.detection.deviations import estimate_sigma
from jitter.analysis.detection.thresholds import Thresholds
from jitter.analysis.execution.collectives import Meetings
from jitter.core.arrays import Floats, Ints
from jitter.core.stats import MAD_TO_SIGMA


@dataclass(frozen=True)
class SlowCollectives:
    """Collectives of one set of ranks that took longer than theirs usually take."""

    ranks: frozenset[int]
    meetings: tuple[tuple[int, int], ...]
    """(meeting, group) of all the collectives of these ranks."""
    steps: tuple[int, ...]
    excess_ns: float
    sigmas: float


@dataclass(frozen=True)
class SlowCommunication:
    """Ranks whose links are behind slow transfers, and these."""

    ranks: frozenset[int]
    slow: tuple[SlowCollectives, ...]

    @property
    def steps(self) -> tuple[int, ...]:
        """Positions of the steps in which any of them is slow."""
        return tuple(sorted({step for one in self.slow for step in one.steps}))

    @property
    def meetings(self) -> tuple[tuple[int, int], ...]:
        """(meeting, group) of all of them."""
        return tuple(which for one in self.slow for which in one.meetings)

    @property
    def excess_ns(self) -> float:
        """What they took longer than usual, all together."""
        return sum(one.excess_ns for one in self.slow)

    @property
    def sigmas(self) -> float:
        """How far out of the noise the worst of them is."""
        return max(one.sigmas for one in self.slow)


def find_slow_collectives(
    meetings: Meetings,
    seen: Sequence[Mapping[int, Floats]],
    usual: Mapping[int, float],
    step_ns: Floats,
    limits: Thresholds,
) -> list[SlowCollectives]:
    """Find them; `seen` are each step's transfers by meeting, (groups,) ns, `usual` their medians.

    First those of all ranks in some steps; then those of some groups, in the other steps.
    """
    late = {
        number: np.stack([step[number] - usual[number] for step in seen]) for number in range(len(meetings.meetings))
    }
    families = _families(meetings)
    found = []
    everywhere = _everywhere(families, late, step_ns, limits)
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
            one = _outside(total[elsewhere], own, column, step_ns, limits)
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
    limits: Thresholds,
) -> tuple[tuple[int, ...], float, float] | None:
    """The steps in which the collectives of nearly all groups of all kinds are slow."""
    if sum(len(groups) for groups in families) < 2:
        return None  # one group is all there is
    steps: set[int] | None = None
    sigmas, total = np.inf, np.zeros(len(step_ns))
    for groups, members in families.items():
        own = [late[number][:, order] for number, order in members]
        # a link slows the groups of its rank; only what slows those least slowed too is everywhere
        least = np.sum([np.nan_to_num(np.sort(one, axis=1)[:, len(groups) // 4]) for one in own], axis=0)[:, None]
        total = total + least[:, 0]
        one = _outside(least, own, 0, np.array([np.nan]), limits)
        here = set() if one is None else set(one[0])
        steps = here if steps is None else steps & here
        sigmas = min(sigmas, 0.0 if one is None else one[2])
    if not steps:
        return None
    ordered = tuple(sorted(steps))
    excess = float(total[list(ordered)].sum())
    usual_step = float(np.nanmedian(step_ns)) if not np.isnan(step_ns).all() else 0.0
    return (ordered, excess, sigmas) if excess >= limits.worth_replaying * usual_step * len(ordered) else None


def _outside(
    total: Floats, late: Sequence[Floats], column: int, step_ns: Floats, limits: Thresholds
) -> tuple[tuple[int, ...], float, float] | None:
    """The steps in which a column of totals (steps, groups) leaves the noise, its excess there, how many sigmas."""
    if not len(total):
        return None
    usual_step = float(np.nanmedian(step_ns)) if not np.isnan(step_ns).all() else 0.0
    chance = float(np.sqrt(sum((MAD_TO_SIGMA * np.nanmedian(np.abs(one))) ** 2 for one in late)))
    noise = max(chance, estimate_sigma(total), 1.0)
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
) -> dict[tuple[frozenset[int], ...], list[tuple[int, Ints]]]:
    """Meetings that divide the same ranks into the same groups, with each one's numbers of these groups."""
    found: dict[tuple[frozenset[int], ...], list[tuple[int, Ints]]] = {}
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


def attribute_to_ranks(slow: Sequence[SlowCollectives]) -> list[SlowCommunication]:
    """Whose links they are, the worst first.

    The ranks that all groups which are slow in the same steps as the worst, and overlap it, have in common; where that
    leaves no one, the worst answers for itself.
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
