"""The lake on disk, to the letter: where files lie, what is in them, and that others' tools read them."""

from collections.abc import Callable
from pathlib import Path

import duckdb
import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import jitter
from jitter.lake.folder import LakeFolder
from tests.support.databases import run_sql
from tests.support.lake_content import catalogue, catalogue_is_records, kernel_files, records

COLUMNS = {
    "rank": pa.int32(),
    "ordinal": pa.int32(),
    "kernel_name": pa.string(),
    "kind": pa.string(),
    "device": pa.int32(),
    "stream": pa.int64(),
    "start_ns": pa.int64(),
    "end_ns": pa.int64(),
    "duration_ns": pa.int64(),
    "launch_name": pa.string(),
    "launch_start_ns": pa.int64(),
    "launch_end_ns": pa.int64(),
    "launch_thread": pa.int64(),
    "correlation_id": pa.int64(),
    **{f"{what}_{axis}": pa.int32() for what in ("grid", "block") for axis in "xyz"},
    "collective": pa.string(),
    "message_bytes": pa.int64(),
    "dtype": pa.string(),
    "group_name": pa.string(),
    "group_ranks": pa.list_(pa.int32()),
    "group_size": pa.int32(),
    "sequence": pa.int64(),
    "source_rank": pa.int32(),
    "destination_rank": pa.int32(),
    "size_bytes": pa.int64(),
    "split_imbalance": pa.float64(),
    "copy_direction": pa.string(),
    "operator": pa.string(),
    "scope": pa.string(),
    "phase": pa.string(),
    "source_line": pa.string(),
}
HOST = {
    "epoch": pa.int64(),
    "step": pa.int64(),
    "kind": pa.string(),
    "name": pa.string(),
    "thread": pa.int64(),
    "start_ns": pa.int64(),
    "end_ns": pa.int64(),
}
RECORD = [
    "record_version",
    "digest",
    "file",
    "file_digest",
    "size",
    "mtime_ns",
    "part",
    "parts",
    "step_pattern",
    "format",
    "reader_version",
    "profiler_version",
    "rank",
    "rank_told_by",
    "host",
    "device",
    "pid",
    "clock",
    "utc_offset_ns",
    "main_stream",
    "has_launches",
    "steps_from",
    "repetition",
    "kernels",
    "outside_steps",
    "before_capture",
    "steps",
    "problems",
    "collective_pattern",
    "host_rows",
    "reader",
    "world_size",
    "gpu_model",
    "bus_id",
    "kernel_columns",
    "host_checksum",
    "host_size",
    "claimed_rank",
    "left_out_because",
    "empty_columns",
    "checksum",
]
STEP = [
    "step",
    "epoch",
    "marker",
    "start_ns",
    "end_ns",
    "cut",
    "launches_without_kernel",
    "kernels",
    "memory_activities",
    "sequence",
    "checkpoint_ns",
    "validation_ns",
    "checksum",
    "size",
    "kind",
    "requests",
    "tokens",
    "times",
]


@pytest.fixture(scope="module")
def lake(small_lake: Path) -> Path:
    return small_lake


@pytest.fixture(scope="module")
def without_epoch(simulated_traces: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("layout") / "lake"
    jitter.ingest([simulated_traces({"marker": "profiler"})], root)
    return root


def test_paths(lake: Path, without_epoch: Path):
    assert kernel_files(lake) == {
        f"kernels/epoch=1/step={step}/rank={rank}.parquet" for step in (2000, 2001, 2002) for rank in range(3)
    }
    assert kernel_files(without_epoch) == {
        f"kernels/step={step}/rank={rank}.parquet" for step in (0, 1) for rank in range(2)
    }
    digests = {record["digest"]: record["rank"] for record in records(lake)}
    others = {p.relative_to(lake).as_posix() for p in lake.rglob("*") if p.is_file()} - kernel_files(lake)
    assert others == {
        "jitter.json",
        "catalog.sqlite",
        *(f"sources/{digest}.json" for digest in digests),
        *(f"host/rank={rank}/{digest}.parquet" for digest, rank in digests.items()),
        *(f"times/{digest}.bin" for digest in digests),
    }


def test_columns_and_types(lake: Path):
    for path in kernel_files(lake):
        schema = pq.read_table(lake / path, partitioning=None).schema
        plain = {f.name: f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in schema}
        assert plain == COLUMNS
    for path in (lake / "host").rglob("*.parquet"):
        assert dict(zip(*_fields(path), strict=True)) == HOST


def _fields(path: Path) -> tuple[list[str], list[pa.DataType]]:
    schema = pq.read_schema(path)
    return schema.names, schema.types


def test_rows(lake: Path):
    for path in kernel_files(lake):
        rows = pq.read_table(lake / path, partitioning=None).to_pandas()
        assert set(rows["rank"]) == {int(Path(path).stem.removeprefix("rank="))}
        assert rows["ordinal"].tolist() == list(range(len(rows)))
        assert (rows["end_ns"] - rows["start_ns"] == rows["duration_ns"]).all()
        assert rows["launch_start_ns"].is_monotonic_increasing
        assert set(rows["kind"]) == {"compute", "collective", "memory"}
        collectives = rows["kind"] == "collective"
        assert (rows["collective"].notna() == collectives).all()
        assert set(rows.loc[collectives, "collective"]) == {"all_reduce"}
        # nothing in an nsys export tells these: null, not 0
        assert (
            rows[["message_bytes", "dtype", "group_name", "group_ranks", "group_size", "sequence"]].isna().all().all()
        )
        assert rows.loc[rows["kind"] == "memory", "grid_x"].isna().all()


@pytest.mark.parametrize("which", ["lake", "without_epoch"])
def test_plain_tools_read_it(which: str, request: pytest.FixtureRequest):
    root: Path = request.getfixturevalue(which)
    files = kernel_files(root)
    expected = sorted(
        (int(Path(path).parent.name.removeprefix("step=")), int(Path(path).stem.removeprefix("rank=")))
        for path in files
        for _ in range(pq.read_metadata(root / path).num_rows)
    )
    frame = pd.read_parquet(root / "kernels")
    assert sorted(zip(frame["step"].astype(int), frame["rank"], strict=True)) == expected
    table = ds.dataset(root / "kernels", partitioning="hive").to_table(columns=["step", "rank"])
    assert sorted(zip(*(column.to_pylist() for column in table.columns), strict=True)) == expected
    query = f"select step, rank from read_parquet('{root}/kernels/**/*.parquet', hive_partitioning = true)"
    assert sorted(duckdb.sql(query).fetchall()) == expected
    if which == "lake":
        assert set(frame["epoch"].astype(int)) == {1}


def test_records(lake: Path, traces: Path):
    found = records(lake)
    assert [record["rank"] for record in found] == [0, 1, 2]
    for record in found:
        path = traces / f"rank{record['rank']}.sqlite"
        assert list(record) == RECORD
        assert all(list(step) == STEP for step in record["steps"])
        assert record["file"] == str(path.resolve())
        assert (record["size"], record["mtime_ns"]) == (path.stat().st_size, path.stat().st_mtime_ns)
        assert record["host"] == "node0000"
        assert record["device"] == record["rank"]
        assert record["main_stream"] == 7
        assert record["clock"] == "utc"
        assert [step["step"] for step in record["steps"]] == [2000, 2001, 2002]
        assert {step["epoch"] for step in record["steps"]} == {1}
        in_steps = 0
        for step in record["steps"]:
            rows = pq.read_table(
                lake / f"kernels/epoch=1/step={step['step']}/rank={record['rank']}.parquet", partitioning=None
            ).to_pandas()
            memory = (rows["kind"] == "memory").sum()
            assert (step["kernels"], step["memory_activities"]) == (len(rows) - memory, memory)
            assert rows["launch_start_ns"].between(step["start_ns"], step["end_ns"]).all()
            in_steps += step["kernels"]
        assert in_steps + record["outside_steps"] + record["before_capture"] == record["kernels"]
        assert record["outside_steps"] > 0
        assert any(f"{record['outside_steps']} kernels lie outside" in problem for problem in record["problems"])
    sequences = {(record["rank"], step["step"]): step["sequence"] for record in found for step in record["steps"]}
    of_the_extra_kernel = sequences.pop((2, 2001))
    assert len(set(sequences.values())) == 1
    assert of_the_extra_kernel not in sequences.values()


def test_host_rows_lie_in_their_steps(lake: Path):
    for record in records(lake):
        rows = pd.read_parquet(lake / f"host/rank={record['rank']}/{record['digest']}.parquet")
        assert record["host_rows"] == len(rows)
        assert set(rows["kind"]) <= {"sync", "data_loading", "operation"}
        assert "data_loading" in set(rows["kind"])
        spans = {step["step"]: (step["start_ns"], step["end_ns"]) for step in record["steps"]}
        for row in rows.itertuples():
            if pd.notna(row.step):
                start, end = spans[row.step]
                assert start <= row.start_ns < end


def test_catalogue_is_the_records(lake: Path):
    assert catalogue_is_records(lake)
    (source, *_) = catalogue(lake / "catalog.sqlite")["sources"]
    assert set(source) > {"digest", "file", "rank", "host", "device", "clock", "main_stream", "part", "step_pattern"}


def test_a_lost_stale_or_broken_catalogue_is_rebuilt(traces: Path, tmp_path: Path):
    jitter.ingest([traces / "rank0.sqlite"], tmp_path / "lake")
    path = tmp_path / "lake" / "catalog.sqlite"
    good = catalogue(path)
    path.unlink()
    jitter.open(tmp_path / "lake").prepare()
    assert catalogue(path) == good
    path.write_bytes(b"SQLite format 3\0 and then nothing of the kind")
    jitter.open(tmp_path / "lake").prepare()
    assert catalogue(path) == good
    run_sql(path, "UPDATE steps SET start_ns = start_ns + 1 WHERE position = 0")
    jitter.open(tmp_path / "lake").prepare()
    assert catalogue(path) == good
    path.unlink()
    (path / "folder").mkdir(parents=True)
    jitter.open(tmp_path / "lake").prepare()
    assert catalogue(path) == good
    folder = LakeFolder(tmp_path / "lake")
    (record,) = folder.records()
    folder.write_record(msgspec.structs.replace(record, host="elsewhere"))
    folder.close()
    assert not catalogue_is_records(tmp_path / "lake")
    jitter.open(tmp_path / "lake").prepare()
    assert catalogue(path)["sources"][0]["host"] == "elsewhere"
    assert not [p for p in (tmp_path / "lake").iterdir() if p.name.startswith(".")]
