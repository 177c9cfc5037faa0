"""The live page of a run of which nothing can be drawn: it says so."""

from jitter.report.live.served_run import ServedRun
from jitter.report.views.run_report import RunReport
from tests.support.live_page import open_page, settle
from tests.support.report_lakes import report_lake, step_rows


def test_no_rank_recorded_a_step_whole(tmp_path):
    rows = {r: {(1, 0): [row for row in step_rows(r, 0) if row["kind"] != "collective"]} for r in range(2)}
    run = ServedRun(RunReport(report_lake(tmp_path / "lake", rows, cut=[(0, 0), (1, 0)])))
    run.prepare()
    document = open_page(run)
    told = document.get_model_by_name("told")
    assert run.first is None
    assert "There is nothing to draw" in told.data["body"][0]
    document.get_model_by_name("wanted").data = {"number": [1], "place": ["0"], "ranks": [""]}
    settle(document)
    assert "there is no such step" in told.data["problem"][0]
