"""Sends and receives whose trace names no peer, matched by which pairs of ranks leave them together.

A send and its receive end together, so the difference of their ends is that of the two ranks' clocks: the same for all
messages between these ranks in a step. The difference that most pairs of a send or receive of one rank and one of the
other share, in every step, is therefore taken for the clocks'.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats, Ints

_LIMITS: Final = THRESHOLDS.exchange_matching


class MatchedPair(NamedTuple):
    """The messages between two ranks."""

    ranks: tuple[int, int]
    messages: tuple[tuple[int, int], ...]
    """Positions of each message among the exchanges of the one and of the other rank."""
    offset_ns: Floats
    """(steps,) what the first rank's clock is ahead."""
    spread_ns: float
    """Tolerance within which the ends agree."""


class Exchanges(NamedTuple):
    """One rank's sends and receives whose peer is unknown."""

    end: Floats
    """(steps, exchanges) when the rank leaves them, on its own clock; NaN where it lacks them."""
    stream: Ints
    """(exchanges,)."""
    among: Sequence[AbstractSet[int] | None]
    """(exchanges,) the ranks that the trace states, of which one is the peer; None: any."""

    def with_rank(self, rank: int) -> Bools:
        """Return, (exchanges,), which of them may be with a rank."""
        return np.array([ranks is None or rank in ranks for ranks in self.among], np.bool_)


def match_exchanges(exchanges: Mapping[int, Exchanges], team_of: Mapping[int, int]) -> list[MatchedPair]:
    """Match the exchanges of all ranks; each is matched once, with those that agree best first."""
    end = {rank: own.end for rank, own in exchanges.items()}
    matched = (_match_pair(exchanges, ranks) for ranks in _likely_pairs(exchanges, team_of))
    found = [pair for pair in matched if pair is not None]
    taken: set[tuple[int, int]] = set()
    kept = []
    for pair in sorted(found, key=lambda one: (one.spread_ns, -len(one.messages), one.ranks)):
        one, other = pair.ranks
        left = tuple(m for m in pair.messages if (one, m[0]) not in taken and (other, m[1]) not in taken)
        if len(left) >= _least_messages(end[one], end[other]):
            kept.append(pair._replace(messages=left))
            taken.update((one, at) for at, _ in left)
            taken.update((other, at) for _, at in left)
    return kept


def _likely_pairs(exchanges: Mapping[int, Exchanges], team_of: Mapping[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of ranks to compare: all of few ranks; of many, those at distances of some first rank's peers."""
    ranks = sorted(exchanges)
    if len(ranks) <= _LIMITS.max_ranks_for_all_pairs:
        yield from combinations(ranks, 2)
        return
    first_of: dict[int, int] = {}
    for rank in ranks:
        first_of.setdefault(team_of[rank], rank)
    distances = set()
    for first in first_of.values():
        for other in ranks:
            pair = (min(first, other), max(first, other))
            if first != other and abs(other - first) not in distances and _match_pair(exchanges, pair) is not None:
                distances.add(abs(other - first))
    for distance in sorted(distances):
        yield from ((rank, rank + distance) for rank in ranks if rank + distance in exchanges)


def _least_messages(one: Floats, other: Floats) -> int:
    """Return how many messages must agree for two ranks to be matched, given their (steps, exchanges) ends."""
    fewest = int(min(one.shape[1], other.shape[1]))
    # a stage exchanges half of its messages with each neighbour
    of_neighbour = math.ceil(fewest / 2)
    return max(2, min(_LIMITS.min_messages, of_neighbour), math.ceil(_LIMITS.min_share * fewest))


def _match_pair(exchanges: Mapping[int, Exchanges], ranks: tuple[int, int]) -> MatchedPair | None:
    """Return the messages between two ranks; None if too few exchanges of both end together."""
    one, other = (exchanges[rank].end for rank in ranks)
    steps = ~np.isnan(one).all(axis=1) & ~np.isnan(other).all(axis=1)
    if not steps.any():
        return None
    own = np.flatnonzero(~np.isnan(one[steps]).any(axis=0) & exchanges[ranks[0]].with_rank(ranks[1]))
    theirs = np.flatnonzero(~np.isnan(other[steps]).any(axis=0) & exchanges[ranks[1]].with_rank(ranks[0]))
    least = _least_messages(one, other)
    if min(len(own), len(theirs)) < least:
        return None
    apart = (one[steps][:, own, None] - other[steps][:, None, theirs]).reshape(int(steps.sum()), -1)
    order = np.argsort(apart[0])
    ordered = apart[:, order]
    for spread_ns in _LIMITS.spreads_ns:
        chosen = _largest_agreement(ordered, spread_ns, least)
        if chosen is None:
            continue
        middle = np.median(apart[:, order[chosen]], axis=1)
        # now that the clocks are known, messages may agree less well
        distance: Floats = np.abs(apart - middle[:, None]).max(axis=0)
        limit = min(_LIMITS.spread_ratio * spread_ns, THRESHOLDS.group_inference.max_spread_ns)
        cells = np.flatnonzero(distance <= limit)
        rows, columns = own[cells // len(theirs)], theirs[cells % len(theirs)]
        streams = exchanges[ranks[0]].stream[rows], exchanges[ranks[1]].stream[columns]
        messages = _unique(rows, columns, streams, distance[cells] / spread_ns)
        if len(messages) >= least:
            offset = np.full(len(one), np.nan)
            offset[steps] = middle
            return MatchedPair(ranks, messages, offset, spread_ns)
    return None


def _largest_agreement(ordered: Floats, spread_ns: float, least: int) -> Ints | None:
    """Return the most columns of (steps, pairs) differences, ascending in the first step, that agree in every step."""
    first = ordered[0]
    count = np.searchsorted(first, first + spread_ns, side="right") - np.arange(len(first))
    best: Ints | None = None
    for begin in np.argsort(-count, kind="stable")[: _LIMITS.tried_windows].tolist():
        if count[begin] < least:
            break
        low = int(np.searchsorted(first, first[begin] - spread_ns))
        window = np.arange(low, begin + int(count[begin]))
        near: Bools = np.abs(ordered[:, window] - ordered[:, begin : begin + 1]).max(axis=0) <= spread_ns
        if near.sum() >= least and (best is None or near.sum() > len(best)):
            best = window[near]
    return best


def _unique(rows: Ints, columns: Ints, streams: tuple[Ints, Ints], distance: Floats) -> tuple[tuple[int, int], ...]:
    """Return the (row, column) of candidates, each row and column once: those of least distance, in spreads.

    Of several that end at the same time, as exchanges with different peers may, the one on the streams of most others.
    """
    pairs = list(zip(*(stream.tolist() for stream in streams), strict=True))
    counts = Counter(pairs)
    usual = np.array([counts[pair] for pair in pairs])
    taken_rows: set[int] = set()
    taken_columns: set[int] = set()
    found = []
    for at in np.lexsort((columns, rows, -usual, np.floor(distance))).tolist():
        row, column = int(rows[at]), int(columns[at])
        if row not in taken_rows and column not in taken_columns:
            taken_rows.add(row)
            taken_columns.add(column)
            found.append((row, column))
    return tuple(sorted(found))
