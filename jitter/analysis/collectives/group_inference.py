"""Process groups of collectives whose trace names none, inferred from which ranks leave them together.

Ranks of one group leave a collective at the same time, so between two of them the difference of their ends is the same
at all collectives of a step: that of their clocks. Between ranks of different groups it varies with the groups'
progress. Collectives of one operation on one stream (a *channel*) mostly belong to one communicator, so their ends are
compared together first. Collectives that contradict the channel's groups are compared by themselves.

If all teams have the same collectives in the same order, these are compared one by one. Stages of a pipeline differ in
their exchanges: these are matched pair by pair, but for those that more than two ranks of a stage leave together, and
then the collectives that several stages share. Sends and receives that state a group of more than two ranks are matched
pair by pair, too: the peer is one of these ranks, and none waits for the others.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isnan
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.alignment.program import Operation, Program
from jitter.analysis.collectives.exchange_matching import (
    Exchanges,
    MatchedPair,
    are_messages,
    is_longer_wait,
    match_exchanges,
)
from jitter.analysis.collectives.matching import Attended, Group
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.grouping import by_key
from jitter.core.names.kernels import SEND_RECV
from jitter.core.numeric.arrays import Floats, Ints, spread_positions
from jitter.core.numeric.compilation import compiled
from jitter.core.numeric.selection import select_lower_median
from jitter.core.numeric.stats import lower_median, middle_value

_LIMITS: Final = THRESHOLDS.group_inference
ALONE: Final = -1
"""Label of a rank that leaves a collective together with no other one."""


class GroupLabels(NamedTuple):
    """The groups of some ranks' collectives, and the clocks of these ranks."""

    labels: dict[int, Ints]
    """By collective: (ranks,) the group of each rank, or `ALONE`. Collectives of which nothing is known are absent."""
    left_together: frozenset[int]
    """The collectives that all ranks leave together by their clocks, in one group or not."""
    clocks: "_JointClocks"
    """Of these ranks."""


def infer_groups(
    collectives: Sequence[Operation], start: Floats, end: Floats, known: "_JointClocks | None" = None
) -> GroupLabels:
    """Infer the groups of collectives that ranks have in the same order.

    Args:
        collectives: the collectives without a recorded group.
        start: (steps, collectives, ranks) when each rank enters each of them, on its own clock; NaN where it lacks it.
        end: likewise, when it leaves.
        known: the clocks of these ranks as far as their messages tell them.

    """
    channels = by_key(((collective.stream, collective.collective), at) for at, collective in enumerate(collectives))
    labels_of: dict[int, Ints] = {}
    took = end - start
    for channel in channels.values():
        if len(channel) > 1:
            labels_of.update(_divide_channel(end, took, np.array(channel)))
    waiting = [at for at in range(len(collectives)) if at not in labels_of]
    while waiting:
        # a collective whose groups are known connects ranks, which may tell those of the next one
        clocks = _Clocks(end, labels_of, known)
        settled = {at: labels for at in waiting if (labels := _divide_place(at, end, took, clocks)) is not None}
        if not settled and len(waiting) > 1:
            settled = dict(_divide_channel(end, took, np.array(waiting)))
        labels_of.update(settled)
        waiting = [at for at in waiting if at not in settled] if settled else []
    channel_of = {at: number for number, channel in enumerate(channels.values()) for at in channel}
    labels_of = _without_contradictions(labels_of, channel_of, end, took, known)
    clocks = _Clocks(end, labels_of, known)
    labels_of = {at: _with_last_arrivals(at, labels, end, took, clocks) for at, labels in labels_of.items()}
    every = [at for at, labels in labels_of.items() if (labels == 0).all() or clocks.are_left_by_all(end[:, at])]
    return GroupLabels(labels_of, frozenset(every), clocks.joint)


def _divide_channel(end: Floats, took: Floats, channel: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield (collective, groups) of the collectives of one channel, as far as they are known."""
    ends, durations = end[:, channel], took[:, channel]
    usual_spread = _usual_spread_between_ranks(ends)
    spreads = [spread for spread in (_spread_between_ranks(ends), usual_spread) if spread is not None]
    if not spreads:
        return
    divided = [labels for labels in (divide_ranks(spread, durations) for spread in spreads) if labels is not None]
    if not divided:
        yield from ((at, np.full(end.shape[2], ALONE, np.int64)) for at in channel.tolist())
        return
    labels, error = divided[0], _errors(ends, divided[0])
    for other_labels in divided[1:]:
        # of collectives of several communicators, most may have the same groups
        other_error = _errors(ends, other_labels)
        is_closer = middle_value(other_error) * _LIMITS.clear_gap < middle_value(error)
        if (labels == ALONE).any() > (other_labels == ALONE).any() or is_closer:
            labels, error = other_labels, other_error
    is_uneven = (labels == 0).all() and middle_value(error) > _LIMITS.resolution_ns
    mixed = _divide_mixed(ends, durations, usual_spread) if is_uneven else {}
    if mixed:
        yield from ((int(channel[at]), of_turn) for at, of_turn in mixed.items())
        return
    fits = error <= _error_limit(middle_value(error))
    if not fits.any():  # no division into groups explains any of them
        yield from ((at, np.full(end.shape[2], ALONE, np.int64)) for at in channel.tolist())
        return
    yield from ((at, labels) for at in channel[fits].tolist())
    rest = np.flatnonzero(~fits)
    if len(rest) < 2:
        return  # one alone has no difference to compare with: see `_divide_place`
    other_groups = dict(_divide_channel(end, took, channel[rest]))
    for at in rest.tolist():
        better = other_groups.get(int(channel[at]))
        is_better = better is not None and (better != ALONE).any() and not np.array_equal(better, labels)
        if is_better or error[at] > THRESHOLDS.matching.synchronous_within_ns:
            yield int(channel[at]), np.full(end.shape[2], ALONE, np.int64) if better is None else better
        else:
            yield int(channel[at]), labels


def _divide_mixed(end: Floats, took: Floats, spread: Floats | None) -> dict[int, Ints]:
    """Return the groups of collectives of a channel on which communicators take turns; of none where they do not.

    All ranks seem to leave together then, but for lags that the turns hand on. Each pair of ranks leaves most of what
    it shares together, which tells its clocks, and on one clock a collective shows its groups. They count if several
    collectives show the same ones, and show them together as well. `spread` (ranks, ranks) is the usual one.
    """
    if spread is None or np.isnan(spread).any():
        return {}
    clocks = _JointClocks(end.shape[2], len(end))
    for _, rank, peer in _spanning_tree(spread):
        ahead_ns = lower_median(end[:, :, peer] - end[:, :, rank])[:, 0]
        clocks.connect(np.array([rank, peer]), np.stack([np.zeros(len(end)), ahead_ns], axis=1))
    most = min(_LIMITS.robust_places, max(THRESHOLDS.min_repeats, _LIMITS.turns_cells // end.shape[2]))
    labels_of = {
        at: _divide_on_one_clock(end[:, [at]], took[:, [at]], clocks.offset_ns)
        for at in spread_positions(end.shape[1], most)
    }
    every = np.zeros(end.shape[2], np.int64)
    settled: dict[int, Ints] = {}
    for labels, places in _by_groups(labels_of):
        if len(places) >= THRESHOLDS.min_repeats and (labels != ALONE).all() and not np.array_equal(labels, every):
            together = _divide_on_one_clock(end[:, places], took[:, places], clocks.offset_ns)
            if np.array_equal(together, labels) and not waits_more(took[:, places], labels, every):
                settled |= dict.fromkeys(places, labels)
    return settled


def _error_limit(usual: float) -> float:
    """Return by how much ranks of one group may leave a collective apart, given by how much they usually do."""
    return min(max(THRESHOLDS.outlier_sigmas * usual, _LIMITS.resolution_ns), _LIMITS.max_spread_ns)


def _spread_between_ranks(end: Floats, *, is_on_one_clock: bool = False) -> Floats | None:
    """Return, (ranks, ranks), by how much the difference of two ranks' ends varies over (steps, places, ranks).

    The root of the mean square over the places of a step, of the step where it is largest. The difference varies about
    that of the clocks, by which it is its mean where they are not one. None if no two ranks have a step in common.
    """
    ranks = end.shape[2]
    spread = np.full((ranks, ranks), np.nan)
    for step in end:
        ends = step[~np.isnan(step).all(axis=1)]
        here = ~np.isnan(ends).any(axis=0)
        if len(ends) < (1 if is_on_one_clock else 2) or here.sum() < 2:
            continue
        centred = ends[:, here] - (0.0 if is_on_one_clock else ends[:, here].mean(axis=0))
        centred -= centred.mean(axis=1, keepdims=True)
        product = centred.T @ centred / len(ends)
        square = np.diagonal(product)
        between = np.full((ranks, ranks), np.nan)
        between[np.ix_(here, here)] = np.sqrt(np.maximum(square[:, None] + square - 2 * product, 0.0))
        spread = np.fmax(spread, between)
    return None if np.isnan(spread).all() else spread


def _usual_spread_between_ranks(end: Floats) -> Floats | None:
    """Return the same of most of the places: the median distance from the median, in place of the mean square."""
    ranks = end.shape[2]
    spread = np.full((ranks, ranks), np.nan)
    chosen = end[:: -(-len(end) // THRESHOLDS.few_steps), :: -(-end.shape[1] // _LIMITS.robust_places)]
    for step in chosen:
        ends = step[~np.isnan(step).all(axis=1)]
        here = np.flatnonzero(~np.isnan(ends).any(axis=0)) if len(ends) else np.zeros(0, np.int64)
        if len(ends) >= THRESHOLDS.min_samples and len(here) > 1:
            add_usual_spread(np.ascontiguousarray(ends[:, here].T), here, np.empty(len(ends)), spread)
    return None if np.isnan(spread).all() else spread


@compiled
def add_usual_spread(end: Floats, here: Ints, room: Floats, widest: Floats) -> None:
    """Raise `widest` (ranks, ranks) to the median distance of two ranks' ends, (ranks `here`, places), from the median.

    `room` (places,) is overwritten.
    """
    places = end.shape[1]
    for rank in range(len(here)):
        for peer in range(rank + 1):
            for place in range(places):
                room[place] = end[rank, place] - end[peer, place]
            middle = select_lower_median(room, places)
            for place in range(places):
                room[place] = abs(room[place] - middle)
            spread = select_lower_median(room, places)
            before = widest[here[rank], here[peer]]
            if isnan(before) or spread > before:
                widest[here[rank], here[peer]] = widest[here[peer], here[rank]] = spread


def divide_ranks(spread: Floats, took: Floats | None = None) -> Ints | None:
    """Return the groups, (ranks,), into which the spread of their ends divides the ranks; None if into none.

    Ranks are joined in ascending order of their spread; where two successive spreads differ by a large factor the
    joining may stop. Groups of equal size are preferred, then the largest factor. Spreads within the clocks' error
    divide ranks only if no group then waits for another one. Without any such factor all ranks are one group if they
    leave together. Ranks without a step in common tell nothing of each other, and divide none. A rank that was never
    compared is `ALONE`.

    Args:
        spread: (ranks, ranks).
        took: (steps, collectives, ranks) how long each rank was in each collective.

    """
    is_known = ~np.isnan(spread).all(axis=1)
    if is_known.sum() < 2:
        return None
    edges = _spanning_tree(np.where(np.isnan(spread), np.inf, spread)[np.ix_(is_known, is_known)])
    lengths = np.maximum([length for length, _, _ in edges if np.isfinite(length)], _LIMITS.resolution_ns)
    if not len(lengths):
        return None
    ranked = []
    for at in range(1, 1 + int(np.searchsorted(lengths[:-1], _LIMITS.max_spread_ns, side="right"))):
        ratio = float(lengths[at] / lengths[at - 1])
        if ratio >= _LIMITS.clear_gap:
            components = _joined(edges[:at], int(is_known.sum()))
            sizes = np.bincount(components)
            ranked.append((bool((sizes == sizes[0]).all()), ratio, at))
    every = np.where(is_known, 0, ALONE)
    for _, _, at in sorted(ranked, reverse=True):
        labels = np.full(len(spread), ALONE, np.int64)
        components = _joined(edges[:at], int(is_known.sum()))
        labels[is_known] = np.where(np.bincount(components)[components] > 1, components, ALONE)
        if lengths[-1] > _LIMITS.clock_error_ns or (took is not None and not waits_more(took, labels, every)):
            return labels
    return every if lengths[-1] <= THRESHOLDS.matching.synchronous_within_ns else None


def waits_more(took: Floats, finer: Ints, coarser: Ints) -> bool:
    """Return whether the last arrivals of the finer groups wait for ranks of other ones.

    The last rank of a group to arrive waits for none: it stays for the transfer alone.
    """
    return is_longer_wait(_wait_ns(took, finer), _wait_ns(took, coarser))


_Edge = tuple[float, int, int]


def _spanning_tree(spread: Floats) -> list[_Edge]:
    """Return the edges of a minimum spanning tree, the shortest first."""
    count = len(spread)
    nearest, via = spread[0].copy(), np.zeros(count, np.int64)
    outside = np.ones(count, np.bool_)
    outside[0] = False
    edges: list[_Edge] = []
    for _ in range(count - 1):
        candidates = np.flatnonzero(outside)
        new = int(candidates[np.argmin(nearest[candidates])])
        edges.append((float(nearest[new]), int(via[new]), new))
        outside[new] = False
        closer = outside & (spread[new] < nearest)
        nearest[closer], via[closer] = spread[new][closer], new
    return sorted(edges)


def _joined(edges: Sequence[_Edge], count: int) -> Ints:
    """Return, (count,), the number of each one's component, by its first member."""
    labels = np.arange(count)
    for _, rank, peer in edges:
        first, second = sorted((int(labels[rank]), int(labels[peer])))
        labels[labels == second] = first
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def _within_groups(end: Floats, labels: Ints) -> Floats:
    """Return (steps, places, ranks) ends less the mean of each rank's group; NaN for ranks that are `ALONE`."""
    centred = np.full(end.shape, np.nan)
    for members in _groups_of(labels):
        ends = end[:, :, members]
        is_known = ~np.isnan(ends)
        count = np.maximum(is_known.sum(axis=2, keepdims=True), 1)
        mean = np.where(is_known, ends, 0.0).sum(axis=2, keepdims=True) / count
        centred[:, :, members] = ends - mean
    return centred


def _errors(end: Floats, labels: Ints) -> Floats:
    """Return, (places,), by how much ranks of a group leave each collective apart: the root mean square of a step.

    Of the step where it is largest.
    """
    apart = _within_groups(end, labels)
    return _root_mean_squares(apart - lower_median(apart, axis=1))


def _root_mean_squares(apart: Floats) -> Floats:
    """Return, (places,), the root mean square over the ranks of (steps, places, ranks), the largest over the steps."""
    is_known = ~np.isnan(apart)
    count = np.maximum(is_known.sum(axis=2), 1)
    errors: Floats = np.sqrt((np.where(is_known, apart, 0.0) ** 2).sum(axis=2) / count).max(axis=0, initial=0.0)
    return errors


class _JointClocks:
    """The clocks of ranks, as far as collectives and messages connect them."""

    def __init__(self, ranks: int, steps: int) -> None:
        self.offset_ns = np.zeros((steps, ranks))
        """(steps, ranks) what each rank's clock is ahead of that of the first rank of its component."""
        self.component = np.arange(ranks)
        """(ranks,) ranks with equal numbers are connected."""

    def among(self, ranks: Sequence[int]) -> "_JointClocks":
        """Return a copy of those of some ranks."""
        clocks = _JointClocks(len(ranks), len(self.offset_ns))
        clocks.offset_ns, clocks.component = self.offset_ns[:, ranks], self.component[ranks]
        return clocks

    def connect(self, members: Ints, ahead_ns: Floats) -> None:
        """Connect ranks; `ahead_ns` (steps, members) is what the clock of each is ahead, less a common time."""
        offset, component, first = self.offset_ns, self.component, members[0]
        for at, member in enumerate(members.tolist()):
            if component[member] != component[first]:
                moved = component == component[member]
                shift = ahead_ns[:, at] - ahead_ns[:, 0] - (offset[:, member] - offset[:, first])
                offset[:, moved] += shift[:, None]
                component[moved] = component[first]

    @property
    def are_comparable(self) -> bool:
        """Whether all ranks are connected."""
        return len(np.unique(self.component)) == 1


def _groups_of(labels: Ints) -> list[Ints]:
    """Return the members of each group."""
    return [np.flatnonzero(labels == group) for group in np.unique(labels[labels != ALONE]).tolist()]


def _by_groups(labels_of: Mapping[int, Ints]) -> list[tuple[Ints, list[int]]]:
    """Return the ways, (ranks,) each, in which collectives divide the ranks, with the collectives that do."""
    places_of = by_key((labels.tobytes(), at) for at, labels in labels_of.items())
    return [(np.frombuffer(key, np.int64), places) for key, places in places_of.items()]


def align_clocks(end: Floats, labels_of: Mapping[int, Ints], known: _JointClocks | None = None) -> _JointClocks:
    """Return the clocks of ranks that known groups connect, or messages, whose clocks are `known`.

    Ranks of one group differ by the median over the collectives with these groups; offsets add up along groups.
    """
    clocks = _JointClocks(end.shape[2], len(end)) if known is None else known.among(range(end.shape[2]))
    # groups of most collectives first: their offsets are the surest
    for labels, places in sorted(_by_groups(labels_of), key=lambda item: (-len(item[1]), item[0].tobytes())):
        middle = lower_median(_within_groups(end[:, places], labels), axis=1)[:, 0]
        for members in _groups_of(labels):
            clocks.connect(members, middle[:, members])
    return clocks


class _Clocks:
    """The clocks of the ranks as the collectives of known groups tell them."""

    def __init__(self, end: Floats, labels_of: Mapping[int, Ints], known: _JointClocks | None) -> None:
        by_groups = _by_groups(labels_of)
        self.partitions = [labels for labels, _ in by_groups]
        """Each (ranks,) way in which a collective divides the ranks."""
        errors = [_errors(end[:, places], labels) for labels, places in by_groups]
        self.joint = align_clocks(end, labels_of, known)
        self.limit_ns = _error_limit(float(np.median(np.concatenate(errors))) if errors else 0.0)
        """By how much ranks of one group may leave apart."""

    def are_left_by_all(self, end: Floats) -> bool:
        """Return whether all ranks leave (steps, ranks) ends together, as far as the clocks tell."""
        return self.joint.are_comparable and any((labels == 0).all() for labels in self.fitting(end))

    def fitting(self, end: Floats) -> list[Ints]:
        """Return the partitions, all ranks together among them, by which (steps, ranks) ends are left together."""
        every = np.zeros(end.shape[1], np.int64)
        distinct = {labels.tobytes(): labels for labels in (every, *self.partitions) if (labels != ALONE).all()}
        corrected = (end - self.joint.offset_ns)[:, None]
        return [
            labels
            for labels in distinct.values()
            if _root_mean_squares(_within_groups(corrected, labels))[0] <= self.limit_ns
        ]


def _divide_place(at: int, end: Floats, took: Floats, clocks: _Clocks) -> Ints | None:
    """Return the groups of one collective by its ends alone; None if nothing is known of it.

    Where the clocks of all ranks are comparable: all ranks, or the coarsest of the known groups, that leave together;
    else what the ends tell, unless these groups wait for each other. Otherwise, ranks the difference of whose ends
    stays the same over the steps.
    """
    ends, durations = end[:, at], took[:, at : at + 1]
    over_steps = None
    if clocks.partitions and (~np.isnan(ends)).any(axis=1).sum() >= THRESHOLDS.min_samples:
        over_steps = divide_ranks(_spread_over_steps(ends), durations)
    if clocks.joint.are_comparable:
        if fitting := clocks.fitting(ends):
            return min(fitting, key=lambda labels: (len(np.unique(labels)), labels.tobytes()))
        labels = _divide_on_one_clock(ends[:, None], durations, clocks.joint.offset_ns)
        # else the clocks are wrong: see `_without_contradictions`
        return labels if over_steps is None or not waits_more(durations, labels, over_steps) else over_steps
    return over_steps if over_steps is not None and (over_steps != ALONE).all() else None


def _divide_on_one_clock(end: Floats, took: Floats, offset: Floats) -> Ints:
    """Return the groups of ranks that leave together, by (steps, collectives, ranks) ends and clock offsets."""
    spread = _spread_between_ranks(end - offset[:, None], is_on_one_clock=True)
    labels = None if spread is None else divide_ranks(spread, took)
    return np.full(end.shape[2], ALONE, np.int64) if labels is None else labels


def _without_contradictions(
    labels_of: Mapping[int, Ints],
    channel_of: Mapping[int, int],
    end: Floats,
    took: Floats,
    known: _JointClocks | None,
) -> dict[int, Ints]:
    """Return the groups, divided further where the clocks that they give contradict each other.

    Groups that follow each other at a constant distance seem to leave together, with other clocks. The groups of a
    channel are divided by the clocks of the other collectives if they then do not wait for each other; of several
    channels first the one whose groups wait least.
    """
    labels_of = dict(labels_of)
    for _ in range(THRESHOLDS.max_tried):
        by_groups = by_key(((channel_of[at], labels.tobytes()), at) for at, labels in labels_of.items())
        best: tuple[float, list[int], Ints] | None = None
        for places in by_groups.values():
            labels = labels_of[places[0]]
            clocks = align_clocks(end, {at: others for at, others in labels_of.items() if at not in places}, known)
            if not clocks.are_comparable:
                continue
            divided = _refine(labels, _divide_on_one_clock(end[:, places], took[:, places], clocks.offset_ns))
            parts_from_all = ((divided == ALONE) & (labels != ALONE)).any()
            if np.array_equal(divided, labels) or parts_from_all or waits_more(took[:, places], divided, labels):
                continue
            extra_wait_ns = _wait_ns(took[:, places], divided) - _wait_ns(took[:, places], labels)
            if best is None or extra_wait_ns < best[0]:
                best = extra_wait_ns, places, divided
        if best is None:
            break
        labels_of.update(dict.fromkeys(best[1], best[2]))
    return labels_of


def _refine(labels: Ints, divided: Ints) -> Ints:
    """Return the groups of `labels` divided as in `divided`."""
    words: dict[tuple[int, int], int] = {}
    combined = np.full(len(labels), ALONE, np.int64)
    for rank in np.flatnonzero((labels != ALONE) & (divided != ALONE)).tolist():
        combined[rank] = words.setdefault((int(labels[rank]), int(divided[rank])), len(words))
    counts = np.bincount(combined[combined != ALONE], minlength=1)
    refined: Ints = np.where((combined != ALONE) & (counts[np.maximum(combined, 0)] > 1), combined, ALONE)
    return refined


def _wait_ns(took: Floats, labels: Ints) -> float:
    """Return how long last arrivals stay in (steps, collectives, ranks) on average, those of the group with the most.

    A rank that is in no group is the last one of its own.
    """
    alone = [took[:, :, rank] for rank in np.flatnonzero(labels == ALONE).tolist()]
    last = [*alone, *(np.fmin.reduce(took[:, :, members], axis=2) for members in _groups_of(labels))]
    return max((float(np.nanmean(stays)) for stays in last if not np.isnan(stays).all()), default=0.0)


def _with_last_arrivals(at: int, labels: Ints, end: Floats, took: Floats, clocks: _Clocks) -> Ints:
    """Return the groups of a collective, or coarser ones that are left together and contain what all ranks wait for.

    The last rank of a group to arrive waits for none. Where even it waits, it waits for a rank of another group.
    """
    count = len(np.unique(labels))
    if count == 1 or not clocks.joint.are_comparable:
        return labels
    durations = took[:, at : at + 1]
    coarser = [partition for partition in clocks.fitting(end[:, at]) if len(np.unique(partition)) < count]
    best = min(
        coarser, key=lambda partition: (_wait_ns(durations, partition), -len(np.unique(partition))), default=labels
    )
    return best if waits_more(durations, labels, best) else labels


def _spread_over_steps(end: Floats) -> Floats:
    """Return, (ranks, ranks), by how much the difference of two ranks' ends departs from a line over the steps.

    `end` (steps, ranks). Clocks drift evenly. NaN for ranks with too few steps in common.
    """
    ranks = end.shape[1]
    spread = np.full((ranks, ranks), np.nan)
    for rank in range(ranks):
        apart = end - end[:, rank : rank + 1]
        is_known = ~np.isnan(apart)
        for mask in np.unique(is_known, axis=1).T:
            columns = (is_known == mask[:, None]).all(axis=0)
            if mask.sum() >= THRESHOLDS.min_samples:
                at, values = end[mask, rank], apart[np.ix_(mask, columns)]
                centred, rest = at - at.mean(), values - values.mean(axis=0)
                slope = centred @ rest / max(float(centred @ centred), 1.0)
                spread[rank, columns] = np.abs(rest - centred[:, None] * slope).max(axis=0)
    return spread


def with_absent_ranks(ranks: Sequence[int], labels: Ints, absent: frozenset[int]) -> list[tuple[int, ...]]:
    """Return the members of each group, with ranks of the job that were not recorded where the groups are regular.

    Args:
        ranks: the recorded ranks that have the collective.
        labels: (ranks,) the group of each.
        absent: the ranks of the job that were not recorded.

    """
    members = by_key(zip(labels.tolist(), ranks, strict=True))
    groups = [tuple(group) for label, group in sorted(members.items()) if label != ALONE]
    if not absent:
        return groups
    for regular in regular_groups(max((*ranks, *absent)) + 1, max(map(len, groups), default=1)):
        every = list(map(tuple, regular.tolist()))
        expected = {tuple(rank for rank in group if rank not in absent): group for group in every}
        if all(group in expected for group in groups):
            return [expected[group] for group in groups]
    return groups


def regular_groups(count: int, smallest: int) -> Iterator[Ints]:
    """Yield, (groups, ranks of a group), the ways to divide so many ranks into groups at equal distances.

    Of so many ranks at least, the smallest first. Groups of a job are mostly such: rank r is in group
    (r ÷ (distance · size), r mod distance).
    """
    for size in range(smallest, count + 1):
        for distance in range(1, count // size + 1):
            if count % (size * distance) == 0:
                yield np.arange(count).reshape(-1, size, distance).swapaxes(1, 2).reshape(-1, size)


TeamEnds = tuple[Ints, Floats, Floats]
"""(ranks,) of a team that have a step; (operations, ranks) when each starts, and when it ends."""


class _Unit(NamedTuple):
    """All teams, if they have the same collectives without a group in the same order; else one of them."""

    teams: tuple[int, ...]
    members: tuple[tuple[int, int], ...]
    """(team, rank) of each rank."""
    start: Floats
    """(steps, collectives, ranks) when each rank enters each of them."""
    end: Floats


class _Common(NamedTuple):
    """A collective that all ranks of a unit have together, or may have."""

    unit: int
    collective: int
    operation: str | None
    end_ns: Floats
    """(steps,) on the clock of the first rank."""
    took: Floats
    """(steps, 1, ranks) how long each rank is in it."""
    is_told: bool
    """Whether the ranks' ends tell the groups of the collective."""


class AttendedGroups(NamedTuple):
    """Which ranks meet in each collective, as the trace states or as their ends show."""

    attended: Attended
    """Each rank's (place, group). Groups stay None where their ends do not tell them."""
    alone: frozenset[tuple[int, int]]
    """The (rank, place) that no other rank shares."""
    exchanges: frozenset[tuple[int, int]]
    """The (team, place) of operations without a name that are messages between two ranks."""


def infer_attended(
    programs: Mapping[int, Program],
    team_of: Mapping[int, int],
    attended: Attended,
    steps: Iterable[Mapping[int, TeamEnds]],
) -> AttendedGroups:
    """Infer the groups of each rank's collectives; `steps` are some steps, by team."""
    peerless = find_unnamed_peers(programs, team_of, attended)
    attended = {
        rank: [(place, None if (rank, place) in peerless else group) for place, group in attendances]
        for rank, attendances in attended.items()
    }
    unknown = _unknown_places(team_of, attended)
    units = _units(programs, team_of, unknown, steps)
    group_at: dict[tuple[int, int], Group | None] = {}
    alone: set[tuple[int, int]] = set()
    column = {rank: at for at, rank in enumerate(sorted(team_of))}
    clocks = _JointClocks(len(column), len(units[0].end) if units else 0)
    # ranks of one unit that state no group exchange in rings, if at all
    is_apart = len(units) > 1 or bool(peerless)
    unnamed = _unnamed_operations(programs, team_of, unknown, units)
    messages_at = _list_messages(programs, unknown, units, unnamed | peerless) if is_apart else [[] for _ in units]
    exchanges_of = _read_exchanges(programs, unknown, units, messages_at, unnamed | peerless)
    for pair, messages in _messages(unknown, units, messages_at, exchanges_of, team_of):
        columns = np.array([column[rank] for rank in pair.ranks])
        clocks.connect(columns, np.stack([np.zeros(len(pair.offset_ns)), -pair.offset_ns], axis=1))
        group_at.update(messages)
    exchanges = frozenset((team_of[rank], place) for rank, place in unnamed.keys() & group_at.keys())
    common: list[_Common] = []
    absent = frozenset(range(max(team_of, default=-1) + 1)) - team_of.keys()
    for number, (unit, may_be_messages) in enumerate(zip(units, map(frozenset, messages_at), strict=True)):
        places, operations = unknown[unit.teams[0]], programs[unit.teams[0]].operations
        ranks = [rank for _, rank in unit.members]
        # a stage exchanges with another one: that ranks of the stage leave together means nothing
        chosen = [
            at
            for at, place in enumerate(places)
            if not (operations[place].is_exchange and at in may_be_messages) and (unit.teams[0], place) not in exchanges
        ]
        labels_of: dict[int, Ints] = {}
        left_together = frozenset(chosen)
        if len(ranks) == 1:
            labels_of = {} if len(units) == 1 else {at: np.zeros(1, np.int64) for at in chosen}
        elif chosen:
            collectives = [operations[places[at]] for at in chosen]
            known = clocks.among([column[rank] for rank in ranks])
            inferred = infer_groups(collectives, unit.start[:, chosen], unit.end[:, chosen], known)
            labels_of = {chosen[at]: labels for at, labels in inferred.labels.items()}
            left_together = frozenset(chosen[at] for at in inferred.left_together)
            for members in _groups_of(inferred.clocks.component):
                columns = np.array([column[ranks[member]] for member in members.tolist()])
                clocks.connect(columns, inferred.clocks.offset_ns[:, members])
        for at, labels in labels_of.items():
            # replicas that keep pace seem to be groups of their own
            if at in left_together and len(units) > 1:
                offset = clocks.offset_ns[:, [column[rank] for rank in ranks]]
                end_ns = lower_median(unit.end[:, at] - offset + offset[:, :1])[:, 0]
                took = (unit.end - unit.start)[:, at : at + 1]
                common.append(_Common(number, at, operations[places[at]].collective, end_ns, took, True))
            numbers = sorted(set(labels.tolist()) - {ALONE})
            # one object each: matching takes each object's hash once, and a group may list hundreds of ranks
            group_of = dict(zip(numbers, map(Group, with_absent_ranks(ranks, labels, absent)), strict=True))
            for (team, rank), label in zip(unit.members, labels.tolist(), strict=True):
                if label == ALONE:
                    alone.add((rank, unknown[team][at]))
                elif len(ranks) > 1:
                    group_at[rank, unknown[team][at]] = group_of[label]
        if len(units) > 1:
            common += [
                _Common(
                    number,
                    at,
                    operations[places[at]].collective,
                    unit.end[:, at, 0],
                    (unit.end - unit.start)[:, at : at + 1],
                    False,
                )
                for at in chosen
                if at not in labels_of
            ]
    if is_apart:
        group_at.update(_shared_by_units(units, unknown, common, clocks, column))
    resolved = {
        rank: [(place, group_at.get((rank, place), group)) for place, group in attendances]
        for rank, attendances in attended.items()
    }
    return AttendedGroups(resolved, frozenset(alone | (peerless.keys() - group_at.keys())), exchanges)


def _unnamed_operations(
    programs: Mapping[int, Program],
    team_of: Mapping[int, int],
    unknown: Mapping[int, Sequence[int]],
    units: Sequence[_Unit],
) -> dict[tuple[int, int], frozenset[int]]:
    """Return, by (rank, place), the ranks of other units, with which collectives of unnamed operation may be messages.

    Not where all ranks have the same collectives: stages of a pipeline have not.
    """
    ranks = frozenset(team_of)
    return {
        (rank, place): others
        for unit in units
        for others in [ranks.difference(rank for _, rank in unit.members)]
        for team, rank in unit.members
        for place in unknown[team]
        if others and programs[team].operations[place].collective is None
    }


def find_unnamed_peers(
    programs: Mapping[int, Program], team_of: Mapping[int, int], attended: Attended
) -> dict[tuple[int, int], frozenset[int]]:
    """Return, by (rank, place), the ranks among which an exchange has its peer: it states a group, and no peer.

    Of a group of two ranks the peer is known, and the order in which they exchange; unless the exchanges are on several
    streams: messages of both directions are then in another order on each of the ranks.
    """
    exchanges = [
        (rank, place, group, programs[team_of[rank]].operations[place].stream)
        for rank, attendances in attended.items()
        for place, group in attendances
        if group is not None and group.ranks is not None and programs[team_of[rank]].operations[place].is_exchange
        if not group.is_ring and len(group.ranks) > 1
    ]
    streams_of = by_key(((rank, group), stream) for rank, _, group, stream in exchanges)
    ranks_of: dict[tuple[int, ...], frozenset[int]] = {}
    return {
        (rank, place): ranks_of.setdefault(group.ranks or (), frozenset(group.ranks or ()))
        for rank, place, group, _ in exchanges
        if len(group.ranks or ()) - (rank in (group.ranks or ())) > 1 or len(set(streams_of[rank, group])) > 1
    }


def _units(
    programs: Mapping[int, Program],
    team_of: Mapping[int, int],
    unknown: Mapping[int, Sequence[int]],
    steps: Iterable[Mapping[int, TeamEnds]],
) -> list[_Unit]:
    """Return the teams in units, with their times in these steps."""
    words = {team: _words([programs[team].operations[place] for place in places]) for team, places in unknown.items()}
    having = sorted(team for team, team_words in words.items() if team_words)
    divided = [having] if having and len(set(words.values())) == 1 else [[team] for team in having]
    ranks = {team: sorted(rank for rank, rank_team in team_of.items() if rank_team == team) for team in unknown}
    times: list[list[Floats]] = [[] for _ in divided]
    for step in steps:
        for number, teams in enumerate(divided):
            columns = [_times(step.get(team), unknown[team], ranks[team]) for team in teams]
            times[number].append(np.concatenate(columns, axis=2))
    return [
        _Unit(
            tuple(teams), tuple((team, rank) for team in teams for rank in ranks[team]), *np.stack(unit_times, axis=1)
        )
        for teams, unit_times in zip(divided, times, strict=True)
        if unit_times
    ]


def _words(collectives: Sequence[Operation]) -> tuple[tuple[str, int | None], ...]:
    """Return what must be equal for ranks to have the same collectives in the same order.

    Two stages of a pipeline have as many messages as each other, but take turns between the directions' streams.
    """
    number_of: dict[int, int] = {}
    return tuple(
        (
            collective.name,
            number_of.setdefault(collective.stream, len(number_of))
            if collective.collective in (None, SEND_RECV)
            else None,
        )
        for collective in collectives
    )


def _read_exchanges(
    programs: Mapping[int, Program],
    unknown: Mapping[int, Sequence[int]],
    units: Sequence[_Unit],
    chosen: Sequence[Sequence[int]],
    among: Mapping[tuple[int, int], frozenset[int]],
) -> dict[int, Exchanges]:
    """Return, by rank, the `chosen` collectives of each unit; `among`, by (rank, place), are possible peers."""
    exchanges: dict[int, Exchanges] = {}
    for unit, at in zip(units, chosen, strict=True):
        for column, (team, rank) in enumerate(unit.members) if at else ():
            places = [unknown[team][number] for number in at]
            operations = [programs[team].operations[place] for place in places]
            end = unit.end[:, at, column]
            exchanges[rank] = Exchanges(
                end,
                end - unit.start[:, at, column],
                np.array([operation.stream for operation in operations], np.int64),
                [among.get((rank, place)) for place in places],
                np.array([operation.is_exchange for operation in operations], np.bool_),
            )
    return exchanges


def _list_messages(
    programs: Mapping[int, Program],
    unknown: Mapping[int, Sequence[int]],
    units: Sequence[_Unit],
    among: Mapping[tuple[int, int], frozenset[int]],
) -> list[list[int]]:
    """Return, by unit, which of its collectives may be messages.

    Not exchanges that more than two of its ranks leave together, as ranks that hold experts do.
    """
    firsts = [(programs[team].operations, unknown[team], rank) for (team, rank), *_ in (unit.members for unit in units)]
    chosen_of = [
        [at for at, place in enumerate(places) if operations[place].is_exchange or (rank, place) in among]
        for operations, places, rank in firsts
    ]
    exchanges = _read_exchanges(programs, unknown, units, chosen_of, among)
    listed = []
    for unit, chosen, (operations, places, first) in zip(units, chosen_of, firsts, strict=True):
        ranks = [rank for _, rank in unit.members]
        others = exchanges.keys() - set(ranks)
        channels = by_key(
            (operations[places[at]].stream, number)
            for number, at in enumerate(chosen)
            if operations[places[at]].is_exchange and exchanges[first].among[number] is None
        )
        of_groups = set[int]()
        for channel in channels.values():
            members = [ranks[member] for member in _largest_group(unit, np.array(chosen)[channel]).tolist()]
            if len(members) > 2 and not are_messages(exchanges, members, channel, others):
                of_groups.update(channel)
        listed.append([at for number, at in enumerate(chosen) if number not in of_groups])
    return listed


def _largest_group(unit: _Unit, channel: Ints) -> Ints:
    """Return the largest of the groups that leave the collectives of a channel together; none if they are unclear."""
    divided = _by_groups(dict(_divide_channel(unit.end, unit.end - unit.start, channel)))
    is_clear = len(channel) >= THRESHOLDS.min_repeats and len(divided) == 1 and (divided[0][0] != ALONE).all()
    return max(_groups_of(divided[0][0]), key=len) if is_clear else channel[:0]


def _messages(
    unknown: Mapping[int, Sequence[int]],
    units: Sequence[_Unit],
    chosen: Sequence[Sequence[int]],
    exchanges: Mapping[int, Exchanges],
    team_of: Mapping[int, int],
) -> Iterator[tuple[MatchedPair, dict[tuple[int, int], Group | None]]]:
    """Yield pairs of ranks with the group, by (rank, place), of each message between them."""
    places = {
        rank: [unknown[team][number] for number in at]
        for unit, at in zip(units, chosen, strict=True)
        for team, rank in unit.members
    }
    for pair in match_exchanges(exchanges, team_of):
        first_rank, second_rank = pair.ranks
        messages: dict[tuple[int, int], Group | None] = {}
        for number, (first_at, second_at) in enumerate(pair.messages):
            group = Group((first_rank, second_rank), f"message {number}")
            messages[first_rank, places[first_rank][first_at]] = messages[
                second_rank, places[second_rank][second_at]
            ] = group
        yield pair, messages


def _shared_by_units(
    units: Sequence[_Unit],
    unknown: Mapping[int, Sequence[int]],
    common: Sequence[_Common],
    clocks: _JointClocks,
    column: Mapping[int, int],
) -> dict[tuple[int, int], Group | None]:
    """Return the group, by (rank, place), of collectives that the ranks of several units leave together.

    A unit that leaves one apart from all other units has it by itself, if its own ends do not tell its groups. `column`
    is that of each rank in `clocks`.
    """
    group_at: dict[tuple[int, int], Group | None] = {}
    waiting = list(common)
    count = 0
    while waiting:
        first, *others = waiting
        apart_ns = [_apart_ns(first, candidate, units, clocks, column) for candidate in others]
        together = {first.unit: first}
        for at in np.argsort(apart_ns, kind="stable").tolist():  # of a unit's collectives the one that ends nearest
            if apart_ns[at] <= _LIMITS.max_spread_ns:
                together.setdefault(others[at].unit, others[at])
        waiting = [candidate for candidate in others if together.get(candidate.unit) is not candidate]
        # units that take equally long leave together by chance: then the last rank of each waits for none
        took = np.concatenate([member.took for member in together.values()], axis=2)
        of_unit = np.repeat(np.arange(len(together)), [member.took.shape[2] for member in together.values()])
        if len(together) > 1 and waits_more(took, of_unit, np.zeros_like(of_unit)):
            ranks = sorted(rank for unit in together for _, rank in units[unit].members)
            for unit, member in together.items():
                for team, rank in units[unit].members:
                    group_at[rank, unknown[team][member.collective]] = Group(tuple(ranks), f"shared {count}")
            count += 1
        elif not first.is_told and len(together) == 1:
            of_others = [member for member in common if member.unit != first.unit]
            if any(math.isfinite(_apart_ns(first, member, units, clocks, column)) for member in of_others):
                group = Group(tuple(rank for _, rank in units[first.unit].members), "its unit's")
                for team, rank in units[first.unit].members:
                    group_at[rank, unknown[team][first.collective]] = group
    return group_at


def _apart_ns(
    first: _Common, second: _Common, units: Sequence[_Unit], clocks: _JointClocks, column: Mapping[int, int]
) -> float:
    """Return how far apart two units leave their collectives at most; infinity if these cannot be the same one."""
    at, there = (column[units[member.unit].members[0][1]] for member in (first, second))
    if second.operation != first.operation or clocks.component[at] != clocks.component[there]:
        return math.inf
    apart = first.end_ns - second.end_ns - (clocks.offset_ns[:, at] - clocks.offset_ns[:, there])
    known_ns = apart[~np.isnan(apart)]
    return float(np.abs(known_ns).max(initial=0.0)) if len(known_ns) else math.inf


def _unknown_places(team_of: Mapping[int, int], attended: Attended) -> dict[int, list[int]]:
    """Return, by team, the places of collectives of which no rank records the group."""
    places = by_key(
        ((team_of[rank], group is None), place)
        for rank, attendances in attended.items()
        for place, group in attendances
    )
    return {
        team: sorted(set(of_team).difference(places.get((team, False), ())))
        for (team, is_unknown), of_team in places.items()
        if is_unknown
    }


def _times(step: TeamEnds | None, places: Sequence[int], ranks: Sequence[int]) -> Floats:
    """Return (2, places, ranks) when each rank enters and leaves these collectives; NaN where it lacks them."""
    times = np.full((2, len(places), len(ranks)), np.nan)
    if step is not None and len(step[0]):
        having, start, end = step
        columns, rows = np.searchsorted(ranks, having), np.asarray(places, np.int64)
        times[0][:, columns], times[1][:, columns] = start[rows], end[rows]
    return times
