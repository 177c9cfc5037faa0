"""The first rocprof: database, Chrome trace and CSV of one run are one recording."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import jitter
from jitter.ingestion.discovery.discover import discover
from jitter.readers import readers
from jitter.simulate import Job, simulate, write
from tests.support.amd_traces import Read, read, real
from tests.support.databases import open_database, run_sql
from tests.support.reading import refusal
from tests.support.real_recordings import needs_traces

JOB = Job(ranks=2, steps=2, kernels=30, seed=6, epoch=None, marker="profiler")
HEAD = "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,vgpr,sgpr,fbar,sig,obj,SQ_WAVES"
TIMES = ",DispatchNs,BeginNs,EndNs,CompleteNs"


def sample(folder: Path, **options: object) -> list[Path]:
    return write(simulate(JOB), folder, "rocprof-v1", **options)


def seen(found: Read, rows: list[dict[str, Any]] | None = None) -> list[tuple[Any, ...]]:
    """The GPU activities of a recording, in any of its formats, by start."""
    return [
        (k["start_ns"], k["end_ns"], found.name(k), k["device"], k["stream"], (found.launch(k) or {}).get("start_ns"))
        for k in sorted(rows or found.activities, key=lambda row: (row["start_ns"], row["end_ns"]))
    ]


@needs_traces
def test_real_database():
    path = real("v1/myprofile-0.db")
    found = read(path)
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        count = {
            table: database.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
            for table in ("OPS", "COPY", "rocTX")
        }
        calls = database.execute("SELECT count(*) FROM HIP WHERE Name LIKE 'hip%'").fetchone()[0]
        launched = database.execute(
            'SELECT o.BeginNs, o.EndNs, h.BeginNs FROM OPS o JOIN HIP h ON o."Index" = h."Index" ORDER BY o.BeginNs'
        ).fetchall()
    assert len(found.kernels) == count["OPS"] == 100
    assert len(found.activities) == count["OPS"] + count["COPY"]
    assert (len(found.ranges), len(found.calls)) == (count["rocTX"], calls)
    assert [(start, end, launch) for start, end, _, _, _, launch in seen(found, found.kernels)] == launched
    assert found.recording.rank_in_name == 0


@needs_traces
def test_real_chrome_trace_tells_the_same():
    database, trace = read(real("v1/myprofile-0.db")), read(real("v1/myprofile-0.json"))
    events = json.loads(real("v1/myprofile-0.json").read_text())["traceEvents"]
    assert len(trace.activities) == len([e for e in events if e.get("ph") == "X" and e["pid"] in (1, 8)])
    assert len(trace.ranges) == len([e for e in events if e.get("ph") == "X" and e["pid"] == 0])
    assert seen(trace) == seen(database)


@needs_traces
def test_real_folder_is_one_recording():
    found = discover([real("v1")])
    (source,) = found.sources
    assert source.path.name == "myprofile-0.db"
    assert {file.name for file in source.files} == {"myprofile-0.db", "myprofile-0.sysinfo.txt"}
    assert found.others == 1  # the licence


@pytest.mark.parametrize("graphs", ["off", "node"])
def test_database_and_trace_agree(tmp_path: Path, graphs: str):
    for path, own in zip(sample(tmp_path, graphs=graphs), simulate(JOB).ranks(), strict=True):
        database, trace = read(path), read(path.with_suffix(".json"))
        assert seen(database) == seen(trace)
        assert len(database.kernels) == len([op for op in own.ops() if op.kind != "memory"])
        assert {a["device"] for a in database.activities} == {own.device}  # by sysinfo; the node is another number
        assert [c["name"] for c in database.kernels] != []
        assert database.recording.rank_in_name == own.rank


def test_forms_of_a_run_are_one_recording(tmp_path: Path):
    sample(tmp_path)
    for name in ("stats", "hip_stats", "copy_stats"):
        (tmp_path / f"myprofile-0.{name}.csv").write_text('"Name","Calls"\n')
    (tmp_path / "myprofile-0.csv").write_text(f"{HEAD}\n")
    assert [source.path.name for source in discover([tmp_path]).sources] == ["myprofile-0.db", "myprofile-1.db"]
    assert discover([tmp_path]).others == 0
    # of its own, each is read
    (tmp_path / "myprofile-1.db").unlink()
    names = [source.path.name for source in discover(sorted(tmp_path.iterdir())).sources]
    assert names == ["myprofile-0.db", "myprofile-1.json"]


def test_ranks_from_numbers_behind_a_word(tmp_path: Path):
    sample(tmp_path / "traces")
    report = jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    assert sorted((record.rank, record.rank_told_by) for record in report.added) == [(0, "file name"), (1, "file name")]


def test_older_csv(tmp_path: Path):
    path = tmp_path / "rank-2.csv"
    rows = [
        '0,"void k<int, 3>(int*) [clone .kd]",4,0,0,77,77,64,64,0,0,8,8,0,0x0,0x7f,64,90,100,200,210',
        '1,"k2.kd",4,1,0,77,77,64,64,0,0,8,8,0,0x0,0x7f,64,95,150,250,260',
        '2,"k3.kd",4,1,0,77,77,64',
    ]
    path.write_text("\n".join([HEAD + TIMES, *rows]) + "\n")
    found = read(path)
    assert [
        (k["start_ns"], k["end_ns"], found.name(k), k["stream"], k["grid_x"], k["block_x"]) for k in found.kernels
    ] == [
        (100, 200, "void k<int, 3>(int*)", 0, 1, 64),
        (150, 250, "k2", 1, 1, 64),
    ]
    assert found.recording.processes[0].pid == 77
    assert any("1 rows" in problem for problem in found.recording.problems)


def test_csv_without_times(tmp_path: Path):
    (tmp_path / "rank-2.csv").write_text(f"{HEAD}\n0,k,4,0,0,77,77,64,64,0,0,8,8,0,0x0,0x7f,64\n")
    assert "--timestamp on" in refusal("rocprof-v1", tmp_path / "rank-2.csv")


def test_quoted_heading_of_the_database_path(tmp_path: Path):
    path = tmp_path / "rank-2.csv"
    path.write_text(
        '"Index","KernelName","gpu-id","queue-id","pid","BeginNs","EndNs","DurationNs"\n0,"k",2,0,7,10,30,20\n'
    )
    assert [(k["start_ns"], k["device"]) for k in read(path).kernels] == [(10, 2)]


def test_barriers_are_no_kernels(tmp_path: Path):
    (path, _) = sample(tmp_path, forms="db")
    before = read(path)
    with open_database(path) as database:
        for name in ('"<barrier packet>"', "<barrier packet>", "Marker"):
            database.execute(
                'INSERT INTO OPS ("BeginNs", "EndNs", "dev-id", "Name", "pid", "Index") VALUES (1, 2, 4, ?, 7, 0)',
                (name,),
            )
    assert seen(read(path)) == seen(before)


def test_cut_trace(tmp_path: Path):
    (path, _) = sample(tmp_path, forms="json")
    whole = read(path)
    events = path.read_bytes()
    # within the kernels, which come after markers and calls; the arrows are gone
    path.write_bytes(events[: events.rindex(b'"ph": "X"') + 30])
    cut = read(path)
    assert len(cut.activities) == len(whole.activities) - 1
    assert (len(cut.calls), len(cut.ranges)) == (len(whole.calls), len(whole.ranges))
    assert any("is cut" in problem for problem in cut.recording.problems)


def test_a_broken_event_among_others(tmp_path: Path):
    (path, _) = sample(tmp_path, forms="json")
    whole = read(path)
    lines = path.read_text().splitlines(keepends=True)
    at = next(
        n for n, line in enumerate(lines) if '"Memory' not in line and '"pid": 4, ' not in line and "queue-id" in line
    )
    lines[at] = lines[at].replace('"ph"', '"ph')
    path.write_text("".join(lines))
    found = read(path)
    assert len(found.activities) == len(whole.activities) - 1
    assert [problem for problem in found.recording.problems if "at least 1 event;" in problem]


def test_trace_laid_out_by_others(tmp_path: Path):
    """Written again by another tool: one line, no arrows' layout to cut by."""
    (path, _) = sample(tmp_path, forms="json")
    whole = read(path)
    path.write_text(json.dumps(json.loads(path.read_text()), separators=(",", ":")))
    assert seen(read(path)) == seen(whole)


def test_kernels_in_one_microsecond(tmp_path: Path):
    """Which of two arrows leads to which is not recorded: neither is guessed."""
    (path, _) = sample(tmp_path, forms="json")
    trace = json.loads(path.read_text())
    ends = [event for event in trace["traceEvents"] if event.get("ph") == "t"]
    ends[1]["ts"] = ends[0]["ts"]
    path.write_text(json.dumps(trace))
    found = read(path)
    assert any("2 kernels start in the same microsecond as another" in problem for problem in found.recording.problems)


def test_no_kernels_and_no_database(tmp_path: Path):
    (path, _) = sample(tmp_path, forms="db")
    run_sql(path, "DELETE FROM OPS", "DELETE FROM COPY")
    assert "no kernels" in refusal("rocprof-v1", path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert "damaged or cut short" in refusal("rocprof-v1", path)
    path.write_bytes(b"")
    assert not readers()["rocprof-v1"].sniff(path)


def test_several_processes_in_one_database(tmp_path: Path):
    (path, _) = sample(tmp_path, forms="db")
    with open_database(path) as database:
        for table in ("OPS", "HIP"):
            database.execute(f'CREATE TEMP TABLE more AS SELECT * FROM "{table}"')
            database.execute("UPDATE more SET pid = 99, BeginNs = BeginNs + 1")
            database.execute(f'INSERT INTO "{table}" SELECT * FROM more')
            database.execute("DROP TABLE more")
    found = read(path)
    assert len(found.recording.processes) == 2
    for kernel in found.kernels:
        launch = found.launch(kernel)
        assert launch is not None
        assert launch["process"] == kernel["process"]


def test_numbers_that_are_none(tmp_path: Path):
    """One event's fraction or blank costs that number, not the event."""
    (path, _) = sample(tmp_path, forms="json")
    whole = read(path)
    text = path.read_text()
    text = text.replace(f'"stream-id": "{whole.kernels[0]["stream"]}"', '"stream-id": ""', 1)
    text = text.replace('"dur": "', '"dur": "1.5", "was": "', 1)
    path.write_text(text)
    found = read(path)
    assert [(a["start_ns"], a["end_ns"]) for a in found.activities] == [
        (a["start_ns"], a["end_ns"]) for a in whole.activities
    ]
    assert sum(a["stream"] is None for a in found.activities) == 1
