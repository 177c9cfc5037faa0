"""Programs of a few operations, their collectives and steps, made by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitter.analysis.alignment.program import Operation, Program
from jitter.analysis.execution.dependencies import Dependencies, Wait
from jitter.analysis.execution.job_arrays import CarriedState, JobArrays, job_arrays, unknown_state
from jitter.analysis.execution.step_times import StepTimes

COMPUTE, COLLECTIVE, MEMORY, SYNC = range(4)
NCCL = "ncclDevKernel_{}_Sum_bf16_RING_LL"
SEND = "ncclDevKernel_SendRecv"


def program(words: str, thread: int = 0) -> Program:
    """`k` is a kernel, `K` one on stream 2, `s` a call that waits; on 1 `a`, `g` and `u` are of all, `p` is of two."""
    kinds = {
        "k": Operation("kernel", COMPUTE, 0, thread),
        "K": Operation("beside", COMPUTE, 2, thread),
        "a": Operation(NCCL.format("AllReduce"), COLLECTIVE, 1, thread),
        "g": Operation(NCCL.format("AllGather"), COLLECTIVE, 1, thread),
        "u": Operation("ncclDevKernel_Generic_1", COLLECTIVE, 1, thread),
        "p": Operation(SEND, COLLECTIVE, 1, thread),
        "s": Operation("cudaStreamSynchronize", SYNC, -1, thread),
    }
    signature = (words, b"")
    return Program(tuple(kinds[word] for word in words), {signature: np.arange(len(words))}, signature)


def dependencies(words: str, waits: tuple[Wait, ...] = (), queue: int | None = None) -> Dependencies:
    return Dependencies(waits, np.zeros(len(words), np.int64), queue, 0.0, 0.0)


def job_of(words: str, ranks: int, waits: tuple[Wait, ...] = (), queue: int | None = None) -> JobArrays:
    """A job of one team."""
    return job_arrays([ranks], {0: program(words)}, {0: dependencies(words, waits, queue)})


def step_of(start: Any, end: Any, call: Any = None, back: Any = None) -> StepTimes:
    """(operations, ranks) each; unless told, launched 10 µs before they start, as they are by an idle host."""
    starts, ends = np.array(start, float), np.array(end, float)
    calls = starts - 10_000 if call is None else np.array(call, float)
    backs = starts - 5_000 if back is None else np.array(back, float)
    operations, ranks = starts.shape
    row = np.arange(ranks) * operations
    times = (np.ascontiguousarray(values.T).ravel() for values in (starts, ends, calls, backs))
    return StepTimes(np.zeros(ranks, np.int64), row, *times)


def no_state(ranks: int, queue: int | None = None, streams: int = 3) -> CarriedState:
    return unknown_state(ranks, streams, 1, queue or 0)


def by_operation(values: np.ndarray, ranks: int) -> np.ndarray:
    """(operations, ranks) of (cells,)."""
    return values.reshape(ranks, -1).T


def state_of(stream_end: Sequence[Any], back: Sequence[Any], pending: Sequence[Any]) -> CarriedState:
    """Of (streams, ranks), (threads, ranks) and (places, ranks)."""
    return CarriedState(*(np.ascontiguousarray(np.array(values, float).T) for values in (stream_end, back, pending)))
