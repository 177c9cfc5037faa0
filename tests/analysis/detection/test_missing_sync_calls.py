"""Recordings without synchronising calls: they are noticed, and do not clear the rank to blame."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import jitter
from jitter.analysis.detection.communication.missing_sync_calls import follows_gpu

SAMPLE = Path(__file__).parents[3] / "data" / "sample"
US = 1_000.0


def test_launches_that_follow_the_gpu():
    idle = np.array([[1500, 1900, 1480, 2650.0]]) * US
    assert follows_gpu(idle, np.array([[90, 97, 101, 85.0]]) * US).tolist() == [True]
    # the host takes as long whatever the GPU does
    assert follows_gpu(idle, 3000 * US - idle).tolist() == [False]
    # once the launch is before the GPU's end
    assert follows_gpu(idle, np.array([[90, 97, -101, 85.0]]) * US).tolist() == [False]
    # too few launches are known
    assert follows_gpu(np.where(idle > 1490 * US, idle, np.nan), np.full((1, 4), 90 * US)).tolist() == [False]


def test_hosts_that_are_sometimes_busy_after_the_wait():
    """One launch of eight comes 8 ms late, since the host loads data then: the others follow the GPU."""
    idle = np.array([[1500, 1900, 1480, 2650, 1500, 1910, 9700, 1520.0]]) * US
    late = np.array([[90, 97, 101, 85, 93, 8000, 88, 95.0]]) * US
    assert follows_gpu(idle, late).tolist() == [True]
    late[0, :3] = 8000 * US  # half of them tell nothing
    assert follows_gpu(idle, late).tolist() == [False]


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    """The sample without its synchronising calls."""
    folder = tmp_path_factory.mktemp("without")
    for source in SAMPLE.glob("*.sqlite"):
        export = folder / source.name
        shutil.copyfile(source, export)
        with closing(sqlite3.connect(export)) as database:
            database.execute(
                "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE nameId IN "
                "(SELECT id FROM StringIds WHERE value LIKE '%ynchroni%')"
            )
            database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION")
            database.commit()
    root = tmp_path_factory.mktemp("lakes") / "lake"
    assert jitter.ingest([folder], root, executor=jitter.LocalExecutor()).refused == []
    return jitter.open(root)


def test_the_rank_to_blame_is_named_with_low_confidence(without: "jitter.Lake"):
    found = without.diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause, culprit.confidence) == ((5,), "cpu_launch", "low")
    assert culprit.gain_ns == pytest.approx(1_159_365, rel=0.05)
    assert all(step.loss_ns is None or step.loss_ns >= 0 for step in found.steps)
    assert "Synchronising calls were not recorded" in " ".join(found.notes)
    assert "Synchronising calls were not recorded" in " ".join(found.conclusion.doubts)
