"""GPU activities of a trace: gathered, then made into batches of `schema.ACTIVITIES`."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from jitter.readers import Batch
from jitter.readers.kineto_columns import Gathered, Times, as_int, integers, kept
from jitter.readers.kineto_comms import Comms
from jitter.readers.kineto_json import Event
from jitter.readers.kineto_numbers import Bools
from jitter.readers.kineto_processes import Processes
from jitter.schema import ACTIVITIES

_NO_SHAPE: Final = (None, None, None)
_COARSE_NS: Final = 1_000
"""Two kernels of a graph may be rounded to the same whole microsecond; longer ones that agree in all are one."""


class Activities:
    """GPU activities, until there are enough for a batch."""

    def __init__(self) -> None:
        self._gathered = Gathered()
        self._is_memory: list[bool] = []
        self._comms: dict[int, Comms] = {}
        self.duplicates = 0
        """Activities recorded twice and left out once."""

    def __len__(self) -> int:
        return len(self._gathered)

    def add(
        self, events: Sequence[Event], names: Sequence[int], is_memory: Sequence[bool], comms: dict[int, Comms]
    ) -> None:
        """Take in some events; `comms` by their position among these."""
        first = len(self._gathered)
        self._gathered.add(events, names, with_args=True)
        self._is_memory += is_memory
        self._comms.update((first + position, told) for position, told in comms.items())

    def times(self) -> Times:
        """When they were."""
        return self._gathered.times()

    def batch(self, times: Times, keep: Bools, processes: Processes) -> Batch:
        """Their rows, those to be kept. The activities are then to be thrown away."""
        gathered = self._gathered
        args = gathered.gpu_args()
        devices = [pid if one.device is None else one.device for one, pid in zip(args, gathered.pids(), strict=True)]
        streams = [
            one.stream if type(one.stream) is int else tid if one.stream is None else as_int(one.stream)
            for one, tid in zip(args, gathered.tids(), strict=True)
        ]
        correlations = [one.correlation for one in args]
        keep = keep & ~self._repeated(times, (gathered.names, devices, streams, correlations))
        chosen = None if keep.all() else keep
        start_ns, end_ns = times.start_ns[keep], times.end_ns[keep]
        device = integers(kept(devices, chosen), pa.int32())
        correlation = integers(kept(correlations, chosen), pa.int64())
        grids = [one.grid or _NO_SHAPE for one in kept(args, chosen)]
        blocks = [one.block or _NO_SHAPE for one in kept(args, chosen)]
        columns: dict[str, pa.Array] = {
            "process": _process(device, correlation, start_ns, processes),
            "device": device,
            "stream": integers(kept(streams, chosen), pa.int64()),
            "name": pa.array(kept(gathered.names, chosen), pa.int32()),
            "is_memory": pa.array(kept(self._is_memory, chosen), pa.bool_()),
            "start_ns": pa.array(start_ns),
            "end_ns": pa.array(end_ns),
            "correlation": correlation,
        }
        for axis, letter in enumerate("xyz"):
            columns[f"grid_{letter}"] = integers([shape[axis] for shape in grids], pa.int32())
            columns[f"block_{letter}"] = integers([shape[axis] for shape in blocks], pa.int32())
        columns |= self._collective_columns(chosen)
        fields = [field for field in ACTIVITIES if field.name in columns]
        return Batch("activities", pa.record_batch([columns[field.name] for field in fields], schema=pa.schema(fields)))

    def _collective_columns(self, chosen: Bools | None) -> dict[str, pa.Array]:
        if not self._comms:
            return {}
        told = kept([self._comms.get(row) for row in range(len(self._gathered))], chosen)
        return {
            name: pa.array([None if one is None else getattr(one, name) for one in told], ACTIVITIES.field(name).type)
            for name in Comms._fields
        }

    def _repeated(self, times: Times, rest: Sequence[Sequence[int | None]]) -> Bools:
        """Which rows say again, in every word, what one before them said."""
        repeated = np.zeros(len(times.start_ns), dtype=bool)
        starts, first, counts = np.unique(times.start_ns, return_inverse=True, return_counts=True)
        if len(starts) == len(repeated):
            return repeated
        is_fine = (times.start_ns % 1000 != 0) | (times.end_ns - times.start_ns > _COARSE_NS)
        seen = set()
        for row in np.flatnonzero((counts[first] > 1) & is_fine).tolist():
            words = (int(times.start_ns[row]), int(times.end_ns[row]), *(column[row] for column in rest))
            repeated[row] = words in seen
            seen.add(words)
        self.duplicates += int(repeated.sum())
        return repeated


def _process(device: pa.Array, correlation: pa.Array, start_ns: Any, processes: Processes) -> pa.Array:
    found = np.zeros(len(device), dtype=np.int32)
    numbers = correlation.fill_null(-1).to_numpy(zero_copy_only=False)
    for one in device.unique():
        if one.is_valid:
            rows = device.fill_null(-1).to_numpy(zero_copy_only=False) == one.as_py()
        else:
            rows = device.is_null().to_numpy(zero_copy_only=False)
        found[rows] = processes.of_gpu(one.as_py(), numbers[rows], start_ns[rows])
    return pa.array(found)
