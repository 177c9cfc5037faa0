"""rocprofv3's CSV files with the columns of three versions: per rank a kernel trace and companion files."""

import csv
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from jitter.core.errors import UsageError
from jitter.simulate.capture import CaptureOptions, apply_capture
from jitter.simulate.complete_file import complete_file
from jitter.simulate.formats.rocprof_records import CPU_NODES, RocprofRecords, collect_records
from jitter.simulate.job import Job
from jitter.simulate.recording import HostCall, RankRecording

Row = Sequence[object]
_GRID: Final = [f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ"]
_TIMES: Final = ["Correlation_Id", "Start_Timestamp", "End_Timestamp"]
_API: Final = ["Domain", "Function", "Process_Id", "Thread_Id", *_TIMES]
_NAMED: Final = ["Thread_Id", "Dispatch_Id", "Kernel_Id", "Kernel_Name", *_TIMES]
_REGISTERS: Final = ["LDS_Block_Size", "Scratch_Size", "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count"]
_KERNELS: Final = {
    "0.5": ["Kind", "Agent_Id", "Queue_Id", *_NAMED, "Private_Segment_Size", "Group_Segment_Size", *_GRID],
    "1.0": ["Kind", "Agent_Id", "Queue_Id", "Stream_Id", *_NAMED, *_REGISTERS, *_GRID],
    # as `rocpd convert` writes: a guid column first, and other capitals
    "7.1": [
        *("Guid", "Kind", "Agent_Id", "Queue_Id", "Stream_Id", *_NAMED),
        *("Lds_Block_Size", "Scratch_Size", "Vgpr_Count", "Accum_Vgpr_Count", "Sgpr_Count", *_GRID),
    ],
}
_AGENTS: Final = ["Node_Id", "Logical_Node_Id", "Agent_Type", "Name"]
COMPANION_FILES: Final = ("hip_api", "marker_api", "rccl_api", "memory_copy", "agent_info")


@dataclass(frozen=True)
class Options(CaptureOptions):
    profiler = "rocprofv3"
    layout: Literal["0.5", "1.0", "7.1"] = "1.0"
    names: Literal["rank", "number", "process"] = "rank"
    """rank-3_…, myprofile-3_…, or a folder per host with files named by process, the default of rocprofv3."""
    without: str = ""
    """Missing companion files, joined by +: hip_api, marker_api, rccl_api, memory_copy, agent_info."""
    shuffle: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in self.without.split("+"):
            if part and part not in COMPANION_FILES:
                raise UsageError(f"without={part} is not one of {', '.join(COMPANION_FILES)}")


def write(ranks: list[RankRecording], number: int, folder: Path, options: Options, job: Job) -> Path:
    """Write the files of a rank; return the kernel trace."""
    recording = apply_capture(ranks[0], options)
    prefix = {"rank": f"rank-{recording.rank}", "number": f"myprofile-{recording.rank}", "process": str(recording.pid)}[
        options.names
    ]
    if options.names == "process":
        folder = folder / recording.host
        folder.mkdir(exist_ok=True)
    rows = collect_records(recording)
    guid = [f"01990000-0000-7000-8000-{recording.rank:012d}"] if options.layout == "7.1" else []
    absent = set(options.without.split("+"))
    domain = "MARKER_CORE_RANGE_API" if options.layout == "7.1" else "MARKER_CORE_API"
    head = ["Guid"] * len(guid)
    parts: dict[str, tuple[list[str], Iterable[Row]]] = {
        "kernel_trace": (_KERNELS[options.layout], _kernels(recording, rows, options.layout)),
        "hip_api_trace": ([*head, *_API], _calls("HIP_RUNTIME_API_EXT", recording.pid, rows.calls)),
        "rccl_api_trace": ([*head, *_API], _calls("RCCL_API", recording.pid, rows.rccl)),
        "marker_api_trace": (
            [*head, *_API],
            [(domain, m.text, recording.pid, m.thread, n, m.start_ns, m.end_ns) for n, m in enumerate(rows.markers, 1)],
        ),
        "memory_copy_trace": _copies(recording, rows, options.layout),
    }
    for name, (heading, body) in parts.items():
        if name.removesuffix("_trace") not in absent:
            lines = [[*guid, *row] for row in body]
            if options.shuffle:
                random.Random(job.seed).shuffle(lines)
            _write(folder / f"{prefix}_{name}.csv", heading, lines)
    if "agent_info" not in absent:
        cpus = [[node, node, "CPU", "AMD EPYC"] for node in range(CPU_NODES)]
        gpus = [[node, node, "GPU", "gfx942"] for node in range(CPU_NODES, CPU_NODES + 8)]
        _write(folder / f"{prefix}_agent_info.csv", _AGENTS, [*cpus, *gpus])
    return folder / f"{prefix}_kernel_trace.csv"


def _agent(recording: RankRecording, layout: str) -> object:
    node = CPU_NODES + recording.device
    return node if layout == "0.5" else f"Agent {node}"


def _kernels(recording: RankRecording, rows: RocprofRecords, layout: str) -> Iterable[Row]:
    agent = _agent(recording, layout)
    for number, k in enumerate(rows.kernels, start=1):
        place = [k.queue] if layout == "0.5" else [k.queue, k.stream]
        times = (k.correlation, k.start_ns, k.end_ns)
        middle = (0, 0) if layout == "0.5" else (0, 0, 32, 0, 64)
        yield [
            "KERNEL_DISPATCH",
            agent,
            *place,
            k.thread,
            number,
            7,
            k.name,
            *times,
            *middle,
            k.group,
            1,
            1,
            k.items,
            1,
            1,
        ]


def _calls(domain: str, pid: int, calls: Sequence[HostCall]) -> Iterable[Row]:
    return [(domain, c.name, pid, c.thread, c.correlation, c.start_ns, c.end_ns) for c in calls]


def _copies(recording: RankRecording, rows: RocprofRecords, layout: str) -> tuple[list[str], Iterable[Row]]:
    stream = [] if layout == "0.5" else ["Stream_Id"]
    heading = ["Kind", "Direction", *stream, "Source_Agent_Id", "Destination_Agent_Id", *_TIMES]
    gpu, host = _agent(recording, layout), 0 if layout == "0.5" else "Agent 0"
    body = []
    for c in rows.copies:
        ends = (host, gpu) if c.direction == "HOST_TO_DEVICE" else (gpu, host)
        place = [c.stream] if stream else []
        body.append(["MEMORY_COPY", f"MEMORY_COPY_{c.direction}", *place, *ends, c.correlation, c.start_ns, c.end_ns])
    return (["Guid", *heading] if layout == "7.1" else heading), body


def _write(path: Path, heading: Sequence[str], rows: Iterable[Row]) -> None:
    with complete_file(path), path.open("w", newline="", encoding="utf-8") as file:
        # rocprofv3 quotes texts, not numbers
        out = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        out.writerow(heading)
        out.writerows(rows)
