"""The map of excess against looking at every cell by itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitter.analysis.execution.self_times import CPU
from jitter.report.notebook import Figures
from jitter.report.views import excess_heatmap as module
from jitter.report.views.excess_heatmap import LOSS_LAYER, arrange_heatmap, build_excess_heatmap, self_time_layer
from tests.support.report_lakes import report_job, report_lake, step_rows

values = st.one_of(st.just(float("nan")), st.integers(-9, 9).map(float))


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 11),
    st.lists(st.sampled_from(["a", "b", None]), min_size=9, max_size=9),
    st.lists(values, min_size=99, max_size=99),
)
def test_every_cell_is_the_highest_of_its_ranks_and_steps(ranks, steps, hosts, drawn_values):
    ns = np.array(drawn_values[: ranks * steps]).reshape(ranks, steps)
    there = ~np.isnan(ns)
    names = [3 * rank + 1 for rank in range(ranks)]
    host_of = dict(zip(names, hosts, strict=False))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_ROWS", 4)
        patch.setattr(module, "MAX_COLUMNS", 3)
        drawn = arrange_heatmap(names, host_of, {"x": ("x", ns)}, there, 2.0)
    assert sorted(rank for row in drawn.rows for rank in row) == names
    assert len(drawn.rows) <= 4
    assert len(drawn.columns) <= 3
    assert [at for first, last in drawn.columns for at in range(first, last + 1)] == list(range(steps))
    order = [host for at, host in enumerate(drawn.hosts) if at == 0 or host != drawn.hosts[at - 1]]
    assert len(order) == len(set(order))  # a host's rows lie together
    (layer,) = drawn.layers
    holes = {(row, column) for row, first, last in drawn.holes for column in range(first, last + 1)}
    for row, own in enumerate(drawn.rows):
        assert len({host_of[rank] for rank in own}) == 1
        for column, (first, last) in enumerate(drawn.columns):
            block = {(rank, at): ns[names.index(rank), at] for rank in own for at in range(first, last + 1)}
            known = {where: value for where, value in block.items() if value == value}
            assert ((row, column) in holes) is (not known)
            if known:
                assert layer.excess_ns[row, column] == max(known.values())
                assert known[layer.rank[row, column], layer.step[row, column]] == max(known.values())
            else:
                assert np.isnan(layer.excess_ns[row, column])
    positive = [value for value in ns.ravel().tolist() if value > 0]
    if positive:
        rank, at, highest = layer.most
        assert highest == max(positive) == ns[names.index(rank), at]
    else:
        assert layer.most is None
    assert layer.low_ns == pytest.approx(0.006)
    assert layer.high_ns == max([0.04, *positive])


def test_cells_without_a_share_have_their_own_excess(tmp_path):
    drawn = build_excess_heatmap(lake := report_job(tmp_path / "lake"), lake.analyze())
    assert drawn.layers[0].shows_loss
    off = np.isnan(drawn.layers[0].excess_ns)
    assert off.any()
    assert not np.isnan(drawn.own.excess_ns[off]).any()
    parts = lake.analyze().deviations[0].total_ns
    np.testing.assert_allclose(drawn.own.excess_ns, np.nanmax(parts, axis=0).T, rtol=1e-6)


def test_a_cell_is_what_the_step_lost_to_the_rank(tmp_path):
    lake = report_job(tmp_path / "lake")
    examined = lake.analyze()
    drawn = build_excess_heatmap(lake, examined)
    assert drawn.layers[0].name == LOSS_LAYER
    assert drawn.rows == ((0,), (1,), (2,), (3,))
    assert drawn.hosts == ("node0", "node0", "node1", "node1")
    rows = lake.losses()
    rows = rows[rows["class"].isin(["start", "launch", "after", "gpu"])]
    for number, key in enumerate(examined.keys):
        for row, (rank,) in enumerate(drawn.rows):
            own = rows[(rows["step"] == key.step) & (rows["rank"] == rank)]["loss_ns"]
            cell = drawn.layers[0].excess_ns[row, number]
            if np.isfinite(examined.step_ns[number]):
                shown = own.sum() >= 0.003 * examined.usual_step_ns
                assert cell == pytest.approx(own.sum(), rel=1e-6) if shown else np.isnan(cell)
    assert drawn.layers[0].most[:2] == (2, 1)
    assert drawn.layers[0].most[2] == pytest.approx(400_000, abs=1500)  # the others differ by 40 ns a kernel at most


def test_own_time_is_that_of_the_deviations(tmp_path):
    lake = report_job(tmp_path / "lake")
    examined = lake.analyze()
    drawn = build_excess_heatmap(lake, examined, self_time_layer(CPU))
    assert drawn.layers[0].name == self_time_layer(CPU)
    (team,) = examined.deviations
    np.testing.assert_allclose(drawn.layers[0].excess_ns, team.total_ns[CPU].T, rtol=1e-6)


def test_a_missing_step_is_a_hole(tmp_path):
    ranks = {r: {(1, s): step_rows(r, s) for s in range(4)} for r in range(3)}
    del ranks[1][1, 2], ranks[1][1, 3]
    lake = report_lake(tmp_path / "lake", ranks)
    drawn = build_excess_heatmap(lake, lake.analyze())
    assert list(drawn.holes) == [(1, 2, 3)]


def test_one_rank_has_no_map(tmp_path):
    lake = report_job(tmp_path / "lake", ranks=1, steps=2, late=(0, 0, 3, 10_000))
    assert build_excess_heatmap(lake, lake.analyze()) is None


@pytest.mark.parametrize(("per_host", "lines"), [(2, 3), (1, 0)])
def test_lines_between_hosts_only_where_hosts_have_several_rows(tmp_path, per_host, lines):
    ranks = {rank: {(1, step): step_rows(rank, step) for step in range(2)} for rank in range(8)}
    lake = report_lake(tmp_path / "lake", ranks, host=lambda rank: f"node{rank // per_host}")
    (source,) = Figures(lake).run().select({"name": "host-borders"})
    assert len(source.data["y"]) == lines
