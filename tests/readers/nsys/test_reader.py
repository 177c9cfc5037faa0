"""Every quirk of the tables, in both kinds of export."""

from pathlib import Path

import pytest

from jitter.core.errors import UnreadableTraceError
from jitter.readers.nsys import READER
from tests.support import nsys_exports as nsys
from tests.support.nsys_exports import call, export, global_id, kernel, marker, memory, string

pytestmark = pytest.mark.parametrize("form", nsys.FORMS)


@pytest.fixture
def at(tmp_path: Path, form: str) -> Path:
    return tmp_path / ("report.sqlite" if form == "sqlite" else "report_pqtdir")


def read(at: Path, form: str, **tables: list[nsys.Row]):
    path = nsys.write(at, form, export(**tables))
    assert READER.sniff(path)
    return nsys.read(path)


def test_a_kernel_and_its_launch(at: Path, form: str) -> None:
    recording, rows = read(at, form)
    assert rows["activities"] == [
        {
            "process": 0,
            "device": 0,
            "stream": 7,
            "name": recording.names.index("void gemm<float>(int)"),
            "is_memory": False,
            "start_ns": 100,
            "end_ns": 200,
            "correlation": 5,
            "grid_x": 2,
            "grid_y": 3,
            "grid_z": 4,
            "block_x": 32,
            "block_y": 8,
            "block_z": 1,
        }
    ]
    assert rows["calls"] == [
        {
            "process": 0,
            "thread": 70,
            "name": recording.names.index("cudaLaunchKernel_v7000"),
            "start_ns": 50,
            "end_ns": 60,
            "correlation": 5,
        }
    ]
    assert (recording.path, recording.format, recording.problems) == (at, "nsys", [])
    assert [process.pid for process in recording.processes] == [7]


def test_only_names_that_are_used_are_kept(at: Path, form: str) -> None:
    recording, _ = read(at, form, StringIds=[*nsys.STRINGS, *(string(i, f"unused {i}") for i in range(10, 3000))])
    assert sorted(recording.names) == ["cudaLaunchKernel_v7000", "void gemm<float>(int)"]


def test_copies_and_fills_are_named_as_nsys_names_them(at: Path, form: str) -> None:
    kinds = {1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device", 10: "Peer-to-Peer", 77: "Sideways"}
    recording, rows = read(
        at,
        form,
        CUPTI_ACTIVITY_KIND_MEMCPY=[memory(start=i, end=400, copyKind=i) for i in [*kinds, 78]],
        CUPTI_ACTIVITY_KIND_MEMSET=[memory(start=1000, end=1001, value=0)],
        ENUM_CUDA_MEMCPY_OPER=[{"id": 77, "name": "CUDA_MEMCPY_KIND_SIDEWAYS", "label": "Sideways"}],
    )
    names = {row["start_ns"]: recording.names[row["name"]] for row in rows["activities"] if row["is_memory"]}
    expected = {kind: f"[CUDA memcpy {label}]" for kind, label in kinds.items()}
    assert names == expected | {78: "[CUDA memcpy Unknown]", 1000: "[CUDA memset]"}


def test_copies_state_the_host_memory_that_they_use(at: Path, form: str) -> None:
    """Of each end as CUPTI numbers it; nothing where an end is not known, or neither is host memory."""
    ends = {1: (0, 2), 2: (2, 1), 3: (2, 2), 4: (0, None), 5: (9, 2), 6: (0, -3)}
    recording, rows = read(
        at,
        form,
        CUPTI_ACTIVITY_KIND_MEMCPY=[
            memory(start=start, end=400, copyKind=1, srcKind=source, dstKind=target)
            for start, (source, target) in ends.items()
        ],
    )
    names = {row["start_ns"]: recording.names[row["name"]] for row in rows["activities"] if row["is_memory"]}
    memories = [names[start].removeprefix("[CUDA memcpy Host-to-Device").removesuffix("]") for start in ends]
    assert memories == [" (Pageable -> Device)", " (Device -> Pinned)", "", "", "", ""]


def test_a_graph_replay_is_one_activity_and_is_reported(at: Path, form: str) -> None:
    replays = [memory(start=500 + i, end=900 + i, graphId=1, graphExecId=2, streamId=9) for i in range(3)]
    recording, rows = read(at, form, CUPTI_ACTIVITY_KIND_GRAPH_TRACE=replays)
    graphs = [row for row in rows["activities"] if recording.names[row["name"]] == "CUDA graph 1"]
    assert [(row["start_ns"], row["end_ns"], row["stream"], row["is_memory"]) for row in graphs] == [
        (500, 900, 9, False),
        (501, 901, 9, False),
        (502, 902, 9, False),
    ]
    (problem,) = recording.problems
    assert problem.startswith("3 CUDA graph replays")
    assert "--cuda-graph-trace=node" in problem


def test_an_export_with_nothing_but_graph_replays_is_readable(at: Path, form: str) -> None:
    _, rows = read(at, form, CUPTI_ACTIVITY_KIND_KERNEL=[], CUPTI_ACTIVITY_KIND_GRAPH_TRACE=[memory()])
    assert len(rows["activities"]) == 1


def test_copies_of_unified_memory_are_copies(at: Path, form: str) -> None:
    """CUPTI's copy kinds 11 to 13 are migrations of unified memory."""
    recording, rows = read(
        at,
        form,
        CUPTI_ACTIVITY_KIND_MEMCPY=[
            memory(start=300 + kind, end=330, copyKind=kind, bytes=64) for kind in (11, 12, 13)
        ],
    )
    copies = [(recording.names[row["name"]], row["size_bytes"]) for row in rows["activities"] if row["is_memory"]]
    assert copies == [
        (f"[CUDA memcpy Unified {way}]", 64) for way in ("Host-to-Device", "Device-to-Host", "Device-to-Device")
    ]


def test_kernels_of_green_contexts_are_kernels_and_samples_are_left_alone(at: Path, form: str) -> None:
    """A green context is a part of a GPU; page faults and hardware counters are no activities."""
    recording, rows = read(
        at,
        form,
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(greenContextId=3), kernel(start=210, end=220, greenContextId=None)],
        CUDA_UM_CPU_PAGE_FAULT_EVENTS=[{"start": 120, "globalPid": global_id(7), "address": 1}],
        CUDA_UM_GPU_PAGE_FAULT_EVENTS=[{"start": 130, "end": 140, "globalPid": global_id(7), "numberOfPageFaults": 2}],
        GPU_METRICS=[{"timestamp": 125, "typeId": 1, "metricId": 2, "value": 97}],
    )
    assert [(row["start_ns"], row["end_ns"]) for row in rows["activities"]] == [(100, 200), (210, 220)]
    assert recording.problems == []


def test_call_chain_rows_are_not_calls(at: Path, form: str) -> None:
    calls = [call(start=10, eventClass=0), call(start=11, eventClass=1), call(start=12, eventClass=67)]
    _, rows = read(at, form, CUPTI_ACTIVITY_KIND_RUNTIME=calls)
    assert [row["start_ns"] for row in rows["calls"]] == [10, 11]


def test_equal_correlations_of_two_processes_stay_apart(at: Path, form: str) -> None:
    recording, rows = read(
        at,
        form,
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(start=1, pid=7), kernel(start=2, pid=8)],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(start=3, pid=8, thread=81), call(start=4, pid=7, thread=0xFFFFFF)],
    )
    pid = [process.pid for process in recording.processes]
    assert {row["start_ns"]: pid[row["process"]] for row in rows["activities"]} == {1: 7, 2: 8}
    assert {row["start_ns"]: (pid[row["process"]], row["thread"]) for row in rows["calls"]} == {
        3: (8, 81),
        4: (7, 0xFFFFFF),
    }


def test_equal_pids_of_two_machines_are_two_processes(at: Path, form: str) -> None:
    high = 0xFF01  # the sign bit of SQLite's integers
    kernels = [kernel(start=1), kernel(start=2, globalPid=_signed(form, global_id(7, machine=high)))]
    recording, rows = read(
        at,
        form,
        CUPTI_ACTIVITY_KIND_KERNEL=kernels,
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(start=3, globalTid=_signed(form, global_id(7, 70, high)))],
    )
    assert [process.pid for process in recording.processes] == [7, 7]
    processes = {row["start_ns"]: row["process"] for row in rows["activities"] + rows["calls"]}
    assert processes[1] != processes[2] == processes[3]


def _signed(form: str, value: int) -> int:
    return value - (1 << 64) if form == "sqlite" and value >> 63 else value


def test_ranges(at: Path, form: str) -> None:
    events = [
        marker(start=1, end=9, text="step 1"),
        marker(start=2, end=8, kind=60, textId=11),
        marker(start=3, end=None, text="cut"),
        marker(start=4, end=None, kind=34, text="a mark"),
        marker(start=5, end=None, kind=75, text="a domain"),
        marker(start=6, end=7, text="inline wins", textId=11),
        marker(start=20, end=30),
        marker(start=21, end=30, textId=12345),
    ]
    recording, rows = read(at, form, NVTX_EVENTS=events, StringIds=[*nsys.STRINGS, string(11, "registered")])
    assert rows["ranges"] == [
        {"process": 0, "thread": 70, "text": text, "start_ns": start, "end_ns": end}
        for start, end, text in [(1, 9, "step 1"), (2, 8, "registered"), (3, None, "cut"), (6, 7, "inline wins")]
    ]
    assert recording.problems == ["2 NVTX ranges without a text were left out"]


def test_an_empty_text_is_a_text(at: Path, form: str) -> None:
    _, rows = read(at, form, NVTX_EVENTS=[marker(text="")])
    assert [row["text"] for row in rows["ranges"]] == [""]


def test_columns_that_begin_with_nulls_for_more_than_a_batch(at: Path, form: str) -> None:
    kernels = [kernel(start=i, end=i, correlationId=None, gridX=None) for i in range(70_000)]
    events = [marker(start=i, textId=3) for i in range(17_000)]
    recording, rows = read(
        at,
        form,
        CUPTI_ACTIVITY_KIND_KERNEL=[*kernels, kernel(start=70_000, end=70_000, correlationId=12)],
        NVTX_EVENTS=[*events, marker(start=17_000, text="late"), marker(start=17_001, textId=1)],
    )
    last = rows["activities"][-1]
    assert (last["correlation"], last["grid_x"], rows["activities"][0]["correlation"]) == (12, 2, None)
    assert [row["text"] for row in rows["ranges"][-3:]] == ["ncclDevKernel_X", "late", "void gemm<float>(int)"]
    assert len(rows["activities"]) == 70_001
    assert len(rows["ranges"]) == 17_002
    assert recording.problems == []


def test_rows_in_any_order_and_kernels_without_a_call(at: Path, form: str) -> None:
    kernels = [kernel(start=9, end=10, correlationId=99), kernel(start=1, end=2), kernel(start=5, end=6)]
    _, rows = read(at, form, CUPTI_ACTIVITY_KIND_KERNEL=kernels)
    assert sorted(row["start_ns"] for row in rows["activities"]) == [1, 5, 9]


def test_times_that_cannot_be(at: Path, form: str) -> None:
    recording, rows = read(
        at,
        form,
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(start=5, end=4), kernel(start=6, end=6)],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(start=5, end=4), call(start=None)],
    )
    assert [row["start_ns"] for row in rows["activities"]] == [6]
    assert [(row["start_ns"], row["end_ns"]) for row in rows["calls"]] == [(5, None)]
    assert sorted(recording.problems) == [
        "1 GPU activities without a possible time were left out",
        "1 calls without a possible time were left out",
    ]


def test_an_old_export_without_most_columns(at: Path, form: str) -> None:
    bare = {name: value for name, value in kernel().items() if name in ("start", "end", "shortName")}
    old_call = {name: value for name, value in call().items() if name != "eventClass"}
    recording, rows = read(
        at, form, CUPTI_ACTIVITY_KIND_KERNEL=[bare], CUPTI_ACTIVITY_KIND_RUNTIME=[old_call], NVTX_EVENTS=[{"start": 1}]
    )
    (activity,) = rows["activities"]
    assert (activity["device"], activity["stream"], activity["correlation"]) == (None, None, None)
    assert recording.names[activity["name"]] == "void gemm<float>(int)"
    assert recording.processes[activity["process"]].pid == 7
    assert len(rows["calls"]) == 1


@pytest.mark.parametrize("pids", [(7,), (7, 8)])
def test_kernels_without_a_process_are_of_the_only_process(at: Path, form: str, pids: tuple[int, ...]) -> None:
    bare = {name: value for name, value in kernel().items() if name != "globalPid"}
    calls = [call(pid=pid, correlationId=pid) for pid in pids]
    recording, rows = read(at, form, CUPTI_ACTIVITY_KIND_KERNEL=[bare], CUPTI_ACTIVITY_KIND_RUNTIME=calls)
    (activity,) = rows["activities"]
    assert recording.processes[activity["process"]].pid == (7 if len(pids) == 1 else None)
    assert len(recording.processes) == (1 if len(pids) == 1 else 3)
    told = [problem for problem in recording.problems if "state no process" in problem]
    assert len(told) == len(pids) - 1


def test_a_table_without_times_is_refused_by_name(at: Path, form: str) -> None:
    path = nsys.write(at, form, export(CUPTI_ACTIVITY_KIND_KERNEL=[{"start": 1, "demangledName": 1}]))
    with pytest.raises(UnreadableTraceError, match=r"CUPTI_ACTIVITY_KIND_KERNEL has no column `end`"):
        nsys.read(path)


def test_no_calls_at_all_is_said(at: Path, form: str) -> None:
    recording, rows = read(at, form, CUPTI_ACTIVITY_KIND_RUNTIME=[])
    assert rows["calls"] == []
    assert recording.problems == ["no CUDA API calls in this export: which call launched a kernel is unknown"]


@pytest.mark.parametrize("empty", [False, True])
def test_no_kernels_is_an_error_that_says_what_to_do(at: Path, form: str, empty: bool) -> None:
    # --lazy=false writes every table, also those without a row
    path = nsys.write(at, form, export(CUPTI_ACTIVITY_KIND_KERNEL=[]))
    if empty:
        nsys.add_empty(path, form, "CUPTI_ACTIVITY_KIND_KERNEL", list(kernel()))
    with pytest.raises(UnreadableTraceError, match=r"no GPU kernels in this export.*-t cuda") as raised:
        nsys.read(path)
    assert str(path) in str(raised.value)


def test_invalid_utf8_is_replaced_and_counted(at: Path, form: str) -> None:
    recording, rows = read(
        at,
        form,
        StringIds=[string(1, b"gemm \xff\xfe"), string(2, b"cudaLaunchKernel_v7000"), string(3, b"caf\xe9")],
        NVTX_EVENTS=[
            marker(start=1, text=b"step \xe9"),
            marker(start=2, textId=3),
            marker(start=3, text="schön".encode()),
        ],
    )
    assert sorted(recording.names) == ["cudaLaunchKernel_v7000", "gemm \ufffd\ufffd"]
    assert [row["text"] for row in rows["ranges"]] == ["step \ufffd", "caf\ufffd", "schön"]
    assert recording.problems == ["3 texts are not valid UTF-8: their invalid bytes were replaced"]


def test_a_name_that_is_not_in_the_export(at: Path, form: str) -> None:
    kernels = [kernel(start=1, name=404), kernel(start=2, name=405), kernel(start=3)]
    recording, rows = read(at, form, CUPTI_ACTIVITY_KIND_KERNEL=kernels)
    names = [recording.names[row["name"]] for row in rows["activities"]]
    assert names == ["[name 404 is not in the export]", "[name 405 is not in the export]", "void gemm<float>(int)"]
    assert recording.problems == ["2 names are missing from the export's StringIds"]


def test_progress_adds_up_to_the_size(at: Path, form: str) -> None:
    path = nsys.write(at, form, export(CUPTI_ACTIVITY_KIND_KERNEL=[kernel(start=i, end=i) for i in range(70_000)]))
    size = path.stat().st_size if form == "sqlite" else sum(file.stat().st_size for file in path.iterdir())
    _, batches = READER.open(path)
    steps: list[int] = []
    for _ in batches(steps.append):
        pass
    assert sum(steps) == size
    assert min(steps) >= 0
    assert sum(step > 0 for step in steps) >= 3


def test_an_error_of_the_consumer_is_not_taken_for_damage(at: Path, form: str) -> None:
    _, batches = READER.open(nsys.write(at, form, export()))

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        list(batches(full_disk))


def test_reading_can_stop_early(at: Path, form: str) -> None:
    _, batches = READER.open(nsys.write(at, form, export()))
    stream = batches(lambda _: None)
    next(stream)
    stream.close()
