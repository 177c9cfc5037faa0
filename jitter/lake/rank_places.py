"""The host, GPU and process of each rank, from its recording and from logs; and the host of a log, from its path.

The first source that states a host or a PCI address counts. Where another one states a different value, neither does: a
log that is joined by a wrong host blames another rank's GPU.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from jitter.lake.log_records import Rows
from jitter.lake.records import SourceRecord

_WORD: Final = "(?<![A-Za-z0-9]){}(?![A-Za-z0-9])"
PLACE_RELATIONS: Final = {"communicators": "NCCL", "ras": "NCCL RAS", "bindings": "CPU binding", "mpi_ranks": "MPI"}
"""Relations whose rows name ranks and hosts, and what wrote them; the first one counts."""
_ADDRESS: Final = re.compile(r"[\d.]+|[\da-fA-F:]*:[\da-fA-F:.]*")
"""An IP address, which is no name of a host: `ncclras` prints these."""
_RECORDING: Final = "recording"
_LISTED: Final = re.compile(r"([^][,]+)(?:\[([\d,-]+)\])?([^][,]*)")
_SPAN: Final = re.compile(r"(\d+)(?:-(\d+))?")
"""In Slurm's lists of nodes: a name, with numbers within it, and these."""


class RankPlace(NamedTuple):
    """Where a rank runs; None for what no source states, or what two sources state differently."""

    host: str | None = None
    device: int | None = None
    """The GPU's number as the recording, else NCCL, counts, from 0."""
    bus_id: str | None = None
    process: int | None = None
    host_from: str | None = None
    device_from: str | None = None
    bus_id_from: str | None = None
    conflicts: tuple[str, ...] = ()
    """What sources state differently, a clause each."""


def assign_nodes(locations: Mapping[int, RankPlace]) -> dict[int, object]:
    """Return each rank's node: its host, or, where no trace names one, a number inferred from devices.

    Ranks are numbered node by node, and devices from 0 on each: where a device number does not rise, a node begins.
    """
    if any(location.host is not None for location in locations.values()):
        return {rank: location.host for rank, location in locations.items() if location.host is not None}
    if any(location.device is None for location in locations.values()):
        return {}
    nodes: dict[int, object] = {}
    node, before = -1, 0
    for rank in sorted(locations):
        device = locations[rank].device or 0
        node += not nodes or device <= before
        nodes[rank], before = node, device
    return nodes


def number_gpus(locations: Mapping[int, RankPlace]) -> dict[int, int]:
    """Return the number of each rank's GPU on its node, where it is known.

    Ranks of a node with the same number are left out: a process that sees one GPU numbers it 0, whichever it is.
    """
    if len(locations) > 1 and len({(location.host, location.device) for location in locations.values()}) == 1:
        return {}
    nodes = assign_nodes(locations)
    places = {rank: (nodes.get(rank), location.device) for rank, location in locations.items()}
    counts = Counter(places.values())
    return {rank: device for rank, (node, device) in places.items() if device is not None and counts[node, device] == 1}


def short_host(host: str | None) -> str | None:
    """Return a host's name without its domain; an IP address as it is."""
    return host if host is None or _ADDRESS.fullmatch(host) else host.partition(".")[0]


def is_same_host(one: str | None, other: str | None) -> bool:
    """Return whether two names are those of one host: with the same domain, or one of them without."""
    if short_host(one) != short_host(other) or one is None or other is None:
        return False
    return one == other or one == short_host(one) or other == short_host(other)


def is_listed(host: str, nodes: str) -> bool:
    """Return whether Slurm's list of nodes contains a host.

    >>> [is_listed(host, "node[08-12,20],login1") for host in ("node09", "node20", "node7", "login1", "login")]
    [True, True, False, True, False]
    """
    for begin, numbers, end in _LISTED.findall(nodes):
        number = host.removeprefix(begin).removesuffix(end)
        spans = _SPAN.findall(numbers) if number.isdecimal() else ()
        is_within = any(int(first) <= int(number) <= int(last or first) for first, last in spans)
        if host == f"{begin}{number}{end}" and (is_within or number == numbers):
            return True
    return False


def find_rank_places(records: Sequence[SourceRecord], relations: Mapping[str, Rows]) -> dict[int, RankPlace]:
    """Return the place of each rank that a recording or a log names, in the order of ranks.

    `relations` are rows of `PLACE_RELATIONS` and of `gpu_clocks`; those that are absent state nothing.
    """
    stated: dict[int, dict[str, list[tuple[Any, str]]]] = defaultdict(lambda: defaultdict(list))
    first = first_device(records)
    for record in records:
        if record.rank is not None:
            device = None if record.device is None else record.device - first
            fields = {"host": record.host, "device": device, "bus_id": record.bus_id, "process": record.pid}
            _state(stated[record.rank], fields, _RECORDING)
    recorded = set(stated)
    for relation, name in PLACE_RELATIONS.items():
        for row in _rows_of_job(relations.get(relation, ()), recorded):
            _state(stated[row["rank"]], row, name)
    places = {rank: _place(of_rank) for rank, of_rank in sorted(stated.items())}
    hosts = {short_host(place.host) for place in places.values() if place.host is not None}
    addresses = _addresses(relations, next(iter(hosts)) if len(hosts) == 1 else None)
    sharing = Counter((short_host(place.host), place.device) for place in places.values())
    for rank, place in places.items():
        gpu = short_host(place.host), place.device
        gpu_addresses = addresses.get(gpu, set())
        if place.host is not None and "bus_id" not in stated[rank] and sharing[gpu] == 1 and len(gpu_addresses) == 1:
            places[rank] = place._replace(bus_id=next(iter(gpu_addresses)), bus_id_from="device number")
    return places


def first_device(records: Sequence[SourceRecord]) -> int:
    """Return the number of a host's first GPU: those of ROCm follow the processors in a profiler's list of agents.

    It is that of rank 0, if no rank has a smaller one.
    """
    # recordings of NVIDIA's GPUs state the model, and those of rocprofv3 that hold the list of agents
    of_rocm = [
        one
        for one in records
        if (one.format == "kineto" and (one.gpu_model or "AMD").startswith("AMD"))
        or (one.format == "rocprof-csv" and one.gpu_model is None)
    ]
    devices = {one.rank: one.device for one in of_rocm if one.rank is not None and one.device is not None}
    return devices[0] if 0 in devices and devices[0] == min(devices.values()) else 0


def fill_hosts(records: Sequence[SourceRecord], places: Mapping[int, RankPlace]) -> dict[int, str]:
    """Return the host of each rank by its place; empty unless every rank of the recordings has one.

    Hosts of some ranks alone, as where logs of two jobs lie in one folder, make no node.
    """
    hosts = {rank: places[rank].host for record in records if (rank := record.rank) is not None}
    named = {rank: host for rank, host in hosts.items() if host is not None}
    return named if len(named) == len(hosts) else {}


def host_of_file(file: str, hosts: Collection[str]) -> str | None:
    """Return the one of the job's hosts that the name of a file, or of its folder, holds as a word; else None.

    >>> host_of_file("logs/nvidia-smi-node1.csv", ["node1", "node10.cluster"])
    'node1'
    """
    text = "/".join(PurePath(file).parts[-2:])
    matches = [host for host in hosts if re.search(_WORD.format(re.escape(str(short_host(host)))), text)]
    return matches[0] if len(matches) == 1 else None


def _state(of_rank: dict[str, list[tuple[Any, str]]], values: Mapping[str, Any], source: str) -> None:
    for name in ("host", "device", "bus_id", "process"):
        if values.get(name) is not None:
            of_rank[name].append((values[name], source))


def _rows_of_job(rows: Rows, recorded: Collection[int]) -> Iterator[Mapping[str, Any]]:
    """Return the rows whose rank is the job's: of the largest communicators, if these hold all recorded ranks."""
    rows = [row for row in rows if row["rank"] is not None and not _ADDRESS.fullmatch(row["host"] or "0.0.0.0")]
    worlds = [row["ranks"] for row in rows if row.get("ranks")]
    if worlds and recorded and max(worlds) <= max(recorded):
        return
    yield from (row for row in rows if not worlds or row["ranks"] == max(worlds))


def _addresses(relations: Mapping[str, Rows], only_host: str | None) -> dict[tuple[str | None, int | None], set[str]]:
    """Return the PCI addresses that logs state for each host and number of a GPU."""
    addresses_of_gpu: dict[tuple[str | None, int | None], set[str]] = defaultdict(set)
    for relation in ("communicators", "gpu_clocks"):
        for row in relations.get(relation, ()):
            host = short_host(row["host"]) or only_host
            if row["bus_id"] is not None and row["device"] is not None and host is not None:
                addresses_of_gpu[host, row["device"]].add(row["bus_id"])
    return addresses_of_gpu


def _place(stated: Mapping[str, list[tuple[Any, str]]]) -> RankPlace:
    conflicts = []
    chosen: dict[str, tuple[Any, str | None]] = {}
    for name in ("host", "device", "bus_id", "process"):
        statements: list[tuple[Any, str | None]] = [*stated.get(name, ()), (None, None)]
        chosen[name] = statements[0]
        values = {short_host(value) if name == "host" else value: source for value, source in reversed(statements[:-1])}
        if len(values) > 1 and name in ("host", "bus_id"):  # processes number GPUs, and themselves, in several ways
            what = "host" if name == "host" else "GPU"
            conflicts.append(", ".join(f"{what} {value} by {source}" for value, source in reversed(values.items())))
            chosen[name] = None, None
    host, device, bus_id, process = (chosen[name] for name in ("host", "device", "bus_id", "process"))
    return RankPlace(host[0], device[0], bus_id[0], process[0], host[1], device[1], bus_id[1], tuple(conflicts))
