"""Suspects: ranks whose own time leaves the noise, in one step, some, or all along. Whether it costs, replay says."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jitter.analysis.detection.deviations import TeamDeviations, estimate_sigma
from jitter.analysis.detection.thresholds import Thresholds
from jitter.core.arrays import Floats

StepPositions = tuple[int, ...]
"""Positions of steps in the run."""


@dataclass(frozen=True)
class Outlier:
    """One rank's own time of one part, in some steps."""

    team: int
    rank: int
    part: int
    steps: StepPositions
    excess_ns: float
    """Above the others, all its steps together."""
    sigmas: float
    """How far out of the noise."""


def find_outliers(deviations: TeamDeviations, step_ns: Floats, limits: Thresholds) -> list[Outlier]:
    """Find them in one team; `step_ns` is each step's time (NaN where unknown)."""
    steps, ranks = deviations.total_ns.shape[1:]
    if ranks == 1 and steps < limits.least_steps_alone:
        return []
    found = []
    usual_step = float(np.nanmedian(step_ns)) if not np.isnan(step_ns).all() else 0.0
    for part, total in enumerate(deviations.total_ns):
        noise = np.fmax(deviations.noise_ns[part], estimate_sigma(total))
        noise = np.maximum(noise, 1.0)
        sigmas = total / noise
        for column, rank in enumerate(deviations.ranks.tolist()):
            own, own_sigmas = total[:, column], sigmas[:, column]
            known = ~np.isnan(own)
            if not known.any():
                continue
            outside = known & (own_sigmas >= limits.sigmas)
            mean, mean_sigmas = _all_along(own[known], noise[known, 0], total)
            if mean_sigmas >= limits.run_sigmas and known.sum() > 1 and outside.sum() < known.sum():
                # a mean that a few steps carry is those steps', not the run's
                rest = own[known & ~outside]
                if len(rest) and np.median(rest) >= mean / 2:
                    outside = known
            if not outside.any():
                continue
            excess = float(own[outside].sum())
            if excess >= limits.worth_replaying * usual_step * outside.sum():
                worst = max(float(np.nanmax(own_sigmas[outside])), mean_sigmas if outside.all() else 0.0)
                steps = tuple(np.flatnonzero(outside).tolist())
                found.append(Outlier(deviations.team, rank, part, steps, excess, worst))
    return found


def largest_outliers(found: Sequence[Outlier], limits: Thresholds) -> list[Outlier]:
    """Those with the most excess."""
    return sorted(found, key=lambda one: -one.excess_ns)[: limits.most_tried]


def _all_along(own: Floats, noise: Floats, total: Floats) -> tuple[float, float]:
    """The mean over steps, and how many of its standard deviations it is above 0."""
    mean = float(own.mean())
    chance = float(np.sqrt((noise**2).sum())) / len(own)
    return mean, mean / max(chance, 1.0)
