"""Communicators and networks in NCCL_DEBUG logs: rank, host, GPU, network and plug-in of each member.

`comm 0x… rank R nranks N cudaDev D busId B - Init COMPLETE` (2.4 on; RCCL adds words before the dash), from 2.19 on
with the function's name, `nvmlDev` and the `commId` that all ranks share; `Init START`, `Destroy COMPLETE` alike.
Plug-in: 2.4 `NET/Plugin : No plugin found`, 2.5 on `NET/Plugin: Loaded net plugin X (v5)`, `NET/OFI …` of aws-ofi.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from jitter.logs.nccl.record_head import Head
from jitter.logs.tables import Tables
from jitter.logs.values import bus_address

_COMM: Final = re.compile(
    rb"comm (0x[\w.]+) rank (\d{1,9}) n[rR]anks (\d{1,9})(?: cudaDev (\d{1,5}))?(?: nvmlDev \d+)?(?: busId (\w+))?"
    rb"(?: commId (0x[\w.]+))?"
)
_NETWORK: Final = re.compile(rb"Using network ([A-Za-z][\w .+-]*)")
_TRANSPORT: Final = re.compile(rb"NET/(\w+) ?: Using (\[0\].*)")
_INTERFACE: Final = re.compile(rb"\[\d+\]([A-Za-z][\w.@-]*)(?::(\d+/\w+))?")
_BOOTSTRAP: Final = re.compile(rb"Bootstrap ?: Using (?:\[0\])?([A-Za-z][\w.@-]*):")
_LOADED: Final = re.compile(rb"Loaded net plugin ([\w][\w .+-]* \(v\d+\))")
_OFI: Final = re.compile(rb"NET/OFI Using (aws-ofi-\w+ [\w.-]+|[\w.-]+ \d[\w.-]*)")
_PROVIDER: Final = re.compile(rb"NET/OFI Selected [Pp]rovider is ([\w;-]+)")
_FAILED: Final = re.compile(
    rb"Failed to initialize (?:any )?NET plugin|Failed to find ncclNetPlugin symbol|NET/OFI .*[Ii]nitialization failed"
    rb"|Failed to load.*net plugin|NET/OFI .*No eligible providers"
)
_NONE: Final = re.compile(
    rb"[Nn]o plugin found|using internal (?:network|implementation)|Using internal net|Could not find: .*libnccl-net"
)
_NO_IB: Final = re.compile(rb"NET/IB ?: No (?:\w+ )?device found")
_VERSION: Final = re.compile(rb"(?:NCCL|RCCL) version ?:? ?(\d[\w.+-]*)")
_NEWEST: Final = (2, 30)

INTERESTING: Final = re.compile(
    rb" n[rR]anks |Using network|NET/\w+ ?: |NET/OFI |Bootstrap ?: Using|CCL version|NET plugin|net plugin"
)
"""Messages that may state one of these; all other messages are skipped."""


@dataclass
class _Process:
    """Statements of one process; the first of each counts, so that reading a line again changes nothing."""

    version: str | None = None
    network: str | None = None
    transport: str | None = None
    """The transport that found interfaces: the network where none is stated."""
    plugin: str | None = None
    provider: str | None = None
    interfaces: list[str] = field(default_factory=list)
    bootstrap: str | None = None
    lacks_ib: bool = False
    members: dict[tuple[str, int], dict[str, object]] = field(default_factory=dict)


class Communicators:
    """Statements of each process of a log about its communicators."""

    def __init__(self, hosts: set[str]) -> None:
        """Start without processes; names of hosts are added to `hosts`."""
        self._hosts = hosts
        self._processes: dict[Head, _Process] = {}
        self._versions: dict[str, None] = {}

    def read(self, head: Head, message: bytes) -> None:
        """Read a message of a process."""
        process = self._processes.get(head)
        if process is None:
            process = self._processes[head] = _Process()
            if head.host:
                self._hosts.add(head.host)
        if found := _COMM.search(message):
            _read_member(process, found)
        elif found := _NETWORK.search(message):
            process.network = process.network or found[1].decode().strip()
        elif found := _TRANSPORT.match(message):
            process.transport = process.transport or found[1].decode()
            used = found[2].partition(b";")[0]
            process.interfaces = process.interfaces or [_interface(*pair) for pair in _INTERFACE.findall(used)]
        elif _NO_IB.match(message):
            process.lacks_ib = True
        elif found := _BOOTSTRAP.match(message):
            process.bootstrap = process.bootstrap or found[1].decode()
        elif found := _VERSION.search(message):
            process.version = process.version or self.read_version(message)
        else:
            _read_plugin(process, message)

    def read_version(self, line: bytes) -> str | None:
        """Read the version that a line states, with or without a process."""
        found = _VERSION.search(line)
        if found is None:
            return None
        version = found[1].decode().rstrip(".")
        self._versions[version] = None
        return version

    def unknown_versions(self) -> list[str]:
        """Return versions newer than the newest known one."""
        return [version for version in self._versions if _major_minor(version) > _NEWEST]

    def add_to(self, tables: Tables) -> None:
        """Add a row for each rank of each communicator, and for each process that states its network alone."""
        only = next(iter(self._versions)) if len(self._versions) == 1 else None
        for head, process in self._processes.items():
            plugin = process.plugin
            if process.provider:
                plugin = f"{plugin or 'OFI'} ({process.provider})"
            common = {
                "host": head.host,
                "version": process.version or only,
                "network": process.network or process.transport,
                "plugin": plugin,
                "interfaces": process.interfaces or ([process.bootstrap] if process.bootstrap else None),
                "lacks_ib": process.lacks_ib or None,
            }
            stated = process.network or process.transport or process.plugin or process.interfaces
            for member in process.members.values() or ([{}] if stated else []):
                tables.add("communicators", **common, **member)


def _read_member(process: _Process, found: re.Match[bytes]) -> None:
    address, rank, ranks, device, bus_id, shared = found.groups()
    member = process.members.setdefault((address.decode(), int(rank)), {})
    name = shared if shared and b"." not in shared else address
    if "comm" not in member or shared:
        member["comm"] = None if b"." in name else name.decode()
    stated = {
        "rank": int(rank),
        "ranks": int(ranks),
        "device": int(device) if device else None,
        "bus_id": bus_address(bus_id.decode()) if bus_id else None,
    }
    member.update({key: value for key, value in stated.items() if value is not None})


def _read_plugin(process: _Process, message: bytes) -> None:
    """Read what a message states about the network plug-in: a failure stands, a name stands over none."""
    if found := _PROVIDER.search(message):
        process.provider = process.provider or found[1].decode()
    elif found := _LOADED.search(message) or _OFI.search(message):
        if process.plugin in {None, "none"}:
            process.plugin = found[1].decode()
    elif _FAILED.search(message):
        process.plugin = "failed"
    elif process.plugin is None and _NONE.search(message):
        process.plugin = "none"


def _interface(name: bytes, port: bytes) -> str:
    return f"{name.decode()}:{port.decode()}" if port else name.decode()


def _major_minor(version: str) -> tuple[int, int]:
    major, _, rest = version.partition(".")
    minor = re.match(r"\d+", rest)
    return (int(major), int(minor[0])) if major.isdigit() and minor else (0, 0)
