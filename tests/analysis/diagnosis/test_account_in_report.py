"""Every number of the report that is part of the loss is a sum of rows of `losses`; no two of them differ."""

from pathlib import Path

import pandas as pd
import pytest

import jitter
from jitter.analysis.diagnosis.model import Culprit
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small

OWN = ["start", "launch", "after", "gpu"]
CLASSES = {
    "late_start": ["start"],
    "cpu_launch": ["launch"],
    "cpu_after": ["start", "after", "launch"],
    "gpu_compute": ["gpu"],
    "communication": ["transfer"],
}
JOBS = {
    "one slow GPU": ("data_parallel", ["slow_gpu:rank=2,factor=1.4"]),
    "two ranks that are equally late": (
        "data_parallel",
        ["late_start:rank=1,step=3,ms=2,loading=no", "late_start:rank=6,step=3,ms=2,loading=no"],
    ),
    "a pause and a slow GPU later": (
        "data_parallel",
        ["cpu_stall:rank=1,step=1,kernel=9,ms=9", "slow_gpu:rank=5,step=3,factor=1.5"],
    ),
    "a pause at the end": ("data_parallel", ["late_end:rank=2,ms=4"]),
    "tensor parallel": ("tensor_parallel", ["slow_gpu:rank=3,factor=1.3"]),
    "groups": ("tensor_data", ["slow_gpu:rank=3,factor=1.3", "cpu_stall:rank=6,step=2,kernel=9,ms=2"]),
    "slow transfers": ("sharded", ["slow_link:rank=2,factor=6"]),
    "nothing": ("data_parallel", []),
}


@pytest.fixture(scope="module", params=JOBS)
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    shape, faults = JOBS[request.param]
    run = simulate(small(shape, ranks=8, steps=7), [Fault.parse(fault) for fault in faults])
    return ingest_run(run, tmp_path_factory.mktemp("account"))


@pytest.fixture(scope="module")
def rows(lake: "jitter.Lake") -> pd.DataFrame:
    found: pd.DataFrame = lake.losses()
    return found


def test_steps(lake: "jitter.Lake", rows: pd.DataFrame):
    for step in lake.diagnose().steps:
        own = rows[rows["step"] == step.key.step]
        if step.loss_ns is None:
            assert own.empty
            assert step.by_class is None
            continue
        assert own["loss_ns"].sum() == pytest.approx(step.loss_ns, abs=1)
        assert step.by_class is not None
        assert sum(step.by_class) == step.loss_ns
        sums = own.groupby("class")["loss_ns"].sum()
        for name, ns in step.by_class._asdict().items():
            assert ns == pytest.approx(sums.get(name.removesuffix("_ns"), 0.0), abs=len(step.by_class))
        of_ranks = own[own["class"].isin([*OWN, "overlap", "carried"])].groupby("rank")["loss_ns"].sum()
        assert of_ranks[step.max_rank] == of_ranks.max() > 0
        mine = own[own["class"].isin(OWN) & (own["rank"] == step.max_rank)]["loss_ns"].sum()
        assert step.max_rank_loss_ns == round(mine)


def test_the_run(lake: "jitter.Lake", rows: pd.DataFrame):
    found = lake.diagnose()
    assert found.loss.ns == sum(step.loss_ns or 0 for step in found.steps)
    assert sum(share.ns for share in found.split) == found.loss.ns
    for share in found.split:
        own = rows[rows["class"] == share.loss_class]
        assert share.ns == pytest.approx(own["loss_ns"].sum(), abs=len(own) + 1)
        for one in share.ranks:
            assert one.ns == pytest.approx(own[own["rank"] == one.rank]["loss_ns"].sum(), abs=len(found.steps))


def test_findings(lake: "jitter.Lake", rows: pd.DataFrame):
    found = lake.diagnose()
    for culprit in found.culprits:
        assert culprit.loss_ns == pytest.approx(charged_to(culprit, rows), abs=2)
        assert found.loss.ns is not None
        assert culprit.loss_ns <= found.loss.ns
        assert culprit.gain_ns <= found.loss.ns


def charged_to(culprit: Culprit, rows: pd.DataFrame) -> float:
    """Return what the rows of a finding add up to."""
    steps = [key.step for key in culprit.steps]
    own = rows[rows["class"].isin(CLASSES[culprit.cause]) & rows["origin_step"].isin(steps)]
    if culprit.cause == "communication":
        return float(own[[set(ranks) <= set(culprit.ranks) for ranks in own["ranks"]]]["loss_ns"].sum())
    if culprit.cause == "cpu_after":  # after the last launch, or before the end of the marker: at the next start
        own = own[own["class"].isin(["start", "after"])]
    return float(own[own["rank"].isin(culprit.ranks)]["loss_ns"].sum())


def test_ranks_that_are_equally_late_have_equal_shares(tmp_path: Path):
    shape, faults = JOBS["two ranks that are equally late"]
    run = simulate(small(shape, ranks=8, steps=7), [Fault.parse(fault) for fault in faults])
    found = ingest_run(run, tmp_path).diagnose()
    late = [one for one in found.culprits if one.cause == "late_start"]
    assert sorted(rank for one in late for rank in one.ranks) == [1, 6]
    assert found.loss.ns is not None
    shares = {one.rank: one.ns for share in found.split for one in share.ranks if share.loss_class == "start"}
    assert shares[1] == pytest.approx(shares[6], rel=0.05)
    assert shares[1] + shares[6] >= 0.9 * found.loss.ns
