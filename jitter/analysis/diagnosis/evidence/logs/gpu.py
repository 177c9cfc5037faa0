"""Evidence from logs about single GPUs: lower clocks, the reasons for them, errors in the kernel log."""

from collections import Counter
from collections.abc import Collection, Mapping
from statistics import median
from typing import Any, Final

from jitter.analysis.diagnosis.evidence.logs.relations import JobLogs
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_count

_MOST_ERRORS: Final = THRESHOLDS.sentences.max_listed
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
        is_ambiguous = host is None and list(logs.devices.values()).count(device) > 1  # several hosts, none is named
        if device is not None and not is_ambiguous:
            found += _clocks(host, device, logs)
            found += _errors(rank, host, device, logs)
    return found


def list_gpu_errors(logs: JobLogs) -> list[str]:
    """Tell of all GPU errors in kernel logs, a sentence each host: their GPU may belong to no known rank."""
    by_host: dict[str | None, Counter[tuple[int, str | None]]] = {}
    for row in logs.gpu_errors:
        by_host.setdefault(row["host"], Counter())[row["code"], row["bus_id"]] += 1
    found = []
    for host, errors in sorted(by_host.items(), key=lambda one: (-one[1].total(), one[0] or "")):
        ordered = sorted(errors.items(), key=lambda one: (-one[1], one[0][0], one[0][1] or ""))
        listed = [_describe_error(*error, count) for error, count in ordered[:_MOST_ERRORS]]
        more = f" and {len(ordered) - _MOST_ERRORS} more" if len(ordered) > _MOST_ERRORS else ""
        where = "a kernel log" if host is None else f"the kernel log of {host}"
        found.append(f"GPU errors in {where}: {', '.join(listed)}{more}.")
    if len(found) > _MOST_ERRORS:
        found[_MOST_ERRORS:] = [f"GPU errors in the kernel logs of {len(found) - _MOST_ERRORS} more hosts."]
    return found


def _describe_error(code: int, bus_id: str | None, count: int) -> str:
    gpu = f" of the GPU at {bus_id}" if bus_id else ""
    return f"{_name_error(code)}{gpu}" + (f" ({count} times)" if count > 1 else "")


def _name_error(code: int) -> str:
    return f"{'Xid' if code < 10_000 else 'SXid'} {code}"


def _clocks(host: str | None, device: int, logs: JobLogs) -> list[str]:
    clocks = logs.gpu_clocks
    own = [row for row in clocks if row["device"] == device and logs.is_of(row["host"], host)]
    others = [row for row in clocks if not (row["device"] == device and logs.is_of(row["host"], host))]
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
        if row["device"] == device and row["bus_id"] is not None and logs.is_of(row["host"], host)
    }
    codes: Counter[int] = Counter(
        row["code"] for row in logs.gpu_errors if row["bus_id"] in buses and logs.is_of(row["host"], host)
    )
    name = f"GPU {device}" + (f" of {host}" if host is not None else "")
    return [
        f"the kernel log has {format_count(count, 'error')} {_name_error(code)} of {name}"
        for code, count in sorted(codes.items())
    ]
