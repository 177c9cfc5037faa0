"""Evidence from logs about single GPUs: lower clocks, the reasons for them, errors in the kernel log."""

from collections import Counter
from collections.abc import Collection, Mapping
from statistics import median
from typing import Any, Final

from jitter.analysis.diagnosis.evidence.logs.relations import JobLogs, Rows
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count

_LIMITS: Final = {
    "sw_power_cap": "power cap",
    "hw_power_brake_slowdown": "power brake",
    "hw_slowdown": "hardware slowdown",
    "sw_thermal_slowdown": "temperature",
    "hw_thermal_slowdown": "temperature",
}


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
    if mine and theirs and median(mine) < THRESHOLDS.evidence.lower_clock * median(theirs):
        found.append(f"{name} ran at {median(mine):,.0f} MHz, the other GPUs at {median(theirs):,.0f} MHz (median)")
    reasons, elsewhere = (Counter(limit for row in rows for limit in _limits_of(row)) for rows in (own, others))
    for reason, count in sorted(reasons.items()):
        share, usual = count / len(own), elsewhere[reason] / len(others) if others else 0.0
        if share > usual:
            found.append(f"{name}: its clock was limited by {reason} in {count} of {len(own)} samples")
    return found


def _limits_of(row: Mapping[str, Any]) -> set[str]:
    """Return what limited a clock in one sample, each once: several reasons may mean the same."""
    return {_LIMITS[reason] for reason in row["reasons"] or () if reason in _LIMITS}


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


def _may_be(host: str | None, other: str | None) -> bool:
    """Return whether two host names may mean one host: equal up to the domain, or one unknown."""
    return host is None or other is None or host.partition(".")[0] == other.partition(".")[0]
