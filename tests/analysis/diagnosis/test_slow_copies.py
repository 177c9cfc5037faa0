"""Copies between host and GPU that take longer on one rank: no slow GPU, and no other share of the work."""

from pathlib import Path

import pytest

from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small, true_gain_ns


@pytest.mark.parametrize("form", ["kineto", "nsys"])
def test_slow_copies_are_named_and_priced(tmp_path: Path, form: str):
    slow = Fault.parse("slow_copies:rank=2,factor=300")
    run = simulate(small("data_parallel", ranks=6, steps=6), [slow])
    (culprit,) = ingest_run(run, tmp_path, form).diagnose().culprits
    assert (culprit.ranks, culprit.cause) == ((2,), "slow_copies")
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, slow), rel=0.05)
    assert any("in copies between host and GPU" in line for line in culprit.evidence)
