"""A step as the replay and the account take it: recorded times, self times, carried state, transfers."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from jitter.analysis.execution.collectives.matching import CollectiveArrays
from jitter.analysis.execution.dependencies.carried_state import CarriedState
from jitter.analysis.execution.job_arrays import JobArrays
from jitter.analysis.execution.recorded.step_times import StepTimes
from jitter.analysis.execution.self_times import SelfTimes, empty_self_times, follow_step
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.step_key import StepKey


class Transfers(NamedTuple):
    """A step's collectives, (groups of all collectives,) each."""

    took: Floats
    """From the last arrival to the end; NaN where no rank of the group was recorded."""
    complete: Bools
    """Whether this step of all its members was recorded."""
    mostly_complete: Bools
    """Whether it was of nearly all that are in the lake."""
    partial: Bools
    """Whether some ranks in the lake have it and others lack it: those may wait for these."""


@dataclass(frozen=True)
class RecordedStep:
    """One step of the run."""

    number: int
    """In the run."""
    key: StepKey
    times: StepTimes
    own: SelfTimes
    before: CarriedState
    """State of the ranks before the step."""
    fresh: Bools
    """(ranks of the run,) whose step before is not known, or that have not this one."""
    collectives: CollectiveArrays

    def without_self_times(self) -> "RecordedStep":
        """Return the step with empty self times, which take more than half of its memory."""
        return replace(self, own=empty_self_times(0))

    def with_self_times_of(self, rank: int, job: JobArrays) -> "RecordedStep":
        """Return the step with the self times of one rank, by number; those of other ranks are undefined.

        They take no memory: the system provides the pages of a large array when they are written.
        """
        row = np.full_like(self.times.row, -1)
        row[rank] = self.times.row[rank]
        return replace(self, own=follow_step(job, self.times._replace(row=row), self.before.copy()))

    @cached_property
    def in_collectives(self) -> Floats:
        """(attendances,) from each rank's arrival to its end; NaN where it has not the collective."""
        return time_in_collectives(self.times, self.collectives)

    @cached_property
    def transfers(self) -> Transfers:
        """Measure each collective."""
        return transfers_of(self.collectives, self.in_collectives)


def time_in_collectives(times: StepTimes, collectives: CollectiveArrays) -> Floats:
    """Return, (attendances,), the time from each rank's arrival to its end; NaN where it has not the collective."""
    cells = cells_of(times, collectives)
    there = cells >= 0
    found = np.full(len(cells), np.nan)
    found[there] = times.end[cells[there]] - times.start[cells[there]]
    return found


def cells_of(times: StepTimes, collectives: CollectiveArrays) -> Ints:
    """Return, (attendances,), where each lies in the step's arrays; -1 for ranks that have not the step."""
    row = times.row[collectives.rank]
    return np.where(row < 0, -1, row + collectives.place)


def transfers_of(collectives: CollectiveArrays, took: Floats) -> Transfers:
    """Measure each group: from the last arrival to the end, which is the shortest time of a rank in it."""
    groups = int(collectives.first_group[-1])
    known = ~np.isnan(took)
    least = np.full(groups, np.inf)
    np.minimum.at(least, collectives.group[known], took[known])
    members = np.bincount(collectives.group, minlength=groups)
    absent = np.bincount(collectives.group[~known], minlength=groups)
    complete = (absent == 0) & ~collectives.incomplete
    return Transfers(
        np.where(np.isinf(least), np.nan, least),
        complete,
        absent <= THRESHOLDS.matching.few_absent_share * members,
        (absent > 0) & (absent < members),
    )
