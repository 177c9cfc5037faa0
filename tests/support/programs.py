"""Programs of a few operations, their collectives and steps, made by hand."""

import numpy as np

from jitter.analysis.execution.program import Operation, Program
from jitter.analysis.execution.rules import Rules, Wait
from jitter.analysis.execution.step_times import StepArrays

COMPUTE, COLLECTIVE, MEMORY, SYNC = range(4)
NCCL = "ncclDevKernel_{}_Sum_bf16_RING_LL"
SEND = "ncclDevKernel_SendRecv"


def program(words: str, thread: int = 0) -> Program:
    """`k` is a kernel, `K` one on lane 2, `s` a call that waits; on lane 1 `a` and `g` are of all, `p` is of two."""
    kinds = {
        "k": Operation("kernel", COMPUTE, 0, thread),
        "K": Operation("beside", COMPUTE, 2, thread),
        "a": Operation(NCCL.format("AllReduce"), COLLECTIVE, 1, thread),
        "g": Operation(NCCL.format("AllGather"), COLLECTIVE, 1, thread),
        "p": Operation(SEND, COLLECTIVE, 1, thread),
        "s": Operation("cudaStreamSynchronize", SYNC, -1, thread),
    }
    signature = (words, b"")
    return Program(tuple(kinds[word] for word in words), {signature: np.arange(len(words))}, signature)


def rules(words: str, waits: tuple[Wait, ...] = (), queue: int | None = None) -> Rules:
    return Rules(waits, np.zeros(len(words), np.int64), queue, 0.0, 0.0)


def step_of(ranks: list[int], start: list[list[float]], end: list[list[float]]) -> StepArrays:
    """(operations, ranks): launched 10 µs before they start, as they are by an idle host."""
    starts, ends = np.array(start, float), np.array(end, float)
    return StepArrays(np.array(ranks), ~np.isnan(starts), starts, ends, starts - 10_000, starts - 5_000)
