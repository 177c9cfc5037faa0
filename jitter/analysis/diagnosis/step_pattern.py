"""How the steps in which something happens lie in the run: one, a stretch, every Nth, a drift, all along."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from jitter.core.formatting import format_numbers
from jitter.core.step_key import StepKey

_ALL_ALONG: Final = 0.8
"""Steps of this part of the run are all along."""
_DRIFT: Final = 0.9
"""A drift's excess goes with the step's number at least with this correlation,"""
_DRIFT_GROWTH: Final = 2.0
"""and its last fifth is this many times its first."""
_LEAST_DRIFT: Final = 5
_LEAST_PERIODS: Final = 3


def describe_step_pattern(keys: Sequence[StepKey], which: Sequence[int], excess_ns: Sequence[float]) -> str:
    """Say it in words. `which` are positions in `keys`; `excess_ns` what each step of the run has of it."""
    drift = _drift(excess_ns)
    if not which:
        told = "no step"
    elif len(keys) == 1:
        told = "the only step"
    elif drift is not None:
        told = f"a drift: {drift}"
    elif len(which) == len(keys):
        told = "every step"
    elif len(which) >= max(2, _ALL_ALONG * len(keys)):
        told = f"nearly every step ({len(which)} of {len(keys)})"
    elif len(which) == 1:
        told = f"one step: {keys[which[0]]}"
    else:
        told = _some([keys[at].step for at in which], which, len(keys))
    return told


def _some(numbers: Sequence[int], which: Sequence[int], steps: int) -> str:
    """Two steps and more, but not all: a stretch, a period, or neither."""
    if which[-1] - which[0] + 1 == len(which):
        return f"a stretch: steps {numbers[0]} to {numbers[-1]}"
    apart = np.diff(np.array(which))
    if len(which) >= _LEAST_PERIODS and (apart == apart[0]).all() and _is_whole(which, int(apart[0]), steps):
        return f"every {format_ordinal(int(apart[0]))} step: {format_numbers(numbers)}"
    return f"{len(which)} of {steps} steps: {format_numbers(numbers)}"


def format_ordinal(number: int) -> str:
    """2nd, 3rd, 11th."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"


def _is_whole(which: Sequence[int], period: int, steps: int) -> bool:
    """Whether no further step of that period is without it."""
    return which[0] - period < 0 and which[-1] + period >= steps


def _drift(excess_ns: Sequence[float]) -> str | None:
    values = np.array(excess_ns, np.float64)
    if len(values) < _LEAST_DRIFT or np.isnan(values).any() or not values.std():
        return None
    fifth = max(1, len(values) // 5)
    first, last = float(values[:fifth].mean()), float(values[-fifth:].mean())
    together = float(np.corrcoef(np.arange(len(values)), values)[0, 1])
    if together >= _DRIFT and last >= _DRIFT_GROWTH * max(first, 0.0) and last > 0:
        return "it grows over the run"
    if together <= -_DRIFT and first >= _DRIFT_GROWTH * max(last, 0.0) and first > 0:
        return "it shrinks over the run"
    return None
