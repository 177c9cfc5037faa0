"""Whether late GPU operations are the same work as the others': kernel names, launch shapes, and how many."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jitter.cells import Floats
from jitter.step_arrays import StepArrays

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WorkShape:
    """Of one rank's GPU excess in a step: how much of it lies in operations that differ from the others'."""

    excess_ns: float
    """Over the operations that took longer than the median."""
    differing_ns: float
    """Of it, in operations of another name or launch shape than most ranks', or that most ranks have not."""
    operations: int
    """How many operations took longer."""
    differing: int
    extra: int
    """Of the differing, how many most ranks have not."""


def work_shape(step: StepArrays, gpu: Floats, usual: Floats, column: int, codes: Mapping[int, Codes]) -> WorkShape:
    """Look at one rank (column); `codes` gives each rank's rows' (name, grid, block) as a number, by ordinal."""
    late = gpu[:, column] - usual[:, 0]
    late[~step.present[:, column]] = 0.0
    ranks = step.ranks.tolist()
    slow = np.flatnonzero(late > 0)
    differing = np.zeros(len(slow), np.bool_)
    extra = 0
    for at, place in enumerate(slow.tolist()):
        rows = step.ordinal[place]
        own = int(codes[ranks[column]][rows[column]])
        others = [
            int(codes[rank][row]) for rank, row in zip(ranks, rows.tolist(), strict=True) if row >= 0 and rank in codes
        ]
        if 2 * len(others) <= len(ranks):
            differing[at] = True
            extra += 1
        elif others.count(own) < len(others):
            values, counts = np.unique(others, return_counts=True)
            # of two ranks that differ neither is usual: the slower one is asked
            differing[at] = counts[values == own][0] * 2 <= len(others)
    excess = late[slow]
    return WorkShape(
        float(excess.sum()), float(excess[differing].sum()), len(slow), int(differing.sum()), extra
    )
