"""Steps that are slow for all ranks are compared with the other steps: more work in them is not a slow GPU."""

from pathlib import Path

import pytest

from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small


@pytest.mark.parametrize(("kind", "cause"), [("unequal_work", "workload_imbalance"), ("slow_gpu", "gpu_compute")])
def test_more_work_for_all_is_told_from_slow_gpus(tmp_path: Path, kind: str, cause: str):
    run = simulate(small(ranks=8, steps=12), [Fault.parse(f"{kind}:ranks=0-7,step=4+9,factor=1.5")])
    (culprit,) = ingest_run(run, tmp_path).diagnose().culprits
    assert (culprit.scope, culprit.cause) == ("job", cause)
    assert [key.step for key in culprit.steps] == [4, 9]
    assert any("in its other steps" in line for line in culprit.evidence)
