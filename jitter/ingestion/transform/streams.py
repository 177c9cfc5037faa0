"""Streams and GPUs of a recording, numbered in order, and the totals of each GPU."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.numeric.arrays import Bools, Ints
from jitter.ingestion.transform.joins.launch_join import Gpu, GpuUsage


class Stream(NamedTuple):
    """One stream of one GPU of one process."""

    gpu: Gpu
    stream: int | None


class Streams:
    """Number the streams and GPUs of activities, in order of process, device and stream; unknown ones last."""

    def __init__(self, activities: pa.Table) -> None:
        """Number the streams of `activities`; needs the columns `process`, `device` and `stream`."""
        processes, process = _numbered(activities["process"])
        devices, device = _numbered(activities["device"])
        streams, stream = _numbered(activities["stream"])
        both, gpu = _numbered(pa.array(process * len(devices) + device))
        self.gpus = [Gpu(processes[number // len(devices)], devices[number % len(devices)]) for number in both]
        self.gpu_of_row = gpu
        """For each activity the position of its GPU in `gpus`."""
        all_three, self.of_row = _numbered(pa.array(gpu * len(streams) + stream))
        """For each activity the position of its stream in `streams`."""
        self.streams = [
            Stream(self.gpus[number // len(streams)], streams[number % len(streams)]) for number in all_three
        ]

    def uses(self, is_kernel: Bools, is_compute: Bools, start_ns: Ints, end_ns: Ints) -> list[GpuUsage]:
        """Return the totals of each GPU in order, without GPUs that ran no kernel; arrays (activities,)."""
        stream = self.of_row[is_kernel]
        kernels = np.bincount(stream, minlength=len(self.streams)).tolist()
        compute = np.bincount(self.of_row[is_compute], minlength=len(self.streams)).tolist()
        first_ns = np.full(len(self.streams), np.iinfo(np.int64).max)
        np.minimum.at(first_ns, stream, start_ns[is_kernel])
        last_ns = np.full(len(self.streams), np.iinfo(np.int64).min)
        np.maximum.at(last_ns, stream, end_ns[is_kernel])
        uses = []
        for gpu in self.gpus:
            own = [number for number, one in enumerate(self.streams) if one.gpu == gpu and kernels[number]]
            if own:
                main = max(own, key=lambda number: (compute[number], -number))
                uses.append(
                    GpuUsage(
                        gpu,
                        sum(kernels[number] for number in own),
                        sum(compute[number] for number in own),
                        self.streams[main].stream if compute[main] else None,
                        int(first_ns[own].min()),
                        int(last_ns[own].max()),
                    )
                )
        return uses


def _numbered(column: Any) -> tuple[list[Any], Ints]:
    """Return the distinct values in order, null last, and for each row the index of its value."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    bounds = pc.min_max(values)
    if len(values) and values.null_count == 0 and bounds["min"] == bounds["max"]:
        return [bounds["min"].as_py()], np.zeros(len(values), np.int64)
    encoded = values.dictionary_encode("encode")
    found = encoded.dictionary.to_pylist()
    order = sorted(range(len(found)), key=lambda at: (found[at] is None, found[at] or 0))
    positions = np.empty(len(found), np.int64)
    positions[order] = np.arange(len(found))
    return [found[at] for at in order], positions[encoded.indices.to_numpy()]
