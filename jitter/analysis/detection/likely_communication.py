"""Kernels that behave like communication although nothing names them so: apart at their start, together at their end.

A rank that reaches a collective early waits in it for the last one. So the collective's start differs from rank to
rank and from step to step, and the longer it runs the earlier it began: only its end is common. Two ranks' clocks
differ by a constant, so the difference of two ranks' ends of such a kernel is constant, too, whatever the clocks.

A kernel that computes and communicates hardly waits where ranks arrive together. A step in which some are far longer
in it tells: these wait if they leave it together with a rank that began by so much later.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.grouping import by_key
from jitter.core.names.kernels import COLLECTIVE, COMPUTE
from jitter.core.numeric.arrays import Floats, spread_positions
from jitter.core.numeric.stats import lower_median
from jitter.core.step_key import StepKey


@dataclass(frozen=True)
class CommunicationSurvey:
    """Recognised and likely communication of a run."""

    ranks: int
    is_recognized: bool
    """Whether any kernel of the run is known to be communication."""
    is_in_graphs: bool
    """Whether graphs that were recorded as a whole may hide it (`RunModel.has_hidden_communication`)."""
    likely: tuple[str, ...]
    """Names of kernels that are not known to be communication and behave so, the most frequent first."""


def survey_communication(run: RunModel, late: Sequence[tuple[StepKey, int]] = ()) -> CommunicationSurvey:
    """Survey a run's communication from a sample of its steps.

    And from those in which a rank's kernels take longer than the other ranks': `late` are such steps and ranks.
    """
    counts = Counter[str]()
    for team in run.programs if len(run.team_of) > 1 else ():
        counts.update(_likely_of_team(run, team))
    for key, rank in late:
        counts.update(_waits_of_rank(run, key, rank))
    return CommunicationSurvey(
        len(run.team_of),
        any(operation.kind == COLLECTIVE for operation in run.operations if operation.is_kernel),
        run.has_hidden_communication,
        tuple(sorted(counts, key=lambda name: (-counts[name], name))),
    )


def _likely_of_team(run: RunModel, team: int) -> Mapping[str, int]:
    """Return the number of launches of each likely kernel in the sample of steps and ranks."""
    operations = enumerate(run.programs[team].operations)
    places = by_key((op.name, place) for place, op in operations if op.kind == COMPUTE)
    steps = [key for key in run.keys if len(run.ranks(key, team)) > 1]
    if not steps:
        return {}
    chosen = [steps[at] for at in spread_positions(len(steps), THRESHOLDS.sampled_steps)]
    ranks = sorted({rank for key in chosen for rank in run.ranks(key, team)})[: THRESHOLDS.sampled_ranks]
    start, end = _read_times(run, team, chosen, ranks)
    return {
        name: int((~np.isnan(start[:, kernel_places])).sum())
        for name, kernel_places in _with_spread(places, start, end)
        if is_likely_communication(
            start[:, kernel_places].reshape(-1, len(ranks)), end[:, kernel_places].reshape(-1, len(ranks))
        )
    }


def _waits_of_rank(run: RunModel, key: StepKey, rank: int) -> Mapping[str, int]:
    """Return the kernels in which a rank waits in a step, with their launches in it and in another step."""
    team, keys = run.team_of[rank], list(run.keys)
    at = keys.index(key)
    beside = (keys[other] for other in (at - 1, at + 1) if 0 <= other < len(keys))
    another = next((other for other in beside if rank in run.ranks(other, team)), None)
    # of large steps memory has no room for two
    if another is None or rank not in run.ranks(key, team) or run.has_large_steps:
        return {}
    operations, ranks = run.programs[team].operations, sorted({*run.ranks(key, team)} & {*run.ranks(another, team)})
    start, end = (times.reshape(-1, len(ranks)) for times in _read_times(run, team, [key, another], ranks))
    column = ranks.index(rank)
    took, usually = np.split(end[:, column] - start[:, column], 2)
    is_longer = took - usually > np.maximum(THRESHOLDS.rounding_ns, THRESHOLDS.main_share * usually)
    names = {operations[at].name for at in np.flatnonzero(is_longer).tolist() if operations[at].kind == COMPUTE}
    rows_of = by_key((op.name, row) for row, op in enumerate(operations * 2) if op.name in names)
    return {
        name: int((~np.isnan(start[rows])).sum())
        for name, rows in rows_of.items()
        if has_waited(start[rows], end[rows], column)
    }


def _read_times(run: RunModel, team: int, keys: Sequence[StepKey], ranks: Sequence[int]) -> tuple[Floats, Floats]:
    """Return when these ranks of a team start and end the operations of steps, (steps, operations, ranks); else NaN."""
    start, end = np.full((2, len(keys), len(run.programs[team].operations), len(ranks)), np.nan)
    are_wanted = np.isin(run.rank_numbers, ranks)
    for at, key in enumerate(keys):
        step = run.team_times(key, team, are_wanted)
        columns = {rank: column for column, rank in enumerate(step.ranks.tolist())}
        rank_columns = np.array([columns.get(rank, -1) for rank in ranks])
        here = rank_columns >= 0
        start[at][:, here], end[at][:, here] = (times[:, rank_columns[here]] for times in (step.start, step.end))
        del step  # else it stays in memory while the next one is read
    return start, end


def has_waited(start_ns: Floats, end_ns: Floats, column: int) -> bool:
    """Return whether the longest launch of one kernel on a rank is a wait for a rank that began by so much later.

    All ranks that are about as long in that launch leave it together with that one. `start_ns` and `end_ns` have shape
    (launches, ranks), each rank on a clock of its own; `column` is the rank's.
    """
    duration = end_ns - start_ns
    longer = duration - lower_median(duration, axis=0)
    if (~np.isnan(longer[:, column])).sum() < THRESHOLDS.min_samples:
        return False
    launch = int(np.nanargmax(longer[:, column]))
    longest_ns = longer[launch, column]
    if not longest_ns > max(THRESHOLDS.rounding_ns, THRESHOLDS.main_share * np.nanmedian(duration)):
        return False
    later, apart = (
        moved[launch] - lower_median(moved, axis=0)[0]
        for moved in (times - times[:, [column]] for times in (start_ns, end_ns))
    )
    are_together = np.abs(apart) <= THRESHOLDS.tolerance_share * longest_ns
    is_awaited = are_together & (later >= (1 - THRESHOLDS.tolerance_share) * longest_ns)
    are_long = longer[launch] > THRESHOLDS.main_share * longest_ns
    return bool(is_awaited.any() and are_together[are_long].all())


def _with_spread(places: Mapping[str, list[int]], start_ns: Floats, end_ns: Floats) -> Iterator[tuple[str, list[int]]]:
    """Yield the kernels, by name their places, whose durations may differ enough between ranks, or are incomplete.

    `start_ns` and `end_ns` have shape (steps, operations, ranks). Kernels with equally many places are tested at once:
    a program may have tens of thousands of names.
    """
    by_count = by_key((len(kernel_places), name) for name, kernel_places in places.items())
    duration = end_ns - start_ns
    spread = np.ptp(duration, axis=2)  # NaN where a rank lacks the operation
    likely: set[str] = set()
    for names in by_count.values():
        places_by_name = np.array([places[name] for name in names])
        spreads = np.moveaxis(spread[:, places_by_name], 1, 0).reshape(len(names), -1)
        durations = np.moveaxis(duration[:, places_by_name], 1, 0).reshape(len(names), -1)
        is_even = np.median(spreads, axis=1) <= THRESHOLDS.tolerance_share * np.median(durations, axis=1)
        likely.update(name for name, even in zip(names, is_even.tolist(), strict=True) if not even)
    return ((name, kernel_places) for name, kernel_places in places.items() if name in likely)


def is_likely_communication(start_ns: Floats, end_ns: Floats) -> bool:
    """Return whether launches of one kernel start apart and end together on most ranks.

    `start_ns` and `end_ns` have shape (launches, ranks), each rank on a clock of its own, NaN where it has none.
    """
    complete = np.flatnonzero(~np.isnan(start_ns).any(axis=1) & ~np.isnan(end_ns).any(axis=1))
    compared = complete[spread_positions(len(complete), THRESHOLDS.max_tried)]
    start, end = start_ns[compared], end_ns[compared]
    duration = end - start
    if len(start) < THRESHOLDS.min_samples:
        return False
    if np.median(np.ptp(duration, axis=1)) <= THRESHOLDS.tolerance_share * np.median(duration):
        return False
    ranks = start.shape[1]
    paired, alone = np.zeros(ranks, np.bool_), 0
    for rank in range(ranks):
        if paired[rank]:
            continue
        apart = _deviations(start - start[:, rank : rank + 1])
        together = _deviations(end - end[:, rank : rank + 1])
        partners = (apart > THRESHOLDS.rounding_ns) & (together < THRESHOLDS.minor_share * apart)
        paired |= partners
        paired[rank] = partners.any()
        alone += not paired[rank]
        if ranks - alone < (1 - THRESHOLDS.minor_share) * ranks:
            return False
    return bool(paired.mean() >= 1 - THRESHOLDS.minor_share)


def _deviations(values: Floats) -> Floats:
    """Return the median absolute deviation from the median of each column."""
    deviation: Floats = np.median(np.abs(values - np.median(values, axis=0)), axis=0)
    return deviation
