"""The loss that noise alone causes: where ranks meet, the step waits for the latest of them."""

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from jitter.analysis.account.shares import Stretches
from jitter.core.numeric.arrays import Floats
from jitter.core.numeric.compilation import compiled


class Noise(NamedTuple):
    """The noise of one operation's own time; 0 where it is unknown."""

    variance: Floats
    """(…, teams, START/CPU/GPU), ns²."""
    bias: Floats
    """(…, teams, START/CPU/GPU) how far its baseline, the lower median of the ranks, is below its mean, ns."""


def noise_of_operations(variance: Floats, sizes: list[int]) -> Noise:
    """Return the noise for variances, (…, teams, START/CPU/GPU) in ns², NaN where unknown, and the sizes of teams."""
    known_variance = np.nan_to_num(variance)
    below = np.array([-expected_lower_median(size) for size in sizes])
    return Noise(known_variance, np.sqrt(known_variance) * below[:, None])


@compiled
def loss_of_stretches(stretches: Stretches, maximum: float) -> float:
    """Return the loss, ns, of a step in which all operations vary by themselves.

    Each stretch is the longest of all ranks', and each of its operations is compared with a baseline that few ranks put
    below what they take on average. `maximum` is the expected one of as many standard normal variables.
    """
    loss_ns = 0.0
    for at in range(len(stretches.entered)):
        weight = stretches.entered[at]
        if weight > 0:
            varied, biased = max(stretches.varied[at], 0.0) / weight, max(stretches.biased[at], 0.0) / weight
            loss_ns += max(stretches.reached[at], 0.0) * (maximum * math.sqrt(varied) + biased)
    return loss_ns


@cache
def expected_maximum(count: int) -> float:
    """Return the expected maximum of `count` standard normal variables, less their median.

    Blom's approximation ("Statistical Estimates and Transformed Beta-Variables", 1958).

    >>> round(expected_maximum(2), 2), round(expected_maximum(8), 2), round(expected_maximum(1), 2)
    (0.59, 1.43, 0.0)
    """
    if count < 2:
        return 0.0
    from statistics import NormalDist

    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def expected_lower_median(count: int) -> float:
    """Return the expected lower median of `count` independent standard normal variables: below 0 if it is even.

    By the same approximation.

    >>> [round(expected_lower_median(count), 2) for count in (2, 3, 4, 8)]
    [-0.59, 0.0, -0.3, -0.15]
    """
    from statistics import NormalDist

    return NormalDist().inv_cdf(((count + 1) // 2 - 0.375) / (count + 0.25))
