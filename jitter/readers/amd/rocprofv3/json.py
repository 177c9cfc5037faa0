"""Reader of rocprofv3's JSON: one document for all processes, read in bounded memory.

A first pass finds the lists of records; each is then read in the order in which the batches need them. A compressed
document is decompressed again for each, which takes less time than reading its records.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from isal import igzip

from jitter.core.arrow import map_distinct
from jitter.core.compression import GZIP_DAMAGE, UnpackedLimit, is_packed, sniff_head
from jitter.core.errors import UnreadableTraceError
from jitter.core.formatting import format_count
from jitter.core.grouping import by_key
from jitter.readers import Process
from jitter.readers.amd.rows import Agents, AmdReader, Columns, Kind, RowBuilder
from jitter.readers.columns import Integer64, Progress
from jitter.readers.json_document import JsonStream

_HEAD: Final = 200
_NAME: Final = re.compile(r"(?P<stem>.*?)_?results\.json(?:\.gz)?", re.IGNORECASE)
_SPAN: Final = {
    "start_ns": "start_timestamp",
    "end_ns": "end_timestamp",
    "correlation": "correlation_id.internal",
}
_CALLS: Final = {**_SPAN, "thread": "thread_id"}
_KERNELS: Final = {
    **_SPAN,
    "device": "dispatch_info.agent_id.handle",
    "stream": "stream_id.handle",
    "queue": "dispatch_info.queue_id.handle",
    "name": "dispatch_info.kernel_id",
    **{f"grid_{axis}": f"dispatch_info.grid_size.{axis}" for axis in "xyz"},
    **{f"block_{axis}": f"dispatch_info.workgroup_size.{axis}" for axis in "xyz"},
}
_COPIES: Final = {
    **_SPAN,
    "stream": "stream_id.handle",
    "from": "src_agent_id.handle",
    "to": "dst_agent_id.handle",
    "size_bytes": "bytes",
}


class RocprofJsonReader(AmdReader):
    """Reads `*_results.json`, plain or gzip."""

    name = "rocprof-json"

    def sniff(self, path: Path) -> bool:
        is_json = path.name.lower().endswith((".json", ".json.gz"))
        return is_json and b'"rocprofiler-sdk-tool"' in sniff_head(path, _HEAD)

    def parts(self, path: Path, rows: RowBuilder, progress: Progress) -> Iterator[tuple[Kind, Columns]]:
        if named := _NAME.fullmatch(path.name):
            rows.stem = named["stem"]
        else:
            rows.stem = path.name.partition(".")[0]
        with path.open("rb") as packed, _reading(path):
            limit = UnpackedLimit(path) if is_packed(path) else None
            # igzip unpacks again from the beginning where a list before is read
            file = packed if limit is None else igzip.open(packed, "rb")  # type: ignore[no-untyped-call]
            stream = JsonStream(file, limit, packed.tell)
            tools = []
            for member in stream.members():
                if member == "rocprofiler-sdk-tool":
                    tools += [_tool(stream) for _ in stream.items()]
                else:
                    stream.skip()
            progress.expect(stream.position)
            stream.limit = None
            for position, tool in enumerate(tools):
                process = Process(tool.metadata.pid, tool.metadata.node.hostname)
                number = pa.scalar(rows.process(position, lambda process=process: process), pa.int32())  # type: ignore[misc]
                before = rows.counts.copy()
                for table in (table for table in _TABLES if table in tool.tables):
                    kind, type_, paths = _TABLES[table]
                    stream.seek(tool.tables[table])
                    at = stream.position
                    for records in stream.parts(type_):
                        columns = {
                            name: pa.array(list(map(attrgetter(path), records)), pa.int64())
                            for name, path in paths.items()
                        }
                        columns["process"] = pa.repeat(number, len(records))
                        yield kind, columns | _named_columns(kind, records, columns, tool, rows)
                        progress.rows(stream.position - at)
                        at = stream.position
                rows.need("calls", before)
                rows.need("ranges", before)
                if tool.nameless:
                    rows.problems.append(f"{len(tool.nameless)} kernels' names are missing from its kernel_symbols")
        if stream.invalid:
            left_out = format_count(stream.invalid, "record has", "records have")
            rows.problems.append(f"{left_out} values of another type or size, and were left out")


READER: Final = RocprofJsonReader()


def _record_type(name: str, paths: Iterable[str], required: Collection[str], words: Collection[str] = ()) -> Any:
    """Return a type of objects with integers at these paths (`dispatch_info.agent_id.handle`), None where absent.

    An object without one of the `required` paths is invalid. `words` are required members that may be text.
    """
    members = by_key((parts[0], parts[2]) for parts in (path.partition(".") for path in paths))
    fields: list[Any] = [(word, Integer64 | str) for word in words]
    for member, rests in members.items():
        inner = [path.partition(".")[2] for path in required if path.startswith(f"{member}.")]
        kind = Integer64 if rests == [""] else _record_type(f"{name}_{member}", rests, inner)
        if member in required or inner:
            fields.append((member, kind))
        elif rests == [""]:
            fields.append((member, kind | None, None))
        else:
            fields.append((member, kind, msgspec.field(default_factory=kind)))
    return msgspec.defstruct(name, fields, kw_only=True)


_AGENT: Final = _record_type("Agent", ("id.handle", "node_id"), ("id", "node_id"), ("type",))
_TIMES: Final = ("start_timestamp", "end_timestamp")
_DISPATCHED: Final = ("dispatch_info.kernel_id", "dispatch_info.agent_id")
_NAMED: Final = ("kind", "operation")
_API: Final = _record_type("Api", _CALLS.values(), _TIMES, _NAMED)
_TABLES: Final[Mapping[str, tuple[Kind, Any, Mapping[str, str]]]] = {
    # in the order of reading: calls come before kernels
    "rccl_api": ("rccl", _API, _CALLS),
    "hip_api": ("calls", _API, _CALLS),
    "hsa_api": ("calls", _API, _CALLS),
    "kernel_dispatch": ("kernels", _record_type("Kernel", _KERNELS.values(), (*_TIMES, *_DISPATCHED)), _KERNELS),
    "memory_copy": ("copies", _record_type("Copy", _COPIES.values(), _TIMES, _NAMED), _COPIES),
    "marker_api": ("ranges", _API, _CALLS),
}
"""The lists of records that are read: what they hold, the type of a record, and the paths of the columns."""


class _Node(msgspec.Struct):
    hostname: str | None = None


class _Metadata(msgspec.Struct):
    """The recorded process."""

    pid: Integer64 | None = None
    node: _Node = msgspec.field(default_factory=_Node)


class _Symbol(msgspec.Struct):
    """A kernel's names."""

    kernel_id: Integer64
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _Kind(msgspec.Struct):
    """A kind of records and the names of its operations."""

    kind: str
    operations: list[str] = msgspec.field(default_factory=list)


class _Text(msgspec.Struct):
    """The text of a roctx range by correlation."""

    key: Integer64
    value: str


class _Tool(msgspec.Struct):
    """The records of one process: its short values, and the positions of its lists of records in the document."""

    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    gpus: dict[int | None, int] = msgspec.field(default_factory=dict)
    """Ordinals of GPUs by handle."""
    names: dict[int, str] = msgspec.field(default_factory=dict)
    """Names of kernels by id."""
    kinds: list[_Kind] = msgspec.field(default_factory=list)
    texts: dict[int | None, str] = msgspec.field(default_factory=dict)
    """Texts of roctx ranges by correlation."""
    tables: dict[str, int] = msgspec.field(default_factory=dict)
    """Position of each list of records by name."""
    nameless: set[int] = msgspec.field(default_factory=set)
    """Kernels without a name."""


def _named_columns(
    kind: Kind, records: Sequence[Any], columns: Columns, tool: _Tool, rows: RowBuilder
) -> dict[str, pa.Array]:
    """Return what stands in other places of the document: names and texts, and the ordinals of GPUs."""
    if kind == "kernels":

        def name(kernel: int) -> int:
            if kernel not in tool.names:
                tool.nameless.add(kernel)
            return rows.name(tool.names.get(kernel) or f"[kernel {kernel} is not in the file]")

        return {
            "device": map_distinct(columns["device"], lambda agent: tool.gpus.get(agent, agent), pa.int64()),
            "stream": pc.coalesce(columns["stream"], columns["queue"]),
            "name": map_distinct(columns["name"], name, pa.int32()),
        }
    if kind == "ranges":
        texts = [tool.texts.get(correlation or 0) for correlation in columns["correlation"].to_pylist()]
        return {"text": pa.array(texts, pa.string())}
    names = pa.array([_operation(record, tool.kinds) for record in records], pa.string())
    if kind != "copies":
        return {"name": names}
    # the device is the agent that is not the host
    ends = pc.if_else(pc.match_substring(names, "HOST_TO_DEVICE"), columns["to"], columns["from"])
    return {"name": names, "device": map_distinct(ends, tool.gpus.get, pa.int64())}


def _operation(record: Any, kinds: Sequence[_Kind]) -> str:
    """Return the name of the record's operation; kind and operation are indices into the file's lists."""
    if isinstance(record.operation, str):
        return str(record.operation)
    if isinstance(record.kind, int) and record.kind < len(kinds):
        operations: list[str] = kinds[record.kind].operations
        if record.operation < len(operations):
            return operations[int(record.operation)]
    return f"operation {record.operation} of {record.kind}"


def _tool(stream: JsonStream) -> _Tool:
    """Return the next process of a document; its lists of records are located and not read."""
    tool, has_records = _Tool(), False
    for member in stream.members():
        if member == "metadata":
            tool.metadata = stream.value(_Metadata)
        elif member == "agents":
            tool.gpus = _gpus(stream.value(list[_AGENT]))  # type: ignore[valid-type]
        elif member == "kernel_symbols":
            for symbols in stream.parts(_Symbol):
                tool.names |= {
                    symbol.kernel_id: symbol.formatted_kernel_name or symbol.kernel_name for symbol in symbols
                }
        elif member == "strings":
            _read_strings(stream, tool)
        elif member == "buffer_records":
            has_records = True
            for table in stream.members():
                stream.peek()
                if table in _TABLES:
                    tool.tables[table] = stream.position
                stream.skip()
        else:
            stream.skip()
    if not has_records:
        raise msgspec.DecodeError("a process without buffer_records")
    return tool


def _read_strings(stream: JsonStream, tool: _Tool) -> None:
    for member in stream.members():
        if member == "buffer_records":
            tool.kinds = stream.value(list[_Kind])
        elif member == "marker_api":
            for texts in stream.parts(_Text):
                tool.texts |= {text.key: text.value for text in texts}
        else:
            stream.skip()


def _gpus(agents: Sequence[Any]) -> dict[int | None, int]:
    """Return the ordinal of each GPU by handle."""
    kinds = {1: "CPU", 2: "GPU"}
    rows = [(kinds.get(a.type, "") if isinstance(a.type, int) else a.type, a.node_id, None) for a in agents]
    ordinals = Agents.of(rows).by_node
    return {agent.id.handle: ordinals[agent.node_id] for agent in agents if agent.node_id in ordinals}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, *GZIP_DAMAGE) as error:
        raise UnreadableTraceError(
            f"{path}: damaged or cut short ({error})", "copy it again, or record again (as rocpd: it survives more)"
        ) from error
