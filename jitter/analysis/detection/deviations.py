"""How far each rank's own time deviates from the other ranks' in each step, and the noise of that deviation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isnan
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.execution.job_arrays import JobArrays
from jitter.analysis.execution.rank_clusters import separate_clusters
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.self_times import CPU, GPU, OPERATIONS_AT_ONCE, OWN_PARTS, START, SelfTimes
from jitter.analysis.replay.run_steps import LoneBaseline, RecordedSteps
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats, Ints, distinct_values
from jitter.core.numeric.compilation import compiled
from jitter.core.numeric.selection import select, select_median, select_quantile
from jitter.core.numeric.stats import (
    MAD_TO_SIGMA,
    known_median,
    known_medians,
    lower_median,
    lower_medians_of_others,
    middle_value,
    qn_sigma,
    sum_columns,
)

_MIN_RANKS: Final = THRESHOLDS.min_samples
"""For compiled loops, which know no classes."""


@dataclass(frozen=True)
class TeamDeviations:
    """One team's deviations over the run; NaN where a rank lacks the step."""

    team: int
    ranks: Ints
    total_ns: Floats
    """(parts, steps, ranks): own time − the other ranks' median; of a single rank − its other steps' median."""
    noise_ns: Floats
    """(parts, steps, 1): the standard deviation of a total whose operations vary independently."""
    usual_ns: Floats
    """(parts, steps, 1): the baseline's total."""
    is_usual: Bools | None = None
    """(parts, steps, 1), of a single rank, whether its baseline is made of the step; None of others."""

    def of_steps(self, numbers: Ints) -> "TeamDeviations":
        """Return the deviations in these steps."""
        is_usual = None if self.is_usual is None else self.is_usual[:, numbers]
        total, noise, usual = self.total_ns[:, numbers], self.noise_ns[:, numbers], self.usual_ns[:, numbers]
        return TeamDeviations(self.team, self.ranks, total, noise, usual, is_usual)

    def with_equal_batches(self) -> "TeamDeviations":
        """Return them as if the baseline's GPU time were the usual one in each step."""
        usual_ns = self.usual_ns.copy()
        usual_ns[GPU] = np.where(np.isnan(usual_ns[GPU]), np.nan, known_medians(usual_ns[GPU]))
        return replace(self, usual_ns=usual_ns)

    def of_places(self, columns_of_place: Sequence[Ints]) -> "TeamDeviations":
        """Return the deviations of places, each as that of its median rank; places are numbered in their order."""
        of_place = [
            np.stack([lower_median(part_ns[:, columns])[:, 0] for part_ns in self.total_ns])
            for columns in columns_of_place
        ]
        return replace(self, ranks=np.arange(len(of_place)), total_ns=np.stack(of_place, axis=2))


class StepDeviations(NamedTuple):
    """How far the own times of steps deviate; NaN where unknown."""

    total_ns: Floats
    """(steps, parts, ranks of the run): own time − the team's median rank's."""
    noise_ns: Floats
    """(steps, parts, teams)."""
    usual_ns: Floats
    """(steps, parts, teams) the baseline's total."""
    is_first: Bools
    """(steps, teams) whether no rank's step before is known, and with it not when its host began."""


class KernelDeviations(NamedTuple):
    """How far the kernels of each name of one team's program (`Program.kernels`) deviate in steps; NaN: unknown."""

    total_ns: Floats
    """(steps, names, ranks of the team): a rank's GPU time − the median rank's, of kernels that both have."""
    usual_ns: Floats
    """(steps, names) the median rank's."""


def deviations_of_steps(job: JobArrays, steps: RecordedSteps, baseline: SelfTimes) -> StepDeviations:
    """Measure several steps; `baseline` (steps, operations of all teams) are their medians."""
    row, team = steps.times.row, steps.times.team
    count, ranks, teams = len(steps), len(row), len(job.launch_ns)
    total, variance = np.zeros((count, len(OWN_PARTS), ranks)), np.zeros((count, len(OWN_PARTS), teams))
    few = int((np.diff(job.first) * np.minimum(np.diff(job.first_rank), _MIN_RANKS - 1)).max(initial=0))
    flat, room = SelfTimes(*(values.ravel() for values in baseline)), np.empty(max(OPERATIONS_AT_ONCE * ranks, few))
    find_deviations(job, row, steps.self_times, flat, total, variance, room)
    noise, usual = np.full((2, *variance.shape), np.nan)
    is_first = np.zeros((count, teams), np.bool_)
    for number in distinct_values(team[row >= 0]).tolist():
        is_first[:, number] = steps.fresh[:, (row >= 0) & (team == number)].all(axis=1)
        noise[:, :, number] = np.sqrt(variance[:, :, number])
        usual[:, :, number] = _usual_totals(job, number, baseline, is_first[:, number])
    # what they waited for at first lies in a step that is not known
    is_unknown = (row < 0) | (steps.fresh & ~is_first[:, team])
    total[np.broadcast_to(is_unknown[:, None], total.shape)] = np.nan
    return StepDeviations(total, noise, usual, is_first)


def kernel_deviations_of_steps(
    run: RunModel, steps: RecordedSteps, baseline: SelfTimes
) -> tuple[KernelDeviations, ...]:
    """Measure several steps by the names of kernels, of each team; `baseline` (steps, operations) are their medians."""
    job, times, count, deviations = run.job, steps.times, len(steps), []
    for team, program in sorted(run.programs.items()):
        names, number = program.kernels
        row = times.row[job.first_rank[team] : job.first_rank[team + 1]]
        total, usual = np.full((count, len(names), len(row)), np.nan), np.full((count, len(names)), np.nan)
        if (row >= 0).any():
            usual_gpu = np.nan_to_num(baseline.gpu[:, job.operations(team)])
            add_kernel_deviations(row, number, times.start, steps.self_times.gpu, usual_gpu, total)
            usual = sum_columns(number, usual_gpu, len(names) + 1)[:, : len(names)]
        deviations.append(KernelDeviations(total, usual))
    return tuple(deviations)


@compiled
def add_kernel_deviations(row: Ints, number: Ints, start: Floats, gpu: Floats, usual: Floats, total: Floats) -> None:
    """Add up GPU times less the `usual` ones, (steps, operations), by name: `total` (steps, names, ranks).

    What most ranks lack does not count: more kernels are not slow ones, and a rank that has fewer has no less for it.

    `start` and `gpu` (steps × cells,) hold the steps one after the other; `number` is that of `Program.kernels`.
    """
    steps, names, ranks = total.shape
    cells = len(gpu) // steps
    for step in range(steps):
        for rank in range(ranks):
            if row[rank] >= 0:
                for name in range(names):
                    total[step, name, rank] = 0.0
                for op in range(len(number)):
                    cell = step * cells + row[rank] + op
                    if number[op] < names and not isnan(start[cell]) and usual[step, op] > 0:
                        total[step, number[op], rank] += gpu[cell] - usual[step, op]


def _usual_totals(job: JobArrays, team: int, baseline: SelfTimes, is_first: Bools) -> Floats:
    """Return (steps, parts) the baseline's time of a team's steps by part.

    In the first of consecutive steps a stream's first delay holds what it waited for in the step before.
    """
    times = baseline.host_and_call, baseline.gpu, baseline.delay
    host, gpu, delay = (values[:, job.operations(team)] for values in times)
    gpu = gpu + np.where(is_first[:, None], 0.0, delay)
    border = int(job.first_kernel[team]) + 1
    return np.stack([np.nansum(values, axis=1) for values in (host[:, :border], host[:, border:], gpu)], axis=1)


@compiled
def find_deviations(  # noqa: PLR0912  # one formula
    job: JobArrays,
    row: Ints,
    self_times: SelfTimes,
    baseline: SelfTimes,
    total: Floats,
    variance: Floats,
    room: Floats,
) -> None:
    """Add up self times less the baseline's, (steps, parts, ranks), and their variances, (steps, parts, teams).

    By chance alone. The other arguments hold the steps one after the other; `total` and `variance` come as 0. An
    operation's standard deviation is its spread over the faster half of the ranks: the slower half may be slow. Of few
    ranks it is the spread of all operations, in proportion to what each takes. `room` is overwritten.
    """
    steps = total.shape[0]
    for step in range(steps):
        cell, usual_cell = step * (len(self_times.gpu) // steps), step * job.first[-1]
        for team in range(len(job.launch_ns)):
            ranks = 0
            for rank in range(job.first_rank[team], job.first_rank[team + 1]):
                ranks += row[rank] >= 0
            if ranks == 0:
                continue
            operations = job.first[team + 1] - job.first[team]
            border = min(job.first_kernel[team] + 1, operations)
            for part in (START, CPU, GPU):
                first, last = (border, operations) if part == CPU else (0, border if part == START else operations)
                count, squares, is_known = 0, 0.0, True
                for begin in range(first, last, OPERATIONS_AT_ONCE):
                    size, place = min(OPERATIONS_AT_ONCE, last - begin), count
                    # numbers from 0 up, in parts of the arrays, need no test for places counted from the end
                    usual = cut_part(baseline, part, usual_cell + job.first[team] + begin, size)
                    for rank in range(job.first_rank[team], job.first_rank[team + 1]):
                        if row[rank] >= 0:
                            added, to = total[step, part, rank], room[place:]
                            own = cut_part(self_times, part, cell + row[rank] + begin, size)
                            for op in range(size):
                                excess = own[0][op] + own[1][op] - (usual[0][op] + usual[1][op])
                                if isnan(excess):
                                    excess = 0.0
                                added += excess
                                if ranks < _MIN_RANKS:
                                    excess = abs(excess) / max(abs(usual[0][op] + usual[1][op]), 1.0)
                                to[op * ranks] = excess
                            total[step, part, rank] = added
                            place += 1
                    for op in range(size):
                        usual_ns = usual[0][op] + usual[1][op]
                        is_known = is_known and not isnan(usual_ns)
                        sigma = max(abs(usual_ns), 1.0)
                        if ranks >= _MIN_RANKS:
                            of_ranks, middle = room[op * ranks :], (ranks - 1) // 2
                            median = select(of_ranks, ranks, middle)  # and the smaller ones stand before it
                            sigma = MAD_TO_SIGMA * (median - select_quantile(of_ranks, middle + 1, middle - ranks / 4))
                        squares += sigma * sigma
                    if ranks < _MIN_RANKS:
                        count += size * ranks
                if ranks < _MIN_RANKS and last > first:
                    relative = MAD_TO_SIGMA * select_median(room, count) if is_known else math.nan
                    squares *= relative * relative
                variance[step, part, team] = squares


@compiled
def cut_part(times: SelfTimes, part: int, low: int, size: int) -> tuple[Floats, Floats]:
    """Return some operations' self times of a part, which add up: the host's, or the GPU's."""
    if part == GPU:
        return times.gpu[low : low + size], times.delay[low : low + size]
    return times.host[low : low + size], times.call[low : low + size]


def collect_deviations(
    seen: StepDeviations,
    ranks: Ints,
    first_rank: Ints,
    of_sizes: Sequence[Ints],
    alone: Mapping[int, Mapping[int, LoneBaseline]],
) -> list[TeamDeviations]:
    """Return each team's deviations over the run.

    Args:
        seen: those of its steps.
        ranks: (ranks of the run,) their numbers in the job, team by team.
        first_rank: (teams + 1,) where those of each team begin.
        of_sizes: the numbers of the steps whose known sizes are alike.
        alone: by team of one rank, and number of a step, its baseline.

    """
    total, noise, usual, is_first = seen
    deviations = []
    for team, (first, last) in enumerate(pairwise(first_rank.tolist())):
        of_steps = total[:, :, first:last], noise[:, :, [team]], usual[:, :, [team]]
        totals, noises, usuals = (values.swapaxes(0, 1).copy() for values in of_steps)
        of_team = TeamDeviations(team, ranks[first:last], totals, noises, usuals)
        deviations.append(_without_common(of_team, is_first[:, team], of_sizes, alone.get(team, {})))
    return deviations


def _without_common(
    deviations: TeamDeviations, is_first: Bools, of_sizes: Sequence[Ints], alone: Mapping[int, LoneBaseline]
) -> TeamDeviations:
    """Return deviations from the other ranks, or of a rank alone from its other steps; given those from the baseline.

    `is_first` (steps,) is that of `StepDeviations`.
    """
    total, noise = deviations.total_ns, deviations.noise_ns
    if not is_first[~np.isnan(total).all(axis=(0, 2))].all():
        total[START, is_first] = np.nan
    if total.shape[2] > 1:
        return replace(deviations, total_ns=subtract_median_of_others(total))
    is_usual = np.ones(noise.shape[:2], np.bool_)
    for number, baseline in alone.items():
        is_usual[:, number] = baseline.is_usual
    # without peers the noise is pooled over a step's operations, so a fault that slows all of them would count as noise
    for numbers in of_sizes:
        counts = is_usual[:, numbers]
        for part_noise, step_counts in zip(noise, counts, strict=True):
            known_steps = numbers[~np.isnan(part_noise[numbers, 0])]
            part_noise[known_steps] = known_median(part_noise[numbers[step_counts]])
        total[:, numbers] = subtract_median_of_others(total[:, numbers].swapaxes(1, 2), counts[:, None]).swapaxes(1, 2)
    return replace(deviations, is_usual=is_usual[:, :, None])


def collect_kernel_deviations(
    of_all: TeamDeviations, seen: KernelDeviations, least_ns: float
) -> dict[int, TeamDeviations]:
    """Return a team's deviations in kernels of one name alone, by name, as every part; `seen` are those of its steps.

    Of those names with which some rank is above the others by `least_ns` in its usual step.
    """

    def every_part(of_part: Floats) -> Floats:
        return np.broadcast_to(of_part, (len(OWN_PARTS), *of_part.shape))

    deviations = {}
    for name, usual in enumerate(seen.usual_ns.T[:, :, None]):
        # one name at a time: a model has hundreds of them
        total = subtract_median_of_others(seen.total_ns[None, :, name])[0]
        if (known_medians(total) >= least_ns).any():
            deviations[name] = TeamDeviations(
                of_all.team, of_all.ranks, every_part(total), every_part(0 * usual), every_part(usual)
            )
    return deviations


def subtract_median_of_others(total: Floats, among: Bools | None = None) -> Floats:
    """Return totals (parts, steps, ranks) − the lower median of the other ranks in the same step.

    `among`, of the same shape, are those which may tell it; None: all.
    """
    return total.copy() if total.shape[2] == 1 else total - lower_medians_of_others(total, among)


def compare_with_one_rank(total: Floats) -> Floats:
    """Return deviations (steps, ranks) from the other ranks' median as deviations from one rank of each step.

    The slower half of the ranks is compared with the last rank of the faster half, and the faster half with the first
    rank of the slower one. So the difference of two ranks from different halves is too large by that of those two.
    """
    order = np.argsort(total, axis=1)  # NaN comes last
    half = (~np.isnan(total)).sum(axis=1, keepdims=True) // 2
    first_slower = np.take_along_axis(total, np.take_along_axis(order, half % total.shape[1], axis=1), axis=1)
    is_faster = np.argsort(order, axis=1) < half
    levels: Floats = np.where(is_faster, total + first_slower, total)
    return levels


def settle_halves(total: Floats) -> tuple[Floats, Bools]:
    """Measure steps in which one half of the ranks is late, as one of two hosts is, from the other half.

    There each rank's other ranks have their median in the other half: as much as one half is late, the other seems
    early. Few ranks' halves lie apart by chance, unless by far more than ranks usually vary from step to step.

    Returns:
        the totals (steps, ranks), and (steps,) whether the step's ranks lie in two halves.

    """
    steps, ranks = total.shape
    is_split = np.zeros(steps, np.bool_)
    known_steps = np.flatnonzero(~np.isnan(total).any(axis=1))
    is_few = ranks < THRESHOLDS.min_robust_ranks
    if ranks % 2 or ranks < THRESHOLDS.min_samples or not len(known_steps):
        return total, is_split
    levels = compare_with_one_rank(total[known_steps])
    low, high = np.split(np.sort(levels, axis=1), 2, axis=1)
    is_low = levels <= low[:, -1:]
    of_half = np.where(is_low, low.mean(axis=1, keepdims=True), high.mean(axis=1, keepdims=True))
    usual_sigma = middle_value(qn_sigma(levels - of_half))
    if is_few and not usual_sigma:
        return total, is_split
    least_sigmas = THRESHOLDS.outlier_sigmas * (THRESHOLDS.much_more if is_few else 1)
    is_split[known_steps] = separate_clusters(low, high[:, :1], usual_sigma) >= least_sigmas  # the late may vary more
    settled = total.copy()
    settled[known_steps] = np.where(
        is_split[known_steps, None], levels - low.mean(axis=1, keepdims=True), total[known_steps]
    )
    return settled, is_split


def spread_within_steps(apart: Floats, is_split: Bools) -> Floats:
    """Return (steps, 1) the standard deviation over ranks of deviations (steps, ranks) in each step; 0 of few ranks.

    By the median absolute deviation; in a step that is split into halves, the early half's standard deviation.
    """
    steps, ranks = apart.shape
    if ranks < THRESHOLDS.min_samples:
        return np.zeros((steps, 1))
    middle = np.nan_to_num(known_medians(apart, axis=1))
    spread: Floats = MAD_TO_SIGMA * np.nan_to_num(lower_median(np.abs(apart - middle[:, None])))
    if is_split.any():
        spread[is_split, 0] = np.sort(apart[is_split], axis=1)[:, : ranks // 2].std(axis=1, ddof=1)
    return spread
