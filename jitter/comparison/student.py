"""Student's t distribution, by Wallace's transformation to the normal one (Wallace 1959; error below 0.001)."""

import math

import numpy as np

from jitter.core.arrays import Floats


def two_sided_p(t: Floats, degrees: Floats) -> Floats:
    """Return the probability of a value at least as far from 0, by element."""
    z = (8 * degrees + 1) / (8 * degrees + 3) * np.sqrt(degrees * np.log1p(t * t / degrees))
    return np.array([math.erfc(one / math.sqrt(2)) for one in np.atleast_1d(z).tolist()])


def quantile(p: float, degrees: float) -> float:
    """Return the value that a share `p` (above one half) of the distribution lies below, by bisection."""
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        if 1 - float(two_sided_p(np.array([middle]), np.array([degrees]))[0]) / 2 < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2
