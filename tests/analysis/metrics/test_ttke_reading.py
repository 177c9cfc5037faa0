"""The talk's reading of steps: of simulated runs with one known fault, and of steps made by hand."""

import pyarrow.parquet as pq
import pytest

import jitter
from jitter.core.errors import LakeError, UsageError
from jitter.lake.layout import kernels_file
from jitter.lake.parquet import write_kernels
from jitter.simulate import Fault, Job, simulate
from tests.support.lakes import RankLake, collective, kernel, lake_of
from tests.support.metric_assertions import assert_matches_oracle
from tests.support.simulated import ingest_run


@pytest.mark.parametrize(
    "fault",
    [
        "cpu_stall:rank=2,step=1,kernel=17,ms=3",
        "slow_gpu:rank=2,step=1,kernels=8-30,factor=4",
        "late_start:rank=2,step=1,ms=3",
    ],
)
def test_the_late_rank_is_the_max_rank(tmp_path, fault):
    run = simulate(Job(ranks=5, steps=3, kernels=60, seed=4), [Fault.parse(fault)])
    readings = ingest_run(run, tmp_path, "nsys").ttke_readings()
    assert [tuple(one.step) for one in readings] == [(1, 0), (1, 1), (1, 2)]
    assert readings[1].max_rank == 2
    assert max(readings, key=lambda one: one.magnitude_ns) is readings[1]


def by_hand(tmp_path, gaps, durations, **more):
    """Ranks whose steps are three kernels of these gaps and durations, and an all-reduce that they leave at 900000."""
    ranks = []
    for rank, (some, long) in enumerate(zip(gaps, durations, strict=True)):
        at, rows = 1_000, []
        for number, (gap, duration) in enumerate(zip(some, long, strict=True)):
            rows.append(kernel("abc"[number], at + gap, at + gap + duration))
            at += gap + duration
        rows.append(collective("ncclAllReduce", at, 900_000))
        rows.append(kernel("optimizer", 900_100, 900_100 + 50 * (rank + 1)))
        ranks.append(RankLake(rank, {(None, 4): rows}, **more))
    return lake_of(tmp_path / "lake", ranks)


def test_extremes_by_hand(tmp_path):
    lake = by_hand(
        tmp_path,
        gaps=[(0, 10, 10), (40, 10, 10), (0, 10, 500), (20, 30, 10)],
        durations=[(100, 100, 100), (100, 100, 100), (100, 100, 160), (100, 90, 100)],
    )
    (reading,) = lake.ttke_readings()
    # times to kernel end at c: 320, 360, 870, 350; the optimizer starts after the all-reduce
    assert reading.last_index == 2
    assert (reading.min_rank, reading.max_rank, reading.magnitude_ns) == (0, 2, 395.0)
    assert reading.deviation_ns == {0: -155.0, 1: -115.0, 2: 395.0, 3: -125.0}
    assert_matches_oracle(lake)


def test_one_rank_alone_is_compared_with_nobody(tmp_path):
    (reading,) = by_hand(tmp_path, [(0, 5, 5)], [(10, 10, 10)]).ttke_readings()
    assert (reading.min_rank, reading.max_rank, reading.magnitude_ns) == (None, None, None)


def stages(tmp_path):
    """Two pipeline stages that run different kernels, four ranks; the second stage's are later."""
    ranks = []
    for rank in range(4):
        late = 100 * rank
        names = ("embed", "gemm", "norm") if rank in (0, 2) else ("head", "loss", "softmax")
        rows = [kernel(name, late + 1000 * n, late + 1000 * n + 300 + rank) for n, name in enumerate(names)]
        reduce = collective("ncclAllReduce", 3_000, 9_000, group_ranks=[0, 2] if rank in (0, 2) else [1, 3])
        ranks.append(RankLake(rank, {(None, 0): [*rows, reduce]}))
    return lake_of(tmp_path / "lake", ranks)


def test_pipeline_stages_are_compared_with_their_own(tmp_path):
    lake = stages(tmp_path)
    assert lake.cohorts == {0: 0, 1: 1, 2: 0, 3: 1}
    with pytest.raises(UsageError, match=r"cohort 0.*cohort 1"):
        lake.table("gap", 0)
    first, second = (lake.table("gap", 0, cohort=number) for number in (0, 1))
    assert first.columns.tolist() == ["kernel_name", "mean", "rank_0", "rank_2"]
    assert second.loc[0].tolist() == ["head", 100.0, 0, 200]
    assert [(s.cohort, s.min_rank, s.max_rank) for s in lake.ttke_readings()] == [(0, 0, 2), (1, 1, 3)]
    assert_matches_oracle(lake)


def test_unknown_gaps_are_unknown_not_zero(tmp_path):
    rows = [kernel("a", 100, 200), kernel("side", 100, 150, stream=9), kernel("b", 230, 300)]
    lake = lake_of(tmp_path / "lake", [RankLake(rank, {(None, 0): rows}) for rank in range(2)])
    gap, ttke = lake.table("gap", 0), lake.table("ttke", 0)
    assert gap["rank_1"].isna().tolist() == [True, False, False]
    assert gap.loc[2].tolist() == ["b", 30.0, 30, 30]
    assert ttke[["mean", "rank_0", "rank_1"]].isna().to_numpy().all()
    assert lake.metrics(0).alignments[0].method == "none"


def test_impossible_latencies_are_kept_and_counted(tmp_path):
    rows = [kernel("a", 100, 200, launch_start_ns=150), kernel("b", 230, 300)]
    lake = lake_of(tmp_path / "lake", [RankLake(0, {(None, 0): rows})])
    assert [quality.negative_latencies for quality in lake.analyze().measured.statistics.qualities] == [1]
    assert lake.metrics(0).rows["launch_latency_ns"].to_pylist() == [-50, 5000]


def test_table_refuses_what_is_not_there(tmp_path):
    lake = by_hand(tmp_path, [(0, 0, 0)] * 2, [(9, 9, 9)] * 2)
    for ask in (
        lambda: lake.table("speed", 4),
        lambda: lake.table("gap", 5),
        lambda: lake.table("gap", 4, ranks=[0, 2]),
        lambda: lake.table("gap", 4, cohort=1),
    ):
        with pytest.raises(UsageError):
            ask()


def test_overlaps_keep_their_sign_and_one_launch_has_one_latency(tmp_path):
    graph = {"launch_start_ns": 40}
    rows = [kernel("a", 100, 200, **graph), kernel("b", 190, 260, **graph), kernel("c", 300, 310)]
    found = lake_of(tmp_path / "lake", [RankLake(0, {(None, 0): rows})]).metrics(0).rows
    assert found["gap_ns"].to_pylist() == [0, -10, 40]
    assert found["ttke_ns"].to_pylist() == [100, 160, 210]
    assert found["launch_latency_ns"].to_pylist() == [60, None, 5000]


def test_a_file_that_is_not_what_its_record_tells_is_named(tmp_path):
    lake = by_hand(tmp_path, [(0, 0, 0)] * 3, [(9, 9, 9)] * 3)
    path = lake.root / kernels_file(lake.step_keys[0], 1)
    write_kernels(path, pq.ParquetFile(path).read().slice(0, 4))
    with pytest.raises(LakeError, match=r"rank=1\.parquet: cannot be read \(holds 4 rows, and its record 5\)"):
        _ = jitter.open(lake.root).metrics(4).rows


def test_on_a_stream_the_kernel_before_is_the_one_that_started_before_not_the_one_launched_before(tmp_path):
    def launched(*starts):
        rows = [kernel(f"kernel {n}", at, at + 100, launch_start_ns=n) for n, at in enumerate(starts)]
        return [*rows, collective("ncclAllReduce", 4_100, 9_000)]

    ranks = [launched(1_000, 3_000, 2_000, 4_000), launched(3_000, 1_500, 1_000, 4_000)]
    lake = lake_of(tmp_path / "lake", [RankLake(rank, {(None, 0): rows}) for rank, rows in enumerate(ranks)])
    found = lake.metrics(0).rows
    # rank 1 starts with its third kernel, when rank 0 starts with its first
    assert found["gap_ns"].to_pylist() == [0, 900, 900, 900, 0, 1_400, 400, 0, 900, 0]
    assert found["ttke_ns"].to_pylist() == [100, 1_100, 2_100, 3_100, 3_100, 1_500, 2_000, 2_100, 3_100, 3_100]
    assert_matches_oracle(lake)
