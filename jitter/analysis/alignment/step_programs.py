"""Programs of a run's steps: the last micro-batch of an optimizer step, or an evaluation, runs other kernels."""

import math
from collections import Counter

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.numeric.stats import known_median


def number_programs(kernels: Floats, sequences: Floats, *, on_request: bool = False) -> Ints:
    """Return, (steps,), the number of each step's program; 0 is the commonest one.

    How many kernels each rank runs tells a program, as their names and order may vary with what autotuning and threads
    do; of steps with as many kernels, their sequences tell it, if these come back as they were. A program is one that
    comes back after another, and of which most ranks run other kernels. One of two steps, which may agree by where
    their inferred borders lie, runs by far more or fewer. Any other step, as one in which a single rank differs, has
    the program that it shares with most ranks, else the commonest one.

    Args:
        kernels: (steps, ranks) each rank's kernels, NaN where it lacks the step.
        sequences: (steps, ranks) a number for each sequence of kernels, NaN where the rank lacks the step.
        on_request: whether the steps are those of a serving engine, which runs what is asked for: a program may come
            once, and differ by few kernels.

    """
    numbers = _number_alike(kernels, kernels, on_request)
    for at in [np.flatnonzero(numbers == program) for program in np.unique(numbers)]:
        numbers[at] = numbers[at] * len(kernels) + _number_alike(sequences[at], kernels[at], on_request)
    return _by_size(numbers)


def split_by_size(numbers: Ints, sizes: Floats, share: float = THRESHOLDS.tolerance_share) -> list[Ints]:
    """Group steps whose batches are about as large: they should take equally long.

    The sizes of one part differ by this share at most; steps of unknown size are a part of their own.

    Args:
        numbers: (steps,) of the steps.
        sizes: (steps,) how much each works on, in any unit, NaN where unknown.
        share: of the smallest one, by default a tenth.

    """
    parts, first = list[list[int]](), math.nan
    order = np.argsort(sizes, kind="stable")  # NaN comes last
    for at, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        is_alike = size <= first * (1 + share) or (math.isnan(size) and math.isnan(first))
        if not parts or not is_alike:
            parts.append([])
            first = size
        parts[-1].append(int(numbers[at]))
    return [np.array(sorted(part)) for part in parts]


def _number_alike(identity: Floats, kernels: Floats, on_request: bool) -> Ints:
    """Return, (steps,), the program of each step by this (steps, ranks) `identity` of the ranks' work."""
    first: dict[bytes, int] = {}
    counts = Counter(row.tobytes() for row in identity)
    for at, row in enumerate(identity):
        first.setdefault(row.tobytes(), at)
    usual = list[int]()
    for content, times in counts.most_common():
        row = identity[first[content]]
        if (times > 1 or on_request) and all(
            _common_share(row, identity[other]) < THRESHOLDS.main_share for other in usual
        ):
            usual.append(first[content])
    if len(usual) < 2 or len(usual) * THRESHOLDS.min_repeats > len(identity):
        return np.zeros(len(identity), np.int64)
    shares = np.array([_common_share(identity, identity[at]) for at in usual])
    numbers = np.where(shares.max(axis=0) >= THRESHOLDS.main_share, shares.argmax(axis=0), 0)
    if on_request:
        return numbers
    begins = numbers[np.append(True, np.diff(numbers) != 0)]
    stretches = np.bincount(begins, minlength=len(usual))
    sizes = np.array([known_median(kernels[at]) for at in usual])
    is_near = np.abs(sizes - sizes[0]) <= THRESHOLDS.tolerance_share * sizes[0]
    is_rare = (stretches < 2) | is_near & (np.bincount(numbers, minlength=len(usual)) < THRESHOLDS.min_repeats)
    numbers[is_rare[numbers]] = 0
    return numbers


def _by_size(numbers: Ints) -> Ints:
    """Return the same programs numbered from the commonest one on."""
    _, numbers, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
    place: Ints = np.argsort(np.argsort(-sizes, kind="stable"), kind="stable")[numbers]
    return place


def _common_share(kernels: Floats, row: Floats) -> Floats:
    """Return the share of ranks that run as many kernels, of those known in both; 0 without any."""
    is_known = ~np.isnan(kernels) & ~np.isnan(row)
    share: Floats = (kernels == row).sum(axis=-1) / np.maximum(is_known.sum(axis=-1), 1)
    return share
