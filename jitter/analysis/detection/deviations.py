"""How far each rank's own time is from its team's in each step, and how far chance alone would take it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jitter.analysis.execution.own_time import OwnTimes, zero_where_unknown
from jitter.analysis.replay.scenario_times import CPU, GPU, START
from jitter.core.arrays import Bools, Floats, Ints
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


class DeviationAccumulator:
    """Adds up one team's step, some operations after the others."""

    def __init__(self, number: int, team: int, ranks: Ints, first_kernel: int) -> None:
        """Of the run's `number`th step; up to `first_kernel` the host's time is its start."""
        self._number, self._team, self._ranks, self._border = number, team, ranks, first_kernel + 1
        self._total = np.zeros((len(PARTS), len(ranks)))
        self._variance = np.zeros(len(PARTS))

    def add(self, first: int, own: OwnTimes, usual: OwnTimes) -> None:
        """Add operations, `first` being their first's place.

        Of few ranks a step's operations must come all at once: that tells their noise.
        """
        border = min(max(self._border - first, 0), len(usual.host))
        host, usual_host = (own.host, own.call), usual.host + usual.call
        self._add(START, [times[:border] for times in host], usual_host[:border])
        self._add(CPU, [times[border:] for times in host], usual_host[border:])
        self._add(GPU, [own.gpu, own.delay], usual.gpu + usual.delay)

    def _add(self, part: int, times: Sequence[Floats], usual: Floats) -> None:
        if len(usual):
            total, variance = _total_and_variance(times, usual)
            self._total[part] += total
            self._variance[part] += variance

    def sum(self, joined: Bools) -> StepDeviations:
        """Give the sums; `joined` (ranks,) are those whose step before is not known."""
        totals = self._total.copy()
        if joined.any() and not joined.all():
            totals[:, joined] = np.nan  # what they waited for at first lies in a step that is not known
        return StepDeviations(self._number, self._team, self._ranks, totals, np.sqrt(self._variance))


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


def _total_and_variance(times: Sequence[Floats], usual: Floats) -> tuple[Floats, float]:
    """Add up what the sum of these times, (operations, ranks) each, is more than usual: (ranks,) over the operations.

    Also the variance of that by chance alone: each operation's from its spread over ranks.
    """
    more = zero_where_unknown(sum(times, start=-usual))
    total = more.sum(axis=0)
    sigma = MAD_TO_SIGMA * _spread(np.abs(more, out=more), usual)
    return total, float((sigma**2).sum())


def _spread(more: Floats, usual: Floats) -> Floats:
    """(operations,) the median over ranks; of few ranks that of all operations, in proportion to what each takes."""
    if more.shape[1] >= MIN_RANKS_FOR_NOISE:
        middle = more.shape[1] // 2
        parted = np.partition(more, middle, axis=1)
        upper: Floats = parted[:, middle]
        # as numpy.median, in a third of its time
        return upper if more.shape[1] % 2 else (parted[:, :middle].max(axis=1) + upper) / 2
    size = np.maximum(np.abs(usual), 1.0)
    return float(np.median(more / size)) * size[:, 0]


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
