"""XPlane files of JAX and TensorFlow: the tables of the same run in another format; damage, hostile sizes."""

import gzip
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import jitter
from jitter.core.errors import UnreadableTraceError
from jitter.ingestion.discovery.discover import discover
from jitter.readers.xplane import READER, trace_json
from jitter.simulate import Fault, Job, RankRecording, simulate, write
from jitter.simulate.capture import CaptureOptions, apply_capture
from tests.support.reading import Row, read_rows
from tests.support.xplane_traces import (
    Plane,
    blob,
    integer,
    recorded,
    recorded_json,
    space,
    varint,
    viewer_json,
    write_run,
)

METRICS = ("duration", "gap", "ttke", "launch_latency")
JOB = Job(ranks=3, steps=3, kernels=48, seed=11, first_step=5, epoch=None, marker="profiler", gpus_per_node=2)
RUN = simulate(JOB, [Fault.parse("cpu_stall:rank=1,step=6,kernel=17,ms=2")])


def lake_of(folder: Path) -> jitter.Lake:
    report = jitter.ingest([folder / "traces"], folder / "lake")
    assert (report.refused, len(report.added)) == ([], JOB.ranks)
    return jitter.open(folder / "lake")


def assert_same_tables(lake: jitter.Lake, tmp_path: Path, graphs: Any, *further: str) -> None:
    """The run of another lake has the metrics, and these `further` columns, of its Kineto traces."""
    write(RUN, tmp_path / "kineto" / "traces", "kineto", graphs=graphs)
    kineto = lake_of(tmp_path / "kineto")
    for step in JOB.step_numbers:
        for metric in METRICS:
            table, expected = lake.table(metric, step=step), kineto.table(metric, step=step)
            pd.testing.assert_frame_equal(table, expected, check_exact=True, obj=f"{metric} {step}")
    columns = "rank, step, ordinal, kind, device, start_ns, launch_start_ns, launch_thread, size_bytes, copy_direction"
    by = f"SELECT {', '.join([columns, *further])} FROM kernels WHERE kind != 'collective' ORDER BY rank, step, ordinal"
    pd.testing.assert_frame_equal(lake.sql(by), kineto.sql(by))


@pytest.mark.parametrize("graphs", ["off", "node"])
def test_same_tables_as_another_format(graphs: Any, tmp_path: Path):
    options = CaptureOptions(graphs=graphs)
    write_run((apply_capture(own, options) for own in RUN.ranks()), tmp_path / "xplane" / "traces")
    xplane = lake_of(tmp_path / "xplane")
    assert_same_tables(xplane, tmp_path, graphs, "stream", "grid_x", "block_x")
    told = {one.rank: (one.host, one.pid, one.utc_offset_ns) for one in xplane.sources}
    assert told == {own.rank: (own.host, own.pid, own.clock.utc_epoch_ns) for own in RUN.ranks()}
    assert {one.rank_told_by for one in xplane.sources} == {"file name"}


@pytest.mark.parametrize("graphs", ["off", "node"])
def test_same_tables_from_the_viewers_json_alone(graphs: Any, tmp_path: Path):
    ranks = [apply_capture(own, CaptureOptions(graphs=graphs)) for own in RUN.ranks()]
    folder = write_run(ranks, tmp_path / "json" / "traces", "trace.json.gz")
    for path in list(folder.rglob("*.trace.json.gz")):
        path.with_name("perfetto_trace.json.gz").write_bytes(path.read_bytes())  # JAX's copy is not read twice
    lake = lake_of(tmp_path / "json")
    assert_same_tables(lake, tmp_path, graphs, "stream", "grid_x", "block_x")
    told = {one.rank: (one.host, one.pid, one.utc_offset_ns) for one in lake.sources}
    assert told == {own.rank: (own.host, None, None) for own in RUN.ranks()}
    for source in lake.sources:
        assert any("without the .xplane.pb" in problem for problem in source.problems)
    write_run(ranks, tmp_path / "xplane" / "traces")
    columns = "rank, step, ordinal, kernel_name, kind, operator, scope, launch_thread, correlation_id"
    both = [
        one.sql(f"SELECT {columns} FROM kernels ORDER BY rank, step, ordinal")
        for one in (lake, lake_of(tmp_path / "xplane"))
    ]
    pd.testing.assert_frame_equal(*both)


def test_the_hlo_operation_is_the_operator(tmp_path: Path):
    write_run(RUN.ranks(), tmp_path / "traces")
    found = lake_of(tmp_path).sql("SELECT DISTINCT operator FROM kernels WHERE kind = 'compute'")
    assert found["operator"].str.fullmatch(r"fusion\.\d+").all()
    assert len(found) > 20


def rank() -> RankRecording:
    return next(iter(RUN.ranks([1])))


def one_file(folder: Path, content: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "host.xplane.pb"
    path.write_bytes(content)
    return path


def rows_of(path: Path) -> dict[str, list[Row]]:
    recording, rows = read_rows(READER, path)
    for row in (row for table in rows.values() for row in table if "name" in row):
        row["name"] = recording.names[row["name"]]
    return rows


def gpu_plane(device: int = 0, at_ns: int = 1000) -> Plane:
    plane = Plane(f"/device:GPU:{device}")
    plane.add(7, "Stream #7", "gemm", at_ns, at_ns + 10, correlation_id=1)
    return plane


def test_the_viewers_files_beside_it_are_no_recordings(tmp_path: Path):
    path = one_file(tmp_path / "a", space([gpu_plane()]))
    viewer = b'{"displayTimeUnit":"ns","traceEvents":[{"ph":"M","pid":1,"args":{"name":"/device:GPU:0"}}]}'
    for name in ("host.trace.json.gz", "perfetto_trace.json.gz"):
        path.with_name(name).write_bytes(gzip.compress(viewer))
    found = discover([tmp_path])
    assert ([source.path for source in found.sources], found.others, found.notes) == ([path], 0, [])


def test_the_json_of_a_session_whose_xplane_is_lost(tmp_path: Path):
    path = one_file(tmp_path / "a", b"").with_name("host.trace.json.gz")
    path.write_bytes(recorded_json(rank()))
    found = discover([tmp_path])
    assert [source.path for source in found.sources] == [path]
    assert [error for error, _ in found.unreadable] == [tmp_path / "a" / "host.xplane.pb"]


def json_file(folder: Path, events: list[str]) -> Path:
    """A trace of one GPU and one host thread, with these further events."""
    head = b'{"displayTimeUnit":"ns","metadata":{"highres-ticks":true},"traceEvents":['
    named = viewer_json([gpu_plane()]).removeprefix(head).removesuffix(b"{}]}").decode()
    host = '{"ph":"M","pid":701,"name":"process_name","args":{"name":"/host:CPU"}},'
    folder.mkdir(exist_ok=True)
    path = folder / "host.trace.json"
    path.write_bytes(head + "".join([named, host, *(f"{event}," for event in events)]).encode() + b"{}]}")
    return path


def test_a_json_of_a_million_events_lacks_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trace_json, "_MOST_EVENTS", 1000)
    for count in (998, 999):  # and the kernel
        path = json_file(tmp_path / "a", ['{"ph":"X","pid":701,"tid":1,"ts":1,"dur":1,"name":"$a.py:1"}'] * count)
        recording, _ = read_rows(READER, path)
        assert recording.is_incomplete == (count == 999)
        assert any("as many" in problem for problem in recording.problems) == (count == 999)


def test_times_of_the_json_have_all_digits(tmp_path: Path):
    event = '{"ph":"X","pid":1,"tid":7,"ts":%s,"dur":%s,"name":"k","args":{"correlation_id":"5"}}'
    times = [("2.0070000000000001", "0.001"), ("3.123", "9.9999999999999995e-07"), ("4000000000.123", "5")]
    rows = rows_of(json_file(tmp_path / "a", [event % one for one in times]))["activities"][1:]
    assert [(row["start_ns"], row["end_ns"]) for row in rows] == [
        (2007, 2008),
        (3123, 3123),
        (4_000_000_000_123, 4_000_000_005_123),
    ]


def test_the_operation_of_recent_versions(tmp_path: Path):
    kernel = '{"ph":"X","pid":1,"tid":7,"ts":9,"dur":1,"name":"k","args":{"correlation_id":"5","hlo_op":"dot.3",'
    kernel += '"tf_op":"XlaModule:","name":"jit(step)/mlp/dot_general"}}'
    call = '{"ph":"X","pid":701,"tid":41,"ts":8,"dur":1,"name":"cuLaunchKernel","args":{"correlation_id":"5"}}'
    rows = rows_of(json_file(tmp_path / "a", [call, kernel]))["operators"]
    assert [(row["name"], row["is_module"]) for row in rows] == [("jit(step)/mlp/dot_general", True), ("dot.3", False)]


@pytest.mark.parametrize("value", ["null", "[]", '"x"', "1e400", "123456789012345678901234567890", "-1"])
@pytest.mark.parametrize("member", ["pid", "tid", "ts", "dur", "name", "args", "correlation_id", "step_num"])
def test_any_value_of_any_member_of_the_json(member: str, value: str, tmp_path: Path):
    members = {"ph": '"X"', "pid": "701", "tid": "41", "ts": "8", "dur": "1", "name": '"n"'}
    args = {"step_num": '"3"'} | ({"correlation_id": '"5"'} if member == "correlation_id" else {})
    (args if member in args else members)[member] = value
    members.setdefault("args", "{" + ",".join(f'"{key}":{told}' for key, told in args.items()) + "}")
    event = "{" + ",".join(f'"{key}":{told}' for key, told in members.items()) + "}"
    assert len(rows_of(json_file(tmp_path / "a", [event]))["activities"]) == 1


def program(number: int, instructions: list[bytes], devices: int) -> bytes:
    """Return an entry of the plane of programs, whose partitions run on devices in order."""
    assignment = integer(1, 1) + integer(2, devices) + b"".join(blob(3, blob(1, varint(at))) for at in range(devices))
    computation = b"".join(blob(2, instruction) for instruction in instructions)
    hlo = blob(1, blob(1, "jit_step") + blob(3, computation) + blob(15, assignment))
    stats = blob(5, integer(1, 1) + blob(6, hlo)) + blob(5, integer(1, 2) + integer(3, number))
    return blob(4, integer(1, number) + blob(2, integer(1, number) + blob(2, f"jit_step({number})") + stats))


def instruction(name: str, operation: str, *groups: bytes, is_global: bool = True) -> bytes:
    return blob(1, name) + blob(2, operation) + integer(26, 1) + b"".join(groups) + integer(71, is_global)


def test_groups_of_collectives_are_those_of_the_programs(tmp_path: Path):
    pairs = [(0, 2), (1, 3)]
    listed = blob(87, b"".join(blob(1, blob(1, b"".join(map(varint, pair)))) for pair in pairs))
    old = b"".join(blob(49, b"".join(integer(1, member) for member in pair)) for pair in pairs)
    regular = blob(87, blob(2, integer(1, 2) + integer(2, 2)))
    unequal = blob(87, blob(1, blob(1, varint(0))) + blob(1, blob(1, varint(1) + varint(2) + varint(3))))
    whole = blob(87, blob(1, blob(1, b"".join(map(varint, range(4))))))
    replicas = blob(87, blob(1, blob(1, varint(0))))
    instructions = [
        *(instruction(*words) for words in (
            ("all-gather.1", "all-gather", listed), ("all-reduce-start.2", "all-reduce-start", old),
            ("reduce-scatter.3", "reduce-scatter", regular), ("all-reduce.4", "all-reduce", whole),
            ("all-gather.5", "all-gather", unequal), ("fusion.6", "fusion", listed),
        )),
        instruction("all-reduce.7", "all-reduce", replicas, is_global=False),
    ]  # fmt: skip
    stats = b"".join(
        blob(5, integer(1, at) + blob(2, integer(1, at) + blob(2, name)))
        for at, name in ((1, "Hlo Proto"), (2, "program_id"))
    )
    other = program(8, [instruction("all-gather.1", "all-gather", whole)], 4)
    programs = blob(1, blob(2, "/host:metadata") + program(7, instructions, 4) + other + stats)
    plane = Plane("/device:GPU:0")
    operations = ["all-gather.1", "all-reduce-start.2", "reduce-scatter.3", "all-reduce.4", "all-gather.5", "fusion.6"]
    for at, operation in enumerate([*operations, "all-reduce.7", "unknown"]):
        plane.add(7, "Stream #7", "ncclDevKernel_Generic", 10 * at, 10 * at + 5, hlo_op=operation, program_id=7)
    plane.add(7, "Stream #7", "ncclDevKernel_Generic", 100, 105, hlo_op="all-gather.1", program_id=8)
    plane.add(7, "Stream #7", "ncclDevKernel_Generic", 110, 115, hlo_op="all-gather.1")
    plane.add(7, "Stream #7", "gemm", 120, 125, hlo_op="all-gather.1", program_id=7)
    rows = rows_of(one_file(tmp_path / "a", programs + space([plane])))["activities"]
    assert [row["group_size"] for row in rows] == [2, 2, 2, 4, None, None, 4, None, 4, None, None]
    assert [row["group_ranks"] for row in rows if row["group_ranks"]] == [[0, 1, 2, 3]] * 3


def test_statistics_as_texts(tmp_path: Path):
    plane = gpu_plane()
    event = integer(1, 1) + integer(2, 5_000_000) + integer(3, 1_000)
    event += blob(4, plane.stat("kernel_details", "regs:8 shm:0 grid:3,2,1 block:64,1,1", as_text=True))
    plane.lines[7][1].append(event)
    (first, second) = rows_of(one_file(tmp_path / "a", space([plane])))["activities"]
    assert (second["grid_x"], second["grid_y"], second["block_x"]) == (3, 2, 64)
    assert (second["start_ns"], second["end_ns"]) == (5000, 5001)
    assert first["grid_x"] is None


def test_only_streams_are_activities(tmp_path: Path):
    plane = gpu_plane()
    for number, name in enumerate(("Steps", "XLA Modules", "XLA Ops", "Launch Stats"), 100):
        plane.add(number, name, "jit_step", 0, 5000)
    assert [row["name"] for row in rows_of(one_file(tmp_path / "a", space([plane])))["activities"]] == ["gemm"]


def test_host_threads(tmp_path: Path):
    host = Plane("/host:CPU")
    host.add(41, "python", "train", 0, 900, _r=1, step_num=12)
    host.add(41, "python", "my range", 10, 20)
    host.add(41, "python", "$train.py:12 step", 10, 20)
    host.add(41, "python", "ThunkExecutor::Execute", 10, 20, _src="cpu_client.cc")
    host.add(41, "python", "cuLaunchKernel", 30, 40, correlation_id=1)
    found = rows_of(one_file(tmp_path / "a", space([gpu_plane(), host])))
    assert [row["text"] for row in found["ranges"]] == ["train#step_num=12#", "my range"]
    assert [(row["name"], row["correlation"], row["thread"]) for row in found["calls"]] == [("cuLaunchKernel", 1, 41)]


def test_all_gpus_of_a_process(tmp_path: Path):
    path = one_file(tmp_path / "a", space([gpu_plane(0), gpu_plane(1)], "node7"))
    assert sorted(row["device"] for row in rows_of(path)["activities"]) == [0, 1]
    assert READER.open(path)[0].processes[0].host == "host"


def test_times_since_1970(tmp_path: Path):
    task, begun = Plane("Task Environment"), 1_718_000_000_000_000_000
    task.own.append(task.stat("profile_start_time", begun))
    for at_ns, offset in ((1000, begun), (begun + 1000, 0)):
        recording, batches = READER.open(one_file(tmp_path / "a", space([gpu_plane(at_ns=0), task])))
        plane = Plane("/device:GPU:0")
        plane.lines[7] = "Stream #7", [integer(1, 1) + integer(2, 0) + integer(3, 1000)]
        plane.event_names["gemm"] = 1
        content = space([plane, task]).replace(integer(3, 0) + blob(4, b""), b"")
        line = integer(1, 7) + blob(2, "Stream #7") + integer(3, at_ns) + blob(4, plane.lines[7][1][0])
        names = blob(4, integer(1, 1) + blob(2, integer(1, 1) + blob(2, "gemm")))
        content = blob(1, blob(2, "/device:GPU:0") + blob(3, line) + names) + blob(1, task.encode())
        recording, batches = READER.open(one_file(tmp_path / "a", content))
        list(batches(lambda _: None))
        assert recording.utc_offset_ns == offset


def test_a_file_without_gpus_says_so(tmp_path: Path):
    host = Plane("/host:CPU")
    host.add(41, "python", "train", 0, 900, step_num=12)
    with pytest.raises(UnreadableTraceError, match="no GPU activity"):
        rows_of(one_file(tmp_path / "a", space([host])))
    tpu = json_file(tmp_path / "a", [])
    tpu.write_bytes(tpu.read_bytes().replace(b"/device:GPU:0", b"/device:TPU:0"))
    assert READER.sniff(tpu)
    with pytest.raises(UnreadableTraceError, match="holds activities of TPUs"):
        rows_of(tpu)
    with pytest.raises(UnreadableTraceError, match="holds activities of TPUs"):
        rows_of(one_file(tmp_path / "a", space([host, Plane("/device:TPU:0")])))


def test_what_precedes_the_cut_is_read(tmp_path: Path):
    whole = recorded(rank())
    rows = rows_of(one_file(tmp_path / "whole", whole))
    task = space([Plane("Task Environment")])
    cut = one_file(tmp_path / "cut", whole[: -len(task) - 200])
    recording, batches = READER.open(cut)
    found = [batch for batch in batches(lambda _: None) if batch.table == "calls"]
    assert sum(batch.rows.num_rows for batch in found) == len(rows["calls"])
    assert recording.is_incomplete
    assert any("cut or damaged" in problem for problem in recording.problems)


@pytest.mark.parametrize(
    "content", [b"\n\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\n\x05" + b"\xff" * 20, b"\n", b"\n\x00"]
)
def test_lengths_that_lie(content: bytes, tmp_path: Path):
    assert not READER.sniff(one_file(tmp_path / "a", content))


def test_a_damaged_file_is_named_as_such(tmp_path: Path):
    """Not as a protobuf of another program, with the advice for PyTorch."""
    (tmp_path / "empty.xplane.pb").touch()
    (tmp_path / "other.xplane.pb").write_bytes(b"\xff" * 3000)
    found = discover([tmp_path])
    assert [
        str(error).split(": ")[1].removesuffix("; copy it again, or record again") for _, error in found.unreadable
    ] == ["a damaged trace (0 bytes)", "a damaged trace (3,000 bytes; no reader recognizes them)"]
    assert found.notes == []
