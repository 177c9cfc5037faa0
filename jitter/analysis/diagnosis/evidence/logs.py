"""Evidence from a job's logs for the causes that a diagnosis found: sentences, made from the relations of the lake.

Logs never make a culprit: they add to the evidence of one.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final

import numpy as np

from jitter.analysis.diagnosis.model import Cause, Culprit, Diagnosis
from jitter.analysis.metrics.communication.baseline import (
    BELOW_BASELINE,
    Baseline,
    BaselineRow,
    below_in_every_step,
)
from jitter.analysis.metrics.communication.measure import Communication
from jitter.analysis.metrics.communication.time_shares import SHARES
from jitter.core.formatting import escape_control, format_count, format_numbers, format_percent
from jitter.core.step_key import StepKey

Rows = Sequence[Mapping[str, Any]]
EVIDENCE_RELATIONS: Final = (
    *("bandwidth", "communicators", "edges", "gpu_clocks", "gpu_errors", "bindings", "topology"),
)
SAMPLING_NS: Final = 5_000_000_000
"""Clock logs take a sample every few seconds, and steps are shorter: a sample this near belongs to the step, ns."""
LOWER_CLOCK: Final = 0.95
"""A GPU's median clock under this part of the other GPUs' is a lower clock."""
_MOST_NAMED: Final = 4
_LIMITS: Final = {
    "sw_power_cap": "power cap",
    "hw_power_brake_slowdown": "power brake",
    "hw_slowdown": "hardware slowdown",
    "sw_thermal_slowdown": "temperature",
    "hw_thermal_slowdown": "temperature",
}
_FABRIC_INTERFACES: Final = ("hsn", "ib", "mlx", "rdma", "efa", "cxi", "opa")


@dataclass(frozen=True)
class JobLogs:
    """Rows of the relations that logs fill."""

    communicators: Rows = ()
    edges: Rows = ()
    gpu_clocks: Rows = ()
    gpu_errors: Rows = ()
    bindings: Rows = ()
    topology: Rows = ()
    slow_network: Sequence[BaselineRow] = ()
    """Collectives whose bandwidth is below a measured baseline in every step."""
    exposed_share: float | None = None
    """Share of the steps' time in communication without compute."""
    hosts: Mapping[int, str | None] = field(default_factory=dict)
    """The ranks' hosts, as the traces state them."""
    devices: Mapping[int, int | None] = field(default_factory=dict)
    """The ranks' GPUs."""
    step_times_ns: Mapping[StepKey, tuple[int, int]] = field(default_factory=dict)
    """First start and last end of each step, ns since 1970; without steps whose traces record no wall clock."""

    def during(self, steps: Sequence[StepKey]) -> "JobLogs":
        """Return the logs with GPU clocks and errors of these steps' times only.

        Rows without a time stay, and all rows if the time of none of the steps is known.
        """
        times = [self.step_times_ns[key] for key in steps if key in self.step_times_ns]
        if not times:
            return self
        return replace(self, gpu_clocks=_within(self.gpu_clocks, times), gpu_errors=_within(self.gpu_errors, times))


def _within(rows: Rows, times: Sequence[tuple[int, int]]) -> Rows:
    """Return the rows of these times, and of `SAMPLING_NS` before and after them; rows without a time stay."""
    starts, ends = (np.array(column, np.int64) for column in zip(*sorted(times), strict=True))
    last_end = np.maximum.accumulate(ends)
    kept = []
    for row in rows:
        time_ns = row.get("time_ns")
        if time_ns is not None:
            begun = int(np.searchsorted(starts, time_ns + SAMPLING_NS, side="right"))
            if not begun or last_end[begun - 1] < time_ns - SAMPLING_NS:
                continue
        kept.append(row)
    return kept


def job_logs(
    tables: Mapping[str, Rows],
    measured: Communication | None,
    hosts: Mapping[int, str | None],
    devices: Mapping[int, int | None],
    step_times_ns: Mapping[StepKey, tuple[int, int]],
) -> JobLogs:
    """Put the relations `EVIDENCE_RELATIONS` together with the run's measured communication."""
    slow: list[BaselineRow] = []
    exposed = None
    if measured is not None:
        baseline = Baseline("nccl-tests", tables["bandwidth"])
        slow = below_in_every_step(measured, baseline, BELOW_BASELINE)
        total = sum(one.step_ns for one in measured.rank_steps)
        alone = sum(one.shares_ns[SHARES.index("exposed")] for one in measured.rank_steps)
        exposed = alone / total if total else None
    relations = {name: tables[name] for name in EVIDENCE_RELATIONS if name != "bandwidth"}
    return JobLogs(
        **relations,
        slow_network=slow,
        exposed_share=exposed,
        hosts=hosts,
        devices=devices,
        step_times_ns=step_times_ns,
    )


def add_log_evidence(diagnosis: Diagnosis, logs: JobLogs) -> Diagnosis:
    """Return the diagnosis with what logs tell of each culprit added to its evidence."""
    culprits = []
    for culprit in diagnosis.culprits:
        said = [text for text in log_evidence(culprit, logs) if text not in culprit.evidence]
        culprits.append(replace(culprit, evidence=(*culprit.evidence, *said)) if said else culprit)
    notes = [text for text in (*_job_notes(logs), *_time_notes(logs)) if text not in diagnosis.notes]
    return replace(diagnosis, culprits=tuple(culprits), notes=(*diagnosis.notes, *notes))


def _job_notes(logs: JobLogs) -> list[str]:
    """Tell of a network that is slow for all ranks in every step."""
    if not logs.slow_network or logs.exposed_share is None:
        return []
    worst = logs.slow_network[0]
    return [
        f"communication takes {format_percent(logs.exposed_share)} of the steps and reaches {worst.busbw:.1f} of "
        f"{worst.baseline_busbw:.1f} GB/s ({worst.collective} of {worst.size_bytes:,} B)"
    ]


def _time_notes(logs: JobLogs) -> list[str]:
    """Tell of GPU logs of another time than the steps: none of their rows can be evidence."""
    run = logs.during(list(logs.step_times_ns))
    return [
        f"The {name} in the logs are of another time than the steps (another run, or another time zone): not used."
        for name, rows, own in (
            ("GPU clocks", logs.gpu_clocks, run.gpu_clocks),
            ("GPU errors", logs.gpu_errors, run.gpu_errors),
        )
        if rows and not own
    ]


def log_evidence(culprit: Culprit, logs: JobLogs) -> list[str]:
    """Return what the logs tell of a culprit's cause, a sentence each; empty if nothing."""
    find = _OF_CAUSE.get(culprit.cause)
    if find is None:
        return []
    return [escape_control(text) for text in find(culprit.ranks, logs.during(culprit.steps))]


def network_evidence(ranks: Collection[int], logs: JobLogs) -> list[str]:
    """Tell what is unusual about the network of a job whose communication is slow."""
    slow = [
        f"{row.collective} of {row.size_bytes:,} B: {row.busbw:.1f} of {row.baseline_busbw:.1f} GB/s in every step"
        for row in logs.slow_network
    ]
    return [
        *slow,
        *_sockets(logs),
        *_failed_plugins(logs.communicators),
        *_without_gdr(logs.edges),
        *_unequal_transports(logs.edges),
        *_unlike_others(logs.communicators),
    ]


def _sockets(logs: JobLogs) -> list[str]:
    over_tcp = [row for row in logs.communicators if row["network"] == "Socket"]
    if not over_tcp:
        return []
    interfaces = sorted({name for row in over_tcp for name in row["interfaces"] or ()})
    others = {row["network"] for row in logs.communicators} - {"Socket", None}
    nics = sorted({nic for row in logs.topology for nic in row["near_nics"] or ()})
    fabric = sorted(others) or nics
    failed = any(row["plugin"] == "failed" for row in over_tcp)
    if not fabric and not failed and not any(name.startswith(_FABRIC_INTERFACES) for name in interfaces):
        return []
    over = f" over {_listed(interfaces)}" if interfaces else ""
    present = f", although {_listed(fabric)} is present" if fabric else ""
    return [f"NCCL communicates by TCP{over}{present}"]


def _failed_plugins(communicators: Rows) -> list[str]:
    hosts = sorted({str(row["host"]) for row in communicators if row["plugin"] == "failed"})
    return [f"the network plug-in could not be loaded on {_listed(hosts)}"] if hosts else []


def _without_gdr(edges: Rows) -> list[str]:
    network = [row for row in edges if row["gdr"] is not None]
    without = [row for row in network if not row["gdr"]]
    if not without:
        return []
    return [f"{len(without)} of {format_count(len(network), 'network connection')} do not use GPUDirect RDMA (GDR)"]


def _unequal_transports(edges: Rows) -> list[str]:
    counts = Counter(row["transport"] for row in edges if str(row["transport"]).startswith("NET/"))
    if len(counts) < 2:
        return []
    rarest = min(counts, key=lambda name: (counts[name], name))
    pairs = sorted({(row["from_rank"], row["to_rank"]) for row in edges if row["transport"] == rarest})
    told = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    named = _listed([f"{one} to {other}" for one, other in pairs])
    return [f"network connections use different transports ({told}): {rarest} from rank {named}"]


def _unlike_others(communicators: Rows) -> list[str]:
    found = []
    for column in ("network", "version"):
        ranks: dict[Any, set[int]] = defaultdict(set)
        for row in communicators:
            if row[column] is not None and row["rank"] is not None:
                ranks[row[column]].add(row["rank"])
        if len(ranks) < 2:
            continue
        usual = max(ranks, key=lambda value: (len(ranks[value]), str(value)))
        for value, own in sorted(ranks.items(), key=lambda item: str(item[0])):
            if value != usual and len(own) < len(ranks[usual]):
                who = f"{'rank' if len(own) == 1 else 'ranks'} {format_numbers(own)}"
                found.append(f"{who}: {column} {value}, the other ranks: {usual}")
    return found


def gpu_evidence(ranks: Collection[int], logs: JobLogs) -> list[str]:
    """Tell of lower clocks, their reasons, and errors of the GPUs of ranks whose kernels are slow."""
    found = []
    for rank in sorted(ranks):
        host, device = logs.hosts.get(rank), logs.devices.get(rank)
        if device is not None:
            found += _clocks(host, device, logs.gpu_clocks)
            found += _errors(rank, host, device, logs)
    return found


def _clocks(host: str | None, device: int, clocks: Rows) -> list[str]:
    own = [row for row in clocks if row["device"] == device and _may_be(row["host"], host)]
    others = [row for row in clocks if not (row["device"] == device and _may_be(row["host"], host))]
    found = []
    mine = [row["sm_mhz"] for row in own if row["sm_mhz"] is not None]
    theirs = [row["sm_mhz"] for row in others if row["sm_mhz"] is not None]
    name = f"GPU {device}" + (f" of {host}" if host is not None else "")
    if mine and theirs and median(mine) < LOWER_CLOCK * median(theirs):
        found.append(f"{name} ran at {median(mine):,.0f} MHz, the other GPUs at {median(theirs):,.0f} MHz (median)")
    reasons = Counter(_LIMITS[reason] for row in own for reason in {*(row["reasons"] or ())} & _LIMITS.keys())
    elsewhere = Counter(_LIMITS[reason] for row in others for reason in {*(row["reasons"] or ())} & _LIMITS.keys())
    for reason, count in sorted(reasons.items()):
        share, usual = count / len(own), elsewhere[reason] / len(others) if others else 0.0
        if share > usual:
            found.append(f"{name}: its clock was limited by {reason} in {count} of {len(own)} samples")
    return found


def _errors(rank: int, host: str | None, device: int, logs: JobLogs) -> list[str]:
    buses = {
        row["bus_id"]
        for row in logs.communicators
        if row["device"] == device and row["bus_id"] is not None and _may_be(row["host"], host)
    }
    codes: Counter[int] = Counter(
        row["code"] for row in logs.gpu_errors if row["bus_id"] in buses and _may_be(row["host"], host)
    )
    name = f"GPU {device}" + (f" of {host}" if host is not None else "")
    return [
        f"the kernel log has {format_count(count, 'error')} {'Xid' if code < 10_000 else 'SXid'} {code} of {name}"
        for code, count in sorted(codes.items())
    ]


def cpu_evidence(ranks: Collection[int], logs: JobLogs) -> list[str]:
    """Tell of cores that are shared with other ranks, or far from the GPU, of ranks that launch late."""
    bound = {row["rank"]: row for row in logs.bindings if row["rank"] is not None and row["cpus"]}
    near = {row["gpu"]: set(row["near_cpus"]) for row in logs.topology if row["near_cpus"]}
    found = []
    for rank in sorted(set(ranks) & bound.keys()):
        own = bound[rank]
        cores = set(own["cpus"])
        sharing = {
            other: cores & set(row["cpus"])
            for other, row in bound.items()
            if other != rank and own["host"] == row["host"] and cores & set(row["cpus"])
        }
        if sharing:
            shared = set().union(*sharing.values())
            who = f"{'rank' if len(sharing) == 1 else 'ranks'} {format_numbers(sharing)}"
            found.append(
                f"rank {rank} shares {len(shared)} of {format_count(len(cores), 'hardware thread')} with {who}"
            )
        device = far_gpu(own, logs.devices.get(rank), near)
        if device is not None:
            found.append(f"rank {rank} runs on hardware threads far from its GPU {device}: {format_numbers(cores)}")
    return found


def far_gpu(binding: Mapping[str, Any], device: int | None, near: Mapping[int, set[int]]) -> int | None:
    """Return the GPU that none of a binding's hardware threads is near; None if some are, or if it is unknown.

    `device` is the rank's GPU; a binding that names one GPU states it where the trace does not. `near` are the
    hardware threads near each GPU.
    """
    gpus: Sequence[int] = binding["gpus"] or ()
    gpu = device if device is not None else next(iter(gpus)) if len(gpus) == 1 else None
    if gpu is None or gpu not in near or near[gpu] & set(binding["cpus"]):
        return None
    return gpu


_OF_CAUSE: Final[dict[Cause, Callable[[Collection[int], JobLogs], list[str]]]] = {
    "communication": network_evidence,
    "gpu_compute": gpu_evidence,
    "gpu_time": gpu_evidence,
    "cpu_launch": cpu_evidence,
}


def _may_be(host: str | None, other: str | None) -> bool:
    """Return whether two host names may mean one host: equal up to the domain, or one unknown."""
    return host is None or other is None or host.partition(".")[0] == other.partition(".")[0]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
