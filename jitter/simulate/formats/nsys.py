"""Nsight Systems exports: SQLite files or folders of Parquet files, in the layouts of several versions."""

import hashlib
import random
import struct
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from jitter.core.errors import UsageError
from jitter.simulate.capture import CaptureOptions, apply_capture, find_graph_heads, list_calls
from jitter.simulate.formats.nsys_tables import (
    ENUMS,
    GRAPH_TRACE,
    LAYOUTS,
    SYNC_TYPES,
    NsysReport,
    write_parquet,
    write_sqlite,
)
from jitter.simulate.job import Job
from jitter.simulate.recording import ProcessGroup, RankRecording

_DOMAIN: Final = 1
_FIRST_SCHEMA: Final = 16_777_216
_INIT, _PEER, _REDUCTION, _PLAIN = (_FIRST_SCHEMA + number for number in (2, 10, 7, 4))
_ENTRIES: Final = {
    _INIT: ((18, "NCCL communicator ID", None), (5, "No. of ranks", 8), (5, "Rank", 12), (5, "CUDA device", 16)),
    _PEER: ((18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8), (5, "Peer rank", 16)),
    _REDUCTION: (
        (18, "NCCL communicator ID", None),
        (22, "Message size [bytes]", 8),
        (_FIRST_SCHEMA + 16, "Reduction operation", 16),
    ),
    _PLAIN: ((18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8)),
}
_PAYLOAD_BYTES: Final = {_INIT: 24, _PEER: 24, _REDUCTION: 24, _PLAIN: 16}
_CALLS: Final = {
    "all_reduce": ("ncclAllReduce", _REDUCTION),
    "reduce_scatter": ("ncclReduceScatter", _REDUCTION),
    "all_gather": ("ncclAllGather", _PLAIN),
    "all_to_all": ("ncclAlltoAll", _PLAIN),
    "broadcast": ("ncclBroadcast", _PLAIN),
    "send_recv": ("ncclSend", _PEER),
}
_PER_PEER: Final = frozenset({"reduce_scatter", "all_to_all"})
"""NCCL states the part of one rank of these; the program states the whole input."""
_LEAD_NS: Final = 400
_INIT_NS: Final = 30_000


def add_nccl_ranges(report: NsysReport, recording: RankRecording, tids: list[int]) -> None:
    """Add a rank's NCCL calls; `tids` are the global ids of its threads."""
    if "NVTX_PAYLOAD_SCHEMAS" not in report.rows:
        return
    _add_schemas(report)
    launched = (recording.has_launch & ~recording.shares_launch).nonzero()[0].tolist()
    ops = recording.operations
    rows: list[tuple[int, int, int, str, bytes]] = []
    first = int(recording.launch_start_ns[launched].min()) if launched else 0
    for number, group in enumerate(recording.groups.values()):
        start = first - (len(recording.groups) - number + 1) * _INIT_NS
        fields = struct.pack(
            "<QIIII", _communicator(group), len(group.ranks), group.ranks.index(recording.rank), recording.device, 0
        )
        rows.append((start, start + _INIT_NS // 2, tids[0], "ncclCommInitRank", _payload(_INIT, fields)))
    for at in launched:
        op = ops[int(recording.operation[at])]
        if op.kind != "collective" or op.group is None or op.n_bytes is None or op.collective not in _CALLS:
            continue
        group = recording.groups[op.group]
        text, schema = _CALLS[op.collective]
        size = op.n_bytes // len(group.ranks) if op.collective in _PER_PEER else op.n_bytes
        fields = struct.pack("<QQQ", _communicator(group), size, 0)[: _PAYLOAD_BYTES[schema]]
        start, end = int(recording.launch_start_ns[at]) - _LEAD_NS, int(recording.launch_end_ns[at])
        rows.append((start, end, tids[op.thread], text, _payload(schema, fields)))
    report.add(
        "NVTX_EVENTS",
        len(rows),
        start=[row[0] for row in rows],
        end=[row[1] for row in rows],
        eventType=59,
        text=None,
        textId=[report.string(row[3]) for row in rows],
        globalTid=[row[2] for row in rows],
        domainId=_DOMAIN,
        binaryData=[row[4] for row in rows],
    )


def _add_schemas(report: NsysReport) -> None:
    if report.rows["NVTX_PAYLOAD_SCHEMAS"]:
        return
    schemas = list(_ENTRIES)
    report.add(
        "NVTX_PAYLOAD_SCHEMAS",
        len(schemas),
        domainId=_DOMAIN,
        schemaId=schemas,
        type=1,
        numEntries=[len(_ENTRIES[schema]) for schema in schemas],
        payloadSize=[_PAYLOAD_BYTES[schema] for schema in schemas],
    )
    for schema, entries in _ENTRIES.items():
        report.add(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES",
            len(entries),
            domainId=_DOMAIN,
            schemaId=schema,
            idx=list(range(len(entries))),
            type=[kind for kind, _, _ in entries],
            name=[name for _, name, _ in entries],
            offset=[offset for _, _, offset in entries],
        )


def _communicator(group: ProcessGroup) -> int:
    named = f"{group.name} {group.number} {group.ranks}".encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "little")


def _payload(schema: int, fields: bytes) -> bytes:
    return struct.pack("<IIIIQQ", _DOMAIN, 0, schema, 0, len(fields), 32 + len(fields)) + fields


_VM = 1 << 48  # the bits above the process id in every global id
_HOST_CALLS: Final = {
    "cudaLaunchKernel": "cudaLaunchKernel_v7000",
    "cudaLaunchKernelExC": "cudaLaunchKernelExC_v11060",
    "cudaGraphLaunch": "cudaGraphLaunch_v10000",
    "cudaMemcpyAsync": "cudaMemcpyAsync_v3020",
    "cudaMemsetAsync": "cudaMemsetAsync_v3020",
    "cudaEventRecord": "cudaEventRecord_v3020",
    "cudaStreamWaitEvent": "cudaStreamWaitEvent_v3020",
    "cudaStreamSynchronize": "cudaStreamSynchronize_v3020",
}
_OTHER_SYNCS: Final = {
    "cudaDeviceSynchronize": "cudaDeviceSynchronize_v3020",
    "cudaEventSynchronize": "cudaEventSynchronize_v3020",
}
"""In the table of names only if they are called."""
_SYNC_TYPES: Final = {"cudaEventSynchronize": 1, "cudaStreamSynchronize": 3, "cudaDeviceSynchronize": 4}
"""CUPTI's synchronization types: event, stream, context."""
_VERSIONS: Final = {"2022.4": "2022.4.2.1", "2026.2": "2026.2.1.210"}
SECRET: Final = "PMI_SHARED_SECRET=7061737377307264"
"""A secret in the environment of every report; it must not appear in anything made from the report."""


@dataclass(frozen=True)
class Options(CaptureOptions):
    layout: str = "2022.4"
    container: Literal["sqlite", "parquet"] = "sqlite"
    text_ids: bool = False
    """Whether range texts are registered strings and the text column is null."""
    shuffle: bool = False
    """Whether rows are in random order."""
    ranks_per_report: int = 1
    """Processes per report; they share a clock, and correlation ids repeat."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layout not in LAYOUTS:
            raise UsageError(f"there is no nsys layout {self.layout!r}", f"there are {', '.join(LAYOUTS)}")
        if self.ranks_per_report < 1:
            raise UsageError("a report holds at least one rank: ranks_per_report >= 1")
        if self.graphs == "graph" and self.layout not in GRAPH_TRACE:
            raise UsageError(f"nsys {self.layout} could not record whole graphs", "take graphs=node or another layout")


def write(ranks: list[RankRecording], number: int, folder: Path, options: Options, job: Job) -> Path:
    """Write the report of some ranks of a node, the one of this number."""
    tables = dict(LAYOUTS[options.layout])
    if options.graphs == "graph":
        tables["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"] = GRAPH_TRACE[options.layout]
    report = NsysReport(tables)
    clock = ranks[0].clock
    for recording in ranks:
        captured = apply_capture(recording.moved(clock.offset_ns - recording.clock.offset_ns), options)
        _add_activities(report, captured, options)
        _add_calls(report, captured)
        _add_ranges(report, captured, options)
        _add_process(report, captured)
    if options.layout != "2020.3":
        _add_session(report, ranks, number, job.ranks, options)
    report.add("StringIds", len(report.strings), id=list(report.strings.values()), value=list(report.strings))
    if options.shuffle:
        for rows in report.rows.values():
            random.Random(job.seed).shuffle(rows)
    first = ranks[0]
    stem = f"rank{first.rank}" if options.ranks_per_report == 1 else f"{first.host}-{number}"
    if options.container == "parquet":
        return write_parquet(report, folder / f"{stem}_pqtdir")
    return write_sqlite(report, folder / f"{stem}.sqlite")


def _add_activities(report: NsysReport, recording: RankRecording, options: Options) -> None:
    ops = recording.operations
    kinds = [op.kind == "memory" and (op.copy or "") for op in recording.ops()]
    whole_graphs = options.graphs == "graph"
    heads = find_graph_heads(recording).tolist()
    shared = recording.shares_launch.tolist()
    in_graph = [h or s for h, s in zip(heads, shared, strict=True)]

    def place(rows: list[int]) -> dict[str, object]:
        return {
            "start": recording.start_ns[rows].tolist(),
            "end": recording.end_ns[rows].tolist(),
            "deviceId": recording.device,
            "contextId": 1,
            "streamId": [ops[o].stream for o in recording.operation[rows].tolist()],
            "correlationId": recording.correlation[rows].tolist(),
            "globalPid": _global_tid(recording.pid, 0),
        }

    full = [report.string(op.name) for op in ops]
    short = [report.string(_short(op.name)) for op in ops]
    rows = [at for at, kind in enumerate(kinds) if kind is False and not (whole_graphs and in_graph[at])]
    op_numbers = recording.operation[rows].tolist()
    report.add(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        len(rows),
        **place(rows),
        demangledName=[full[o] for o in op_numbers],
        shortName=[short[o] for o in op_numbers],
        mangledName=[full[o] for o in op_numbers],
        launchType=1,
        cacheConfig=1,
        registersPerThread=32,
        gridX=recording.grid_x[rows].tolist(),
        gridY=1,
        gridZ=1,
        blockX=[ops[o].block[0] for o in op_numbers],
        blockY=1,
        blockZ=1,
        gridId=list(range(1, len(rows) + 1)),
        graphNodeId=[1000 + o if in_graph[at] else None for at, o in zip(rows, op_numbers, strict=True)],
        tensorSizeMinusOneElements="[]",
    )
    for copy, table, details in (
        ("h2d", "MEMCPY", {"copyKind": 1, "srcKind": 1, "dstKind": 2}),
        ("d2h", "MEMCPY", {"copyKind": 2, "srcKind": 2, "dstKind": 1}),
        ("memset", "MEMSET", {"value": 0, "memKind": 2}),
    ):
        rows = [at for at, kind in enumerate(kinds) if kind == copy]
        n_bytes = [ops[o].n_bytes for o in recording.operation[rows].tolist()]
        report.add(f"CUPTI_ACTIVITY_KIND_{table}", len(rows), **place(rows), bytes=n_bytes, **details)
    if whole_graphs:
        firsts = [at for at, is_head in enumerate(heads) if is_head]
        lasts = [
            max(at for at in range(a, b) if in_graph[at])
            for a, b in zip(firsts, [*firsts[1:], len(recording)], strict=True)
        ]
        values = {**place(firsts), "end": recording.end_ns[lasts].tolist(), "graphId": 1, "graphExecId": 2}
        report.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", len(firsts), **values)


def _add_calls(report: NsysReport, recording: RankRecording) -> None:
    used = {call.name for call in recording.calls}
    names = _HOST_CALLS | {name: full for name, full in _OTHER_SYNCS.items() if name in used}
    ids = {name: report.string(full) for name, full in names.items()}
    calls = list_calls(recording)
    report.add(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        len(calls),
        start=[call.start_ns for call in calls],
        end=[call.end_ns for call in calls],
        globalTid=[_global_tid(recording.pid, recording.threads[call.thread]) for call in calls],
        correlationId=[call.correlation for call in calls],
        nameId=[ids[call.name] for call in calls],
        eventClass=0,
        returnValue=0,
    )
    syncs = [c for c in recording.calls if c.is_sync]
    report.add(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        len(syncs),
        start=[c.start_ns for c in syncs],
        end=[c.end_ns for c in syncs],
        deviceId=recording.device,
        contextId=1,
        streamId=[c.stream if c.name == "cudaStreamSynchronize" else 0 for c in syncs],
        correlationId=[c.correlation for c in syncs],
        globalPid=_global_tid(recording.pid, 0),
        syncType=[_SYNC_TYPES[c.name] for c in syncs],
    )


def _add_ranges(report: NsysReport, recording: RankRecording, options: Options) -> None:
    texts = [r.text for r in recording.ranges]
    report.add(
        "NVTX_EVENTS",
        len(texts),
        start=[r.start_ns for r in recording.ranges],
        end=[r.end_ns for r in recording.ranges],
        eventType=59,
        text=None if options.text_ids else texts,
        textId=[report.string(text) for text in texts] if options.text_ids else None,
        globalTid=[_global_tid(recording.pid, recording.threads[r.thread]) for r in recording.ranges],
        domainId=0,
    )
    add_nccl_ranges(report, recording, [_global_tid(recording.pid, thread) for thread in recording.threads])


def _add_process(report: NsysReport, recording: RankRecording) -> None:
    pid = _global_tid(recording.pid, 0)
    names = [report.string(name) for name in ("python3", "pt_autograd_0")]
    tids = [_global_tid(recording.pid, thread) for thread in recording.threads]
    report.add("ThreadNames", 2, nameId=names, priority=20, globalTid=tids)
    report.add("PROCESSES", 1, globalPid=pid, pid=recording.pid, name="python3")
    streams = sorted({op.stream for op in recording.operations})
    report.add("TARGET_INFO_CUDA_STREAM", len(streams), streamId=streams, processId=recording.pid, contextId=1, vmId=1)
    gpu = {"id": recording.device, "deviceId": recording.device, "cuDevice": recording.device, "pid": recording.pid}
    bus = f"0000:{16 + recording.device:02x}:00.0"
    report.add("TARGET_INFO_GPU", 1, **gpu, name="NVIDIA H100 80GB HBM3", smCount=132, busLocation=bus)
    report.add("TARGET_INFO_CUDA_GPU", 1, **gpu, name="Tesla V100-SXM3-32GB", numMultiprocessors=80)


def _add_session(report: NsysReport, ranks: list[RankRecording], number: int, world: int, options: Options) -> None:
    first = ranks[0]
    alone = options.ranks_per_report == 1
    # the launcher of several ranks has a process number, which is not a rank, and no RANK
    variables = ["PATH=/usr/bin:/bin", SECRET, f"SLURM_PROCID={first.rank if alone else number - 1}"]
    if alone:
        variables += [f"RANK={first.rank}", f"WORLD_SIZE={world}", f"LOCAL_RANK={first.device}"]
        variables.append(f"PMI_RANK={first.rank}")
    environment = (";" if options.layout == "2026.2" else "\0").join(variables)
    facts = {"CpuCores": "64", "Hostname": first.host, "DeviceEnvironment": environment}
    report.add(
        "TARGET_INFO_SYSTEM_ENV",
        len(facts),
        globalVid=_VM,
        devStateName="Local (CLI)",
        name=list(facts),
        nameEnum=[1, 619, 610],
        value=list(facts.values()),
    )
    utc = first.clock.utc_epoch_ns
    when = datetime.fromtimestamp(utc // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    report.add("TARGET_INFO_SESSION_START_TIME", 1, utcEpochNs=utc, utcTime=when, localTime=when)
    stop = max(int(r.end_ns.max()) + first.clock.offset_ns - r.clock.offset_ns for r in ranks)
    report.add("ANALYSIS_DETAILS", 1, globalVid=_VM, duration=stop, startTime=0, stopTime=stop)
    product = {
        "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
        "EXPORT_PRODUCT_VERSION": _VERSIONS[options.layout],
    }
    for table in ("EXPORT_META_DATA", "META_DATA_EXPORT"):
        report.add(table, 2, name=list(product), value=list(product.values()))
    quoted = [f'{name}="{value}"' for name, _, value in (v.partition("=") for v in variables)]
    report.add("META_DATA_CAPTURE", len(quoted), name="PROCESS_0:ENVIRONMENT_VARIABLE", value=quoted)
    kinds = {_SYNC_TYPES[call.name] for recording in ranks for call in recording.calls if call.is_sync}
    synced = {kind: SYNC_TYPES[kind] for kind in sorted(kinds | {_SYNC_TYPES["cudaStreamSynchronize"]})}
    for table, labels in (ENUMS | {"ENUM_CUPTI_SYNC_TYPE": synced}).items():
        report.add(table, len(labels), id=list(labels), name=list(labels.values()), label=list(labels.values()))


def _global_tid(pid: int, tid: int) -> int:
    return _VM | pid << 24 | tid


def _short(name: str) -> str:
    """Return the bare name of the function, as nsys shortens names."""
    bare = name.removeprefix("void ").replace("(anonymous namespace)::", "").partition("<")[0].partition("(")[0]
    return bare.rpartition("::")[2]
