"""Sample of consecutive steps from which the dependencies of a program are inferred."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from jitter.analysis.execution.dependencies.carried_state import StateTracker, unknown_state
from jitter.analysis.execution.dependencies.host_waits import HostSample
from jitter.analysis.execution.dependencies.inference import Dependencies, Sample
from jitter.analysis.execution.dependencies.launch_queue import Launches
from jitter.analysis.execution.dependencies.ready_times import ReadyTimes, find_ready_times
from jitter.analysis.execution.job_arrays import JobArrays, count_carried_ends, job_arrays
from jitter.analysis.execution.program import Program
from jitter.analysis.execution.recorded.step_times import StepTimes, TeamTimes
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import SYNC
from jitter.core.numeric.arrays import Floats, Ints
from jitter.core.numeric.compilation import compiled
from jitter.core.step_key import StepKey

_LIMITS: Final = THRESHOLDS.dependencies


class SampledSteps:
    """Follows one team's ranks through some steps, each after the one before it where that is there."""

    def __init__(self, program: Program, thread: Ints, ranks: int) -> None:
        """`thread` (operations,) is the thread that each operation follows; `ranks` is how many the run has."""
        self._program = program
        self._job = job_arrays([ranks], {0: program}, {0: Dependencies((), thread, None, 0.0, 0.0)})
        threads = 1 + int(thread.max(initial=0))
        self._tracker = StateTracker(unknown_state(ranks, count_carried_ends(self._job), threads, 0))
        self._parts: list[tuple[Floats, ...]] = []
        self._launches: dict[tuple[int, int], list[Launches]] = defaultdict(list)
        self._stretch = 0
        self._last: StepKey | None = None

    def pass_by(self, key: StepKey, step: StepTimes) -> None:
        """Follow a step of this team's ranks without taking it into the sample."""
        self._follow(key, step)

    def add(self, key: StepKey, step: StepTimes) -> None:
        """Take a step of this team's ranks into the sample."""
        here = np.flatnonzero(step.row >= 0)
        stream_end, ready = self._follow(key, step)
        times = (step.start, step.end, step.call, step.back, ready.submit, ready.end_before)
        start, end, call, back, submit, end_before = (values.reshape(len(here), -1) for values in times)
        ended = np.where(np.isnan(end), end_before, end)
        self._parts.append((start, ended, call, back, submit, end_before, stream_end[here]))
        self._stretch += self._last is None or key != StepKey(self._last.epoch, self._last.step + 1)
        self._last = key
        launches = self._program.kinds != SYNC
        for cell, rank in enumerate(here[: _LIMITS.sampled_orders].tolist()):
            known = launches & ~np.isnan(back[cell])
            times_of_rank = (call[cell, known], back[cell, known], start[cell, known])
            self._launches[self._stretch, rank].append(Launches(*times_of_rank))

    def _follow(self, key: StepKey, step: StepTimes) -> tuple[Floats, ReadyTimes]:
        """Return the last ends on the ranks' streams before the step, and the step's ready times."""
        self._tracker.enter(key, step.row >= 0)
        state = self._tracker.state
        before, ready = state.stream_end.copy(), ReadyTimes(*np.empty((3, len(step.start))))
        find_ready_times_of_step(self._job, step._replace(team=np.zeros_like(step.team)), *state[:2], ready)
        return before, ready

    def sample_hosts(self, steps: Iterable[tuple[StepKey, StepTimes]], steps_back: int) -> HostSample:
        """Return when the hosts of this team's ranks came to each call, in consecutive steps.

        `steps_back` is of how many earlier steps the ends are wanted.
        """
        parts: list[tuple[Floats, Floats]] = []
        ends: list[list[Floats]] = [[] for _ in range(1 + steps_back)]
        rank, number = [], []
        before: list[Floats] = []
        is_sync = self._program.kinds == SYNC
        for at, (key, step) in enumerate(steps):
            here = np.flatnonzero(step.row >= 0)
            back_before = self._follow(key, step)[1].back_before.reshape(len(here), -1)
            call, back, end = (values.reshape(len(here), -1) for values in (step.call, step.back, step.end))
            parts.append((np.where(is_sync, call, back_before), np.where(is_sync, back, call)))
            of_run = np.full((len(step.row), call.shape[1]), np.nan)
            of_run[here] = end
            before = [of_run, *before][: 1 + steps_back]
            for own, values in zip(ends, before, strict=False):
                own.append(values[here])
            for own in ends[len(before) :]:
                own.append(np.full_like(call, np.nan))
            rank.append(here)
            number.append(np.full(len(here), at))
        since, until = (np.concatenate(values) for values in zip(*parts, strict=True))
        return HostSample(since, until, tuple(map(np.concatenate, ends)), np.concatenate(rank), np.concatenate(number))

    def sample(self) -> tuple[Sample, list[Launches]]:
        """Return the cells of all added steps, and some ranks' launches, by stretch of consecutive steps.

        The steps are given up, a field at a time.
        """
        launches = [Launches(*map(np.concatenate, zip(*parts, strict=True))) for parts in self._launches.values()]
        fields = list(zip(*self._parts, strict=True))[::-1]
        self._parts.clear()
        return Sample(*(np.concatenate(fields.pop()) for _ in Sample._fields)), launches


@compiled
def find_ready_times_of_step(
    job: JobArrays, step: StepTimes, stream_end: Floats, back: Floats, ready: ReadyTimes
) -> None:
    """Find the ready times of all cells of a step, laid out as those."""
    for rank in range(len(step.row)):
        if step.row[rank] >= 0:
            find_ready_times(job, step, rank, stream_end, back, step.row[rank], ready)


def threads_of(program: Program, steps: Iterable[TeamTimes]) -> Ints:
    """Return, (operations,), the thread that each follows: all 0, one chain, unless launches interleave in these steps.

    Autograd's thread takes over for a whole pass and hands back; threads that launch at the same time do not wait for
    each other.
    """
    own = np.array([op.thread for op in program.operations], np.int64)
    switches = int((np.diff(own) != 0).sum())
    threads = len(np.unique(own))
    interleave = threads > 1 and switches > _LIMITS.max_switches * threads and not _take_turns(own, steps)
    return own if interleave else np.zeros_like(own)


def _take_turns(own: Ints, steps: Iterable[TeamTimes]) -> bool:
    """Return whether the threads' calls follow each other: none begins while another thread's call lasts.

    So do forward and backward passes of a pipeline's micro-batches: whatever holds up one thread holds up the other.
    """
    first = np.flatnonzero(np.diff(own) != 0)
    overlapping = switches = 0
    for step in steps:
        returned, called = step.back[first], step.call[first + 1]
        switches += int((~np.isnan(returned + called)).sum())
        overlapping += int((called < returned).sum())
    return overlapping <= _LIMITS.overlapping_share * switches
