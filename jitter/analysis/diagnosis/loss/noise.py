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


def loss_from_noise(analysis: RunAnalysis, steps: Iterable[int]) -> float:
    """Return the loss, ns, that operations which vary independently cause in these steps, by position in the run."""
    factor = expected_maximum(len(analysis.run.team_of))
    return factor * sum(_noise_of_path(analysis, number, analysis.paths[number].whole) for number in steps)


def variance_of_charges(analysis: RunAnalysis, number: int, charges: Charges) -> Floats:
    """Return, (charges,), the noise variance, ns², of each charge in the run's `number`th step; 0 where unknown."""
    variance = np.zeros(len(charges))
    for team, part in set(zip(charges.team.tolist(), charges.part.tolist(), strict=True)):
        if part != TimePart.TRANSFER:
            its = (charges.team == team) & (charges.part == part)
            variance[its] = np.nan_to_num(analysis.variance_of(number, team, TimePart(part)))
    return variance


def _noise_of_path(analysis: RunAnalysis, number: int, charges: Charges) -> float:
    """Return the standard deviations of the path's stretches, each on one rank, summed."""
    if not len(charges):
        return 0.0
    variance = variance_of_charges(analysis, number, charges)
    stretch = np.cumsum(np.append(0, np.diff(charges.rank) != 0))
    return float(sum(math.sqrt(own) for own in np.bincount(stretch, variance).tolist()))
