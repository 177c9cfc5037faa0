"""Collectives of a step: the longest wait in each, and the time from the last arrival to the end."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jitter.analysis.collectives.matching import Collective
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.step_times import TeamTimes
from jitter.core.step_key import StepKey
from jitter.report.views.step_grid import StepGrid

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
UNKNOWN_OPERATION = "collective"


@dataclass(frozen=True)
class CollectiveWaits:
    """The collectives of a cohort's step, one entry each, ordered by kernel index. Times in ns, NaN for the unknown.

    If several groups run a collective at once, an entry holds the longest wait, the fastest group and the slowest.
    """

    kernel_index: Ints
    operation: tuple[str, ...]
    waited_ns: Floats
    """Longest wait of a rank of the cohort for the last rank to arrive."""
    waiter: Ints
    """Rank that waited longest."""
    waiter_ns: Floats
    """How long that rank was in the collective: its wait and the transfer."""
    last: Ints
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
class _Attended:
    """The ranks that took part in one collective, one entry each; `index` is -1 for ranks of other cohorts."""

    rank: Ints
    group: Ints
    took: Floats
    index: Ints
    bytes: Floats


def measure_collective_waits(examined: RunAnalysis, key: StepKey, grid: StepGrid) -> CollectiveWaits:
    """Measure the collectives of one step and cohort, those of `grid`."""
    run, step_number = examined.run, examined.keys.index(key)
    usual, expected = examined.baseline_transfers[step_number], examined.expected_transfers[step_number]
    arrays = {team: run.team_times(key, team) for team in run.programs}
    rows: list[tuple[int, str, float, int, float, int, float, float, float, float, float]] = []
    for number, meeting in enumerate(run.matching.collectives):
        came = _attended(run, meeting, arrays, grid)
        has_index = came.index >= 0
        if not has_index.any():
            continue
        least = np.full(meeting.groups, np.inf)
        np.minimum.at(least, came.group, came.took)
        waited = np.where(has_index, came.took - least[came.group], -np.inf)
        waiter = int(waited.argmax())
        transfer = least[came.group]
        fastest, slowest = int(transfer.argmin()), int(transfer.argmax())
        index = int(came.index[has_index][0])
        member, first_group = meeting.members[0], run.collective_arrays.first_group[number]
        operation = run.programs[run.matching.blocks[member.block].team].operations[member.place].collective
        rows.append(
            (
                index,
                operation or UNKNOWN_OPERATION,
                float(waited[waiter]),
                int(came.rank[waiter]),
                float(came.took[waiter]),
                int(came.rank[_last(came, waiter)]),
                float(transfer[fastest]),
                float(transfer[slowest]),
                float(usual[first_group]),
                float(expected[first_group + came.group[slowest]]),
                float(came.bytes[_last(came, slowest)]),
            )
        )
    rows.sort()
    numbers = np.array([row[2:] for row in rows], np.float64).reshape(len(rows), 9).T
    return CollectiveWaits(
        np.array([row[0] for row in rows], np.int32),
        tuple(row[1] for row in rows),
        numbers[0],
        numbers[1].astype(np.int32),
        numbers[2],
        numbers[3].astype(np.int32),
        *numbers[4:],
    )


def _attended(run: RunModel, meeting: Collective, arrays: Mapping[int, TeamTimes], grid: StepGrid) -> _Attended:
    member_columns: list[tuple[Ints, Ints, Floats, Ints, Floats]] = []
    for member in meeting.members:
        block = run.matching.blocks[member.block]
        step = arrays[block.team]
        ranks = np.array(block.ranks, np.int64)
        here = np.isin(ranks, step.ranks)
        order = np.argsort(step.ranks)
        column = order[np.searchsorted(step.ranks[order], ranks[here])]
        took = step.end[member.place, column] - step.start[member.place, column]
        is_known = ~np.isnan(took)
        rank, group = ranks[here][is_known], member.group[here][is_known]
        index, size = grid.at(rank, _position(run, block.team, step, member.place)[column][is_known])
        member_columns.append((rank.astype(np.int32), group.astype(np.int32), took[is_known], index, size))
    return _Attended(*(np.concatenate(values) for values in zip(*member_columns, strict=True)))


def _position(run: RunModel, team: int, step: TeamTimes, place: int) -> Ints:
    """Return, for each rank, the position of an operation among the kernels that the rank ran."""
    kernels = np.array([op.is_kernel for op in run.programs[team].operations[: place + 1]], np.bool_)
    position: Ints = step.present[: place + 1][kernels].sum(axis=0) - 1
    return position


def _last(came: _Attended, member: int) -> int:
    """Return the last member of a group to arrive: it spent the shortest time in the collective."""
    group = np.flatnonzero(came.group == came.group[member])
    return int(group[came.took[group].argmin()])
