"""Whether late GPU operations are the same work as the others': kernel names, launch shapes, and how many."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jitter.analysis.execution.launch_shapes import Shapes
from jitter.core.arrays import Floats, Ints
from jitter.core.stats import lower_median


@dataclass(frozen=True)
class LaunchShapeComparison:
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


def compare_launch_shapes(
    rows_of: Ints, gpu: Floats, usual: Floats, column: int, shapes: Sequence[Shapes]
) -> LaunchShapeComparison:
    """Look at one rank, which is one of the columns.

    `rows_of` (operations, columns) are rows in the columns' files, -1 for none, and `shapes` those files'; `gpu` and
    `usual`, (operations,) each, are its times on the GPU and what is usual, in ns.
    """
    late = np.where(rows_of[:, column] >= 0, gpu - usual, 0.0)
    slow = np.flatnonzero(late > 0)
    name, threads = _laid_out(rows_of[slow], shapes)
    others = (name >= 0).sum(axis=1)
    same = (name == name[:, [column]]).sum(axis=1)
    lacked = 2 * others <= len(shapes)
    another = ~lacked & (2 * same <= others)
    # by how much longer so much more work should take
    more = np.nan_to_num(threads[:, column] / lower_median(threads)[:, 0] - 1)
    larger = np.minimum(late[slow], np.maximum(more, 0.0) * usual[slow])
    explained = np.where(lacked | another, late[slow], larger)
    return LaunchShapeComparison(
        float(late[slow].sum()),
        float(explained.sum()),
        len(slow),
        int((explained > 0).sum()),
        int(lacked.sum()),
    )


def _laid_out(rows_of: Ints, shapes: Sequence[Shapes]) -> tuple[Ints, Floats]:
    """(operations, columns): kernel names as numbers, -1 where there is none, and threads, NaN there."""
    name = np.full(rows_of.shape, -1, np.int64)
    threads = np.full(rows_of.shape, np.nan)
    for column, its in enumerate(shapes):
        there = rows_of[:, column] >= 0
        name[there, column] = its.name[rows_of[there, column]]
        threads[there, column] = its.threads[rows_of[there, column]]
    return name, threads
