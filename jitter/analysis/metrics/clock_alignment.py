"""Clock alignment: a moment that all ranks of a step share, on each rank's own clock.

It is the end of a collective that all ranks leave at the same time, else a moment of the wall clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from jitter.analysis.metrics.step_kernels import StepKernels
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.arrow import encode_lists
from jitter.core.names.kernels import ALIGNING_OPERATIONS
from jitter.core.numeric.arrays import Bools, Floats, Ints, begins_of, distinct_values
from jitter.core.numeric.stats import lower_median


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
    members = np.flatnonzero(kernels.cohort_of == cohort)
    rows = np.flatnonzero(kernels.is_collective & kernels.is_matched)
    rows = rows[kernels.cohort_of[kernels.of_rank[rows]] == cohort]
    index, place = np.unique(kernels.index[rows], return_inverse=True)
    column = np.searchsorted(members, kernels.of_rank[rows])
    codes, operations = kernels.codes("collective")
    end_ns = np.zeros((len(index), len(members)), np.int64)
    end_ns[place, column] = kernels.end_ns[rows]
    may_align = np.zeros(end_ns.shape, np.bool_)
    # the last element, True, is for the code -1: an unnamed operation may synchronise
    lets_go = np.array([*(name in ALIGNING_OPERATIONS for name in operations), True])
    may_align[place, column] = lets_go[codes[rows]] & _takes_in(kernels, rows, cohort_ranks)
    is_named = np.zeros(len(index), np.bool_)
    is_named[place[codes[rows] >= 0]] = True
    ranks = [kernels.ranks[at] for at in members.tolist()]
    return CohortCollectives(ranks, index, end_ns, np.all(may_align, axis=1), is_named)


def join_collectives(parts: Sequence[CohortCollectives]) -> CohortCollectives:
    """Return the collectives of a cohort's step of which some ranks were read after others, in ascending order."""
    index = distinct_values(np.concatenate([np.zeros(0, np.int64), *(part.kernel_index for part in parts)]))
    columns = begins_of(len(part.ranks) for part in parts)
    end_ns, may_align = np.zeros((len(index), columns[-1]), np.int64), np.zeros((len(index), len(parts)), np.bool_)
    is_named = np.zeros(len(index), np.bool_)
    for number, part in enumerate(parts):
        row = np.searchsorted(index, part.kernel_index)
        end_ns[row, columns[number] : columns[number + 1]] = part.end_ns
        may_align[row, number] = part.may_align
        is_named[row] |= part.is_named
    ranks = [rank for part in parts for rank in part.ranks]
    return CohortCollectives(ranks, index, end_ns, np.all(may_align, axis=1), is_named)


def _takes_in(kernels: StepKernels, rows: Ints, cohort_ranks: frozenset[int]) -> Bools:
    """Return for each row whether its group, as far as it is recorded, contains all of these ranks."""
    sizes, is_known = kernels.values("group_size")[rows], kernels.known("group_size")[rows]
    has_all: Bools = ~is_known | (sizes >= len(cohort_ranks))
    named = np.flatnonzero(kernels.known("group_ranks")[rows])
    if len(named):
        codes, groups = encode_lists(kernels.column("group_ranks", rows[named]))
        has_all[named] = np.array([cohort_ranks <= set(group) for group in groups])[codes]
    return has_all


_Times = TypeVar("_Times", Ints, Floats)


@dataclass(frozen=True)
class ClockAlignment:
    """Alignment of the ranks of one cohort's step.

    `moments_ns` is the shared moment on each rank's clock. `method` is `collective`, `wall clock` or `none` (empty).
    `uncertainty_ns` is how far the ends of the step's aligning collectives disagree (median over them; None with
    fewer than two); for wall clock 0 where all share one clock, None where it rests on the hosts' clocks.
    `unsynchronised` counts collectives of unnamed operation that do not synchronise their ranks.
    """

    method: str
    moments_ns: dict[int, int]
    kernel_index: int | None = None
    uncertainty_ns: int | None = None
    unsynchronised: int = 0


def align_by_collective(collectives: CohortCollectives, starts_ns: Mapping[int, int]) -> ClockAlignment:
    """Return the alignment by the end of the step's last aligning collective; one without moments if there is none.

    `starts_ns` is each rank's first kernel start, on its own clock: "last" is the latest end after it.
    """
    shared = np.flatnonzero(collectives.may_align)
    apart = _unsynchronised(collectives.end_ns[shared], collectives.is_named[shared])
    aligning = shared[~apart]
    if not len(aligning):
        return ClockAlignment("none", {}, unsynchronised=int(apart.sum()))
    end_ns = collectives.end_ns[aligning]
    starts = np.array([starts_ns.get(rank, 0) for rank in collectives.ranks], np.int64)
    reached = lower_median(end_ns - starts)
    last = int(np.flatnonzero(reached == reached.max())[-1])
    return ClockAlignment(
        "collective",
        dict(zip(collectives.ranks, end_ns[last].tolist(), strict=True)),
        int(collectives.kernel_index[aligning[last]]),
        disagreement_ns(end_ns),
        int(apart.sum()),
    )


def align_by_wall_clock(utc_offsets_ns: Mapping[int, int | None], clocks: Mapping[int, str]) -> ClockAlignment | None:
    """Return the alignment by the clocks that the profiler recorded; None if a rank has none.

    Ranks of one recording (named by `clocks`) share its clock exactly; between hosts it is as accurate as the hosts'.
    """
    if len(set(clocks.values())) == 1:
        return ClockAlignment("wall clock", dict.fromkeys(utc_offsets_ns, 0), uncertainty_ns=0)
    known_offsets = {rank: offset for rank, offset in utc_offsets_ns.items() if offset is not None}
    if len(known_offsets) < len(utc_offsets_ns) or not known_offsets:
        return None
    latest = max(known_offsets.values())
    return ClockAlignment("wall clock", {rank: latest - offset for rank, offset in known_offsets.items()})


def _unsynchronised(end_ns: Ints, is_named: Bools) -> Bools:
    """Return (collectives,) whether an unnamed operation's ends (collectives, ranks) contradict the clock offsets.

    The offsets are the median over collectives of named operation, or over all if none is named. From three on, each
    collective is part of that median, so that two that agree are not outvoted by one that does not.
    """
    offsets = _offsets(end_ns)
    voters = offsets[is_named] if is_named.any() else offsets
    # of one or two that all are unnamed, each is compared with the other
    usual = offsets[::-1] if len(offsets) < 3 and not is_named.any() else lower_median(voters, axis=0)
    apart: Bools = ~is_named & (np.abs(offsets - usual) > THRESHOLDS.matching.synchronous_within_ns).any(axis=1)
    return apart


def _offsets(end_ns: _Times) -> _Times:
    """Return each rank's clock offset from the lowest rank's, by each collective's end."""
    return end_ns - end_ns[..., :1]


def disagreement_ns(end_ns: _Times) -> int | None:
    """Return how far clock offsets by collectives' ends (collectives, ranks) differ from their median.

    The lower median over collectives; None with fewer than two.
    """
    return int(disagreements_ns(end_ns[None])[0]) if len(end_ns) > 1 else None


def disagreements_ns(end_ns: _Times) -> Floats:
    """Return, (steps,), the same of ends (steps, collectives, ranks); where some are unknown all are NaN."""
    offsets = _offsets(end_ns)
    return lower_median(np.ptp(offsets - lower_median(offsets, axis=1), axis=2))[:, 0]
