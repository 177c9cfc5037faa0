"""How far each rank's own time is from its team's in each step, and how far chance alone would take it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Final

import numpy as np

from jitter.analysis.execution.job_arrays import JobArrays
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.self_times import CPU, GPU, START, SelfTimes
from jitter.analysis.execution.step_times import StepTimes
from jitter.analysis.replay.recorded_step import RecordedStep
from jitter.core.arrays import Floats, Ints
from jitter.core.compilation import compiled
from jitter.core.selection import select_median
from jitter.core.stats import MAD_TO_SIGMA, mad_sigma

PARTS: Final = (START, CPU, GPU)
MIN_RANKS_FOR_NOISE: Final = 4  # fewer do not tell an operation's noise: then that of all operations counts


@dataclass(frozen=True)
class TeamDeviations:
    """One team's run. NaN where a rank has not the step."""

    team: int
    ranks: Ints
    total_ns: Floats
    """(parts, steps, ranks): own time of the step less the other ranks' median; of a single rank its other steps'."""
    noise_ns: Floats
    """(parts, steps, 1): what a total's standard deviation is if the operations vary independently."""


@dataclass(frozen=True)
class StepDeviations:
    """One team's step, the run's `number`th."""

    number: int
    team: int
    ranks: Ints
    total_ns: Floats
    """(parts, ranks): own time less the median's; NaN where it is not known."""
    noise_ns: Floats
    """(parts,)."""


def deviations_of_step(run: RunModel, step: RecordedStep, baseline: SelfTimes) -> tuple[StepDeviations, ...]:
    """Measure one step of each team that has it; `baseline` (operations of all teams,) are its medians."""
    job, times = run.job, step.times
    ranks, teams = len(times.row), len(job.launch_ns)
    total, variance = np.zeros((len(PARTS), ranks)), np.zeros((len(PARTS), teams))
    few = int((np.diff(job.first) * np.minimum(np.diff(job.first_rank), MIN_RANKS_FOR_NOISE - 1)).max(initial=0))
    find_deviations(job, times, step.own, baseline, total, variance, np.empty(max(ranks, few)))
    found = []
    for team in range(teams):
        here = np.flatnonzero((times.team == team) & (times.row >= 0))
        if len(here):
            its, fresh = total[:, here], step.fresh[here]
            if fresh.any() and not fresh.all():
                its[:, fresh] = np.nan  # what they waited for at first lies in a step that is not known
            found.append(StepDeviations(step.number, team, run.rank_numbers[here], its, np.sqrt(variance[:, team])))
    return tuple(found)


@compiled
def find_deviations(
    job: JobArrays,
    step: StepTimes,
    own: SelfTimes,
    baseline: SelfTimes,
    total: Floats,
    variance: Floats,
    room: Floats,
) -> None:
    """Add up, (parts, ranks), self times less the baseline's, and, (parts, teams), their variance by chance alone.

    `total` and `variance` come as 0. An operation's standard deviation is told by its spread over ranks; of few ranks
    by that of all operations, in proportion to what each takes. `room` is overwritten.
    """
    for team in range(len(job.launch_ns)):
        ranks = 0
        for rank in range(job.first_rank[team], job.first_rank[team + 1]):
            ranks += step.row[rank] >= 0
        if ranks == 0:
            continue
        operations = job.first[team + 1] - job.first[team]
        border = min(job.first_kernel[team] + 1, operations)
        for part in PARTS:
            first, last = (border, operations) if part == CPU else (0, border if part == START else operations)
            count, squares = 0, 0.0
            known = True
            for op in range(first, last):
                usual = usual_of(job.first[team] + op, part, baseline)
                size = max(abs(usual), 1.0)
                known = known and not isnan(usual)
                if ranks >= MIN_RANKS_FOR_NOISE:
                    count = 0
                for rank in range(job.first_rank[team], job.first_rank[team + 1]):
                    if step.row[rank] >= 0:
                        more = usual_of(step.row[rank] + op, part, own) - usual
                        if isnan(more):
                            more = 0.0
                        total[part, rank] += more
                        room[count] = abs(more) if ranks >= MIN_RANKS_FOR_NOISE else abs(more) / size
                        count += 1
                sigma = MAD_TO_SIGMA * select_median(room, count) if ranks >= MIN_RANKS_FOR_NOISE else size
                squares += sigma * sigma
            if ranks < MIN_RANKS_FOR_NOISE and last > first:
                relative = MAD_TO_SIGMA * select_median(room, count) if known else math.nan
                squares *= relative * relative
            variance[part, team] = squares


@compiled
def usual_of(at: int, part: int, times: SelfTimes) -> float:
    """Return one operation's self time of a part: the host's, or the GPU's."""
    return float(times.gpu[at] + times.delay[at] if part == GPU else times.host[at] + times.call[at])


def collect_deviations(seen: Iterable[StepDeviations], steps: int) -> list[TeamDeviations]:
    """Each team's totals over the run, from all its steps in any order."""
    of_team: dict[int, list[StepDeviations]] = {}
    for one in seen:
        of_team.setdefault(one.team, []).append(one)
    return [_of_team(team, own, steps) for team, own in sorted(of_team.items())]


def _of_team(team: int, seen: Sequence[StepDeviations], steps: int) -> TeamDeviations:
    ranks = np.unique(np.concatenate([one.ranks for one in seen]))
    total = np.full((len(PARTS), steps, len(ranks)), np.nan)
    noise = np.full((len(PARTS), steps, 1), np.nan)
    for one in seen:
        total[:, one.number, np.searchsorted(ranks, one.ranks)] = one.total_ns
        noise[:, one.number, 0] = one.noise_ns
    if len(ranks) > 1:
        return TeamDeviations(team, ranks, subtract_median_of_others(total), noise)
    # with no peers a step's operations tell their noise together, and what slows all of them would be taken for it
    for own in noise:
        known = ~np.isnan(own)
        own[known] = np.median(own[known]) if known.any() else np.nan
    of_steps = subtract_median_of_others(total.swapaxes(1, 2)).swapaxes(1, 2)
    return TeamDeviations(team, ranks, of_steps, noise)


def subtract_median_of_others(total: Floats) -> Floats:
    """Each rank's less the lower median of the others', step by step; of two ranks each is the other's measure."""
    if total.shape[2] == 1:
        return total.copy()
    order = np.argsort(total, axis=2)  # NaN comes last
    place = np.argsort(order, axis=2)
    ordered = np.take_along_axis(total, order, axis=2)
    known = (~np.isnan(total)).sum(axis=2, keepdims=True)
    others = known - ~np.isnan(total)
    middle = (np.maximum(others, 1) - 1) // 2
    # without oneself all above oneself move down by one
    middle += (place <= middle) & ~np.isnan(total)
    found: Floats = total - np.take_along_axis(ordered, middle, axis=2)
    return found


def estimate_sigma(total: Floats) -> float:
    """How far totals, (steps, columns), scatter from step to step: standard deviation, ns.

    The estimator Qn of Rousseeuw and Croux ("Alternatives to the median absolute deviation", 1993) of each column's
    differences between steps, all columns together: what a column always has is no scatter, and half of the steps may
    be out of the ordinary. Nor is a steady drift: it is the lesser of that and the scatter of the changes from step to
    step. With fewer than three steps it is the spread over columns, if these suffice.
    """
    steps, columns = total.shape
    if steps < _ENOUGH_STEPS:
        return mad_sigma(total) if columns >= MIN_RANKS_FOR_NOISE else 0.0
    plain = _qn(total)
    return plain if steps < _ENOUGH_FOR_DRIFT else min(plain, _qn(np.diff(total, axis=0)) / np.sqrt(2))


def _qn(total: Floats) -> float:
    apart = [np.abs(total[lag:] - total[:-lag]).ravel() for lag in range(1, min(len(total), _MOST_LAGS))]
    differences = np.concatenate(apart)
    known = differences[~np.isnan(differences)]
    return _QN * float(np.quantile(known, 0.25)) if len(known) else 0.0


_ENOUGH_STEPS: Final = 3
_ENOUGH_FOR_DRIFT: Final = 6
_MOST_LAGS: Final = 24
_QN: Final = 2.2219  # to the standard deviation, of a normal distribution
