"""Interference: how much compute kernels slow down while a collective of their rank runs, and their time without it.

A kernel that runs beside a collective shares the GPU's processors and memory with it. If it takes `1 + f` times as long
there, and `beside` of its duration lies beside collectives, its work is

    duration − beside × f / (1 + f)

A host that runs ahead launches collectives while earlier kernels still run: these are slowed down, too. Which of
them may run beside a kernel is seen in the recording; a replay comes to the kernel when it knows their ends.
"""

import math
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Final

import numpy as np

from jitter.analysis.alignment.program import Program
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COLLECTIVE, COMPUTE
from jitter.core.numeric.arrays import Bools, Floats, Ints, distinct_values
from jitter.core.numeric.compilation import compiled
from jitter.core.numeric.stats import centred, known_medians

_LIMITS: Final = THRESHOLDS.interference
# for compiled loops, which know no classes
LOOK_BACK: Final = _LIMITS.look_back
TOLERANCE: Final = THRESHOLDS.tolerance_share
_FIRST_GUESS: Final = 0.2
_ITERATIONS: Final = 3


def find_later_beside(program: Program, start: Floats, end: Floats) -> dict[int, tuple[int, ...]]:
    """Return, by place of a compute kernel, the collectives launched after it that ran beside a tenth of it or more.

    Args:
        program: of the team.
        start: (cells, operations) ns of a sample of ranks' steps, NaN for none.
        end: likewise.

    """
    collectives = np.flatnonzero(program.kinds == COLLECTIVE)
    following = np.searchsorted(collectives, np.arange(len(program.kinds)))
    is_beside = np.zeros((len(program.kinds), LOOK_BACK), np.bool_)
    mark_later_beside(program.kinds, program.streams, collectives, following, start, end, is_beside)
    disturbed = np.flatnonzero(is_beside.any(axis=1)).tolist()
    return {
        place: tuple(collectives[following[place] + np.flatnonzero(is_beside[place])].tolist()) for place in disturbed
    }


@compiled
def mark_later_beside(
    kinds: Ints, streams: Ints, collectives: Ints, following: Ints, start: Floats, end: Floats, is_beside: Bools
) -> None:
    """Mark, (operations, look back), which compute kernels run beside which collectives launched after them."""
    for op in range(len(kinds)):
        if kinds[op] != COMPUTE:
            continue
        for number in range(min(LOOK_BACK, len(collectives) - following[op])):
            collective = collectives[following[op] + number]
            if streams[collective] == streams[op]:
                continue
            for cell in range(len(start)):
                begin, until, took_ns = start[cell, collective], end[cell, collective], end[cell, op] - start[cell, op]
                if isnan(until - begin):
                    continue
                if min(end[cell, op], until) - max(start[cell, op], begin) > TOLERANCE * took_ns:
                    is_beside[op, number] = True
                    break


def last_beside(kinds: Ints, later_beside: Mapping[int, Sequence[int]]) -> Ints:
    """Return, (operations,), the last collective that may run beside each operation, -1 for none.

    That is the one before it, but for those of `later_beside`: see `find_later_beside`.
    """
    at = np.where(kinds == COLLECTIVE, np.arange(len(kinds)), -1)
    last = np.append(-1, np.maximum.accumulate(at)[:-1]) if len(kinds) else at
    for place, later in later_beside.items():
        last[place] = max(last[place], *later)
    return last


@compiled
def time_beside(last: Ints, first: int, row: int, op: int, start: Floats, end: Floats) -> float:
    """Return how long an operation runs beside collectives, ns.

    `last` (operations of all teams,) are the `last_beside`, in places of the team's program, which begins at `first`;
    `start` and `end` (cells,) are the times, of the operation's rank from `row` on.
    """
    beside_ns, now, until = 0.0, start[row + op], end[row + op]
    while now < until:
        is_beside, border = state_at(last, first, row, op, start, end, now)
        border = min(border, until)
        if is_beside:
            beside_ns += border - now
        now = border
    return beside_ns


@compiled
def end_beside(
    last: Ints, first: int, row: int, op: int, start: Floats, end: Floats, begin: float, work: float, factor: float
) -> float:
    """Return when an operation ends that begins at `begin` and takes `factor` times as long beside collectives, ns.

    The other arguments are as in `time_beside`.
    """
    if isnan(begin + work):
        return begin + work
    now, remaining = begin, work
    while remaining > 0:
        is_beside, border = state_at(last, first, row, op, start, end, now)
        pace = factor if is_beside else 1.0
        if now + remaining * pace <= border:
            now += remaining * pace
            break
        remaining -= (border - now) / pace
        now = border
    return float(now)


@compiled
def state_at(last: Ints, first: int, row: int, op: int, start: Floats, end: Floats, now: float) -> tuple[bool, float]:
    """Return whether a collective runs beside the operation at a time, and until when that stays so."""
    is_beside, begins, ends = False, math.inf, now
    at = last[first + op]
    for _ in range(LOOK_BACK):
        if at < 0:
            break
        begun, over = start[row + at], end[row + at]
        if begun <= now < over:
            is_beside = True
            ends = max(ends, over)
        elif begun > now and over > begun:
            begins = min(begins, begun)
        at = last[first + at]
    return is_beside, ends if is_beside else begins


@compiled
def find_shares_beside(kinds: Ints, last: Ints, start: Floats, end: Floats, shares: Floats) -> None:
    """Find, (cells × operations,), which part of each compute kernel's duration is beside collectives; else NaN."""
    size = len(kinds)
    for at in range(len(start)):
        op = at % size
        took = end[at] - start[at]
        shares[at] = math.nan
        if kinds[op] == COMPUTE and not isnan(start[at]) and took > 0:
            shares[at] = time_beside(last, 0, at - op, op, start, end) / took


def estimate_interference(
    program: Program, later_beside: Mapping[int, Sequence[int]], rank: Ints, start: Floats, end: Floats
) -> float:
    """Return by what part compute kernels take longer beside collectives; 0 where that is not seen.

    Each kernel is compared with itself, over ranks and steps: the logarithm of its duration, relative to the pace of
    its rank's step, which may be slow, is fitted by the part of it beside collectives. The result is the mean over
    kernels, weighted by how much that part varies.

    Args:
        program: of the team.
        later_beside: as found in the sample.
        rank: (cells,) whose steps the cells are, of a sample of ranks' steps.
        start: (cells, operations) ns, NaN for none.
        end: likewise.

    """
    shares = np.empty(start.size)
    flat = np.ascontiguousarray(start).ravel(), np.ascontiguousarray(end).ravel()
    find_shares_beside(program.kinds, last_beside(program.kinds, later_beside), *flat, shares)
    # kernels that run beside collectives somewhere, and all that show their ranks' pace
    share = shares.reshape(start.shape)
    is_known = ~np.isnan(share)
    runs = is_known.sum(axis=0)
    varies = np.where(is_known, share, 0.0).max(axis=0, initial=0.0) > THRESHOLDS.tolerance_share
    steady = (runs > 0) & (
        (is_known & (share <= THRESHOLDS.tolerance_share)).sum(axis=0) >= THRESHOLDS.most_share * runs
    )
    if varies.sum() < THRESHOLDS.min_repeats:
        return 0.0
    logs, pace_sigma = _relative_logs(end - start, share, steady, rank)
    return _fit(share[:, varies], logs[:, varies], rank, pace_sigma)


def _relative_logs(duration: Floats, share: Floats, steady: Bools, rank: Ints) -> tuple[Floats, Floats]:
    """Return, (cells, operations), the log durations of compute kernels relative to their cells' pace, else NaN.

    A cell's pace is the mean over `steady` kernels of how much longer they take there than usual. Also return the
    standard deviation of each rank's kernels about its pace, (ranks,): it may be slow in some kernels only.
    """
    logs = np.log(np.where(np.isnan(share), 1.0, duration))
    logs[np.isnan(share)] = np.nan
    middle = np.nan_to_num(known_medians(logs))
    with np.errstate(invalid="ignore"):
        logs[np.abs(logs - middle) > math.log(THRESHOLDS.much_more)] = np.nan
        steady_logs = np.where(share <= THRESHOLDS.tolerance_share, logs, np.nan)[:, steady]
    steady_logs = steady_logs[:, ~np.isnan(steady_logs).all(axis=0)]
    excess = steady_logs - (np.nanmedian(steady_logs, axis=0) if steady_logs.shape[1] else 0.0)
    count = (~np.isnan(excess)).sum(axis=1)
    pace = np.nansum(excess, axis=1) / np.maximum(count, 1)
    sigma = np.zeros(int(rank.max(initial=-1)) + 1)
    for one in distinct_values(rank).tolist():
        of_rank = excess[rank == one]
        runs = (~np.isnan(of_rank)).sum(axis=0)
        of_kernels = np.nansum(of_rank, axis=0)[runs > 0] / runs[runs > 0]
        sigma[one] = of_kernels.std() if len(of_kernels) else 0.0
    return logs - pace[:, None], sigma


def _fit(share: Floats, logs: Floats, rank: Ints, pace_sigma: Floats) -> float:
    """Return the interference that fits (cells, kernels) log durations to the parts beside collectives; 0 for none.

    Kernels of a rank that is slow in others only seem fast. So its `pace_sigma` counts in all of them at once.
    """
    is_known = ~np.isnan(logs)
    log_apart = centred(logs, is_known)
    log_factor = math.log1p(_FIRST_GUESS)
    for _ in range(_ITERATIONS):
        # the log of the duration, in that of a run that is beside collectives throughout
        factor = math.expm1(max(log_factor, THRESHOLDS.min_clear_share))
        shape = centred(-np.log1p(-np.nan_to_num(share) * factor / (1 + factor)) / math.log1p(factor), is_known)
        variation = (shape**2).sum(axis=0)
        compared = variation >= _LIMITS.min_variation
        if compared.sum() < THRESHOLDS.min_repeats:
            return 0.0
        weight = variation[compared] / variation[compared].sum()
        slopes = (shape * log_apart).sum(axis=0)[compared] / variation[compared]
        log_factor = float(weight @ slopes)
    count = int(compared.sum())
    variance = float((weight * (slopes - log_factor)) @ (weight * (slopes - log_factor))) * count / (count - 1)
    by_pace = np.bincount(rank, shape[:, compared] @ (weight / variation[compared]), len(pace_sigma)) * pace_sigma
    error = math.sqrt(variance + float(by_pace @ by_pace))
    interference = math.expm1(log_factor)
    if interference < THRESHOLDS.min_clear_share or log_factor < _LIMITS.min_sigmas * error:
        return 0.0
    return interference if float(np.median(slopes)) >= THRESHOLDS.main_share * log_factor else 0.0
