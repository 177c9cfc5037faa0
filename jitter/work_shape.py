"""Whether late GPU operations are the same work as the others': kernel names, launch shapes, and how many."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jitter.sheets import Floats, Ints


class Shapes(NamedTuple):
    """One rank's rows of a step, by ordinal."""

    name: npt.NDArray[np.int64]
    """The kernel's name, as a number."""
    threads: npt.NDArray[np.float64]
    """Threads of its launch; NaN where the launch's shape is unknown."""


@dataclass(frozen=True)
class WorkShape:
    """Of one rank's GPU excess in a step: how much of it lies in operations that differ from the others'."""

    excess_ns: float
    """Over the operations that took longer than the median."""
    differing_ns: float
    """Of it, what more work explains: larger launches, in proportion; other kernels, or ones that most ranks lack."""
    operations: int
    """How many operations took longer."""
    differing: int
    """How many of them had more or other work."""
    extra: int
    """Of the differing, how many most ranks have not."""


def work_shape(
    ranks: Sequence[int], rows_of: Ints, gpu: Floats, usual: Floats, column: int, shapes: Mapping[int, Shapes]
) -> WorkShape:
    """Look at one rank (column).

    `rows_of` (operations, ranks) are rows in the ranks' files, -1 for none; `gpu` (operations, ranks) and `usual`
    (operations, 1) are times on the GPU in ns.
    """
    late = np.where(rows_of[:, column] >= 0, gpu[:, column] - usual[:, 0], 0.0)
    slow = np.flatnonzero(late > 0)
    explained = np.zeros(len(slow))
    extra = 0
    for at, place in enumerate(slow.tolist()):
        rows = rows_of[place].tolist()
        own = shapes[ranks[column]]
        others = [(shapes[rank], row) for rank, row in zip(ranks, rows, strict=True) if row >= 0 and rank in shapes]
        same = sum(int(other.name[row] == own.name[rows[column]]) for other, row in others)
        if 2 * len(others) <= len(ranks):
            explained[at] = late[place]
            extra += 1
        elif 2 * same <= len(others):
            explained[at] = late[place]
        else:
            threads = np.sort([other.threads[row] for other, row in others])
            more = own.threads[rows[column]] / threads[(len(threads) - 1) // 2] - 1
            # by how much longer so much more work should take
            explained[at] = min(late[place], max(float(np.nan_to_num(more)), 0.0) * usual[place, 0])
    return WorkShape(float(late[slow].sum()), float(explained.sum()), len(slow), int((explained > 0).sum()), extra)
