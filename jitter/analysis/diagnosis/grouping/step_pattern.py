"""The pattern of the steps in which something occurs: one, consecutive, every Nth, all, or a drift."""

from collections.abc import Sequence

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_numbers
from jitter.core.step_key import StepKey


def describe_step_pattern(keys: Sequence[StepKey], which: Sequence[int], excess_ns: Sequence[float]) -> str:
    """Return the pattern in words.

    Args:
        keys: the run's steps.
        which: positions in `keys` of the steps in which it occurs.
        excess_ns: of each step of the run, also where it does not stand out.

    """
    drift = _drift(excess_ns)
    if not which:
        found = "no step"
    elif len(keys) == 1:
        found = "the only step"
    elif drift is not None:
        found = f"a drift: {drift}"
    elif len(which) == len(keys):
        found = "every step"
    elif len(which) >= max(2, THRESHOLDS.nearly_all_share * len(keys)):
        found = f"nearly every step ({len(which)} of {len(keys)})"
    elif len(which) == 1:
        found = f"one step: {keys[which[0]]}"
    else:
        found = _some([keys[at].step for at in which], which, len(keys))
    return found


def _some(numbers: Sequence[int], which: Sequence[int], steps: int) -> str:
    """Describe two or more steps, but not all: consecutive, periodic, or neither."""
    if which[-1] - which[0] + 1 == len(which):
        return f"consecutive steps: {numbers[0]} to {numbers[-1]}"
    apart = np.diff(np.array(which))
    if len(which) >= THRESHOLDS.min_periods and (apart == apart[0]).all() and _is_whole(which, int(apart[0]), steps):
        return f"every {format_ordinal(int(apart[0]))} step: {format_numbers(numbers)}"
    return f"{len(which)} of {steps} steps: {format_numbers(numbers)}"


def format_ordinal(number: int) -> str:
    """Return the ordinal number as text: 2nd, 3rd, 11th."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"


def _is_whole(which: Sequence[int], period: int, steps: int) -> bool:
    """Return whether every step of that period in the run is among them."""
    return which[0] - period < 0 and which[-1] + period >= steps


def _drift(excess_ns: Sequence[float]) -> str | None:
    values = np.array(excess_ns, np.float64)
    if len(values) < THRESHOLDS.min_steps_of_drift or np.isnan(values).any() or not values.std():
        return None
    fifth = max(1, len(values) // 5)
    first, last = float(values[:fifth].mean()), float(values[-fifth:].mean())
    correlation = float(np.corrcoef(np.arange(len(values)), values)[0, 1])
    if correlation >= THRESHOLDS.drift_correlation and last >= THRESHOLDS.drift_growth * max(first, 0.0) and last > 0:
        return "it grows over the run"
    if correlation <= -THRESHOLDS.drift_correlation and first >= THRESHOLDS.drift_growth * max(last, 0.0) and first > 0:
        return "it shrinks over the run"
    return None
