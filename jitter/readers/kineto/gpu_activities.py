"""GPU activities of a trace: collected, then built into batches of `schema.ACTIVITIES`."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

from jitter.core.numeric.arrays import Bools
from jitter.core.schema import ACTIVITIES
from jitter.readers import Batch, make_batch
from jitter.readers.kineto.collectives import CollectiveArgs, parse_collective_args
from jitter.readers.kineto.columns import (
    EventBuffer,
    GpuArgs,
    NameTable,
    Times,
    integer_column,
    integers,
    parse_int,
    parse_shape,
    select,
)
from jitter.readers.kineto.events import NULL, Event
from jitter.readers.kineto.processes import ProcessTable

_MARKER: Final = "Marker"
"""Name or kind of entries that PyTorch for ROCm before 2.1.2 wrote between the activities of a stream."""
_COARSE_NS: Final = 1_000
"""Longest duration in ns of two kernels rounded to one microsecond; longer equal rows are duplicates."""


class ActivityBuffer:
    """Collects GPU activities until they fill a batch."""

    def __init__(self) -> None:
        self._gathered = EventBuffer()
        self._is_memory: list[bool] = []
        self._comms: dict[int, CollectiveArgs] = {}
        self.duplicates = 0
        """Number of duplicate rows left out."""

    def __len__(self) -> int:
        return len(self._gathered)

    def add(
        self, events: Sequence[Event], names: Sequence[int], is_memory: Sequence[bool], comms: dict[int, CollectiveArgs]
    ) -> None:
        """Add events; `comms` are collective arguments by index into `events`."""
        first = len(self._gathered)
        self._gathered.add(events, names, with_args=True)
        self._is_memory += is_memory
        self._comms.update((first + position, collective_args) for position, collective_args in comms.items())

    def times(self) -> Times:
        """Return the times of the activities."""
        return self._gathered.times()

    def batch(self, times: Times, keep: Bools, processes: ProcessTable, names: NameTable) -> Batch:
        """Return the batch of the rows where `keep` is True. Call once."""
        gathered = self._gathered
        args = gathered.args(GpuArgs)
        # kernels with other names may be collectives, too
        custom = [
            row for row, arguments in enumerate(args) if arguments.collective is not NULL and row not in self._comms
        ]
        for row, text in zip(custom, gathered.args_of(custom), strict=True):
            collective_args = parse_collective_args(text)[1]
            if collective_args is not None:
                self._comms[row] = collective_args
        devices = integers(list(map(attrgetter("device"), args)))
        if None in devices:
            devices = [pid if gpu is None else gpu for gpu, pid in zip(devices, gathered.pids(), strict=True)]
        streams = list(map(attrgetter("stream"), args))
        if set(map(type, streams)) != {int}:
            numbers = integers(streams)
            streams = [
                tid if number is None and not isinstance(stream, str) else number
                for stream, number, tid in zip(streams, numbers, gathered.tids(), strict=True)
            ]
        correlations = integers(list(map(attrgetter("correlation"), args)))
        marker = names.number(_MARKER)
        if marker in gathered.names or _MARKER in map(attrgetter("kind"), args):
            markers = [
                name == marker or arguments.kind == _MARKER
                for name, arguments in zip(gathered.names, args, strict=True)
            ]
            keep = keep & ~np.array(markers)
        keep = keep & ~self._repeated(times, (gathered.names, devices, streams, correlations))
        chosen = None if keep.all() else keep
        start_ns, end_ns = times.start_ns[keep], times.end_ns[keep]
        device = integer_column(select(devices, chosen), pa.int32())
        correlation = integer_column(select(correlations, chosen), pa.int64())
        grids = _axes(select(list(map(attrgetter("grid"), args)), chosen))
        blocks = _axes(select(list(map(attrgetter("block"), args)), chosen))
        columns: dict[str, pa.Array] = {
            "process": _process(device, correlation, start_ns, processes),
            "device": device,
            "stream": integer_column(select(streams, chosen), pa.int64()),
            "name": pa.array(select(gathered.names, chosen), pa.int32()),
            "is_memory": pa.array(select(self._is_memory, chosen), pa.bool_()),
            "start_ns": pa.array(start_ns),
            "end_ns": pa.array(end_ns),
            "correlation": correlation,
        }
        for axis, letter in enumerate("xyz"):
            columns[f"grid_{letter}"] = grids[axis]
            columns[f"block_{letter}"] = blocks[axis]
        columns |= self._collective_columns(keep)
        if any(self._is_memory):
            copied = [
                parse_int(arguments.copied) if is_memory else None
                for arguments, is_memory in zip(args, self._is_memory, strict=True)
            ]
            of_copies = integer_column(select(copied, chosen), pa.int64())
            columns["size_bytes"] = pc.coalesce(columns.get("size_bytes", of_copies), of_copies)
        return make_batch("activities", columns)

    def _collective_columns(self, keep: Bools) -> dict[str, pa.Array]:
        if not self._comms:
            return {}
        collective_args = list(self._comms.values())
        numbers = np.full(len(self._gathered), -1, np.int32)
        numbers[list(self._comms)] = np.arange(len(collective_args))
        numbers = numbers[keep]
        rows = pa.array(numbers, mask=numbers < 0)
        return {
            name: pa.array(
                [getattr(arguments, name) for arguments in collective_args], ACTIVITIES.field(name).type
            ).take(rows)
            for name in CollectiveArgs._fields
        }

    def _repeated(self, times: Times, rest: Sequence[Sequence[object]]) -> Bools:
        """Return which rows repeat an earlier row in every field."""
        repeated = np.zeros(len(times.start_ns), dtype=bool)
        if (np.diff(np.sort(times.start_ns)) != 0).all():
            return repeated
        _, first, counts = np.unique(times.start_ns, return_inverse=True, return_counts=True)
        is_fine = (times.start_ns % 1000 != 0) | (times.end_ns - times.start_ns > _COARSE_NS)
        seen = set()
        for row in np.flatnonzero((counts[first] > 1) & is_fine).tolist():
            words = (int(times.start_ns[row]), int(times.end_ns[row]), *(column[row] for column in rest))
            repeated[row] = words in seen
            seen.add(words)
        self.duplicates += int(repeated.sum())
        return repeated


def _axes(texts: Sequence[Raw]) -> list[pa.Array]:
    """Return three columns of shapes given as JSON; null where absent or too large."""
    words = list(map(bytes, texts))
    numbers = {
        word: number for number, word in enumerate(dict.fromkeys(words))
    }  # there are many kernels and few shapes
    rows = pa.array(np.fromiter(map(numbers.__getitem__, words), np.int32, len(words)))
    shapes = [parse_shape(word) for word in numbers]
    fit = [[size if size is not None and 0 <= size < 2**31 else None for size in shape] for shape in shapes]
    return [pa.array([shape[axis] for shape in fit], pa.int32()).take(rows) for axis in range(3)]


def _process(device: pa.Array, correlation: pa.Array, start_ns: Any, processes: ProcessTable) -> pa.Array:
    process_of_row = np.zeros(len(device), dtype=np.int32)
    numbers = correlation.fill_null(-1).to_numpy(zero_copy_only=False)
    for gpu in device.unique():
        if gpu.is_valid:
            rows = device.fill_null(-1).to_numpy(zero_copy_only=False) == gpu.as_py()
        else:
            rows = device.is_null().to_numpy(zero_copy_only=False)
        process_of_row[rows] = processes.of_gpu(gpu.as_py(), numbers[rows], start_ns[rows])
    return pa.array(process_of_row)
