"""Share of time per stream: against the rows of the lake, on the page with both ranks, without a max rank."""

from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.report.html import render_html
from jitter.report.views.run_report import RunReport
from jitter.report.views.step_view import KernelNames
from jitter.report.views.stream_shares import build_stream_shares
from tests.support.page import Text
from tests.support.report_lakes import report_job

SAMPLE = Path(__file__).parents[2] / "data" / "sample"


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    root = tmp_path_factory.mktemp("streams") / "lake"
    assert main(["ingest", str(SAMPLE), "-o", str(root), "--quiet"]) == 0
    return jitter.open(root)


def test_shares_are_those_of_the_rows(lake):
    key = lake.step_keys[3]
    rows = lake.sql(
        "select rank, stream, sum(duration_ns)::bigint as ns from kernels "
        f"where step = {key.step} group by rank, stream",
        arrow=True,
    ).to_pylist()
    whole = {rank: sum(row["ns"] for row in rows if row["rank"] == rank) for rank in lake.ranks}
    expected = {(row["rank"], row["stream"]): (row["ns"], row["ns"] / whole[row["rank"]]) for row in rows}
    found = build_stream_shares(lake, key, 5, 2)
    assert {one.stream for one in found} == {stream for _, stream in expected}
    for one in found:
        for share in (one.max_rank, one.min_rank, one.least, one.most):
            assert (share.ns, share.fraction) == pytest.approx(expected[share.rank, one.stream])
        assert (one.max_rank.rank, one.min_rank.rank) == (5, 2)
        of_stream = [fraction for (_, stream), (_, fraction) in expected.items() if stream == one.stream]
        assert (one.least.fraction, one.most.fraction) == pytest.approx((min(of_stream), max(of_stream)))
    assert sum(one.max_rank.fraction for one in found) == pytest.approx(1)


def test_the_page_draws_max_rank_against_min_rank(lake):
    report = RunReport(lake)
    _, section = report.read(report.diagnosis.costliest.key, KernelNames())
    text = Text(render_html(lake)).all
    assert f"Share of time per stream: {section.max_rank} against {section.min_rank}" in text
    main_stream = section.streams[0]
    assert f"{100 * main_stream.max_rank.fraction:.1f}%" in text
    assert f"{100 * main_stream.min_rank.fraction:.1f}%" in text


def test_a_single_rank_has_shares_without_a_max_rank(tmp_path):
    lake = report_job(tmp_path / "lake", ranks=1, steps=1, late=(0, 0, 3, 10_000))
    (one, *_) = build_stream_shares(lake, lake.step_keys[0], None, None)
    assert (one.max_rank, one.min_rank) == (None, None)
    assert one.least == one.most
    assert "Share of time per stream: rank 0" in Text(render_html(lake)).all
