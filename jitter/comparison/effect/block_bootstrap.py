"""Block bootstrap over the steps of a run: 95% intervals that allow for slow steps in a row.

Steps that follow each other are drawn together, since what slows one step often slows the next.
"""

from statistics import NormalDist
from typing import Final

import numpy as np

from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.numeric.student_t import student_quantile

DRAWS: Final = 4000
_SEED: Final = 20200324
"""Fixed: two calls give one answer."""
COVERAGE: Final = 0.95
_ENOUGH: Final = 10


def start_draws() -> np.random.Generator:
    """Return the generator of the draws, with the fixed seed."""
    return np.random.default_rng(_SEED)


def draw_steps(steps: int, rng: np.random.Generator) -> Ints:
    """Return positions of steps, (draws, steps): blocks of about the cube root of their number, drawn with return."""
    length = max(1, round(steps ** (1 / 3)))
    blocks = -(-steps // length)
    first = rng.integers(steps, size=(DRAWS, blocks, 1))
    at: Ints = (first + np.arange(length)).reshape(DRAWS, -1)[:, :steps] % steps
    return at


def widening(values: int) -> float:
    """Return by how much draws of so few values spread too little, from Student's t; 1 from ten values on.

    From ten values on, the median's bootstrap interval agrees with that of the sign test, which assumes nothing.
    """
    if values >= _ENOUGH:
        return 1.0
    upper = (1 + COVERAGE) / 2
    return student_quantile(upper, max(values - 1, 1)) / NormalDist().inv_cdf(upper)


def interval_of(draws: Floats) -> tuple[float, float]:
    """Return the 95% interval of drawn values."""
    low, high = np.quantile(draws, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]).tolist()
    return low, high
