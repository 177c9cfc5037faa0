"""Rows of XLA's profiler, from either form of a recording: activities of GPUs, calls and annotations, operators."""

import re
from array import array
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from jitter.core.errors import UnreadableTraceError
from jitter.core.names.kernels import is_collective
from jitter.readers import Batch, Recording, make_batch
from jitter.readers.columns import look_up, parse_integer
from jitter.readers.protobuf import MOST_ROWS, RowBatches
from jitter.readers.xplane.replica_groups import ReplicaGroups

GPU: Final = re.compile(r"/device:GPU:(\d{1,9})")
"""Name of a GPU's plane."""
HOST: Final = re.compile(r"/host:(?:CPU|CUPTI|ROCTRACER)")
_TPU: Final = "/device:TPU:"
STREAM: Final = re.compile(r"Stream ?#?\d*")
"""Lines that xprof derives from the streams' (`Steps`, `XLA Ops`) are other views of the same activities."""
WANTED: Final = (
    *("correlation_id", "step_num", "hlo_op", "program_id", "tf_op", "name", "_src"),
    *("kernel_details", "memcpy_details", "memset_details"),
)
"""Statistics of events that are read."""
_NO_GPU_HINT: Final = (
    "jitter compares what GPUs do: record on GPUs, with JAX's CUDA or ROCm plug-in (`jitter record jax`)"
)
_SHAPE: Final = re.compile(r"grid:(\d{1,10}),(\d{1,10}),(\d{1,10}) block:(\d{1,10}),(\d{1,10}),(\d{1,10})")
_SIZE: Final = re.compile(r"(?:size|num_bytes):(\d{1,18})")
_ONLY_MODULE: Final = "XlaModule:"
"""What recent versions state as the framework's operation; the operation itself is the statistic `name`."""


class XlaRows(RowBatches):
    """Collects the rows of a recording's events. Statistics are integers or texts that state them."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self.groups = ReplicaGroups()
        self._calls = [array("q") for _ in range(4)]
        """Correlation, thread, begin and return of each call."""
        self._of_hlo = [array("q") for _ in range(3)]
        """Correlation, name of the HLO operation, name of the framework's operation of each kernel; -1: none."""

    def add_host(self, thread: int, name: str, start_ns: int, end_ns: int, stats: Mapping[str, Any]) -> None:
        """Add an event of a host thread."""
        correlation = parse_integer(stats.get("correlation_id"))
        if correlation is not None:
            self.add("calls", 0, thread, self.name(name), start_ns, end_ns, correlation)
            for column, value in zip(self._calls, (correlation, thread, start_ns, end_ns), strict=True):
                column.append(value)
        elif isinstance(step := stats.get("step_num"), str | int):
            self.add("ranges", 0, thread, f"{name}#step_num={step}#", start_ns, end_ns)
        elif "_src" not in stats and not name.startswith("$"):  # neither the runtime's own nor a Python frame
            self.add("ranges", 0, thread, name, start_ns, end_ns)

    def add_gpu(
        self, device: int, stream: int, name: str, start_ns: int, end_ns: int, stats: Mapping[str, Any]
    ) -> None:
        """Add an event of a GPU's stream."""
        shape: tuple[int | None, ...] = (None,) * 6
        size = None
        copied = stats.get("memcpy_details", stats.get("memset_details"))
        is_memory = copied is not None or name.lower().startswith(("memcpy", "memset"))
        if is_memory and isinstance(copied, str):
            size = _size(copied)
        elif isinstance(details := stats.get("kernel_details"), str):
            shape = _shape(details)
        correlation = parse_integer(stats.get("correlation_id")) or None
        number = self.name(name)
        group = None
        if not is_memory and isinstance(operation := stats.get("hlo_op"), str) and is_collective(name):
            group = self.groups.of(parse_integer(stats.get("program_id")), operation)
        sizes = size, *(group or (None, None))
        self.add("activities", 0, device, stream, number, is_memory, start_ns, end_ns, correlation, *shape, *sizes)
        framework = stats.get("tf_op")
        if framework in (None, _ONLY_MODULE) and stats.get("name") != name:
            framework = stats.get("name")
        operations = [stats.get("hlo_op"), framework]
        if correlation is not None and any(operations):
            names = [self.name(each) if isinstance(each, str) and each else -1 for each in operations]
            for column, value in zip(self._of_hlo, (correlation, *names), strict=True):
                column.append(value)

    def finish(self, path: Path, planes: Collection[str]) -> Iterator[Batch]:
        """Yield the remaining rows. Raises UnreadableTraceError for a file without a GPU among its `planes`."""
        if not any(GPU.fullmatch(plane) for plane in planes):
            is_tpu = any(plane.startswith(_TPU) for plane in planes)
            what = "holds activities of TPUs, which jitter does not read" if is_tpu else "no GPU activity"
            raise UnreadableTraceError(f"{path}: {what}", _NO_GPU_HINT)
        yield from self._operators()
        yield from self.flush()

    def _operators(self) -> Iterator[Batch]:
        """Yield the HLO operation, and around it the framework's, of each call that launched a kernel."""
        calls, of_hlo = (
            [np.frombuffer(column, np.int64) for column in columns] for columns in (self._calls, self._of_hlo)
        )
        order = np.argsort(calls[0], kind="stable")
        _, first = np.unique(of_hlo[0], return_index=True)  # a graph's launch has the operation of its first kernel
        call = look_up(calls[0][order], order, of_hlo[0][first])
        launched, call = first[call >= 0], call[call >= 0]
        for names, is_module in ((of_hlo[2][launched], True), (of_hlo[1][launched], False)):
            for at in np.array_split(np.flatnonzero(names >= 0), max(1, len(names) // MOST_ROWS)):
                rows = call[at]
                columns = {
                    "process": pa.array(np.zeros(len(at), np.int32)),
                    "thread": pa.array(calls[1][rows]),
                    "name": pa.array(names[at].astype(np.int32)),
                    "is_module": pa.array(np.full(len(at), is_module)),
                    "start_ns": pa.array(calls[2][rows]),
                    "end_ns": pa.array(calls[3][rows]),
                }
                if len(at):
                    yield make_batch("operators", columns)


@lru_cache(maxsize=65536)
def _shape(details: str) -> tuple[int | None, ...]:
    match = _SHAPE.search(details)
    return (None,) * 6 if match is None else tuple(map(int, match.groups()))


@lru_cache(maxsize=65536)
def _size(details: str) -> int | None:
    match = _SIZE.search(details)
    return int(match[1]) if match else None
