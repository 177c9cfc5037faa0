"""Recordings without synchronising calls: the waits are inferred, and the prices stay."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import jitter
from jitter.report.json_report import report_document
from jitter.report.views.run_overview import build_run_overview

SAMPLE = Path(__file__).parents[3] / "data" / "sample"


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


def test_the_culprit_has_the_price_that_it_has_with_its_calls(without: "jitter.Lake"):
    found = without.diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause) == ((5,), "cpu_launch")
    assert culprit.gain_ns == pytest.approx(1_159_365, rel=0.05)
    assert "Hosts wait for their GPU at 1 place" in " ".join(found.notes)


def test_the_wait_and_its_fit_are_dependencies(without: "jitter.Lake"):
    (wait,) = [one for one in without.dependencies() if one.provenance == "inferred"]
    assert (wait.ordinal, wait.kind, wait.steps_back) == (0, "sync", 1)
    assert wait.spread_ns is not None
    assert wait.spread_ns < 50_000


def test_the_report_states_the_fit_and_each_range(without: "jitter.Lake"):
    document = report_document(without.diagnose(), build_run_overview(without, without.step_keys))
    assert document["run"]["unexplained_fraction"] == 0
    assert all("gain_range_ns" in one for one in document["culprits"])
    json.dumps(document)
