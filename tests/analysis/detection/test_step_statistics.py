"""A step looked at strip by strip says what the whole step's arrays say, however high the strips are."""

from dataclasses import fields, replace

import numpy as np
import pytest

from jitter.analysis.detection import step_statistics
from jitter.analysis.detection.step_statistics import StepStatistics, compute_step_statistics
from jitter.analysis.execution.own_time import OwnTimes
from jitter.analysis.execution.team_times import Laid
from jitter.analysis.execution.time_part import OWN_PARTS, TimePart
from jitter.analysis.replay.run_steps import ExaminedSteps
from jitter.core.kernels import COLLECTIVE
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small

JOBS = {
    "overlap": (small(ranks=6), ()),
    "a full queue": (small(ranks=5, launch_queue=12), ("slow_gpu:rank=1,factor=1.5",)),
    "syncs and a side stream": (small(ranks=5, side_stream=20, syncs=frozenset({"loss", "before"})), ()),
    "tensor parallel": (small("tensor_parallel", ranks=6), ()),
    "other kernels": (small(ranks=6), ("extra_kernel:rank=2,kernel=7,ms=0.2",)),
    "few ranks": (small(ranks=3), ()),
}


@pytest.fixture(scope="module", params=sorted(JOBS))
def steps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ExaminedSteps:
    job, faults = JOBS[request.param]
    run = simulate(job, [Fault.parse(fault) for fault in faults])
    return ingest_run(run, tmp_path_factory.mktemp("look")).analyze().steps


def looked(steps: ExaminedSteps) -> list[tuple[int, int, StepStatistics]]:
    run, found, tails = steps.run, [], steps.run.tails()
    for number, key, teams in run.laid():
        for team, laid in teams.items():
            tail, joined = tails[team].before(key, laid.ranks)
            one = compute_step_statistics(number, team, run.programs[team], run.rules[team], laid, tail, joined, None)
            tails[team].take(key, laid.ranks, one.left)
            found.append((number, team, one))
    return found


@pytest.mark.parametrize("cells", [1, 40, 10**9])
def test_of_strips_of_any_height(steps: ExaminedSteps, cells: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step_statistics, "_CELLS", cells)
    whole = dict(enumerate(steps.run.steps()))
    seen = looked(steps)
    assert {number for number, _, _ in seen} == whole.keys()
    for number, team, one in seen:
        step, program = whole[number].teams[team], steps.run.programs[team]
        np.testing.assert_array_equal(one.ranks, step.recorded.ranks)
        np.testing.assert_array_equal(one.end, step.recorded.end)
        assert one.took.keys() == {at for at, op in enumerate(program.operations) if op.kind == COLLECTIVE}
        for at, took in one.took.items():
            np.testing.assert_array_equal(took, step.recorded.end[at] - step.recorded.start[at])
        for field in fields(OwnTimes):
            usual = [_lower_median(row) for row in getattr(step.own, field.name).tolist()]
            np.testing.assert_array_equal(getattr(one.typical, field.name)[:, 0], usual)
        np.testing.assert_allclose(one.deviations.total_ns, _totals(step.own, one, program.first_kernel), atol=1e-3)
        if number + 1 in whole:
            after = whole[number + 1].teams[team].tail
            np.testing.assert_array_equal(one.left.lane_end, after.lane_end)
            np.testing.assert_array_equal(one.left.back, after.back)
            np.testing.assert_array_equal(one.left.starts, after.starts)


def _lower_median(values: list[float]) -> float:
    known = sorted(value for value in values if not np.isnan(value))
    return known[(len(known) - 1) // 2] if known else np.nan


def _totals(own: OwnTimes, one: StepStatistics, first_kernel: int) -> np.ndarray:
    found = np.zeros((len(OWN_PARTS), len(one.ranks)))
    for names, parts in ((("host", "call"), None), (("gpu", "delay"), TimePart.GPU)):
        more = sum(getattr(own, name) - getattr(one.typical, name) for name in names)
        for place, row in enumerate(np.nan_to_num(more)):
            found[(TimePart.START if place <= first_kernel else TimePart.CPU) if parts is None else parts] += row
    return found


def test_noise_does_not_depend_on_the_strips(steps: ExaminedSteps, monkeypatch: pytest.MonkeyPatch):
    before = [one.deviations.noise_ns for _, _, one in looked(steps)]
    monkeypatch.setattr(step_statistics, "_CELLS", 1)
    after = [one.deviations.noise_ns for _, _, one in looked(steps)]
    np.testing.assert_allclose(after, before, rtol=1e-12)
    assert (np.array(before)[:, TimePart.GPU] > 0).all()


def test_kernels_before_their_launch_are_counted(steps: ExaminedSteps, monkeypatch: pytest.MonkeyPatch):
    assert {one.negative_latencies for _, _, one in looked(steps)} == {0}
    strip = Laid.strip

    def hurried(self: Laid, rows: slice) -> object:
        found = strip(self, rows)
        if rows.start != 0:
            return found
        start = found.start.copy()
        start[0, 1] = found.call[0, 1] - 1
        start[0, 2] = np.nan
        return replace(found, start=start)

    monkeypatch.setattr(Laid, "strip", hurried)
    assert {one.negative_latencies for _, _, one in looked(steps)} == {1}
