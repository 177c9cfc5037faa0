"""`python -m tests.accuracy.history`: change points in simulated histories, by how equal runs differ."""

from functools import cache
from typing import Final, NamedTuple

import numpy as np

from jitter.history.change_points import find_change_points

SERIES, RUNS, CHANGED, STEP_NS = 200, 30, 20, 1e7
SPREADS: Final = ("range ±1%", "sd 1%", "sd 2%")
"""Differences between equal runs: evenly within a range, or normal with a standard deviation."""


class Rates(NamedTuple):
    """Shares of the simulated series."""

    found: float
    """The change is found with its second run, at its place."""
    near: float
    """The change is found at its place or one run beside it."""
    early: float
    """A change is reported before the true one."""
    false: float
    """A change is reported in a series of equal runs."""
    alarmed: float
    """An equal run differs from the first by more than 1%: a false alarm of a gate with one baseline."""


def simulated(rng: np.random.Generator, spread: str, change: float) -> list[float]:
    """Return the step times of a series of runs that is slower by `change` from run `CHANGED` on."""
    kind, size = spread.split()
    part = float(size.strip("±%")) / 100
    noise = rng.uniform(-part, part, RUNS) if kind == "range" else rng.normal(0, part, RUNS)
    times = STEP_NS * (1 + noise)
    times[CHANGED:] *= 1 + change
    return times.tolist()


@cache
def measure_rates(spread: str, change: float = 0.04) -> Rates:
    """Simulate series with and without a change and return how often change points are right."""
    rng = np.random.default_rng(20200324)
    counts = np.zeros(len(Rates._fields))
    for _ in range(SERIES):
        times, equal = simulated(rng, spread, change), simulated(rng, spread, 0.0)
        at = [one.run for one in find_change_points(times)]
        counts += (
            CHANGED in at,
            any(abs(one - CHANGED) <= 1 for one in at),
            any(one < CHANGED for one in at),
            bool(find_change_points(equal)),
            any(abs(time / equal[0] - 1) > 0.01 for time in equal[1:]),
        )
    return Rates(*(counts / SERIES).tolist())


def describe_rates() -> list[str]:
    """Return the rates, one line a spread."""
    lines = [f"history: {SERIES} series of {RUNS} runs, equal or 4% slower from run {CHANGED + 1} on"]
    for spread in SPREADS:
        found, near, early, false, alarmed = (f"{100 * rate:.1f}%" for rate in measure_rates(spread))
        lines.append(
            f"  {spread}: found with its second run {found}, within a run of its place {near}, "
            f"a change before it {early}, false change in equal runs {false}, "
            f"false alarm against one baseline {alarmed}"
        )
    return lines


if __name__ == "__main__":
    print(*describe_rates(), sep="\n")
