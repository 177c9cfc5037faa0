"""RPD: operations, the calls they belong to, the user's markers."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from jitter.core.errors import UnreadableTraceError
from jitter.readers import readers
from tests.support.amd_traces import read, real
from tests.support.databases import open_database
from tests.support.real_recordings import needs_traces

DDL = (
    "CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY AUTOINCREMENT, string TEXT NOT NULL)",
    "CREATE TABLE rocpd_op (id INTEGER PRIMARY KEY AUTOINCREMENT, gpuId INTEGER, queueId INTEGER, sequenceId INTEGER,"
    ' completionSignal TEXT, start INTEGER, "end" INTEGER, description_id INTEGER, opType_id INTEGER)',
    "CREATE TABLE rocpd_api (id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER, tid INTEGER, start INTEGER,"
    ' "end" INTEGER, apiName_id INTEGER, args_id INTEGER)',
    "CREATE TABLE rocpd_api_ops (id INTEGER PRIMARY KEY AUTOINCREMENT, api_id INTEGER, op_id INTEGER)",
    "CREATE TABLE rocpd_metadata (id INTEGER PRIMARY KEY AUTOINCREMENT, tag TEXT, value TEXT)",
)
STRINGS = ("", "hipLaunchKernel", "UserMarker", "step 4", "KernelExecution", "gemm(int)", "CopyHostToDevice", "Task")
EMPTY, LAUNCH, MARKER, STEP, KERNEL, GEMM, COPY, TASK = range(1, 9)


def database(path: Path, ops: list[tuple[int, ...]], apis: list[tuple[int, ...]], links: list[tuple[int, int]]) -> Path:
    """Ops: gpu, queue, start, end, name, kind; apis: pid, tid, start, end, name, args; links: api, op."""
    with open_database(path) as written:
        for statement in DDL:
            written.execute(statement)
        written.executemany("INSERT INTO rocpd_string (string) VALUES (?)", [(text,) for text in STRINGS])
        rows = [(gpu, queue, 0, "", *rest) for gpu, queue, *rest in ops]
        names = 'gpuId, queueId, sequenceId, completionSignal, start, "end", description_id, opType_id'
        written.executemany(f"INSERT INTO rocpd_op ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        names = 'pid, tid, start, "end", apiName_id, args_id'
        written.executemany(f"INSERT INTO rocpd_api ({names}) VALUES (?, ?, ?, ?, ?, ?)", apis)
        written.executemany("INSERT INTO rocpd_api_ops (api_id, op_id) VALUES (?, ?)", links)
        written.execute("INSERT INTO rocpd_metadata (tag, value) VALUES ('schema_version', '3')")
    return path


@needs_traces
@pytest.mark.parametrize("name", ["matmul_result.rpd", "mytrace.rpd"])
def test_real_counts(name: str):
    path = real(f"rpd/{name}")
    found = read(path)
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as plain:
        copies, others = (
            plain.execute(
                "SELECT count(*) FROM rocpd_op o JOIN rocpd_string s ON s.id = o.opType_id WHERE "
                f"{what} (s.string LIKE 'Copy%' OR s.string LIKE 'Fill%')"
            ).fetchone()[0]
            for what in ("", "NOT")
        )
        markers = plain.execute("SELECT count(*) FROM api WHERE apiName = 'UserMarker'").fetchone()[0]
        calls = plain.execute("SELECT count(*) FROM api WHERE apiName LIKE 'hip%'").fetchone()[0]
        launched = plain.execute(
            'SELECT o.start, o."end", a.start, n.string FROM rocpd_op o JOIN rocpd_api_ops l ON l.op_id = o.id '
            "JOIN rocpd_api a ON a.id = l.api_id JOIN rocpd_string n ON n.id = o.description_id "
            "JOIN rocpd_string s ON s.id = o.opType_id WHERE s.string IN ('KernelExecution', 'Task')"
        ).fetchall()
    assert len(found.activities) == copies + others
    assert len([a for a in found.activities if a["is_memory"]]) == copies
    assert (len(found.ranges), len(found.calls)) == (markers, calls)
    starts = {call["correlation"]: call["start_ns"] for call in found.calls}
    ours = [(k["start_ns"], k["end_ns"], starts[k["correlation"]], found.name(k)) for k in found.kernels]
    assert sorted(ours) == sorted(launched)


@needs_traces
@pytest.mark.parametrize("name", ["matmul_result.rpd", "mytrace.rpd"])
def test_real_sizes_of_copies(name: str):
    """A call that made one copy gives its size; of a call that made several copies no size is known."""
    path = real(f"rpd/{name}")
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as plain:
        links = plain.execute("SELECT api_id, op_id FROM rocpd_api_ops").fetchall()
        sizes = dict(plain.execute("SELECT api_ptr_id, size FROM rocpd_copyapi").fetchall())
        starts = dict(plain.execute("SELECT id, start FROM rocpd_op").fetchall())
        kinds = dict(
            plain.execute("SELECT o.id, s.string FROM rocpd_op o JOIN rocpd_string s ON s.id = o.opType_id").fetchall()
        )
    operations = Counter(api for api, _ in links)
    expected = Counter(
        (starts[op], sizes.get(api) if operations[api] == 1 else None)
        for api, op in links
        if kinds[op].startswith(("Copy", "Fill"))
    )
    ours = Counter((a["start_ns"], a["size_bytes"]) for a in read(path).activities if a["is_memory"])
    assert ours == expected
    assert any(size is not None for _, size in ours)


def test_launches_steps_and_graphs(tmp_path: Path):
    path = database(
        tmp_path / "rank-1.rpd",
        [(2, 1, 100, 200, GEMM, KERNEL), (2, 1, 210, 220, GEMM, TASK), (2, 1, 230, 240, EMPTY, COPY)],
        [(7, 8, 50, 60, LAUNCH, EMPTY), (7, 8, 70, 80, LAUNCH, EMPTY), (7, 8, 40, 300, MARKER, STEP)],
        [(1, 1), (1, 2), (2, 3)],
    )
    found = read(path)
    assert [(found.name(k), (found.launch(k) or {})["start_ns"]) for k in found.kernels] == [
        ("gemm(int)", 50),
        ("gemm(int)", 50),
    ]
    assert [(r["text"], r["start_ns"], r["end_ns"], r["thread"]) for r in found.ranges] == [("step 4", 40, 300, 8)]
    assert found.recording.processes[0].pid == 7
    assert found.recording.profiler_version == "RPD schema 3"
    assert found.recording.problems == []


def test_operations_without_a_call(tmp_path: Path):
    path = database(tmp_path / "x.rpd", [(2, 1, 100, 200, GEMM, KERNEL)] * 2, [(7, 8, 50, 60, LAUNCH, EMPTY)], [(1, 1)])
    found = read(path)
    assert {k["process"] for k in found.kernels} == {0}
    assert [k["correlation"] for k in found.kernels] == [1, None]
    assert any("1 GPU operations have no call" in problem for problem in found.recording.problems)


def test_no_operations_and_damage(tmp_path: Path):
    path = database(tmp_path / "x.rpd", [], [(7, 8, 50, 60, LAUNCH, EMPTY)], [])
    with pytest.raises(UnreadableTraceError, match="no GPU operations"):
        list(readers()["rpd"].open(path)[1](lambda _: None))
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UnreadableTraceError, match="damaged or cut short"):
        list(readers()["rpd"].open(path)[1](lambda _: None))
