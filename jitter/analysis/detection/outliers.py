"""Outliers: ranks whose own time stands out above the noise, in one step, some, or all. The replay prices them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jitter.analysis.detection.deviations import TeamDeviations, estimate_sigma
from jitter.analysis.detection.thresholds import Thresholds
from jitter.analysis.execution.time_part import OWN_PARTS, TimePart
from jitter.core.arrays import Floats

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
    """The excess of the worst step (or of the mean over all steps), in standard deviations of the noise."""


def find_outliers(deviations: TeamDeviations, step_ns: Floats, thresholds: Thresholds) -> list[Outlier]:
    """Return one team's outliers; `step_ns` (steps,) is each step's time, NaN where unknown."""
    steps, ranks = deviations.total_ns.shape[1:]
    if ranks == 1 and steps < thresholds.min_steps_without_peers:
        return []
    found = []
    usual_step = float(np.nanmedian(step_ns)) if not np.isnan(step_ns).all() else 0.0
    for part in OWN_PARTS:
        total = deviations.total_ns[part]
        noise = np.fmax(deviations.noise_ns[part], estimate_sigma(total))
        noise = np.maximum(noise, 1.0)
        sigmas = total / noise
        for column, rank in enumerate(deviations.ranks.tolist()):
            own, own_sigmas = total[:, column], sigmas[:, column]
            known = ~np.isnan(own)
            if not known.any():
                continue
            outside = known & (own_sigmas >= thresholds.step_sigmas)
            mean, mean_sigmas = _mean_and_sigmas(own[known], noise[known, 0])
            if mean_sigmas >= thresholds.run_sigmas and known.sum() > 1 and outside.sum() < known.sum():
                # a mean that a few steps carry belongs to those steps, not to the run
                rest = own[known & ~outside]
                if len(rest) and np.median(rest) >= mean / 2:
                    outside = known
            if not outside.any():
                continue
            excess = float(own[outside].sum())
            if excess >= thresholds.min_excess_share * usual_step * outside.sum():
                worst = max(float(np.nanmax(own_sigmas[outside])), mean_sigmas if outside.all() else 0.0)
                positions = tuple(np.flatnonzero(outside).tolist())
                found.append(Outlier(deviations.team, rank, part, positions, excess, worst))
    return found


def largest_outliers(found: Sequence[Outlier], thresholds: Thresholds) -> list[Outlier]:
    """Return the outliers with the most excess, most first."""
    return sorted(found, key=lambda one: -one.excess_ns)[: thresholds.max_priced_outliers]


def _mean_and_sigmas(own: Floats, noise: Floats) -> tuple[float, float]:
    """Return the mean over steps, and by how many of its standard deviations it is above 0."""
    mean = float(own.mean())
    sigma = float(np.sqrt((noise**2).sum())) / len(own)
    return mean, mean / max(sigma, 1.0)
