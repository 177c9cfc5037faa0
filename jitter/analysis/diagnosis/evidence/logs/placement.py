"""Evidence from logs about the placement of ranks: hardware threads shared with other ranks, or far from the GPU."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jitter.analysis.diagnosis.evidence.logs.relations import JobLogs
from jitter.core.formatting import format_count, format_numbers, format_ranks


def cpu_evidence(ranks: Collection[int], logs: JobLogs) -> list[str]:
    """Tell of cores that are shared with other ranks, or far from the GPU, of ranks that launch late."""
    bound = {row["rank"]: row for row in logs.bindings if row["rank"] is not None and row["cpus"]}
    near = {row["gpu"]: set(row["near_cpus"]) for row in logs.topology if row["near_cpus"]}
    found = []
    for rank in sorted(set(ranks) & bound.keys()):
        own = bound[rank]
        cores = set(own["cpus"])
        sharing = _sharing(rank, bound, logs)
        if sharing:
            shared = set().union(*sharing.values())
            threads = format_count(len(cores), "hardware thread")
            found.append(f"rank {rank} shares {len(shared)} of {threads} with {format_ranks(sorted(sharing))}")
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


def describe_placement(logs: JobLogs) -> list[str]:
    """Tell how many ranks run far from their GPUs, or share hardware threads, by the logs of the whole job.

    Where neither trace nor log states a rank's GPU and the rank sees several, its GPU is taken to be the local rank's.
    """
    bound = {row["rank"]: row for row in logs.bindings if row["rank"] is not None and row["cpus"]}
    near = {row["gpu"]: set(row["near_cpus"]) for row in logs.topology if row["near_cpus"]}
    gpus = {rank: _gpu_of(rank, row, logs.devices.get(rank)) for rank, row in bound.items()}
    counted = [rank for rank, gpu in gpus.items() if gpu in near]
    far = [rank for rank in counted if far_gpu(bound[rank], gpus[rank], near) is not None]
    told = []
    if far:
        is_assumed = any(logs.devices.get(rank) is None and len(bound[rank]["gpus"] or ()) > 1 for rank in counted)
        assumed = ", if a rank uses the GPU of its number on the node" if is_assumed else ""
        told.append(
            f"{len(far)} of {format_count(len(counted), 'rank')} run on hardware threads far from their GPUs "
            f"({_name_ranks(far, counted)}){assumed}"
        )
    sharing = [rank for rank in bound if _sharing(rank, bound, logs)]
    if sharing:
        told.append(
            f"{len(sharing)} of {format_count(len(bound), 'rank')} share hardware threads with other ranks "
            f"({_name_ranks(sharing, list(bound))})"
        )
    return told


def _name_ranks(chosen: Collection[int], every: Collection[int]) -> str:
    """Name the chosen ranks, or if they are most of all, the others."""
    others = set(every) - set(chosen)
    if not others:
        return "all"
    return f"all but {format_numbers(others)}" if len(others) < len(chosen) else format_numbers(chosen)


def _gpu_of(rank: int, binding: Mapping[str, Any], device: int | None) -> int | None:
    gpus: Sequence[int] = binding["gpus"] or ()
    if device is not None or not gpus:
        return device
    return gpus[rank % len(gpus)]


def _sharing(rank: int, bound: Mapping[int, Mapping[str, Any]], logs: JobLogs) -> dict[int, set[int]]:
    """Return the hardware threads that a rank shares with each other rank of its host; none if the host is unknown."""
    cores, host = set(bound[rank]["cpus"]), _host_of(rank, bound, logs)
    if host is None:
        return {}
    return {
        other: cores & set(row["cpus"])
        for other, row in bound.items()
        if other != rank and _host_of(other, bound, logs) == host and cores & set(row["cpus"])
    }


def _host_of(rank: int, bound: Mapping[int, Mapping[str, Any]], logs: JobLogs) -> str | None:
    host: str | None = bound[rank]["host"] or logs.hosts.get(rank)
    return host
