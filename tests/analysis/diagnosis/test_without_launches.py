"""Traces without launches: an idle GPU waits for its host, and is not said to execute its kernels slowly."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import jitter
from jitter.simulate import Fault, simulate, write
from tests.support.simulated import small

SAMPLE = Path(__file__).parents[3] / "data" / "sample"


def without_launches(exports: Path, root: Path) -> "jitter.Lake":
    """Return the lake of the Nsight exports in a folder, whose host calls are removed."""
    for export in exports.glob("*.sqlite"):
        with closing(sqlite3.connect(export)) as database:
            database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME")
            database.commit()
    assert jitter.ingest([exports], root, executor=jitter.LocalExecutor()).refused == []
    return jitter.open(root)


def test_late_launches_of_the_sample(tmp_path: Path):
    shutil.copytree(SAMPLE, tmp_path / "sample", ignore=lambda _, names: [n for n in names if ".sqlite" not in n])
    found = without_launches(tmp_path / "sample", tmp_path / "lake").diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause) == ((5,), "cpu_launch")
    assert culprit.gain_ns == pytest.approx(1_159_365, rel=0.05)
    assert "no launches were recorded: an idle GPU is taken to wait for its host" in culprit.evidence
    assert any(note.startswith("Launches were not recorded") for note in found.notes)
    shares = {share.loss_class: share.ns for share in found.split}
    assert shares["launch"] > 5 * shares["gpu"]


@pytest.mark.parametrize(
    ("fault", "causes"),
    [
        ("slow_gpu:rank=2,factor=1.5", {"gpu_compute"}),
        ("slow_cpu:rank=2,factor=4", {"cpu_launch"}),
        # kernels count for the step in which they start: the last of a step may be the first of the next one
        ("late_start:rank=2,ms=4", {"late_start", "cpu_launch"}),
    ],
)
def test_causes_are_told_apart(tmp_path: Path, fault: str, causes: set[str]):
    write(simulate(small(ranks=6, steps=6), [Fault.parse(fault)]), tmp_path / "traces", "nsys")
    found = without_launches(tmp_path / "traces", tmp_path / "lake").diagnose()
    assert [culprit.ranks for culprit in found.culprits] == [(2,)]
    assert {culprit.cause for culprit in found.culprits} <= causes
    # an idle GPU is taken to wait for its host, which is no recorded fact; the time of a kernel is one
    of_host = [one for one in found.culprits if one.cause != "gpu_compute"]
    assert "high" not in {one.confidence for one in of_host}
