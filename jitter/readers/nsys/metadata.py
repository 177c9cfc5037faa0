"""Metadata of an Nsight Systems export: version, clock, hosts, ranks, GPUs; no other environment variables."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from jitter.core.names.launchers import RANK_VARIABLES, SIZE_VARIABLES, first_number
from jitter.readers.nsys.tables import Tables, small_rows

_VARIABLE = re.compile(rb"(" + "|".join(RANK_VARIABLES + SIZE_VARIABLES).encode() + rb')="?(\d{1,9})"?')
# a display name that is no host name: "Local (CLI)", "localhost"
_HOST = re.compile(r"(?!local)[A-Za-z0-9][A-Za-z0-9._-]*")
_BUS: Final = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?")
_UTC_TABLE: Final = "TARGET_INFO_SESSION_START_TIME"


@dataclass
class ExportMetadata:
    """Contents of the small tables of an export."""

    profiler_version: str | None = None
    utc_offset_ns: int | None = None
    hosts: dict[int | None, str] = field(default_factory=dict)
    """Host name by the upper 16 bits of a globalPid (the host or virtual machine)."""
    launcher_rank: int | None = None
    launcher_rank_from: str | None = None
    world_size: int | None = None
    mpi_ranks: dict[int, set[int]] = field(default_factory=dict)
    """Ranks in the table MPI_RANKS, by globalPid >> 24."""
    gpus: dict[tuple[int, int], int] = field(default_factory=dict)
    """The recording's GPU number by (pid, the process's device number); since 2025."""
    copy_kinds: dict[int, str] = field(default_factory=dict)
    gpu_models: dict[int | None, str] = field(default_factory=dict)
    """Model by the recording's GPU number; None: the model of all, if they are of one."""
    bus_ids: dict[int | None, str] = field(default_factory=dict)
    """PCI address by the recording's GPU number; None: of the only GPU."""

    def host(self, process: int | None) -> str | None:
        """Return the host name of a process (globalPid >> 24); None if unknown."""
        if process is not None and process >> 24 in self.hosts:
            return self.hosts[process >> 24]
        return next(iter(self.hosts.values())) if len(set(self.hosts.values())) == 1 else None


def read_metadata(tables: Tables) -> ExportMetadata:
    """Read the small tables that this version has. Raises the errors of `tables`."""
    origin = ExportMetadata()
    for meta in ("EXPORT_META_DATA", "META_DATA_EXPORT"):
        for name, value in small_rows(tables, meta, [], ["name", "value"]):
            if name == b"EXPORT_PRODUCT_VERSION" and value:
                origin.profiler_version = _text(value)
    for (utc,) in small_rows(tables, _UTC_TABLE, ["utcEpochNs"], []):
        origin.utc_offset_ns = utc
    for thread, rank in small_rows(tables, "MPI_RANKS", ["globalTid", "rank"], []):
        if thread is not None and rank is not None:
            origin.mpi_ranks.setdefault(process_key(thread), set()).add(rank)
    for gpu, cuda, pid in small_rows(tables, "TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId", "pid"], []):
        if gpu is not None and cuda is not None and pid is not None:
            origin.gpus[pid, cuda] = gpu
    for kind, label in small_rows(tables, "ENUM_CUDA_MEMCPY_OPER", ["id"], ["label"]):
        if kind is not None and label:
            origin.copy_kinds[kind] = _text(label)
    origin.gpu_models = _gpu_models(tables, origin)
    origin.bus_ids = _bus_ids(tables, origin)
    _read_system(tables, origin)
    return origin


def process_key(global_id: int) -> int:
    """Return the process part of a globalPid or globalTid: host, virtual machine and pid."""
    return (global_id & 0xFFFF_FFFF_FFFF_FFFF) >> 24


def _gpu_models(tables: Tables, origin: ExportMetadata) -> dict[int | None, str]:
    models: dict[int | None, str] = {
        gpu: _text(name)
        for gpu, name in small_rows(tables, "TARGET_INFO_GPU", ["id"], ["name"])
        if gpu is not None and name
    }
    if len(set(models.values())) == 1:
        return {None: next(iter(models.values()))}
    return models if origin.gpus else {}  # processes may number GPUs in another way than this table


def _bus_ids(tables: Tables, origin: ExportMetadata) -> dict[int | None, str]:
    """Return the GPUs' PCI addresses; none where processes may number GPUs in another way than the table."""
    addresses: dict[int | None, str] = {}
    for gpu, location in small_rows(tables, "TARGET_INFO_GPU", ["id"], ["busLocation"]):
        if location and (address := _BUS.fullmatch(_text(location))):
            addresses[gpu] = f"{int(address[1], 16):04x}:{address[2]}".lower()
    if len(addresses) == 1:
        return {None: next(iter(addresses.values()))}
    return addresses if origin.gpus else {}


def _read_system(tables: Tables, origin: ExportMetadata) -> None:
    environment: list[bytes] = []
    for vid, name, value in small_rows(tables, "TARGET_INFO_SYSTEM_ENV", ["globalVid"], ["name", "value"]):
        if name == b"Hostname" and value:
            origin.hosts[None if vid is None else process_key(vid) >> 24] = _text(value)
        elif name == b"DeviceEnvironment" and value:
            # NUL in 2022, a semicolon later
            environment += re.split(rb"[\x00;]", value)
    display_name = None
    launched: list[bytes] = []
    for name, value in small_rows(tables, "META_DATA_CAPTURE", [], ["name", "value"]):
        if name == b"PROCESS_0:ENVIRONMENT_VARIABLE" and value:
            launched.append(value)
        elif name == b"DEVICE_DISPLAY_NAME" and value:
            display_name = _text(value)
    if not origin.hosts and display_name and _HOST.fullmatch(display_name):
        origin.hosts[None] = display_name
    ranks = _ranks(environment) or _ranks(launched)
    origin.launcher_rank, origin.launcher_rank_from = first_number(ranks, RANK_VARIABLES)
    origin.world_size = first_number(ranks, SIZE_VARIABLES)[0] or None


def _ranks(environment: Sequence[bytes]) -> dict[str, int]:
    """Return the rank and size variables among `NAME=value`; a variable with two different values counts as absent."""
    values_of_name: dict[str, set[int]] = {}
    for variable in environment:
        if match := _VARIABLE.fullmatch(variable.strip()):
            values_of_name.setdefault(match[1].decode(), set()).add(int(match[2]))
    return {name: values.pop() for name, values in values_of_name.items() if len(values) == 1}


def _text(value: bytes) -> str:
    return value.rstrip(b"\x00").decode("utf-8", "replace")
