"""A full launch queue where ranks do not run the same kernels."""

from pathlib import Path

import pytest
from examined_jobs import lake_of_run, small
from replayed import assert_as_recorded

from jitter.simulate import Fault, simulate


@pytest.mark.parametrize("shape", ["tensor_parallel", "sharded"])
def test_replayed_as_recorded(tmp_path: Path, shape: str):
    faults = ["extra_kernel:rank=1,kernel=9", "missing_kernel:rank=2,kernel=17", "slow_gpu:rank=3,factor=1.3"]
    run = simulate(small(shape, launch_queue=12), [Fault.parse(fault) for fault in faults])
    lake = lake_of_run(run, tmp_path)
    assert [rules.queue for rules in lake.analyze().run.rules.values()] == [12]
    assert_as_recorded(lake)
