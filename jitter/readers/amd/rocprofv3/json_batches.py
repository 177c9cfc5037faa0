"""Batches of rocprofv3's JSON; arrays of records are divided into parts of a few MB."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from jitter.readers import Batch
from jitter.readers.amd.agents import Agents
from jitter.readers.amd.batches import BatchBuilder, process_column
from jitter.readers.amd.rccl import RcclCalls
from jitter.readers.amd.rocprofv3.json_records import Agent, Api, Copy, Kernel, Tool

_PIECE: Final = 1 << 22
# a record starts with its size; a quote inside a string is escaped
_BETWEEN: Final = re.compile(rb"\}(\s*,\s*)\{\s*\"size\"\s*:")
_CALLS: Final = ("hip_api", "hsa_api")
_HSA_LAUNCH: Final = re.compile(r"hsa_(?:signal_store|queue_(?:store|add|cas)_write)")


class ToolBatches:
    """Batches of the records of one process."""

    def __init__(self, tool: Tool, rows: BatchBuilder, process: int) -> None:
        self._tool = tool
        self._rows = rows
        self._process = process
        self._names = {one.kernel_id: one.formatted_kernel_name or one.kernel_name for one in tool.kernel_symbols}
        self._nameless: set[int] = set()
        self._gpus = _gpus(tool.agents)
        self._texts = {text.key: text.value for text in tool.strings.marker_api}
        self._calls = 0
        self._ranges = 0
        self._rccl = RcclCalls()

    def batches(self) -> Iterator[tuple[Batch, int]]:
        """Yield each batch with the bytes of records read so far; calls come before kernels."""
        done = 0
        for table in ("rccl_api", *_CALLS, "kernel_dispatch", "memory_copy", "marker_api"):
            for piece, length in split_array(self._tool.buffer_records.get(table)):
                done += length
                for batch in self._piece(table, piece):
                    yield batch, done

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

    def _piece(self, table: str, piece: bytes) -> Iterator[Batch]:
        if table == "kernel_dispatch":
            yield self._kernels(msgspec.json.decode(piece, type=list[Kernel]))
        elif table == "memory_copy":
            yield self._copies(msgspec.json.decode(piece, type=list[Copy]))
        elif table == "marker_api":
            yield self._markers(msgspec.json.decode(piece, type=list[Api]))
        else:
            records = msgspec.json.decode(piece, type=list[Api])
            names = [self._operation(record) for record in records]
            if table == "rccl_api":
                columns = self._columns(records)
                texts = pa.array(names, pa.string())
                self._rccl.add(columns["process"], columns["thread"], texts, columns["start_ns"], columns["end_ns"])
                return
            wanted = [n.startswith("hip") or _HSA_LAUNCH.match(n) is not None for n in names]
            records = [record for record, kept in zip(records, wanted, strict=True) if kept]
            columns = self._columns(records)
            columns["name"] = self._rows.named(pa.array(names, pa.string()).filter(pa.array(wanted, pa.bool_())))
            self._calls += len(records)
            self._rccl.note_launches(columns)
            yield self._rows.calls(columns)

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
        texts = [self._texts.get(record.correlation_id.internal or 0) for record in records]
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
        name = self._names.get(kernel)
        if name is None:
            self._nameless.add(kernel)
        return name or f"[kernel {kernel} is not in the file]"

    def _operation(self, record: Api | Copy) -> str:
        """Return the name of the record's operation; kind and operation are indices into the file's lists."""
        if isinstance(record.operation, str):
            return record.operation
        kinds = self._tool.strings.buffer_records
        if isinstance(record.kind, int) and record.kind < len(kinds):
            operations = kinds[record.kind].operations
            if record.operation < len(operations):
                return operations[record.operation]
        return f"operation {record.operation} of {record.kind}"


def split_array(raw: msgspec.Raw | None) -> Iterator[tuple[bytes, int]]:
    """Divide an array of records into JSON arrays of a few MB, each with the number of bytes it covers."""
    if raw is None:
        return
    view = memoryview(raw)
    first, last = 0, len(view)
    while first < last:
        until = last
        if last - first > _PIECE:
            # the start of the next record after a full part
            found = _BETWEEN.search(view, first + _PIECE)
            until = found.start() + 1 if found else last
            after = found.end(1) if found else last
        else:
            after = last
        opening = b"" if first == 0 else b"["
        closing = b"" if until == last else b"]"
        yield opening + bytes(view[first:until]) + closing, after - first
        first = after


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
