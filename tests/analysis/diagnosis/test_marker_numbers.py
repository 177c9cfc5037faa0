"""A rank whose markers state more work than the others' has more work."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import jitter
from jitter.simulate import Fault, Job, simulate, write


@pytest.mark.parametrize(("batch", "cause"), [("800_8", "workload_imbalance"), ("640_8", "gpu_compute")])
def test_a_larger_batch(tmp_path: Path, batch: str, cause: str):
    """A GPU that runs the same kernels more slowly: a fault of the GPU, unless its markers state a larger batch."""
    fault = Fault.parse("slow_gpu:rank=2,factor=1.3")
    write(simulate(Job(ranks=6, steps=8, kernels=60, seed=3), [fault]), tmp_path / "traces", "nsys")
    with closing(sqlite3.connect(tmp_path / "traces" / "rank2.sqlite")) as connection:
        connection.execute("UPDATE NVTX_EVENTS SET text = replace(text, '640_8', ?)", [batch])
        connection.execute("UPDATE StringIds SET value = replace(value, '640_8', ?) WHERE value LIKE '%step%'", [batch])
        connection.commit()
    jitter.ingest(tmp_path / "traces", tmp_path / "lake", executor=jitter.LocalExecutor())
    lake = jitter.open(tmp_path / "lake")
    culprit = lake.diagnose().culprits[0]
    assert (culprit.ranks, culprit.cause) == ((2,), cause)
    told = [text for text in culprit.evidence if "markers state" in text]
    if cause == "workload_imbalance":
        assert told == ["its step markers state more work: number 1 is 800 against 640 on the other ranks"]
        rows = lake.sql(
            "select distinct rank, value from marker_numbers where position = 0 order by rank", arrow=True
        ).to_pylist()
        assert [row["value"] for row in rows] == [640, 640, 800, 640, 640, 640]
    else:
        assert told == []
