"""The tables of Nsight Systems exports in several versions, in a compact notation, and the containers of exports.

`name` is a nullable integer, `name!` a required one, `name:text` and `name:real` have other types, `!key` a key.
"""

from collections.abc import Sequence
from contextlib import closing
from itertools import repeat
from pathlib import Path
from typing import Any, Final, NamedTuple

from jitter.simulate.complete_file import complete_file

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
_STREAM = "streamId! hwId! vmId! processId! contextId! priority! flag!"
_ENUM = "id!key name:text label:text"
_META = "name!:text value:text"

_2020_3: Final[Tables] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ACTIVITY} demangledName! shortName! {_LAUNCH_SHAPE}",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue!",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ACTIVITY} {_COPY}graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY} value! bytes! graphNodeId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_ACTIVITY} syncType! eventId!",
    "NVTX_EVENTS": _NVTX,
    "StringIds": "id!key value!:text",
    "ThreadNames": "nameId! priority globalTid",
    "ProcessStreams": "globalPid! filenameId! contentId!",
    "PROFILER_OVERHEAD": "start! end! globalTid correlationId nameId! returnValue!",
    "TARGET_INFO_CUDA_GPU": (
        "vmId! name!:text pciBusId:text globalMemoryBandwidth! globalMemorySize! constantMemorySize! l2CacheSize! "
        "numThreadsPerWarp! coreClockRate! numMemcpyEngines! numMultiprocessors! maxIPC! "
        "maxWarpsPerMultiprocessor! "
        "maxBlocksPerMultiprocessor! maxRegistersPerBlock! maxSharedMemoryPerBlock! maxThreadsPerBlock! "
        "maxBlockDimX! maxBlockDimY! maxBlockDimZ! maxGridDimX! maxGridDimY! maxGridDimZ! computeCapabilityMajor! "
        "computeCapabilityMinor! deviceId! pid maxSharedMemoryPerMultiprocessor maxRegistersPerMultiprocessor"
    ),
    "TARGET_INFO_CUDA_NULL_STREAM": "streamId! hwId! vmId! processId! deviceId! contextId!",
    "TARGET_INFO_CUDA_STREAM": _STREAM,
}
_2022_4: Final[Tables] = {
    **{name: columns for name, columns in _2020_3.items() if name != "TARGET_INFO_CUDA_GPU"},
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        f"{_ACTIVITY} demangledName! shortName! mangledName {_LAUNCH_SHAPE} sharedMemoryLimitConfig"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": _2020_3["CUPTI_ACTIVITY_KIND_RUNTIME"] + " callchainId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ACTIVITY} {_COPY}migrationCause graphNodeId virtualAddress",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY} value! bytes! graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "deviceId! contextId! streamId! correlationId globalPid eventId!",
    "CUDA_GRAPH_EVENTS": "start! end! eventClass! globalTid nameId! graphNodeId! originalGraphNodeId",
    "PROCESSES": "globalPid pid name:text",
    "PROFILER_OVERHEAD": "start! end! globalTid nameId! returnValue!",
    "TARGET_INFO_GPU": (
        "vmId! id! name:text busLocation:text isDiscrete l2CacheSize totalMemory memoryBandwidth "
        "clockRate smCount "
        "pwGpuId uuid:text luid chipName:text cuDevice ctxswDevPath:text ctrlDevPath:text revision nodeMask "
        "constantMemory maxIPC maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm "
        "maxRegistersPerSm threadsPerWarp asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock "
        "maxBlockDimX "
        "maxBlockDimY maxBlockDimZ maxGridDimX maxGridDimY maxGridDimZ computeMajor computeMinor smMajor smMinor"
    ),
    "TARGET_INFO_SYSTEM_ENV": "globalVid! devStateName!:text name!:text nameEnum! value!:text",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:text localTime:text",
    "TARGET_INFO_PROCESS": "processId! openGlVersion!:text correlationId! nameId!",
    "TARGET_INFO_NVTX_CUDA_DEVICE": "name!:text hwId! vmId! deviceId!",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "EXPORT_META_DATA": _META,
    "CUDA_CALLCHAINS": "id! symbol! module! unresolved originalIP stackDepth!",
    "ENUM_NSYS_EVENT_TYPE": _ENUM,
    "ENUM_NSYS_EVENT_CLASS": _ENUM,
    "ENUM_CUDA_KRENEL_LAUNCH_TYPE": _ENUM,
    "ENUM_CUDA_MEMCPY_OPER": _ENUM,
    "ENUM_CUDA_MEM_KIND": _ENUM,
    "ENUM_CUPTI_SYNC_TYPE": _ENUM,
    "ENUM_CUDA_FUNC_CACHE_CONFIG": _ENUM,
    "ENUM_CUDA_SHARED_MEM_LIMIT_CONFIG": _ENUM,
}
_GREEN = "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid"
_GONE = {
    "TARGET_INFO_GPU",
    "TARGET_INFO_CUDA_NULL_STREAM",
    "TARGET_INFO_PROCESS",
    "TARGET_INFO_NVTX_CUDA_DEVICE",
    "EXPORT_META_DATA",
    "CUDA_GRAPH_EVENTS",
    "CUDA_CALLCHAINS",
    "ENUM_CUDA_KRENEL_LAUNCH_TYPE",
}
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
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_GREEN} deprecatedSyncType syncType! eventId! eventSyncId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": (
        "timestamp deviceId! contextId! greenContextId streamId! correlationId globalPid eventId! eventSyncId"
    ),
    "NVTX_EVENTS": f"{_NVTX} binaryData:blob",
    "NVTX_PAYLOAD_SCHEMAS": "domainId schemaId name:text type flags numEntries payloadSize alignTo",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": (
        "domainId! schemaId! idx! flags type name:text description:text arrayOrUnionDetail offset"
    ),
    "PROFILER_OVERHEAD": "start! end! globalTid nameId! overheadType!",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName!:text name!:text nameEnum! value!:text",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:text localTime:text systemClockNs",
    "META_DATA_CAPTURE": _META,
    "META_DATA_EXPORT": _META,
    "ENUM_CUDA_KERNEL_LAUNCH_TYPE": _ENUM,
    "ENUM_CUPTI_STREAM_TYPE": _ENUM,
}
LAYOUTS: Final[dict[str, Tables]] = {"2020.3": _2020_3, "2022.4": _2022_4, "2026.2": _2026_2}
GRAPH_TRACE: Final = {
    "2022.4": f"{_ACTIVITY} graphId! graphExecId!",
    "2026.2": f"{_GREEN} graphId! graphExecId!",
}
"""CUPTI_ACTIVITY_KIND_GRAPH_TRACE: only in reports that hold graphs; 2020.3 had none."""

ENUMS: Final[dict[str, dict[int, str]]] = {
    "ENUM_NSYS_EVENT_TYPE": {34: "NvtxMark", 39: "NvtxThread", 59: "NvtxPushPopRange", 60: "NvtxStartEndRange"},
    "ENUM_NSYS_EVENT_CLASS": {
        0: "TRACE_PROCESS_EVENT_CUDA_RUNTIME",
        1: "TRACE_PROCESS_EVENT_CUDA_DRIVER",
        67: "TRACE_PROCESS_EVENT_CUDABACKTRACE",
    },
    "ENUM_CUDA_MEMCPY_OPER": {1: "CUDA_MEMCPY_KIND_HTOD", 2: "CUDA_MEMCPY_KIND_DTOH", 8: "CUDA_MEMCPY_KIND_DTOD"},
    "ENUM_CUDA_MEM_KIND": {
        0: "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE",
        1: "CUDA_MEMOPR_MEMORY_KIND_PINNED",
        2: "DEVICE",
    },
}
SYNC_TYPES: Final = {
    1: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE",
    3: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE",
    4: "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE",
}


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

    path.unlink(missing_ok=True)
    with complete_file(path), closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA journal_mode = OFF")
        file.execute("PRAGMA synchronous = OFF")
        file.execute("BEGIN")
        for table, described in report.columns.items():
            file.execute(f"CREATE TABLE {table} ({', '.join(map(_declared, described))})")
            file.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(described))})", report.rows[table])
        file.execute("COMMIT")
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
    special = {
        "globalTid": pa.uint64(),
        "endGlobalTid": pa.uint64(),
        "globalPid": pa.uint64(),
        "globalVid": pa.uint64(),
    }
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
        with complete_file(folder / f"{table}.parquet") as path:
            pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path)
    return folder
