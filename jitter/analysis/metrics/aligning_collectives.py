"""A cohort's collectives in one step: when each rank left them, and which of them may align the ranks."""

from typing import NamedTuple

import numpy as np

from jitter.analysis.metrics.step_kernels import StepKernels
from jitter.core.arrow import encode_lists
from jitter.core.names.kernels import ALIGNING_OPERATIONS
from jitter.core.numeric.arrays import Bools, Ints


class CohortCollectives(NamedTuple):
    """The collectives of a cohort's step that have a kernel index."""

    ranks: list[int]
    """The cohort's ranks in this step, ascending; shape (ranks)."""
    kernel_index: Ints
    """Shape (collectives), ascending."""
    end_ns: Ints
    """Shape (collectives, ranks), each on its rank's clock; 0 where a rank lacks the collective."""
    may_align: Bools
    """Shape (collectives): all ranks have it, its group is the whole cohort, its operation (if named) synchronises."""
    is_named: Bools
    """Shape (collectives): whether any rank's trace names the operation."""


def find_cohort_collectives(kernels: StepKernels, cohort: int, cohort_ranks: frozenset[int]) -> CohortCollectives:
    """Return the collectives of one cohort; `cohort_ranks` are its ranks over the run."""
    mine = np.flatnonzero(kernels.cohort_of == cohort)
    rows = np.flatnonzero(kernels.is_collective & kernels.is_matched)
    rows = rows[kernels.cohort_of[kernels.of_rank[rows]] == cohort]
    index, place = np.unique(kernels.index[rows], return_inverse=True)
    column = np.searchsorted(mine, kernels.of_rank[rows])
    codes, operations = kernels.codes("collective")
    end_ns = np.zeros((len(index), len(mine)), np.int64)
    end_ns[place, column] = kernels.end_ns[rows]
    may_align = np.zeros(end_ns.shape, np.bool_)
    # the last element, True, is for the code -1: an unnamed operation may synchronise
    lets_go = np.array([*(name in ALIGNING_OPERATIONS for name in operations), True])
    may_align[place, column] = lets_go[codes[rows]] & _takes_in(kernels, rows, cohort_ranks)
    is_named = np.zeros(len(index), np.bool_)
    is_named[place[codes[rows] >= 0]] = True
    ranks = [kernels.ranks[at] for at in mine.tolist()]
    return CohortCollectives(ranks, index, end_ns, np.all(may_align, axis=1), is_named)


def _takes_in(kernels: StepKernels, rows: Ints, cohort_ranks: frozenset[int]) -> Bools:
    """Return for each row whether its group, as far as it is recorded, contains all of these ranks."""
    sizes, known = kernels.values("group_size")[rows], kernels.known("group_size")[rows]
    found: Bools = ~known | (sizes >= len(cohort_ranks))
    named = np.flatnonzero(kernels.known("group_ranks")[rows])
    if len(named):
        codes, groups = encode_lists(kernels.column("group_ranks", rows[named]))
        found[named] = np.array([cohort_ranks <= set(group) for group in groups])[codes]
    return found
