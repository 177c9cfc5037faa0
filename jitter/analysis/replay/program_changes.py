"""Time that a run would save with another program: calls that do not wait, copies beside kernels, cheap launches.

The changed program is replayed on all ranks with the recorded self times (`replay`). No rank's self times are replaced
by medians, so what a change saves is no part of the loss.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from jitter.analysis.alignment.program import NO_STREAM
from jitter.analysis.execution.job_arrays import CarriedState, JobArrays, mark_straight
from jitter.analysis.execution.self_times import CPU, GPU, START, SelfTimes, empty_self_times
from jitter.analysis.execution.step_times import StepTimes
from jitter.analysis.replay.replay import Change, replay_step
from jitter.analysis.replay.run_steps import RecordedStep, RunSteps
from jitter.analysis.replay.step_end import StepEnds
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.numeric.arrays import Bools, Ints


class ProgramChange(NamedTuple):
    """Operations of all teams, (operations,) as in `JobArrays`, that behave otherwise."""

    without_waiting: Bools
    """Calls that return without waiting for the GPU; what is launched after them waits in their place."""
    without_gpu_time: Bools
    """Activities that take no time on their stream."""
    without_launch_time: Bools
    """Operations that the host launches in no time."""
    without_transfers: bool = False
    """Whether collectives end with their last arrival."""


def no_change(operations: int) -> ProgramChange:
    """Return the program as it is."""
    return ProgramChange(*np.zeros((3, operations), np.bool_))


def price_changes(
    steps: RunSteps, ends: StepEnds, changes: Sequence[ProgramChange], first: int, last: int
) -> list[float]:
    """Return what each change saves per step, ns, over the steps from the `first` up to but not including the `last`.

    The steps must follow each other. 0 where no end of a step is known.
    """
    replays = [_ChangedProgram(steps, ends, change) for change in changes]
    for step in steps.steps(first, last):
        for replay in replays:
            replay.step(step)
        del step  # else it stays in memory while the next one is read
    return [replay.saved_ns / max(last - first, 1) for replay in replays]


class _ChangedProgram:
    """One changed program, replayed step by step."""

    def __init__(self, steps: RunSteps, ends: StepEnds, change: ProgramChange) -> None:
        self._run, self._ends, self._change = steps.run, ends, change
        self._job = without_waits(steps.run.job, change.without_waiting)
        self._instructions = steps.run.schedule.array()
        self._baseline = empty_self_times(len(change.without_waiting))
        self._as_recorded = np.zeros((len((START, CPU, GPU)), len(steps.run.rank_numbers)), np.bool_)
        self._state: CarriedState | None = None
        self.saved_ns = 0.0
        """How much earlier than recorded the changed program is."""

    def step(self, step: RecordedStep) -> None:
        """Replay the next step."""
        if self._state is None:
            self._state = step.before.copy()
        changed = replace(step, own=self._self_times(step.times, step.own))
        took = step.transfers.took
        if self._change.without_transfers:
            took = np.where(np.isnan(took), took, 0.0)
        change = Change(self._as_recorded, took, np.zeros(len(took)), self.saved_ns)
        ends = replay_step(self._job, self._instructions, changed, self._baseline, change, self._state).end
        cells = step.end_cells
        cells = cells[cells >= 0]
        shift = ends[cells] - step.times.end[cells]
        known_shift = shift[~np.isnan(shift)]
        if len(known_shift):
            self.saved_ns = -float(np.median(known_shift))

    def _self_times(self, times: StepTimes, self_times: SelfTimes) -> SelfTimes:
        gpu, launch = self._change.without_gpu_time, self._change.without_launch_time
        changed = [*(("delay", "gpu") if gpu.any() else ()), *(("host", "call", "lead") if launch.any() else ())]
        self_times = self_times._replace(**{name: getattr(self_times, name).copy() for name in changed})
        for operations, cells in slices_of_ranks(self._run.job, times) if changed else ():
            host, call, lead, delay, on_gpu = (values[cells] for values in self_times)
            if gpu.any():
                is_changed = gpu[operations]
                delay[is_changed], on_gpu[is_changed] = np.minimum(delay[is_changed], 0.0), 0.0
            if launch.any():
                is_changed = launch[operations] & (np.nan_to_num(host) + call <= THRESHOLDS.replay.max_launch_ns)
                host[is_changed & ~np.isnan(host)] = call[is_changed] = lead[is_changed] = 0.0
        return self_times


def without_waits(job: JobArrays, ignored: Bools) -> JobArrays:
    """Return the job in which the `ignored` calls do not wait: the GPU's next activities wait in their place.

    Later launches may need the result that the call waited for. So the next activity on each stream waits for
    it, as after an event; of the next step, if none follows in the step.
    """
    waits = [job.wait_on[first:last].tolist() for first, last in pairwise(job.first_wait.tolist())]
    for begin, end in pairwise(job.first.tolist()):
        calls = [at for at in range(begin, end) if ignored[at] and waits[at]]
        following = _next_on_streams(job.stream[begin:end]) if calls else []
        for at in calls:
            for follower, is_next_step in following[at - begin]:
                awaited = [
                    ~int(job.stream[begin + place]) if is_next_step and place >= 0 else place for place in waits[at]
                ]
                follower_waits = waits[begin + follower]
                follower_waits += [
                    place
                    for place in awaited
                    if place not in follower_waits and not (is_next_step and place == ~job.stream[begin + follower])
                ]
    for at in np.flatnonzero(ignored).tolist():
        waits[at] = []
    first_wait = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(places) for places in waits])]).astype(np.int64)
    wait_on = np.array([place for places in waits for place in places], np.int64)
    return mark_straight(job._replace(first_wait=first_wait, wait_on=wait_on))


def _next_on_streams(stream: Ints) -> list[list[tuple[int, bool]]]:
    """Return for each operation of a program the next one on each stream, and whether it is of the next step."""
    upcoming = {
        int(stream_number): (int(np.argmax(stream == stream_number)), True)
        for stream_number in np.unique(stream)
        if stream_number != NO_STREAM
    }
    following: list[list[tuple[int, bool]]] = []
    for at in range(len(stream) - 1, -1, -1):
        following.append(list(upcoming.values()))
        if stream[at] != NO_STREAM:
            upcoming[int(stream[at])] = at, False
    return following[::-1]


def slices_of_ranks(job: JobArrays, times: StepTimes) -> Iterator[tuple[slice, slice]]:
    """Yield each rank's operations, numbered as in `JobArrays`, and its cells, of the ranks that have the step."""
    for rank in np.flatnonzero(times.row >= 0).tolist():
        first, after = (int(at) for at in job.first[times.team[rank] : times.team[rank] + 2])
        row = int(times.row[rank])
        yield slice(first, after), slice(row, row + after - first)
