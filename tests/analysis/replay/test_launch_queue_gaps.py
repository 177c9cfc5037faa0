"""A full launch queue where ranks do not run the same kernels."""

from pathlib import Path

import pytest

from jitter.simulate import Fault, simulate
from tests.support.replay_assertions import assert_replay_matches_recording
from tests.support.simulated import ingest_run, small


@pytest.mark.parametrize("shape", ["tensor_parallel", "sharded"])
def test_replayed_as_recorded(tmp_path: Path, shape: str):
    faults = ["extra_kernel:rank=1,kernel=9", "missing_kernel:rank=2,kernel=17", "slow_gpu:rank=3,factor=1.3"]
    run = simulate(small(shape, launch_queue=12), [Fault.parse(fault) for fault in faults])
    lake = ingest_run(run, tmp_path)
    assert [rules.queue for rules in lake.analyze().run.dependencies.values()] == [12]
    assert_replay_matches_recording(lake)
