"""A live page while its run is prepared: progress, then the findings, then the whole; and how many there may be."""

from pathlib import Path

import pytest
from markupsafe import escape

import jitter
from jitter.cli import main
from jitter.report.live.loading import STAGES, Loading
from jitter.report.live.served_run import ServedRun
from jitter.report.live.session import MAX_SESSIONS
from jitter.report.live.timeline_download import write_finding
from jitter.report.views.run_report import RunReport
from tests.support.live_page import open_page

SAMPLE = Path(__file__).parents[2] / "data" / "sample"


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    root = tmp_path_factory.mktemp("loading") / "lake"
    assert main(["ingest", str(SAMPLE), "-o", str(root), "--quiet"]) == 0
    return jitter.open(root)


def told(document):
    return {name: values[0] for name, values in document.get_model_by_name("told").data.items()}


def poll(document):
    (callback,) = document.session_callbacks
    callback.callback()
    return told(document)


def test_a_page_shows_progress_then_findings_then_loads_again(lake):
    run = ServedRun(RunReport(lake))
    document = open_page(run)
    assert told(document) == {"body": "", "loading": f"{STAGES[0]}", "fraction": 0.0, "ready": False}
    run.loading.enter("reading the costliest step")
    shown = poll(document)
    assert escape(lake.diagnose().verdict) in shown["body"]
    assert "figures-profile" not in shown["body"]
    assert not shown["ready"]
    assert poll(document)["body"] == ""  # sent once
    run.prepare()
    assert poll(document)["ready"]
    assert "figures-profile" in told(open_page(run))["body"]


def test_progress_only_grows():
    loading, seen = Loading(), []
    for stage in STAGES:
        loading.enter(stage)
        seen.append(loading.fraction)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_pages_are_bounded(lake):
    run = ServedRun(RunReport(lake))
    run.prepare()
    run.sessions = MAX_SESSIONS
    document = open_page(run)
    assert "which is the limit" in told(document)["body"]
    assert len(document.roots) == 1
    for closed in document.callbacks.session_destroyed_callbacks:
        closed(None)
    assert run.sessions == MAX_SESSIONS


def test_an_error_while_preparing_is_kept_for_the_thread_that_serves(lake):
    run, stopped = ServedRun(RunReport(lake)), []
    run._costliest_whole = lambda: 1 / 0
    run.prepare_on_thread(lambda: stopped.append(True)).join()
    assert isinstance(run.loading.failure, ZeroDivisionError)
    assert stopped == [True]


def test_the_timeline_of_a_finding_holds_its_step_and_ranks(lake):
    asked = []

    def write(path, step, ranks):
        asked.append((step.step, list(ranks)))
        path.write_bytes(b"timeline")

    assert write_finding(RunReport(lake), 1, write) == b"timeline"
    ((step, ranks),) = asked
    assert step == 2003
    assert ranks[0] == 5
    assert write_finding(RunReport(lake), 2, write) is None
    assert write_finding(RunReport(lake), 0, write) is None
