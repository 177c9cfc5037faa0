"""Programs of a run's steps: the last micro-batch of an optimizer step, or an evaluation, runs other kernels."""

from collections import Counter

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Floats, Ints


def number_programs(kernels: Floats) -> Ints:
    """Return, (steps,), the number of each step's program; 0 is the commonest one.

    How many kernels each rank runs tells a program: their names and order vary with what autotuning and threads do. A
    program is one that comes back after another, and of which most ranks run another number of kernels. In one of two
    steps, which may agree by where their inferred borders lie, that number is by far another. Any other step, as one in
    which a single rank differs, has the program that it shares with most ranks, else the commonest one.

    Args:
        kernels: (steps, ranks) each rank's kernels, NaN where it lacks the step.

    """
    counts = Counter(row.tobytes() for row in kernels)
    usual = list[Floats]()
    for content, times in counts.most_common():
        row = np.frombuffer(content, np.float64)
        if times > 1 and all(_common_share(row, other) < THRESHOLDS.main_share for other in usual):
            usual.append(row)
    if len(usual) < 2 or len(usual) * THRESHOLDS.min_repeats > len(kernels):
        return np.zeros(len(kernels), np.int64)
    shares = np.array([_common_share(kernels, row) for row in usual])
    numbers = np.where(shares.max(axis=0) >= THRESHOLDS.main_share, shares.argmax(axis=0), 0)
    begins = numbers[np.append(True, np.diff(numbers) != 0)]
    stretches = np.bincount(begins, minlength=len(usual))
    ratio = np.array([np.nanmedian(row / usual[0]) for row in usual])
    is_near = np.abs(ratio - 1) <= THRESHOLDS.tolerance_share
    is_rare = (stretches < 2) | is_near & (np.bincount(numbers, minlength=len(usual)) < THRESHOLDS.min_repeats)
    numbers[is_rare[numbers]] = 0
    sizes = np.bincount(numbers, minlength=len(usual))
    place: Ints = np.argsort(np.argsort(-sizes, kind="stable"), kind="stable")[numbers]
    return place


def _common_share(kernels: Floats, row: Floats) -> Floats:
    """Return the share of ranks that run as many kernels, of those known in both; 0 without any."""
    is_known = ~np.isnan(kernels) & ~np.isnan(row)
    share: Floats = (kernels == row).sum(axis=-1) / np.maximum(is_known.sum(axis=-1), 1)
    return share
