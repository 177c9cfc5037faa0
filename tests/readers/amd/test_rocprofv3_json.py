"""rocprofv3's JSON: records joined by the file's own lists, cut into pieces, damaged."""

import gzip
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from jitter.core.errors import UnreadableTraceError
from jitter.core.names.kernels import is_collective
from jitter.readers import json_document, readers
from jitter.readers.json_document import JsonStream
from tests.support.amd_traces import read, real
from tests.support.real_recordings import needs_traces

KINDS = ["NONE", "HIP_RUNTIME_API", "MARKER_CORE_API", "KERNEL_DISPATCH", "MEMORY_COPY", "RCCL_API"]
OPERATIONS = {1: ["hipMalloc", "hipLaunchKernel"], 2: ["roctxMarkA", "roctxRangePushA"], 5: ["ncclAllReduce"]}
OPERATIONS[4] = ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_DEVICE", "MEMORY_COPY_DEVICE_TO_HOST"]


def api(kind: int, operation: int, start: int, end: int, correlation: int) -> dict[str, Any]:
    return {
        "size": 88,
        "kind": kind,
        "operation": operation,
        "correlation_id": {"internal": correlation, "external": 0},
        "start_timestamp": start,
        "end_timestamp": end,
        "thread_id": 71,
    }


def dispatch(kernel: int, start: int, end: int, correlation: int) -> dict[str, Any]:
    sizes = {"workgroup_size": {"x": 64, "y": 2, "z": 1}, "grid_size": {"x": 100, "y": 4, "z": 1}}
    info = {"size": 72, "agent_id": {"handle": 900}, "queue_id": {"handle": 3}, "kernel_id": kernel, **sizes}
    return {**api(3, 2, start, end, correlation), "dispatch_info": info, "stream_id": {"handle": 8}}


def copy(operation: int, start: int, end: int, correlation: int) -> dict[str, Any]:
    agents = [{"handle": 900}, {"handle": 800}]
    dst, src = agents if operation == 1 else agents[::-1]
    return {**api(4, operation, start, end, correlation), "dst_agent_id": dst, "src_agent_id": src, "bytes": 10 * end}


def tool(**tables: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = [{"kind": kind, "operations": OPERATIONS.get(n, [])} for n, kind in enumerate(KINDS)]
    return {
        "metadata": {"pid": 77, "node": {"hostname": "mi300-1"}, "command": ["python", "}{"]},
        "agents": [
            {"size": 312, "id": {"handle": 800}, "type": 1, "node_id": 0},
            {"size": 312, "id": {"handle": 900}, "type": 2, "node_id": 4},
        ],
        "strings": {"buffer_records": kinds, "marker_api": [{"key": 5, "value": "step 3"}]},
        "kernel_symbols": [
            {"size": 1, "kernel_id": 1, "kernel_name": "_Z1kv", "formatted_kernel_name": "k()"},
            {
                "size": 1,
                "kernel_id": 2,
                "formatted_kernel_name": "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
            },
        ],
        "buffer_records": tables,
    }


def document(path: Path, *tools: dict[str, Any], **dump: Any) -> Path:
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(tools)}, **dump))
    return path


WHOLE = {
    "kernel_dispatch": [dispatch(1, 100, 200, 1), dispatch(2, 150, 250, 2), dispatch(9, 300, 290, 3)],
    "hip_api": [api(1, 1, 50, 60, 1), api(1, 1, 70, 80, 2), api(1, 0, 1, 2, 9)],
    "rccl_api": [api(5, 0, 65, 85, 7)],
    "marker_api": [api(2, 1, 40, 300, 5), api(2, 0, 41, 41, 6)],
    "memory_copy": [copy(1, 10, 20, 1), copy(2, 30, 40, 2)],
}


@needs_traces
def test_real_counts():
    path = real("v3-json/908_results.json.gz")
    found = read(path)
    whole = json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"][0]
    symbols = {one["kernel_id"]: one["formatted_kernel_name"] for one in whole["kernel_symbols"]}
    dispatches = [
        (
            d["start_timestamp"],
            d["end_timestamp"],
            symbols[d["dispatch_info"]["kernel_id"]],
            d["correlation_id"]["internal"],
        )
        for d in whole["buffer_records"]["kernel_dispatch"]
    ]
    assert len(dispatches) == 43_915
    ours = [(a["start_ns"], a["end_ns"], found.name(a), a["correlation"]) for a in found.activities]
    assert sorted(ours) == sorted(dispatches)
    assert sum(is_collective(found.name(k)) for k in found.kernels) == 1_310
    blits = [name for _, _, name, _ in dispatches if name.startswith(("__amd_rocclr_copy", "__amd_rocclr_fill"))]
    assert len(found.activities) - len(found.kernels) == len(blits)
    process = found.recording.processes[0]
    assert (process.pid, process.host) == (908, whole["metadata"]["node"]["hostname"])
    assert {a["device"] for a in found.activities} == {0}
    assert found.recording.rank_in_name is None


@pytest.mark.parametrize("dump", [{}, {"indent": 1}, {"separators": (",", ":")}])
@pytest.mark.parametrize("piece", [1, 300, 1 << 22])
def test_all_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dump: dict[str, Any], piece: int):
    monkeypatch.setattr(json_document, "_PART_BYTES", piece)
    monkeypatch.setattr(json_document, "_READ_BYTES", piece)
    path = document(tmp_path / "rank-1_results.json", tool(**WHOLE), **dump)
    found = read(path)
    collective = [(found.name(k), k["collective"], (found.launch(k) or {})["start_ns"]) for k in found.kernels]
    assert collective == [
        ("k()", None, 50),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "all_reduce", 70),
    ]
    assert [(k["device"], k["stream"], k["grid_x"], k["grid_y"], k["block_x"]) for k in found.kernels] == [
        (0, 8, 2, 2, 64)
    ] * 2
    assert [(r["text"], r["start_ns"], r["end_ns"], r["thread"]) for r in found.ranges] == [("step 3", 40, 300, 71)]
    assert [(found.name(a), a["device"], a["size_bytes"]) for a in found.activities if a["is_memory"]] == [
        ("MEMORY_COPY_HOST_TO_DEVICE", 0, 200),
        ("MEMORY_COPY_DEVICE_TO_HOST", 0, 400),
    ]
    assert len(found.calls) == 3
    assert found.recording.problems == [
        "1 kernels' names are missing from its kernel_symbols",
        "1 GPU activities without a possible time were left out",
    ]


def test_several_processes(tmp_path: Path):
    other = tool(kernel_dispatch=[dispatch(1, 101, 201, 1)], hip_api=[api(1, 1, 51, 60, 1)])
    other["metadata"]["pid"] = 78
    found = read(document(tmp_path / "x_results.json", tool(**WHOLE), other))
    assert [p.pid for p in found.recording.processes] == [77, 78]
    assert [(found.launch(k) or {})["start_ns"] for k in found.kernels] == [50, 51, 70]


@pytest.mark.parametrize("read", [1, 7, 4096])
@pytest.mark.parametrize("part", [1, 300, 1000])
def test_parts_cover_every_record(monkeypatch: pytest.MonkeyPatch, read: int, part: int):
    monkeypatch.setattr(json_document, "_PART_BYTES", part)
    monkeypatch.setattr(json_document, "_READ_BYTES", read)
    monkeypatch.setattr(json_document, "_FIRST_BYTES", 2)
    nested = [{"size": 1, "x": [1]}, {"size": 2}]
    records = [{"size": 1, "text": f'}}, {{"size": {n}é', "n": n, "nested": nested} for n in range(100)]
    document = {"before": [{"x": 12}, -1.5e3, "a\\"], "records": records, "none": [], "after": {"records": records}}
    stream = JsonStream(io.BytesIO(json.dumps(document, ensure_ascii=False).encode()))
    found: dict[str, Any] = {}
    positions: dict[str, int] = {}
    for name in stream.members():
        stream.peek()
        positions[name] = stream.position
        if name in ("records", "none"):
            found[name] = list(stream.parts(dict))
        elif name == "before":
            found[name] = [stream.value(object) for _ in stream.items()]
        else:
            stream.skip()
    assert found["before"] == document["before"]
    assert [one for part in found["records"] for one in part] == records
    assert len(found["records"]) > (20 if part < 1000 else 5)
    assert [one for part in found["none"] for one in part] == []
    stream.seek(positions["after"])
    assert stream.value(object) == document["after"]


def test_every_cut_of_a_document_is_refused(tmp_path: Path):
    content = document(tmp_path / "x_results.json", tool(**WHOLE)).read_bytes()
    path = tmp_path / "y_results.json"
    for length in range(30, len(content) - 1, 7):
        path.write_bytes(content[:length])
        with pytest.raises(UnreadableTraceError, match="damaged or cut short"):
            list(readers()["rocprof-json"].open(path)[1](lambda _: None))


def test_nothing_is_unpacked_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plain = document(tmp_path / "0_results.json", tool(**WHOLE))
    path = tmp_path / "0_results.json.gz"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    assert read(path).kernels == read(plain).kernels


@pytest.mark.parametrize("zipped", [False, True])
def test_cut(tmp_path: Path, zipped: bool):
    path = document(tmp_path / "x_results.json", tool(**WHOLE))
    content = path.read_bytes()
    if zipped:
        path = path.with_name("x_results.json.gz")
        content = gzip.compress(content)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(UnreadableTraceError, match="damaged or cut short"):
        list(readers()["rocprof-json"].open(path)[1](lambda _: None))


def test_a_name_that_is_no_utf8_loses_itself(tmp_path: Path):
    path = document(tmp_path / "x_results.json", tool(**WHOLE))
    whole = read(path)
    path.write_bytes(path.read_bytes().replace(b"_Z1kv", b"_Z\xff"))
    found = read(path)
    assert len(found.kernels) == len(whole.kernels)
    assert "[kernel 1 is not in the file]" in found.recording.names
    assert any("1 record has values of another type" in problem for problem in found.recording.problems)


def test_no_kernels(tmp_path: Path):
    path = document(tmp_path / "x_results.json", tool(hip_api=WHOLE["hip_api"]))
    with pytest.raises(UnreadableTraceError, match="no kernels"):
        list(readers()["rocprof-json"].open(path)[1](lambda _: None))


def test_other_json_is_no_trace(tmp_path: Path):
    for name, content in {"a.json": b"{}", "b.json": b"", "c.json.gz": b"\x1f\x8b\x00", "d.json": b"[1]"}.items():
        (tmp_path / name).write_bytes(content)
        assert not readers()["rocprof-json"].sniff(tmp_path / name)
