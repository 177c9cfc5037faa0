"""Steps of a recording without markers: the repetition of its kernel sequence."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jitter.core.numeric.arrays import Codes, Ints

_GRAM = 8
_CANDIDATES = 64
_STRETCHES = 16  # number of equally long candidates compared
_LEAST_KERNELS = 4  # fewer are no evidence of steps
_LEAST_SHARE = 1 / 3  # of all kernels; a repetition that covers less is not the training loop


@dataclass(frozen=True)
class Repetition:
    """A sequence of launches that repeats.

    `names` are the kernels of one period from the start of a step; `starts_ns` are the launches of its first kernel,
    one per repetition; `end_ns` is the launch of the last kernel of the last complete repetition.
    """

    names: tuple[str, ...]
    starts_ns: tuple[int, ...]
    end_ns: int

    @property
    def period(self) -> int:
        """Number of kernels per step on the main stream."""
        return len(self.names)


def find_repetition(ids: Codes, places_ns: Ints, names: Sequence[str]) -> Repetition | None:
    """Find the step in what one stream ran: `ids` (n,) are positions in `names`, in launch order, launched at
    `places_ns` (n,). None where nothing repeats at least twice in full.

    The period is the shift under which the longest unbroken stretch equals itself: layers repeat within a step,
    but a step's stretch is longer. A step starts after the longest pause between launches (median over the
    repetitions), at a run of kernels that occurs once a period, so that an odd step shifts no later one.
    """
    found = _period(ids)
    if found is None:
        return None
    period, first = found
    start = _pause(ids, places_ns, period, first)
    return _cut(ids, places_ns, names, ids[start : start + period])


def cut_at_pattern(ids: Codes, places_ns: Ints, names: Sequence[str], pattern: Sequence[str]) -> Repetition | None:
    """Divide the launches of one stream into steps of the kernels `pattern`; None if it does not repeat here."""
    numbers = {name: number for number, name in enumerate(names)}
    if any(name not in numbers for name in pattern):
        return None
    return _cut(ids, places_ns, names, np.array([numbers[name] for name in pattern], dtype=np.int32))


def _cut(
    ids: Codes,
    places_ns: Ints,
    names: Sequence[str],
    pattern: Codes,
) -> Repetition | None:
    complete = _complete(ids, _occurrences(ids, _anchor(pattern)), pattern)
    starts = places_ns[complete]
    covered = starts.size * pattern.size
    if covered < _LEAST_KERNELS or covered < ids.size * _LEAST_SHARE:
        return None
    # a kernel without a launch of its own shares its predecessor's place, so no step can start there
    if starts.size < 2 or (np.diff(starts) <= 0).any():
        return None
    return Repetition(
        tuple(names[i] for i in pattern),
        tuple(starts.tolist()),
        int(places_ns[min(complete[-1] + pattern.size, ids.size) - 1]),
    )


def _period(ids: Codes) -> tuple[int, int] | None:
    """Return the period and the start of the longest range that equals itself shifted by the period."""
    n = ids.size
    if n < 2:
        return None
    best: tuple[int, int, int] | None = None  # (kernels covered, different kernels, -period)
    first = 0
    for period in _candidate_periods(ids):
        equal = ids[period:] == ids[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
        if edges.size == 0:
            continue
        lengths = edges[1::2] - edges[::2]
        length = int(lengths.max())
        if length < period:
            continue
        for start in edges[::2][lengths == length][:_STRETCHES].tolist():
            rank = (length + period, np.unique(ids[start : start + period]).size, -period)
            if best is None or rank > best:
                best, first = rank, start
    return None if best is None else (-best[2], first)


def _candidate_periods(ids: Codes) -> list[int]:
    """Return distances at which short runs of kernels recur, the distances that cover most kernels first."""
    distances: dict[int, int] = {}
    for gram in (1, _GRAM):
        if ids.size <= gram:
            continue
        keys = _gram_keys(ids, gram)
        order = np.argsort(keys, kind="stable")
        same = keys[order][1:] == keys[order][:-1]
        values, counts = np.unique(np.diff(order)[same], return_counts=True)
        weights = values * counts
        for position in np.argsort(-weights, kind="stable")[:_CANDIDATES]:
            distances[int(values[position])] = int(weights[position])
    return list(distances)


def _gram_keys(ids: Codes, gram: int) -> npt.NDArray[np.uint64]:
    """Return a 64-bit key of the `gram` kernels from each position on."""
    mixed = ids.astype(np.uint64) + np.uint64(1)
    keys = np.zeros(ids.size - gram + 1, dtype=np.uint64)
    for offset in range(gram):
        keys = keys * np.uint64(0x9E3779B97F4A7C15) + mixed[offset : ids.size - gram + 1 + offset]
    return keys


def _pause(ids: Codes, places_ns: Ints, period: int, first: int) -> int:
    """Return the position after the longest pause between launches, within the first period from `first`."""
    repeats = 1
    while first + (repeats + 1) * period <= ids.size and np.array_equal(
        ids[first : first + period], ids[first + repeats * period : first + (repeats + 1) * period]
    ):
        repeats += 1
    stretch = places_ns[first : first + repeats * period]
    pauses = np.diff(stretch, prepend=stretch[0])[period:].reshape(repeats - 1, period) if repeats > 1 else None
    if pauses is None:
        return first
    return first + int(np.median(pauses, axis=0).argmax())


def _anchor(pattern: Codes) -> Codes:
    """Return the shortest prefix of the period that occurs once in it, read as a circle."""
    circle = np.concatenate((pattern, pattern))
    size = 1
    while size < pattern.size:
        hits = _occurrences(circle[: pattern.size + size - 1], pattern[:size])
        if len(hits) == 1:
            break
        size = min(size * 2, pattern.size)
    return pattern[:size]


def _occurrences(ids: Codes, part: Codes) -> list[int]:
    if part.size > ids.size:
        return []
    windows = np.flatnonzero(ids[: ids.size - part.size + 1] == part[0])
    for offset in range(1, part.size):
        windows = windows[ids[windows + offset] == part[offset]]
        if windows.size == 0:
            break
    return [int(hit) for hit in windows]


def _complete(ids: Codes, hits: list[int], pattern: Codes) -> list[int]:
    """Return the hits that start a step; the last one only if its complete period was recorded."""
    if not hits:
        return []
    whole = np.array_equal(ids[hits[-1] : hits[-1] + pattern.size], pattern)
    return hits if whole else hits[:-1]
