"""Duration, gap, time to kernel end and launch latency of one step's kernels, vectorised (guide: topic `metrics`).

In numpy and not in SQL: on a step of 960 ranks × 903 kernels one SQL statement took 4 to 6 s of processor time and
1.7 GB; this takes under a second and a third of the memory, because launch order is nearly always start order, and
sorted rows are not sorted again.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jitter.analysis.metrics.step_kernels import StepKernels
from jitter.core.numeric.arrays import Bools, Floats, Ints


class Metric(NamedTuple):
    """One metric, shape (kernels), in ns; values where `known` is false have no meaning."""

    values: Ints
    known: Bools


class Deviations(NamedTuple):
    """One metric's deviations, shape (kernels), ns: value − mean over the cohort's ranks that have the kernel."""

    values: Floats
    known: Bools


def duration(kernels: StepKernels) -> Metric:
    """Return end − start."""
    return Metric(kernels.end_ns - kernels.start_ns, np.ones(len(kernels), np.bool_))


def gap(kernels: StepKernels, moments_ns: Mapping[int, int]) -> Metric:
    """Return start − end of the previous kernel on the main stream; for the first, start − the earliest rank's start.

    `moments_ns` is, by rank, a moment that the cohort's ranks share, on each rank's clock.
    """
    values, known = np.zeros(len(kernels), np.int64), np.ones(len(kernels), np.bool_)
    order = kernels.main_stream_order
    values[order[1:]] = kernels.start_ns[order[1:]] - kernels.end_ns[order[:-1]]
    values[~kernels.on_main] = 0
    first = kernels.first
    rank = kernels.of_rank[first]
    shared = np.array([kernels.ranks[at] in moments_ns for at in rank.tolist()], np.bool_)
    moment = np.array([moments_ns.get(kernels.ranks[at], 0) for at in rank.tolist()], np.int64)
    until = moment - kernels.start_ns[first]
    known[first] = shared
    for cohort in np.unique(kernels.cohort_of).tolist():
        mine = shared & (kernels.cohort_of[rank] == cohort)
        if mine.any():
            values[first[mine]] = until[mine].max() - until[mine]
    return Metric(values, known)


def ttke(kernels: StepKernels, gaps: Metric, durations: Metric) -> Metric:
    """Return the sum of gaps and durations of the main stream's compute kernels up to each kernel, in launch order."""
    own = np.where(kernels.on_main, gaps.values + durations.values, 0)
    return Metric(_so_far(kernels, own), _so_far(kernels, ~gaps.known) == 0)


def launch_latency(kernels: StepKernels) -> Metric:
    """Return start − start of the launching call; of kernels that share a launch only the first to start has one."""
    launch, known = kernels.values("launch_start_ns"), kernels.known("launch_start_ns")
    shares = _sharing(kernels, launch, np.flatnonzero(known))
    # by launch, then by start; stable, so of equal starts the one launched first comes first
    keys = (kernels.values("launch_thread"), kernels.known("launch_thread"), launch, kernels.of_rank)
    shares = shares[np.lexsort((kernels.start_ns[shares], *(key[shares] for key in keys)))]
    later = np.logical_and.reduce([key[shares[1:]] == key[shares[:-1]] for key in keys])
    known[shares[1:][later]] = False
    return Metric(kernels.start_ns - launch, known)


def deviation(kernels: StepKernels, metric: Metric) -> Deviations:
    """Return value − mean over the cohort's ranks with a value for this kernel; unmatched kernels have none."""
    rows = np.flatnonzero(metric.known & kernels.is_matched)
    group, values = kernels.group[rows], metric.values[rows]
    # exact: sums of int64, divided once
    sums, counts = np.zeros(int(group.max(initial=0)) + 1, np.int64), np.bincount(group)
    np.add.at(sums, group, values)
    found, known = np.zeros(len(kernels)), np.zeros(len(kernels), np.bool_)
    found[rows] = values - sums[group] / counts[group]
    known[rows] = True
    return Deviations(found, known)


def _so_far(kernels: StepKernels, values: Ints | Bools) -> Ints:
    """Return each rank's running sum up to each of its kernels."""
    total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    so_far: Ints = total[1:] - total[kernels.bounds[:-1]][kernels.of_rank]
    return so_far


def _sharing(kernels: StepKernels, launch: Ints, rows: Ints) -> Ints:
    """Return the rows that may share a launch with another: all that do, and few that do not."""
    rank = kernels.of_rank[rows]
    step = np.where(np.diff(rank) > 0, 1, np.diff(launch[rows]))
    same = np.concatenate([[False], step == 0, [False]])
    # where launches are not in order, equal ones need not be neighbours
    unordered = np.isin(rank, rank[1:][step < 0])
    return rows[same[1:] | same[:-1] | unordered] if len(rows) else rows
