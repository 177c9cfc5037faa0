"""Batches of a Kineto trace: events classified as activities, calls, ranges, operators and backward links."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import compress
from operator import attrgetter, not_
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw, Struct, field

from jitter.core.bandwidth import element_bytes, size_of_input
from jitter.core.names.kernels import is_collective, parse_operation
from jitter.core.numeric.arrays import Bools, Codes, Ints
from jitter.core.schema import BACKWARD, CALLS, OPERATORS, RANGES
from jitter.readers import Batch, make_batch
from jitter.readers.chrome_trace import INVALID
from jitter.readers.columns import CaptureTimes, columns_of_records
from jitter.readers.kineto.columns import (
    CallArgs,
    EventBuffer,
    GpuArgs,
    NameTable,
    Times,
    correlations,
    integer_column,
    integers,
    join_values,
    nullable_int64,
    parse_int,
    parse_microseconds,
    parse_shape,
    select,
)
from jitter.readers.kineto.events import (
    CATEGORIES,
    FOREIGN_DEVICES,
    KIND_BY_CATEGORY,
    KIND_BY_TYPE,
    NULL,
    RECORD_PARAM_COMMS,
    Event,
    is_module_or_frame,
)
from jitter.readers.kineto.metadata import ProcessTable

_NUMBERS: Final = re.compile(r"\s*\[\s*(\d{1,10}(?:\s*,\s*\d{1,10})*)\s*\]\s*")
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
    except INVALID:
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
        sizes = _numbers_in(listed) if isinstance(listed, str) else listed
        if isinstance(sizes, list | tuple) and all(type(size) is int and size >= 0 for size in sizes):
            if len(set(sizes)) > 1:
                return False, max(sizes) * len(sizes) / sum(sizes)
        elif isinstance(listed, str) and len(set(re.findall(r"\d+", listed))) > 1:
            return False, None
    return True, None


def _ranks(listed: object) -> tuple[int, ...] | None:
    """Return the ranks of "[0, 1, 2]"; None for a shortened list ("[0, 1, ...]") or an empty one."""
    ranks = _numbers_in(listed) if isinstance(listed, str) else listed if isinstance(listed, list) else None
    is_possible = bool(ranks) and all(type(rank) is int and 0 <= rank < 2**31 for rank in ranks or ())
    return tuple(ranks or ()) if is_possible else None


@lru_cache(1024)  # there are few groups, with up to thousands of ranks each
def _numbers_in(listed: str) -> tuple[int, ...] | None:
    match = _NUMBERS.fullmatch(listed)
    return None if match is None else tuple(int(number) for number in match[1].split(","))


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
        stated = correlations(args)
        marker = names.number(_MARKER)
        if marker in gathered.names or _MARKER in map(attrgetter("kind"), args):
            markers = [
                name == marker or arguments.kind == _MARKER
                for name, arguments in zip(gathered.names, args, strict=True)
            ]
            keep = keep & ~np.array(markers)
        keep = keep & ~self._repeated(times, (gathered.names, devices, streams, stated))
        chosen = None if keep.all() else keep
        start_ns, end_ns = times.start_ns[keep], times.end_ns[keep]
        device = integer_column(select(devices, chosen), pa.int32())
        correlation = integer_column(select(stated, chosen), pa.int64())
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
        numbers = np.full(len(self._gathered), -1, np.int32)
        numbers[list(self._comms)] = np.arange(len(self._comms))
        return columns_of_records(list(self._comms.values()), numbers[keep])

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


_LAUNCHES_NOTHING: Final = frozenset(
    {
        *("aten::view", "aten::view_as", "aten::as_strided", "aten::as_strided_", "aten::_reshape_alias"),
        *("aten::t", "aten::transpose", "aten::transpose_", "aten::permute", "aten::expand", "aten::expand_as"),
        *("aten::detach", "aten::detach_", "detach", "detach_", "aten::alias", "aten::_unsafe_view"),
        *("aten::slice", "aten::select", "aten::narrow", "aten::squeeze", "aten::unsqueeze", "aten::unbind"),
        *("aten::split", "aten::chunk", "aten::flatten", "aten::set_", "aten::resize_", "aten::result_type"),
        *("aten::empty", "aten::empty_like", "aten::empty_strided", "aten::is_pinned", "aten::lift_fresh"),
    }
)
"""Operators that only make or view tensors. Where one of them copies, an operator inside it launches the copy."""
_LONG_NS: Final = 50_000
"""Duration from which such an operator is read: it may explain a gap between launches."""
_MOST_PURE: Final = 1_024
"""Operators that launch nothing, collected before the long ones are chosen: more would not stay in the cache."""
_SHORTEST_NS: Final = 1_000
"""Shortest duration of an operator that launches anything: a launching call takes longer."""
_LINKS_AT_ONCE: Final = 16_384
_name = attrgetter("name")
_duration = attrgetter("dur")
Processes = Callable[[Sequence[int | None]], Codes]


class OperatorBuffer:
    """Collects operators (`cpu_op`), modules and frames of the program (`python_function`) until they fill a batch."""

    def __init__(self) -> None:
        self._gathered = EventBuffer()
        self._is_module: list[bool] = []
        self._pure: list[Event] = []
        """Operators that launch nothing, of which the long ones are read."""

    def __len__(self) -> int:
        return len(self._gathered)

    def add_operators(self, events: Sequence[Event], names: NameTable) -> None:
        """Add events that are operators, without short ones that launch nothing: they are about half of all."""
        texts = list(map(_name, events))
        if isinstance(texts[0], str):
            is_pure = list(map(_LAUNCHES_NOTHING.__contains__, texts))
            self._pure += compress(events, is_pure)
            events = list(compress(events, map(not_, is_pure)))
            texts = list(map(_name, events))
            if len(self._pure) >= _MOST_PURE:
                self._add_long(names)
        self._add(events, names.of(texts))

    def _add_long(self, names: NameTable) -> None:
        """Add the long ones of the operators that launch nothing: all at once, for speed."""
        pure, self._pure = self._pure, []
        if pure:
            durations, _ = parse_microseconds([join_values(list(map(_duration, pure)))])
            events = [pure[row] for row in np.flatnonzero(durations >= _LONG_NS).tolist()]
            self._add(events, names.of(list(map(_name, events))))

    def _add(self, events: Sequence[Event], names: Sequence[int]) -> None:
        self._gathered.add(events, names, with_args=False)
        self._is_module += [False] * len(events)

    def add_modules(self, events: Sequence[Event], names: NameTable) -> None:
        """Add those of the Python functions that are modules or frames of the program."""
        texts = [name if isinstance(name := event.name, str) else names.text_of(name) for event in events]
        # few are: choose without running Python code for each
        modules = list(compress(events, map(is_module_or_frame, texts)))
        if modules:
            self._gathered.add(modules, names.of([event.name for event in modules]), with_args=False)
            self._is_module += [True] * len(modules)

    def batch(self, processes: Processes, capture: CaptureTimes, names: NameTable) -> Batch | None:
        """Return the rows with a possible time; None for none. Call once."""
        self._add_long(names)
        gathered = self._gathered
        if not len(gathered):
            return None
        times = gathered.times()
        keep = times.has_start & times.has_end & (times.end_ns - times.start_ns >= _SHORTEST_NS)
        keep = capture.are_possible(times.start_ns, times.end_ns, keep, keep)
        rows = pa.array(np.flatnonzero(keep))
        columns = [
            pa.array(processes(gathered.pids())).take(rows),
            integer_column(gathered.tids(), pa.int64()).take(rows),
            pa.array(gathered.names, pa.int32()).take(rows),
            pa.array(np.array(self._is_module, np.bool_)).take(rows),
            pa.array(times.start_ns[keep]),
            pa.array(times.end_ns[keep]),
        ]
        return Batch("operators", pa.record_batch(columns, schema=OPERATORS))


class PassLinks:
    """Collects the flow events (`fwdbwd`) from forward operators to their backward operators."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._parts: list[Ints] = []
        """(5, events) of those before: whether each is a start, its flow, its process as in `_pids`, thread, time."""
        self._texts: dict[str, int] = {}
        """Numbers of flows whose id is no number from 0 up: all negative."""
        self._pids: dict[int | None, int] = {}

    def add(self, events: Sequence[Event]) -> None:
        """Add flow events, in any order."""
        self._events += events
        if len(self._events) >= _LINKS_AT_ONCE:
            self._decode()

    def _decode(self) -> None:
        """Turn the events into numbers, which take a tenth of the memory."""
        events, self._events = self._events, []
        at_ns, is_known = parse_microseconds([join_values([event.ts for event in events])])
        thread = integer_column([parse_int(event.tid) for event in events], pa.int64())
        is_known &= np.array([type(event.id) in (int, str) for event in events]) & thread.is_valid().to_numpy(False)
        columns = (
            [event.ph == "s" for event in events],
            [self._number(event.id) for event in events],
            [self._pids.setdefault(parse_int(event.pid), len(self._pids)) for event in events],
            thread.fill_null(0).to_numpy(),
            at_ns,
        )
        self._parts.append(np.stack([np.array(column, np.int64)[is_known] for column in columns]))

    def _number(self, flow: object) -> int:
        if type(flow) is int and 0 <= flow < 2**63:
            return flow
        return -1 - self._texts.setdefault(str(flow), len(self._texts))

    def batch(self, processes: Processes) -> Batch | None:
        """Return a row for each flow whose both ends are recorded; None if there are none."""
        if self._events:
            self._decode()
        if not self._parts:
            return None
        starts, number, pid, thread, at_ns = np.concatenate(self._parts, axis=1)
        process = processes(list(self._pids))[pid]
        order = np.lexsort((at_ns, number, process))
        first, second = order[:-1], order[1:]
        joined = (number[first] == number[second]) & (process[first] == process[second])
        joined &= starts[first] > starts[second]
        first, second = first[joined], second[joined]
        if not len(first):
            return None
        columns = [process[second], thread[second], at_ns[second], thread[first], at_ns[first]]
        return Batch("backward", pa.record_batch([pa.array(column) for column in columns], schema=BACKWARD))


BATCH_ROWS: Final = 16_384
_MEMORY: Final = frozenset(CATEGORIES["memory"])
_OPERATORS: Final = frozenset({"cpu_op", "Operator"})
_PARAMS: Final = Raw(b'"%s"' % RECORD_PARAM_COMMS)
_LABELS: Final = (Raw(b'"process_name"'), Raw(b'"process_labels"'))
_TEXT: Final = re.compile(rb'"(?:name|labels)"\s*:\s*"([^"]*)"')
_category = attrgetter("cat")
# old traces have operators and user ranges in one category
_OPERATOR: Final = re.compile(r".*::|\w+Backward\d*$|record_param_comms$")
_PADDLE_SUFFIX: Final = re.compile(r"\[\d{1,12}\.\d{3} [mu]s\]$")
"""Paddle adds the duration to each name: `matmul[0.031 ms]`."""
_BACKEND: Final = re.compile(r"(?:nccl|gloo|mpi|ucc):")


class KinetoBatches:
    """Builds batches from events; `problems` states what was left out."""

    def __init__(self, *, is_paddle: bool = False) -> None:
        self._is_paddle = is_paddle
        self.names = NameTable(_PADDLE_SUFFIX if is_paddle else None)
        self.processes = ProcessTable()
        self.activities = 0
        """Number of GPU activities in the batches."""
        self.foreign_devices: set[str] = set()
        """Devices whose activities are not read; only noted before the first GPU activity."""
        self.times = CaptureTimes()
        self._gpu = ActivityBuffer()
        self._late = ActivityBuffer()
        self._late_ids: list[int] = []
        self._calls = EventBuffer()
        self._ranges = EventBuffer()
        self._operators = OperatorBuffer()
        self._links = PassLinks()
        self._texts: list[str] = []
        self._collectives: set[int] = set()
        self._named = 0
        self._params: dict[int, CollectiveArgs] = {}
        self._same: dict[CollectiveArgs, CollectiveArgs] = {}
        self._untimed: Counter[str] = Counter()
        self._endless = 0
        self._duplicates = 0

    def add(self, events: list[Event]) -> Iterator[Batch]:
        """Add events; yield the batches that are full."""
        if type(events[0]) is Event:  # then all events of the list are
            self._note_foreign(events)
            self._note_params(events)
            self._note_labels(events)
            self._take(events, _category, KIND_BY_CATEGORY)
        else:
            self._take(events, type, KIND_BY_TYPE)
        yield from self._flush(BATCH_ROWS)

    def finish(self) -> Iterator[Batch]:
        """Yield the remaining rows."""
        yield from self._flush(0)
        links = self._links.batch(self._processes)
        if links is not None:
            yield links

    def _flush(self, least: int) -> Iterator[Batch]:
        """Yield the rows of the kinds of which at least so many are held."""
        if max(len(self._gpu), len(self._calls)) >= least:
            yield from self._flush_calls()  # before activities: calls decide the process of a GPU
        if len(self._ranges) >= least:
            yield from self._flush_ranges()
        if len(self._operators) >= least:
            operators, self._operators = self._operators, OperatorBuffer()
            batch = operators.batch(self._processes, self.times, self.names)
            if batch is not None:
                yield batch
        if len(self._gpu) >= least:
            activities, self._gpu = self._gpu, ActivityBuffer()
            yield from self._activities(activities)
        if len(self._late) >= least:
            yield from self._flush_late()

    def problems(self) -> list[str]:
        """Return what was left out or is unknown, one sentence each."""
        sentences = [f"{count:,} {what} without a possible time were left out" for what, count in self._untimed.items()]
        if self._endless:
            sentences.append(f"{self._endless:,} calls have no possible duration: their ends are unknown")
        if self._duplicates:
            sentences.append(f"{self._duplicates:,} GPU activities were recorded twice; each was taken once")
        if self.names.invalid:
            sentences.append(f"{self.names.invalid:,} names are not valid UTF-8: their invalid bytes were replaced")
        return sentences + self.processes.problems()

    def _take(self, events: list[Event], key: Callable[[Event], object], kind_of: dict[object, str]) -> None:
        # most events are not needed: choose without running Python code for each
        keys = list(map(key, events))
        wanted: dict[str, set[object]] = {}
        for event_key in kind_of.keys() & set(keys):
            kind = kind_of[event_key]
            wanted.setdefault("kernel" if kind == "memory" else kind, set()).add(event_key)  # in one order
        events_of_kind = {
            kind: list(compress(events, map(chosen_keys.__contains__, keys))) for kind, chosen_keys in wanted.items()
        }
        if "kernel" in events_of_kind:
            self._add_gpu(events_of_kind["kernel"])
        if calls := events_of_kind.get("call"):
            self._calls.add(calls, self.names.of(list(map(_name, calls))), with_args=True)
        if "operator" in events_of_kind:
            self._operators.add_operators(events_of_kind["operator"], self.names)
        if "module" in events_of_kind:
            self._operators.add_modules(events_of_kind["module"], self.names)
        if "pass link" in events_of_kind:
            self._links.add(events_of_kind["pass link"])
        if "range" in events_of_kind or "old operator" in events_of_kind:
            self._add_ranges(events_of_kind.get("range", []), events_of_kind.get("old operator", []))

    def _note_foreign(self, events: list[Event]) -> None:
        if not self.activities:
            categories = {event.cat or "" for event in events}
            categories |= {category.partition("_")[0] for category in categories}
            self.foreign_devices.update(FOREIGN_DEVICES[category] for category in categories & FOREIGN_DEVICES.keys())

    def _note_params(self, events: list[Event]) -> None:
        if _PARAMS not in map(_name, events):
            return
        for event in events:
            if event.name == _PARAMS and event.cat in _OPERATORS:
                external, collective_args = parse_collective_args(bytes(event.args))
                if external is not None and collective_args is not None:
                    self._params.setdefault(external, self._same.setdefault(collective_args, collective_args))

    def _note_labels(self, events: list[Event]) -> None:
        for event in events:
            if event.cat is None and event.name in _LABELS:
                for text in _TEXT.findall(bytes(event.args)):
                    self.processes.label(parse_int(event.pid), text.decode("utf-8", "replace"))

    def _add_gpu(self, events: list[Event]) -> None:
        names = self.names.of(list(map(_name, events)))
        for number in range(self._named, len(self.names.listed)):
            if is_collective(self.names.listed[number]):
                self._collectives.add(number)
        self._named = len(self.names.listed)
        collectives = self._collectives
        comms: dict[int, CollectiveArgs] = {}
        late: list[int] = []
        rows = [row for row, name in enumerate(names) if name in collectives]
        for row in rows:
            external, collective_args = parse_collective_args(bytes(events[row].args))
            if collective_args is None and external is not None:
                collective_args = self._params.get(external)
                if collective_args is None:
                    late.append(row)
                    self._late_ids.append(external)
            if collective_args is not None:
                comms[row] = collective_args
        is_memory = [event.cat in _MEMORY for event in events]
        if late:
            self._late.add([events[p] for p in late], [names[p] for p in late], [is_memory[p] for p in late], {})
            here = sorted(set(range(len(events))) - set(late))
            comms = {new: comms[old] for new, old in enumerate(here) if old in comms}
            events, names, is_memory = ([column[p] for p in here] for column in (events, names, is_memory))  # type: ignore[assignment]
        self._gpu.add(events, names, is_memory, comms)

    def _add_ranges(self, annotations: list[Event], operators: list[Event]) -> None:
        texts = [self.names.text_of(event.name) for event in annotations]
        chosen = [(event, text) for event, text in zip(annotations, texts, strict=True) if not _BACKEND.match(text)]
        for event in operators:
            text = self.names.text_of(event.name)
            if self._is_paddle or _OPERATOR.match(text):
                self._operators.add_operators([event], self.names)
            elif not _BACKEND.match(text):
                chosen.append((event, text))
        self._ranges.add([event for event, _ in chosen], [0] * len(chosen), with_args=False)
        self._texts += [text for _, text in chosen]

    def _possible(self, times: Times, valid: Bools, what: str) -> Bools:
        """Return which rows have a plausible time."""
        possible = self.times.are_possible(times.start_ns, times.end_ns, valid, times.has_end)
        if not possible.all():
            self._untimed[what] += int((~possible).sum())
        return possible

    def _flush_late(self) -> Iterator[Batch]:
        """Yield collectives whose parameters came after them in the trace."""
        late, self._late = self._late, ActivityBuffer()
        ids, self._late_ids = self._late_ids, []
        known = {at - len(late): self._params[external] for at, external in enumerate(ids) if external in self._params}
        late.add([], [], [], known)
        yield from self._activities(late)

    def _activities(self, gathered: ActivityBuffer) -> Iterator[Batch]:
        if not len(gathered):
            return
        times = gathered.times()
        keep = self._possible(times, times.has_start & times.has_end, "GPU activities")
        batch = gathered.batch(times, keep, self.processes, self.names)
        self.activities += batch.rows.num_rows
        self._duplicates += gathered.duplicates
        if batch.rows.num_rows:
            yield batch

    def _flush_calls(self) -> Iterator[Batch]:
        calls, self._calls = self._calls, EventBuffer()
        if not len(calls):
            return
        times = calls.times()
        keep = self._possible(times, times.has_start, "calls")
        chosen = None if keep.all() else keep
        self._endless += int((keep & ~times.has_end).sum())
        process = self._processes(select(calls.pids(), chosen))
        args = calls.args(CallArgs)
        correlation = integer_column(select(correlations(args), chosen), pa.int64())
        starts = times.start_ns[keep]
        numbers = correlation.fill_null(-1).to_numpy(zero_copy_only=False)
        for process_number in np.unique(process).tolist():
            self.processes.called(process_number, numbers[process == process_number], starts[process == process_number])
        if any(one.rank is not None for one in args):
            for process_number, rank in zip(process.tolist(), select([one.rank for one in args], chosen), strict=True):
                self.processes.state_rank(process_number, rank)
        columns = [
            pa.array(process),
            integer_column(select(calls.tids(), chosen), pa.int64()),
            pa.array(select(calls.names, chosen), pa.int32()),
            pa.array(starts),
            nullable_int64(times.end_ns[keep], times.has_end[keep]),
            correlation,
        ]
        yield Batch("calls", pa.record_batch(columns, schema=CALLS))

    def _flush_ranges(self) -> Iterator[Batch]:
        ranges, self._ranges = self._ranges, EventBuffer()
        texts, self._texts = self._texts, []
        if not len(ranges):
            return
        times = ranges.times()
        keep = self._possible(times, times.has_start, "ranges")
        chosen = None if keep.all() else keep
        columns = [
            pa.array(self._processes(select(ranges.pids(), chosen))),
            integer_column(select(ranges.tids(), chosen), pa.int64()),
            pa.array(select(texts, chosen), pa.string()),
            pa.array(times.start_ns[keep]),
            nullable_int64(times.end_ns[keep], times.has_end[keep]),
        ]
        yield Batch("ranges", pa.record_batch(columns, schema=RANGES))

    def _processes(self, pids: Sequence[int | None]) -> Codes:
        process_of_pid = {pid: self.processes.of(pid) for pid in dict.fromkeys(pids)}
        if len(process_of_pid) == 1:
            return np.full(len(pids), next(iter(process_of_pid.values())), dtype=np.int32)
        return np.array([process_of_pid[pid] for pid in pids], dtype=np.int32)
