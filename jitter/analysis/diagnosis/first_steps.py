"""The first recorded steps: how far apart the ranks start, and whether all ranks are slow there, as in a warm-up."""

from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_percent, format_time

_LIMITS: Final = THRESHOLDS.evidence


class StartSpread(NamedTuple):
    """How far apart the ranks of a team start the first recorded step."""

    ns: float
    last: int | None
    """The rank that starts last; None where the spread is unknown."""


def first_start_spread(analysis: RunAnalysis) -> StartSpread:
    """Return the widest spread of the ranks' starts in the first step, over teams; 0 where it is unknown.

    Starts are compared by the time to the step's last aligning collective, which all ranks leave together. A rank
    starts with its first kernel; where the host time before that is charged to the rank, with its step marker.
    """
    run, widest = analysis.run, StartSpread(0.0, None)
    markers = run.beginnings(run.keys[0])
    for team, size in run.sizes.items():
        step = run.team_times(run.keys[0], team)
        if size < 2 or len(step.ranks) < 2:
            continue
        places = [place for place in analysis.ends.aligning(team) if not np.isnan(step.end[place]).any()]
        # empty for a program without a main-stream kernel
        begun = step.start[run.programs[team].first_kernel :][:1].ravel()
        if not run.has_consecutive_steps:
            marked = markers[[run.number_of[rank] for rank in step.ranks.tolist()]]
            begun = begun if np.isnan(marked).any() else marked
        if places and len(begun) and not np.isnan(begun).any():
            last = max(places, key=lambda place: float(np.median(step.end[place])))
            ahead = step.end[last] - begun
            spread = StartSpread(float(np.ptp(ahead)), int(step.ranks[ahead.argmin()]))
            widest = max(widest, spread, key=lambda one: one.ns)
    return widest


def describe_first_starts(analysis: RunAnalysis) -> str | None:
    """Return a sentence on the spread of the first starts; None if it is small."""
    spread = first_start_spread(analysis).ns
    if spread < max(_LIMITS.min_first_start_share * analysis.usual_step_ns, _LIMITS.min_first_start_ns):
        return None
    return (
        f"In the first recorded step, ranks start up to {format_time(spread)} apart: the reason lies before the "
        "recording, so no rank is charged for it."
    )


def doubt_first_starts(analysis: RunAnalysis) -> str | None:
    """Return why the rank that starts last cannot be cleared, where no later step shows it; None if it starts soon."""
    if analysis.run.has_consecutive_steps:
        return None
    spread = first_start_spread(analysis)
    if spread.last is None or spread.ns < THRESHOLDS.min_lead_share * analysis.usual_step_ns:
        return None
    return (
        f"Rank {spread.last} begins the recorded step last, {format_time(spread.ns)} after the first rank "
        f"({format_percent(spread.ns / analysis.usual_step_ns)} of it): the reason lies before the recording, so no "
        "rank is charged for it or cleared of it."
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
