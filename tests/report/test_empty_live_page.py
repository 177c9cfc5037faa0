"""The live page of a run of which nothing can be drawn: it says so."""

from bokeh.document import Document

from jitter.report.live.served_run import ServedRun
from jitter.report.live.session import ReportSession
from jitter.report.views.run_report import RunReport
from tests.support.report_lakes import report_lake, step_rows


def test_no_rank_recorded_a_step_whole(tmp_path):
    rows = {r: {(1, 0): [row for row in step_rows(r, 0) if row["kind"] != "collective"]} for r in range(2)}
    run, document = ServedRun(RunReport(report_lake(tmp_path / "lake", rows, cut=[(0, 0), (1, 0)]))), Document()
    run.prepare()
    ReportSession(run, document).open()
    told = document.get_model_by_name("told")
    assert run.first is None
    assert "There is nothing to draw" in told.data["body"][0]
    document.get_model_by_name("wanted").data = {"number": [1], "place": ["0"], "ranks": [""]}
    for callback in list(document.session_callbacks):
        document.remove_next_tick_callback(callback)
        callback.callback()
    assert "there is no such step" in told.data["problem"][0]
