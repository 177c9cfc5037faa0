"""The recordings under a path, and the reasons given for the other files."""

import bz2
import gzip
import io
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import jitter
from jitter.cli import main
from jitter.ingestion.discovery.discover import discover
from jitter.ingestion.discovery.unrecognized_files import describe_nearest
from tests.support.databases import run_sql

TEXT = "text: neither JSON nor CSV of a profiler, nor a log with a measurement or an error"


@pytest.fixture(scope="module")
def export() -> Callable[[Path], Path]:
    """Make the smallest database that looks like an export."""

    def make(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        run_sql(
            path,
            "CREATE TABLE StringIds (id INTEGER, value TEXT)",
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER)",
            "CREATE TABLE TARGET_INFO_GPU (id INTEGER)",
        )
        return path

    return make


def test_recursively_in_path_order_each_once(tmp_path: Path, export: Callable[[Path], Path]):
    made = [export(tmp_path / name) for name in ("b/deep/er/2.sqlite", "a/1.db", "c.sqlite")]
    (tmp_path / "a" / "link.sqlite").symlink_to(made[2])
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    found = discover([tmp_path, made[2], tmp_path / "b"])
    assert [s.path.name for s in found.sources] == ["1.db", "2.sqlite", "c.sqlite"]
    assert found.unreadable == []
    assert found.others == 1
    assert [s.size for s in found.sources] == [s.path.stat().st_size for s in found.sources]


def test_named_files_must_be_traces(tmp_path: Path, export: Callable[[Path], Path]):
    notes = tmp_path / "notes.txt"
    notes.write_text("x")
    found = discover([notes, tmp_path / "nothing", export(tmp_path / "1.sqlite")])
    assert [(path.name, str(error).split(";")[0]) for path, error in found.unreadable] == [
        ("nothing", f"{tmp_path / 'nothing'}: no such file or directory"),
        (
            "notes.txt",
            f"{notes}: not a trace that jitter reads ({TEXT})",
        ),
    ]
    assert len(found.sources) == 1
    assert discover([tmp_path]).unreadable == []


def test_other_databases_are_nobodys_concern_but_broken_ones_are_said(tmp_path: Path):
    run_sql(tmp_path / "mlflow.sqlite", "CREATE TABLE runs (id INTEGER)")
    (tmp_path / "empty.sqlite").touch()
    (tmp_path / "text.sqlite").write_text("not a database" * 100)
    found = discover([tmp_path])
    assert sorted(path.name for path, _ in found.unreadable) == ["empty.sqlite", "text.sqlite"]
    assert all("damaged beyond reading" in str(error) for _, error in found.unreadable)
    assert found.others == 1
    assert {p.name for p in tmp_path.iterdir()} == {"mlflow.sqlite", "empty.sqlite", "text.sqlite"}  # no -journal, -shm


def test_a_file_named_like_a_rank_without_a_recording_is_named(tmp_path: Path, export: Callable[[Path], Path]):
    for rank in range(2):
        export(tmp_path / f"rank{rank}.sqlite")
    for name in ("rank1.json", "rank2.json", "rank2.txt", "trace_config.json"):
        (tmp_path / name).write_text("hello\n")
    found = discover([tmp_path])
    damaged = f"{tmp_path / 'rank2.json'}: a damaged trace (6 bytes; no reader recognizes them)"
    assert [error.message for _, error in found.unreadable] == [damaged]
    assert found.others == 3


@pytest.mark.parametrize("suffix", [".nsys-rep", ".qdrep"])
def test_reports(tmp_path: Path, export: Callable[[Path], Path], suffix: str):
    report = tmp_path / f"report1{suffix}"
    report.write_bytes(b"x")
    ((path, error),) = discover([tmp_path]).unreadable
    assert path == report
    assert f"nsys export -t sqlite --lazy=false -o {tmp_path / 'report1.sqlite'} {report}" in str(error)
    export(tmp_path / "report1.sqlite")
    found = discover([tmp_path])
    assert found.unreadable == []
    assert [s.path.name for s in found.sources] == ["report1.sqlite"]
    assert found.notes == []
    os.utime(tmp_path / "report1.sqlite", (0, 0))  # the report was recorded again
    (note,) = discover([tmp_path]).notes
    assert note.startswith(f"{report}: reports written long after the exports beside them")
    ((path, error),) = discover([report]).unreadable
    assert str(tmp_path / "report1.sqlite") in str(error)
    (tmp_path / "report1.sqlite").unlink()
    (tmp_path / "report1_pqtdir").mkdir()
    assert discover([tmp_path]).unreadable == []


def test_broken_links_and_odd_names(tmp_path: Path, export: Callable[[Path], Path]):
    (tmp_path / "gone.sqlite").symlink_to(tmp_path / "nowhere")
    odd = export(tmp_path / "50% of: 'x' #1?.sqlite")
    found = discover([tmp_path])
    assert [s.path for s in found.sources] == [odd]
    assert found.notes == [f"{tmp_path}/gone.sqlite: a link to a file that is not there: copy the file itself"]


def test_a_link_to_a_folder_is_not_followed_and_named(tmp_path: Path, export: Callable[[Path], Path]):
    export(tmp_path / "elsewhere" / "rank0.sqlite")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "latest").symlink_to(tmp_path / "elsewhere")
    found = discover([tmp_path / "traces"])
    assert (found.sources, found.others) == ([], 0)
    assert found.notes == [
        f"{tmp_path}/traces/latest: a link to a folder, which is not followed: name the folder itself"
    ]
    assert len(discover([tmp_path / "traces" / "latest"]).sources) == 1


CHAKRA = json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 7, "time": "x", "nodes": [{"id": 1, "name": "aten::mm"}]})
OLDER = json.dumps({"schema": "1.0.1", "pid": 7, "time": "x", "start_ts": 5, "nodes": [{"name": "aten::mm"}]})
XLA = json.dumps({"displayTimeUnit": "ns", "traceEvents": [{"ph": "M", "pid": 1, "args": {"name": "/device:TPU:0"}}]})


def _arrow() -> bytes:
    sink = io.BytesIO()
    table = pa.table({"start": [1]}).replace_schema_metadata({"table": "CUPTI_ACTIVITY_KIND_KERNEL"})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


KNOWN = {
    "rank1.json": (CHAKRA.encode(), "Chakra execution traces", "prof.export_chrome_trace"),
    "eg.rank_1.json": (CHAKRA.encode(), "Chakra execution traces", "prof.export_chrome_trace"),
    "rank1.json.gz": (gzip.compress(CHAKRA.encode()), "Chakra execution traces", "prof.export_chrome_trace"),
    "et.json": (OLDER.encode(), "PyTorch execution traces", "prof.export_chrome_trace"),
    "report1.h5": (
        b"\x89HDF\r\n\x1a\n" + bytes(900) + b"CUPTI_ACTIVITY_KIND_KERNEL\0",
        "Nsight Systems exports as HDF5",
        "nsys export -t sqlite",
    ),
    "report1.jsonl": (
        b'{"table":"META_DATA_EXPORT"}\n{"CUPTI_ACTIVITY_KIND_KERNEL":{"start":1}}\n',
        "Nsight Systems exports as JSON",
        "nsys export -t sqlite",
    ),
    "report1.json": (
        b'{"Type":79,"CudaEvent":{"startNs":"5","endNs":"9"}}\n',
        "Nsight Systems exports as JSON",
        "nsys export -t sqlite",
    ),
    "report1.arrow": (_arrow(), "Nsight Systems exports as Arrow", "nsys export -t sqlite"),
    "StringIds.arrow": (b"ARROW1\0\0", "Nsight Systems exports as Arrow", "nsys export -t sqlite"),
    "rank0.trace.gz.gz": (gzip.compress(gzip.compress(XLA.encode())), "files packed twice", "gunzip"),
    "rank0.sqlite.gz": (gzip.compress(b"SQLite format 3\0" + bytes(4000)), "packed databases or reports", "gunzip"),
    "node1.xplane.pb.zst": (b"\x28\xb5\x2f\xfd" + bytes(100), "packed databases or reports", "zstd -d"),
    "node7.csv": (
        b"2026/06/03 01:02:03.123, 0, 1980 MHz, 60\n",
        "tables of `nvidia-smi` without the names of their columns",
        "--format=csv",
    ),
    "traces.otf2": (b"x", "OTF2 traces", "rocprofv3"),
    "perfetto-trace-0.proto.gz": (
        gzip.compress(b"\x0a\x04abcd"),
        "Perfetto traces of other tools, or packed",
        "rocprofv3",
    ),
    "rank0.json.xz": (lzma.compress(XLA.encode()), "files packed with xz", "unxz"),
    "job.tar.bz2": (bz2.compress(XLA.encode()), "files packed with bzip2", "bunzip2"),
    "rank0.json.lz4": (b"\x04\x22M\x18" + bytes(40), "files packed with LZ4", "lz4 -d"),
    "traces.7z": (b"7z\xbc\xaf\x27\x1c" + bytes(40), "archives of 7-Zip or RAR", ".tar.gz"),
    "rank0.pt.trace.json": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        "pointers of Git LFS in place of files",
        "git lfs pull",
    ),
    "report1_cuda_gpu_trace.csv": (
        b"Start (ns),Duration (ns),CorrId,GrdX,Name\n1,2,3,4,gemm\n",
        "tables of `nsys stats`",
        "nsys export -t sqlite",
    ),
    "report1.csv": (
        b"\nNOTICE: Existing SQLite export found\nProcessing ... \nTime (%),Total Time (ns),Name\n1.0,2,gemm\n",
        "tables of `nsys stats`",
        "nsys export -t sqlite",
    ),
    "nvprof.csv": (b"==4242== NVPROF is profiling process 4242\n", "tables of nvprof", "nsys profile"),
    "1_counter_collection.csv": (
        b'"Correlation_Id","Kernel_Name","Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"\n',
        "tables of performance counters",
        "--kernel-trace",
    ),
    "wall_clock-0.json": (b'{\n "timemory": {}}', "tables of Omnitrace or rocprof-sys", "rocprofv3"),
    "trace.sql": (
        b"PRAGMA foreign_keys=OFF;\nBEGIN TRANSACTION;\nCREATE TABLE rocpd_op (id integer);\n",
        "databases dumped as SQL",
        "sqlite3 FILE.db < FILE.sql",
    ),
    "msprof_20240101.json": (
        b'[{"name": "process_name", "ph": "M", "pid": 7, "args": {"name": "Ascend Hardware"}}]',
        "profiles of Ascend NPUs",
        "CUDA, ROCm and XPU",
    ),
    "kernel_details.csv": (
        b"Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us)\n",
        "profiles of Ascend NPUs",
        "CUDA, ROCm and XPU",
    ),
    "onnxruntime_profile__2024.json": (
        b'[\n{"cat" : "Session","pid" :1,"tid" :1,"dur" :9,"ts" :1,"ph" : "X","name" :"loading","args" : {}},\n'
        b'{"cat" : "Kernel","pid" :1,"tid" :1,"dur" :7,"ts" :11,"ph" : "X","name" :"gemm","args" : {"stream" : "7"}}]',
        "profiles of ONNX Runtime",
        "prof.export_chrome_trace",
    ),
    "autograd.json": (
        b'[{"name": "aten::add", "ph": "X", "ts": 1.0, "dur": 2.0, "tid": 1, "pid": "CPU functions", "args": {}}]',
        "profiles of PyTorch without Kineto",
        "prof.export_chrome_trace",
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_file_that_the_user_named_is_an_error_and_one_in_a_folder_a_note(name: str, tmp_path: Path):
    content, kind, instead = KNOWN[name]
    (tmp_path / name).write_bytes(content)
    ((path, error),) = discover([tmp_path / name]).unreadable
    assert error.message == f"{path}: one of the {kind}, which jitter does not read"
    assert instead in (error.hint or "")
    found = discover([tmp_path])
    assert (found.unreadable, found.others) == ([], 1)
    (note,) = found.notes
    assert f"{name}: {kind}" in note
    assert instead in note


def test_tables_made_of_a_recording_are_no_note_beside_it(own_traces: Path):
    (own_traces / "report1_cuda_gpu_trace.csv").write_bytes(KNOWN["report1_cuda_gpu_trace.csv"][0])
    assert discover([own_traces]).notes == []


def test_a_chakra_trace_with_the_name_of_a_rank_is_refused(own_traces: Path, tmp_path: Path):
    (own_traces / "rank3.sqlite").write_text(CHAKRA)
    report = jitter.ingest(own_traces, tmp_path / "lake")
    (error,) = report.refused
    assert "one of the Chakra execution traces" in error.message
    assert len(report.added) == 3


NEAREST = {
    "a.json": (b'{"lr": 1, "steps": [1], "x": {"y": 2}}', "JSON, and no list of trace events"),
    "b.json": (b'{"traceEvents":[{"ph":"X","cat":"FEE","ts":1}]}', "a Chrome trace of another tool"),
    "c.csv": (b"name,epoch,loss\nx,1,1\n", "a table without columns of kernels' names"),
    "c.log": (
        b"INFO [a.py:2] Running: 18 reqs, Waiting: 3 reqs, None\n",
        TEXT,
    ),
    "d.txt": (b"loss went down\n", "text: neither JSON nor CSV"),
    "e.log": (b"[2026-01-01 12:00:00,000] [INFO] [a.py:1] begun\n", "text: neither JSON nor CSV"),
    "f.log": (b"[rank0]: begun\n[1,0]<stdout>:begun\n", "text: neither JSON nor CSV"),
    "e.txt": (b"Step 1, step 2, and so on\nare prose\n", "text: neither JSON nor CSV"),
    "e.json": (b"[1, 2, 3]\n", "JSON, and no list of trace events"),
    "e.bin": (b"\x7fELF" + bytes(100), "binary data of no known kind"),
    "f.txt": (b"", "it is empty"),
    "g.gz": (b"\x1f\x8b\x08" + bytes(40), "it is empty, or its packed data is damaged from the beginning on"),
}


@pytest.mark.parametrize("name", NEAREST)
def test_the_nearest_format_of_an_unknown_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    content, said = NEAREST[name]
    (tmp_path / name).write_bytes(content)
    assert describe_nearest(tmp_path / name).startswith(said)


def test_inspect_says_the_nearest_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "b.json").write_bytes(NEAREST["b.json"][0])
    assert main(["inspect", str(tmp_path / "b.json")]) == 3
    out, _ = capsys.readouterr()
    assert f"not a trace that jitter reads ({NEAREST['b.json'][1]}" in out


def test_a_folder_without_any_trace_names_what_its_files_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("b.json", "c.csv", "d.txt", "e.bin"):
        (tmp_path / name).write_bytes(NEAREST[name][0])
    assert main(["inspect", str(tmp_path)]) == 3
    _, err = capsys.readouterr()
    assert err.count("note: ") == 3
    for name in ("b.json", "c.csv", "d.txt"):
        assert f"{tmp_path / name}: not a trace that jitter reads ({NEAREST[name][1]}" in err
    assert f"no traces in {tmp_path}" in err
