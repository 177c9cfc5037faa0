"""How much longer a step of one run takes than of others, with an interval and what counts as noise.

The effect is the difference of medians. Its interval is a block bootstrap over steps (`block_bootstrap`). With several
bases, runs are drawn first, then their steps, and the new run gets the difference of a base run from their median:
equal runs differ by that much.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jitter.comparison.effect.block_bootstrap import DRAWS, draw_steps, interval_of, start_draws, widening
from jitter.core.numeric.arrays import Floats

MIN_NOISE: Final = 0.01
"""Part of a step; a smaller effect is noise, however many steps show it."""


@dataclass(frozen=True)
class StepEffect:
    """The effect on step time, ns."""

    base_ns: float
    new_ns: float
    low_ns: float
    """Of the 95% interval of the difference."""
    high_ns: float
    noise_fraction: float
    """Largest effect that counts as noise, of the base's step."""
    p: float
    """How often equal runs would differ as much."""

    @property
    def difference_ns(self) -> float:
        """Return new − base."""
        return self.new_ns - self.base_ns

    @property
    def fraction(self) -> float:
        """Return the difference as a part of the base's step."""
        return self.difference_ns / self.base_ns

    @property
    def interval(self) -> tuple[float, float]:
        """Return the interval as parts of the base's step."""
        return self.low_ns / self.base_ns, self.high_ns / self.base_ns

    @property
    def is_real(self) -> bool:
        """Whether the interval excludes 0 and the effect exceeds the noise."""
        return (self.low_ns > 0 or self.high_ns < 0) and abs(self.fraction) > self.noise_fraction


def measure_effect(bases: Sequence[Floats], new: Floats) -> StepEffect:
    """Compare the step times of a run with those of others; (steps,) each, at least two, in order."""
    rng = start_draws()
    medians = np.array([median(times) for times in bases])
    base_ns, new_ns = median(medians), median(new)
    drawn = np.stack([_draw(times, rng) for times in bases])
    # between equal runs: a median of k runs hides part of what each of them differs by
    residuals = (medians - base_ns) * np.sqrt(len(bases) / max(len(bases) - 1, 1))
    if len(bases) > 1:
        runs = rng.integers(len(bases), size=(len(bases), DRAWS))
        drawn = np.take_along_axis(drawn, runs, axis=0)
    of_new = _draw(new, rng) + residuals[rng.integers(len(bases), size=DRAWS)]
    centre = new_ns - base_ns
    wide = centre + _widening(bases, new) * (of_new - np.sort(drawn, axis=0)[(len(bases) - 1) // 2] - centre)
    low, high = interval_of(wide)
    below, above = float((wide <= 0).mean()), float((wide >= 0).mean())
    p = 1.0 if centre == 0 else min(1.0, max(2 * min(below, above), 2 / (DRAWS + 1)))
    return StepEffect(base_ns, new_ns, min(low, centre), max(high, centre), _noise(bases, medians, base_ns), p)


def median(values: Floats) -> float:
    """Return the lower median of (values,)."""
    return float(np.partition(values, (len(values) - 1) // 2)[(len(values) - 1) // 2])


def _draw(times: Floats, rng: np.random.Generator) -> Floats:
    """Return, (draws,), medians of drawn steps."""
    middle = (len(times) - 1) // 2
    found: Floats = np.partition(times[draw_steps(len(times), rng)], middle, axis=1)[:, middle]
    return found


def _widening(bases: Sequence[Floats], new: Floats) -> float:
    """Return the widening for the fewest values that a median is of: steps, or of several bases the runs."""
    fewest = min(len(new), len(bases) if len(bases) > 1 else len(bases[0]))
    return widening(fewest)


def _noise(bases: Sequence[Floats], medians: Floats, base_ns: float) -> float:
    """Return what equal stretches differ by: halves of a base and, of several bases, one and another."""
    halves = [abs(median(times[: len(times) // 2]) - median(times[len(times) // 2 :])) for times in bases]
    found = [MIN_NOISE, median(np.array(halves)) / base_ns]
    if len(bases) > 1:
        apart = np.abs(medians[:, None] - medians[None, :])
        found.append(float(apart.sum() / (len(bases) * (len(bases) - 1))) / base_ns)
    return max(found)
