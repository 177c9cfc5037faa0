"""A job with slow transfers against the same job without: what it gains, and where."""

import pytest

import jitter
from jitter.comparison.model import comparison_document
from jitter.comparison.runs import load_run
from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    job = Job(ranks=8, steps=6, kernels=300, seed=3)
    made = {}
    for name, faults in (("slow", [Fault.parse("slow_collective:factor=6")]), ("usual", [])):
        lake = ingest_run(simulate(job, faults), tmp_path_factory.mktemp(name), "nsys", layout="2026.2")
        made[name] = load_run(lake)
    return made


def test_the_gain_is_that_of_communication(documents):
    found = comparison_document(jitter.compare(documents["slow"], documents["usual"]))
    assert found["verdict"] == "faster"
    assert found["step_time"]["base_ns"] == pytest.approx(14.27e6, abs=0.01e6)
    assert found["step_time"]["new_ns"] == pytest.approx(11.11e6, abs=0.01e6)
    assert found["step_time"]["fraction"] == pytest.approx(-0.221, abs=0.001)
    parts = {part["part"]: part for part in found["split"]}
    # short transfers hide less of what GPUs differ by: jitter, and no difference of the usual step
    assert parts["gpu"]["usual_ns"] == pytest.approx(0, abs=0.02e6)
    assert parts["transfer"]["difference_ns"] == pytest.approx(found["step_time"]["difference_ns"], rel=0.05)


def test_bandwidth_by_size(documents):
    found = comparison_document(jitter.compare(documents["slow"], documents["usual"]))
    bandwidth = {one["size_bytes"]: one for one in found["collectives"]}
    assert bandwidth.keys() == {26_214_400, 6_553_600}
    for size, base, new in ((26_214_400, 30.3, 182.0), (6_553_600, 21.4, 128.5)):
        assert bandwidth[size]["base_busbw"] == pytest.approx(base, abs=0.05)
        assert bandwidth[size]["new_busbw"] == pytest.approx(new, abs=0.05)
        assert bandwidth[size]["ratio"] == pytest.approx(6.0, abs=0.01)


def test_the_other_way_round_is_the_loss(documents):
    found = comparison_document(jitter.compare(documents["usual"], documents["slow"]))
    assert found["verdict"] == "slower"
    assert found["kernels"][0]["kernel_name"].startswith("nccl")
    assert "communication (network)" in found["sentence"]
