"""The usual step, on which one rank stands for all that are alike: its replay, and the account between two of them."""

from typing import Any

import numpy as np
import pytest

from jitter.analysis.account.losses import LossClass
from jitter.analysis.account.usual_step import UsualStep, find_usual_step
from jitter.simulate import simulate
from tests.support.simulated import ingest_run, small

JOBS: dict[str, dict[str, Any]] = {
    "data_parallel": {},
    "tensor_data": {"tensor": 2},
    "pipeline": {"stages": 2, "microbatches": 3},
}


@pytest.mark.parametrize("shape", JOBS)
def test_one_rank_of_each_block_is_enough(shape: str, tmp_path):
    """Its step is that of the waterfall's rung `steps`, a replay of all ranks."""
    lake = ingest_run(simulate(small(shape, steps=6, **JOBS[shape])), tmp_path)
    analysis, diagnosis = lake.analyze(), lake.diagnose()
    baselines = analysis.baselines
    usual = find_usual_step(analysis.run, baselines, analysis.baseline_transfers[0])
    assert len(usual.program.blocks) < len(analysis.run.team_of)
    assert usual.program.time_ns(usual.step) == pytest.approx(diagnosis.lower_rungs["steps"], rel=1e-6)

    slower = UsualStep(usual.step.own._replace(gpu=1.3 * usual.step.own.gpu), 2 * usual.step.transfers)
    found = usual.program.account(slower, usual.step)
    assert found.upper_ns == pytest.approx(usual.program.time_ns(slower))
    assert found.losses.loss_ns.sum() == pytest.approx(found.upper_ns - found.lower_ns, abs=1)
    by_class = found.losses.by_class()
    assert by_class[[LossClass.GPU, LossClass.TRANSFER]].sum() == pytest.approx(by_class.sum(), rel=0.01)
    alone = [
        usual.program.account(UsualStep(*one), usual.step).losses.loss_ns.sum()
        for one in ((slower.own, usual.step.transfers), (usual.step.own, slower.transfers))
    ]
    assert np.all(by_class[[LossClass.GPU, LossClass.TRANSFER]] >= 0.9 * np.array(alone))
