"""GPU activities of a trace, with the arguments of collectives, built into batches of `schema.ACTIVITIES`."""

import re
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw, Struct, field

from jitter.core.bandwidth import element_bytes, size_of_input
from jitter.core.names.kernels import parse_operation
from jitter.core.numeric.arrays import Bools, Ints
from jitter.core.schema import ACTIVITIES
from jitter.readers import Batch, make_batch
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
from jitter.readers.kineto.metadata import ProcessTable

_RANKS: Final = re.compile(r"\s*\[\s*(\d{1,10}(?:\s*,\s*\d{1,10})*)\s*\]\s*")
_operation: Final = lru_cache(1024)(parse_operation)


class CollectiveArgs(NamedTuple):
    """The columns of a collective; None where the trace does not state them."""

    collective: str | None = None
    message_bytes: int | None = None
    size_bytes: int | None = None
    split_imbalance: float | None = None
    dtype: str | None = None
    group_name: str | None = None
    group_ranks: tuple[int, ...] | None = None
    group_size: int | None = None
    sequence: int | None = None
    source_rank: int | None = None
    destination_rank: int | None = None


class _Args(Struct, gc=False):
    external: Any = field(name="External id", default=None)
    old_external: Any = field(name="external id", default=None)
    name: Any = field(name="Collective name", default=None)
    elements_in: Any = field(name="In msg nelems", default=None)
    elements_out: Any = field(name="Out msg nelems", default=None)
    size: Any = field(name="Group size", default=None)
    split_in: Any = field(name="In split size", default=None)
    split_out: Any = field(name="Out split size", default=None)
    dtype: Any = None
    group: Any = field(name="Process Group Name", default=None)
    group_id: Any = field(name="Process Group ID", default=None)
    ranks: Any = field(name="Process Group Ranks", default=None)
    sequence: Any = field(name="Seq", default=None)
    source: Any = field(name="Src Rank", default=None)
    destination: Any = field(name="Dst Rank", default=None)


_DECODE = msgspec.json.Decoder(_Args).decode


def parse_collective_args(args: bytes) -> tuple[int | None, CollectiveArgs | None]:
    """Return the External id of an event's arguments (JSON) and the collective they describe; None if absent."""
    try:
        fields = _DECODE(args)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, None
    external = _count(fields.external)
    if external is None:
        external = _count(fields.old_external)
    if not isinstance(fields.name, str):
        return external, None
    group = fields.group if fields.group is not None else fields.group_id
    operation = _operation(fields.name)
    message_bytes = _message_bytes(fields)
    group_size = _count(fields.size, most=2**31 - 1) or None
    size_bytes = None if message_bytes is None else size_of_input(operation, message_bytes, group_size)
    is_even, imbalance = _split(fields) if operation == "all_to_all" else (True, None)
    return external, CollectiveArgs(
        collective=operation,
        message_bytes=message_bytes,
        size_bytes=size_bytes if (is_even or imbalance is not None) and (size_bytes or 0) < 2**63 else None,
        split_imbalance=imbalance,
        dtype=fields.dtype if isinstance(fields.dtype, str) and fields.dtype else None,
        group_name=str(group) if isinstance(group, str | int) and group != "" else None,
        group_ranks=_ranks(fields.ranks),
        group_size=group_size,
        sequence=_count(fields.sequence),
        source_rank=_count(fields.source, most=2**31 - 1),
        destination_rank=_count(fields.destination, most=2**31 - 1),
    )


def _message_bytes(args: _Args) -> int | None:
    """Return the bytes of the rank's input buffer; of its output buffer if it has no input (receive, scatter)."""
    elements = _count(args.elements_in) or _count(args.elements_out)
    if elements is None or not isinstance(args.dtype, str):
        return None
    size = element_bytes(args.dtype)
    return None if size is None or elements * size >= 2**63 else elements * size


def _split(args: _Args) -> tuple[bool, float | None]:
    """Return whether an all-to-all's parts are equal, and the largest / mean part if not; None for a shortened list."""
    for listed in (args.split_in, args.split_out):
        sizes = _listed_sizes(listed) if isinstance(listed, str) else listed
        if isinstance(sizes, list | tuple) and all(type(size) is int and size >= 0 for size in sizes):
            if len(set(sizes)) > 1:
                return False, max(sizes) * len(sizes) / sum(sizes)
        elif isinstance(listed, str) and len(set(re.findall(r"\d+", listed))) > 1:
            return False, None
    return True, None


@lru_cache(1024)
def _listed_sizes(listed: str) -> tuple[int, ...] | None:
    match = _RANKS.fullmatch(listed)
    return None if match is None else tuple(int(size) for size in match[1].split(","))


def _ranks(listed: object) -> tuple[int, ...] | None:
    """Return the ranks of "[0, 1, 2]"; None for a shortened list ("[0, 1, ...]") or an empty one."""
    if isinstance(listed, str):
        return _ranks_in(listed)
    return _possible(listed) if isinstance(listed, list) else None


@lru_cache(1024)  # there are few groups, with up to thousands of ranks each
def _ranks_in(listed: str) -> tuple[int, ...] | None:
    match = _RANKS.fullmatch(listed)
    return None if match is None else _possible([int(rank) for rank in match[1].split(",")])


def _possible(ranks: list[object]) -> tuple[int, ...] | None:
    fit = [rank for rank in ranks if type(rank) is int and 0 <= rank < 2**31]
    return tuple(fit) if ranks and len(fit) == len(ranks) else None


def _count(value: object, most: int = 2**63 - 1) -> int | None:
    return value if type(value) is int and 0 <= value <= most else None


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
        pids = integer_column(select(gathered.pids(), chosen), pa.int64())
        columns: dict[str, pa.Array] = {
            "process": _process(pids, device, correlation, start_ns, processes),
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


def _process(
    pid: pa.Array, device: pa.Array, correlation: pa.Array, start_ns: Ints, processes: ProcessTable
) -> pa.Array:
    process_of_row = np.zeros(len(device), dtype=np.int32)
    numbers = correlation.fill_null(-1).to_numpy(zero_copy_only=False)
    pids, of_pid = _coded(pid)
    devices, of_device = _coded(device)
    for track in np.unique(of_pid * len(devices) + of_device).tolist():
        rows = of_pid * len(devices) + of_device == track
        key = pids[track // len(devices)], devices[track % len(devices)]
        process_of_row[rows] = processes.of_gpu(key, numbers[rows], start_ns[rows])
    return pa.array(process_of_row)


def _coded(column: pa.Array) -> tuple[list[int | None], Ints]:
    """Return the distinct values of a column, and for each row the index of its value."""
    encoded = column.dictionary_encode("encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
