"""Whether late GPU operations are the same work as the others': kernel names, launch shapes, and how many."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Shapes(NamedTuple):
    """One rank's rows of a step, by ordinal."""

    name: npt.NDArray[np.int64]
    """The kernel's name, as a number."""
    threads: npt.NDArray[np.float64]
    """Threads of its launch; NaN where the launch's shape is unknown."""
