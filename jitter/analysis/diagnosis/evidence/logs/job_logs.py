"""Rows of the relations that a job's logs fill, and the ranks that each row is about."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any, Final

import numpy as np

from jitter.analysis.metrics.bandwidth_baseline import BaselineRow
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.grouping import by_key
from jitter.core.step_key import StepKey
from jitter.lake.log_records import Rows
from jitter.lake.rank_places import RankPlace, assign_nodes, is_listed, is_same_host, number_gpus, short_host
from jitter.logs.schemas import SCHEMAS
from jitter.logs.times import in_year_of

_LIMITS: Final = THRESHOLDS.evidence

LANES: Final = "PCIe lanes"
PCIE_GENERATION: Final = "PCIe generation"
"""Of a GPU's link now: idle GPUs lower it."""


class Bindings:
    """The hardware threads of each rank, and the ranks of its node that it shares them with."""

    def __init__(self, logs: "JobLogs") -> None:
        self.rows = {row["rank"]: row for row in logs.bindings if row["rank"] is not None and row["cpus"]}
        self.near = {row["gpu"]: set(row["near_cpus"]) for row in logs.topology if row["near_cpus"]}
        self.cpus = {rank: frozenset(row["cpus"]) for rank, row in self.rows.items()}
        self.devices = {rank: place.device for rank, place in logs.places.items()}
        nodes = {rank: row["host"] or logs.nodes.get(rank) for rank, row in self.rows.items()}
        known = {rank: cpus for rank, cpus in self.cpus.items() if nodes[rank] is not None}
        users = by_key(((nodes[rank], cpu), rank) for rank, cpus in known.items() for cpu in cpus)
        self.sharing = {
            rank: {cpu: {*of} - {rank} for cpu in cpus if len(of := users[nodes[rank], cpu]) > 1}
            for rank, cpus in known.items()
        }

    def gpu_of(self, rank: int) -> int | None:
        """Return a rank's GPU; where neither trace nor log states it, that of its number on the node."""
        gpus: Sequence[int] = self.rows[rank]["gpus"] or ()
        device = self.devices.get(rank)
        return device if device is not None or not gpus else gpus[rank % len(gpus)]

    def is_far(self, rank: int, gpu: int | None) -> bool:
        """Return whether none of a rank's hardware threads is near a GPU; False where that is not known."""
        return gpu in self.near and not self.near[gpu] & self.cpus[rank]


@dataclass(frozen=True)
class JobLogs:
    """Rows of the relations that logs fill."""

    communicators: Rows = ()
    edges: Rows = ()
    gpu_clocks: Rows = ()
    gpu_errors: Rows = ()
    incidents: Rows = ()
    exits: Rows = ()
    links: Rows = ()
    bindings: Rows = ()
    topology: Rows = ()
    throughput: Rows = ()
    proxied: Rows = ()
    """Collectives of which the profiler plug-in timed the network proxies."""
    slow_network: Sequence[BaselineRow] = ()
    """Collectives whose bandwidth is below a measured baseline in every step."""
    places: Mapping[int, RankPlace] = field(default_factory=dict)
    """Host and GPU of each rank."""
    contested: Sequence[tuple[tuple[int, ...], tuple[str, ...]]] = ()
    """Ranks of which files state different hosts or networks, and the files: their NCCL rows are left out."""
    step_times_ns: Mapping[StepKey, tuple[int, int]] = field(default_factory=dict)
    """First start and last end of each step, ns since 1970; without steps whose traces record no wall clock."""

    @cached_property
    def nodes(self) -> dict[int, object]:
        """The node of each rank, as a host name without domain, or as a number where no host is known."""
        return assign_nodes(self._located)

    @cached_property
    def _located(self) -> dict[int, RankPlace]:
        """The places of ranks, with the names of hosts without domain."""
        return {rank: place._replace(host=short_host(place.host)) for rank, place in self.places.items() if rank >= 0}

    def node_of(self, host: str | None) -> object | None:
        """Return the node that a row is about; a row without a host is of the job's only node."""
        if host is None or not any(isinstance(node, str) for node in self._hosts):
            return next(iter(self._hosts)) if len(self._hosts) == 1 else None
        node = short_host(host)
        return node if any(is_same_host(host, name) for name in self._hosts.get(node, ())) else None

    def file_of(self, row: Mapping[str, Any]) -> str | None:
        """Return the file of a row where it stands for a host: of a job of several nodes, files of unknown hosts do."""
        source = row.get("source")
        if source is None or row["host"] is not None or self.node_of(None) is not None:
            return None
        return "/".join(PurePath(source).parts[-2:]) if len(self._nameless_files) > 1 else None

    @cached_property
    def _nameless_files(self) -> set[str]:
        """The files with samples, errors of GPUs or links whose host is not known."""
        rows = (*self.gpu_clocks, *self.gpu_errors, *self.links)
        return {row["source"] for row in rows if row["host"] is None and row.get("source") is not None}

    @cached_property
    def _hosts(self) -> dict[object, set[str | None]]:
        """By node the names of its host."""
        names = by_key((node, self.places[rank].host) for rank, node in self.nodes.items())
        return {node: set(of_node) for node, of_node in names.items()}

    def hosts_in(self, nodes: str | None) -> Sequence[str | None]:
        """Return the job's hosts that a list of nodes contains; what is no list, or contains none, as it is."""
        if nodes is None or re.search(r"[][,]", nodes) is None:
            return [nodes]
        return [host for host in self._hosts if isinstance(host, str) and is_listed(host, nodes)] or [nodes]

    @cached_property
    def gpu_numbers(self) -> dict[int, int]:
        """The number of each rank's GPU on its node, where it is known."""
        return number_gpus(self._located)

    def ranks_of_gpu(self, host: str | None, device: int | None, bus_id: str | None) -> tuple[int, ...]:
        """Return the ranks that use a GPU, by its PCI address, else by its number; empty if that is not known.

        Processes that see one GPU each all number it 0: a number that several ranks of a node have names none. Then the
        driver's number tells, which is the place of the PCI address among the node's.
        """
        node = self.node_of(host)
        if node is None:
            return ()
        by_bus = self._gpus.get((node, bus_id), []) if bus_id is not None else []
        by_device = self._gpus.get((node, device), []) if device is not None and not by_bus else []
        if len(by_device) == 1 and bus_id is not None and self.places[by_device[0]].bus_id not in (None, bus_id):
            return ()
        in_order = self._in_order.get((node, device), ()) if not by_bus and len(by_device) != 1 else ()
        return tuple(by_bus or (by_device if len(by_device) == 1 else in_order))

    def is_unused(self, host: str | None, device: int) -> bool:
        """Return whether no rank uses a GPU, by its number: False where a number of its node's ranks is unknown."""
        node = self.node_of(host)
        ranks = [rank for rank, of_rank in self.nodes.items() if of_rank == node]
        numbers = {self.gpu_numbers.get(rank) for rank in ranks}
        return bool(ranks) and not numbers & {device, None}

    @cached_property
    def _in_order(self) -> dict[tuple[object, int | None], tuple[int, ...]]:
        """The rank of each GPU by the driver's number, of nodes that have as many GPUs in the samples as ranks here."""
        numbers = by_key((self.node_of(row["host"]), row["device"]) for row in self.gpu_clocks)
        in_order = dict[tuple[object, int | None], tuple[int, ...]]()
        for node, ranks in by_key((node, rank) for rank, node in self.nodes.items()).items():
            addresses = {rank: bus_id for rank in ranks if (bus_id := self.places[rank].bus_id) is not None}
            ordered = sorted(addresses, key=addresses.__getitem__)
            if len(set(addresses.values())) == len(ranks) and set(numbers.get(node, ())) == set(range(len(ranks))):
                in_order.update({(node, number): (rank,) for number, rank in enumerate(ordered)})
        return in_order

    @cached_property
    def _gpus(self) -> dict[tuple[object, object], list[int]]:
        places = [(node, self.places[rank], rank) for rank, node in self.nodes.items()]
        return by_key(((node, number), rank) for node, place, rank in places for number in (place.bus_id, place.device))

    @cached_property
    def bound(self) -> Bindings:
        """The hardware threads of each rank."""
        return Bindings(self)

    @cached_property
    def members(self) -> list[tuple[tuple[int, ...], Mapping[str, Any]]]:
        """Each row of `communicators` with the ranks that it is about; a rank of a smaller group has another number."""
        world = max((row["ranks"] for row in self.communicators if row.get("ranks")), default=None)
        is_job = world is None or not self.places or world > max(self.places)
        members = []
        for row in self.communicators:
            is_global = is_job and row["rank"] is not None and row.get("ranks") in (None, world)
            if is_global and self._is_of_other_host(row):
                continue  # the log of another job
            by_gpu = self.ranks_of_gpu(row["host"], row["device"], row["bus_id"])
            members.append(((row["rank"],) if is_global else by_gpu, row))
        return members

    @cached_property
    def is_of_other_hosts(self) -> bool:
        """Whether NCCL's log states other hosts than the recordings for every rank of which both do."""
        stated = [row for row in self.communicators if row["host"] and row["rank"] in self.places]
        return bool(stated) and all(map(self._is_of_other_host, stated))

    def _is_of_other_host(self, row: Mapping[str, Any]) -> bool:
        place = self.places.get(row["rank"])
        if place is None or not row["host"]:
            return False
        return bool(place.conflicts) if place.host is None else short_host(place.host) != short_host(row["host"])

    def reconciled(self) -> "JobLogs":
        """Return the logs without the files that contradict each other, or themselves, as those of two runs do.

        None of them is believed. The network of a rank is that of all its communicators.
        """
        world = max((row["ranks"] for row in self.communicators if row.get("ranks")), default=None)
        stated = by_key(
            ((rank, what), (row["source"], value))
            for row in self.communicators
            if row["rank"] is not None and row.get("source") is not None
            for is_of_all in (row.get("ranks") == world,)
            for rank in ((row["rank"],) if is_of_all else self.ranks_of_gpu(row["host"], row["device"], row["bus_id"]))
            for what, value in (("host", short_host(row["host"]) if is_of_all else None), ("network", row["network"]))
            if value is not None
        )
        of_files = [(rank, by_key(values)) for (rank, _), values in stated.items()]
        ranks_of_files = by_key(
            (tuple(sorted(values)), rank)
            for rank, values in of_files
            if len({value for of_file in values.values() for value in of_file}) > 1
        )
        lost = {file for files in ranks_of_files for file in files}
        # a process of no communicator is of another program, where every rank of the job states its network
        of_job = {row["rank"] for row in self.communicators if world and row.get("ranks") == world and row["network"]}
        is_whole = len(of_job) == world
        return replace(
            self,
            communicators=[
                row
                for row in self.communicators
                if row.get("source") not in lost and not (is_whole and row["rank"] is None)
            ],
            edges=[row for row in self.edges if row.get("source") not in lost],
            contested=[(tuple(sorted(set(ranks))), files) for files, ranks in sorted(ranks_of_files.items())],
        )

    def during(self, steps: Sequence[StepKey], margin_ns: int = _LIMITS.log_sampling_ns) -> "JobLogs":
        """Return the logs with clocks, errors and incidents of these steps' times only, and of `margin_ns` around them.

        Those of links are incidents, too; ends of processes are those of half a day around. Rows without a time stay,
        and all if the time of none of the steps is known.
        """
        times = [self.step_times_ns[key] for key in steps if key in self.step_times_ns]
        if not times:
            return self
        return replace(
            self,
            gpu_clocks=_within(self.gpu_clocks, times, margin_ns),
            gpu_errors=_within(self.gpu_errors, times, margin_ns),
            incidents=_within(self.incidents, times, margin_ns),
            # a job ends some time after the steps that were recorded, and launchers print local times
            exits=_within(self.exits, times, max(margin_ns, _LIMITS.time_zones_ns)),
            links=[
                *(row for row in self.links if not _is_of_its_time(row)),
                *_within([row for row in self.links if _is_of_its_time(row)], times, margin_ns),
            ],
        )


EVIDENCE_RELATIONS: Final = tuple(one.name for one in fields(JobLogs) if one.name in SCHEMAS)
"""The relations of `JobLogs`."""


def _is_of_its_time(row: Mapping[str, Any]) -> bool:
    """Return whether a row of `links` states something of its time alone: no counter that keeps growing."""
    return bool(row.get("is_event")) or row["counter"] == PCIE_GENERATION


def _within(rows: Rows, times: Sequence[tuple[int, int]], margin_ns: int) -> Rows:
    starts, ends = (np.array(column, np.int64) for column in zip(*sorted(times), strict=True))
    last_end = np.maximum.accumulate(ends)
    stated = [row.get("time_ns") for row in rows]
    at = in_year_of(np.array([0 if time_ns is None else time_ns for time_ns in stated], np.int64), times[0][0])
    begun = np.searchsorted(starts, at + margin_ns, side="right")
    is_within = (begun > 0) & (last_end[np.maximum(begun - 1, 0)] >= at - margin_ns)
    return [
        row for row, time_ns, within in zip(rows, stated, is_within.tolist(), strict=True) if time_ns is None or within
    ]
