"""Costs of the program on every rank alike, priced by replays of a changed program.

Calls that wait for the GPU, copies that block the host, copies that run alone, kernels shorter than their launches.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.alignment.program import Operation
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.efficiency.finding import EfficiencyFinding, EfficiencyKind
from jitter.analysis.execution.job_arrays import JobArrays
from jitter.analysis.replay.program_changes import ProgramChange, no_change, price_changes, slices_of_ranks
from jitter.analysis.replay.run_steps import RecordedStep
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_percent, format_time
from jitter.core.names.kernels import COMPUTE, MEMORY, SYNC, copy_direction, host_memory
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.step_key import StepKey

_LIMITS: Final = THRESHOLDS.efficiency

_COPY_CALL: Final = re.compile("memcpy", re.IGNORECASE)
_BETWEEN_HOST_AND_GPU: Final = ("host_to_device", "device_to_host")
_VERSION: Final = re.compile(r"_v\d+$")


class _Measured(NamedTuple):
    """The operations of all teams as in `JobArrays`; arrays are shape (operations,), times are means per execution."""

    operations: tuple[Operation, ...]
    kernels_before: Ints
    """Kernels of the team's program that are launched before it."""
    times: Floats
    """Executions per rank and step."""
    gpu_ns: Floats
    launch_ns: Floats
    """Host time from the end of the call before to the launch's return."""
    wait_ns: Floats
    """How long a synchronising call lasts."""

    def mask(self, kind: int) -> Bools:
        """Return the mask of a kind."""
        return np.array([one.kind == kind for one in self.operations], np.bool_)


def find_program_losses(analysis: RunAnalysis) -> list[EfficiencyFinding]:
    """Return what the program costs on all ranks alike, the most expensive first.

    Consecutive steps in the middle of the run are replayed. Where host gaps may be waits, the recording tells nothing.
    """
    if analysis.is_unexplained or not analysis.keys:
        return []
    first, last = choose_steps(analysis)
    step_ns = float(np.median(analysis.assumed_step_ns[first:last]))
    if step_ns <= 0:
        return []
    measured = _measure(analysis, first, last)
    changes = [(kind, chosen, change) for kind, chosen, change in _changes(measured) if chosen.any()]
    saved = price_changes(analysis.steps, analysis.ends, [change for *_, change in changes], first, last)
    timed = int((~np.isnan(analysis.step_ns)).sum())
    found = [
        EfficiencyFinding(
            kind,
            _SENTENCES[kind].format(cost=f"{format_time(ns)} per step ({format_percent(ns / step_ns)})"),
            share=ns / step_ns,
            gain_ns=round(ns * timed),
            evidence=_evidence(kind, chosen, measured),
        )
        for (kind, chosen, _), ns in zip(changes, saved, strict=True)
        if ns >= _LIMITS.min_share * step_ns
    ]
    return sorted(found, key=lambda one: -(one.share or 0.0))


def choose_steps(analysis: RunAnalysis) -> tuple[int, int]:
    """Return the range of positions of consecutive steps, from the middle of the longest stretch without a hole."""
    keys = analysis.keys
    breaks = [at for at in range(1, len(keys)) if keys[at] != StepKey(keys[at - 1].epoch, keys[at - 1].step + 1)]
    stretches = zip([0, *breaks], [*breaks, len(keys)], strict=True)
    begin, end = max(stretches, key=lambda stretch: stretch[1] - stretch[0])
    fitting = _LIMITS.max_cells // max(analysis.steps.largest_step, 1)
    most = min(_LIMITS.max_steps, max(_LIMITS.min_steps, fitting))
    first = begin + max(0, (end - begin - most) // 2)
    return first, min(end, first + most)


_SENTENCES: Final[dict[EfficiencyKind, str]] = {
    "synchronization": "calls in which the host waits for the GPU cost {cost}: launches after them come late",
    "blocking_copy": "copies that block the host cost {cost}: use pinned memory and asynchronous copies",
    "serial_copies": "copies between host and GPU run without kernels beside them and cost {cost}: copy ahead, on "
    "another stream",
    "small_kernels": "launches of kernels that take less time than their launch cost {cost}: fuse them, or launch them "
    "as a graph",
}


def _changes(measured: _Measured) -> Iterator[tuple[EfficiencyKind, Bools, ProgramChange]]:
    """Yield what could be changed, the operations concerned, and the change."""
    nothing = no_change(len(measured.operations))
    waits = measured.mask(SYNC)
    is_copy_call = np.array([_COPY_CALL.search(one.name) is not None for one in measured.operations], np.bool_)
    yield "synchronization", waits & ~is_copy_call, nothing._replace(without_waiting=waits & ~is_copy_call)
    yield "blocking_copy", waits & is_copy_call, nothing._replace(without_waiting=waits & is_copy_call)
    copies = _host_copies(measured)
    yield "serial_copies", copies, nothing._replace(without_gpu_time=copies)
    is_small = (measured.gpu_ns < _LIMITS.small_kernel_ns) & (measured.gpu_ns < measured.launch_ns)
    small = measured.mask(COMPUTE) & is_small
    yield "small_kernels", small, nothing._replace(without_launch_time=small)


def _host_copies(measured: _Measured) -> Bools:
    """Return the mask of copies between host and GPU."""
    directions = [copy_direction(one.name) for one in measured.operations]
    return measured.mask(MEMORY) & np.array([one in _BETWEEN_HOST_AND_GPU for one in directions], np.bool_)


def _measure(analysis: RunAnalysis, first: int, last: int) -> _Measured:
    run = analysis.run
    operations = tuple(op for team in sorted(run.programs) for op in run.programs[team].operations)
    sums = np.zeros((4, len(operations)))
    rank_steps = np.zeros(len(operations))
    for step in analysis.steps.steps(first, last):
        _add_step(run.job, step, sums, rank_steps)
        del step  # the next step is read while it would stay
    times = np.maximum(sums[0], 1.0)
    before = [
        np.cumsum([op.is_kernel for op in run.programs[team].operations])
        - [op.is_kernel for op in run.programs[team].operations]
        for team in sorted(run.programs)
    ]
    return _Measured(
        operations,
        np.concatenate(before).astype(np.int64),
        sums[0] / np.maximum(rank_steps, 1.0),
        *(total / times for total in sums[1:]),
    )


def _add_step(job: JobArrays, step: RecordedStep, sums: Floats, rank_steps: Floats) -> None:
    """Add each operation's activities, GPU time, launch time and time in calls, and how many ranks have the step."""
    of_step = np.zeros_like(sums)
    for operations, cells in slices_of_ranks(job, step.times):
        start, call, back = (values[cells] for values in (step.times.start, step.times.call, step.times.back))
        host, in_call, gpu = (values[cells] for values in (step.own.host, step.own.call, step.own.gpu))
        there = np.where(job.kind[operations] == SYNC, ~np.isnan(call), ~np.isnan(start))
        for total, value in zip(
            of_step, (there, gpu, np.nan_to_num(host) + in_call, np.nan_to_num(back - call)), strict=True
        ):
            total[operations] += np.where(there, value, 0.0)
        rank_steps[operations] += 1
    sums += of_step


def _evidence(kind: EfficiencyKind, chosen: Bools, measured: _Measured) -> tuple[str, ...]:
    if kind == "synchronization":
        return _describe_waits(chosen, measured)
    if kind == "blocking_copy":
        return (*_describe_waits(chosen, measured), *_describe_host_memory(measured))
    per_step = float((measured.gpu_ns * measured.times)[chosen].sum())
    count = format_count(round(float(measured.times[chosen].sum())), "copy", "copies")
    if kind == "serial_copies":
        return (f"{count} per step take {format_time(per_step)}", *_describe_host_memory(measured))
    kernels = measured.mask(COMPUTE)
    weights = measured.times[chosen]
    return (
        f"{round(float(weights.sum())):,} of {format_count(round(float(measured.times[kernels].sum())), 'kernel')} per "
        f"step take {format_time(float(np.average(measured.gpu_ns[chosen], weights=weights)))} on average, the host "
        f"{format_time(float(np.average(measured.launch_ns[chosen], weights=weights)))} to launch one",
    )


def _describe_waits(chosen: Bools, measured: _Measured) -> tuple[str, ...]:
    """Name the calls in which the host is longest."""
    places = np.flatnonzero(chosen)
    lasting = (measured.wait_ns * measured.times)[places]
    worst = places[np.argsort(-lasting, kind="stable")][: THRESHOLDS.sentences.max_named].tolist()
    told = [
        f"{_VERSION.sub('', measured.operations[at].name)} before kernel {measured.kernels_before[at]} takes "
        f"{format_time(float(measured.wait_ns[at]))}"
        for at in worst
    ]
    count = float(measured.times[places].sum())
    return (f"{count:.3g} {'call' if count == 1 else 'calls'} per step; {', '.join(told)}",)


def _describe_host_memory(measured: _Measured) -> Iterator[str]:
    """Say how many copies between host and GPU use pageable host memory, if the recording tells that of all."""
    copies = np.flatnonzero(_host_copies(measured)).tolist()
    memory = [host_memory(measured.operations[at].name) for at in copies]
    if not copies or None in memory:
        return
    pageable = sum(measured.times[at] for at, one in zip(copies, memory, strict=True) if one == "pageable")
    if round(pageable) == 0:
        yield "all use pinned host memory"
    else:
        count = format_count(round(sum(measured.times[at] for at in copies)), "copy", "copies")
        yield (
            f"{round(pageable):,} of {count} per step between host and GPU use pageable host memory: the host waits "
            "while the driver copies through a buffer of its own"
        )
