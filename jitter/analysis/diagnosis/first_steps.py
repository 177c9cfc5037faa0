"""The first recorded steps: how far apart the ranks start, and whether all ranks are slow there, as in a warm-up."""

from typing import Final

import numpy as np

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_time

_LIMITS: Final = THRESHOLDS.evidence


def first_start_spread(analysis: RunAnalysis) -> float:
    """Return the spread, ns, of the ranks' first kernels in the first step; 0 where it is unknown.

    Starts are compared by the time to the step's last aligning collective, which all ranks leave together.
    """
    run, widest = analysis.run, 0.0
    for team, size in run.sizes.items():
        step = run.team_times(run.keys[0], team)
        if size < 2 or len(step.ranks) < 2:
            continue
        places = [place for place in analysis.ends.aligning(team) if not np.isnan(step.end[place]).any()]
        # empty for a program without a main-stream kernel
        begun = step.start[run.programs[team].first_kernel :][:1].ravel()
        if places and len(begun) and not np.isnan(begun).any():
            last = max(places, key=lambda place: float(np.median(step.end[place])))
            widest = max(widest, float(np.ptp(step.end[last] - begun)))
    return widest


def describe_first_starts(analysis: RunAnalysis) -> str | None:
    """Return a sentence on the spread of the first starts; None if it is small."""
    spread = first_start_spread(analysis)
    if spread < max(_LIMITS.min_first_start_share * analysis.usual_step_ns, _LIMITS.min_first_start_ns):
        return None
    return (
        f"In the first recorded step, ranks start up to {format_time(spread)} apart: the reason lies before the "
        "recording, so no rank is charged for it."
    )


def describe_warm_up(analysis: RunAnalysis) -> str | None:
    """Return a sentence on first steps that are slow for all ranks; None if they are not."""
    found = analysis.warm_up
    if found is None:
        return None
    last, after, end = (analysis.keys[at] for at in (found.steps[-1], found.steps[-1] + 1, -1))
    first = f"Step {last.step}, the first of known time, takes"
    if (count := len(found.steps)) > 1:
        first = f"The first {format_count(count, 'step')} of known time, up to step {last.step}, take"
    return (
        f"{first} {format_time(found.excess_ns / count)} longer on all ranks: a warm-up (compilation, autotuning, "
        f"allocation), unless all GPUs or hosts were slow then. To leave it out: --steps {after.step}-{end.step}."
    )
