"""Replayed with its own own times, every run is what was recorded, to the nanosecond."""

from pathlib import Path

import pytest
from examined_jobs import lake_of_run, small
from replayed import assert_as_recorded

from jitter.simulate import Fault, simulate
from jitter.simulate.shapes import SHAPES

OPTIONS = {
    "plain": {},
    "held": {"launch_queue": 24, "syncs": frozenset({"loss", "before", "after"}), "autotuned": 0.4},
    "beside": {"side_stream": 21, "second_thread": False, "cpu_bound": True, "variable_work": 0.03},
}
MISSING = {"pipeline": "5"}
"""No collective."""


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_of_every_shape(tmp_path: Path, shape: str, option: str):
    job = small(shape, **OPTIONS[option])
    run = simulate(job, [Fault.parse("slow_cpu:rank=1,step=2,factor=3"), Fault.parse("slow_gpu:rank=2,factor=1.3")])
    assert_as_recorded(lake_of_run(run, tmp_path))


@pytest.mark.parametrize(
    ("shape", "form"), [("data_parallel", "rocpd"), ("tensor_parallel", "nsys"), ("sharded", "nsys")]
)
def test_without_recorded_groups(tmp_path: Path, shape: str, form: str):
    job = small(shape, syncs=frozenset({"loss"}))
    assert_as_recorded(lake_of_run(simulate(job, [Fault.parse("slow_cpu:rank=1,factor=2")]), tmp_path, form))


@pytest.mark.parametrize("shape", SHAPES)
def test_of_runs_recorded_in_part(tmp_path: Path, shape: str):
    """Rank 5 is missing; rank 2 has no first step, rank 3 no last, rank 6 lacks one in between."""
    job = small(shape, ranks=8, syncs=frozenset({"loss"}))
    lost = {(2, 0), (3, 3), (6, 1)}
    lake = lake_of_run(
        simulate(
            job,
            [
                Fault.parse("extra_kernel:rank=1,kernel=9"),
                Fault.parse("missing_kernel:rank=4,kernel=" + MISSING.get(shape, "3")),
            ],
        ),
        tmp_path,
        absent=frozenset({5}),
        sees=lambda rank, step: (rank, step) not in lost,
    )
    assert_as_recorded(lake)
