"""Which ranks leave collectives together: the groups of collectives that ranks have in the same order.

Ranks of one group leave a collective at the same time, so between two of them the difference of their ends is the same
at all collectives of a step: that of their clocks. Between ranks of different groups it varies with the groups'
progress. Collectives of one operation on one stream (a *channel*) mostly belong to one communicator, so their ends are
compared together first. Collectives that contradict the channel's groups are compared by themselves.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.alignment.program import Operation
from jitter.analysis.collectives.exchange_matching import is_longer_wait
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.grouping import by_key
from jitter.core.numeric.arrays import Floats, Ints, distinct_values, spread_positions
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
    clocks: "JointClocks"
    """Of these ranks."""


def infer_groups(
    collectives: Sequence[Operation], start: Floats, end: Floats, known: "JointClocks | None" = None
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
            labels_of.update(divide_channel(end, took, np.array(channel)))
    waiting = [at for at in range(len(collectives)) if at not in labels_of]
    while waiting:
        # a collective whose groups are known connects ranks, which may tell those of the next one
        clocks = _Clocks(end, labels_of, known)
        settled = {at: labels for at in waiting if (labels := _divide_place(at, end, took, clocks)) is not None}
        if not settled and len(waiting) > 1:
            settled = dict(divide_channel(end, took, np.array(waiting)))
        labels_of.update(settled)
        waiting = [at for at in waiting if at not in settled] if settled else []
    channel_of = {at: number for number, channel in enumerate(channels.values()) for at in channel}
    clocks = _Clocks(end, labels_of, known)
    if not clocks.joint.are_comparable:
        labels_of |= _join_waiting_groups(labels_of, end, took, clocks.limit_ns)
    labels_of = _without_contradictions(labels_of, channel_of, end, took, known)
    clocks = _Clocks(end, labels_of, known)
    labels_of = {at: _with_last_arrivals(at, labels, end, took, clocks) for at, labels in labels_of.items()}
    every = [at for at, labels in labels_of.items() if (labels == 0).all() or clocks.are_left_by_all(end[:, at])]
    return GroupLabels(labels_of, frozenset(every), clocks.joint)


def divide_channel(end: Floats, took: Floats, channel: Ints) -> Iterator[tuple[int, Ints]]:
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
    other_groups = dict(divide_channel(end, took, channel[rest]))
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
    clocks = JointClocks(end.shape[2], len(end))
    for _, rank, peer in _spanning_tree(spread):
        ahead_ns = lower_median(end[:, :, peer] - end[:, :, rank])[:, 0]
        clocks.connect(np.array([rank, peer]), np.stack([np.zeros(len(end)), ahead_ns], axis=1))
    most = min(THRESHOLDS.max_tried, max(THRESHOLDS.min_repeats, _LIMITS.turns_cells // end.shape[2]))
    labels_of = {
        at: _divide_on_one_clock(end[:, [at]], took[:, [at]], clocks.offset_ns)
        for at in spread_positions(end.shape[1], most)
    }
    every = np.zeros(end.shape[2], np.int64)
    settled: dict[int, Ints] = {}
    for labels, places in by_groups(labels_of):
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
    chosen = end[:: -(-len(end) // THRESHOLDS.few_steps), :: -(-end.shape[1] // THRESHOLDS.max_tried)]
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
    for members in groups_of(labels):
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


class JointClocks:
    """The clocks of ranks, as far as collectives and messages connect them."""

    def __init__(self, ranks: int, steps: int) -> None:
        self.offset_ns = np.zeros((steps, ranks))
        """(steps, ranks) what each rank's clock is ahead of that of the first rank of its component."""
        self.component = np.arange(ranks)
        """(ranks,) ranks with equal numbers are connected."""

    def among(self, ranks: Sequence[int]) -> "JointClocks":
        """Return a copy of those of some ranks."""
        clocks = JointClocks(len(ranks), len(self.offset_ns))
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
        return len(distinct_values(self.component)) == 1


def groups_of(labels: Ints) -> list[Ints]:
    """Return the members of each group."""
    return [np.flatnonzero(labels == group) for group in distinct_values(labels[labels != ALONE]).tolist()]


def by_groups(labels_of: Mapping[int, Ints]) -> list[tuple[Ints, list[int]]]:
    """Return the ways, (ranks,) each, in which collectives divide the ranks, with the collectives that do."""
    places_of = by_key((labels.tobytes(), at) for at, labels in labels_of.items())
    return [(np.frombuffer(key, np.int64), places) for key, places in places_of.items()]


def align_clocks(end: Floats, labels_of: Mapping[int, Ints], known: JointClocks | None = None) -> JointClocks:
    """Return the clocks of ranks that known groups connect, or messages, whose clocks are `known`.

    Ranks of one group differ by the median over the collectives with these groups; offsets add up along groups.
    """
    clocks = JointClocks(end.shape[2], len(end)) if known is None else known.among(range(end.shape[2]))
    # groups of most collectives first: their offsets are the surest
    for labels, places in sorted(by_groups(labels_of), key=lambda item: (-len(item[1]), item[0].tobytes())):
        middle = lower_median(_within_groups(end[:, places], labels), axis=1)[:, 0]
        for members in groups_of(labels):
            clocks.connect(members, middle[:, members])
    return clocks


class _Clocks:
    """The clocks of the ranks as the collectives of known groups tell them."""

    def __init__(self, end: Floats, labels_of: Mapping[int, Ints], known: JointClocks | None) -> None:
        divided = by_groups(labels_of)
        self.partitions = [labels for labels, _ in divided]
        """Each (ranks,) way in which a collective divides the ranks."""
        errors = [_errors(end[:, places], labels) for labels, places in divided]
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
            return min(fitting, key=lambda labels: (len(distinct_values(labels)), labels.tobytes()))
        labels = _divide_on_one_clock(ends[:, None], durations, clocks.joint.offset_ns)
        # else the clocks are wrong: see `_without_contradictions`
        return labels if over_steps is None or not waits_more(durations, labels, over_steps) else over_steps
    return over_steps if over_steps is not None and (over_steps != ALONE).all() else None


def _join_waiting_groups(labels_of: Mapping[int, Ints], end: Floats, took: Floats, limit_ns: float) -> dict[int, Ints]:
    """Return the groups of collectives in which groups wait for each other, without their clocks.

    Of a channel on which most collectives are of small groups, one of all ranks is left together in these, too. There
    the last rank of a group to arrive waits for other groups, and the groups' ends differ by as much in every step, but
    for `limit_ns`.
    """
    joined: dict[int, Ints] = {}
    for labels, places in by_groups(labels_of):
        groups, every = groups_of(labels), np.zeros(len(labels), np.int64)
        if len(groups) < 2 or (labels == ALONE).any():
            continue
        waits = zip(places, *(_waits_ns(took[:, places], some).tolist() for some in (labels, every)), strict=True)
        waiting = [at for at, wait_ns, least_ns in waits if is_longer_wait(wait_ns, least_ns)]
        for number in spread_positions(len(waiting), THRESHOLDS.max_tried).tolist():
            at = waiting[number]
            ends = np.stack([end[:, at, members[0]] for members in groups], axis=1)
            spread = _spread_over_steps(ends)
            of_groups = divide_ranks(spread)
            if of_groups is None or (of_groups == ALONE).any():
                continue
            if not (spread[of_groups[:, None] == of_groups] > limit_ns).any():
                joined[at] = of_groups[np.unique(labels, return_inverse=True)[1]]
    return joined


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
    known: JointClocks | None,
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
    """Return how long last arrivals stay on average over steps and collectives, those of the group with the most."""
    return max((float(np.nanmean(stays)) for stays in _stays(took, labels) if not np.isnan(stays).all()), default=0.0)


def _waits_ns(took: Floats, labels: Ints) -> Floats:
    """Return, (collectives,), the same of each collective by itself."""
    waits_ns = np.zeros(took.shape[1])
    for stays in _stays(took, labels):
        known = (~np.isnan(stays)).sum(axis=0)
        np.maximum(waits_ns, np.nansum(stays, axis=0) / np.maximum(known, 1), out=waits_ns)
    return waits_ns


def _stays(took: Floats, labels: Ints) -> Iterator[Floats]:
    """Yield how long the last rank of each group to arrive stays, (steps, collectives): that of a lone rank is its own.

    `took` (steps, collectives, ranks) is how long each rank does.
    """
    for rank in np.flatnonzero(labels == ALONE).tolist():
        yield took[:, :, rank]
    for members in groups_of(labels):
        yield np.fmin.reduce(took[:, :, members], axis=2)


def _with_last_arrivals(at: int, labels: Ints, end: Floats, took: Floats, clocks: _Clocks) -> Ints:
    """Return the groups of a collective, or coarser ones that are left together and contain what all ranks wait for.

    The last rank of a group to arrive waits for none. Where even it waits, it waits for a rank of another group.
    """
    count = len(distinct_values(labels))
    if count == 1 or not clocks.joint.are_comparable:
        return labels
    durations = took[:, at : at + 1]
    coarser = [partition for partition in clocks.fitting(end[:, at]) if len(distinct_values(partition)) < count]
    best = min(
        coarser,
        key=lambda partition: (_wait_ns(durations, partition), -len(distinct_values(partition))),
        default=labels,
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
