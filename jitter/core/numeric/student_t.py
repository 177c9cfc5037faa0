"""Student's t distribution: tail and quantile, for any positive number of degrees of freedom.

The tail is half the regularised incomplete beta function I_x(d/2, 1/2) with x = d / (d + t²), computed by its continued
fraction (Press et al., "Numerical Recipes", 6.4), whose relative error stays small far out.
"""

import math
from functools import lru_cache
from typing import Final

import numpy as np

from jitter.core.numeric.arrays import Floats

_TINY: Final = 1e-300
_MAX_TERMS: Final = 300
_PRECISION: Final = 1e-14
_LARGEST_T: Final = 1e6


def student_tail(t: Floats | float, degrees: Floats | float) -> Floats:
    """Return P(T > t) by element; `t` and `degrees` (positive) are broadcast. NaN for NaN."""
    values, freedom = np.broadcast_arrays(np.asarray(t, np.float64), np.asarray(degrees, np.float64))
    squared = np.square(np.where(np.isinf(values), 1e150, values))
    half = _incomplete_beta(freedom / 2, freedom / (freedom + squared), squared / (freedom + squared)) / 2
    tail: Floats = np.where(values >= 0, half, 1 - half)
    return np.where(np.isnan(values), np.nan, tail)


@lru_cache(maxsize=1024)
def student_quantile(p: float, degrees: float) -> float:
    """Return the value that a share `p` (one half or more) of the distribution lies below, by bisection."""
    low, high = 0.0, _LARGEST_T
    for _ in range(100):
        middle = (low + high) / 2
        if 1 - float(student_tail(middle, degrees)) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(a: Floats, x: Floats, rest: Floats) -> Floats:
    """Return I_x(a, 1/2); `rest` is 1 − x, given apart because it may be far below 1."""
    b = 0.5
    with np.errstate(divide="ignore", invalid="ignore"):
        distinct, positions = np.unique(a, return_inverse=True)
        log_gammas = np.array(
            [math.lgamma(parameter + b) - math.lgamma(parameter) - math.lgamma(b) for parameter in distinct.tolist()]
        )
        front = np.exp(log_gammas[positions].reshape(a.shape) + a * np.log(x) + b * np.log(rest))
        is_near = x < (a + 1) / (a + b + 2)
        p, q, z = np.where(is_near, a, b), np.where(is_near, b, a), np.where(is_near, x, rest)
        share = front / p * _fraction(p, q, z)
        beta = np.where(is_near, share, 1 - share)
    return np.where(rest <= 0, 1.0, np.where(x <= 0, 0.0, np.clip(beta, 0.0, 1.0)))


def _fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    """Return the continued fraction of I_x(a, b), by Lentz's method, which is fast for x < (a + 1) / (a + b + 2)."""
    c = np.ones_like(x)
    d = 1 / _nonzero(1 - (a + b) * x / (a + 1))
    total = d.copy()
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = 1 / _nonzero(1 + even * d), _nonzero(1 + even / c)
        total *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = 1 / _nonzero(1 + odd * d), _nonzero(1 + odd / c)
        change = d * c
        total *= change
        if np.all(~(np.abs(change - 1) > _PRECISION)):
            break
    return total


def _nonzero(values: Floats) -> Floats:
    return np.where(np.abs(values) < _TINY, _TINY, values)
