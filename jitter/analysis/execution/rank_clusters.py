"""Ranks of a team that fall into a faster and a slower cluster, as those of two hosts of which one is slow."""

import math
from math import isnan

import numpy as np

from jitter.analysis.execution.job_arrays import JobArrays
from jitter.analysis.execution.step_times import StepTimes
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.compilation import compiled


def find_reference_ranks(job: JobArrays, steps: StepTimes, times: tuple[Floats, Floats], count: int) -> Bools:
    """Return, (steps, ranks of the run), whether the rank is a reference for its team by the sum of these times.

    All ranks are, unless at least half of the team are a cluster that is faster than all others: the median of all
    would be the slowest ones of these. With fewer ranks than clusters need, they lie apart by chance.

    Args:
        job: with the teams' ranks.
        steps: with the rows of the ranks.
        times: of two parts that are added up, (steps × cells,) each.
        count: of the steps.

    """
    is_reference = np.ones((count, len(steps.row)), np.bool_)
    large = np.flatnonzero(np.diff(job.first_rank) >= THRESHOLDS.min_robust_ranks).tolist()
    if not large:
        return is_reference
    totals = np.full(is_reference.shape, np.nan)
    sum_times(job, steps.row, *times, totals)
    for of_step, is_one in zip(totals, is_reference, strict=True):
        for team in large:
            ranks = np.arange(job.first_rank[team], job.first_rank[team + 1])
            ranks = ranks[~np.isnan(of_step[ranks])]
            if len(ranks) >= THRESHOLDS.min_robust_ranks:
                # of the slower ones at least two: one alone hardly moves the median
                slower = _slower_cluster(of_step[ranks], (len(ranks) + 1) // 2, THRESHOLDS.outlier_sigmas)
                is_one[ranks[slower]] = False
    return is_reference


def _slower_cluster(totals: Floats, least: int, sigmas: float, usual_sigma: float = 0.0) -> Ints:
    """Return the positions of those in a cluster so many sigmas slower than the others, at least so many; or none.

    Where a `usual_sigma` is known, the slower ones may vary more: the nearest of them must be so far from the others.
    """
    order = np.argsort(totals, kind="stable")
    ordered = totals[order]
    if usual_sigma:
        cuts = [(cut, ordered[cut : cut + 1]) for cut in range(least, len(ordered) - 1)]
    else:
        cut = least + int(np.argmax(np.diff(ordered[least - 1 : -1])))
        is_slowest_apart = ordered[-1] - ordered[-2] > ordered[cut] - ordered[cut - 1] and len(ordered) - cut > 2
        # one rank farther from the slower ones than these are from the faster ones does not tell how much they vary
        cuts = [(cut, ordered[cut : len(ordered) - int(is_slowest_apart)])]
    gaps = (cut for cut, slower in cuts if separate_clusters(ordered[:cut], slower, usual_sigma) >= sigmas)
    return order[next(gaps, len(order)) :]


def find_reference_times(
    times_ns: Floats, usual_sigma: float = 0.0, least_share: float = THRESHOLDS.minor_share
) -> Bools:
    """Return, (times,), which times tell what is usual: those of a rank in each step, or of transfers that are alike.

    All do, unless two or more, and at least this share, are a cluster that is faster than all others: a host, or a
    network, may be slow in more than half of the steps. Of few times, clusters must be far apart: some are by chance.
    `usual_sigma` is how those of a rank's peers vary.
    """
    known = np.flatnonzero(~np.isnan(times_ns))
    is_reference = np.ones(len(times_ns), np.bool_)
    if len(known) > THRESHOLDS.min_steps:
        least, sigmas = max(2, math.ceil(len(known) * least_share)), THRESHOLDS.much_more * THRESHOLDS.outlier_sigmas
        is_reference[known[_slower_cluster(times_ns[known], least, sigmas, usual_sigma)]] = False
    return is_reference


@compiled
def sum_times(job: JobArrays, row: Ints, times: Floats, more: Floats, totals: Floats) -> None:
    """Fill in, (steps, ranks), the sum of each rank's known times of both parts, added up side by side.

    NaN stays of absent ranks.
    """
    steps = totals.shape[0]
    for step in range(steps):
        for team in range(len(job.launch_ns)):
            operations = job.first[team + 1] - job.first[team]
            for rank in range(job.first_rank[team], job.first_rank[team + 1]):
                if row[rank] >= 0:
                    total = second = 0.0
                    begin = step * (len(times) // steps) + row[rank]
                    for at in range(begin, begin + operations):
                        total += 0.0 if isnan(times[at]) else times[at]
                        second += 0.0 if isnan(more[at]) else more[at]
                    totals[step, rank] = total + second


def separate_clusters(low: Floats, high: Floats, usual_sigma: float = 0.0) -> Floats:
    """Return how far the means of two clusters are apart, in standard deviations within them; 0 without a gap.

    Their values lie along the last axis and ascend. `usual_sigma` is a standard deviation known beforehand, which
    counts for `spread_degrees` degrees of freedom beside the one within the clusters; 0: none is known.
    """
    own_degrees = low.shape[-1] + high.shape[-1] - 2
    known_degrees = THRESHOLDS.spread_degrees if usual_sigma else 0
    squares = sum(cluster.var(axis=-1) * cluster.shape[-1] for cluster in (low, high))
    sigma = np.sqrt((squares + known_degrees * usual_sigma**2) / (own_degrees + known_degrees))
    has_gap = high[..., 0] - low[..., -1] >= THRESHOLDS.cluster_gap_sigmas * sigma
    apart = high.mean(axis=-1) - low.mean(axis=-1)
    sigmas: Floats = np.where(has_gap & (apart > 0), apart / np.maximum(sigma, np.finfo(np.float64).eps), 0.0)
    return sigmas


def least_gap(values: int, usual_sigma: float) -> float:
    """Return the gap below which so many values fall into no clusters (`separate_clusters`), whatever they are."""
    degrees = values - 2 + THRESHOLDS.spread_degrees
    return THRESHOLDS.cluster_gap_sigmas * math.sqrt(THRESHOLDS.spread_degrees * usual_sigma**2 / degrees)
