"""rocprofv3's CSV: headings of three versions, companions, agents, damage."""

import csv
from pathlib import Path

import pyarrow as pa
import pytest

import jitter
from jitter.core.errors import UnreadableTraceError
from jitter.ingestion.discovery.discover import discover
from jitter.readers import readers
from jitter.readers.amd.rows import Agents
from jitter.readers.columns import to_int64
from jitter.simulate import Job, simulate, write
from tests.support.amd_traces import read, real
from tests.support.real_recordings import needs_traces

JOB = Job(ranks=2, steps=2, kernels=30, seed=3, epoch=None, marker="profiler")
API = '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
KERNEL = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp"\n'
)


def kernel(start: int, end: int, name: str = "k", correlation: int = 1, agent: str = '"Agent 4"') -> str:
    return f'"KERNEL_DISPATCH",{agent},1,2,70,"{name}",{correlation},{start},{end}\n'


def sample(folder: Path, **options: object) -> list[Path]:
    return write(simulate(JOB), folder, "rocprof-csv", **options)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [{name.lower(): cell for name, cell in row.items()} for row in csv.DictReader(file)]


REAL = [
    ("v3-csv/decode_kernel_trace.csv", "decode_hip_api_trace.csv", ()),
    ("v3-csv/prefill_kernel_trace.csv", "prefill_hip_api_trace.csv", ()),
    ("v3-csv/kernel_trace.csv", "hip_trace.csv", ("memory_copy_trace.csv", "marker_api_trace.csv")),
    ("v3-csv/kernel_trace_truncated.csv", None, ()),
    ("v3-csv-0.5/kernel_trace.csv", "hip_runtime_trace.csv", ("memory_copy_trace.csv", "marker_api_trace.csv")),
]


@needs_traces
@pytest.mark.parametrize(("name", "hip", "others"), REAL)
def test_real_counts(name: str, hip: str | None, others: tuple[str, ...]):
    path = real(name)
    found = read(path)
    dispatches = rows_of(path)
    copies = rows_of(path.parent / others[0]) if others else []
    assert len(found.activities) == len(dispatches) + len(copies)
    blits = [d for d in dispatches if d["kernel_name"].startswith("__amd_rocclr_")]
    assert len(found.kernels) == len(dispatches) - len(blits)
    calls = [] if hip is None else [c for c in rows_of(path.parent / hip) if c["function"].startswith("hip")]
    assert len(found.calls) == len(calls)
    markers = rows_of(path.parent / others[1]) if others else []
    assert len(found.ranges) == len([m for m in markers if m["start_timestamp"] != m["end_timestamp"]])
    starts = {c["correlation_id"]: int(c["start_timestamp"]) for c in calls}
    times = sorted(
        (int(d["start_timestamp"]), int(d["end_timestamp"]), d["kernel_name"], starts.get(d["correlation_id"]))
        for d in dispatches
    )
    ours = [
        (a["start_ns"], a["end_ns"], found.name(a), (found.launch(a) or {}).get("start_ns")) for a in found.activities
    ]
    assert sorted((t for t in ours if not t[2].startswith("MEMORY_COPY_")), key=lambda t: t[:3]) == times


@needs_traces
def test_real_graph_launch():
    """One hipGraphLaunch launched all of them, with one correlation."""
    found = read(real("v3-csv/prefill_kernel_trace.csv"))
    of_graph = [k for k in found.activities if k["correlation"] == 57328]
    assert len(of_graph) > 1000
    assert {found.name(found.launch(k) or {}) for k in of_graph[:5]} == {"hipGraphLaunch"}


@pytest.mark.parametrize("layout", ["0.5", "1.0", "7.1"])
def test_three_headings(tmp_path: Path, layout: str):
    paths = sample(tmp_path, layout=layout)
    for own, path in zip(simulate(JOB).ranks(), paths, strict=True):
        found = read(path)
        assert sorted(a["start_ns"] for a in found.activities) == sorted(own.start_ns.tolist())
        assert {a["device"] for a in found.activities} == {own.device}
        assert found.recording.processes[0].pid == own.pid
        assert found.recording.problems == []
        # a fill is a kernel of HIP's own, but memory all the same
        memory = [op for op in own.ops() if op.kind == "memory"]
        assert len([a for a in found.activities if a["is_memory"]]) == len(memory)
        wide = [(a["grid_x"], a["block_x"]) for a in found.kernels]
        rows = zip(own.start_ns.tolist(), own.grid_x.tolist(), own.ops(), strict=True)
        assert wide == [(grid, op.block[0]) for _, grid, op in sorted(rows, key=lambda r: r[0]) if op.kind != "memory"]


def test_headings_in_any_case_and_order(tmp_path: Path):
    path = tmp_path / "kernel_trace.csv"
    path.write_text(
        'END_TIMESTAMP,start_timestamp,Kernel_name,AGENT_ID,QUEUE_ID,correlation_ID,novelty\n20,10,"a, b",GPU 3,5,9,x\n'
    )
    found = read(path)
    (only,) = found.activities
    assert (only["start_ns"], only["end_ns"], found.name(only), only["device"], only["stream"]) == (
        10,
        20,
        "a, b",
        3,
        5,
    )
    assert any("novelty" in problem and "kernel_trace.csv" in problem for problem in found.recording.problems)


def test_ranks_from_names(tmp_path: Path):
    for names, told in (("rank", "file name"), ("number", "file name")):
        sample(tmp_path / names, names=names)
        report = jitter.ingest([tmp_path / names], tmp_path / f"{names}-lake")
        assert [(r.rank, r.rank_told_by) for r in report.added] == [(0, told), (1, told)]
        assert (report.refused, report.other_files) == ([], 0)


def test_a_process_id_tells_no_rank_and_its_folder_the_host(tmp_path: Path):
    """The default name is HOST/PID; another folder's name is no host's, where the number is not the process's."""
    path, _ = sample(tmp_path / "traces", names="process")
    found = read(path).recording
    assert (found.processes[0].host, found.rank_in_name) == ("node0000", None)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "3_kernel_trace.csv").write_text(KERNEL + kernel(10, 20))
    (process,) = read(tmp_path / "run" / "3_kernel_trace.csv").recording.processes
    assert (process.pid, process.host) == (None, None)


def test_a_process_id_behind_a_word_is_no_rank(tmp_path: Path):
    (tmp_path / "out_70_kernel_trace.csv").write_text(KERNEL + kernel(10, 20))
    assert read(tmp_path / "out_70_kernel_trace.csv").recording.rank_in_name is None
    (tmp_path / "out_7_kernel_trace.csv").write_text(KERNEL + kernel(10, 20))
    assert read(tmp_path / "out_7_kernel_trace.csv").recording.rank_in_name == 7


def test_named_files_and_their_companions_are_one_source(tmp_path: Path):
    """As a shell's * names them."""
    (path, _) = sample(tmp_path)
    everything = sorted(tmp_path.iterdir())
    (tmp_path / "rank-0_kernel_stats.csv").write_text('"Name","Calls"\n')
    (tmp_path / "rank-0_results.json").write_text('{"rocprofiler-sdk-tool":[]}')
    (tmp_path / "notes.txt").write_text("mine")
    found = discover([*everything, tmp_path])
    assert [source.path.name for source in found.sources] == ["rank-0_kernel_trace.csv", "rank-1_kernel_trace.csv"]
    assert found.unreadable == []
    assert found.others == 1
    parts = [f for f in everything if f.name.startswith("rank-0_")]
    assert found.sources[0].size == sum(f.stat().st_size for f in parts)
    assert path in found.sources[0].files


def test_a_neighbour_is_no_companion(tmp_path: Path):
    """Names that begin alike: each kernel trace is a recording, and has its own companions."""
    for name in ("", "hip_", "hip_2_", "rank-1_", "rank-1_marker_"):
        (tmp_path / f"{name}kernel_trace.csv").write_text(KERNEL + kernel(10, 20))
        (tmp_path / f"{name}hip_api_trace.csv").write_text(API)
    found = discover([tmp_path])
    assert len(found.sources) == 5
    assert found.others == 0
    for source in found.sources:
        prefix = source.path.name.removesuffix("kernel_trace.csv")
        assert [file.name for file in source.files[1:]] == [f"{prefix}hip_api_trace.csv"]


def test_a_changed_companion_is_read_again(tmp_path: Path):
    sample(tmp_path / "traces")
    assert len(jitter.ingest([tmp_path / "traces"], tmp_path / "lake").added) == 2
    marker = tmp_path / "traces" / "rank-1_marker_api_trace.csv"
    marker.write_text(marker.read_text().replace("ProfilerStep#1", "ProfilerStep#9"))
    again = jitter.ingest([tmp_path / "traces"], tmp_path / "lake", replace=True)
    assert (again.unchanged, [record.rank for record in again.added]) == (1, [1])


def test_missing_companions(tmp_path: Path):
    (path, *others) = sample(tmp_path)
    for companion in {*tmp_path.iterdir()} - {path, *others}:
        companion.unlink()
    found = read(path)
    assert len(found.kernels) == len([op for op in next(simulate(JOB).ranks()).ops() if op.kind != "memory"])
    assert (found.calls, found.ranges) == ([], [])
    assert {a["device"] for a in found.activities} == {4}  # as recorded
    first, second = found.recording.problems
    assert "hip_api_trace.csv" in first
    assert "--marker-trace" in second
    report = jitter.ingest([tmp_path], tmp_path / "lake")
    assert len(report.added) == 2
    assert all(not record.has_launches for record in report.added)
    assert any("no launches were recorded" in problem for problem in report.added[0].problems)


def test_cut_in_mid_row(tmp_path: Path):
    (path, *_) = sample(tmp_path)
    path.with_name("rank-0_memory_copy_trace.csv").unlink()
    whole = read(path)
    content = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(content[:-1]) + content[-1][:40])
    cut = read(path)
    assert cut.activities == whole.activities[:-1]
    assert (len(cut.calls), len(cut.ranges)) == (len(whole.calls), len(whole.ranges))
    (problem,) = cut.recording.problems
    assert path.name in problem
    assert "1 rows" in problem


def test_cut_in_a_time(tmp_path: Path):
    """A last number that lost its end is a time in the past."""
    path = tmp_path / "rank-0_kernel_trace.csv"
    path.write_text(KERNEL + kernel(1000, 2000) + kernel(3000, 4000)[:-3])
    found = read(path)
    assert [(a["start_ns"], a["end_ns"]) for a in found.activities] == [(1000, 2000)]
    assert any("1 GPU activities without a possible time" in problem for problem in found.recording.problems)


def test_a_companion_that_is_no_csv(tmp_path: Path):
    (path, *_) = sample(tmp_path)
    whole = read(path)
    (tmp_path / "rank-0_hip_api_trace.csv").write_bytes(b"\x00\xff" * 500)
    found = read(path)
    assert found.calls == []
    assert len(found.activities) == len(whole.activities)
    assert len(found.ranges) == len(whole.ranges)
    assert any("hip_api_trace.csv" in problem for problem in found.recording.problems)


@pytest.mark.parametrize("content", ["", KERNEL, KERNEL + "\n\n"])
def test_no_kernels(tmp_path: Path, content: str):
    path = tmp_path / "rank-0_kernel_trace.csv"
    path.write_text(content)
    reader = readers()["rocprof-csv"]
    with pytest.raises(UnreadableTraceError, match="kernel"):
        list(reader.open(path)[1](lambda _: None))


def test_not_taken_for_a_kernel_trace(tmp_path: Path):
    reader = readers()["rocprof-csv"]
    for name, content in {
        "a_hip_api_trace.csv": API,
        "counter_collection.csv": KERNEL.replace('"Kind"', '"Counter_Name"'),
        "binary.csv": "\x00\x01",
        "kernel_trace.txt": KERNEL,
    }.items():
        (tmp_path / name).write_text(content)
        assert not reader.sniff(tmp_path / name)


def test_bytes_that_are_no_text(tmp_path: Path):
    path = tmp_path / "rank-0_kernel_trace.csv"
    path.write_bytes((KERNEL + kernel(10, 20, "NAME")).encode().replace(b"NAME", b"bad\xff\xfename"))
    found = read(path)
    assert found.name(found.activities[0]) == "bad\ufffd\ufffdname"


def test_barriers_and_markers_are_no_kernels(tmp_path: Path):
    path = tmp_path / "rank-0_kernel_trace.csv"
    path.write_text(KERNEL + kernel(10, 20) + kernel(30, 40, '""<barrier packet>""') + kernel(50, 60, "Marker"))
    assert [a["start_ns"] for a in read(path).activities] == [10]


def test_several_processes_behind_guids(tmp_path: Path):
    """`rocpd convert` of several databases: correlations of different processes repeat."""
    (tmp_path / "all_kernel_trace.csv").write_text(
        '"Guid",' + KERNEL + '"a",' + kernel(100, 200, agent='"GPU 0"') + '"b",' + kernel(101, 201, agent='"GPU 1"')
    )
    (tmp_path / "all_hip_api_trace.csv").write_text(
        f'"Guid",{API}"b","HIP_RUNTIME_API","hipLaunchKernel",72,72,1,51,60\n'
        '"a","HIP_RUNTIME_API","hipLaunchKernel",71,71,1,50,60\n'
    )
    found = read(tmp_path / "all_kernel_trace.csv")
    assert [(k["start_ns"], (found.launch(k) or {})["start_ns"]) for k in found.kernels] == [(100, 50), (101, 51)]
    assert {p.pid for p in found.recording.processes} == {71, 72}
    assert {found.recording.processes[k["process"]].pid: k["device"] for k in found.kernels} == {71: 0, 72: 1}


def test_launches_through_hsa(tmp_path: Path):
    """If HSA was traced too, a dispatch may bear the correlation of the call that rang the queue's doorbell."""
    (tmp_path / "rank-0_kernel_trace.csv").write_text(KERNEL + kernel(100, 200, correlation=5))
    (tmp_path / "rank-0_hsa_api_trace.csv").write_text(
        f'{API}"HSA_CORE_API","hsa_signal_store_screlease",7,7,5,80,85\n"HSA_CORE_API","hsa_agent_get_info",7,7,6,1,2\n'
    )
    (tmp_path / "rank-0_hip_api_trace.csv").write_text(f'{API}"HIP_RUNTIME_API","hipLaunchKernel",7,7,4,70,90\n')
    found = read(tmp_path / "rank-0_kernel_trace.csv")
    assert {found.name(call) for call in found.calls} == {"hsa_signal_store_screlease", "hipLaunchKernel"}
    assert (found.launch(found.kernels[0]) or {})["start_ns"] == 80


def test_agents_by_name():
    agents = Agents.of([("CPU", 0, 0), ("GPU", 8, 3), ("GPU", 2, 1), ("CPU", 1, 2)])
    told = {"2": 0, "8": 1, "Agent 1": 0, "agent 3": 1, "GPU 1": 1, "17": 17, "Agent 17": 17, "what": None}
    assert {text: agents.device(text) for text in told} == told


def test_agents_that_are_listed_twice():
    agents = Agents.of([("GPU", 4, 1), ("GPU", 5, None), ("GPU", 4, 1), ("GPU", 5, 2)])
    assert (agents.by_node, agents.by_logical) == ({4: 0, 5: 1}, {1: 0, 2: 1})


def test_times_since_1970_beside_an_invalid_one():
    cells = pa.array([b"1700000000000000001", b"12x", b"-3", b"99999999999999999999", b"\xff"])
    assert to_int64(cells).to_pylist() == [1_700_000_000_000_000_001, None, -3, None, None]


def test_agents_of_rocminfo():
    before = "Agent 1\n  Name: EPYC\n  Node:                    0\n  Device Type:             CPU\n"
    after = "Agent 2\n  Name: gfx90a\n  Device Type:             GPU\n  Node:                    1\n"
    assert Agents.of_rocminfo(before + after).by_node == {1: 0}
    assert Agents.of_rocminfo("CMD: rocminfo\nROCm System Management\n").by_node == {}


def test_a_cut_row_with_invalid_utf8_is_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    path = tmp_path / "rank-0_kernel_trace.csv"
    rows = (KERNEL + kernel(10, 20, "NAME") + "cut NAME," * 2 + "\n" + kernel(30, 40, "K\u00fcche")).encode()
    path.write_bytes(rows.replace(b"NAME", b"bad\xff\xfename"))
    found = read(path)
    assert [found.name(row) for row in found.activities] == ["bad\ufffd\ufffdname", "K\u00fcche"]
    assert any("1 rows are cut" in problem for problem in found.recording.problems)
    assert capfd.readouterr().err == ""


def test_the_end_of_a_group_launches_its_operations(tmp_path: Path):
    """PyTorch calls within ncclGroupStart and ncclGroupEnd, which launches; RCCL's kernel has one name for all."""
    rccl = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    (tmp_path / "rank-0_kernel_trace.csv").write_text(
        KERNEL + "".join(kernel(100 * n + 60, 100 * n + 90, rccl, n) for n in (1, 2, 3))
    )
    (tmp_path / "rank-0_hip_api_trace.csv").write_text(
        API
        + "".join(f'"HIP_RUNTIME_API","hipLaunchKernel",7,70,{n},{100 * n + 41},{100 * n + 44}\n' for n in (1, 2, 3))
    )
    calls = (("ncclGroupStart", 10), ("ncclAllGather", 20), ("ncclAllReduce", 30), ("ncclGroupEnd", 40))
    of_groups = {1: {"ncclAllGather"}, 2: {"ncclAllReduce"}, 3: {"ncclAllGather", "ncclAllReduce"}}
    (tmp_path / "rank-0_rccl_api_trace.csv").write_text(
        API
        + "".join(
            f'"RCCL_API","{name}",7,70,9,{100 * n + at},{100 * n + at + 8}\n'
            for n, operations in of_groups.items()
            for name, at in calls
            if "Group" in name or name in operations
        )
    )
    found = read(tmp_path / "rank-0_kernel_trace.csv")
    assert [one["collective"] for one in found.kernels] == ["all_gather", "all_reduce", None]


def test_kernels_renamed_by_markers_are_said_and_rccl_calls_tell_communication(tmp_path: Path):
    """With --kernel-rename, Kernel_Name is the text of the marker around the launch."""
    rows = [(f"layer{number}", 100 * number, number) for number in (1, 2, 3)]
    (tmp_path / "7_kernel_trace.csv").write_text(
        KERNEL + "".join(kernel(start + 30, start + 60, name, number) for name, start, number in rows)
    )
    (tmp_path / "7_hip_api_trace.csv").write_text(
        API
        + "".join(
            f'"HIP_RUNTIME_API","hipLaunchKernel",7,70,{number},{start + 10},{start + 20}\n'
            for _, start, number in rows
        )
    )
    (tmp_path / "7_rccl_api_trace.csv").write_text(API + '"RCCL_API","ncclAllReduce",7,70,9,305,325\n')
    markers = API + "".join(
        f'"MARKER_CORE_API","{name}",7,70,0,{start},{start + 90}\n' for name, start, _ in rows if name != "layer2"
    )
    (tmp_path / "7_marker_api_trace.csv").write_text(markers)
    found = read(tmp_path / "7_kernel_trace.csv")
    assert [(found.name(one), one["collective"]) for one in found.kernels] == [
        ("layer1", None),
        ("layer2", None),
        ("layer3", "all_reduce"),
    ]
    (said,) = [problem for problem in found.recording.problems if "kernel-rename" in problem]
    assert said.startswith("2 kernel names are texts of markers (layer1)")
    (tmp_path / "7_marker_api_trace.csv").write_text(API + '"MARKER_CORE_API","step 1",7,70,0,100,390\n')
    assert not any("kernel-rename" in problem for problem in read(tmp_path / "7_kernel_trace.csv").recording.problems)


@pytest.mark.parametrize(("streams", "is_told"), [((0, 0), True), ((0, 3), False)])
def test_queues_without_streams_are_told(tmp_path: Path, streams: tuple[int, int], is_told: bool):
    rows = [f'"KERNEL_DISPATCH","Agent 4",{at},{stream},70,"k",1,10,20\n' for at, stream in enumerate(streams)]
    (tmp_path / "kernel_trace.csv").write_text(KERNEL + "".join(rows))
    told = [line for line in read(tmp_path / "kernel_trace.csv").recording.problems if "2 queues" in line]
    assert bool(told) is is_told
