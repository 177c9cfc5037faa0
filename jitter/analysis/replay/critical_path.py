"""The cross-rank critical path of a step, walked back from its last collective: whose time the step took.

Every operation passed is charged its self time less the team's median for it: the excess. From a collective the walk
goes to the rank that arrived last; from a start to what held it back longest (its launch, its stream, or what it waits
for); from a launch along the thread's calls to the one that waited for the GPU or for a place in its queue. All
comparisons between ranks are of arrivals at a common end, so no shared clock is needed.
"""

from typing import NamedTuple

import numpy as np

from jitter.analysis.execution.collectives.matching import CollectiveArrays
from jitter.analysis.execution.dependencies.ready_times import ReadyTimes
from jitter.analysis.execution.job_arrays import JobArrays, places_before
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.self_times import SelfTimes
from jitter.analysis.replay.charges import Charges, no_charges
from jitter.analysis.replay.path_loops import (
    AT_COLLECTIVE,
    AT_LAUNCH,
    AT_OPERATION,
    STREAM_BEFORE,
    THREAD_BEFORE,
    Standing,
    find_last_collective,
    walk_back,
)
from jitter.analysis.replay.recorded_step import RecordedStep
from jitter.core.names.kernels import COLLECTIVE
from jitter.core.numeric.arrays import Floats, Ints


class StepWalk(NamedTuple):
    """The path through one step."""

    charges: Charges
    """Operations of the step."""
    tail: Charges
    """Operations of the step before, after its last collective: they delay this step."""


class PathWalker:
    """Walks the paths of a run's steps, one after the other; remembers where each rank left the step before."""

    def __init__(
        self,
        job: JobArrays,
        collectives: CollectiveArrays,
        ranks: Ints,
        uncoupled: frozenset[int],
        baseline_transfers: Floats,
    ) -> None:
        """`ranks` are the run's, by number; `uncoupled` the collectives that each rank ends by itself.

        `baseline_transfers` (groups of all collectives,) is from the last arrival to the end.
        """
        self._job, self._collectives, self._ranks = job, collectives, ranks
        self._baseline_transfers = baseline_transfers
        self._coupled = np.ones(len(collectives.first) - 1, np.bool_)
        self._coupled[list(uncoupled)] = False
        self._previous_on_stream = places_before(job, job.stream)
        self._left = np.full(len(ranks), -np.inf)
        """End of each rank's last collective of the step before."""
        self._before: tuple[RecordedStep, SelfTimes] | None = None
        """The step before without self times, and its medians."""

    @classmethod
    def of_run(cls, run: RunModel, baseline_transfers: Floats) -> "PathWalker":
        """Return the walker of a run's steps."""
        return cls(run.job, run.collective_arrays, run.rank_numbers, run.schedule.uncoupled, baseline_transfers)

    def walk(self, step: RecordedStep, baseline: SelfTimes) -> StepWalk:
        """Return the step's path, empty where ranks do not meet; `baseline` (operations,) are its medians."""
        found = self._walk(step, baseline)
        self.pass_by(step, baseline)
        return found

    def pass_by(self, step: RecordedStep, baseline: SelfTimes) -> None:
        """Remember where a step leaves each rank, and its times for what it does after its last collective."""
        job, times = self._job, step.times
        self._before = step.without_self_times(), baseline
        self._left = np.full(len(times.row), -np.inf)
        for team in range(len(job.launch_ns)):
            places = np.flatnonzero(job.kind[job.first[team] : job.first[team + 1]] == COLLECTIVE)
            here = np.flatnonzero((times.team == team) & (times.row >= 0))
            if len(places) and len(here):
                self._left[here] = np.fmax.reduce(times.end[times.row[here, None] + places], axis=1)

    def _walk(self, step: RecordedStep, baseline: SelfTimes) -> StepWalk:
        job, collectives, ranks = self._job, self._collectives, len(step.fresh)
        last_end = np.full(ranks, np.nan)
        number, group = find_last_collective(collectives, step.times, job, self._coupled, last_end, np.empty(ranks))
        if number < 0:
            return StepWalk(no_charges(), no_charges())
        found, ended = self._walk_from(step, baseline, Standing(AT_COLLECTIVE, -1, -1), (number, group))
        begin = self._last_of_step_before(step, ended)
        if begin is None or self._before is None:
            return StepWalk(found, no_charges())
        last, usual = self._before
        return StepWalk(found, self._walk_from(last.with_self_times_of(begin.rank, job), usual, begin, None)[0])

    def _last_of_step_before(self, step: RecordedStep, ended: Standing) -> Standing | None:
        """Return the last operation that a stream or thread did in the step before; None where that is not known."""
        rank = ended.rank
        if self._before is None or ended.where not in (STREAM_BEFORE, THREAD_BEFORE) or step.fresh[rank]:
            return None
        job, times = self._job, self._before[0].times
        team, row = int(times.team[rank]), int(times.row[rank])
        if row < 0:
            return None
        its = slice(int(job.first[team]), int(job.first[team + 1]))
        cells = slice(row, row + its.stop - its.start)
        carried = slice(int(job.first_carried[team]), int(job.first_carried[team + 1]))
        if ended.where == STREAM_BEFORE and ended.which in job.carried_column[carried]:
            last_step = (job.carried_column[carried] == ended.which) & (job.carried_steps[carried] == 1)
            places = job.carried_place[carried][last_step]
            where = AT_OPERATION
        elif ended.where == STREAM_BEFORE:
            places = np.flatnonzero((job.stream[its] == ended.which) & ~np.isnan(times.start[cells]))
            where = AT_OPERATION
        else:
            places = np.flatnonzero((job.thread[its] == ended.which) & ~np.isnan(times.call[cells]))
            where = AT_LAUNCH
        return Standing(where, rank, int(places[-1])) if len(places) else None

    def _walk_from(
        self, step: RecordedStep, baseline: SelfTimes, begin: Standing, last: tuple[int, int] | None
    ) -> tuple[Charges, Standing]:
        """Walk back through a step; `last` is the (collective, group) that it begins at, if it begins at one."""
        job, collectives, ranks = self._job, self._collectives, len(step.fresh)
        ready = ReadyTimes(*np.empty((3, len(step.times.start))))
        room = 4 * int(np.diff(job.first).max(initial=0)) + 1024
        number, group = (-1, -1) if last is None else last
        while True:
            numbers, excess = np.empty((room, 5), np.int64), np.empty(room)
            standing = np.array(begin, np.int64)
            count = walk_back(
                job,
                collectives,
                step.times,
                step.own,
                baseline,
                step.before,
                step.fresh,
                self._baseline_transfers,
                self._coupled,
                self._previous_on_stream,
                self._left,
                step.before.copy(),
                np.zeros(ranks, np.bool_),
                ready,
                standing,
                number,
                group,
                last is None,
                numbers,
                excess,
            )
            if count >= 0:
                break
            room *= 4
        rank, place, part, which, of_all = numbers[:count].T
        shared = np.where(which >= 0, of_all - collectives.first_group[which], -1)
        found = Charges(
            self._ranks[rank],
            step.times.team[rank],
            place.copy(),
            part.copy(),
            excess[:count].copy(),
            which.copy(),
            shared,
        )
        return found, Standing(*standing.tolist())
