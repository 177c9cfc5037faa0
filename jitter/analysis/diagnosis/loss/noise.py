"""The loss that noise alone causes: at each meeting of ranks the step waits for the latest of them."""

import math
from collections.abc import Iterable

import numpy as np

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.time_part import TimePart
from jitter.analysis.replay.charges import Charges
from jitter.core.numeric.arrays import Floats


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


def loss_from_noise(analysis: RunAnalysis, steps: Iterable[int]) -> float:
    """Return the loss, ns, that operations which vary independently cause in these steps, by position in the run.

    It has two parts: each stretch of the critical path is the longest of all ranks', and each of its operations is
    compared with a baseline, the lower median of the ranks, that few ranks put below what they take on average.
    """
    factor = expected_maximum(len(analysis.run.team_of))
    bias = {team: -expected_lower_median(size) for team, size in analysis.run.sizes.items()}
    loss = 0.0
    for number in steps:
        charges = analysis.paths[number].whole
        if len(charges):
            sigma = np.sqrt(variance_of_charges(analysis, number, charges))
            below = np.array([bias[team] for team in charges.team.tolist()])
            loss += factor * _noise_of_stretches(charges, sigma) + float((below * sigma).sum())
    return loss


def variance_of_charges(analysis: RunAnalysis, number: int, charges: Charges) -> Floats:
    """Return, (charges,), the noise variance, ns², of each charge in the run's `number`th step; 0 where unknown."""
    variance = np.zeros(len(charges))
    for team, part in set(zip(charges.team.tolist(), charges.part.tolist(), strict=True)):
        if part != TimePart.TRANSFER:
            its = (charges.team == team) & (charges.part == part)
            variance[its] = np.nan_to_num(analysis.variance_of(number, team, TimePart(part)))
    return variance


def _noise_of_stretches(charges: Charges, sigma: Floats) -> float:
    """Return the standard deviations of the path's stretches, each on one rank, summed."""
    stretch = np.cumsum(np.append(0, np.diff(charges.rank) != 0))
    return float(sum(math.sqrt(own) for own in np.bincount(stretch, sigma**2).tolist()))
