"""Step patterns: which of the recorded steps a finding occurs in, such as every fifth."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_numbers, format_ordinal
from jitter.core.step_key import StepKey

_GROWS: Final = "it grows"


@dataclass(frozen=True)
class StepPattern:
    """A pattern in words: `every 5th step: 4,9,14`."""

    shape: str
    """The words before the steps."""
    steps: str = ""
    """The numbers of the steps, where `shape` does not tell them."""
    rest: str = ""
    """What follows: whether it grows, which steps cost nearly all."""
    is_count: bool = False
    """Whether `shape` tells no more than how many steps of how many they are."""
    has_ended: bool = False
    """Whether it ended before the recording."""
    grows: bool = False
    """Whether it grows from step to step."""

    @property
    def words(self) -> str:
        """The whole pattern."""
        return self.shape + (f": {self.steps}" if self.steps else "") + self.rest

    @property
    def beside_count(self) -> str:
        """What the pattern adds to the end of a clause that gives the number of steps."""
        if not self.is_count:
            return f", {self.words}"
        return (f": {self.steps}" if self.steps else "") + self.rest


def find_step_pattern(
    keys: Sequence[StepKey], late: Sequence[int], excess_ns: Sequence[float], costly: Sequence[StepKey] = ()
) -> StepPattern:
    """Return the pattern.

    Args:
        keys: the steps that its ranks recorded.
        late: positions in `keys` of the steps in which it occurs.
        excess_ns: of each of `keys`, also where it does not stand out.
        costly: the few steps that cost nearly all, where there are such.

    """
    drift = _drift(excess_ns)
    pattern = replace(_find_shape(keys, late, drift), grows=drift == _GROWS)
    if not costly:
        return pattern
    numbers = format_numbers([key.step for key in costly])
    return replace(pattern, rest=f"{pattern.rest}, nearly all of its cost in {len(costly)}: {numbers}")


def _find_shape(keys: Sequence[StepKey], late: Sequence[int], drift: str | None) -> StepPattern:
    if not late:
        return StepPattern("no step", is_count=True)
    if len(keys) == 1:
        return StepPattern("the only step", is_count=True)
    if drift is not None and (len(late) == len(keys) or not _is_stretch(late)):
        return StepPattern(f"a drift: {drift} over the run")
    if len(late) == len(keys):
        return StepPattern("every step", is_count=True)
    if drift is None and len(late) >= max(2, THRESHOLDS.nearly_all_share * len(keys)):
        return StepPattern(f"nearly every step ({len(late)} of {len(keys)})", is_count=True)
    pattern = _find_some([keys[at] for at in late], late, len(keys))
    return replace(pattern, rest=f", and {drift}") if drift else pattern


def _is_stretch(late: Sequence[int]) -> bool:
    return late[-1] - late[0] + 1 == len(late)


def _find_some(keys: Sequence[StepKey], late: Sequence[int], steps: int) -> StepPattern:
    if len(late) == 1:
        return StepPattern("one step", str(keys[0]), is_count=True)
    numbers = [key.step for key in keys]
    if _is_stretch(late):
        if len(late) >= THRESHOLDS.min_repeats and late[-1] + 1 == steps:
            return StepPattern(f"from step {numbers[0]} on")
        if len(late) >= THRESHOLDS.min_repeats and late[0] == 0:
            return StepPattern(f"up to step {numbers[-1]}", has_ended=True)
        return StepPattern("consecutive steps", f"{numbers[0]} to {numbers[-1]}", is_count=True)
    if (period := find_period(late, steps)) is not None:
        return StepPattern(f"every {format_ordinal(period)} step", format_numbers(numbers))
    return StepPattern(f"{len(late)} of {steps} steps", format_numbers(numbers), is_count=True)


def find_period(late: Sequence[int], steps: int) -> int | None:
    """Return the number n if these positions are every nth of so many steps, more than one apart; else None."""
    if len(late) < THRESHOLDS.min_repeats:
        return None
    apart = np.diff(np.array(late))
    period = int(apart[0])
    # a recording's first step does not show what preceded it
    has_all = late[0] <= period and late[-1] + period >= steps
    return period if period > 1 and (apart == period).all() and has_all else None


def _drift(excess_ns: Sequence[float]) -> str | None:
    values = np.array(excess_ns, np.float64)
    if len(values) < THRESHOLDS.min_steps or np.isnan(values).any() or not values.std():
        return None
    fifth = max(1, len(values) // 5)
    first, last = float(values[:fifth].mean()), float(values[-fifth:].mean())
    correlation = float(np.corrcoef(np.arange(len(values)), values)[0, 1])
    if correlation >= THRESHOLDS.drift_correlation and last >= THRESHOLDS.much_more * max(first, 0.0) and last > 0:
        return _GROWS
    if correlation <= -THRESHOLDS.drift_correlation and first >= THRESHOLDS.much_more * max(last, 0.0) and first > 0:
        return "it shrinks"
    return None
