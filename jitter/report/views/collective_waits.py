"""Collectives of a step: the longest wait in each, and the time from the last arrival to the end."""

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.run_model import RunModel
from jitter.core.numeric.arrays import Codes, Floats, Ints
from jitter.core.step_key import StepKey
from jitter.report.views.step_grid import StepGrid

UNKNOWN_OPERATION = "collective"


@dataclass(frozen=True)
class CollectiveWaits:
    """The collectives of a cohort's step, one entry each, ordered by kernel index. Times in ns, NaN for the unknown.

    If several groups run a collective at once, an entry holds the longest wait, the fastest group and the slowest.
    """

    kernel_index: Codes
    operation: tuple[str, ...]
    waited_ns: Floats
    """Longest wait of a rank of the cohort for the last rank to arrive."""
    waiter: Codes
    """Rank that waited longest."""
    waiter_ns: Floats
    """How long that rank was in the collective: its wait and the transfer."""
    last: Codes
    """Rank that it waited for: the last of its group to arrive."""
    least_ns: Floats
    """Time from the last arrival to the end, in the fastest group."""
    most_ns: Floats
    """The same in the slowest group."""
    usual_ns: Floats
    """Median of that time over the run."""
    expected_ns: Floats
    """What a benchmark gives the slowest group: the time of its message at the measured bandwidth."""
    bytes: Floats
    """Message size of the slowest group, as its last rank recorded it."""

    @property
    def sized(self) -> bool:
        """Whether any message size was recorded."""
        return bool((~np.isnan(self.bytes)).any())


@dataclass(frozen=True)
class _Attendances:
    """The ranks in all collectives of a step, one entry each, in the order of `CollectiveArrays`."""

    rank: Ints
    group: Ints
    took: Floats
    """From the rank's arrival to its end; NaN if it has not the collective."""
    index: Codes
    """Kernel index; -1 for ranks of other cohorts."""
    bytes: Floats

    def of(self, first: int, end: int) -> "_Attendances":
        """Return those of one collective of ranks that have it."""
        known = first + np.flatnonzero(~np.isnan(self.took[first:end]))
        rank, group, took = self.rank[known], self.group[known], self.took[known]
        return _Attendances(rank, group, took, self.index[known], self.bytes[known])

    def last(self, member: int) -> int:
        """Return the last member of a group to arrive: it spent the shortest time in the collective."""
        members = np.flatnonzero(self.group == self.group[member])
        return int(members[self.took[members].argmin()])


def measure_collective_waits(examined: RunAnalysis, key: StepKey, grid: StepGrid) -> CollectiveWaits:
    """Measure the collectives of one step and cohort, those of `grid`."""
    run, step_number = examined.run, examined.keys.index(key)
    usual, expected = examined.baseline_transfers[step_number], examined.expected_transfers[step_number]
    arrays, every = run.collective_arrays, _attendances(run, key, grid)
    rows: list[tuple[Any, ...]] = []
    for number, (first, end) in enumerate(pairwise(arrays.first.tolist())):
        came = every.of(first, end)
        has_index = came.index >= 0
        if not has_index.any():
            continue
        first_group, end_group = arrays.first_group[number : number + 2].tolist()
        least = np.full(end_group - first_group, np.inf)
        np.minimum.at(least, came.group - first_group, came.took)
        transfer = least[came.group - first_group]
        waiter = int(np.where(has_index, came.took - transfer, -np.inf).argmax())
        fastest, slowest = int(transfer.argmin()), int(transfer.argmax())
        team = run.team_of[int(run.rank_numbers[arrays.rank[first]])]
        operation = run.programs[team].operations[int(arrays.place[first])].collective
        rows.append(
            (
                int(came.index[has_index][0]),
                operation or UNKNOWN_OPERATION,
                float(came.took[waiter] - transfer[waiter]),
                int(came.rank[waiter]),
                float(came.took[waiter]),
                int(came.rank[came.last(waiter)]),
                float(transfer[fastest]),
                float(transfer[slowest]),
                float(usual[first_group]),
                float(expected[came.group[slowest]]),
                float(came.bytes[came.last(slowest)]),
            )
        )
    columns = list(zip(*sorted(rows), strict=True)) or [()] * len(fields(CollectiveWaits))
    ranks = ("kernel_index", "waiter", "last")
    values: dict[str, Any] = {
        one.name: column if one.name == "operation" else np.array(column, np.int32 if one.name in ranks else float)
        for one, column in zip(fields(CollectiveWaits), columns, strict=True)
    }
    return CollectiveWaits(**values)


def _attendances(run: RunModel, key: StepKey, grid: StepGrid) -> _Attendances:
    arrays = run.collective_arrays
    rank, size = run.rank_numbers[arrays.rank], len(arrays.rank)
    took, index, sizes = np.full(size, np.nan), np.full(size, -1, np.int32), np.full(size, np.nan)
    for team, program in run.programs.items():
        times = run.team_times(key, team)
        indices, message_bytes = grid.of_operations(program, times)
        mine = np.flatnonzero(np.isin(rank, times.ranks))
        order = np.argsort(times.ranks)
        at = arrays.place[mine], order[np.searchsorted(times.ranks[order], rank[mine])]
        took[mine], index[mine], sizes[mine] = (times.end - times.start)[at], indices[at], message_bytes[at]
    return _Attendances(rank, arrays.group, took, index, sizes)
