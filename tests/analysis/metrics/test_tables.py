"""One metric of one step as a table: every cell by hand."""

import pytest

from tests.support.lakes import RankLake, collective, kernel, lake_of


def durations(*of: tuple[str, int]) -> list[dict]:
    """Kernels one behind the other, by name and duration."""
    return [kernel(name, 10_000 * (n + 1), 10_000 * (n + 1) + took) for n, (name, took) in enumerate(of)]


def lines(table, *columns: str) -> list[tuple]:
    """The table's rows, null as None."""
    names = ["kernel_index", "kernel_name", *columns]
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def told(lake, step: int, **more) -> list[tuple]:
    table = lake.table("duration", step, **more, arrow=True)
    return lines(table, *table.column_names[2:])


def test_of_two_stages_each_has_its_own_ranks_only(tmp_path):
    """The stages' ranks stand in turns, and the last to write is never of the stage asked for."""
    steps = {
        0: durations(("embed", 10), ("gemm", 20)),
        1: durations(("head", 100), ("loss", 200)),
        2: durations(("embed", 12), ("gemm", 24)),
        3: durations(("head", 104), ("loss", 208)),
    }
    group = {0: [0, 2], 1: [1, 3], 2: [0, 2], 3: [1, 3]}
    ranks = [
        RankLake(rank, {(None, 0): [*rows, collective("ncclAllReduce", 50_000, 60_000, group_ranks=group[rank])]})
        for rank, rows in steps.items()
    ]
    lake = lake_of(tmp_path / "lake", ranks)
    assert told(lake, 0, cohort=0)[:2] == [(0, "embed", 11.0, 10, 12), (1, "gemm", 22.0, 20, 24)]
    assert told(lake, 0, cohort=1)[:2] == [(0, "head", 102.0, 100, 104), (1, "loss", 204.0, 200, 208)]


def test_what_only_one_rank_ran_at_its_end_is_in_no_cell(tmp_path):
    usual = [("a", 10), ("b", 20)]
    steps = [durations(*usual), durations(*usual, ("debug", 999)), durations(*usual)]
    lake = lake_of(tmp_path / "lake", [RankLake(rank, {(None, 0): rows}) for rank, rows in enumerate(steps)])
    assert told(lake, 0) == [(0, "a", 10.0, 10, 10, 10), (1, "b", 20.0, 20, 20, 20)]


def test_the_mean_of_one_is_its_value_and_of_none_is_none(tmp_path):
    alone = lake_of(tmp_path / "alone", [RankLake(0, {(None, 0): durations(("a", 10), ("b", 20))})])
    assert told(alone, 0) == [(0, "a", 10.0, 10), (1, "b", 20.0, 20)]
    both = [("a", 10), ("b", 20), ("c", 30)]
    steps = [durations(*both), durations(*both), durations(both[0], both[2])]
    lake = lake_of(tmp_path / "lake", [RankLake(rank, {(None, 0): rows}) for rank, rows in enumerate(steps)])
    assert told(lake, 0)[1] == (1, "b", 20.0, 20, 20, None)
    assert told(lake, 0, ranks=[1, 2]) == [(0, "a", 10.0, 10, 10), (1, "b", 20.0, 20, None), (2, "c", 30.0, 30, 30)]


@pytest.mark.parametrize("deviation", [False, True])
def test_of_a_step_cut_short_by_all_what_nobody_ran_has_no_row(tmp_path, deviation):
    """The usual step tells the kernels' numbers, and the step has some of them."""
    whole = [("a", 10), ("b", 20), ("c", 30), ("d", 40)]
    ranks = [
        RankLake(
            rank,
            {(None, 0): durations(*whole), (None, 1): durations(("a", 10 + 4 * rank), ("b", 20), ("d", 40 + rank))},
            cut={(None, 1)},
        )
        for rank in range(2)
    ]
    lake = lake_of(tmp_path / "lake", ranks)
    if deviation:
        assert told(lake, 1, deviation=True) == [
            (0, "a", 12.0, -2.0, 2.0),
            (1, "b", 20.0, 0.0, 0.0),
            (3, "d", 40.5, -0.5, 0.5),
        ]
    else:
        assert told(lake, 1) == [(0, "a", 12.0, 10, 14), (1, "b", 20.0, 20, 20), (3, "d", 40.5, 40, 41)]
