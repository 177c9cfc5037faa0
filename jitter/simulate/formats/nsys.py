"""Nsight Systems exports: SQLite files or folders of Parquet files, in the layouts of several versions.

An export has the tables that a reader needs: activities, calls, ranges, and names, processes and devices for these.
"""

import hashlib
import random
import struct
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from jitter.core.errors import UsageError
from jitter.core.files import atomic_file
from jitter.simulate.capture import CaptureOptions, apply_capture, find_graph_heads, list_calls
from jitter.simulate.job import Job
from jitter.simulate.recording import ProcessGroup, RankRecording

Tables = dict[str, str]

_ACTIVITY = "start! end! deviceId! contextId! streamId! correlationId globalPid"
_LAUNCH_SHAPE = (
    "launchType cacheConfig registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! "
    "dynamicSharedMemory! localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId"
)
_COPY = "bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId "
_NVTX = (
    "start! end eventType! rangeId category color text:text globalTid endGlobalTid textId domainId uint64Value "
    "int64Value doubleValue:real uint32Value int32Value floatValue:real jsonTextId jsonText:text"
)
_META = "name!:text value:text"
_SCHEMA_ENTRIES: Final = "NVTX_PAYLOAD_SCHEMA_ENTRIES"

_2020_3: Final[Tables] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ACTIVITY} demangledName! shortName! {_LAUNCH_SHAPE}",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue!",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ACTIVITY} {_COPY}graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY} value! bytes! graphNodeId",
    "NVTX_EVENTS": _NVTX,
    "StringIds": "id!key value!:text",
}
_2022_4: Final[Tables] = {
    **_2020_3,
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        f"{_ACTIVITY} demangledName! shortName! mangledName {_LAUNCH_SHAPE} sharedMemoryLimitConfig"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": _2020_3["CUPTI_ACTIVITY_KIND_RUNTIME"] + " callchainId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ACTIVITY} {_COPY}migrationCause graphNodeId virtualAddress",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY} value! bytes! graphNodeId memKind",
    "TARGET_INFO_GPU": "vmId! id! name:text busLocation:text isDiscrete totalMemory smCount uuid:text cuDevice",
    "TARGET_INFO_SYSTEM_ENV": "globalVid! devStateName!:text name!:text nameEnum! value!:text",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:text localTime:text",
    "EXPORT_META_DATA": _META,
}
_GREEN = "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid"
_GONE = ("TARGET_INFO_GPU", "EXPORT_META_DATA")
_2026_2: Final[Tables] = {
    **{name: columns for name, columns in _2022_4.items() if name not in _GONE},
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        f"{_GREEN} demangledName! shortName! mangledName {_LAUNCH_SHAPE} sharedMemoryLimitConfig "
        f"qmdBulkReleaseDone "
        "qmdPreexitDone qmdLastCtaDone graphId clusterX clusterY clusterZ clusterSchedulingPolicy "
        "maxPotentialClusterSize maxActiveClusters sharedMemoryRequestedPercentage "
        "tensorSizeMinusOneElements!:text"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_GREEN} {_COPY}migrationCause graphNodeId virtualAddress copyCount",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_GREEN} value! bytes! graphNodeId memKind",
    "NVTX_EVENTS": f"{_NVTX} binaryData:blob",
    _SCHEMA_ENTRIES: "domainId! schemaId! idx! flags type name:text description:text arrayOrUnionDetail offset",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName!:text name!:text nameEnum! value!:text",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:text localTime:text systemClockNs",
    "META_DATA_CAPTURE": _META,
    "META_DATA_EXPORT": _META,
}
LAYOUTS: Final[dict[str, Tables]] = {"2020.3": _2020_3, "2022.4": _2022_4, "2026.2": _2026_2}
GRAPH_TRACE: Final = {
    "2022.4": f"{_ACTIVITY} graphId! graphExecId!",
    "2026.2": f"{_GREEN} graphId! graphExecId!",
}
"""CUPTI_ACTIVITY_KIND_GRAPH_TRACE: only in reports that hold graphs; 2020.3 had none."""


class Column(NamedTuple):
    name: str
    kind: str
    """integer, text or real."""
    required: bool
    is_key: bool


def parse_columns(spec: str) -> list[Column]:
    """Parse the notation of a table's columns.

    >>> parse_columns("id!key value:text")[1]
    Column(name='value', kind='text', required=False, is_key=False)
    """
    columns = []
    for word in spec.split():
        name, _, kind = word.partition(":")
        name, required, key = name.partition("!")
        columns.append(Column(name, kind or "integer", bool(required), key == "key"))
    return columns


class NsysReport:
    """The rows of a report, by table."""

    def __init__(self, tables: dict[str, str]) -> None:
        self.columns: dict[str, list[Column]] = {name: parse_columns(spec) for name, spec in tables.items()}
        self.rows: dict[str, list[Sequence[Any]]] = {name: [] for name in tables}
        self.strings: dict[str, int] = {}

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def add(self, table: str, count: int, **values: object) -> None:
        """Add rows: a list holds a value per row, another value is for all rows. A missing one is null or 0."""
        if table not in self.rows:
            return
        given = []
        for column in self.columns[table]:
            value = values.get(column.name, ("" if column.kind == "text" else 0) if column.required else None)
            given.append(value if isinstance(value, list) else repeat(value, count))
        self.rows[table] += zip(*given, strict=False)


def write_sqlite(report: NsysReport, path: Path) -> Path:
    """Write a SQLite file, replacing an existing one."""
    import sqlite3

    with closing(sqlite3.connect(":memory:")) as file, atomic_file(path) as half:
        for table, described in report.columns.items():
            file.execute(f"CREATE TABLE {table} ({', '.join(map(_declared, described))})")
            file.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(described))})", report.rows[table])
        file.commit()
        half.write_bytes(file.serialize())
    return path


def _declared(column: Column) -> str:
    key = " PRIMARY KEY" if column.is_key else ""
    # the exports declare bytes as text, too
    kind = "TEXT" if column.kind == "blob" else column.kind.upper()
    return f'"{column.name}" {kind}{" NOT NULL" if column.required else ""}{key}'


def write_parquet(report: NsysReport, folder: Path) -> Path:
    """Write a folder with one Parquet file per table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    kinds = {"integer": pa.int64(), "text": pa.string(), "real": pa.float64(), "blob": pa.binary()}
    special = dict.fromkeys(("globalTid", "endGlobalTid", "globalPid", "globalVid"), pa.uint64())
    for table, described in report.columns.items():
        rows = report.rows[table]
        by_column = list(zip(*rows, strict=True)) or [()] * len(described)
        arrays, fields = [], []
        for column, values in zip(described, by_column, strict=True):
            kind = special.get(column.name, kinds[column.kind])
            if table == "StringIds" and column.name == "id":
                kind = pa.int32()
            arrays.append(pa.array(values, kind))
            fields.append(pa.field(column.name, kind, nullable=not column.required))
        with atomic_file(folder / f"{table}.parquet") as path:
            pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path)
    return folder


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
    if _SCHEMA_ENTRIES not in report.rows:
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
    if report.rows[_SCHEMA_ENTRIES]:
        return
    for schema, entries in _ENTRIES.items():
        report.add(
            _SCHEMA_ENTRIES,
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
    "cudaDeviceSynchronize": "cudaDeviceSynchronize_v3020",
    "cudaEventSynchronize": "cudaEventSynchronize_v3020",
}
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
        _add_gpu(report, captured)
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
    ids = {name: report.string(full) for name, full in _HOST_CALLS.items()}
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


def _add_gpu(report: NsysReport, recording: RankRecording) -> None:
    bus = f"0000:{16 + recording.device:02x}:00.0"
    gpu = {"id": recording.device, "cuDevice": recording.device, "busLocation": bus}
    report.add("TARGET_INFO_GPU", 1, **gpu, name="NVIDIA H100 80GB HBM3", smCount=132)


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
    product = {
        "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
        "EXPORT_PRODUCT_VERSION": _VERSIONS[options.layout],
    }
    for table in ("EXPORT_META_DATA", "META_DATA_EXPORT"):
        report.add(table, 2, name=list(product), value=list(product.values()))
    quoted = [f'{name}="{value}"' for name, _, value in (v.partition("=") for v in variables)]
    report.add("META_DATA_CAPTURE", len(quoted), name="PROCESS_0:ENVIRONMENT_VARIABLE", value=quoted)


def _global_tid(pid: int, tid: int) -> int:
    return _VM | pid << 24 | tid


def _short(name: str) -> str:
    """Return the bare name of the function, as nsys shortens names."""
    bare = name.removeprefix("void ").replace("(anonymous namespace)::", "").partition("<")[0].partition("(")[0]
    return bare.rpartition("::")[2]
