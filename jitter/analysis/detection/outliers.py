"""Outliers: ranks whose own time stands out above the noise, in one step, some, or all. The replay prices them.

Two questions are asked of each rank and part, of every step: is the excess real, that is, above the rank's own
variation over steps, the ranks' spread in that step and the noise of operations; and of an excess in all steps, is it
unusual, that is, above the spread of the other ranks' usual values? The guide's topic `confidence` has the formulas.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from jitter.analysis.detection.deviations import TeamDeviations, settle_halves, spread_within_steps
from jitter.analysis.detection.significance import (
    binomial_tail,
    drift_line,
    effective_count,
    qn_sigma,
    quiet_level,
    spread_of_others,
)
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.stats import known_median
from jitter.core.numeric.student_t import student_tail

StepPositions = tuple[int, ...]
"""Positions of steps in the run."""


@dataclass(frozen=True)
class Outlier:
    """One rank's own time of one part, in the steps in which it stands out."""

    team: int
    rank: int
    part: TimePart
    steps: StepPositions
    excess_ns: float
    """Own time above the other ranks' median, summed over the steps."""
    sigmas: float
    """The excess of the worst step (or of the usual step), in standard deviations of the noise."""
    chance: float = 1.0
    """At most this is the probability that chance alone makes any rank, step and part of the run stand out so."""
    persistent: bool = False
    """Whether the rank stands out in its usual step; else in single steps."""
    unknown_steps: int = 0
    """Steps among these whose excess is unknown: the first recorded one of a late start."""
    is_of_all_ranks: bool = False
    """Whether all ranks are as slow in these steps: the other steps are the baseline, not the other ranks."""
    pace: float | None = None
    """Ratio of its kernels' time to the time expected from their launch sizes; None: it stands out by plain time."""


def places_in(its: Ints, steps: StepPositions) -> StepPositions:
    """Return the positions in the run of steps that are given by their positions among the steps `its`."""
    return tuple(its[list(steps)].tolist())


def join_kinds_of_steps(found: Iterable[Outlier]) -> list[Outlier]:
    """Return one outlier for each rank and part that stands out in steps of several kinds."""
    joined: dict[tuple[int, TimePart], Outlier] = {}
    for one in found:
        other = joined.get((one.rank, one.part))
        joined[one.rank, one.part] = one if other is None else _join(one, other)
    return list(joined.values())


def _join(one: Outlier, other: Outlier) -> Outlier:
    return replace(
        max(one, other, key=lambda each: each.sigmas),
        steps=tuple(sorted((*one.steps, *other.steps))),
        excess_ns=one.excess_ns + other.excess_ns,
        chance=min(one.chance, other.chance),
        persistent=one.persistent or other.persistent,
        unknown_steps=one.unknown_steps + other.unknown_steps,
    )


def find_outliers(
    deviations: TeamDeviations,
    step_ns: Floats,
    parts: Sequence[TimePart] = OWN_PARTS,
    tests: int = len(OWN_PARTS),
) -> list[Outlier]:
    """Return one team's outliers.

    Args:
        deviations: of the team.
        step_ns: (steps,) each step's time, NaN where unknown.
        parts: those to test.
        tests: how many parts are tested of each rank in all.

    """
    steps, ranks = deviations.total_ns.shape[1:]
    if ranks == 1 and steps < THRESHOLDS.min_steps_without_peers:
        return []
    usual_step = known_median(step_ns)
    found = []
    for part in parts:
        sample = _sample(deviations, part, tests)
        persistent, apart = _find_persistent(sample), _find_apart(sample)
        for column in range(ranks):
            one = persistent.get(column) or _in_steps(sample, column) or apart.get(column)
            if one is None:
                continue
            excess = float(np.nansum(sample.total[one.steps, column]))
            if ranks == 1 and excess > THRESHOLDS.max_excess_share * float(np.nansum(step_ns[one.steps])):
                continue  # operations side by side, each of which waited for what was not recorded
            if excess >= THRESHOLDS.min_excess_share * usual_step * one.steps.sum() and excess > 0:
                rank, which = int(deviations.ranks[column]), tuple(np.flatnonzero(one.steps).tolist())
                unknown = int(np.isnan(sample.total[one.steps, column]).sum())
                found.append(
                    Outlier(deviations.team, rank, part, which, excess, one.sigmas, one.chance, one.persistent, unknown)
                )
    return found


class _Sample(NamedTuple):
    """One part of one team's deviations, with what they are compared with."""

    total: Floats
    """(steps, ranks)."""
    level: Floats
    """(ranks,) the usual value over steps; 0 where there are too few steps."""
    noise: Floats
    """(steps, ranks) standard deviation of a step's total about the rank's usual value."""
    in_step: Floats
    """(steps, 1) the part of it that is not from step to step, which a drift would be."""
    usual_scatter: float
    """The ranks' median standard deviation over steps; 0 where there are too few steps."""
    unusual: Floats
    """(ranks,) how far a rank's usual value is above the centre of the other ranks' usual values, ns."""
    scale: Floats
    """(ranks,) the standard deviation of that."""
    degrees: int
    """Of freedom of `unusual`; 0 if there are too few other ranks."""
    trials: int
    """Tests that are made of the run with each of the two questions."""
    sigmas: Floats
    """(steps, ranks) total above the rank's usual value and above 0, in standard deviations; 0 where unknown."""
    tails: Floats
    """(steps, ranks) probability of more; 1 where unknown."""


class _Found(NamedTuple):
    steps: Bools
    sigmas: float
    chance: float
    persistent: bool


def _sample(deviations: TeamDeviations, part: TimePart, tests: int) -> _Sample:
    total, is_split = settle_halves(deviations.total_ns[part])
    steps, ranks = total.shape
    operations = np.nan_to_num(deviations.noise_ns[part])
    enough = steps >= THRESHOLDS.min_steps_for_scatter
    over_steps = qn_sigma(total) if enough else np.zeros(ranks)
    over_steps = np.maximum(over_steps, np.median(over_steps))
    if enough and ranks > 1:
        # it includes the operations' noise, which ranks that differ for ever would inflate
        operations = np.zeros_like(operations)
    level = np.nan_to_num(quiet_level(total, over_steps)) if enough else np.zeros(ranks)
    within = spread_within_steps(total - level, is_split)
    in_step = np.sqrt(within**2 + operations**2)
    noise = np.maximum(np.sqrt(over_steps[None, :] ** 2 + in_step**2), 1.0)
    share = THRESHOLDS.gpu_spread_share if part is TimePart.GPU else THRESHOLDS.host_spread_share
    unusual, scale, degrees = np.zeros(ranks), np.ones(ranks), 0
    if ranks > THRESHOLDS.min_peers_to_recur:
        least = np.where(np.isnan(total), np.inf, total).min(axis=0)
        levels = level if enough else np.nan_to_num(least, posinf=0)
        known_steps = np.maximum((~np.isnan(total)).sum(axis=0), 1)
        floor = np.sqrt(
            (share * float(np.nanmedian(deviations.usual_ns[part]))) ** 2 + (np.median(operations) ** 2) / known_steps
        )
        unusual, scale, degrees = spread_of_others(levels, floor, THRESHOLDS.spread_degrees)
    known = ~np.isnan(total)
    sigmas = np.where(known, np.nan_to_num(total) - np.maximum(level, 0.0), 0.0) / noise
    tails = np.where(known, student_tail(sigmas, THRESHOLDS.tail_degrees), 1.0)
    scale = np.maximum(scale, 1.0)
    usual_scatter = float(np.median(over_steps))
    return _Sample(
        total, level, noise, in_step, usual_scatter, unusual, scale, degrees, 2 * ranks * tests, sigmas, tails
    )


class _UsualStep(NamedTuple):
    """One rank's usual step, before any test of it."""

    column: int
    level_ns: float
    sigma_ns: float
    """Standard deviation of a step."""
    t: float
    """The mean over steps in its own standard deviations."""
    degrees: int
    """Of freedom of `t`."""
    unusual_ns: float
    """How far it is above the centre of the other ranks' usual values."""


def _find_persistent(sample: _Sample) -> dict[int, _Found]:
    """Return, by column, the ranks' excesses in their usual steps that are real and unusual."""
    ranks = range(sample.total.shape[1])
    usual = [one for column in ranks if (one := _usual_step(sample, column)) is not None]
    columns = np.array([one.column for one in usual], np.int64)
    chances = student_tail(np.array([one.t for one in usual]), np.array([one.degrees for one in usual]))
    if sample.degrees:
        unusual_ns = np.array([one.unusual_ns for one in usual])
        chances = np.maximum(chances, student_tail(unusual_ns / sample.scale[columns], sample.degrees))
    chances = np.minimum(chances * sample.trials, 1.0)
    found = {}
    for one, chance in zip(usual, chances.tolist(), strict=True):
        if chance > THRESHOLDS.max_chance:
            continue
        # a step that is far below the usual one is not among its steps
        own, known = sample.total[:, one.column], ~np.isnan(sample.total[:, one.column])
        with np.errstate(invalid="ignore"):
            steps = known & (own >= one.level_ns - np.maximum(one.level_ns / 2, 3 * sample.noise[:, one.column]))
        if steps[known].all():
            # nor is a step an exception of which no rank's total is known: the first one, by its start
            steps = steps | np.isnan(sample.total).all(axis=1)
        found[one.column] = _Found(steps, one.level_ns / one.sigma_ns, chance, persistent=True)
    return found


def _usual_step(sample: _Sample, column: int) -> _UsualStep | None:
    """Measure a rank's usual step; return None for one that is not above 0, or not known."""
    own = sample.total[:, column]
    known = ~np.isnan(own)
    count = int(known.sum())
    if count < 2 or sample.total.shape[1] == 1 or sample.level[column] < 0:
        return None
    values = own[known]
    if np.median(values) <= 0:
        return None
    level = float(sample.level[column]) or float(values.min())
    usual = math.hypot(sample.usual_scatter, float(np.median(sample.in_step[known])), 1.0)
    sigma, degrees = usual, THRESHOLDS.tail_degrees
    if count >= THRESHOLDS.min_steps_for_scatter:
        sigma, degrees = max(float(values.std(ddof=1)), usual), count - 1
        if sample.total.shape[1] >= THRESHOLDS.min_ranks_for_noise:
            sigma, degrees = _pool_sigma(sigma, degrees, usual)
    unusual_ns, independent = float(sample.unusual[column]), effective_count(values)
    if (line := drift_line(values)) is not None:
        # of a drift the mean counts, and how steps differ from the line
        sigma = max(float((values - line).std(ddof=2)), float(np.median(sample.in_step[known])), 1.0)
        degrees = count - 2
        independent = float(count)
        unusual_ns += float(values.mean()) - float(sample.level[column])
        level = float(values.mean())
    degrees = min(max(degrees, THRESHOLDS.tail_degrees), THRESHOLDS.max_degrees)
    return _UsualStep(column, level, sigma, level / sigma * math.sqrt(independent), degrees, unusual_ns)


def _pool_sigma(own: float, degrees: int, usual: float) -> tuple[float, int]:
    """Pool a rank's standard deviation over few steps with the ranks' usual one; return it and its degrees of freedom.

    The moderated t statistic (Smyth, "Linear models and empirical Bayes methods", 2004): a rank that is far behind the
    others in all steps, by an amount that varies, has a large deviation of its own.
    """
    pooled = degrees + THRESHOLDS.spread_degrees
    return math.sqrt((degrees * own**2 + THRESHOLDS.spread_degrees * usual**2) / pooled), pooled


def _in_steps(sample: _Sample, column: int) -> _Found | None:
    """Return the rank's excess in single steps, above its usual value and above 0.

    For k = 1, 2, 4, ... the k-th largest excess is compared with that of so many independent steps by chance. Of the
    least likely k and those up to the next one tried, the least likely then tells the steps.
    """
    known = ~np.isnan(sample.total[:, column])
    sigmas, tails = sample.sigmas[:, column], sample.tails[:, column]
    ordered, count = np.sort(tails), int(known.sum())

    def by_chance(most: int) -> float:
        return binomial_tail(most, count, float(ordered[most - 1]))

    chances = {1 << power: by_chance(1 << power) for power in range(count.bit_length()) if 1 << power <= count}
    if not chances:
        return None
    best = min(chances, key=chances.__getitem__)
    chance = min(1.0, chances[best] * len(chances) * sample.trials)
    if chance > THRESHOLDS.max_chance:
        return None
    most = min(range(best, min(2 * best, count + 1)), key=by_chance)
    steps = known & ((tails <= ordered[most - 1]) | (sigmas >= THRESHOLDS.step_sigmas))
    return _Found(steps, float(sigmas[steps].max()), chance, persistent=False)


def _find_apart(sample: _Sample) -> dict[int, _Found]:
    """Return, by column, the ranks' steps that lie apart from all others: few steps do not tell how far noise goes.

    If noise has the tail of Student's t, the k-th largest of any number of values is c times the next one with the
    probability c ^ (-k * degrees) (Rényi, "On the theory of order statistics", 1953): the values themselves tell the
    scale. The rank's scatter is that of its other steps. Of k steps the chance counts k (k + 1) fold, for all k tried.
    """
    steps, ranks = sample.total.shape
    if min(steps, ranks) < THRESHOLDS.min_ranks_for_noise:
        return {}
    highest = np.maximum(sample.sigmas.max(axis=0), 1.0)
    order = np.argsort(highest)
    found = {}
    for column in range(ranks):
        others = float(highest[order[-2] if column == order[-1] else order[-1]])
        if (one := _apart(sample, column, others)) is not None:
            found[column] = one
    return found


def _apart(sample: _Sample, column: int, others: float) -> _Found | None:
    """Return the steps of a rank that lie apart; `others` is the largest excess of the other ranks, in sigmas."""
    known = np.flatnonzero(~np.isnan(sample.total[:, column]))
    own, tests = sample.total[:, column] - max(sample.level[column], 0.0), sample.trials / sample.total.shape[1]
    ordered = known[np.argsort(-own[known], kind="stable")]
    counts = np.arange(1, len(known) // 2 + 1)

    def chance(ratio: Floats, count: Ints) -> Floats:
        tail: Floats = np.maximum(ratio, 1.0) ** (-count * float(THRESHOLDS.tail_degrees))
        found: Floats = tail * count * (count + 1) * tests
        return found

    def sigmas(scatter: float) -> Floats:
        found: Floats = own / np.maximum(np.sqrt(scatter**2 + sample.in_step[:, 0] ** 2), 1.0)
        return found

    most = np.minimum.accumulate(sigmas(sample.usual_scatter)[ordered])[: len(counts)] / others
    best, least = None, THRESHOLDS.medium_chance
    for count in counts[chance(most, counts) <= least].tolist():
        here, rest = ordered[:count], ordered[count:]
        scatter = max(float(qn_sigma(sample.total[rest, column][:, None])[0]), sample.usual_scatter)
        away = sigmas(scatter)
        ratio = away[here].min() / max(others, away[rest].max())
        if (by_chance := float(chance(np.array([ratio]), np.array([count]))[0])) <= least:
            steps = np.isin(np.arange(len(own)), here)
            best, least = _Found(steps, float(away[here].max()), by_chance, persistent=False), by_chance
    return best
