"""Change points: from which run on a job's step time is another.

Runs are read in order. The runs since the last change point say how much equal runs differ. A change begins at a run if
it and the next one together lie further from them than equal runs would once in 1000 pairs (t-test), both on the same
side, about as far, and by more than 1%. So a change is found with its second run. Before that, the last run of a job
may lie outside the spread of the runs before it.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from jitter.comparison.significance import MIN_RUNS, lies_outside

_PAIR: Final = 2


class ChangePoint(NamedTuple):
    """A change of the step time."""

    run: int
    """Position of the first run after it."""
    before_ns: float
    """Mean over the runs since the change point before."""
    after_ns: float
    """Mean of the first two runs after it; of one run that may begin a change, its time."""

    @property
    def fraction(self) -> float:
        """Return the change as a part of the step time before."""
        return self.after_ns / self.before_ns - 1


def find_change_points(step_times_ns: Sequence[float | None]) -> list[ChangePoint]:
    """Return the change points of a job's runs; runs of unknown step time are passed over."""
    timed_runs = [at for at, time in enumerate(step_times_ns) if time]
    times = np.array([step_times_ns[at] for at in timed_runs], np.float64)
    changes: list[ChangePoint] = []
    first = 0
    for at in range(len(times) - 1):
        before, pair = times[first:at], times[at : at + _PAIR]
        if len(before) >= MIN_RUNS and lies_outside(before, pair):
            changes.append(ChangePoint(timed_runs[at], float(before.mean()), float(pair.mean())))
            first = at
    return changes


def find_outside(step_times_ns: Sequence[float | None]) -> ChangePoint | None:
    """Return how the last run of a job differs from those since the last change; None if it does not, or they are few.

    It differs by the test of `find_change_points` for one run in place of two.
    """
    timed_runs = [at for at, time in enumerate(step_times_ns) if time]
    changes = find_change_points(step_times_ns)
    first = timed_runs.index(changes[-1].run) if changes else 0
    times = np.array([step_times_ns[at] for at in timed_runs], np.float64)
    before, last = times[first:-1], times[-1:]
    if len(before) < MIN_RUNS or not lies_outside(before, last):
        return None
    return ChangePoint(timed_runs[-1], float(before.mean()), float(last[0]))
