"""One kernel on each rank over the steps: the values of the lake's own tables."""

import numpy as np
import pytest

from jitter.core.errors import UsageError
from jitter.report.notebook import Figures
from jitter.report.views import kernel_durations as module
from jitter.report.views.run_report import RunReport
from tests.support.report_lakes import report_job, report_lake, step_rows


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return report_job(tmp_path_factory.mktemp("durations") / "lake", ranks=5, steps=3)


def test_durations_are_the_tables(lake):
    report = RunReport(lake)
    durations = report.durations(report.grid(lake.step_keys[1]))
    assert durations.kernel_index == tuple(range(14))
    for at, key in enumerate(lake.step_keys):
        table = lake.table("duration", step=key)
        assert list(durations.names) == list(table["kernel_name"])
        for row, rank in enumerate(durations.ranks):
            np.testing.assert_array_equal(durations.duration_ns[:, row, at], table[f"rank_{rank}"].astype(float))


def test_a_step_that_a_rank_lacks_is_unknown(tmp_path):
    ranks = {r: {(1, s): step_rows(r, s) for s in range(4)} for r in range(3)}
    del ranks[1][1, 2]
    lake = report_lake(tmp_path / "lake", ranks)
    report = RunReport(lake)
    durations = report.durations(report.grid(lake.step_keys[0]), [3])
    (own,) = np.isnan(durations.duration_ns)
    assert np.argwhere(own).tolist() == [[1, 2]]


def test_of_many_kernels_those_where_ranks_differ_most_are_kept(lake, monkeypatch):
    monkeypatch.setattr(module, "MAX_VALUES", 2 * 5 * 3)
    report = RunReport(lake)
    assert 5 in report.durations(report.grid(lake.step_keys[1])).kernel_index  # rank 2 is late there
    assert len(report.durations(report.grid(lake.step_keys[1])).kernel_index) == 2


def test_the_figure_of_a_kernel(lake):
    drawn = Figures(lake).kernel(5, 1)
    (source,) = drawn.select({"name": "strip"})
    table = lake.table("duration", step=1)
    own = [took for took, rank, step in zip(*(source.data[name] for name in ("took", "rank", "step")), strict=True)
           if (rank, step) == (3, "1")]  # fmt: skip
    assert own == [table["rank_3"][5]]
    with pytest.raises(UsageError, match="has no kernel 99"):
        Figures(lake).kernel(99, 1)
