"""Every variety of trace that PyTorch writes."""

import gzip
import json
from pathlib import Path

import pytest

import jitter
from jitter.core.errors import UnreadableTraceError
from jitter.lake.parquet import read_kernels
from jitter.readers.kineto import READER
from jitter.readers.kineto.metadata import host_in_file_name
from jitter.simulate import Job, simulate
from jitter.simulate import write as write_run
from tests.support.kineto_traces import (
    as_read,
    call,
    expected,
    kernel,
    operator,
    parsed,
    read,
    small,
    step,
    text,
    write,
)

EPOCH_US = 1_712_195_495_519_689
OLD = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "cuda_runtime": "Runtime"}
PARAMS = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 2,
    "dtype": "BFloat16",
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
    "Seq": 9,
}
COLUMNS = ("collective", "message_bytes", "dtype", "group_name", "group_ranks", "group_size", "sequence")
NCCL = "ncclDevKernel_Generic(ncclDevComm*)"


def one(tmp_path: Path, *events, **how):
    return read(write(tmp_path / "t.json", list(events), **how))


@pytest.mark.parametrize("suffix", ["json", "json.gz", "gz", "anything"])
@pytest.mark.parametrize("indent", [None, 0, 2])
def test_plain_or_gzip_compact_or_spread(tmp_path: Path, suffix: str, indent: int | None) -> None:
    events = [*small(), kernel("Memcpy HtoD", 300, cat="gpu_memcpy"), kernel("Memset", 400, cat="gpu_memset")]
    path = write(tmp_path / f"t.{suffix}", text(events, indent=indent))
    assert READER.sniff(path)
    recording, rows = read(path)
    assert as_read(recording, rows) == expected(parsed(text(events))["traceEvents"])
    assert recording.problems == []


def test_gzip_in_several_members_with_padding(tmp_path: Path) -> None:
    content = text(small(50))
    cut = len(content) // 3
    path = tmp_path / "t.json"
    path.write_bytes(gzip.compress(content[:cut]) + gzip.compress(content[cut:]) + bytes(100))
    recording, rows = read(path)
    assert len(rows["activities"]) == 50
    assert recording.problems == []


def test_a_bare_array(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", json.dumps(small()).encode())
    assert READER.sniff(path)
    recording, rows = read(path)
    assert len(rows["activities"]) == 3
    assert recording.problems == []
    assert recording.processes[0].rank is None


@pytest.mark.parametrize("where", ["before", "after"])
def test_rank_and_base_time_stand_before_or_after(tmp_path: Path, where: str) -> None:
    about = {
        "distributedInfo": {"backend": "nccl", "rank": 3, "pg_config": [{"pg_size": 8}, {"pg_size": 8}]},
        "baseTimeNanoseconds": 1711964646000000000,
        "cupti_version": 28,
    }
    recording, _ = one(tmp_path, *small(), **{where: about})
    assert [(p.pid, p.rank, p.rank_from) for p in recording.processes] == [(42, 3, "distributedInfo")]
    assert recording.utc_offset_ns == 1711964646000000000
    assert recording.profiler_version == "Kineto schema 1, CUPTI 28"


def test_numbers_of_the_job_may_be_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", small(), before={"distributedInfo": {"rank": "3", "world_size": "8"}})
    recording, _ = read(path)
    assert ([process.rank for process in recording.processes], recording.world_size) == ([3], 8)


def test_no_rank_is_guessed(tmp_path: Path) -> None:
    recording, _ = one(tmp_path, *small())
    assert [(p.rank, p.launcher_rank) for p in recording.processes] == [(None, None)]
    assert recording.utc_offset_ns is None


@pytest.mark.parametrize("base", [{}, {"baseTimeNanoseconds": 1711964646000000000}])
def test_times_since_1970_need_no_base(tmp_path: Path, base) -> None:
    recording, _ = one(tmp_path, call(ts=EPOCH_US - 3), kernel(ts=EPOCH_US), before=base)
    assert recording.utc_offset_ns == 0


def test_old_traces(tmp_path: Path) -> None:
    events = [
        step(cat="Operator", tid="2847"),
        operator("aten::add", cat="Operator"),
        operator("AddBackward0", cat="Operator"),
        call(ts=EPOCH_US, tid="2847", cat="Runtime"),
        kernel(ts=EPOCH_US + 10, cat="Kernel") | {"tid": "stream 7"},
        kernel("Memcpy", EPOCH_US + 30, cat="Memcpy"),
    ]
    events[0]["ts"] = EPOCH_US - 5
    _, rows = one(tmp_path, *events)
    assert [row["text"] for row in rows["ranges"]] == ["ProfilerStep#1"]
    assert {row["thread"] for row in rows["ranges"] + rows["calls"]} == {2847}
    assert [(row["start_ns"], row["is_memory"]) for row in rows["activities"]] == [
        ((EPOCH_US + 10) * 1000, False),
        ((EPOCH_US + 30) * 1000, True),
    ]


def test_streams_and_devices_as_recorded(tmp_path: Path) -> None:
    hex_stream = kernel(ts=2, correlation=2) | {"args": {"device": 2, "stream": "0x0", "correlation": 2}}
    nothing = kernel(ts=3, pid=5, stream=9) | {"args": {}}
    none_at_all = kernel(ts=4, pid=5, stream=9)
    del none_at_all["args"]
    launch = call("hipLaunchKernel", 1, stream="0x55d8564ba340")
    _, rows = one(tmp_path, launch, kernel(ts=1, pid=2, stream=0), hex_stream, nothing, none_at_all)
    assert [(row["device"], row["stream"], row["correlation"]) for row in rows["activities"]] == [
        (2, 0, 1),
        (2, 0, 2),
        (5, 9, None),
        (5, 9, None),
    ]


def test_one_correlation_for_many_and_none(tmp_path: Path) -> None:
    many = [kernel(ts=100 + k, dur=2, correlation=5) for k in range(40)]
    stray = kernel(ts=500)
    del stray["args"]["correlation"]
    _, rows = one(tmp_path, call("cudaGraphLaunch", correlation=5), *many, stray)
    assert [row["correlation"] for row in rows["activities"]] == [5] * 40 + [None]


def test_what_is_no_activity(tmp_path: Path) -> None:
    others = [
        kernel(cat=cat, ts=5) for cat in ("gpu_user_annotation", "cuda_sync", "overhead", "python_function", "Trace")
    ]
    markers = [kernel("Marker", 6), kernel("", 7, kind="Marker")]
    _, rows = one(tmp_path, *others, *markers, *small())
    assert len(rows["activities"]) == 3


@pytest.mark.parametrize("where", ["first", "last"])
@pytest.mark.parametrize("other", [None, {"ph": "M"}, {"cat": "of_tomorrow"}, {"cat": None}, {"cat": 7}, [], 7])
def test_categories_that_nobody_knows(tmp_path: Path, other, where: str) -> None:
    """Lists of events all of whose categories are known are decoded in another way: the result is the same."""
    known = [event for event in small(5) if "cat" in event]
    rest = [{key: value for key, value in event.items() if key != "cat"} for event in known]
    categories = [{"cat": event["cat"]} for event in known]
    events = [c | r if where == "first" else r | c for c, r in zip(categories, rest, strict=True)]
    recording, rows = one(tmp_path, *events, *([] if other is None else [other]))
    assert as_read(recording, rows) == expected(parsed(text(known))["traceEvents"])
    assert recording.problems == []


@pytest.mark.parametrize("order", ["params first", "kernel first"])
@pytest.mark.parametrize("told_by", ["kernel", "params"])
def test_collectives(tmp_path: Path, order: str, told_by: str) -> None:
    on_kernel = PARAMS if told_by == "kernel" else {}
    events = [
        operator("record_param_comms", **{"External id": 77}, **PARAMS),
        kernel(NCCL, 100, correlation=5, **{"External id": 77}, **on_kernel),
        kernel("gemm", 200, correlation=6, **{"External id": 77}),
        kernel("ncclKernel_AllReduce_RING", 300, **{"External id": 78}),
    ]
    _, rows = one(tmp_path, *(events if order == "params first" else reversed(events)))
    told = {row["start_ns"]: tuple(row.get(name) for name in COLUMNS) for row in rows["activities"]}
    assert told[100_000] == ("all_reduce", 2000, "BFloat16", "0", [0, 1], 2, 9)
    assert told[200_000] == told[300_000] == (None,) * 7


@pytest.mark.parametrize(
    ("changed", "column", "value"),
    [
        ({"Process Group Ranks": "[0, 1, ...]"}, "group_ranks", None),
        ({"Process Group Ranks": "[0, 1, 2, 3...]"}, "group_ranks", None),
        ({"Process Group Ranks": [3, 4]}, "group_ranks", [3, 4]),
        ({"Process Group Ranks": "[]"}, "group_ranks", None),
        ({"dtype": "Float8_e4m3fn"}, "message_bytes", 1000),
        ({"dtype": "Weird"}, "message_bytes", None),
        ({"Collective name": "_allgather_base", "Out msg nelems": 2000}, "message_bytes", 2000),
        ({"Collective name": "_reduce_scatter_base", "In msg nelems": 2000}, "message_bytes", 4000),
        ({"Collective name": "recv", "In msg nelems": 0, "Out msg nelems": 10}, "message_bytes", 20),
        ({"Collective name": "_allgather_base"}, "collective", "all_gather"),
        ({"Collective name": "all_to_allv"}, "collective", "all_to_all"),
        ({"Process Group Name": 7}, "group_name", "7"),
        ({"In msg nelems": 2**62}, "message_bytes", None),
        ({}, "size_bytes", 2000),
        ({"Collective name": "_allgather_base", "Group size": 4}, "size_bytes", 8000),
        ({"Collective name": "_allgather_base", "Group size": None}, "size_bytes", None),
        ({"Collective name": "_reduce_scatter_base"}, "size_bytes", 2000),
        ({"Collective name": "all_to_all"}, "size_bytes", 2000),
        ({"Collective name": "all_to_all"}, "split_imbalance", None),
        ({"Collective name": "all_to_all", "In split size": "[500, 500]"}, "split_imbalance", None),
        ({"Collective name": "all_to_allv", "In split size": "[900, 100]"}, "split_imbalance", 1.8),
        ({"Collective name": "all_to_allv", "In split size": "[900, 100]"}, "size_bytes", 2000),
        ({"Collective name": "all_to_allv", "Out split size": "[0, 1000]"}, "split_imbalance", 2.0),
        ({"Collective name": "all_to_allv", "In split size": "[900, 50, ...]"}, "size_bytes", None),
        ({"In split size": "[900, 100]"}, "split_imbalance", None),
        ({"Group size": "two"}, "group_size", None),
    ],
)
def test_words_of_collectives(tmp_path: Path, changed, column: str, value) -> None:
    _, rows = one(tmp_path, kernel(NCCL, **(PARAMS | changed)))
    assert rows["activities"][0][column] == value


@pytest.mark.parametrize(("stated", "size"), [({"bytes": 4096}, 4096), ({}, None), ({"bytes": "many"}, None)])
def test_copies_have_a_size(tmp_path: Path, stated, size) -> None:
    copy = kernel("Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy", **stated)
    _, rows = one(tmp_path, copy, kernel(NCCL, 500, **PARAMS), kernel("gemm", 900))
    assert [row["size_bytes"] for row in rows["activities"]] == [size, 2000, None]


def test_a_custom_kernel_may_be_a_collective(tmp_path: Path) -> None:
    _, rows = one(tmp_path, *small(), kernel("cross_device_reduce", 500, **PARAMS))
    assert [row["collective"] for row in rows["activities"]] == [None, None, None, "all_reduce"]


def test_names_are_unescaped_and_shared(tmp_path: Path) -> None:
    names = ['quote " and \\', "tab\tnewline\n", "Ω≠\U0001f600", "a},{b", '"}, {"', "a},{b"]
    events = [kernel(name, ts=k) for k, name in enumerate(names)]
    recording, rows = one(tmp_path, *events)
    assert [recording.names[row["name"]] for row in rows["activities"]] == names
    assert len(recording.names) == 5


def test_odd_values_are_no_rows_and_said(tmp_path: Path) -> None:
    odd = [
        kernel("negative", dur=-1),
        kernel("far", ts=10**30),
        kernel("centuries", ts=10**15),
        kernel("words", ts="soon"),
        kernel("endless", dur=None),
        call("cudaFree", dur=-5, correlation=8),
        {"cat": "kernel"},
        None,
        [],
        7,
        {"cat": 5},
    ]
    recording, rows = one(tmp_path, *small(), *odd)
    assert len(rows["activities"]) == 3
    assert next(row for row in rows["calls"] if row["correlation"] == 8)["end_ns"] is None
    assert "6 GPU activities without a possible time were left out" in recording.problems
    assert "1 calls have no possible duration: their ends are unknown" in recording.problems


def test_odd_arguments_do_no_harm(tmp_path: Path) -> None:
    args = {"device": "1", "stream": 7.0, "correlation": 2**70, "grid": [1, 2], "block": "x"}
    big = {"device": 2**40, "stream": 2**63, "correlation": -1, "grid": [2**31, 1, 1], "block": [1, 1, 2**70]}
    events = [kernel(ts=k) | {"args": odd} for k, odd in enumerate([args, big, None, [], "x"])]
    _, rows = one(tmp_path, call(), *events)
    first, second = rows["activities"][:2]
    assert (first["device"], first["stream"], first["correlation"], first["block_x"]) == (1, 7, None, None)
    assert (first["grid_x"], first["grid_y"], first["grid_z"]) == (1, 2, 1)
    assert (second["device"], second["stream"], second["grid_x"], second["grid_y"]) == (None, None, None, 1)
    assert (second["block_y"], second["block_z"]) == (1, None)
    assert len(rows["activities"]) == 5


def test_duplicates_are_taken_once(tmp_path: Path) -> None:
    recording, rows = one(tmp_path, *small(), *small())
    assert len(rows["activities"]) == 3
    assert "3 GPU activities were recorded twice; each was taken once" in recording.problems


def test_several_processes(tmp_path: Path) -> None:
    events = [
        event
        for k in range(20)
        for event in (
            call(ts=100 * k, correlation=k, pid=41),
            call(ts=100 * k + 50, correlation=k, pid=42),
            kernel(ts=100 * k + 10, correlation=k, pid=1),
            kernel(ts=100 * k + 60, correlation=k, pid=0),
        )
    ]
    recording, rows = one(tmp_path, *events, before={"distributedInfo": {"rank": 1}})
    launched_by = [process.launched_by for process in recording.processes]
    pids = {row["device"]: recording.processes[launched_by[row["process"]] or 0].pid for row in rows["activities"]}
    assert pids == {1: 41, 0: 42}
    assert any("2 processes merged into one file (41, 42)" in problem for problem in recording.problems)
    assert any("rank 1" in problem for problem in recording.problems)
    assert {process.rank for process in recording.processes} == {None}


def test_no_calls_at_all(tmp_path: Path) -> None:
    recording, rows = one(tmp_path, kernel(), step(pid=42))
    assert [process.pid for process in recording.processes] == [42]
    assert rows["activities"][0]["process"] == rows["ranges"][0]["process"] == 0


def test_without_gpu_activity(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTraceError, match="no GPU activity among the 2 events"):
        one(tmp_path, step(), operator())
    with pytest.raises(UnreadableTraceError, match="no GPU activity among the 0 events"):
        one(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2, 3]",
        b'{"a": [{"ph": "X"}]}',
        b'{"traceEvents": [{"ph": "X", "name": "some other tracer"}]}',
        b'{ "traceEvents":[{}\n,{"args":{"name":"CPU HIP API"},"ph":"M","pid":2,"name":"process_labels"}',
        b'{"rocprofiler-sdk-tool":[{"metadata":{"schemaVersion":1}}], "traceEvents":[]}',
        b"\x1f\x8bnot gzip at all",
        b"SQLite format 3\0",
    ],
)
def test_sniffs_only_its_own(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    assert not READER.sniff(path)
    assert not READER.sniff(tmp_path)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        read(tmp_path / "none.json")
    (tmp_path / "other.json").write_bytes(b"{" + b" " * 100)
    with pytest.raises(UnreadableTraceError, match="no list of trace events begins"):
        read(tmp_path / "other.json")


SEND = {
    "Collective name": "send",
    "In msg nelems": 1000,
    "Group size": 4,
    "dtype": "BFloat16",
    "Process Group Name": "7",
    "Process Group Ranks": "[0, 2, 4, 6]",
    "Dst Rank": 4,
}


# fields of `xpu_runtime` and `kernel` events as intel's Kineto plugin writes them (libkineto/src/plugin/xpupti)
@pytest.mark.parametrize(
    ("category", "name"),
    [
        ("xpu_runtime", "urEnqueueKernelLaunch"),
        ("xpu_runtime", "zeCommandListAppendLaunchKernel"),
        ("privateuse1_runtime", "aclrtLaunchKernel"),
        ("privateuse1_driver", "tpuLaunchKernel"),
        ("hip_runtime", "hipLaunchKernel"),
    ],
)
def test_launches_of_other_devices_join(tmp_path: Path, category: str, name: str):
    launch = call(name, ts=90, correlation=5, cat=category)
    recording, rows = read(write(tmp_path / "rank0.json", [step(), launch, kernel("gemm", ts=100, correlation=5)]))
    assert [(recording.names[row["name"]], row["correlation"]) for row in rows["calls"]] == [(name, 5)]
    jitter.ingest([tmp_path / "rank0.json"], tmp_path / "lake")
    found = read_kernels(next((tmp_path / "lake").rglob("rank=0.parquet")), ["launch_name", "launch_start_ns"])
    assert found.to_pylist() == [{"launch_name": name, "launch_start_ns": 90_000}]


@pytest.mark.parametrize(
    ("category", "device"),
    [
        ("mtia_ccp_events", "MTIA"),
        ("mtia_runtime", "MTIA"),
        ("hpu_op", "Habana"),
        ("async_npu", "Ascend"),
        ("gpu_op", "Intel"),
    ],
)
def test_devices_that_are_not_read_are_named(tmp_path: Path, category: str, device: str):
    with pytest.raises(UnreadableTraceError, match=f"holds activities of {device}"):
        read(write(tmp_path / "a.json", [step(), call(), call("job", cat=category)]))


def test_other_activities_do_not_hide_a_gpu(tmp_path: Path):
    _, rows = read(write(tmp_path / "a.json", [*small(), call("job", cat="mtia_runtime")]))
    assert len(rows["activities"]) == 3


def test_times_as_strings(tmp_path: Path):
    events = small()
    plain = read(write(tmp_path / "a.json", events))[1]
    for event in events:
        for member in ("ts", "dur"):
            if member in event:
                event[member] = str(event[member])
    assert read(write(tmp_path / "b.json", events))[1] == plain


def test_a_custom_kernel_with_collective_arguments_is_communication(tmp_path: Path):
    custom = kernel(
        "void mycorp::ring<float>(float*)", ts=120, correlation=2, **(SEND | {"Collective name": "all_to_all"})
    )
    renamed = kernel("ncclDevKernel_SendRecv", ts=140, correlation=3, **(SEND | {"Collective name": "all_to_allv"}))
    events = [step(), kernel(ts=100), custom, renamed, *(call(ts=80 + n, correlation=n) for n in (1, 2, 3))]
    write(tmp_path / "rank0.json", events)
    jitter.ingest([tmp_path / "rank0.json"], tmp_path / "lake")
    found = read_kernels(next((tmp_path / "lake").rglob("rank=0.parquet")), ["kind", "collective", "group_size"])
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        ("compute", None, None),
        ("collective", "all_to_all", 4),
        ("collective", "all_to_all", 4),
    ]


def test_peers_of_sends_and_receives(tmp_path: Path):
    receive = {**SEND, "Collective name": "recv", "Src Rank": 0}
    del receive["Dst Rank"]
    events = [
        step(),
        kernel("ncclDevKernel_SendRecv", ts=100, **SEND),
        kernel("ncclDevKernel_SendRecv", ts=120, correlation=2, **receive),
        kernel("gemm", ts=140, correlation=3),
        *(call(ts=80 + n, correlation=n) for n in (1, 2, 3)),
    ]
    write(tmp_path / "rank2.json", events)
    jitter.ingest([tmp_path / "rank2.json"], tmp_path / "lake")
    peers = read_kernels(next((tmp_path / "lake").rglob("rank=2.parquet")), ["source_rank", "destination_rank"])
    assert [tuple(row.values()) for row in peers.to_pylist()] == [(2, 4), (0, 2), (None, None)]


@pytest.mark.parametrize(
    ("file_name", "host"),
    [
        ("gpu-7_4242.1700000000000000000.pt.trace.json.gz", "gpu-7"),
        ("gpu-7.cluster.local_4242.1700000000000.pt.trace.json", "gpu-7"),
        ("node_a_4242.1700000000000.pt.trace.json", "node_a"),
        ("gpu-7_4243.1700000000000000000.pt.trace.json", None),
        ("rank3_4242.1700000000000000000.pt.trace.json", None),
        ("localhost_4242.1700000000000000000.pt.trace.json", None),
        ("gpu-7_4242.Apr_03_18_51_38.pt.trace.json", None),
        ("gpu-7_4242.1700000000000000000.json", None),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", None),
    ],
)
def test_names_of_pytorchs_handler(file_name: str, host: str | None):
    assert host_in_file_name(file_name, 4242) == host


def test_an_unknown_process_proves_no_host():
    assert host_in_file_name("gpu-7_4242.1700000000000000000.pt.trace.json", None) is None


def test_hosts_reach_the_lake(tmp_path: Path):
    run = simulate(Job(ranks=4, gpus_per_node=2, steps=2, kernels=12, seed=3))
    paths = write_run(run, tmp_path / "traces", "kineto", names="host")
    for path in paths[3:]:  # another process than the one inside
        path.rename(path.with_name(path.name.replace("_", "_9", 1)))
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    truth = {one.rank: one.host for one in run.ranks()}
    assert jitter.open(tmp_path / "lake").hosts == truth | {3: None}


def _as_paddle(event: dict, unit: str) -> dict:
    """Return an event of PyTorch as Paddle's profiler writes it: the duration in the name, other words for the rest."""
    categories = {"cuda_runtime": "CudaRuntime", "kernel": "Kernel", "gpu_memcpy": "Memcpy", "cpu_op": "Operator"}
    duration = event["dur"] / 1000 if unit == "ms" else event["dur"]
    name = event["name"].replace("ProfilerStep", "ProfileStep")
    words = event | {"name": f"{name}[{duration:.3f} {unit}]"}
    words["cat"] = categories.get(event["cat"], "ProfileStep" if name.startswith("ProfileStep") else event["cat"])
    words["args"] = {
        "correlation id" if word == "correlation" else word: value for word, value in event["args"].items()
    }
    if words["cat"] not in ("Kernel", "Memcpy"):
        words["tid"] = f"{event['tid']}({'Python' if words['cat'] == 'ProfileStep' else 'C++'})"
    return words


@pytest.mark.parametrize("unit", ["ms", "us"])
def test_traces_of_paddle(tmp_path: Path, unit: str):
    """Its names hold the duration: of two ranks no kernel had the other's name, and no step or launch was found."""
    events = []
    for number in range(6):
        at, is_first = 100 + 100 * number, number % 2 == 0
        events += [step(number // 2, ts=at - 20, dur=190.0)] if is_first else []
        events.append(operator("matmul_v2 dygraph", ts=at - 12, dur=9.0))
        events.append(call(ts=at - 10, correlation=number))
        events.append(kernel("gemm<float>" if is_first else "add", ts=at, dur=10.0 + number, correlation=number))
    events.append(kernel("Memcpy HtoD", ts=690.0, correlation=-1, cat="gpu_memcpy"))
    paddle = [*(_as_paddle(event, unit) for event in events), {}]
    header = {"schemaVersion": "1.0.1", "displayTimeUnit": "ms", "span_indx": "0"}
    path = tmp_path / "host_gpu-7pid_42_time_2024_01_02_03_04_05_678901.paddle_trace.json"
    path.write_text(json.dumps(header | {"traceEvents": paddle, "ExtraInfo": {}}))
    report = jitter.ingest([path], tmp_path / "lake")
    (record,) = report.added
    assert (record.profiler_version, record.host, [one.step for one in record.steps]) == (
        "Paddle schema 1.0.1",
        "gpu-7",
        [0, 1, 2],
    )
    found = jitter.open(tmp_path / "lake").sql(
        "SELECT step, kernel_name, duration_ns, launch_start_ns FROM kernels WHERE kind = 'compute' ORDER BY start_ns"
    )
    assert [tuple(row) for row in found.itertuples(index=False)] == [
        (number // 2, "add" if number % 2 else "gemm<float>", 10_000 + 1_000 * number, 90_000 + 100_000 * number)
        for number in range(6)
    ]


def test_a_merged_file_of_several_ranks_is_refused(tmp_path: Path):
    events = [event | {"pid": f"[TP0{rank}] {event['pid']}"} for rank in range(2) for event in small()]
    path = write(tmp_path / "merged-1.trace.json", events)
    with pytest.raises(UnreadableTraceError, match=r"several ranks merged into one file .*\[TP00\]"):
        read(path)


def test_several_whole_traces_in_one_file_are_refused(tmp_path: Path):
    """As `json.dump` writes a list or a dictionary of traces: the rank of one must not be taken for another's."""
    traces = [{"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": small()} for rank in (0, 1)]
    for name, held in {
        "list": traces,
        "by rank": {"0": traces[0], "1": traces[1]},
        "in one": {"traces": traces},
    }.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(held))
        with pytest.raises(UnreadableTraceError, match="holds several whole traces"):
            read(path)
