"""Replays of changed programs: the rungs of the waterfall below `ranks`, and what each change of the program saves.

Each rung changes one thing more and is one replay of all ranks over a few consecutive steps. On each of them every rank
has the baseline's self times, so what a rung costs is lost by all ranks alike and is no part of the loss.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import numpy as np

from jitter.analysis.alignment.program import NO_STREAM
from jitter.analysis.execution.job_arrays import CarriedState, JobArrays, mark_straight
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.self_times import CPU, GPU, START, SelfTimes, median_over_steps
from jitter.analysis.replay.replay import Change, no_shift, replay_steps
from jitter.analysis.replay.run_steps import RecordedSteps, RunSteps
from jitter.analysis.replay.what_if import repaired_transfers
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COLLECTIVE, SYNC
from jitter.core.numeric.arrays import Bools, Floats, Ints, distinct_values
from jitter.core.numeric.stats import known_medians

_COPY_CALL: Final = re.compile("memcpy", re.IGNORECASE)

BySize = Sequence[SelfTimes]
"""By size of step, in the order of `LikeSteps.by_size`: (operations of all teams,)."""


class ProgramChange(NamedTuple):
    """What some operations of all teams, (operations,) as in `JobArrays`, do otherwise."""

    what: Literal["waits", "host_time", "launch_time", "gpu_time", "transfers"]
    """`waits`: calls return without waiting for the GPU, and what is launched after them waits in their place.
    `host_time`: the host takes no time for them, with pauses; `launch_time`: where it does not pause before them.
    `gpu_time`: their times on the streams are multiplied by `gpu_factor`; where it is 0 they have no delay either.
    `transfers`: collectives end with their last arrival.
    """
    chosen: Bools
    gpu_factor: Floats | None = None
    """Of `gpu_time` by what, (operations,)."""


class Program(NamedTuple):
    """A job as it would run, on all ranks alike or with the recorded self times."""

    job: JobArrays
    self_times: BySize | None = None
    """Every rank's self times in every step of a size; None: the recorded ones."""
    transfers: Sequence[Floats] | None = None
    """Of each step (groups of all collectives,); None: the recorded ones."""
    change: ProgramChange | None = None
    """Of what is recorded."""


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
    collectives: Bools


def mask_operations(run: RunModel) -> OperationMasks:
    """Return which operations of the job begin a step, wait in their call, or copy between host and GPU."""
    waits = run.job.kind == SYNC
    for team, program in run.programs.items():  # in barriers for other hosts, not for the GPU
        waits[run.job.first[team] + np.array([*program.waits_in_barriers.values()], np.int64)] = False
    copies = np.array([_COPY_CALL.search(operation.name) is not None for operation in run.operations], np.bool_)
    host_copies = np.array([operation.is_host_copy for operation in run.operations], np.bool_)
    of_step = np.concatenate([np.arange(size) for size in np.diff(run.job.first)])
    first = of_step <= np.repeat(run.job.first_kernel, np.diff(run.job.first))
    in_step = ~first | run.has_consecutive_steps
    return OperationMasks(
        first, in_step, waits & ~copies, waits & copies, host_copies, collectives=run.job.kind == COLLECTIVE
    )


def list_changes(masks: OperationMasks, host_ns: Floats) -> dict[str, ProgramChange]:
    """Return what the program does otherwise on each rung below `slow_network`, in their order; see `list_rungs`.

    `host_ns` (operations of all teams,) is the usual time of the host between two calls.
    """
    pauses = masks.in_step & is_pause(host_ns)
    return {
        "sync_calls": ProgramChange("waits", masks.sync_calls),
        "blocking_copies": ProgramChange("waits", masks.blocking_copies),
        "late_start": ProgramChange("host_time", pauses & masks.first),
        "cpu_launch": ProgramChange("host_time", pauses & ~masks.first),
        "launch_bound": ProgramChange("host_time", masks.in_step),
        "exposed_communication": ProgramChange("transfers", masks.collectives),
        "serial_copies": ProgramChange("gpu_time", masks.host_copies, np.where(masks.host_copies, 0.0, 1.0)),
    }


PAUSES: Final = ("late_start", "cpu_launch")
"""The changes of `list_changes` that leave out pauses of hosts."""


def list_rungs(
    steps: RunSteps,
    usual: Sequence[Floats],
    expected: Sequence[Floats],
    step_ns: Floats,
    first: int,
    last: int,
    *,
    slow_steps: Mapping[int, Collection[int]],
    pace_of_team: Mapping[int, float],
) -> tuple[dict[str, Program], list[Program]]:
    """Return the program below each loss that all ranks bear alike; each leaves out one thing more.

    `slow_steps`: every self time at the median over ranks and like steps but those in which all ranks of the team are
    slow, given by team, where others are left; every transfer at its baseline.
    `slow_network`: every transfer as short as a bandwidth benchmark gives, where that is shorter.
    `sync_calls`: no call in which the host waits for the GPU, other than those that copy.
    `blocking_copies`: no copy in which the host waits for the GPU.
    `late_start`: no pause of a host before the launch of a step's first kernel.
    `cpu_launch`: no pause of a host between launches.
    `launch_bound`: no host time: launches are never late.
    `exposed_communication`: transfers take no time, as if all communication were hidden: a lower bound.
    `serial_copies`: copies between host and GPU take no time on their stream, as if all were hidden.
    `unequal_stages`: every program, such as a pipeline stage, has the mean GPU time of all ranks, once those of
    `pace_of_team`, which a finding calls longer than the others by this factor, are as long as these.

    Then that of `slow_network` without waits that few hosts make, which keep their pauses from being hidden, and this
    one without each of `PAUSES`: in the rungs all waits of hosts are left out before.

    `usual` and `expected`, of each step (groups of all collectives,), are the transfers' baseline and what a bandwidth
    benchmark gives, NaN where it gives none; the others are as in `time_programs`.
    """
    job, masks = steps.run.job, mask_operations(steps.run)
    best = [np.fmin(*of_step) for of_step in zip(usual, expected, strict=True)]
    self_times = [_usual_times(steps, numbers, slow_steps) for numbers in steps.alike.by_size]
    unblocked = [medians._replace(call=np.minimum(medians.call, THRESHOLDS.max_launch_ns)) for medians in self_times]
    if any((short.call < medians.call).any() for short, medians in zip(unblocked, self_times, strict=True)):
        # long calls that do not make the step longer wait for the GPU: without its work they would be short
        blocked, short = (Program(job, variant, best) for variant in (self_times, unblocked))
        before, after = time_programs(steps, [blocked, short], step_ns, first, last)
        if before - after <= THRESHOLDS.efficiency.min_share * before:
            self_times = unblocked
    at_best = usual if all(np.isnan(transfers_ns).all() for transfers_ns in expected) else best
    program = Program(job, self_times, at_best)
    rungs = {"slow_steps": program._replace(transfers=usual), "slow_network": program}
    hidden = [np.where(np.isnan(transfers_ns), transfers_ns, 0.0) for transfers_ns in best]
    of_sizes = [list_changes(masks, medians.host) for medians in self_times]
    for cause in of_sizes[0]:
        program = rungs[cause] = _change_medians(program, [changes[cause] for changes in of_sizes], hidden)
    ranks = np.diff(job.first_rank).tolist()
    if len(ranks) > 1:
        paces = np.array([pace_of_team.get(team, 1.0) for team in sorted(steps.run.programs)])
        factors = (balance_programs(job, medians.gpu, ranks, paces) for medians in program.self_times or ())
        balanced = [ProgramChange("gpu_time", factor != 1, factor) for factor in factors]
        program = _change_medians(program, balanced, hidden)
    rungs["unequal_stages"] = program
    waiting = (masks.sync_calls | masks.blocking_copies) & (np.diff(job.first_wait) > 0)
    with_waits = rungs["slow_network"]._replace(job=without_waits(job, waiting & ~are_usual(steps, first, waiting)))
    return rungs, [with_waits, *(with_waits._replace(self_times=rungs[pause].self_times) for pause in PAUSES)]


def _usual_times(steps: RunSteps, numbers: Ints, slow_steps: Mapping[int, Collection[int]]) -> SelfTimes:
    """Return, (operations of all teams,), medians over like steps, without a team's slow ones if others are left."""
    usual = median_over_steps(steps.baselines, numbers)
    for team, slow in slow_steps.items():
        others, operations = np.setdiff1d(numbers, list(slow)), steps.run.job.operations(team)
        if 0 < len(others) < len(numbers):
            of_team = SelfTimes(*(values[:, operations] for values in steps.baselines))
            for values, medians in zip(usual, median_over_steps(of_team, others), strict=True):
                values[operations] = medians
    return usual


def _change_medians(program: Program, changes: Sequence[ProgramChange], hidden: Sequence[Floats]) -> Program:
    """Return a program of medians with a change, which each size of step has; `hidden` are transfers without time."""
    if not any(change.chosen.any() for change in changes):
        return program
    if changes[0].what == "waits":
        return program._replace(job=without_waits(program.job, changes[0].chosen))
    if changes[0].what == "transfers":
        return program._replace(transfers=hidden)
    every = [(slice(None), slice(None))]
    of_sizes = zip(program.self_times or (), changes, strict=True)
    return program._replace(self_times=[change_self_times(*of_size, every) for of_size in of_sizes])


def are_usual(steps: RunSteps, number: int, calls: Bools) -> Bools:
    """Return, (operations of all teams,), which calls half of a team's ranks or more make in a step of the run.

    None where fewer than half of all ranks make any of these `calls`.
    """
    (step,), job = steps.steps(number, number + 1), steps.run.job
    made, ranks, callers, here = np.zeros(len(job.kind)), np.zeros(len(job.kind)), 0, 0
    for operations, cells in job.slices_of_ranks(step.times):
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


def time_programs(steps: RunSteps, programs: Sequence[Program], step_ns: Floats, first: int, last: int) -> list[float]:
    """Return the mean step time of each program, ns; NaN if none is known.

    `step_ns` (steps,) are the recorded step times, NaN where unknown; the steps are those of `replay_programs`.
    """
    gained = replay_programs(steps, programs, first, last)
    times = step_ns[last - len(gained) : last, None] - gained
    counted = times[~np.isnan(times).any(axis=1)]
    mean: list[float] = counted.mean(axis=0).tolist() if len(counted) else [np.nan] * len(programs)
    return mean


def price_changes(steps: RunSteps, changes: Sequence[ProgramChange], first: int, last: int) -> list[float]:
    """Return what each change of the recorded program saves per step, ns; 0 where no end of a step is known.

    No rank's self times are replaced by medians, so what a change saves is no part of the loss. Of hosts it is what it
    saves in the usual one of like steps: a pause of one rank in one of a few steps is not lost in each step of the run.
    """
    job = steps.run.job
    programs = [
        Program(without_waits(job, change.chosen) if change.what == "waits" else job, change=change)
        for change in changes
    ]
    gained = replay_programs(steps, programs, first, last)
    of_hosts = [number for number, change in enumerate(changes) if change.what in ("host_time", "launch_time")]
    size_of = steps.alike.size_of[last - len(gained) : last]
    for size in distinct_values(size_of):
        alike = np.ix_(size_of == size, of_hosts)
        gained[alike] = known_medians(gained[alike])
    saved: list[float] = (np.nansum(gained, axis=0) / len(gained)).tolist()
    return saved


def replay_programs(steps: RunSteps, programs: Sequence[Program], first: int, last: int) -> Floats:
    """Return, (steps, programs), how much shorter than recorded each step is, ns; NaN where no rank's end is known.

    Consecutive steps from the `first` up to but not including the `last` are replayed on all ranks. The first of
    several leads from the recording to the program and is left out. Programs of the same arrays are replayed once.
    """
    replays = {tuple(map(id, program)): _ProgramReplay(steps, program) for program in programs}
    gained: list[list[float]] = []
    for step in steps.steps(first, last):
        of_step = {key: replay.step(step) for key, replay in replays.items()}
        gained.append([of_step[tuple(map(id, program))] for program in programs])
        del step  # else it stays in memory while the next one is read
    return np.array(gained[1:] or gained)


def balance_programs(job: JobArrays, gpu_ns: Floats, ranks: Sequence[int], paces: Floats) -> Floats:
    """Return the factors, (operations,), that bring each program's GPU time per step to the mean over all ranks.

    `gpu_ns` (operations,) is each operation's time per step, `ranks` (teams,) are how many run each program, `paces`
    (teams,) by what its time is divided before the mean is taken.
    """
    whole = np.add.reduceat(np.nan_to_num(gpu_ns), job.first[:-1])
    mean_ns = np.average(whole / paces, weights=ranks)
    factor = np.divide(mean_ns, whole, out=np.ones_like(whole), where=whole > 0)
    return np.repeat(factor, np.diff(job.first))


def change_self_times(self_times: SelfTimes, change: ProgramChange, parts: Iterable[tuple[slice, slice]]) -> SelfTimes:
    """Return self times with a change; `parts` are operations, numbered as in `JobArrays`, and where theirs stand."""
    names = ("host", "call", "lead") if change.gpu_factor is None else ("delay", "gpu")
    changed = self_times._replace(**{name: getattr(self_times, name).copy() for name in names})
    for operations, cells in parts:
        host, call, lead, delay, on_gpu = (values[cells] for values in changed)
        if change.gpu_factor is not None:
            factor = change.gpu_factor[operations]
            on_gpu *= factor
            is_gone = factor == 0
            delay[is_gone], on_gpu[is_gone] = np.minimum(delay[is_gone], 0.0), 0.0
            continue
        is_changed = change.chosen[operations]
        if change.what == "launch_time":
            is_changed = is_changed & ~is_pause(host)
        host[is_changed & ~np.isnan(host)] = call[is_changed] = lead[is_changed] = 0.0
    return changed


class _ProgramReplay:
    """The replay of one program, step by step."""

    def __init__(self, steps: RunSteps, program: Program) -> None:
        self._steps, self._program, self._instructions = steps, program, steps.run.schedule.array()
        is_at_baseline, ranks = program.self_times is not None, len(steps.run.rank_numbers)
        self._repaired = np.full((1, len((START, CPU, GPU)), ranks), is_at_baseline)
        self._state: CarriedState | None = None
        self._shift = no_shift(ranks)

    def step(self, step: RecordedSteps) -> float:
        """Replay the next step and return what it saves, ns; NaN where no rank's end is known."""
        if self._state is None:
            self._state = CarriedState(*(values[0].copy() for values in step.before))
        program = self._program
        baseline, transfers = step.self_times, step.transfers.took  # the recorded ones have no baseline
        if program.self_times is not None:
            baseline = program.self_times[self._steps.alike.size_of[step.first]]
        if program.transfers is not None:
            transfers = repaired_transfers(step, program.transfers[step.first])
        changed = program.change
        if changed is not None and changed.what == "transfers":
            transfers = np.where(np.isnan(transfers), transfers, 0.0)
        elif changed is not None and changed.what != "waits":
            parts = program.job.slices_of_ranks(step.times)
            step = replace(step, self_times=change_self_times(step.self_times, changed, parts))
        change = Change(self._repaired, transfers, np.zeros_like(transfers))
        usual = SelfTimes(*(values[None] for values in baseline))
        of_program = program.job, self._instructions, step, usual, change, self._state, self._shift
        return float(replay_steps(*of_program).gained_ns[0])


def without_waits(job: JobArrays, ignored: Bools) -> JobArrays:
    """Return the job in which the `ignored` calls do not wait: the GPU's next activities wait in their place.

    Later launches may need the result that the call waited for. So the next activity on each stream waits for
    it, as after an event; of the next step, if none follows in the step.
    """
    ignored = ignored & (np.diff(job.first_wait) > 0)
    if not ignored.any():
        return job
    waits = [job.wait_on[first:last].tolist() for first, last in pairwise(job.first_wait.tolist())]
    for begin, end in pairwise(job.first.tolist()):
        calls = set(np.flatnonzero(ignored[begin:end]).tolist())
        for call, followers in _next_on_streams(job.stream[begin:end], calls):
            at = begin + call
            for follower, is_next_step in followers:
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


def _next_on_streams(stream: Ints, chosen: Collection[int]) -> list[tuple[int, list[tuple[int, bool]]]]:
    """Return the chosen operations of a program, and of each the next one on each stream, and whether a step later."""
    upcoming = {
        int(stream_number): (int(np.argmax(stream == stream_number)), True)
        for stream_number in distinct_values(stream)
        if stream_number != NO_STREAM
    }
    following = list[tuple[int, list[tuple[int, bool]]]]()
    for at in range(len(stream) - 1 if chosen else -1, -1, -1):
        if at in chosen:
            following.append((at, list(upcoming.values())))
        if stream[at] != NO_STREAM:
            upcoming[int(stream[at])] = at, False
    return following[::-1]
