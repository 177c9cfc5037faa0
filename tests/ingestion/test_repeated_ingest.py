"""A second ingest: adds what is new, knows what it has, and leaves nothing of a reading that is told otherwise."""

from pathlib import Path

import jitter
from jitter.simulate import Job, simulate, write
from tests.support.databases import run_sql
from tests.support.lake_content import content, kernel_files, records


def test_nothing_new(traces: Path, tmp_path: Path):
    lake = tmp_path / "lake"
    first = jitter.ingest([traces], lake)
    assert (len(first.added), first.unchanged, first.refused) == (3, 0, [])
    before = {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in lake.rglob("*.parquet")}
    whole = content(lake)
    second = jitter.ingest([traces], lake)
    assert (second.added, second.unchanged, second.refused) == ([], 3, [])
    assert {p: (p.stat().st_mtime_ns, p.stat().st_ino) for p in lake.rglob("*.parquet")} == before
    assert content(lake) == whole


def test_a_new_rank_adds_only_itself(traces: Path, tmp_path: Path):
    lake = tmp_path / "lake"
    jitter.ingest([traces / "rank0.sqlite", traces / "rank2.sqlite"], lake)
    before = {p: p.stat().st_mtime_ns for p in lake.rglob("*.parquet")}
    report = jitter.ingest([traces], lake)
    assert ([record.rank for record in report.added], report.unchanged) == ([1], 2)
    assert {p: p.stat().st_mtime_ns for p in before} == before
    jitter.ingest([traces], tmp_path / "whole")
    assert content(lake) == content(tmp_path / "whole")


def test_a_moved_file_is_the_same_file(own_traces: Path, tmp_path: Path):
    lake = tmp_path / "lake"
    jitter.ingest([own_traces], lake)
    before = content(lake, tmp_path)
    (own_traces / "elsewhere").mkdir()
    (own_traces / "rank1.sqlite").rename(own_traces / "elsewhere" / "one.sqlite")
    report = jitter.ingest([own_traces], lake)
    assert (report.added, report.unchanged, report.refused) == ([], 3, [])
    after = content(lake, tmp_path)
    changed = {path for path in after if after[path] != before[path]}
    (digest,) = (record["digest"] for record in records(lake) if record["rank"] == 1)
    assert changed == {f"sources/{digest}.json", "catalog.sqlite"}
    assert after[f"sources/{digest}.json"]["file"] == "own/elsewhere/one.sqlite"
    assert jitter.ingest([own_traces], lake).unchanged == 3


def test_the_same_content_under_two_names(own_traces: Path, tmp_path: Path):
    (own_traces / "rank1b.sqlite").write_bytes((own_traces / "rank1.sqlite").read_bytes())
    lake = tmp_path / "lake"
    report = jitter.ingest([own_traces], lake)
    assert [record.rank for record in report.added] == [0, 1, 2]
    assert report.refused == []
    (warning,) = report.warnings
    assert "rank1b.sqlite" in warning
    assert "rank1.sqlite" in warning
    assert jitter.ingest([own_traces], lake).unchanged == 4


def test_another_rank_leaves_nothing_of_the_old(own_traces: Path, tmp_path: Path):
    lake, fresh = tmp_path / "lake", tmp_path / "fresh"
    one = own_traces / "rank1.sqlite"
    jitter.ingest([one], lake)
    assert jitter.ingest([one], lake, rank=1).unchanged == 1
    jitter.ingest([one], lake, rank=7)
    jitter.ingest([one], fresh, rank=7)
    assert content(lake) == content(fresh)
    assert {Path(path).name for path in kernel_files(lake)} == {"rank=7.parquet"}
    # an option that is not given does not count
    assert jitter.ingest([one], lake).unchanged == 1


def test_another_rank_pattern_or_map_is_read_again(own_traces: Path, tmp_path: Path):
    for old, new in (("rank0.sqlite", "3_40.sqlite"), ("rank1.sqlite", "4_41.sqlite"), ("rank2.sqlite", "5_42.sqlite")):
        (own_traces / old).rename(own_traces / new)
    lake = tmp_path / "lake"
    for pattern, expected in ((r"(\d)_\d+", [3, 4, 5]), (r"\d_(?P<rank>\d+)", [40, 41, 42])):
        report = jitter.ingest([own_traces], lake, rank_pattern=pattern)
        assert [record.rank for record in report.added] == expected
        assert jitter.ingest([own_traces], lake, rank_pattern=pattern).unchanged == 3
        assert [record["rank"] for record in records(lake)] == expected
    told = tmp_path / "map.csv"
    for ranks in ((41, 40, 42), (1, 2, 0)):
        told.write_text(
            "".join(
                f"{name},{rank}\n"
                for name, rank in zip(("3_40.sqlite", "4_41.sqlite", "5_42.sqlite"), ranks, strict=True)
            )
        )
        report = jitter.ingest([own_traces], lake, rank_map=told, replace=True)
        assert report.refused == []
        assert [r["rank"] for r in sorted(records(lake), key=lambda r: r["file"])] == list(ranks)
    jitter.ingest([own_traces], tmp_path / "fresh", rank_map=told)
    assert content(lake) == content(tmp_path / "fresh")


def test_devices_told_the_other_way_round(tmp_path: Path):
    write(simulate(Job(ranks=2, steps=2, kernels=16, marker="profiler")), tmp_path / "t", "nsys", ranks_per_report=2)
    (report,) = (tmp_path / "t").iterdir()
    lake, told = tmp_path / "lake", tmp_path / "map.csv"
    for ranks in ((0, 1), (1, 0)):
        told.write_text("file,device,rank\n" + "".join(f"{report.name},{d},{r}\n" for d, r in enumerate(ranks)))
        assert jitter.ingest([report], lake, rank_map=told).refused == []
        assert {record["device"]: record["rank"] for record in records(lake)} == dict(enumerate(ranks))
    jitter.ingest([report], tmp_path / "fresh", rank_map=told)
    assert content(lake) == content(tmp_path / "fresh")


def test_processes_in_another_order_than_their_devices_are_known_by_a_pattern(tmp_path: Path):
    (path,) = write(simulate(Job(ranks=2, steps=2, kernels=12)), tmp_path / "t", "nsys", ranks_per_report=2)
    named = path.rename(path.with_name("node-3.sqlite"))
    for table in ("KERNEL", "MEMCPY"):
        run_sql(named, f"UPDATE CUPTI_ACTIVITY_KIND_{table} SET deviceId = 1 - deviceId")
    ranks = [
        (len(report.added), report.unchanged)
        for report in (jitter.ingest([named], tmp_path / "lake", rank_pattern=r"node-(\d)") for _ in range(2))
    ]
    assert ranks == [(2, 0), (0, 1)]


def test_another_step_pattern_leaves_nothing_of_the_old(own_traces: Path, tmp_path: Path):
    lake, fresh = tmp_path / "lake", tmp_path / "fresh"
    jitter.ingest([own_traces], lake)
    pattern = r"step200(?P<step>\d+)-rank(?P<rank>\d+)"
    report = jitter.ingest([own_traces], lake, step_pattern=pattern)
    assert len(report.added) == 3
    jitter.ingest([own_traces], fresh, step_pattern=pattern)
    assert content(lake) == content(fresh)
    assert {Path(path).parent.name for path in kernel_files(lake)} == {"step=0", "step=1", "step=2"}
    assert not (lake / "kernels" / "epoch=1").exists()
    assert jitter.ingest([own_traces], lake).unchanged == 3


def test_a_file_that_failed_goes_in_once_corrected(own_traces: Path, tmp_path: Path):
    lake = tmp_path / "lake"
    good = (own_traces / "rank1.sqlite").read_bytes()
    (own_traces / "rank1.sqlite").write_bytes(good[: len(good) // 2])
    report = jitter.ingest([own_traces], lake)
    assert [record.rank for record in report.added] == [0, 2]
    assert len(report.refused) == 1
    refused = [record for record in records(lake) if record["rank"] is None]
    assert [Path(record["file"]).name for record in refused] == ["rank1.sqlite"]
    assert refused[0]["problems"] == [str(report.refused[0])]
    assert len(jitter.ingest([own_traces], lake).refused) == 1
    (own_traces / "rank1.sqlite").write_bytes(good)
    report = jitter.ingest([own_traces], lake)
    assert ([record.rank for record in report.added], report.refused) == ([1], [])
    jitter.ingest([own_traces], tmp_path / "fresh")
    assert content(lake) == content(tmp_path / "fresh")
    assert jitter.open(lake).rejected == []


def test_a_rank_that_could_not_be_told_goes_in_once_told(own_traces: Path, tmp_path: Path):
    nameless = own_traces / "report1.sqlite"
    (own_traces / "rank1.sqlite").rename(nameless)
    run_sql(
        nameless,
        "UPDATE NVTX_EVENTS SET text = replace(text, '-rank1', '')",
        "DELETE FROM TARGET_INFO_SYSTEM_ENV",
        "DROP TABLE IF EXISTS META_DATA_CAPTURE",
    )
    lake = tmp_path / "lake"
    report = jitter.ingest([own_traces], lake)
    (error,) = report.refused
    assert str(nameless) in str(error)
    assert all(way in str(error) for way in ("--rank ", "--rank-map", "--rank-pattern"))
    jitter.ingest([nameless], lake, rank=1)
    assert [record["rank"] for record in records(lake)] == [0, 1, 2]
    assert jitter.ingest([own_traces], lake).refused == []
