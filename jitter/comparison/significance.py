"""Sizes of effects with what of them is noise: a run's step time against others', and its loss to jitter.

An effect on step time is the difference of medians, or of means. Intervals are block bootstraps over steps: steps that
follow each other are drawn together, since what slows one step often slows the next. Steps of one number are drawn
together in runs that have the same steps: evaluations, checkpoints and longer batches come at the same ones. With
several bases, runs are drawn first, then their steps, and the new run gets the difference of a base run from their
median: equal runs differ by that much.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal

import numpy as np

from jitter.comparison.document import Document
from jitter.core.formatting import format_count
from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.numeric.stats import lower_median, middle_value
from jitter.core.numeric.student_t import student_quantile, student_tail

MIN_COMPARED: Final = 3
"""Steps of each run; two have a time where they follow each other, and fewer have no spread."""
MIN_STEPS: Final = 5
"""Those of a run that is checked against a limit: few steps do not tell what pauses a longer run has."""
MIN_NOISE: Final = 0.01
"""Part of a step; a smaller effect is noise, however many steps show it."""
_DRAWS: Final = 4000
_SEED: Final = 20200324
"""Fixed: two calls give one answer."""
_COVERAGE: Final = 0.95
MIN_RUNS: Final = 4
"""Runs without which the spread of equal runs is unknown."""
_FALSE_CHANGES: Final = 0.05
"""Share of histories of `_SERIES` equal runs that may hold a false change."""
_SERIES: Final = 50
_CHANCE: Final = _FALSE_CHANGES / _SERIES
"""Level of each test of `lies_outside` (Bonferroni: a history has fewer tests than runs)."""
_MIN_SPREAD: Final = 0.002
"""Of the step time; few equal runs may agree by chance."""
_ALIKE: Final = 0.4
"""Part of the farthest run's distance that the nearest of several runs outside has at least."""
_ODD_RUNS: Final = 8
"""Runs of which one may be odd; if more are, they are what equal runs differ by."""
_MIN_BLOCKED: Final = 8
"""Steps from which on steps that follow each other are drawn together: of two blocks most draws are alike."""
_ENOUGH: Final = 10
"""Values from which on the median's bootstrap interval agrees with that of the sign test, which assumes nothing."""


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


Statistic = Literal["median", "mean"]
_STATISTICS: Final[Mapping[Statistic, Callable[[Floats], Floats]]] = {
    "median": lambda times: lower_median(times)[..., 0],
    "mean": lambda times: times.mean(axis=-1),
}
"""Of step times along the last axis."""


def measure_effect(
    bases: Sequence[Floats], new: Floats, statistic: Statistic = "median", *, are_same_steps: bool = False
) -> StepEffect:
    """Compare the median or mean step of a run with that of others; (steps,) each, at least two, in order.

    `are_same_steps` says that all runs have the steps of the same numbers.
    """
    rng = np.random.default_rng(_SEED)
    of_steps = _STATISTICS[statistic]
    drawn_steps = [_draw_steps(len(times), rng) for times in (*bases, new)]
    if are_same_steps:
        drawn_steps = [drawn_steps[0]] * len(drawn_steps)
    of_bases, new_ns = np.array([of_steps(times) for times in bases]), float(of_steps(new))
    base_ns = middle_value(of_bases)
    *drawn_of_bases, drawn_of_new = [of_steps(times[at]) for times, at in zip((*bases, new), drawn_steps, strict=True)]
    drawn = np.stack(drawn_of_bases)
    # between equal runs: a median of k runs hides part of what each of them differs by
    residuals = (of_bases - base_ns) * np.sqrt(len(bases) / max(len(bases) - 1, 1))
    if len(bases) > 1:
        runs = rng.integers(len(bases), size=(len(bases), _DRAWS))
        drawn = np.take_along_axis(drawn, runs, axis=0)
    of_new = drawn_of_new + residuals[rng.integers(len(bases), size=_DRAWS)]
    centre = new_ns - base_ns
    widening_of = _widening_of_median if statistic == "median" else _widening_of_mean
    of_base = widening_of(len(bases[0])) if len(bases) == 1 else _widening_of_median(len(bases))
    widening = max(widening_of(len(new)), of_base)
    wide = centre + widening * (of_new - np.sort(drawn, axis=0)[(len(bases) - 1) // 2] - centre)
    low, high = _interval_of(wide)
    below, above = float((wide <= 0).mean()), float((wide >= 0).mean())
    p = 1.0 if centre == 0 else min(1.0, max(2 * min(below, above), 2 / (_DRAWS + 1)))
    noise = _noise(bases, new if are_same_steps else None, of_steps)
    return StepEffect(base_ns, new_ns, min(low, centre), max(high, centre), noise, p)


def find_odd_runs(step_times_ns: Sequence[float]) -> list[int]:
    """Return the positions of the few base runs that lie outside the spread of the others, the farthest first.

    Such a run is no measure of what equal runs differ by. At most one run in eight is odd, and one of five.
    """
    times = np.array(step_times_ns, np.float64)
    apart = np.abs(times - middle_value(times)) if len(times) else times
    farthest = np.argsort(-apart, kind="stable")
    most = min(max(len(times) // _ODD_RUNS, 1), len(times) - MIN_RUNS)
    for count in range(most, 0, -1):
        others = np.delete(times, farthest[:count])
        if all(lies_outside(others, times[at : at + 1]) for at in farthest[:count].tolist()):
            odd: list[int] = farthest[:count].tolist()
            return odd
    return []


def lies_outside(others: Floats, runs: Floats) -> bool:
    """Return whether runs lie outside the spread of other ones, all on one side and about as far; (runs,) ns each."""
    centre = float(others.mean())
    apart = runs / centre - 1
    if apart.min() * apart.max() <= 0 or abs(apart.mean()) <= MIN_NOISE:
        return False
    if np.abs(apart).min() < _ALIKE * np.abs(apart).max():
        return False  # the change begins with the second one
    spread = max(float(others.std(ddof=1)) / centre, _MIN_SPREAD)
    t = float(apart.mean()) / (spread * np.sqrt(1 / len(runs) + 1 / len(others)))
    return 2 * float(student_tail(abs(t), len(others) - 1.0)) < _CHANCE


def _noise(bases: Sequence[Floats], same_steps: Floats | None, of_steps: Callable[[Floats], Floats]) -> float:
    """Return what equal stretches differ by: halves of a base and, of several bases, one and another.

    Of a base's halves that is what the new run's do not differ by, too, if it has the `same_steps`.
    """

    def change(times: Floats) -> Floats:
        return of_steps(times[len(times) // 2 :]) - of_steps(times[: len(times) // 2])

    changes, of_bases = np.array([change(times) for times in bases]), np.array([of_steps(times) for times in bases])
    base_ns = middle_value(of_bases)
    halves = np.abs(changes)
    if same_steps is not None:
        halves = np.minimum(halves, np.abs(changes - change(same_steps)))
    noises = [MIN_NOISE, middle_value(halves) / base_ns]
    if len(bases) > 1:
        apart = np.abs(of_bases[:, None] - of_bases[None, :])
        noises.append(float(apart.sum() / (len(bases) * (len(bases) - 1))) / base_ns)
    return max(noises)


def measure_loss(run: Document) -> tuple[float, float] | str:
    """Return the 95% interval of the loss as a part of the run's time, or why its steps do not tell it.

    The loss of a longer run of the same job may lie in it; no run gains by jitter. It is a block bootstrap of
    Σ loss ÷ Σ step time over the steps that follow a recorded one.
    """
    if run.loss_fraction is None:
        few = f": {format_count(run.ranks, 'rank')} and {format_count(len(run.steps), 'step')} were recorded"
        why = few if run.ranks < 2 or len(run.steps) < MIN_STEPS else "; jitter report says why"
        return f"the loss of the run is unknown{why}"
    if run.ranks == 1 and run.has_unrecorded_ranks:
        return "one rank of the job was recorded: jitter between ranks cannot be measured"
    timed = [(step.loss_ns, step.step_time_ns) for step in run.steps if step.loss_ns is not None and step.step_time_ns]
    if len(run.steps) < MIN_STEPS or len(timed) < MIN_STEPS - 2:
        steps = format_count(MIN_STEPS, "step")
        return f"too few steps to measure its loss: the run has {len(run.steps)}, and a check needs {steps}"
    losses, times = np.array(timed, np.float64).T
    at = _draw_steps(len(timed), np.random.default_rng(_SEED))
    value = run.loss_fraction
    drawn = losses[at].sum(axis=1) / times[at].sum(axis=1)
    low, high = _interval_of(value + _widening_of_mean(len(timed)) * (drawn - losses.sum() / times.sum()))
    return min(max(low, 0.0), value), max(high, value)


def _draw_steps(steps: int, rng: np.random.Generator) -> Ints:
    """Return positions of steps, (draws, steps): blocks of steps that follow each other, drawn with return."""
    length = _block_length(steps)
    blocks = -(-steps // length)
    first = rng.integers(steps, size=(_DRAWS, blocks, 1))
    at: Ints = (first + np.arange(length)).reshape(_DRAWS, -1)[:, :steps] % steps
    return at


def _block_length(steps: int) -> int:
    """Return how many steps are drawn together: about the cube root of their number; one of few steps."""
    return round(steps ** (1 / 3)) if steps >= _MIN_BLOCKED else 1


def _widening_of_mean(values: int) -> float:
    """Return by how much the means of drawn blocks of so many values spread too little, from Student's t."""
    return _student_factor(values // _block_length(values))


def _widening_of_median(values: int) -> float:
    """Return by how much the medians of draws of so few values spread too little, from Student's t."""
    return 1.0 if values >= _ENOUGH else _student_factor(values)


def _student_factor(values: int) -> float:
    upper = (1 + _COVERAGE) / 2
    return student_quantile(upper, max(values - 1, 1)) / NormalDist().inv_cdf(upper)


def _interval_of(draws: Floats) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - _COVERAGE) / 2, (1 + _COVERAGE) / 2]).tolist()
    return low, high
