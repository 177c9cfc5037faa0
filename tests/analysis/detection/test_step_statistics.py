"""A step's statistics against sums and medians told slowly, an operation at a time; compiled and not."""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import pytest

import jitter
from jitter.analysis.detection.deviations import StepDeviations
from jitter.analysis.detection.passes import measure_steps
from jitter.analysis.execution.self_times import CPU, GPU, START, SelfTimes
from jitter.analysis.execution.step_times import StepTimes
from jitter.analysis.replay.run_steps import RunSteps
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("each_way")]

JOBS = {
    "overlap": (small(ranks=6), ()),
    "a full queue": (small(ranks=5, launch_queue=12), ("slow_gpu:rank=1,factor=1.5",)),
    "syncs and a side stream": (small(ranks=5, side_stream=20, syncs=frozenset({"loss", "before"})), ()),
    "tensor parallel": (small("tensor_parallel", ranks=6), ()),
    "other kernels": (small(ranks=6), ("extra_kernel:rank=2,kernel=7,ms=0.2",)),
    "few ranks": (small(ranks=3), ()),
}


@pytest.fixture(scope="module")
def lake_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the lake of a job; each is made once."""

    @cache
    def ingest(name: str) -> Path:
        job, faults = JOBS[name]
        run = simulate(job, [Fault.parse(fault) for fault in faults])
        return ingest_run(run, tmp_path_factory.mktemp("measured")).root

    return ingest


@pytest.fixture(params=sorted(JOBS))
def steps(request: pytest.FixtureRequest, lake_of: Callable[[str], Path]) -> RunSteps:
    return jitter.open(lake_of(request.param)).analyze().steps


def _lower_median(values: list[float]) -> float:
    known = sorted(value for value in values if not math.isnan(value))
    return known[(len(known) - 1) // 2] if known else math.nan


def _of_part(part: int, times: SelfTimes, at: int) -> float:
    names = ("gpu", "delay") if part == GPU else ("host", "call")
    return sum(float(getattr(times, name)[at]) for name in names)


def test_medians_totals_and_noise(steps: RunSteps):
    run = steps.run
    (program,) = run.programs.values()
    size = len(program.operations)
    measured = measure_steps(steps, 0, len(run.keys))
    recorded = list(steps.steps())
    assert len(measured.qualities) == len(recorded) == 4
    for number, step in enumerate(recorded):
        rows = step.times.row.tolist()
        baseline = steps.baseline(number)
        for values, medians in zip(step.self_times, baseline, strict=True):
            usual = [_lower_median([float(values[row + op]) for row in rows]) for op in range(size)]
            np.testing.assert_array_equal(medians, usual)
        deviations = StepDeviations(*(values[number] for values in measured.deviations))
        border = program.first_kernel + 1
        for part in (START, CPU, GPU):
            places = {START: range(border), CPU: range(border, size), GPU: range(size)}[part]
            usual = {op: _of_part(part, baseline, op) for op in places}
            more = {op: [_of_part(part, step.self_times, row + op) - usual[op] for row in rows] for op in places}
            more = {op: [0.0 if math.isnan(ns) else ns for ns in own] for op, own in more.items()}
            assert deviations.total_ns[part].tolist() == pytest.approx(
                [sum(own[rank] for own in more.values()) for rank in range(len(rows))], abs=1e-3
            )
            # from the lower median down to a quarter of the ranks: the slower half may be slow
            middle, count = (len(rows) - 1) // 2, len(rows)
            sigmas = [
                1.4826 * (sorted(own)[middle] - float(np.interp(middle - count / 4, range(count), sorted(own))))
                for own in more.values()
            ]
            if len(rows) < 4:
                if any(math.isnan(ns) for ns in usual.values()):
                    assert math.isnan(deviations.noise_ns[part, 0])
                    continue
                sizes = {op: max(abs(usual[op]), 1.0) for op in places}
                relative = median(abs(ns) / sizes[op] for op, own in more.items() for ns in own)
                sigmas = [1.4826 * relative * sizes[op] for op in places]
            assert deviations.noise_ns[part, 0] == pytest.approx(math.hypot(*sigmas), rel=1e-9)
        assert deviations.noise_ns[GPU, 0] > 0


def test_the_next_step_begins_as_this_one_ends(steps: RunSteps):
    """Each stream's latest end, each thread's latest return, the latest starts: of all operations so far."""
    for step, after in zip(list(steps.steps())[:-1], list(steps.steps())[1:], strict=True):
        (program,) = steps.run.programs.values()
        for rank, row in enumerate(step.times.row.tolist()):
            cells = slice(row, row + len(program.operations))
            for stream, end in enumerate(after.before.stream_end[0, rank].tolist()):
                ends = [*step.times.end[cells][program.streams == stream], step.before.stream_end[0, rank, stream]]
                np.testing.assert_equal(end, np.fmax.reduce(ends))
            back = step.times.back[cells]
            assert after.before.back[0, rank].tolist() == [back[~np.isnan(back)][-1]]
            places = after.before.pending.shape[2]
            started = np.sort(np.concatenate([step.before.pending[0, rank], step.times.start[cells]]))
            started = started[~np.isnan(started)]
            assert after.before.pending[0, rank].tolist() == (started[-places:].tolist() if places else [])


def test_kernels_before_their_launch_are_counted(steps: RunSteps, monkeypatch: pytest.MonkeyPatch):
    assert {quality.negative_latencies for quality in measure_steps(steps, 0, 4).qualities} == {0}
    read = type(steps.run).step_times

    def hurried(self, *told) -> StepTimes:
        found = read(self, *told)
        known = np.flatnonzero(~np.isnan(found.call + found.start))
        found.start[known[0]] = found.call[known[0]] - 1
        found.start[known[1]] = np.nan
        return found

    monkeypatch.setattr(type(steps.run), "step_times", hurried)
    again = RunSteps(steps.lake, steps.prepare())  # reads the steps anew: those of a small run are kept
    assert {quality.negative_latencies for quality in measure_steps(again, 0, 4).qualities} == {1}
