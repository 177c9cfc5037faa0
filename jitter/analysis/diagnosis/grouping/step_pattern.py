"""The pattern of the steps in which something occurs: one, consecutive, every Nth, all, or a drift."""

from collections.abc import Sequence

import numpy as np

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_numbers
from jitter.core.step_key import StepKey


def describe_step_pattern(keys: Sequence[StepKey], late: Sequence[int], excess_ns: Sequence[float]) -> str:
    """Return the pattern in words.

    Args:
        keys: the run's steps.
        late: positions in `keys` of the steps in which it occurs.
        excess_ns: of each step of the run, also where it does not stand out.

    """
    drift = _drift(excess_ns)
    if not late:
        pattern = "no step"
    elif len(keys) == 1:
        pattern = "the only step"
    elif drift is not None:
        pattern = f"a drift: {drift}"
    elif len(late) == len(keys):
        pattern = "every step"
    elif len(late) >= max(2, THRESHOLDS.nearly_all_share * len(keys)):
        pattern = f"nearly every step ({len(late)} of {len(keys)})"
    elif len(late) == 1:
        pattern = f"one step: {keys[late[0]]}"
    else:
        pattern = _some([keys[at].step for at in late], late, len(keys))
    return pattern


def _some(numbers: Sequence[int], late: Sequence[int], steps: int) -> str:
    """Describe two or more steps, but not all: consecutive, periodic, or neither."""
    if late[-1] - late[0] + 1 == len(late):
        return f"consecutive steps: {numbers[0]} to {numbers[-1]}"
    apart = np.diff(np.array(late))
    if len(late) >= THRESHOLDS.min_periods and (apart == apart[0]).all() and _is_whole(late, int(apart[0]), steps):
        return f"every {format_ordinal(int(apart[0]))} step: {format_numbers(numbers)}"
    return f"{len(late)} of {steps} steps: {format_numbers(numbers)}"


def format_ordinal(number: int) -> str:
    """Return the ordinal number as text: 2nd, 3rd, 11th."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"


def _is_whole(late: Sequence[int], period: int, steps: int) -> bool:
    """Return whether every step of that period in the run is among them."""
    return late[0] - period < 0 and late[-1] + period >= steps


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
