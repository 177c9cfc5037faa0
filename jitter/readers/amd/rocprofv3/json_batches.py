"""Batches of rocprofv3's JSON; lists of records are read in parts of a few MB."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from jitter.readers import Batch
from jitter.readers.amd.agents import Agents
from jitter.readers.amd.batches import BatchBuilder, process_column
from jitter.readers.amd.rccl import RcclCalls
from jitter.readers.amd.rocprofv3.json_records import Agent, Api, Copy, Kernel, Tool
from jitter.readers.amd.rocprofv3.json_stream import JsonStream

TABLES: Final = ("rccl_api", "hip_api", "hsa_api", "kernel_dispatch", "memory_copy", "marker_api")
"""The lists of records that are read, in the order of reading."""
_RECORDS: Final[Mapping[str, type[Any]]] = {"kernel_dispatch": Kernel, "memory_copy": Copy}
_HSA_LAUNCH: Final = re.compile(r"hsa_(?:signal_store|queue_(?:store|add|cas)_write)")


class ToolBatches:
    """Batches of the records of one process."""

    def __init__(self, tool: Tool, stream: JsonStream, rows: BatchBuilder, process: int) -> None:
        self._tool = tool
        self._stream = stream
        self._rows = rows
        self._process = process
        self._nameless: set[int] = set()
        self._gpus = _gpus(tool.agents)
        self._calls = 0
        self._ranges = 0
        self._rccl = RcclCalls()

    def batches(self) -> Iterator[tuple[Batch, int]]:
        """Yield each batch with the bytes of the document read for it; calls come before kernels."""
        for table in TABLES:
            if table not in self._tool.tables:
                continue
            self._stream.seek(self._tool.tables[table])
            before = self._stream.position
            for records in self._stream.parts(_RECORDS.get(table, Api)):
                for batch in self._part(table, records):
                    yield batch, self._stream.position - before
                    before = self._stream.position

    def problems(self) -> list[str]:
        """Return what is missing, one sentence each."""
        found = []
        if not self._calls:
            found.append("no HIP API calls recorded: the launching calls are unknown; record with --hip-trace")
        if not self._ranges:
            found.append("no roctx ranges recorded; record with --marker-trace")
        if self._nameless:
            found.append(f"{len(self._nameless)} kernels' names are missing from its kernel_symbols")
        return found

    def _part(self, table: str, records: Sequence[Any]) -> Iterator[Batch]:
        if table == "kernel_dispatch":
            yield self._kernels(records)
        elif table == "memory_copy":
            yield self._copies(records)
        elif table == "marker_api":
            yield self._markers(records)
        elif table == "rccl_api":
            columns = self._columns(records)
            texts = pa.array([self._operation(record) for record in records], pa.string())
            self._rccl.add(columns["process"], columns["thread"], texts, columns["start_ns"], columns["end_ns"])
        else:
            yield self._launches(records)

    def _launches(self, records: Sequence[Api]) -> Batch:
        names = [self._operation(record) for record in records]
        wanted = [n.startswith("hip") or _HSA_LAUNCH.match(n) is not None for n in names]
        columns = self._columns([record for record, kept in zip(records, wanted, strict=True) if kept])
        columns["name"] = self._rows.named(pa.array(names, pa.string()).filter(pa.array(wanted, pa.bool_())))
        self._calls += len(columns["name"])
        self._rccl.note_launches(columns)
        return self._rows.calls(columns)

    def _kernels(self, records: Sequence[Kernel]) -> Batch:
        infos = [record.dispatch_info for record in records]
        streams = [record.stream_id or info.queue_id for record, info in zip(records, infos, strict=True)]
        columns = {
            "process": process_column(self._process, len(records)),
            "device": pa.array(
                [self._gpus.get(info.agent_id.handle, info.agent_id.handle) for info in infos], pa.int64()
            ),
            "stream": pa.array([None if stream is None else stream.handle for stream in streams], pa.int64()),
            "name": pa.array([self._rows.name(self._kernel_name(info.kernel_id)) for info in infos], pa.int32()),
            **_times(records),
        }
        for axis in "xyz":
            columns[f"grid_{axis}"] = pa.array([getattr(info.grid_size, axis) for info in infos], pa.int64())
            columns[f"block_{axis}"] = pa.array([getattr(info.workgroup_size, axis) for info in infos], pa.int64())
        columns["collective"] = self._rccl.operations(columns, self._rows.names)
        return self._rows.activities(columns, copies=False)

    def _copies(self, records: Sequence[Copy]) -> Batch:
        names = [self._operation(record) for record in records]
        ends = [
            record.dst_agent_id if "HOST_TO_DEVICE" in name else record.src_agent_id
            for record, name in zip(records, names, strict=True)
        ]
        columns = {
            "process": process_column(self._process, len(records)),
            "device": pa.array([None if end is None else self._gpus.get(end.handle) for end in ends], pa.int64()),
            "stream": pa.array([None if r.stream_id is None else r.stream_id.handle for r in records], pa.int64()),
            "name": self._rows.named(pa.array(names, pa.string())),
            "size_bytes": pa.array([record.bytes for record in records], pa.int64()),
            **_times(records),
        }
        return self._rows.activities(columns, copies=True)

    def _markers(self, records: Sequence[Api]) -> Batch:
        columns = self._columns(records)
        texts = [self._tool.texts.get(record.correlation_id.internal or 0) for record in records]
        self._ranges += len(records)
        del columns["correlation"]
        return self._rows.ranges(columns | {"text": pa.array(texts, pa.string())})

    def _columns(self, records: Sequence[Api]) -> dict[str, pa.Array]:
        threads = pa.array([record.thread_id for record in records], pa.int64())
        return {
            "process": process_column(self._process, len(records)),
            "thread": pc.if_else(pc.equal(threads, 0), pa.scalar(None, pa.int64()), threads),
            **_times(records),
        }

    def _kernel_name(self, kernel: int) -> str:
        name = self._tool.names.get(kernel)
        if name is None:
            self._nameless.add(kernel)
        return name or f"[kernel {kernel} is not in the file]"

    def _operation(self, record: Api | Copy) -> str:
        """Return the name of the record's operation; kind and operation are indices into the file's lists."""
        if isinstance(record.operation, str):
            return record.operation
        kinds = self._tool.kinds
        if isinstance(record.kind, int) and record.kind < len(kinds):
            operations = kinds[record.kind].operations
            if record.operation < len(operations):
                return operations[record.operation]
        return f"operation {record.operation} of {record.kind}"


def _times(records: Sequence[Any]) -> dict[str, pa.Array]:
    return {
        "start_ns": pa.array([record.start_timestamp for record in records], pa.int64()),
        "end_ns": pa.array([record.end_timestamp for record in records], pa.int64()),
        "correlation": pa.array([record.correlation_id.internal for record in records], pa.int64()),
    }


def _gpus(agents: Sequence[Agent]) -> Mapping[int, int]:
    """Return the ordinal of each GPU by handle."""
    kinds = {1: "CPU", 2: "GPU"}
    rows = [(kinds.get(a.type, "") if isinstance(a.type, int) else a.type, a.node_id, None) for a in agents]
    ordinals = Agents.of(rows).by_node
    return {agent.id.handle: ordinals[agent.node_id] for agent in agents if agent.node_id in ordinals}
