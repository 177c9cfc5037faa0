"""Logs that a job leaves beside its traces: a bandwidth benchmark of the healthy fabric, NCCL's log, GPU clocks."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from jitter.core.files import write_text
from jitter.simulate.program import NO_GROUP
from jitter.simulate.recording import begin_utc_ns
from jitter.simulate.run import Run

_BENCHMARKED: Final = {
    "all_reduce": ("sum", "-1"),
    "reduce_scatter": ("sum", "-1"),
    "all_gather": ("none", "-1"),
    "all_to_all": ("none", "-1"),
}
_SCALES: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Sizes that the benchmark measures, as multiples of the program's."""
_ELEMENT_BYTES: Final = 2
_CHANNELS: Final = 2
_CLOCK_MHZ: Final = 1980
_NO_REASON, _THERMAL_SLOWDOWN = 0x0, 0x20  # bits of nvmlClocksEventReasons


def write_logs(run: Run, folder: Path) -> list[Path]:
    """Write the logs into the folder and return their paths.

    The benchmark measures the transfers without faults; NCCL's debug log shows what a fault of the network changes,
    and the clocks of each node show which GPUs a fault slows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    logs = {
        f"nccl-tests-{operation}-{ranks}.log": _benchmark(run, operation, ranks, times)
        for (operation, ranks), times in sorted(_healthy_times(run).items())
    }
    logs["nccl_debug.log"] = _debug_log(run)
    for node in range(-(-run.job.ranks // run.job.gpus_per_node)):
        logs[f"nvidia-smi-node{node:04d}.csv"] = _clocks(run, node)
    for name, lines in logs.items():
        write_text(folder / name, "\n".join(lines) + "\n")
    return [folder / name for name in logs]


def _healthy_times(run: Run) -> dict[tuple[str, int], dict[int, float]]:
    """Return the time in ns of a transfer by (operation, ranks), then by size S."""
    times_of_operation: dict[tuple[str, int], dict[int, float]] = {}
    for program in run.plan.programs:
        for op in program.step:
            if op.kind != "collective" or op.group is None or not op.n_bytes or op.collective not in _BENCHMARKED:
                continue
            groups = run.plan.groups[op.group]
            ranks = int((groups == groups[groups != NO_GROUP][0]).sum())
            # size S of nccl-tests: of the largest buffer of a rank
            size = op.n_bytes * ranks if op.collective == "all_gather" else op.n_bytes
            times_of_operation.setdefault((op.collective, ranks), {})[size] = float(op.duration_ns)
    for times in times_of_operation.values():
        sizes = sorted(times)
        for scale in _SCALES:
            nearest = sizes[0] if scale < 1 else sizes[-1]
            size = int(nearest * scale)
            times.setdefault(size, times[nearest] * scale)
    return times_of_operation


def _benchmark(run: Run, operation: str, ranks: int, times: dict[int, float]) -> Iterator[str]:
    share = 2 * (ranks - 1) / ranks if operation == "all_reduce" else (ranks - 1) / ranks
    reduction, root = _BENCHMARKED[operation]
    sizes = sorted(times)
    yield f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: 2(factor) warmup iters: 5 iters: 20"
    yield f"# {operation}_perf"
    yield "# Using devices"
    for rank in range(ranks):
        device, host = rank % run.job.gpus_per_node, f"node{rank // run.job.gpus_per_node:04d}"
        where = f"on {host:>10} device {device:2d} [0x{16 + device:02x}] H100"
        yield f"#  Rank {rank:2d} Group  0 Pid {4200 + rank:6d} {where}"
    yield "#"
    yield "#                                                              out-of-place                       in-place"
    heads = "time   algbw   busbw #wrong     time   algbw   busbw #wrong"
    yield f"#       size         count      type   redop    root     {heads}"
    units = "(us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"
    yield f"#        (B)    (elements)                               {units}"
    speeds = []
    for size in sizes:
        algbw = size / times[size]
        measured = f"{times[size] / 1e3:8.2f} {algbw:7.2f} {algbw * share:7.2f}      0"
        speeds.append(algbw * share)
        yield f"{size:12d} {size // _ELEMENT_BYTES:13d} {'half':>9} {reduction:>7} {root:>7} {measured} {measured}"
    yield "# Out of bounds values : 0 OK"
    yield f"# Avg bus bandwidth    : {sum(speeds) / len(speeds):.4f}"


def _clocks(run: Run, node: int) -> Iterator[str]:
    """Write what `nvidia-smi --query-gpu=… --format=csv -l 1` prints on a node; a slow GPU is hot."""
    slow = {rank: fault.factor for fault in run.faults if fault.kind == "slow_gpu" for rank in fault.ranks or ()}
    yield "timestamp, index, clocks.current.sm [MHz], temperature.gpu, clocks_event_reasons.active"
    first = node * run.job.gpus_per_node
    for second in range(-1, 4 + len(run.job.step_numbers) // 20):
        at = datetime.fromtimestamp(begin_utc_ns(run.job) / 1e9 + second, UTC)
        for rank in range(first, min(first + run.job.gpus_per_node, run.job.ranks)):
            factor = slow.get(rank) or 1.0
            heat, reason = (91, _THERMAL_SLOWDOWN) if rank in slow else (64, _NO_REASON)
            time = f"{at:%Y/%m/%d %H:%M:%S}.{at.microsecond // 1000:03d}"
            yield f"{time}, {rank - first}, {round(_CLOCK_MHZ / factor)} MHz, {heat}, {reason:#018x}"


def _debug_log(run: Run) -> Iterator[str]:
    """Write the lines of each rank: InfiniBand with GPUDirect RDMA, TCP where a fault slows the network."""
    kinds = {fault.kind for fault in run.faults}
    slow_ranks = {rank for fault in run.faults if fault.kind == "slow_link" for rank in fault.ranks or ()}
    ranks, per_node = run.job.ranks, run.job.gpus_per_node
    for rank in range(ranks):
        device, host = rank % per_node, f"node{rank // per_node:04d}"
        head = f"{host}:{4200 + rank}:{4300 + rank} [{device}] NCCL INFO "
        is_tcp = "slow_collective" in kinds or rank in slow_ranks
        yield f"{head}NCCL version 2.21.5+cuda12.4"
        if is_tcp:
            yield f"{head}NET/OFI Failed to initialize: No eligible providers were found"
            yield f"{head}Failed to initialize any NET plugin"
            yield f"{head}NET/Socket : Using [0]ib0:[redacted]<0>"
        else:
            yield f"{head}NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:[redacted]<0>"
        yield f"{head}Using network {'Socket' if is_tcp else 'IB'}"
        member = f"rank {rank} nranks {ranks} cudaDev {device} nvmlDev {device} busId {16 + device:x}000"
        yield f"{head}ncclCommInitRank comm 0x7f00{rank:04x} {member} commId 0x5fcb6fb3ea6b206b - Init COMPLETE"
        target = (rank + 1) % ranks
        for channel in range(_CHANNELS if ranks > 1 else 0):
            edge = f"{head}Channel {channel:02d}/0 : {rank}[{device}] -> {target}[{target % per_node}] "
            if is_tcp or target in slow_ranks:
                yield f"{edge}[send] via NET/Socket/0"
            elif target // per_node == rank // per_node:
                yield f"{edge}via P2P/CUMEM/read"
            else:
                yield f"{edge}[send] via NET/IB/0/GDRDMA"
