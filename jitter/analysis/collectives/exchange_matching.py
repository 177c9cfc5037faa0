"""Sends and receives whose trace names no peer, matched by which pairs of ranks leave them together.

A send and its receive end together, so the difference of their ends is that of the two ranks' clocks: the same for all
messages between these ranks in a step. Programs exchange with each neighbour, or in each direction, on a stream of its
own: streams with as many exchanges are matched, the first with the first, by the clocks that most of them agree on. A
stream without names may be a part of another one, on which a stage exchanges with both neighbours. For the rest, the
difference that most pairs of exchanges of two ranks share, in every step, is taken for the clocks'.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, compress, product
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.grouping import by_key
from jitter.core.numeric.arrays import Bools, Floats, Ints, distinct_values

_LIMITS: Final = THRESHOLDS.exchange_matching


@dataclass(frozen=True, eq=False)
class MatchedPair:
    """The messages between two ranks."""

    ranks: tuple[int, int]
    messages: tuple[tuple[int, int], ...]
    """Positions of each message among the exchanges of the one and of the other rank."""
    offset_ns: Floats
    """(steps,) what the first rank's clock is ahead."""
    spread_ns: float
    """How far the ends of the messages that tell the difference of the clocks differ from it at most."""
    waits_ns: Floats
    """(messages,) how long the later rank stays in each: it waits for none, so that is the transfer alone."""
    apart_ns: Floats
    """(messages,) how far the ends of each differ at most from the difference of the clocks."""
    are_streams: bool
    """Whether all exchanges on streams are matched, the first with the first."""

    def only(self, chosen: Bools) -> "MatchedPair":
        """Return this pair with some of its messages, (messages,)."""
        messages = tuple(compress(self.messages, chosen.tolist()))
        return replace(self, messages=messages, waits_ns=self.waits_ns[chosen], apart_ns=self.apart_ns[chosen])

    def first(self, count: int) -> "MatchedPair":
        """Return this pair with the messages among the first exchanges of both ranks."""
        return self.only(np.array([max(at) < count for at in self.messages], np.bool_))

    @cached_property
    def wait_ns(self) -> float:
        """How long the later rank stays in a message, on average."""
        return float(self.waits_ns.mean())

    @cached_property
    def exchanges(self) -> frozenset[tuple[int, int]]:
        """The (rank, position) of each exchange."""
        return frozenset(self._times_of)

    def is_rivalled_by(self, other: "MatchedPair") -> bool:
        """Return whether these exchanges end together with those of another rank about as well."""
        return (
            other.ranks != self.ranks
            and len(other.messages) >= len(self.messages)
            and other.spread_ns <= THRESHOLDS.group_inference.clear_gap * self.spread_ns
            and not other.waits_more(self.wait_ns)
            and not self.exchanges.isdisjoint(other.exchanges)
        )

    def waits_more(self, least_ns: float) -> bool:
        """Return whether even the later rank waits longer than this: then these are messages with other ranks."""
        return is_longer_wait(self.wait_ns, least_ns)

    def is_refuted_by(self, other: "MatchedPair") -> bool:
        """Return whether exchanges of these end about as closely with those of another rank, and then wait less.

        Or whether most of these end far more closely with those of the other rank.
        """
        ours, theirs = self._times_of, other._times_of
        shared = list(ours.keys() & theirs.keys())
        if not shared or other.spread_ns > THRESHOLDS.much_more * self.spread_ns:
            return False
        (wait_ns, apart_ns), (other_wait_ns, other_apart_ns) = (
            np.mean([times[at] for at in shared], axis=0).tolist() for times in (ours, theirs)
        )
        return is_longer_wait(wait_ns, other_wait_ns) or (
            2 * len(shared) >= len(self.messages) and THRESHOLDS.group_inference.clear_gap * other_apart_ns < apart_ns
        )

    @cached_property
    def _times_of(self) -> dict[tuple[int, int], tuple[float, float]]:
        """By (rank, position) of each exchange how long the later rank stays in it, and how far apart both end, ns."""
        times = zip(self.messages, self.waits_ns.tolist(), self.apart_ns.tolist(), strict=True)
        return {(rank, at[side]): (wait, apart) for at, wait, apart in times for side, rank in enumerate(self.ranks)}

    @property
    def apart(self) -> int:
        """Number of the second rank from the first."""
        return self.ranks[1] - self.ranks[0]

    def preference(self, alike: int) -> tuple[float, ...]:
        """Return the sort key of pairs that contradict each other, the likeliest first.

        So many pairs are `alike` as far apart: ranks of replicas that keep pace end together about as closely, and a
        job's neighbours are mostly at one distance.
        """
        if not self.are_streams:
            return self.spread_ns, -len(self.messages), *self.ranks
        closeness = math.floor(math.log(max(self.spread_ns, 1.0), THRESHOLDS.group_inference.clear_gap))
        return -len(self.messages), closeness, -alike, self.spread_ns + self.wait_ns, *self.ranks


def is_longer_wait(wait_ns: float, least_ns: float) -> bool:
    """Return whether a wait is longer than another one by more than transfers of equal size vary."""
    return wait_ns - least_ns > varying_transfer_ns(least_ns)


def varying_transfer_ns(transfer_ns: float) -> float:
    """Return by how much transfers of equal size vary that take so long, ns."""
    return max(THRESHOLDS.later_ns, THRESHOLDS.group_inference.min_wait_share * transfer_ns)


class Exchanges(NamedTuple):
    """One rank's sends and receives whose peer is unknown."""

    end: Floats
    """(steps, exchanges) when the rank leaves them, on its own clock; NaN where it lacks them."""
    took: Floats
    """(steps, exchanges) how long the rank is in them."""
    stream: Ints
    """(exchanges,)."""
    among: Sequence[AbstractSet[int] | None]
    """(exchanges,) the ranks of which one is the peer; None: any."""
    named: Bools
    """(exchanges,) whether the trace calls it a send or a receive: others are matched by whole streams alone."""

    def first(self, count: int) -> "Exchanges":
        """Return the first exchanges of each step."""
        return self.at(range(min(count, len(self.stream))))

    def at(self, places: Sequence[int]) -> "Exchanges":
        """Return the exchanges at these places of each step."""
        chosen = np.asarray(places, np.int64)
        among = [self.among[at] for at in places]
        return Exchanges(self.end[:, chosen], self.took[:, chosen], self.stream[chosen], among, self.named[chosen])

    def are_unnamed_left(self) -> bool:
        """Return whether some that the trace does not call a message may have a peer."""
        return any(ranks is None or ranks for ranks in compress(self.among, ~self.named))

    def with_rank(self, rank: int) -> Bools:
        """Return, (exchanges,), which of them may be with a rank."""
        return np.array([ranks is None or rank in ranks for ranks in self.among], np.bool_)

    def by_stream(self, rank: int) -> list[Ints]:
        """Return the exchanges that may be with a rank, stream by stream, in their order."""
        may_be = self.with_rank(rank)
        return [np.flatnonzero((self.stream == stream) & may_be) for stream in distinct_values(self.stream).tolist()]

    def without(self, matched: Sequence[int]) -> "Exchanges":
        """Return the exchanges, of which those at the places `matched` can have no peer."""
        among = list(self.among)
        for at in matched:
            among[at] = frozenset()
        return self._replace(among=among)


def match_exchanges(exchanges: Mapping[int, Exchanges], team_of: Mapping[int, int]) -> list[MatchedPair]:
    """Return the pairs of ranks that exchange messages. An exchange is in one pair: the one that agrees best.

    Of many ranks only the first of each team is compared with all others. The rest are compared at the distances of
    the pairs found so. Real partners are at few distances; replicas that keep pace look like partners at any distance.
    """
    ranks = sorted(exchanges)
    if len(ranks) <= _LIMITS.max_ranks_for_all_pairs:
        return _match_likely(exchanges, list(combinations(ranks, 2)), team_of)
    first_of = {team_of[rank]: rank for rank in reversed(ranks)}
    of_first = {(min(first, peer), max(first, peer)) for first in first_of.values() for peer in ranks if peer != first}
    distances = {pair.apart for pair in _match_likely(exchanges, sorted(of_first), team_of)}
    at_distances = [(rank, rank + distance) for distance in sorted(distances) for rank in ranks]
    return _match_likely(exchanges, [pair for pair in at_distances if pair[1] in exchanges], team_of)


def are_messages(
    exchanges: Mapping[int, Exchanges], members: Sequence[int], places: Sequence[int], others: Iterable[int]
) -> bool:
    """Return whether half of the exchanges that these ranks leave together may be messages with other ranks.

    Replicas that keep pace leave theirs together, too; but a message ends as closely with that of its peer, and the
    later one of both waits no longer than any replica. Exchanges that end further apart than the error of the clocks
    may be messages, too. `places` are the exchanges of each of the members.
    """
    first, *_ = members
    at = list(places)[: THRESHOLDS.max_tried]
    ends, took = (np.stack(times) for times in zip(*(exchanges[member].at(at)[:2] for member in members), strict=True))
    whole = ~np.isnan(ends).any(axis=(0, 2))
    if not whole.any():
        return True
    apart = (ends[1:] - ends[0])[:, whole]
    # of two of them at least: further ones may only seem to be of this group
    together_ns = np.sort(np.abs(apart - np.median(apart, axis=2, keepdims=True)).max(axis=1), axis=0)[1]
    if float(np.median(together_ns)) > THRESHOLDS.group_inference.clock_error_ns:
        return True
    most_ns = np.maximum(together_ns, THRESHOLDS.group_inference.resolution_ns)
    waits_ns = took[:, whole].min(axis=0).mean(axis=0)
    own_exchanges, likely = exchanges[first].at(at), set[int]()
    for rank in sorted(others, key=lambda other: abs(other - first)):  # most peers are at the least distances
        for pair in _match_pair({first: own_exchanges, rank: exchanges[rank]}, (first, rank)):
            for (exchange, _), wait_ns, apart_ns in zip(pair.messages, pair.waits_ns, pair.apart_ns, strict=True):
                if apart_ns <= most_ns[exchange] and not is_longer_wait(wait_ns, waits_ns[exchange]):
                    likely.add(exchange)
        if 2 * len(likely) >= len(at):
            return True
    return False


def _match_likely(
    exchanges: Mapping[int, Exchanges], likely: Sequence[tuple[int, int]], team_of: Mapping[int, int]
) -> list[MatchedPair]:
    """Match the exchanges of these pairs of ranks: whole streams first, then the rest message by message."""
    kept, left = list[MatchedPair](), dict(exchanges)
    while True:
        streams, used = _select_streams(left, likely)
        kept, left = kept + streams, _tell_messages(left, used, team_of)
        # what is left of a stream with two neighbours, once the one's messages are known, is the other's
        if not streams or not any(of_rank.are_unnamed_left() for of_rank in left.values()):
            break
    named = _only_named(left)
    single = _closest([pair for ranks in likely for pair in _match_pair(named, ranks)])
    enough = [pair for pair in single if len(pair.messages) >= _least_of(left, pair)]
    return kept + _select(enough, left)[0]


def _select_streams(
    exchanges: Mapping[int, Exchanges], likely: Sequence[tuple[int, int]]
) -> tuple[list[MatchedPair], set[tuple[int, int]]]:
    """Return the likeliest whole streams of these pairs of ranks, and the exchanges in them, as `_select` does.

    Streams may seem to end together because ranks keep pace, as those of a pipeline's replicas do; not if their first
    messages then wait less with other ranks, or end far more closely.
    """
    streams = [pair for ranks in likely for pair in _match_streams(exchanges, ranks)]
    first = {rank: of_this_rank.first(THRESHOLDS.max_tried) for rank, of_this_rank in _only_named(exchanges).items()}
    others = [other for pair in likely for other in _match_pair(first, pair)] if streams else []
    of_rank = by_key((rank, other) for other in others for rank in other.ranks)

    def is_refuted(pair: MatchedPair) -> bool:
        rivals = (other for rank in pair.ranks for other in of_rank.get(rank, ()) if other.ranks != pair.ranks)
        return any(map(pair.first(THRESHOLDS.max_tried).is_refuted_by, rivals))

    return _select([pair for pair in streams if not is_refuted(pair)], exchanges)


def _only_named(exchanges: Mapping[int, Exchanges]) -> dict[int, Exchanges]:
    """Return the exchanges, of which those without a name can have no peer: they are matched by whole streams alone."""
    return {
        rank: of_this_rank.without(np.flatnonzero(~of_this_rank.named).tolist())
        for rank, of_this_rank in exchanges.items()
    }


def _tell_messages(
    exchanges: Mapping[int, Exchanges], used: AbstractSet[tuple[int, int]], team_of: Mapping[int, int]
) -> dict[int, Exchanges]:
    """Return the exchanges, of which those in `used`, (rank, position), can have no other peer.

    The others on their streams, on any rank of the team, are messages as well, if they have no name.
    """
    of_rank = by_key(used)
    streams = by_key((team_of[rank], exchanges[rank].stream[at]) for rank, at in used)
    kept = {}
    for rank, of_this_rank in exchanges.items():
        named = of_this_rank.named | np.isin(of_this_rank.stream, streams.get(team_of[rank], []))
        among = [
            None if is_told else ranks
            for is_told, ranks in zip(named & ~of_this_rank.named, of_this_rank.among, strict=True)
        ]
        kept[rank] = of_this_rank._replace(named=named, among=among).without(of_rank.get(rank, ()))
    return kept


def _select(
    candidates: Sequence[MatchedPair], exchanges: Mapping[int, Exchanges]
) -> tuple[list[MatchedPair], set[tuple[int, int]]]:
    """Return the likeliest of pairs that contradict each other, streams whole or not at all; and what has a partner.

    Or has one of several, and it is unknown which: (rank, position). An exchange is in one pair.
    """
    kept, used = list[MatchedPair](), set[tuple[int, int]]()
    of_rank = by_key((rank, pair) for pair in candidates for rank in pair.ranks)
    waiting = [any(pair.is_refuted_by(other) for rank in pair.ranks for other in of_rank[rank]) for pair in candidates]
    apart = Counter(pair.apart for pair, is_waiting in zip(candidates, waiting, strict=True) if not is_waiting)
    for _, pair in sorted(
        zip(waiting, candidates, strict=True),
        key=lambda candidate: (candidate[0], *candidate[1].preference(apart[candidate[1].apart])),
    ):
        first_rank, second_rank = pair.ranks
        rivals = [rival for rank in pair.ranks for rival in of_rank[rank] if pair.is_rivalled_by(rival)]
        unclear = [rival.exchanges for rival in rivals if used.isdisjoint(rival.exchanges)]
        if unclear and used.isdisjoint(pair.exchanges) and _states_members(exchanges, pair):
            # several ranks may be in one kernel: which they are is unknown
            used.update(pair.exchanges, *unclear)
        is_free = [(first_rank, at) not in used and (second_rank, to) not in used for at, to in pair.messages]
        free = pair.only(np.array(is_free, np.bool_))
        if (all(is_free) or not pair.are_streams) and len(free.messages) >= _least_of(exchanges, pair):
            kept.append(free)
            used |= free.exchanges
    return kept, used


def _closest(pairs: Sequence[MatchedPair]) -> Iterator[MatchedPair]:
    """Yield the pairs without some messages: one of their exchanges ends far more closely with another rank's.

    A stage's exchanges with both of its neighbours may end about together in every pass.
    """
    closest: dict[tuple[int, int], float] = defaultdict(lambda: math.inf)
    for pair in pairs:
        for message, apart_ns in zip(pair.messages, pair.apart_ns.tolist(), strict=True):
            for end in zip(pair.ranks, message, strict=True):
                closest[end] = min(closest[end], max(apart_ns, THRESHOLDS.group_inference.resolution_ns))
    for pair in pairs:
        most_ns = [min(map(closest.__getitem__, zip(pair.ranks, at, strict=True))) for at in pair.messages]
        yield pair.only(pair.apart_ns <= THRESHOLDS.group_inference.clear_gap * np.array(most_ns))


def _least_of(exchanges: Mapping[int, Exchanges], pair: MatchedPair) -> int:
    first, second = pair.ranks
    return _least_messages(exchanges[first], exchanges[second])


def _states_members(exchanges: Mapping[int, Exchanges], pair: MatchedPair) -> bool:
    """Return whether the trace states of which ranks the peers are."""
    return all(exchanges[rank].among[at] is not None and exchanges[rank].named[at] for rank, at in pair.exchanges)


def _match_streams(exchanges: Mapping[int, Exchanges], ranks: tuple[int, int]) -> Iterator[MatchedPair]:
    """Yield the messages on streams of two ranks on which as many exchanges end together, the first with the first.

    Passes that follow each other evenly make streams of different messages seem to end together, with other clocks: the
    clocks by which most messages do are taken, then those by which the ranks wait least. Of operations without a name
    a stream may be a part of another one.
    """
    first, second = (exchanges[rank] for rank in ranks)
    pairs = []
    for places in product(first.by_stream(ranks[1]), second.by_stream(ranks[0])):
        first_places, second_places = _cut_to_the_shorter(first, second, *places)
        if len(first_places) == len(second_places) > 1:
            apart = first.end[:, first_places] - second.end[:, second_places]
            middle = np.median(apart, axis=1)  # NaN where a rank lacks the step, or a part of it
            spread_ns = float(np.fmax.reduce(np.abs(apart - middle[:, None]), axis=None, initial=-np.inf))
            if 0 <= spread_ns <= THRESHOLDS.group_inference.max_spread_ns:
                messages = tuple(zip(first_places.tolist(), second_places.tolist(), strict=True))
                waits_ns = _waits_of(first, second, messages)
                apart_ns = np.fmax.reduce(np.abs(apart - middle[:, None]), axis=0)
                pairs.append(MatchedPair(ranks, messages, middle, spread_ns, waits_ns, apart_ns, are_streams=True))
    pairs.sort(key=lambda pair: pair.preference(0))
    together = [_join([pair, *pairs]) for pair in pairs]
    if together:
        yield min(together, key=lambda pair: pair.preference(0))


def _cut_to_the_shorter(
    first: Exchanges, second: Exchanges, first_places: Ints, second_places: Ints
) -> tuple[Ints, Ints]:
    """Return the places of two streams; the longer one is cut to what ends together with the shorter one.

    Only if all of the shorter one does, and the trace does not call both of them messages.
    """
    if len(first_places) > len(second_places):
        return _cut_to_the_shorter(second, first, second_places, first_places)[::-1]
    count, most_ns = len(first_places), 2 * THRESHOLDS.group_inference.clock_error_ns
    are_named = first.named[first_places].any() and second.named[second_places].any()
    if count == len(second_places) or count < THRESHOLDS.min_repeats or are_named:
        return first_places, second_places
    both = np.hstack([first.end[:, first_places], second.end[:, second_places]])
    whole = np.flatnonzero(~np.isnan(both).any(axis=1))
    if not len(whole):
        return first_places, second_places
    after, longer = both[whole[0], :count] - both[whole[0], 0], both[whole[0], count:]
    begins_ns = longer[: len(longer) - count + 1]
    for after_ns in after[:0:-1].tolist():
        ends_ns = begins_ns + after_ns
        begins_ns = begins_ns[np.abs(longer[_nearest(longer, ends_ns)] - ends_ns) <= most_ns]
        if not len(begins_ns):  # as of most streams, after a few
            return first_places, second_places
    closest = [_nearest(longer, begin_ns + after) for begin_ns in begins_ns[: THRESHOLDS.max_tried].tolist()]
    fitting = [second_places[nearest] for nearest in closest if (np.diff(nearest) > 0).all()]
    apart_of = [first.end[:, first_places] - second.end[:, places] for places in fitting]
    spread_of = [float(np.nanmax(np.abs(apart - np.median(apart, axis=1)[:, None]))) for apart in apart_of]
    best = min(range(len(fitting)), key=spread_of.__getitem__, default=None)
    return first_places, second_places if best is None else fitting[best]


def _nearest(ascending: Floats, values: Floats) -> Ints:
    """Return the position of the nearest of the ascending ones to each value, (values,)."""
    after = np.clip(np.searchsorted(ascending, values), 1, len(ascending) - 1)
    return np.where(values - ascending[after - 1] <= ascending[after] - values, after - 1, after)


def _join(pairs: Sequence[MatchedPair]) -> MatchedPair:
    """Join the first match of two ranks with those of the others that agree with its clocks."""
    first, messages, joined = pairs[0], dict[tuple[int, int], tuple[float, float]](), list[MatchedPair]()
    taken = set[int](), set[int]()
    for pair in pairs:
        apart = np.abs(pair.offset_ns - first.offset_ns)
        is_free = all(taken[side].isdisjoint(new[side] for new in pair.messages) for side in (0, 1))
        if is_free and not (apart > THRESHOLDS.group_inference.max_spread_ns).any():
            times = zip(pair.waits_ns.tolist(), pair.apart_ns.tolist(), strict=True)
            messages.update(zip(pair.messages, times, strict=True))
            for side in (0, 1):
                taken[side].update(new[side] for new in pair.messages)
            joined.append(pair)
    ordered = tuple(sorted(messages))
    waits_ns, apart_ns = np.array([messages[message] for message in ordered]).T
    spread_ns = max(pair.spread_ns for pair in joined)
    return replace(first, messages=ordered, spread_ns=spread_ns, waits_ns=waits_ns, apart_ns=apart_ns)


def _waits_of(first: Exchanges, second: Exchanges, messages: Sequence[tuple[int, int]]) -> Floats:
    """Return, (messages,), how long the later rank stays in each, on average over the steps."""
    took = (rank.took[:, list(at)] for rank, at in zip((first, second), zip(*messages, strict=True), strict=True))
    waits_ns: Floats = np.nanmean(np.fmin(*took), axis=0)
    return waits_ns


def _least_messages(first: Exchanges, second: Exchanges) -> int:
    """Return how many messages must agree for two ranks to be matched, given all that may be messages."""
    fewest, fewest_named = min(len(first.named), len(second.named)), min(sum(first.named), sum(second.named))
    # a stage exchanges half of its messages with each neighbour
    of_neighbour = math.ceil(fewest / 2)
    return max(2, min(THRESHOLDS.min_repeats, of_neighbour), math.ceil(THRESHOLDS.minor_share * fewest_named))


def _match_pair(exchanges: Mapping[int, Exchanges], ranks: tuple[int, int]) -> Iterator[MatchedPair]:
    """Yield the messages between two ranks, if enough exchanges of both end together, by each likely pair of clocks.

    In passes that follow each other evenly, an exchange ends together with the one before or after its own, too, or
    with one of other ranks. Clocks are left out if by others more than twice as many exchanges end together and wait
    no longer; the caller chooses among the rest.
    """
    pairs = _list_matches(exchanges, ranks)
    for pair in pairs:
        most = THRESHOLDS.much_more * len(pair.messages)
        if not any(len(other.messages) > most and not other.waits_more(pair.wait_ns) for other in pairs):
            yield pair


def _list_matches(exchanges: Mapping[int, Exchanges], ranks: tuple[int, int]) -> list[MatchedPair]:
    """Return the messages between two ranks by each difference of their clocks by which enough end together.

    The tolerance is the least by which half of the exchanges do.
    """
    matches: list[MatchedPair] = []
    first, second = (exchanges[rank] for rank in ranks)
    first_end, second_end = first.end, second.end
    steps = ~np.isnan(first_end).all(axis=1) & ~np.isnan(second_end).all(axis=1)
    if not steps.any():
        return matches
    first_places = np.flatnonzero(~np.isnan(first_end[steps]).any(axis=0) & first.with_rank(ranks[1]))
    second_places = np.flatnonzero(~np.isnan(second_end[steps]).any(axis=0) & second.with_rank(ranks[0]))
    least, most = _least_messages(first, second), min(len(first_places), len(second_places))
    if most < least:
        return matches
    apart = (first_end[steps][:, first_places, None] - second_end[steps][:, None, second_places]).reshape(
        int(steps.sum()), -1
    )
    order = np.argsort(apart[0])
    ordered = apart[:, order]
    for within_ns in _LIMITS.spreads_ns:
        for chosen in _agreements(ordered, within_ns, least):
            middle = np.median(apart[:, order[chosen]], axis=1)
            # now that the clocks are known, messages may agree less well
            distance: Floats = np.abs(apart - middle[:, None]).max(axis=0)
            limit = min(_LIMITS.spread_ratio * within_ns, THRESHOLDS.group_inference.max_spread_ns)
            cells = np.flatnonzero(distance <= limit)
            rows, columns = first_places[cells // len(second_places)], second_places[cells % len(second_places)]
            streams = first.stream[rows], second.stream[columns]
            messages = _unique(rows, columns, streams, distance[cells] / within_ns)
            if len(messages) >= least:
                offset = np.full(len(first_end), np.nan)
                offset[steps] = middle
                waits_ns = _waits_of(first, second, messages)
                spread_ns = float(distance[order[chosen]].max())
                first_at, second_at = (list(at) for at in zip(*messages, strict=True))
                apart_ns = np.abs(
                    first_end[steps][:, first_at] - second_end[steps][:, second_at] - middle[:, None]
                ).max(axis=0)
                matches.append(MatchedPair(ranks, messages, offset, spread_ns, waits_ns, apart_ns, are_streams=False))
        if any(2 * len(pair.messages) >= most for pair in matches):
            break
    return matches


def _agreements(ordered: Floats, spread_ns: float, least: int) -> list[Ints]:
    """Return the columns of (steps, pairs) differences, ascending in the first step, that agree in every step.

    Those of each difference, the most first, of the differences that most share in the first step.
    """
    first = ordered[0]
    after = np.searchsorted(first, first + spread_ns, side="right")
    untried, agreeing = after - np.arange(len(first)), list[Ints]()
    for _ in range(THRESHOLDS.max_tried):
        begin = int(untried.argmax())
        if untried[begin] < least:
            break
        window = np.arange(np.searchsorted(first, first[begin] - spread_ns), after[begin])
        untried[begin] = 0
        near: Bools = np.abs(ordered[:, window] - ordered[:, begin : begin + 1]).max(axis=0) <= spread_ns
        if near.sum() >= least:
            agreeing.append(window[near])
            untried[window] = 0
    return sorted(agreeing, key=len, reverse=True)[: THRESHOLDS.min_samples]


def _unique(rows: Ints, columns: Ints, streams: tuple[Ints, Ints], distance: Floats) -> tuple[tuple[int, int], ...]:
    """Return the (row, column) of candidates, each row and column once: those of least distance, in spreads.

    Of several that end at the same time, as exchanges with different peers may, the one on the streams of most others.
    """
    pairs = list(zip(*(stream.tolist() for stream in streams), strict=True))
    counts = Counter(pairs)
    usual = np.array([counts[pair] for pair in pairs])
    taken_rows: set[int] = set()
    taken_columns: set[int] = set()
    chosen = []
    for at in np.lexsort((columns, rows, -usual, np.floor(distance))).tolist():
        row, column = int(rows[at]), int(columns[at])
        if row not in taken_rows and column not in taken_columns:
            taken_rows.add(row)
            taken_columns.add(column)
            chosen.append((row, column))
    return tuple(sorted(chosen))
