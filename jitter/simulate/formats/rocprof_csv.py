"""rocprofv3's CSV files with the columns of three versions: per rank a kernel trace and companion files.

What AMD's profilers record of a rank, with HIP names, is the same in each of their formats: `collect_records`.
"""

import csv
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from jitter.core.files import atomic_file
from jitter.simulate.capture import CaptureOptions, apply_capture, list_calls
from jitter.simulate.formats.kineto import kineto_dialect
from jitter.simulate.job import Job
from jitter.simulate.recording import HostCall, HostRange, RankRecording

CPU_NODES: Final = 4
"""CPU agents that HSA numbers before the GPUs."""
_DIRECTIONS: Final = {"h2d": "HOST_TO_DEVICE", "d2h": "DEVICE_TO_HOST"}
_FILL: Final = "__amd_rocclr_fillBufferAligned"
_MARGIN_NS: Final = 300


class DispatchRecord(NamedTuple):
    """A kernel dispatch; sizes in work items, as in HSA."""

    name: str
    queue: int
    stream: int
    thread: int
    correlation: int
    start_ns: int
    end_ns: int
    group: int
    items: int


class CopyRecord(NamedTuple):
    direction: str
    stream: int
    thread: int
    correlation: int
    start_ns: int
    end_ns: int
    n_bytes: int


@dataclass
class RocprofRecords:
    kernels: list[DispatchRecord]
    copies: list[CopyRecord]
    calls: list[HostCall]
    """With HIP names, on threads of the operating system."""
    rccl: list[HostCall]
    markers: list[HostRange]


def collect_records(recording: RankRecording) -> RocprofRecords:
    """Return the records of a recording; roctx has no ranges without an end."""
    words = kineto_dialect("rocm", 0)
    streams = sorted({words.stream(op.stream) for op in recording.operations})
    queue = {stream: number for number, stream in enumerate(streams, start=1)}
    records = RocprofRecords([], [], [], [], [])
    rows = zip(
        recording.ops(),
        recording.start_ns.tolist(),
        recording.end_ns.tolist(),
        recording.correlation.tolist(),
        strict=True,
    )
    launches = zip(recording.launch_start_ns.tolist(), recording.launch_end_ns.tolist(), strict=True)
    for at, ((op, start, end, correlation), (begun, done)) in enumerate(zip(rows, launches, strict=True)):
        stream, thread = words.stream(op.stream), recording.threads[op.thread]
        if op.copy in _DIRECTIONS:
            copied = CopyRecord(_DIRECTIONS[op.copy], stream, thread, correlation, start, end, op.n_bytes or 0)
            records.copies.append(copied)
        else:
            # HIP runs a kernel for a fill
            name = _FILL if op.copy == "memset" else words.gpu(op)[1]
            group = op.block[0]
            items = int(recording.grid_x[at]) * group
            dispatch = DispatchRecord(name, queue[stream], stream, thread, correlation, start, end, group, items)
            records.kernels.append(dispatch)
        if recording.has_launch[at] and not recording.shares_launch[at] and op.kind == "collective":
            said = "nccl" + (op.collective or "").title().replace("_", "")
            times = begun - _MARGIN_NS, done + _MARGIN_NS
            records.rccl.append(HostCall(said, thread, *times, 1_000_000_000 + correlation, None))
    threads = recording.threads
    records.calls += [
        call._replace(name=words.call(call.name), thread=threads[call.thread]) for call in list_calls(recording)
    ]
    records.markers += [
        closed._replace(thread=threads[closed.thread]) for closed in recording.ranges if closed.end_ns is not None
    ]
    return records


_GRID: Final = [f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ"]
_TIMES: Final = ["Correlation_Id", "Start_Timestamp", "End_Timestamp"]
_REGISTERS: Final = {
    "0.5": ["Private_Segment_Size", "Group_Segment_Size"],
    "1.0": ["LDS_Block_Size", "Scratch_Size", "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count"],
    # as `rocpd convert` writes: a guid column first, and other capitals
    "7.1": ["Lds_Block_Size", "Scratch_Size", "Vgpr_Count", "Accum_Vgpr_Count", "Sgpr_Count"],
}


@dataclass(frozen=True)
class Options(CaptureOptions):
    profiler = "rocprofv3"
    layout: Literal["0.5", "1.0", "7.1"] = "1.0"
    names: Literal["rank", "number", "process"] = "rank"
    """rank-3_…, myprofile-3_…, or a folder per host with files named by process, the default of rocprofv3."""
    shuffle: bool = False


def write(ranks: list[RankRecording], number: int, folder: Path, options: Options, job: Job) -> Path:
    """Write the files of a rank; return the kernel trace."""
    recording = apply_capture(ranks[0], options)
    prefix = {"rank": f"rank-{recording.rank}", "number": f"myprofile-{recording.rank}", "process": str(recording.pid)}[
        options.names
    ]
    if options.names == "process":
        folder = folder / recording.host
        folder.mkdir(exist_ok=True)
    columns = _columns(options.layout)
    for name, records in _records(recording, collect_records(recording), options.layout).items():
        lines = [[record.get(column.lower(), 0) for column in columns[name]] for record in records]
        if options.shuffle:
            random.Random(job.seed).shuffle(lines)
        _write(folder / f"{prefix}_{name}_trace.csv", columns[name], lines)
    cpus = [[node, node, "CPU", "AMD EPYC"] for node in range(CPU_NODES)]
    gpus = [[node, node, "GPU", "gfx942"] for node in range(CPU_NODES, CPU_NODES + 8)]
    agents = ["Node_Id", "Logical_Node_Id", "Agent_Type", "Name"]
    _write(folder / f"{prefix}_agent_info.csv", agents, [*cpus, *gpus])
    return folder / f"{prefix}_kernel_trace.csv"


def _columns(layout: str) -> dict[str, list[str]]:
    """Return the columns of each trace."""
    guid, stream = ["Guid"] if layout == "7.1" else [], [] if layout == "0.5" else ["Stream_Id"]
    named = ["Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name"]
    api = [*guid, "Domain", "Function", "Process_Id", "Thread_Id", *_TIMES]
    return {
        "kernel": [*guid, "Kind", "Agent_Id", "Queue_Id", *stream, *named, *_TIMES, *_REGISTERS[layout], *_GRID],
        "hip_api": api,
        "rccl_api": api,
        "marker_api": api,
        "memory_copy": [*guid, "Kind", "Direction", *stream, "Source_Agent_Id", "Destination_Agent_Id", *_TIMES],
    }


def _records(recording: RankRecording, rows: RocprofRecords, layout: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each trace by the columns' names, lower case; 0 where a row states nothing."""
    node = CPU_NODES + recording.device
    gpu, host = (node, 0) if layout == "0.5" else (f"Agent {node}", "Agent 0")
    domain = "MARKER_CORE_RANGE_API" if layout == "7.1" else "MARKER_CORE_API"

    def record(one: Any, correlation: int, **more: object) -> dict[str, Any]:
        times = {"correlation_id": correlation, "start_timestamp": one.start_ns, "end_timestamp": one.end_ns}
        place = {"process_id": recording.pid, "thread_id": one.thread}
        return {"guid": f"01990000-0000-7000-8000-{recording.rank:012d}", **times, **place, **more}

    sizes = {name.lower(): 1 for name in _GRID} | {"vgpr_count": 32, "sgpr_count": 64, "kernel_id": 7}
    traces = {
        "kernel": [
            sizes
            | record(k, k.correlation, kind="KERNEL_DISPATCH", agent_id=gpu, queue_id=k.queue, stream_id=k.stream)
            | {"dispatch_id": n, "kernel_name": k.name, "workgroup_size_x": k.group, "grid_size_x": k.items}
            for n, k in enumerate(rows.kernels, 1)
        ],
        "marker_api": [record(m, n, domain=domain, function=m.text) for n, m in enumerate(rows.markers, 1)],
        "memory_copy": [],
    }
    for name, domain, calls in (("hip_api", "HIP_RUNTIME_API_EXT", rows.calls), ("rccl_api", "RCCL_API", rows.rccl)):
        traces[name] = [record(call, call.correlation, domain=domain, function=call.name) for call in calls]
    for c in rows.copies:
        source, target = (host, gpu) if c.direction == "HOST_TO_DEVICE" else (gpu, host)
        copied = record(c, c.correlation, kind="MEMORY_COPY", direction=f"MEMORY_COPY_{c.direction}")
        ends = {"source_agent_id": source, "destination_agent_id": target, "stream_id": c.stream}
        traces["memory_copy"].append(copied | ends)
    return traces


def _write(path: Path, heading: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with atomic_file(path) as half, half.open("w", newline="", encoding="utf-8") as file:
        # rocprofv3 quotes texts, not numbers
        out = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        out.writerow(heading)
        out.writerows(rows)
