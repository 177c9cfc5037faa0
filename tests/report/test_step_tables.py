"""The tables of a step: the rows of the lake's own tables, and the ranks that are kept of many."""

import pytest

from jitter.analysis.metrics.communication import SHARES
from jitter.lake import step_reader
from jitter.report.page import render_html
from jitter.report.views import run_report as module
from jitter.report.views.run_report import RunReport, build_step_tables
from tests.support.page import Text, page_data
from tests.support.report_lakes import report_job


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return report_job(tmp_path_factory.mktemp("tables") / "lake", ranks=5, steps=3)


def test_each_rank_has_its_step_by_part(lake):
    tables = build_step_tables(lake, lake.step_keys[1])
    assert [row["rank"] for row in tables.ranks] == [0, 1, 2, 3, 4]
    assert [row["host"] for row in tables.ranks] == ["node0", "node0", "node1", "node1", "node2"]
    for row in tables.ranks:
        assert sum(row[f"{part}_ns"] for part in SHARES) == row["step_ns"]
    assert tables.ranks_left_out == 0


def test_a_section_reads_the_rows_of_its_metrics_and_tables_once(lake, monkeypatch):
    page, key = RunReport(lake), lake.step_keys[1]
    page.view(page.grid(key))
    tables = build_step_tables(lake, key)
    read, plain = [], step_reader.read_step

    def counted(*given):
        read.append(given)
        return plain(*given)

    monkeypatch.setattr(step_reader, "read_step", counted)
    ((_, _, of_section),) = page.sections([key])
    assert len(read) == 1
    assert of_section == tables
    build_step_tables(lake, key)
    assert len(read) > 2  # nothing is kept afterwards


def test_of_many_ranks_those_that_wait_least_and_most_are_kept(lake, monkeypatch):
    whole = build_step_tables(lake, lake.step_keys[1]).ranks
    monkeypatch.setattr(module, "MAX_RANKS", 2)
    tables = build_step_tables(lake, lake.step_keys[1])
    waits = {row["rank"]: row["waiting_ns"] for row in whole}
    assert {waits[row["rank"]] for row in tables.ranks} == {min(waits.values()), max(waits.values())}
    assert tables.ranks_left_out == 3


def test_kernels_are_the_groups_that_are_recorded(lake):
    groups = build_step_tables(lake, lake.step_keys[1]).groups
    assert list(groups) == ["kernel"]  # neither operators nor phases are in these rows
    row = next(row for row in groups["kernel"] if "kernel_5<" in row["kernel"])
    durations = lake.table("duration", step=1).iloc[5]
    assert row["max_ns"] == max(durations[f"rank_{rank}"] for rank in range(5))
    assert durations[f"rank_{row['max_rank']}"] == row["max_ns"]


def test_the_page_has_them_for_each_embedded_step(lake):
    page = render_html(lake)
    assert all("Where the time of each rank goes in this step" in step["tables"] for step in page_data(page)["steps"])
    assert len(page_data(page)["steps"]) == 3
    assert "Time by kernel in this step, across ranks" in Text(page).all
