"""The parts of a step's time: they add up, and they are those of a plain walk through the ranks' rows."""

from itertools import pairwise

import numpy as np
import pytest

import jitter
from jitter.analysis.replay.time_on_path import PathPart, measure_path_times
from jitter.simulate import Fault, Job, simulate
from jitter.simulate.shapes import SHAPES
from tests.support.simulated import activities, ingest_run


def measured(lake):
    return [found for _, found in measure_path_times(lake.analyze().steps)]


def of_median(found):
    parts = np.array([one.parts_ns for one in found if not np.isnan(one.step_ns)])
    return dict(zip(PathPart, np.median(parts, axis=0).tolist(), strict=True))


@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_parts_add_up_and_none_is_negative(shape, tmp_path):
    kernels = 100 if shape == "pipeline" else 60
    lake = ingest_run(simulate(Job(ranks=4, steps=5, kernels=kernels, shape=shape, seed=2)), tmp_path)
    known = [one for one in measured(lake) if not np.isnan(one.step_ns)]
    assert len(known) == 4
    for one in known:
        assert one.parts_ns.sum() == pytest.approx(one.step_ns, abs=1)
        assert one.parts_ns[:-1].min() >= 0
        # what the path does not account for is small
        assert one.parts_ns[PathPart.REST] > -0.02 * one.step_ns


def oracle(lake, rank, step):
    """One rank's compute time and communication without compute in a step, ns by ns boundaries, from its own rows."""
    key, before = lake.step(step), lake.step(step - 1)
    rows = [activities(lake, rank, one) for one in (before, key)]
    ends = [own[own["kind"] == "collective"]["end_ns"].max() for own in rows]
    spans = [
        (kind, max(start, ends[0]), min(end, ends[1]))
        for own in rows
        for kind, start, end in zip(own["kind"], own["start_ns"], own["end_ns"], strict=True)
    ]
    bounds = sorted({time for _, start, end in spans if start < end for time in (start, end)} | set(ends))
    compute = communication = 0
    for low, high in pairwise(bounds):
        kinds = {kind for kind, start, end in spans if start <= low and end >= high}
        compute += (high - low) * ("compute" in kinds)
        communication += (high - low) * ("collective" in kinds and "compute" not in kinds)
    return ends[1] - ends[0], compute, communication


def test_a_rank_alone_is_what_its_rows_say(tmp_path):
    """One rank has no one to wait for: its parts are those of its own timeline."""
    lake = ingest_run(simulate(Job(ranks=1, steps=5, kernels=60, seed=4)), tmp_path, "nsys")
    for one in measured(lake)[1:]:
        step_ns, compute, communication = oracle(lake, 0, one.key.step)
        assert one.step_ns == pytest.approx(step_ns, abs=1)
        assert one.parts_ns[PathPart.COMPUTE] == pytest.approx(compute, abs=1)
        busy = one.parts_ns[[PathPart.EXPOSED_COMMUNICATION, PathPart.WAITING]].sum()
        assert busy == pytest.approx(communication, abs=1)


def test_equal_ranks_are_what_each_one_says(tmp_path):
    """Without noise, the path is any rank's timeline."""
    job = Job(ranks=4, steps=5, kernels=60, seed=4, noise=0.0, cpu_noise=0.0)
    lake = ingest_run(simulate(job), tmp_path, "nsys")
    for one in measured(lake)[1:]:
        step_ns, compute, communication = oracle(lake, 2, one.key.step)
        assert one.step_ns == pytest.approx(step_ns, rel=1e-3)
        assert one.parts_ns[PathPart.COMPUTE] == pytest.approx(compute, rel=1e-3)
        busy = one.parts_ns[[PathPart.EXPOSED_COMMUNICATION, PathPart.WAITING]].sum()
        assert busy == pytest.approx(communication, abs=2e-3 * step_ns)


CHANGES = {
    "slow_collective:factor=8": PathPart.EXPOSED_COMMUNICATION,
    "late_start:rank=0-3,ms=3": PathPart.LATE_START,
    "slow_gpu:rank=0-3,factor=1.5": PathPart.COMPUTE,
    "slow_gpu:rank=1,factor=1.5": PathPart.WAITING,
    "cpu_stall:rank=0-3,kernel=20,ms=4": PathPart.LAUNCH,
}


@pytest.mark.parametrize("fault", list(CHANGES))
def test_a_fault_shows_in_its_part(fault, tmp_path):
    run = simulate(Job(ranks=4, steps=6, kernels=60, seed=4), [Fault.parse(fault)])
    slow = of_median(measured(ingest_run(run, tmp_path / "slow", "nsys")))
    usual = of_median(measured(ingest_run(run.without(), tmp_path / "usual", "nsys")))
    grown = {part: slow[part] - usual[part] for part in PathPart}
    assert max(grown, key=grown.__getitem__) == CHANGES[fault]
    assert grown[CHANGES[fault]] > 0.75 * sum(grown.values())


def test_a_pipeline_follows_the_slow_stage(tmp_path):
    """Waits of stages for each other are not lateness: the path goes to the sender."""
    job = Job(ranks=4, steps=6, kernels=100, shape="pipeline", stages=2, microbatches=2, seed=4)
    usual = of_median(measured(ingest_run(simulate(job), tmp_path / "usual")))
    slow = [Fault.parse("slow_gpu:rank=0-3,factor=1.5")]
    slower = of_median(measured(ingest_run(simulate(job, slow), tmp_path / "slow")))
    grown = {part: slower[part] - usual[part] for part in PathPart}
    assert max(grown, key=grown.__getitem__) == PathPart.COMPUTE
    assert isinstance(jitter.open(tmp_path / "slow" / "lake"), jitter.Lake)
