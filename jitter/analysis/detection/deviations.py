"""How far each rank's own time deviates from the other ranks' in each step, and the noise of that deviation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jitter.analysis.detection.thresholds import THRESHOLDS
from jitter.analysis.execution.own_time import OwnTimes, zero_where_unknown
from jitter.analysis.execution.time_part import OWN_PARTS, TimePart
from jitter.core.arrays import Bools, Floats, Ints
from jitter.core.stats import MAD_TO_SIGMA, mad_sigma


@dataclass(frozen=True)
class TeamDeviations:
    """One team's deviations over the run; NaN where a rank lacks the step."""

    team: int
    ranks: Ints
    total_ns: Floats
    """(parts, steps, ranks): own time − the other ranks' median; of a single rank − its other steps' median."""
    noise_ns: Floats
    """(parts, steps, 1): the standard deviation of a total whose operations vary independently."""


@dataclass(frozen=True)
class StepDeviations:
    """One team's deviations in the run's `number`th step."""

    number: int
    team: int
    ranks: Ints
    total_ns: Floats
    """(parts, ranks): own time − the median rank's; NaN where unknown."""
    noise_ns: Floats
    """(parts,)."""


class DeviationAccumulator:
    """Sums the deviations of one team's step, a range of operations at a time."""

    def __init__(self, number: int, team: int, ranks: Ints, first_kernel: int) -> None:
        """Start the sums of the run's `number`th step; host time up to operation `first_kernel` is its start."""
        self._number, self._team, self._ranks, self._border = number, team, ranks, first_kernel + 1
        self._total = np.zeros((len(OWN_PARTS), len(ranks)))
        self._variance = np.zeros(len(OWN_PARTS))

    def add(self, first: int, own: OwnTimes, usual: OwnTimes) -> None:
        """Add operations, the first of which is number `first` of the program.

        With fewer than `min_ranks_for_noise` ranks, all operations must be added at once: their noise is pooled.
        """
        border = min(max(self._border - first, 0), len(usual.host))
        host, usual_host = (own.host, own.call), usual.host + usual.call
        self._add(TimePart.START, [times[:border] for times in host], usual_host[:border])
        self._add(TimePart.CPU, [times[border:] for times in host], usual_host[border:])
        self._add(TimePart.GPU, [own.gpu, own.delay], usual.gpu + usual.delay)

    def _add(self, part: int, times: Sequence[Floats], usual: Floats) -> None:
        if len(usual):
            total, variance = _total_and_variance(times, usual)
            self._total[part] += total
            self._variance[part] += variance

    def sum(self, joined: Bools) -> StepDeviations:
        """Return the sums; NaN for the ranks in `joined` (ranks,), whose previous step is unknown."""
        totals = self._total.copy()
        if joined.any() and not joined.all():
            totals[:, joined] = np.nan  # what delayed their first operations lies in the unknown step
        return StepDeviations(self._number, self._team, self._ranks, totals, np.sqrt(self._variance))


def collect_deviations(seen: Iterable[StepDeviations], steps: int) -> list[TeamDeviations]:
    """Return each team's deviations over the run; `seen` are those of its steps, in any order."""
    of_team: dict[int, list[StepDeviations]] = {}
    for one in seen:
        of_team.setdefault(one.team, []).append(one)
    return [_of_team(team, own, steps) for team, own in sorted(of_team.items())]


def _of_team(team: int, seen: Sequence[StepDeviations], steps: int) -> TeamDeviations:
    ranks = np.unique(np.concatenate([one.ranks for one in seen]))
    total = np.full((len(OWN_PARTS), steps, len(ranks)), np.nan)
    noise = np.full((len(OWN_PARTS), steps, 1), np.nan)
    for one in seen:
        total[:, one.number, np.searchsorted(ranks, one.ranks)] = one.total_ns
        noise[:, one.number, 0] = one.noise_ns
    if len(ranks) > 1:
        return TeamDeviations(team, ranks, subtract_median_of_others(total), noise)
    # without peers the noise is pooled over a step's operations, so a fault that slows all of them would count as noise
    for own in noise:
        known = ~np.isnan(own)
        own[known] = np.median(own[known]) if known.any() else np.nan
    of_steps = subtract_median_of_others(total.swapaxes(1, 2)).swapaxes(1, 2)
    return TeamDeviations(team, ranks, of_steps, noise)


def _total_and_variance(times: Sequence[Floats], usual: Floats) -> tuple[Floats, float]:
    """Return (ranks,) the sum of `times`, (operations, ranks) each, above the baseline, and the variance of its noise.

    The variance of one operation is estimated from its spread over the ranks.
    """
    more = zero_where_unknown(sum(times, start=-usual))
    total = more.sum(axis=0)
    sigma = MAD_TO_SIGMA * _spread(np.abs(more, out=more), usual)
    return total, float((sigma**2).sum())


def _spread(more: Floats, usual: Floats) -> Floats:
    """Return (operations,) the median over ranks; with few ranks pooled over operations, relative to their duration."""
    if more.shape[1] >= THRESHOLDS.min_ranks_for_noise:
        middle = more.shape[1] // 2
        parted = np.partition(more, middle, axis=1)
        upper: Floats = parted[:, middle]
        # the result of numpy.median in a third of its time
        return upper if more.shape[1] % 2 else (parted[:, :middle].max(axis=1) + upper) / 2
    size = np.maximum(np.abs(usual), 1.0)
    return float(np.median(more / size)) * size[:, 0]


def subtract_median_of_others(total: Floats) -> Floats:
    """Return totals (parts, steps, ranks) − the lower median of the other ranks in the same step."""
    if total.shape[2] == 1:
        return total.copy()
    order = np.argsort(total, axis=2)  # NaN comes last
    place = np.argsort(order, axis=2)
    ordered = np.take_along_axis(total, order, axis=2)
    known = (~np.isnan(total)).sum(axis=2, keepdims=True)
    others = known - ~np.isnan(total)
    middle = (np.maximum(others, 1) - 1) // 2
    # the rank's own value is left out: the values above it move down by one place
    middle += (place <= middle) & ~np.isnan(total)
    found: Floats = total - np.take_along_axis(ordered, middle, axis=2)
    return found


def estimate_sigma(total: Floats) -> float:
    """Return the standard deviation, ns, of totals (steps, columns) from step to step.

    Estimator Qn of Rousseeuw and Croux ("Alternatives to the median absolute deviation", 1993) on each column's
    differences between steps, pooled over columns. A constant offset of a column does not count, and up to half of the
    steps may be outliers. A steady drift does not count either: the result is at most the deviation of the changes from
    step to step. With fewer than `min_steps_for_scatter` steps it is the spread over columns, 0 if these are too few.
    """
    steps, columns = total.shape
    if steps < THRESHOLDS.min_steps_for_scatter:
        return mad_sigma(total) if columns >= THRESHOLDS.min_ranks_for_noise else 0.0
    plain = _qn(total)
    return plain if steps < THRESHOLDS.min_steps_for_drift else min(plain, _qn(np.diff(total, axis=0)) / np.sqrt(2))


def _qn(total: Floats) -> float:
    apart = [
        np.abs(total[lag:] - total[:-lag]).ravel() for lag in range(1, min(len(total), THRESHOLDS.max_scatter_lag))
    ]
    differences = np.concatenate(apart)
    known = differences[~np.isnan(differences)]
    return _QN * float(np.quantile(known, 0.25)) if len(known) else 0.0


_QN: Final = 2.2219  # factor from the quartile of differences to the standard deviation of a normal distribution
