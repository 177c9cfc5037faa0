"""Evidence from logs about the network: TCP beside a fabric, failed plug-ins, missing GPUDirect, odd ranks."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Any, Final

from jitter.analysis.diagnosis.evidence.logs.relations import JobLogs, Rows
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count, format_ranks

_LIMITS: Final = THRESHOLDS.sentences

_FABRIC_INTERFACES: Final = ("hsn", "ib", "mlx", "rdma", "efa", "cxi", "opa")


def network_evidence(ranks: Collection[int], logs: JobLogs) -> list[str]:
    """Tell what is unusual about the network of a job whose communication is slow, what names ranks first.

    A job on plain Ethernet communicates by TCP, which is worth a word only where that is slow.
    """
    slow = [
        f"{row.collective} of {row.size_bytes:,} B: {row.busbw:.1f} of {row.baseline_busbw:.1f} GB/s in every step"
        for row in logs.slow_network
    ]
    return [*_describe(logs, is_slow=True), *slow]


def network_faults(ranks: Collection[int], logs: JobLogs) -> list[str]:
    """Tell what by itself makes communication slow: TCP in place of a fabric, on some ranks or all, failed plug-ins."""
    return [
        *_unlike_others(logs.communicators, "network"),
        *_failed_plugins(logs.communicators),
        *_sockets(logs, is_slow=True),
    ]


def ranks_off_fabric(ranks: Collection[int], logs: JobLogs) -> tuple[int, ...]:
    """Return those of the ranks that communicate by TCP while most of the job's ranks use a fabric."""
    networks = {row["rank"]: row["network"] for row in logs.communicators if row["rank"] is not None and row["network"]}
    off = {rank for rank, network in networks.items() if network == "Socket"}
    return tuple(sorted(off & set(ranks))) if 2 * len(off) < len(networks) else ()


def describe_network(logs: JobLogs) -> list[str]:
    """Tell what is unusual about the network by NCCL's own logs, a sentence each."""
    return _describe(logs, is_slow=False)


def _describe(logs: JobLogs, *, is_slow: bool) -> list[str]:
    return [
        *_unlike_others(logs.communicators, "network"),
        *_failed_plugins(logs.communicators),
        *_sockets(logs, is_slow=is_slow),
        *_other_interfaces(logs.communicators),
        *_unequal_transports(logs.edges),
        *_without_gdr(logs.edges),
        *_unlike_others(logs.communicators, "version"),
    ]


def _sockets(logs: JobLogs, *, is_slow: bool) -> list[str]:
    """Tell of TCP beside a fabric; where communication `is_slow`, of TCP between hosts at all."""
    over_tcp = [row for row in logs.communicators if row["network"] == "Socket"]
    if not over_tcp:
        return []
    interfaces = sorted({name for row in over_tcp for name in row["interfaces"] or ()})
    others = {row["network"] for row in logs.communicators} - {"Socket", None}
    nics = sorted({nic for row in logs.topology for nic in row["near_nics"] or ()})
    fabric = sorted(others) or nics
    failed = any(row["plugin"] == "failed" for row in over_tcp)
    has_fabric = fabric or failed or any(name.startswith(_FABRIC_INTERFACES) for name in interfaces)
    if not has_fabric and not (is_slow and len({row["host"] for row in logs.communicators}) > 1):
        return []
    over = f" over {_listed(interfaces)}" if interfaces else ""
    present = f", although {_listed(fabric)} is present" if fabric else ""
    return [f"NCCL communicates by TCP{over}{present}"]


def _other_interfaces(communicators: Rows) -> list[str]:
    """Tell of interfaces in use that are not of the fabric, beside interfaces that are."""
    used = sorted({name for row in communicators for name in row["interfaces"] or ()})
    fabric = [name for name in used if name.startswith(_FABRIC_INTERFACES)]
    wrong = [name for name in used if not name.startswith(_FABRIC_INTERFACES)]
    if not fabric or not wrong:
        return []
    return [
        f"NCCL uses {_listed(wrong)}, which {'is' if len(wrong) == 1 else 'are'} not of the fabric, beside "
        f"{_listed(fabric)}: set NCCL_SOCKET_IFNAME to the fabric's interfaces"
    ]


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


def _unlike_others(communicators: Rows, column: str) -> list[str]:
    ranks: dict[Any, set[int]] = defaultdict(set)
    for row in communicators:
        if row[column] is not None and row["rank"] is not None:
            ranks[row[column]].add(row["rank"])
    usual = max(ranks, key=lambda value: (len(ranks[value]), str(value)), default=None)
    return [
        f"{format_ranks(sorted(own))}: {column} {value}, the other ranks: {usual}"
        for value, own in sorted(ranks.items(), key=lambda item: str(item[0]))
        if len(own) < len(ranks[usual])
    ]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LIMITS.max_listed} more" if len(names) > _LIMITS.max_listed else ""
    return ", ".join(names[: _LIMITS.max_listed]) + more
