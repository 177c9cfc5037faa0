"""A simulated serving job: tensor-parallel ranks that prefill and decode, as PyTorch traces with known truth."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.support.kineto_traces import Row, call, kernel, step, write

LAYERS = 6
RANKS = 4
Kernels = Mapping[str, tuple[tuple[str, float], ...]]
KERNELS: Kernels = {
    "decode": (("rms_norm", 12.0), ("gemv_skinny", 40.0), ("paged_attention", 30.0)),
    "decode_more": (("rms_norm", 14.0), ("gemm_64x64_splitk", 90.0), ("reduce_splitk", 9.0), ("paged_attention", 60.0)),
    "prefill": (("rms_norm", 90.0), ("rope", 30.0), ("gemm_128x256", 1400.0), ("flash_attention", 700.0)),
}
"""By kind of step, a layer's kernels before its all-reduce, and their times, µs."""
_TRANSFER_US = {"decode": 16.0, "decode_more": 30.0, "prefill": 240.0}
_MARKERS = {
    "vllm": {
        "prefill": "execute_context_4({tokens})_generation_0(0)",
        "decode": "execute_context_0(0)_generation_{requests}({requests})",
        "decode_more": "execute_context_0(0)_generation_64(64)",
    },
    "sglang": {"prefill": "step[EXTEND bs=4 toks={tokens}]", "decode": "step[DECODE bs={requests}]"},
    "trtllm": {
        "prefill": "[Executor] _forward_step {number}: 4 ctx reqs, {tokens} ctx tokens, 0 gen reqs",
        "decode": "[Executor] _forward_step {number}: 0 ctx reqs, 0 ctx tokens, {requests} gen reqs",
    },
    "vllm, unstated": dict.fromkeys(("prefill", "decode"), "execute_model"),
    "profiler": dict.fromkeys(("prefill", "decode"), "ProfilerStep#{number}"),
}
"""By engine and kind, the text of a step's marker; the last two name no kind."""
SEND_RECV = "ncclDevKernel_SendRecv"
TOKENS, REQUESTS = 8192, 32
"""Of a prefill, and of a decoding step."""


@dataclass(frozen=True)
class ServingJob:
    """A job whose steps are `kinds`; compute kernels of `slow_rank` take `factor` times longer in steps of `slow_kind`.

    `slow_kind` may be "both".
    """

    kinds: tuple[str, ...] = ("prefill", *["decode"] * 6) * 4
    engine: str = "vllm"
    slow_rank: int | None = 3
    slow_kind: str = "decode"
    factor: float = 1.3
    noise: float = 0.005
    graphs: bool = True
    """Whether a decode step is one launch of a CUDA graph."""
    kernels: Kernels = field(default_factory=lambda: KERNELS)
    work: tuple[float, ...] = ()
    """By step, how large its batch is and how long it takes, 1 for that of `TOKENS` or `REQUESTS`; empty: all 1."""
    idle_us: tuple[float, ...] = ()
    """By step, how long the engine has no requests before it; empty: never."""
    slow_steps: tuple[int, ...] = ()
    """Steps in which the compute kernels of all ranks take `factor` times longer."""
    shapes: bool = False
    """Whether launch shapes are recorded: they follow the size of the batch."""
    has_axes: bool = True
    """Whether shapes have three axes; else the product of all as the first, as rocprof v1 and v2 record them."""

    @property
    def excess_us(self) -> float:
        """Return how much longer the slow rank computes in a step of the slow kind, without noise."""
        return (self.factor - 1) * LAYERS * sum(us for _, us in self.kernels[self.slow_kind])


def write_serving(folder: Path, job: ServingJob = ServingJob()) -> Path:
    """Write one trace per rank; all clocks are equal."""
    rng = np.random.default_rng(7)
    events: list[list[Row]] = [[] for _ in range(RANKS)]
    gpu, correlation = np.full(RANKS, 2_000.0), 0
    for number, kind in enumerate(job.kinds):
        work = job.work[number] if job.work else 1.0
        # each step begins when the host has read the last one's tokens
        begin = host = gpu + 60 * (1 + 0.05 * rng.random(RANKS)) + (job.idle_us[number] if job.idle_us else 0.0)
        is_graph = job.graphs and kind.startswith("decode")
        launched: list[list[Row]] = [[] for _ in range(RANKS)]
        names = [*(name for name, _ in job.kernels[kind]), "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"]
        for _ in range(LAYERS):
            for at, name in enumerate(names):
                is_first = not launched[0]
                correlation += not is_graph or is_first
                if not is_graph or is_first:
                    host = host + 5
                if at < len(job.kernels[kind]):
                    took = work * job.kernels[kind][at][1] * (1 + job.noise * rng.standard_normal(RANKS))
                    if job.slow_kind in (kind, "both") and job.slow_rank is not None:
                        took[job.slow_rank] *= job.factor
                    if number in job.slow_steps:
                        took *= job.factor
                    start = np.maximum(gpu + 1, host + 4)
                    gpu = start + took
                else:
                    start = np.maximum(gpu + 1, host + 4)
                    gpu = np.full(
                        RANKS, start.max() + work * _TRANSFER_US[kind] * (1 + job.noise * rng.standard_normal())
                    )
                for rank in range(RANKS):
                    times = round(float(start[rank]), 3), round(float(gpu[rank] - start[rank]), 3)
                    further = [1, 1] if job.has_axes else [2**31, 2**31]  # too large to be read
                    shape = {"grid": [round(100 * work) if job.shapes else 100, *further], "block": [256, *further]}
                    launched[rank].append(kernel(name, *times, pid=rank, correlation=correlation, **shape))
                    if not is_graph or is_first:
                        made = "cudaGraphLaunch" if is_graph else "cudaLaunchKernel"
                        launched[rank].append(call(made, round(float(host[rank]) - 5, 3), 4.0, correlation=correlation))
        text = _MARKERS[job.engine][kind].format(
            number=number, tokens=round(TOKENS * work), requests=round(REQUESTS * work)
        )
        for rank in range(RANKS):
            marker = step(ts=round(float(begin[rank]), 3), dur=round(float(gpu[rank] - begin[rank]) + 5, 3), name=text)
            events[rank] += [marker, *launched[rank]]
    folder.mkdir(parents=True, exist_ok=True)
    for rank, of_rank in enumerate(events):
        info = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": RANKS}}
        write(folder / f"rank{rank}.json", of_rank, before=info)
    return folder


@dataclass(frozen=True)
class PipelinedServing:
    """A pipeline of stages of two tensor-parallel ranks, whose hosts begin a batch with the tokens of an earlier one.

    The last stage sends these by the host: no event of another rank shows that it waits for them.
    """

    in_flight: int
    """A batch waits for the tokens of the one so many before."""
    slow_rank: int | None = None
    factor: float = 1.3
    names_groups: bool = True
    steps: int = 24
    stages: int = 4


def write_pipelined_serving(folder: Path, job: PipelinedServing) -> Path:
    """Write one trace per rank; all clocks are equal."""
    rng = np.random.default_rng(7)
    world = 2 * job.stages
    events: list[list[Row]] = [[] for _ in range(world)]
    host, gpu = np.full(world, 1_000.0), np.full(world, 1_000.0)
    tokens: list[float] = []
    correlation = 0

    def launch(rank: int) -> float:
        """Return when what the host launches may start; the call's row is added."""
        nonlocal correlation
        correlation += 1
        host[rank] += 4 * (1 + 0.05 * abs(rng.standard_normal()))
        events[rank].append(call(ts=round(host[rank] - 4, 3), dur=2.8, correlation=correlation))
        return max(gpu[rank] + 1, host[rank] + 1.3)

    def run(rank: int, name: str, start: float, end: float, group: list[int] | None = None) -> None:
        named = {"Process Group Name": str(group), "Process Group Ranks": str(group), "Group size": len(group or ())}
        named |= {"Collective name": "send" if name == SEND_RECV else "allreduce", "In msg nelems": 1 << 20}
        event = kernel(
            name,
            round(start, 3),
            round(end - start, 3),
            pid=rank,
            correlation=correlation,
            grid=[64, 1, 1],
            block=[256, 1, 1],
        )
        event["args"].update(named if group and job.names_groups else {})
        events[rank].append(event)
        gpu[rank] = end

    for number in range(job.steps):
        sent: dict[int, tuple[float, Row]] = {}
        for stage in range(job.stages):
            pair = [2 * stage, 2 * stage + 1]
            begins = {}
            for rank in pair:
                waits = tokens[number - job.in_flight] + 15 if number >= job.in_flight else 0.0
                begins[rank] = host[rank] = max(host[rank], waits)
                host[rank] += 30 * (1 + 0.03 * abs(rng.standard_normal()))
                if stage:
                    start, (sent_at, sending) = launch(rank), sent[rank - 2]
                    end = max(start, sent_at) + 8 * (1 + 0.02 * abs(rng.standard_normal()))
                    run(rank, SEND_RECV, start, end, [rank - 2, rank])
                    sending["dur"] = round(end - sending["ts"], 3)
                    gpu[rank - 2] = max(gpu[rank - 2], end)
            for _ in range(4):
                for name, us in (("rms_norm", 12.0), ("gemv_qkv", 48.0), ("paged_attention", 56.0), ("gemv_o", 32.0)):
                    for rank in pair:
                        start = launch(rank)
                        took = us * (1 + 0.01 * rng.standard_normal()) * (job.factor if rank == job.slow_rank else 1.0)
                        run(rank, name, start, start + took)
                starts = {}
                for rank in pair:
                    starts[rank] = launch(rank)
                    run(rank, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", starts[rank], starts[rank], pair)
                end = max(starts.values()) + 16 * (1 + 0.02 * abs(rng.standard_normal()))
                for rank in pair:
                    events[rank][-1]["dur"], gpu[rank] = round(end - starts[rank], 3), end
            for rank in pair:
                start = launch(rank)
                if stage < job.stages - 1:
                    run(rank, SEND_RECV, start, start, [rank, rank + 2])
                    sent[rank] = start, events[rank][-1]
                else:
                    run(rank, "sample_topk", start, start + 10 * (1 + 0.01 * rng.standard_normal()))
                    correlation += 1
                    waited = round(gpu[rank] + 3 - host[rank], 3)
                    named = "cudaStreamSynchronize"
                    events[rank].append(call(named, round(host[rank], 3), waited, correlation=correlation))
                    host[rank] = gpu[rank] + 3
                events[rank].append(step(number, round(begins[rank], 3), round(host[rank] - begins[rank], 3)))
        tokens.append(host[-2])
    folder.mkdir(parents=True, exist_ok=True)
    for rank, of_rank in enumerate(events):
        info = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}}
        write(folder / f"rank{rank}.json", sorted(of_rank, key=lambda event: float(event["ts"])), before=info)
    return folder
