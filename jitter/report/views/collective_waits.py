"""A step's collectives: how long the others waited in each, for whom, and how long it took once all had arrived."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.collectives import Meeting
from jitter.analysis.execution.run_model import Observed
from jitter.analysis.execution.step_times import StepArrays
from jitter.core.step_key import StepKey
from jitter.report.views.step_grid import StepGrid

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
UNKNOWN_OPERATION = "collective"


@dataclass(frozen=True)
class CollectiveWaits:
    """One entry a collective of a cohort's step, in the order of the kernel index. Times in ns, NaN for the unknown.

    Where several groups hold it at once, the longest wait is kept and both the fastest and the slowest group.
    """

    kernel_index: Ints
    operation: tuple[str, ...]
    waited_ns: Floats
    """The longest that a rank of the cohort waited in it for the last to arrive."""
    waiter: Ints
    """Who did."""
    last: Ints
    """Whom it waited for."""
    least_ns: Floats
    """From the last arrival to the end, in the fastest group."""
    most_ns: Floats
    """In the slowest."""
    usual_ns: Floats
    """The run's median."""
    bytes: Floats
    """The slowest group's message, as its last rank recorded it."""

    @property
    def sized(self) -> bool:
        """Whether any message's size was recorded."""
        return bool((~np.isnan(self.bytes)).any())


@dataclass(frozen=True)
class _Attended:
    """Who attended one meeting: an entry a rank that has it; `index` is -1 for ranks of other cohorts."""

    rank: Ints
    group: Ints
    took: Floats
    index: Ints
    bytes: Floats


def measure_collective_waits(examined: RunAnalysis, key: StepKey, grid: StepGrid) -> CollectiveWaits:
    """Look at the collectives of the step and cohort that the grid is of."""
    run = examined.run
    arrays = {team: run.placed(key, team) for team in run.programs}
    found: list[tuple[int, str, float, int, int, float, float, float, float]] = []
    for number, meeting in enumerate(run.meetings.meetings):
        came = _attended(run, meeting, arrays, grid)
        own = came.index >= 0
        if not own.any():
            continue
        least = np.full(meeting.groups, np.inf)
        np.minimum.at(least, came.group, came.took)
        waited = np.where(own, came.took - least[came.group], -np.inf)
        waiter = int(waited.argmax())
        transfer = least[came.group]
        fastest, slowest = int(transfer.argmin()), int(transfer.argmax())
        index = int(came.index[own][0])
        member = next(at for at in meeting.members if run.meetings.blocks[at.block].team in arrays)
        operation = run.programs[run.meetings.blocks[member.block].team].operations[member.place].collective
        found.append(
            (
                index,
                operation or UNKNOWN_OPERATION,
                float(waited[waiter]),
                int(came.rank[waiter]),
                int(came.rank[_last(came, waiter)]),
                float(transfer[fastest]),
                float(transfer[slowest]),
                examined.usual_transfers[number],
                float(came.bytes[_last(came, slowest)]),
            )
        )
    found.sort()
    numbers = np.array([one[2:] for one in found], np.float64).reshape(len(found), 7).T
    return CollectiveWaits(
        np.array([one[0] for one in found], np.int32),
        tuple(one[1] for one in found),
        numbers[0],
        numbers[1].astype(np.int32),
        numbers[2].astype(np.int32),
        *numbers[3:],
    )


def _attended(run: Observed, meeting: Meeting, arrays: Mapping[int, StepArrays], grid: StepGrid) -> _Attended:
    found: list[tuple[Ints, Ints, Floats, Ints, Floats]] = []
    for member in meeting.members:
        block = run.meetings.blocks[member.block]
        step = arrays[block.team]
        ranks = np.array(block.ranks, np.int64)
        here = np.isin(ranks, step.ranks)
        order = np.argsort(step.ranks)
        column = order[np.searchsorted(step.ranks[order], ranks[here])]
        took = step.end[member.place, column] - step.start[member.place, column]
        known = ~np.isnan(took)
        rank, group = ranks[here][known], member.group[here][known]
        index, size = grid.at(rank, _position(run, block.team, step, member.place)[column][known])
        found.append((rank.astype(np.int32), group.astype(np.int32), took[known], index, size))
    return _Attended(*(np.concatenate(values) for values in zip(*found, strict=True)))


def _position(run: Observed, team: int, step: StepArrays, place: int) -> Ints:
    """Each rank's position of a place among the kernels that it ran, copies and calls left out."""
    kernels = np.array([op.is_kernel for op in run.programs[team].operations[: place + 1]], np.bool_)
    position: Ints = step.present[: place + 1][kernels].sum(axis=0) - 1
    return position


def _last(came: _Attended, member: int) -> int:
    """The last of this one's group to arrive: it was in the collective for the shortest time."""
    group = np.flatnonzero(came.group == came.group[member])
    return int(group[came.took[group].argmin()])
