"""Replays of changed programs: the rungs of the waterfall below `ranks`, and what each change of the program saves.

Each rung changes one thing more and is one replay of all ranks over a few consecutive steps. On each of them every rank
has the baseline's self times, so what a rung costs is lost by all ranks alike and is no part of the loss.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.alignment.program import NO_STREAM
from jitter.analysis.execution.job_arrays import CarriedState, JobArrays, mark_straight
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.self_times import CPU, GPU, START, SelfTimes, empty_self_times
from jitter.analysis.execution.step_times import StepTimes
from jitter.analysis.replay.replay import Change, replay_step
from jitter.analysis.replay.run_steps import EndShift, RecordedStep, RunSteps
from jitter.analysis.replay.what_if import repaired_transfers
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import MEMORY, SYNC, copy_direction
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.stats import lower_median

_COPY_CALL: Final = re.compile("memcpy", re.IGNORECASE)
_BETWEEN_HOST_AND_GPU: Final = ("host_to_device", "device_to_host")

BySize = Sequence[SelfTimes]
"""By size of step, in the order of `LikeSteps.by_size`: (operations of all teams,)."""


class UniformJob(NamedTuple):
    """A job as it would run on all ranks alike."""

    job: JobArrays
    self_times: BySize
    """Every rank's self times in every step of a size."""
    transfers: Sequence[Floats]
    """Of each step (groups of all collectives,)."""


class OperationMasks(NamedTuple):
    """Operations of all teams, (operations,) as in `JobArrays`, that cost every rank time."""

    first: Bools
    """Those up to the first kernel of the main stream."""
    in_step: Bools
    """Those before which host time is part of the step's time: not the `first` ones where no step follows another."""
    sync_calls: Bools
    """Calls in which the host waits for the GPU, other than those that copy."""
    blocking_copies: Bools
    """Calls that copy, in which the host waits for the GPU."""
    host_copies: Bools
    """Copies between host and GPU."""


def mask_operations(run: RunModel) -> OperationMasks:
    """Return which operations of the job begin a step, wait in their call, or copy between host and GPU."""
    operations = [operation for team in sorted(run.programs) for operation in run.programs[team].operations]
    waits = np.array([operation.kind == SYNC for operation in operations], np.bool_)
    copies = np.array([_COPY_CALL.search(operation.name) is not None for operation in operations], np.bool_)
    between = [
        operation.kind == MEMORY and copy_direction(operation.name) in _BETWEEN_HOST_AND_GPU for operation in operations
    ]
    of_step = np.concatenate([np.arange(size) for size in np.diff(run.job.first)])
    first = of_step <= np.repeat(run.job.first_kernel, np.diff(run.job.first))
    in_step = ~first | run.has_consecutive_steps
    return OperationMasks(first, in_step, waits & ~copies, waits & copies, np.array(between, np.bool_))


class Ladder(NamedTuple):
    """Programs by what they leave out."""

    rungs: dict[str, UniformJob]
    """Each leaves out one thing more than the one before."""
    with_waits: UniformJob
    """The program of `slow_network` without waits that few hosts make: these keep their pauses from being hidden."""
    without_pauses: dict[str, UniformJob]
    """Those of `late_start` and `cpu_launch` of that program; in the rungs all waits of hosts are left out before."""


def list_rungs(
    steps: RunSteps, usual: Sequence[Floats], expected: Sequence[Floats], step_ns: Floats, first: int, last: int
) -> Ladder:
    """Return the program below each loss that all ranks bear alike.

    `slow_steps`: every self time at the median over ranks and like steps, every transfer at its baseline.
    `slow_network`: every transfer as short as a bandwidth benchmark gives, where that is shorter.
    `sync_calls`: no call in which the host waits for the GPU, other than those that copy.
    `blocking_copies`: no copy in which the host waits for the GPU.
    `late_start`: no pause of a host before the launch of a step's first kernel.
    `cpu_launch`: no pause of a host between launches.
    `launch_bound`: no host time: launches are never late.
    `exposed_communication`: transfers take no time, as if all communication were hidden: a lower bound.
    `serial_copies`: copies between host and GPU take no time on their stream, as if all were hidden.
    `unequal_stages`: every program, such as a pipeline stage, has the mean GPU time of all ranks.

    `usual` and `expected`, of each step (groups of all collectives,), are the transfers' baseline and what a bandwidth
    benchmark gives, NaN where it gives none; the others are as in `replay_programs`.
    """
    job, masks = steps.run.job, mask_operations(steps.run)
    best = [np.fmin(*of_step) for of_step in zip(usual, expected, strict=True)]
    self_times = [median_over_steps(steps.baselines[number] for number in numbers) for numbers in steps.alike.by_size]
    unblocked = [medians._replace(call=np.minimum(medians.call, THRESHOLDS.max_launch_ns)) for medians in self_times]
    if any((short.call < medians.call).any() for short, medians in zip(unblocked, self_times, strict=True)):
        # long calls that do not make the step longer wait for the GPU: without its work they would be short
        blocked, short = (UniformJob(job, variant, best) for variant in (self_times, unblocked))
        before, after = replay_programs(steps, [blocked, short], step_ns, first, last)
        if before - after <= THRESHOLDS.efficiency.min_share * before:
            self_times = unblocked
    at_best = usual if all(np.isnan(transfers_ns).all() for transfers_ns in expected) else best
    waits = np.diff(job.first_wait) > 0
    unsynced = without_waits(job, masks.sync_calls & waits)
    unwaiting = without_waits(unsynced, masks.blocking_copies & waits)
    pauses = [masks.in_step & is_pause(medians.host) for medians in self_times]
    late = [masks.first & of_size for of_size in pauses]
    started, unpaused = (list(map(without_host_time, self_times, chosen)) for chosen in (late, pauses))
    unhosted = [without_host_time(medians, masks.in_step) for medians in self_times]
    hidden = [np.where(np.isnan(transfers_ns), transfers_ns, 0.0) for transfers_ns in best]
    uncopied = unhosted
    if (copies := masks.host_copies).any():
        uncopied = [
            medians._replace(
                gpu=np.where(copies & ~np.isnan(medians.gpu), 0.0, medians.gpu),
                delay=np.where(copies, np.minimum(medians.delay, 0.0), medians.delay),
            )
            for medians in unhosted
        ]
    sizes = [steps.run.sizes[team] for team in sorted(steps.run.programs)]
    balanced = [
        medians._replace(gpu=medians.gpu * balance_programs(job, medians.gpu, sizes)) if len(sizes) > 1 else medians
        for medians in uncopied
    ]
    rungs = {
        "slow_steps": UniformJob(job, self_times, usual),
        "slow_network": UniformJob(job, self_times, at_best),
        "sync_calls": UniformJob(unsynced, self_times, at_best),
        "blocking_copies": UniformJob(unwaiting, self_times, at_best),
        "late_start": UniformJob(unwaiting, started, at_best),
        "cpu_launch": UniformJob(unwaiting, unpaused, at_best),
        "launch_bound": UniformJob(unwaiting, unhosted, at_best),
        "exposed_communication": UniformJob(unwaiting, unhosted, hidden),
        "serial_copies": UniformJob(unwaiting, uncopied, hidden),
        "unequal_stages": UniformJob(unwaiting, balanced, hidden),
    }
    waiting = (masks.sync_calls | masks.blocking_copies) & waits
    usually_waiting = without_waits(job, waiting & ~are_usual(steps, first, waiting))
    with_waits = rungs["slow_network"]._replace(job=usually_waiting)
    pauseless = {"late_start": started, "cpu_launch": unpaused}
    return Ladder(rungs, with_waits, {cause: with_waits._replace(self_times=own) for cause, own in pauseless.items()})


def are_usual(steps: RunSteps, number: int, calls: Bools) -> Bools:
    """Return, (operations of all teams,), which calls half of a team's ranks or more make in a step of the run.

    None where fewer than half of all ranks make any of these `calls`.
    """
    (step,), job = steps.steps(number, number + 1), steps.run.job
    made, ranks, callers, here = np.zeros(len(job.kind)), np.zeros(len(job.kind)), 0, 0
    for operations, cells in slices_of_ranks(job, step.times):
        there = ~np.isnan(step.times.call[cells])
        made[operations] += there
        ranks[operations] += 1
        callers, here = callers + bool((there & calls[operations]).any()), here + 1
    usual: Bools = (2 * made >= ranks) & (2 * callers >= here)
    return usual


def is_pause(host_ns: Floats) -> Bools:
    """Return whether a host takes longer between two calls than a launch does."""
    paused: Bools = np.nan_to_num(host_ns) > THRESHOLDS.max_launch_ns
    return paused


def without_host_time(medians: SelfTimes, chosen: Bools) -> SelfTimes:
    """Return self times, (operations,), without host time of the `chosen` ones."""
    host = np.where(chosen & ~np.isnan(medians.host), 0.0, medians.host)  # what begins a thread has none
    return medians._replace(
        host=host, call=np.where(chosen, 0.0, medians.call), lead=np.where(chosen, 0.0, medians.lead)
    )


def replay_programs(
    steps: RunSteps, programs: Sequence[UniformJob], step_ns: Floats, first: int, last: int
) -> list[float]:
    """Return the mean step time of each program, ns; NaN if none is known.

    Consecutive steps from the `first` up to but not including the `last` are replayed. The first of several leads from
    the recording to the program and does not count. `step_ns` (steps,) are the recorded step times, NaN where unknown.
    Programs of the same arrays are replayed once.
    """
    same_as = {tuple(map(id, program)): program for program in programs}
    replays = {key: _ProgramReplay(steps, program.job, True) for key, program in same_as.items()}
    times: list[list[float]] = []
    for step in steps.steps(first, last):
        step_times = {}
        for key, (_, own, transfers) in same_as.items():
            at_best = repaired_transfers(step, transfers[step.number])
            saved_ns = replays[key].step(step, own[steps.alike.size_of[step.number]], at_best)
            step_times[key] = float(step_ns[step.number]) - saved_ns
        times.append([step_times[tuple(map(id, program))] for program in programs])
        del step  # else it stays in memory while the next one is read
    counted = np.array(times[1:] or times)
    counted = counted[~np.isnan(counted).any(axis=1)]
    mean: list[float] = counted.mean(axis=0).tolist() if len(counted) else [np.nan] * len(programs)
    return mean


def median_over_steps(baselines: Iterable[SelfTimes]) -> SelfTimes:
    """Return, (operations of all teams,), the lower median of each self time over the steps that have it."""
    return SelfTimes(*(lower_median(np.stack(seen, axis=1))[:, 0] for seen in zip(*baselines, strict=True)))


def balance_programs(job: JobArrays, gpu_ns: Floats, ranks: Sequence[int]) -> Floats:
    """Return the factors, (operations,), that bring each program's GPU time per step to the mean over all ranks.

    `gpu_ns` (operations,) is each operation's time per step, `ranks` (teams,) are how many run each program.
    """
    whole = np.add.reduceat(np.nan_to_num(gpu_ns), job.first[:-1])
    factor = np.divide(np.average(whole, weights=ranks), whole, out=np.ones_like(whole), where=whole > 0)
    return np.repeat(factor, np.diff(job.first))


class ProgramChange(NamedTuple):
    """Operations of all teams, (operations,) as in `JobArrays`, that behave otherwise."""

    without_waiting: Bools
    """Calls that return without waiting for the GPU; what is launched after them waits in their place."""
    gpu_factor: Floats
    """By which the times on the streams are multiplied; activities that take none have no delay either."""
    without_launch_time: Bools
    """Operations that the host launches in no time, where it does not pause before them."""
    without_host_time: Bools
    """Operations for which the host takes no time, with pauses."""
    without_transfers: bool = False
    """Whether collectives end with their last arrival."""


def no_change(operations: int) -> ProgramChange:
    """Return the program as it is."""
    nothing = np.zeros(operations, np.bool_)
    return ProgramChange(nothing, np.ones(operations), nothing, nothing)


def price_changes(steps: RunSteps, changes: Sequence[ProgramChange], first: int, last: int) -> list[float]:
    """Return what each change saves per step, ns, over the steps from the `first` up to but not including the `last`.

    The steps must follow each other. They are replayed on all ranks with the recorded self times: no rank's self times
    are replaced by medians, so what a change saves is no part of the loss. 0 where no end of a step is known. The first
    of several leads from the recording to the changed program and does not count, as in `replay_programs`.
    """
    baseline = empty_self_times(len(steps.run.job.kind))
    replays = [_ProgramReplay(steps, without_waits(steps.run.job, change.without_waiting), False) for change in changes]
    led_ns = [0.0] * len(changes)
    for step in steps.steps(first, last):
        for change, replay in zip(changes, replays, strict=True):
            took = step.transfers.took
            if change.without_transfers:
                took = np.where(np.isnan(took), took, 0.0)
            replay.step(replace(step, self_times=_changed_self_times(steps.run.job, step, change)), baseline, took)
        if step.number == first < last - 1:
            led_ns = [replay.saved_ns for replay in replays]
        del step  # else it stays in memory while the next one is read
    counted = max(last - first - 1, 1)
    return [(replay.saved_ns - led) / counted for replay, led in zip(replays, led_ns, strict=True)]


def _changed_self_times(job: JobArrays, step: RecordedStep, change: ProgramChange) -> SelfTimes:
    factor, launch, whole = change.gpu_factor, change.without_launch_time, change.without_host_time
    is_gpu_changed, is_host_changed = bool((factor != 1).any()), bool((launch | whole).any())
    changed = [*(("delay", "gpu") if is_gpu_changed else ()), *(("host", "call", "lead") if is_host_changed else ())]
    self_times = step.self_times._replace(**{name: getattr(step.self_times, name).copy() for name in changed})
    for operations, cells in slices_of_ranks(job, step.times) if changed else ():
        host, call, lead, delay, on_gpu = (values[cells] for values in self_times)
        if is_gpu_changed:
            on_gpu *= factor[operations]
            is_gone = factor[operations] == 0
            delay[is_gone], on_gpu[is_gone] = np.minimum(delay[is_gone], 0.0), 0.0
        if is_host_changed:
            is_changed = whole[operations] | launch[operations] & (
                np.nan_to_num(host) + call <= THRESHOLDS.max_launch_ns
            )
            host[is_changed & ~np.isnan(host)] = call[is_changed] = lead[is_changed] = 0.0
    return self_times


class _ProgramReplay:
    """The replay of one program, step by step."""

    def __init__(self, steps: RunSteps, job: JobArrays, is_at_baseline: bool) -> None:
        """`is_at_baseline` says whether all ranks have the baseline's self times, or the recorded ones."""
        self._job, self._instructions = job, steps.run.schedule.array()
        self._repaired = np.full((len((START, CPU, GPU)), len(steps.run.rank_numbers)), is_at_baseline)
        self._state: CarriedState | None = None
        self._shift = EndShift(len(steps.run.rank_numbers))
        self.saved_ns = 0.0
        """How much earlier than recorded the program is."""

    def step(self, step: RecordedStep, baseline: SelfTimes, transfers: Floats) -> float:
        """Replay the next step and return what it saves, ns; NaN where no rank's end is known."""
        if self._state is None:
            self._state = step.before.copy()
        before = self._shift.enter(step)
        change = Change(self._repaired, transfers, np.zeros(len(transfers)), before)
        ends = replay_step(self._job, self._instructions, step, baseline, change, self._state).end
        if not len(self._shift.leave(step, ends)):
            return np.nan
        gained_ns = self._shift.mean_ns - before
        self.saved_ns += gained_ns
        return gained_ns


def without_waits(job: JobArrays, ignored: Bools) -> JobArrays:
    """Return the job in which the `ignored` calls do not wait: the GPU's next activities wait in their place.

    Later launches may need the result that the call waited for. So the next activity on each stream waits for
    it, as after an event; of the next step, if none follows in the step.
    """
    if not ignored.any():
        return job
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
