"""Metadata of an Nsight Systems export (version, clock, hosts, ranks, GPUs), and the sizes of NCCL messages.

A payload of NCCL is a 32-byte header (domain, schema, sizes; little-endian) and fields at the offsets that the table
NVTX_PAYLOAD_SCHEMA_ENTRIES gives, as Nsight Systems 2025 and later export it.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pyarrow as pa

from jitter.core.grouping import by_key
from jitter.core.names.kernels import parse_operation
from jitter.core.names.launchers import NODE_VARIABLES, RANK_VARIABLES, SIZE_VARIABLES, first_number
from jitter.core.numeric.arrays import Ints
from jitter.readers import Recording
from jitter.readers.nccl_calls import NcclCall, NcclCalls
from jitter.readers.nsys.tables import NVTX, RUNTIME, RowFilter, Tables, read_registered_strings, small_rows

_VARIABLE = re.compile(
    rb"(" + "|".join(RANK_VARIABLES + SIZE_VARIABLES + NODE_VARIABLES).encode() + rb')="?(\d{1,9})"?'
)
_SEVERAL = re.compile(rb"--nproc[-_]per[-_]node[= ](?!1(?:\s|$))")
"""An argument of torchrun: the rank variables of its own environment are those of a node."""
# a display name that is no host name: "Local (CLI)", "localhost"
_HOST = re.compile(r"(?!local)[A-Za-z0-9][A-Za-z0-9._-]*")
_BUS: Final = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?")
_UTC_TABLE: Final = "TARGET_INFO_SESSION_START_TIME"


@dataclass
class ExportMetadata:
    """Contents of the small tables of an export that its rows need."""

    hosts: dict[int | None, str] = field(default_factory=dict)
    """Host name by the upper 16 bits of a globalPid (the host or virtual machine)."""
    launcher: tuple[int | None, str | None] = None, None
    """The rank in the environment of the profiled program, and the variable that states it."""
    mpi_ranks: dict[int, set[int]] = field(default_factory=dict)
    """Ranks in the table MPI_RANKS, by globalPid >> 24."""
    gpus: dict[tuple[int, int], int] = field(default_factory=dict)
    """The recording's GPU number by (pid, the process's device number); since 2025."""
    copy_kinds: dict[int, str] = field(default_factory=dict)

    def host(self, process: int | None) -> str | None:
        """Return the host name of a process (globalPid >> 24); None if unknown."""
        if process is not None and process >> 24 in self.hosts:
            return self.hosts[process >> 24]
        return next(iter(self.hosts.values())) if len(set(self.hosts.values())) == 1 else None


def read_metadata(tables: Tables, recording: Recording) -> ExportMetadata:
    """Read the small tables that this version has, and set what they state of the recording; raise as `tables` do."""
    origin = ExportMetadata()
    exported: dict[bytes, str] = {}
    for meta in ("EXPORT_META_DATA", "META_DATA_EXPORT"):
        rows = small_rows(tables, meta, [], ["name", "value"])
        exported |= {name: _text(value) for name, value in rows if name and value}
    recording.profiler_version = exported.get(b"EXPORT_PRODUCT_VERSION")
    for (utc,) in small_rows(tables, _UTC_TABLE, ["utcEpochNs"], []):
        # `nsys export --ts-normalize=true` has added it to all times already
        recording.utc_offset_ns = 0 if exported.get(b"EXPORT_PARAM_TIME_NORMALIZE") == "true" else utc
    for thread, rank in small_rows(tables, "MPI_RANKS", ["globalTid", "rank"], []):
        if thread is not None and rank is not None:
            origin.mpi_ranks.setdefault(process_key(thread), set()).add(rank)
    for gpu, cuda, pid in small_rows(tables, "TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId", "pid"], []):
        if gpu is not None and cuda is not None and pid is not None:
            origin.gpus[pid, cuda] = gpu
    for kind, label in small_rows(tables, "ENUM_CUDA_MEMCPY_OPER", ["id"], ["label"]):
        if kind is not None and label:
            origin.copy_kinds[kind] = _text(label)
    models: dict[int | None, str] = {}
    bus_ids: dict[int | None, str] = {}
    for gpu, name, location in small_rows(tables, "TARGET_INFO_GPU", ["id"], ["name", "busLocation"]):
        if gpu is not None and name:
            models[gpu] = _text(name)
        if gpu is not None and location and (address := _BUS.fullmatch(_text(location))):
            bus_ids[gpu] = f"{int(address[1], 16):04x}:{address[2]}".lower()
    # processes may number GPUs in another way than this table
    is_of_one = len(set(models.values())) == 1
    recording.gpu_models = {None: next(iter(models.values()))} if is_of_one else models if origin.gpus else {}
    recording.bus_ids = {None: next(iter(bus_ids.values()))} if len(bus_ids) == 1 else bus_ids if origin.gpus else {}
    _read_system(tables, origin, recording)
    return origin


GlobalId = TypeVar("GlobalId", int, Ints)


def process_key(global_id: GlobalId) -> GlobalId:
    """Return the process part of a globalPid or globalTid, or of an array of them: host, virtual machine and pid."""
    return global_id >> 24 & 0xFF_FFFF_FFFF


def _read_system(tables: Tables, origin: ExportMetadata, recording: Recording) -> None:
    environment: list[bytes] = []
    for vid, name, value in small_rows(tables, "TARGET_INFO_SYSTEM_ENV", ["globalVid"], ["name", "value"]):
        if name == b"Hostname" and value:
            origin.hosts[None if vid is None else process_key(vid) >> 24] = _text(value)
        elif name == b"DeviceEnvironment" and value:
            # NUL in 2022, a semicolon later
            environment += re.split(rb"[\x00;]", value)
    display_name = None
    launched, command = [], []
    for name, value in small_rows(tables, "META_DATA_CAPTURE", [], ["name", "value"]):
        if name == b"PROCESS_0:ENVIRONMENT_VARIABLE" and value:
            launched.append(value)
        elif name and name.startswith(b"PROCESS_0:ARGUMENT_") and value:
            command.append(value)
        elif name == b"DEVICE_DISPLAY_NAME" and value:
            display_name = _text(value)
    if not origin.hosts and display_name and _HOST.fullmatch(display_name):
        origin.hosts[None] = display_name
    numbers = _numbers(environment) or _numbers(launched)
    recording.node, recording.node_from = first_number(numbers, NODE_VARIABLES)
    ranks = {} if _SEVERAL.search(b" ".join(command)) else numbers
    origin.launcher = first_number(ranks, RANK_VARIABLES)
    recording.world_size = first_number(ranks, SIZE_VARIABLES)[0] or None


def _numbers(environment: Sequence[bytes]) -> dict[str, int]:
    """Return the variables of ranks, sizes and nodes among `NAME=value`, without those of two different values."""
    matches = (_VARIABLE.fullmatch(variable.strip()) for variable in environment)
    values_of_name = by_key((match[1].decode(), int(match[2])) for match in matches if match)
    return {name: values[0] for name, values in values_of_name.items() if len(set(values)) == 1}


def _text(value: bytes) -> str:
    return value.rstrip(b"\x00").decode("utf-8", "replace")


_ENTRIES: Final = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
_HEADER: Final = struct.Struct("<IIIIQQ")
_COMMUNICATOR: Final = "NCCL communicator ID"
_SIZE: Final = "Message size [bytes]"
_RANKS: Final = "No. of ranks"
_WIDTHS: Final = {_COMMUNICATOR: 8, _SIZE: 8, _RANKS: 4}


def read_nccl_calls(tables: Tables) -> NcclCalls:
    """Return the messages of an export's launches, by process and correlation id; none where it has no payloads."""
    calls, ranks = NcclCalls(), dict[int, int]()
    for thread, call in _nccl_ranges(tables, ranks) if tables.columns(RUNTIME) else ():
        if call.size is not None or parse_operation(call.name) is None:
            calls.add((process_key(thread), thread), call)
    calls.close(ranks)
    for batch in tables.read(RUNTIME, ["globalTid", "start", "correlationId"]) if calls.messages else ():
        launches = pa.table(batch.columns, ["thread", "start_ns", "correlation"]).drop_null()
        process = process_key(launches["thread"].to_numpy())
        calls.note_launches(launches.append_column("process", pa.array(process)))
    return calls


def _nccl_ranges(tables: Tables, ranks: dict[int, int]) -> Iterator[tuple[int, NcclCall]]:
    """Yield NCCL's ranges with their threads, and put the sizes of communicators that are created into `ranks`."""
    if "binaryData" not in tables.columns(NVTX) or not tables.columns(_ENTRIES):
        return
    offsets, domains = _schemas(tables)
    if not offsets:
        return
    only = RowFilter("domainId", sorted(domains))
    registered = read_registered_strings(tables, NVTX, only)
    for batch in tables.read(NVTX, ["start", "end", "globalTid", "textId"], ["text", "binaryData"], only):
        texts = registered.at(batch["textId"]).to_pylist()
        columns = (batch[name].to_pylist() for name in ("start", "end", "globalTid", "text", "binaryData"))
        for start, end, thread, inline, payload, text in zip(*columns, texts, strict=True):
            if start is None or end is None or thread is None:
                continue
            fields = _fields(payload, offsets)
            communicator, size = fields.get(_COMMUNICATOR), fields.get(_SIZE)
            if communicator is not None and _RANKS in fields:
                ranks[communicator] = fields[_RANKS]
            name = (inline or text or b"").decode("utf-8", "replace")
            yield thread, NcclCall(start, end, name, communicator, size)


def _schemas(tables: Tables) -> tuple[dict[tuple[int, int], dict[str, int]], set[int]]:
    """Return the offsets of the fields of interest by (domain, schema), and the domains that have any."""
    offsets: dict[tuple[int, int], dict[str, int]] = {}
    for domain, schema, offset, label in small_rows(tables, _ENTRIES, ["domainId", "schemaId", "offset"], ["name"]):
        name = (label or b"").decode("utf-8", "replace")
        if name in _WIDTHS and domain is not None and schema is not None:
            # the first field's offset is null
            offsets.setdefault((domain, schema), {})[name] = offset or 0
    return offsets, {domain for domain, _ in offsets}


def _fields(payload: bytes | None, offsets: dict[tuple[int, int], dict[str, int]]) -> dict[str, int]:
    if payload is None or len(payload) < _HEADER.size:
        return {}
    domain, _, schema, *_ = _HEADER.unpack_from(payload)
    fields = {}
    for name, offset in offsets.get((domain, schema), {}).items():
        value = payload[_HEADER.size + offset : _HEADER.size + offset + _WIDTHS[name]]
        if len(value) == _WIDTHS[name]:
            fields[name] = int.from_bytes(value, "little")
    return {name: value for name, value in fields.items() if name == _COMMUNICATOR or value < 2**63}
