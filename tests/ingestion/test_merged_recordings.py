"""Recordings that were merged of those of several processes: two hosts whose four GPUs have equal numbers."""

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import jitter
from jitter.core.errors import JitterError
from jitter.ingestion.ingest import IngestReport
from jitter.simulate import Job, simulate, write
from tests.support.databases import open_database

RANKS, NODE = 8, 4
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
Edit = Callable[[int, dict[str, Any]], None]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    job = simulate(Job(ranks=RANKS, gpus_per_node=NODE, steps=3, kernels=40, seed=4))
    write(job, folder / "kineto", "kineto")
    write(job, folder / "nsys", "nsys", ranks_per_report=RANKS)
    return folder


def _merge(run: Path, path: Path, edit: Edit, ranks: int = RANKS) -> Path:
    """Write the events of the first ranks into one file, by time, each as `edit` makes it."""
    events: list[dict[str, Any]] = []
    first_ns = None
    for rank in range(ranks):
        trace = json.loads(gzip.decompress((run / f"kineto/rank-{rank}.pt.trace.json.gz").read_bytes()))
        first_ns = trace["baseTimeNanoseconds"] if first_ns is None else first_ns
        for event in trace["traceEvents"]:
            event["ts"] = event["ts"] + (trace["baseTimeNanoseconds"] - first_ns) / 1000
            edit(rank, event)
        events += trace["traceEvents"]
    events.sort(key=lambda event: event["ts"])
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": first_ns, "traceEvents": events}))
    return path


def _is_of_host(event: dict[str, Any]) -> bool:
    return event["cat"] not in GPU and event["ph"] != "f"


def _own_pids(rank: int, event: dict[str, Any]) -> None:
    if _is_of_host(event):
        event["pid"] = 9000 + rank


def _equal_pids(rank: int, event: dict[str, Any]) -> None:
    if _is_of_host(event):
        event["pid"] = event["tid"] = 9000 + rank % NODE


def _fused(rank: int, event: dict[str, Any]) -> None:
    """Offset process ids and correlations, and state the rank, as TraceLens does."""
    event["pid"] += rank * 10**6
    event["args"] = event.get("args", {}) | {"rank": rank}
    if "correlation" in event["args"]:
        event["args"]["correlation"] += rank * 10**6


def _labelled(rank: int, event: dict[str, Any]) -> None:
    event["pid"] = f"rank{rank}: {event['pid']}"


def _ingest(path: Path, folder: Path) -> IngestReport:
    return jitter.ingest([path], folder / "lake")


def _kernels(lake: Path, rank: int) -> list[dict[str, Any]]:
    paths = sorted(lake.glob(f"kernels/step=*/rank={rank}.parquet"))
    assert len(paths) == 3
    columns = ["kernel_name", "device", "stream", "start_ns", "duration_ns", "launch_start_ns"]
    return [row for path in paths for row in pq.read_table(path, columns=columns, partitioning=None).to_pylist()]


def test_ranks_of_a_fused_trace_equal_those_of_their_own_traces(run: Path, tmp_path: Path):
    report = _ingest(_merge(run, tmp_path / "fused.json", _fused), tmp_path)
    assert sorted((record.rank, record.device) for record in report.added) == [
        (rank, rank % NODE) for rank in range(RANKS)
    ]
    jitter.ingest([run / "kineto"], tmp_path / "own")
    for rank in range(RANKS):
        fused, own = (_kernels(tmp_path / name, rank) for name in ("lake", "own"))
        shift = fused[0]["start_ns"] - own[0]["start_ns"]
        for row in own:
            row["start_ns"], row["launch_start_ns"] = row["start_ns"] + shift, row["launch_start_ns"] + shift
        assert [row["kernel_name"] for row in fused] == [row["kernel_name"] for row in own]
        for one, other in zip(fused, own, strict=True):
            assert one["device"] == other["device"]
            assert all(abs(one[name] - other[name]) <= 2 for name in ("start_ns", "duration_ns", "launch_start_ns"))


def test_each_process_of_a_host_has_the_gpu_that_ran_its_kernels(run: Path, tmp_path: Path):
    """The process ids rise with the device here, but a kernel's nearest call is often that of another process."""
    report = _ingest(_merge(run, tmp_path / "host.json", _own_pids, NODE), tmp_path)
    assert sorted((record.device, record.pid) for record in report.added) == [
        (rank, 9000 + rank) for rank in range(NODE)
    ]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (_own_pids, "of 8 processes merged into one file .*launched the kernels of device"),
        (_equal_pids, "of 4 processes merged into one file|holds the kernels of several GPUs as those of device"),
        (_labelled, r"processes are labelled, as rank\d\)"),
    ],
)
def test_hosts_that_cannot_be_told_apart_are_refused(run: Path, tmp_path: Path, edit: Edit, reason: str):
    report = _ingest(_merge(run, tmp_path / "merged.json", edit), tmp_path)
    (error,) = report.refused
    assert not report.added
    with pytest.raises(JitterError, match=reason) as caught:
        raise error
    assert re.search("give the ranks' own files|merged of several recordings, give these", caught.value.hint or "")


def test_two_gpus_of_equal_number_and_process_are_refused(run: Path, tmp_path: Path):
    def both(rank: int, event: dict[str, Any]) -> None:
        if _is_of_host(event):
            event["pid"] = event["tid"] = 42
        elif "args" in event:
            event["pid"] = event["args"]["device"] = 0

    report = _ingest(_merge(run, tmp_path / "merged.json", both, 2), tmp_path)
    assert "holds the kernels of several GPUs as those of device 0" in str(report.refused[0])


def _merge_reports(run: Path, path: Path, machine: int | None, *, with_ranks: bool = True) -> Path:
    """Write the rows of both hosts' reports into one; `machine` is the number of the second one, None: as the first."""
    first, second = sorted((run / "nsys").glob("*.sqlite"))
    shutil.copy(first, path)
    with open_database(path) as merged:
        merged.execute("ATTACH ? AS other", (str(second),))
        (texts,) = merged.execute("SELECT max(id) + 1 FROM StringIds").fetchone()
        merged.execute("INSERT INTO StringIds SELECT id + ?, value FROM other.StringIds", (texts,))
        (shift,) = merged.execute(
            "SELECT (SELECT utcEpochNs FROM other.TARGET_INFO_SESSION_START_TIME) - utcEpochNs "
            "FROM TARGET_INFO_SESSION_START_TIME"
        ).fetchone()
        words = dict.fromkeys(("demangledName", "shortName", "mangledName", "nameId", "textId"), f"{{}} + {texts}")
        words |= dict.fromkeys(("start", "end"), f"{{}} + {shift}")
        if machine is not None:
            moved = f"({{}} & {(1 << 48) - 1}) | ({machine} << 48)"
            words |= dict.fromkeys(("globalPid", "globalTid", "globalVid"), moved)
        for table in ("KERNEL", "RUNTIME", "MEMCPY", "MEMSET", "NVTX_EVENTS", "TARGET_INFO_SYSTEM_ENV"):
            name = table if "_" in table else f"CUPTI_ACTIVITY_KIND_{table}"
            columns = [row[1] for row in merged.execute(f"PRAGMA table_info({name})")]
            values = ", ".join(words.get(column, "{}").format(f'"{column}"') for column in columns)
            merged.execute(f"INSERT INTO {name} SELECT {values} FROM other.{name}")
        if not with_ranks:
            merged.execute("UPDATE NVTX_EVENTS SET text = substr(text, 1, instr(text || '-rank', '-rank') - 1)")
    return path


def test_processes_of_two_hosts_in_one_report_are_ranks_of_their_own(run: Path, tmp_path: Path):
    report = _ingest(_merge_reports(run, tmp_path / "merged.sqlite", 2), tmp_path)
    assert sorted((record.rank, record.host, record.device) for record in report.added) == [
        (rank, f"node{rank // NODE:04}", rank % NODE) for rank in range(RANKS)
    ]
    assert {record.kernels for record in report.added} == {
        record.kernels for record in _ingest(run / "nsys", tmp_path / "own").added
    }


def test_processes_of_two_hosts_without_ranks_are_refused(run: Path, tmp_path: Path):
    report = _ingest(_merge_reports(run, tmp_path / "merged.sqlite", 2, with_ranks=False), tmp_path)
    assert "GPUs of its processes have equal numbers" in str(report.refused[0])


@pytest.mark.parametrize("with_ranks", [True, False])
def test_equal_processes_of_two_hosts_in_one_report_are_refused(run: Path, tmp_path: Path, with_ranks: bool):
    report = _ingest(_merge_reports(run, tmp_path / "merged.sqlite", None, with_ranks=with_ranks), tmp_path)
    assert not report.added
    assert "holds the kernels of several GPUs as those of device 0" in str(report.refused[0])


def test_processes_that_share_a_gpu_are_read(run: Path, tmp_path: Path):
    """As with MIG or MPS: two processes, one device."""
    path = tmp_path / "shared.sqlite"
    shutil.copy(min((run / "nsys").glob("*.sqlite")), path)
    with open_database(path) as report:
        for table in ("KERNEL", "MEMCPY", "MEMSET"):
            report.execute(f"UPDATE CUPTI_ACTIVITY_KIND_{table} SET deviceId = deviceId / 2")
    assert sorted((record.rank, record.device) for record in _ingest(path, tmp_path).added) == [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 1),
    ]


@pytest.mark.parametrize(("edit", "clock"), [(_fused, "another"), (_own_pids, "own"), (_own_pids, "none")])
def test_a_merged_recording_beside_the_ranks_own_is_left_out(run: Path, tmp_path: Path, edit: Edit, clock: str):
    """Tools that merge may shift the clock: that was a second job of the same size, and nothing was read."""
    (tmp_path / "traces").mkdir()
    for rank in range(NODE):
        shutil.copy(run / f"kineto/rank-{rank}.pt.trace.json.gz", tmp_path / "traces")
    merged = _merge(run, tmp_path / "traces/merged.json", edit, NODE)
    if clock != "own":
        trace = json.loads(merged.read_text())
        first = min(event["ts"] for event in trace["traceEvents"])
        for event in trace["traceEvents"]:
            event["ts"] -= first
        trace |= {"baseTimeNanoseconds": 0} if clock == "none" else {}
        merged.write_text(json.dumps(trace))
    report = _ingest(tmp_path / "traces", tmp_path)
    (error,) = report.refused
    assert f"merged.json: {NODE} ranks merged into one file, whose own recordings are here too" in str(error)
    assert sorted(record.rank for record in report.added) == list(range(NODE))
    assert {Path(record.file).name for record in report.added} == {
        f"rank-{rank}.pt.trace.json.gz" for rank in range(NODE)
    }
    own = jitter.ingest([run / "kineto"], tmp_path / "own")
    assert {(record.rank, record.kernels) for record in report.added} <= {
        (record.rank, record.kernels) for record in own.added
    }


def test_a_merged_recording_is_read_if_one_rank_has_none_of_its_own(run: Path, tmp_path: Path):
    merged = _merge(run, tmp_path / "merged.json", _fused, NODE)
    (tmp_path / "traces").mkdir()
    for rank in range(NODE - 1):
        shutil.copy(run / f"kineto/rank-{rank}.pt.trace.json.gz", tmp_path / "traces")
    merged.rename(tmp_path / "traces/merged.json")
    report = jitter.ingest([tmp_path / "traces/merged.json"], tmp_path / "lake")
    assert sorted(record.rank for record in report.added) == list(range(NODE))
    again = _ingest(tmp_path / "traces", tmp_path)
    assert not any("merged into one file" in str(error) for error in again.refused)
