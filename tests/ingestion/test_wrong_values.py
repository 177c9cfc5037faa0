"""Values of the wrong type or size in databases, tables and JSON: left out and told, never zero or an absurd time."""

import csv
import json
import shutil
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jitter
from jitter.lake.records import SourceRecord
from jitter.simulate import Job, simulate, write
from tests.support.databases import open_database
from tests.support.simulated import activities

pytestmark = pytest.mark.slow

JOB = Job(ranks=1, steps=2, kernels=16, epoch=None)
ALL_KERNELS = JOB.steps * JOB.kernels + JOB.warmup_kernels + JOB.tail_kernels
LARGEST = 2**63 - 1
KERNELS = {
    "nsys": ("CUPTI_ACTIVITY_KIND_KERNEL", "start", "end", "gridX"),
    "rocpd": ("rocpd_kernel_dispatch_01990000_0000_7000_8000_000000000000", "start", "end", "grid_size_x"),
    "rocprof-v1": ("OPS", "BeginNs", "EndNs", None),
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory):
    """Return the folder of the job's traces in a format, written once."""

    @cache
    def written(form: str, **options: object) -> Path:
        folder = tmp_path_factory.mktemp("job")
        write(simulate(JOB), folder, form, **options)
        return folder

    return written


def take(folder: Path, lake: Path) -> SourceRecord:
    report = jitter.ingest(folder, lake)
    assert report.refused == []
    (record,) = report.added
    found = [activities(jitter.open(lake), 0, step.key) for step in record.steps]
    assert max(int(rows["duration_ns"].max()) for rows in found) < 10**9
    return record


def change(path: Path, table: str, column: str, value: object, where: str = "1") -> None:
    with open_database(path) as connection:
        rows = connection.execute(f'SELECT rowid FROM "{table}" WHERE {where} ORDER BY rowid LIMIT 5').fetchall()
        connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (value, rows[-1][0]))


def database(folder: Path) -> Path:
    return next(path for path in folder.iterdir() if path.read_bytes()[:6] == b"SQLite")


@pytest.mark.parametrize("form", KERNELS)
@pytest.mark.parametrize(
    ("value", "is_end"),
    [("abc", False), ("12x", True), (b"\x01", False), (1e300, True), (LARGEST, True), (-LARGEST - 1, False)],
)
def test_time_of_a_kernel_in_a_database(form: str, value: object, is_end: bool, traces, tmp_path: Path):
    folder = Path(shutil.copytree(traces(form), tmp_path / "changed"))
    table, *columns = KERNELS[form]
    change(database(folder), table, columns[is_end], value)
    record = take(folder, tmp_path / "lake")
    assert record.kernels == ALL_KERNELS - 1
    assert "1 GPU activities without a possible time were left out" in record.problems
    told = [text for text in record.problems if text.startswith("1 value is unknown, because no integer stands there")]
    assert len(told) == (not isinstance(value, int))


@pytest.mark.parametrize("form", ["nsys", "rocpd"])
@pytest.mark.parametrize("value", ["abc", 2**40])
def test_a_shape_that_is_no_shape_is_unknown(form: str, value: object, traces, tmp_path: Path):
    folder = Path(shutil.copytree(traces(form), tmp_path / "changed"))
    table, _, _, shape = KERNELS[form]
    change(database(folder), table, str(shape), value)
    record = take(folder, tmp_path / "lake")
    assert record.kernels == ALL_KERNELS


def test_a_number_as_text_is_that_number(traces, tmp_path: Path):
    folder = Path(shutil.copytree(traces("rocprof-v1"), tmp_path / "changed"))
    path = database(folder)
    with open_database(path) as connection:
        (time,) = connection.execute("SELECT BeginNs FROM OPS ORDER BY rowid LIMIT 1").fetchone()
        connection.execute("UPDATE OPS SET BeginNs = ? WHERE rowid = (SELECT min(rowid) FROM OPS)", (f"{time}",))
    whole = take(traces("rocprof-v1"), tmp_path / "whole")
    assert take(folder, tmp_path / "lake").problems == whole.problems


@pytest.mark.parametrize("value", ["abc", LARGEST])
def test_calls_ranges_and_the_wall_clock_of_nsys(value: object, traces, tmp_path: Path):
    folder = Path(shutil.copytree(traces("nsys"), tmp_path / "changed"))
    path = database(folder)
    change(path, "CUPTI_ACTIVITY_KIND_RUNTIME", "end", value)
    change(path, "CUPTI_ACTIVITY_KIND_RUNTIME", "start", value)
    change(path, "NVTX_EVENTS", "start", value, "text LIKE '%load%'")
    change(path, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs", value)
    record = take(folder, tmp_path / "lake")
    assert record.clock == "unknown"
    assert "1 calls without a possible time were left out" in record.problems
    assert "1 ranges without a possible time were left out" in record.problems


@pytest.mark.parametrize("value", ["abc", "9223372036854775807", ""])
def test_a_parquet_export(value: str, traces, tmp_path: Path):
    """A column of texts, one of them no possible time."""
    folder = Path(shutil.copytree(traces("nsys", container="parquet"), tmp_path / "changed"))
    (path,) = folder.rglob("CUPTI_ACTIVITY_KIND_KERNEL.parquet")
    rows = pq.read_table(path)
    texts = [str(one) for one in rows["start"].to_pylist()]
    texts[3] = value
    pq.write_table(rows.set_column(rows.schema.get_field_index("start"), "start", pa.array(texts)), path)
    record = take(folder, tmp_path / "lake")
    assert "1 GPU activities without a possible time were left out" in record.problems


@pytest.mark.parametrize("value", ["abc", "9223372036854775807", "99999999999999999999"])
def test_csv(value: str, traces, tmp_path: Path):
    folder = Path(shutil.copytree(traces("rocprof-csv"), tmp_path / "changed"))
    (path,) = folder.glob("*kernel_trace.csv")
    with path.open(newline="") as file:
        lines = list(csv.reader(file))
    lines[3][[name.lower() for name in lines[0]].index("end_timestamp")] = value
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    record = take(folder, tmp_path / "lake")
    assert "1 GPU activities without a possible time were left out" in record.problems


@pytest.mark.parametrize("value", ["abc", 1.5, 2**63, 2**70, LARGEST, None])
def test_rocprofv3_json(value: object, tmp_path: Path):
    kernel = {"agent_id": {"handle": 1}, "kernel_id": 1, "queue_id": {"handle": 1}}
    records = [
        {"size": 1, "start_timestamp": at, "end_timestamp": at + 50, "dispatch_info": kernel}
        for at in range(10**9, 10**9 + 2000, 100)
    ]
    records[3]["end_timestamp"] = value  # type: ignore[assignment]
    tool = {
        "metadata": {"pid": 7},
        "agents": [{"id": {"handle": 1}, "type": 2, "node_id": 4}],
        "kernel_symbols": [{"kernel_id": 1, "formatted_kernel_name": "gemm"}],
        "buffer_records": {"kernel_dispatch": records},
    }
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "rank0_results.json").write_text(json.dumps({"rocprofiler-sdk-tool": [tool]}))
    record = take(tmp_path / "a", tmp_path / "lake")
    assert record.kernels == len(records) - 1
    assert any(text.startswith("1 ") and "left out" in text for text in record.problems)


def test_process_number_beyond_64_bits(traces, tmp_path: Path):
    folder = Path(shutil.copytree(traces("kineto", zipped=False), tmp_path / "changed"))
    (path,) = folder.glob("*.json")
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            event["pid"] = 2**70
    path.write_text(json.dumps(document))
    assert take(folder, tmp_path / "lake").pid is None
    assert jitter.ingest(folder, tmp_path / "lake").unchanged == 1
