"""Ranks that waited in a step's collectives and the ranks they waited for, against reading the rows one by one."""

from dataclasses import replace

import numpy as np
import pytest

from jitter.report.text.step_text import describe_step
from tests.support.report_lakes import report_job, report_lake, step_rows, view_of


def test_all_wait_for_the_late_one(tmp_path):
    lake = report_job(tmp_path / "lake")
    rows = [row for row in lake.metrics(1).rows.to_pylist() if row["kind"] == "collective"]
    took = {row["rank"]: row["duration_ns"] for row in rows}
    met = view_of(lake).collectives
    assert met.kernel_index.tolist() == [12]
    assert met.operation == ("all_reduce",)
    assert met.last.tolist() == [2] == [min(took, key=took.get)]
    assert met.waiter.tolist() == [max(took, key=took.get)]
    assert met.waited_ns.tolist() == [max(took.values()) - min(took.values())]
    assert met.least_ns.tolist() == met.most_ns.tolist() == [took[2]]
    transfers = sorted(
        min(row["duration_ns"] for row in lake.metrics(step).rows.to_pylist() if row["kind"] == "collective")
        for step in range(3)
    )
    assert met.usual_ns.tolist() == [transfers[1]]
    assert not met.sized


def test_groups_wait_by_themselves(tmp_path):
    ranks = {
        r: {(1, s): step_rows(r, s, late={5: 400_000} if (r, s) == (2, 1) else None) for s in range(3)}
        for r in range(4)
    }
    for rank, steps in ranks.items():
        for rows in steps.values():
            for row in rows:
                if row["kind"] == "collective":
                    row |= {
                        "group_ranks": [0, 1] if rank < 2 else [2, 3],
                        "group_size": 2,
                        "message_bytes": 1000 + rank,
                    }
    lake = report_lake(tmp_path / "lake", ranks)
    took = {r["rank"]: r["duration_ns"] for r in lake.metrics(1).rows.to_pylist() if r["kind"] == "collective"}
    met = view_of(lake).collectives
    assert met.kernel_index.tolist() == [12]
    assert (met.waiter.tolist(), met.last.tolist()) == ([3], [2])
    assert met.waited_ns.tolist() == [took[3] - took[2]]
    least = [min(took[0], took[1]), min(took[2], took[3])]
    assert (met.least_ns.tolist(), met.most_ns.tolist()) == ([min(least)], [max(least)])
    slow = (0, 1) if least[0] > least[1] else (2, 3)
    assert met.bytes.tolist() == [1000 + min(slow, key=lambda rank: took[rank])]
    assert met.sized


def words_of(lake, view, number=1):
    return describe_step(lake.diagnose().steps[number], view, lake.hosts, 1).waits


def test_waits_that_count_are_lines_and_short_ones_are_added_up(tmp_path):
    view = view_of(report_job(tmp_path / "lake", late=(2, 1, 5, 4_000_000)))
    assert view.waits == (0,)
    lake = report_job(tmp_path / "quiet", late=(2, 1, 5, 400_000))
    quiet = view_of(lake)
    assert quiet.collectives.waited_ns[0] < 0.01 * 50_000_000
    assert quiet.waits == ()
    said = "1 collective; no rank waited long in any of them"
    assert words_of(lake, quiet) == f"{said}; all waits of one rank together: up to 400 µs (0.80% of the step)."
    assert words_of(lake, replace(quiet, waited_ns=0.0)) == f"{said}."


def test_no_collective(tmp_path):
    lake = report_lake(tmp_path / "lake", {r: {(None, 0): step_rows(r, 0, collective=False)} for r in range(3)})
    view = view_of(lake, 0)
    assert view.collectives.kernel_index.size == 0
    assert view.collectives.waited_ns.shape == (0,)
    assert words_of(lake, view, 0) == "This step has no collectives."
    # what was recorded is not denied
    unplaced = words_of(lake, replace(view, recorded_collectives=1), 0)
    assert unplaced == "1 collective without a kernel index; waiting there is unknown."


@pytest.mark.parametrize("extra", [0, 3])
def test_kernel_indices_hold_where_a_rank_runs_more(tmp_path, extra):
    ranks = {r: {(1, s): step_rows(r, s) for s in range(2)} for r in range(4)}
    for rows in ranks[0].values():
        for n in range(extra):
            start = rows[2]["end_ns"] + 100 + 50 * n
            more = rows[2] | {"kernel_name": f"odd_{n}", "start_ns": start, "end_ns": start + 10}
            rows.insert(
                3 + n, more | {"launch_start_ns": rows[2]["launch_start_ns"] + 1 + n, "launch_end_ns": start - 50}
            )
    lake = report_lake(tmp_path / "lake", ranks)
    met = view_of(lake, 1).collectives
    rows = [r for r in lake.metrics(1).rows.to_pylist() if r["kind"] == "collective"]
    assert met.kernel_index.tolist() == [12] == sorted({r["kernel_index"] for r in rows})
    took = {r["rank"]: r["duration_ns"] for r in rows}
    np.testing.assert_array_equal(met.waited_ns, [max(took.values()) - min(took.values())])
