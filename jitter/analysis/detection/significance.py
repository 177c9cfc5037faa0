"""How likely chance alone is: the tails of the binomial distribution and of a run's deviations, robust spreads."""

import math
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats, Ints, distinct_values
from jitter.core.numeric.stats import MAD_TO_SIGMA, centred, known_medians, qn_sigma
from jitter.core.numeric.student_t import student_tail

_QUARTILE: Final = 0.6745
_PRECISION: Final = 1e-16
_MAD_EFFICIENCY: Final = 0.37
"""Degrees of freedom of a median absolute deviation, per value: the asymptotic efficiency."""


def binomial_tail(count: int, trials: int, chance: float) -> float:
    """Return P(X >= count) of so many independent trials, each with this chance."""
    if count <= 0 or chance >= 1:
        return 1.0
    if chance <= 0:
        return 0.0
    if count <= trials * chance:  # the other tail is the shorter sum
        return 1.0 - binomial_tail(trials - count + 1, trials, 1 - chance)
    log_first = log_binomial(trials, count) + count * math.log(chance) + (trials - count) * math.log1p(-chance)
    total = term = 1.0
    for successes in range(count, trials):
        term *= (trials - successes) / (successes + 1) * chance / (1 - chance)
        total += term
        if term < _PRECISION * total:
            break
    return min(1.0, math.exp(log_first) * total)


class _Tails(NamedTuple):
    """Student's t distributions that deviations may have, (models,) each; the first one is the worst case."""

    degrees: Floats
    scale: Floats
    prior: Floats


def _possible_tails() -> _Tails:
    """Return 3 to 18 degrees, evenly in their inverse, with scales of 1/2 to 1, evenly in their logarithm."""
    degrees, scale = np.meshgrid(
        6 * THRESHOLDS.tail_degrees / np.arange(6, 0, -1), 2.0 ** (-np.arange(5) / 4), indexing="ij"
    )
    prior = np.full(degrees.size, 0.5 / (degrees.size - 1))
    prior[0] = 0.5
    return _Tails(degrees.ravel(), scale.ravel(), prior)


_TAILS: Final = _possible_tails()


def predictive_tails(sigmas: Floats, deviations: Floats) -> Floats:
    """Return (steps, ranks) the probability that one step of a rank deviates by `sigmas` or more.

    Measured on what the other ranks deviate by upwards. Deviations follow Student's t, whose degrees of freedom and
    scale are unknown: the probability is its mean over `_TAILS`, weighted by prior and likelihood (the predictive
    distribution: Geisser, "Predictive Inference", 1993), which allows for how little a few values tell. The noise adds
    up two estimates of one scatter, so the scale is 1/2 to 1. Half of the prior is the worst case, 3 degrees and
    scale 1, and all of it with fewer than 3 ranks: two mirror each other.

    Args:
        sigmas: (steps, ranks) known standardised deviations.
        deviations: (steps, ranks) the same of all ranks, NaN for unknown.

    """
    steps, ranks = sigmas.shape
    log_weights = np.where(np.arange(len(_TAILS.prior)) == 0, 0.0, -np.inf)[:, None] + np.zeros(ranks)
    if ranks > 2:
        of_rank, above = np.nonzero(deviations > 0)[1], deviations[deviations > 0]
        for model, (degrees, scale, prior) in enumerate(zip(*(column.tolist() for column in _TAILS), strict=True)):
            front = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(scale * math.sqrt(degrees))
            density = front - (degrees + 1) / 2 * np.log1p((above / scale) ** 2 / degrees)
            of_ranks = np.bincount(of_rank, density, ranks)
            log_weights[model] = math.log(prior) + of_ranks.sum() - of_ranks
    weights = np.exp(log_weights - log_weights.max(axis=0))
    weights /= weights.sum(axis=0)
    places, tails = _log_spaced_tails()
    chances, at = np.empty((steps, ranks)), np.arcsinh(sigmas)
    for rank, table in enumerate(np.log(weights.T @ tails)):
        chances[:, rank] = np.exp(np.interp(at[:, rank], places, table))
    return chances


@lru_cache(maxsize=1)
def _log_spaced_tails() -> tuple[Floats, Floats]:
    """Return arcsinh of deviations, ascending, and (models, deviations) their tail probabilities."""
    places = np.linspace(-12.0, 24.0, 721)
    return places, student_tail(np.sinh(places) / _TAILS.scale[:, None], _TAILS.degrees[:, None])


def changes_once(labels: Bools) -> bool:
    """Return whether labels, (values,), are one and from some value on the other, `min_steps` of each or more.

    In random order, 5 of each or more of both are so in 2 ÷ C(10, 5) = 0.8% of the orders at most.
    """
    least = min(int(labels.sum()), int((~labels).sum()))
    return least >= THRESHOLDS.min_steps and int(np.count_nonzero(np.diff(labels))) == 1


def log_binomial(total: int, chosen: int) -> float:
    """Return the logarithm of the number of ways to choose so many of the total."""
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)


def hypergeometric_tail(count: int, drawn: int, marked: int, total: int) -> float:
    """Return P(X >= count) of the marked ones among so many drawn at random, without replacement, of the total.

    >>> hypergeometric_tail(2, 2, 2, 4), hypergeometric_tail(0, 2, 2, 4)
    (0.16666666666666666, 1.0)
    """
    ways = sum(
        math.comb(marked, hits) * math.comb(total - marked, drawn - hits)
        for hits in range(max(count, 0), min(marked, drawn) + 1)
        if drawn - hits <= total - marked
    )
    return ways / math.comb(total, drawn)


def quiet_level(values: Floats, sigma: Floats) -> Floats:
    """Return (columns,) the usual value of each column of (steps, columns), of up to three quarters of events above it.

    The lower quartile over steps, moved to where the median of quiet steps lies. A value that is the same in most
    steps, as the time of what runs in one step only, has no scatter: there it is the median.
    """
    ordered = np.sort(values, axis=0)
    known_count = (~np.isnan(values)).sum(axis=0)
    at = (np.maximum(known_count, 1) - 1) // 4
    quartile = np.take_along_axis(ordered, at[None, :], axis=0)[0]
    middle = np.take_along_axis(ordered, ((np.maximum(known_count, 1) - 1) // 2)[None, :], axis=0)[0]
    level: Floats = np.where(sigma > 0, np.minimum(quartile + _QUARTILE * sigma, middle), middle)
    return level


def spread_of_others(levels: Floats, floor: Floats) -> tuple[Floats, Floats, int]:
    """Compare each rank's level with the other ranks'.

    The scale is moderated (Smyth, "Linear models and empirical Bayes methods", 2004): the variance of the other ranks
    and a variance known beforehand, weighted by their degrees of freedom.

    Args:
        levels: (ranks,) known values.
        floor: (ranks,) the standard deviation known beforehand.

    Returns:
        (ranks,) excess over the others' centre, (ranks,) its standard deviation, and the degrees of freedom of that.

    """
    ranks = len(levels)
    few = ranks - 1 < THRESHOLDS.min_robust_ranks
    if few:
        centre, scale = np.zeros(ranks), np.zeros(ranks)
        for rank in range(ranks):
            others = np.sort(np.delete(levels, rank))
            kept = others[:-1] if len(others) >= 3 else others
            centre[rank] = kept.mean()
            scale[rank] = kept.std(ddof=1) if len(kept) > 1 else 0.0
    else:
        centre, scale = _medians_of_others(levels), np.zeros(ranks)
        for value in distinct_values(centre):  # three at most
            same = centre == value
            scale[same] = MAD_TO_SIGMA * _medians_of_others(np.abs(levels - value))[same]
    own_degrees = max(1, ranks - 3 if few else round(_MAD_EFFICIENCY * (ranks - 1)))
    degrees_of_floor = THRESHOLDS.spread_degrees
    degrees = own_degrees + degrees_of_floor
    sigma = np.sqrt((own_degrees * scale**2 + degrees_of_floor * floor**2) / degrees) * math.sqrt(
        1 + 1 / max(ranks - 1, 1)
    )
    return levels - centre, sigma, degrees


def _medians_of_others(values: Floats) -> Floats:
    """Return, for each of the values, the median of the other ones."""
    order = np.argsort(values)
    ordered, place = values[order], np.argsort(order)
    # the value itself is left out: the values above it move down by one place
    low, high = ((at + (place <= at)) for at in ((len(values) - 2) // 2, (len(values) - 1) // 2))
    medians: Floats = (ordered[low] + ordered[high]) / 2
    return medians


def differ_steadily(total: Floats, slow: Ints, fast: Ints) -> bool:
    """Return whether `slow` columns of totals (steps, ranks) are above the `fast` ones alike in all steps.

    Work that changes from step to step makes some ranks slower on average by chance: then the difference is small
    beside its own scatter from step to step, or as large the other way round in other steps. With too few steps to
    tell, the answer is yes.
    """
    is_known = ~(np.isnan(total[:, slow]).all(axis=1) | np.isnan(total[:, fast]).all(axis=1))
    apart = np.nanmean(total[np.ix_(is_known, slow)], axis=1) - np.nanmean(total[np.ix_(is_known, fast)], axis=1)
    if len(apart) < THRESHOLDS.min_repeats:
        return True
    usual = float(np.median(apart))
    is_reversed = apart <= -THRESHOLDS.main_share * usual
    is_clear = usual >= THRESHOLDS.cluster_gap_sigmas * float(scatter_over_steps(apart[:, None])[0])
    return is_clear and bool(is_reversed.mean() <= THRESHOLDS.tolerance_share)


def scatter_over_steps(values: Floats, plain: Floats | None = None) -> Floats:
    """Return (columns,) the standard deviation of values (steps, columns) by chance; 0 for too few.

    `plain` is that of whatever values, as `qn_sigma` gives it, if it is known.

    A ramp, over all steps or some, is no scatter: values that correlate with the number of their step by
    `drift_correlation` or more scatter at most by what their changes from step to step, which vary about the change
    before, add up to at random (the end of a random walk).
    """
    sigmas = qn_sigma(values) if plain is None else plain
    if len(values) < THRESHOLDS.min_steps:
        return sigmas
    is_known = ~np.isnan(values)
    steps = np.arange(len(values), dtype=np.float64)[:, None]
    along, across = (centred(axis_values, is_known) for axis_values in (steps, values))
    squares = (along**2).sum(axis=0) * (across**2).sum(axis=0)
    is_ramp = (along * across).sum(axis=0) ** 2 >= THRESHOLDS.drift_correlation**2 * np.maximum(squares, 1.0)
    scatter: Floats = np.where(is_ramp, np.fmin(sigmas, wander_over_steps(values)), sigmas)
    return scatter


def wander_over_steps(values: Floats) -> Floats:
    """Return (columns,) how far values (steps, columns) may get by chance alone, of ramps and of what changes once.

    As far as their changes from step to step, which vary about the change before, add up to at random.
    """
    turns = np.diff(values, n=2, axis=0)  # of a ramp that begins within the run, one is large
    wander: Floats = MAD_TO_SIGMA * known_medians(np.abs(turns)) * math.sqrt(len(values) / 2)
    return wander
