"""Writes what a rank did as PyTorch's profiler does (Kineto, Chrome trace JSON)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.accuracy.irregular.engine import Op, RankTrace

_KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "coalesced": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "alltoall": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
_GENERIC = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
"""RCCL's kernel for all operations."""


def write_trace(
    folder: Path,
    rank: int,
    world: int,
    trace: RankTrace,
    clock_ns: float,
    device: int,
    *,
    with_groups: bool = True,
    with_operations: bool = True,
) -> Path:
    """Write one rank's trace; `clock_ns` is what its clock is ahead of the global one.

    Without groups, nothing is stated of a collective but its kernel's name; without operations, this does not tell it.
    """
    names = _KERNELS if with_operations else dict.fromkeys(_KERNELS, _GENERIC)
    events: list[dict[str, Any]] = []

    def times(begin: float, end: float) -> dict[str, float]:
        return {"ts": round((begin + clock_ns) / 1e3, 3), "dur": round((end - begin) / 1e3, 3)}

    for step, (begin, end) in trace.steps.items():
        event = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1000, "tid": 1000}
        events.append({**event, **times(begin, end), "args": {}})
    for number, item in enumerate(trace.items, 1):
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1000, "tid": 1000}
        events.append({**call, **times(item.call_start_ns, item.call_end_ns), "args": {"correlation": number}})
        kernel = {"ph": "X", "cat": "kernel", "pid": device, "tid": item.op.stream}
        events.append(
            {**kernel, **times(item.start_ns, item.end_ns), **_named(item.op, number, device, names, with_groups)}
        )
    for _, begin, end in trace.syncs:
        call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": 1000, "tid": 1000}
        events.append({**call, **times(begin, end), "args": {}})
    told = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "traceEvents": events,
        "traceName": f"rank-{rank}.json",
    }
    path = folder / f"rank-{rank}.pt.trace.json"
    path.write_text(json.dumps(told))
    return path


def _named(op: Op, number: int, device: int, names: Mapping[str, str], with_groups: bool) -> dict[str, Any]:
    args: dict[str, Any] = {"device": device, "stream": op.stream, "correlation": number}
    if op.comm is None:
        return {"name": op.name, "args": {**args, "grid": [op.grid, 1, 1], "block": [256, 1, 1]}}
    comm = op.comm
    args |= {"grid": [24, 1, 1], "block": [512, 1, 1]}
    if not with_groups:
        return {"name": names[comm.operation], "args": args}
    args |= {
        "Collective name": comm.operation,
        "In msg nelems": comm.elements,
        "Out msg nelems": comm.elements,
        "Group size": len(comm.ranks),
        "dtype": "BFloat16",
        "Process Group Name": comm.group,
        "Process Group Ranks": str(list(comm.ranks)),
    }
    if comm.source is not None:
        args["Src Rank"] = comm.source
    if comm.destination is not None:
        args["Dst Rank"] = comm.destination
    return {"name": names[comm.operation], "args": args}
