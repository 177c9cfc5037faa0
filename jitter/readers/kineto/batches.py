"""Batches of a Kineto trace: events classified as activities, calls, ranges, operators and backward links."""

import re
from collections import Counter, deque
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

from jitter.core.arrow import coded
from jitter.core.bandwidth import element_bytes, size_of_input
from jitter.core.names.kernels import is_collective, parse_operation
from jitter.core.numeric.arrays import Bools, Codes, Ints
from jitter.core.schema import BACKWARD, LONG_OPERATION_NS, PROFILER, SHORTEST_LAUNCH_NS
from jitter.readers import Batch, make_batch
from jitter.readers.columns import columns_of_records
from jitter.readers.json_document import INVALID
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
    parse_int,
    parse_microseconds,
    parse_shape,
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


def _devices(held: EventBuffer, args: Sequence[GpuArgs]) -> list[int | None]:
    """Return the device of each activity, else the process of its row, which is the device in old traces."""
    devices = integers([one.device for one in args])
    return (
        [pid if gpu is None else gpu for gpu, pid in zip(devices, held.pids(), strict=True)]
        if None in devices
        else devices
    )


def _streams(held: EventBuffer, args: Sequence[GpuArgs]) -> list[int | None]:
    """Return the stream of each activity, else the thread of its row; None for a stream that is no number."""
    stated = [one.stream for one in args]
    if set(map(type, stated)) == {int}:
        return stated
    return [
        tid if number is None and not isinstance(stream, str) else number
        for stream, number, tid in zip(stated, integers(stated), held.tids(), strict=True)
    ]


def _are_markers(held: EventBuffer, args: Sequence[GpuArgs], marker: int | None) -> Bools:
    """Return which rows are `_MARKER`s; `marker` is the number of that name, if it has appeared."""
    return np.array([name == marker or one.kind == _MARKER for name, one in zip(held.names, args, strict=True)])


def _are_repeated(times: Times, rest: Sequence[Sequence[object]]) -> Bools:
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
    return repeated


def _axes(texts: Sequence[Raw]) -> list[pa.Array]:
    """Return three columns of shapes given as JSON; null where absent or too large."""
    shape_of_row = pa.array(map(bytes, texts), pa.binary()).dictionary_encode()  # many kernels, few shapes
    rows, shapes = shape_of_row.indices, map(parse_shape, shape_of_row.dictionary.to_pylist())
    fit = [[size if size is not None and 0 <= size < 2**31 else None for size in shape] for shape in shapes]
    return [pa.array([shape[axis] for shape in fit], pa.int32()).take(rows) for axis in range(3)]


def _process(
    pid: pa.Array, device: pa.Array, correlation: pa.Array, start_ns: Ints, processes: ProcessTable
) -> pa.Array:
    process_of_row = np.zeros(len(device), dtype=np.int32)
    numbers = correlation.fill_null(-1).to_numpy(zero_copy_only=False)
    (pids, of_pid), (devices, of_device) = coded(pid), coded(device)
    tracks = of_pid.astype(np.int64) * len(devices) + of_device
    for track in np.unique(tracks).tolist():
        rows = tracks == track
        key = pids[track // len(devices)], devices[track % len(devices)]
        process_of_row[rows] = processes.of_gpu(key, numbers[rows], start_ns[rows])
    return pa.array(process_of_row)


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
_BUILT_IN: Final = re.compile(r"^<(built-in .+?)(?: object)?(?: at 0x[0-9a-fA-F]+)?>")
"""A function that is no Python code, with the address of its object, which other ranks have elsewhere."""
_name = attrgetter("name")
_duration = attrgetter("dur")


def _long(events: Sequence[Event]) -> list[Event]:
    """Return the events that may explain a gap between launches."""
    durations, _ = parse_microseconds([join_values(list(map(_duration, events)))])
    return [events[row] for row in np.flatnonzero(durations >= LONG_OPERATION_NS).tolist()]


class PassLinks:
    """Collects the flow events (`fwdbwd`) from forward operators to their backward operators."""

    def __init__(self) -> None:
        self._parts: list[Ints] = []
        """(5, events): whether each is a start, its flow, its process as in `_pids`, thread, time."""
        self._flows: dict[object, int] = {}
        """Numbers of flows whose id is no number from 0 up: all negative."""
        self._pids: dict[int | None, int] = {}

    def add(self, events: Sequence[Event]) -> None:
        """Add flow events, in any order, as numbers, which take a tenth of their memory."""
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
        return -1 - self._flows.setdefault(str(flow), len(self._flows))

    def batch(self, processes: Callable[[Sequence[int | None]], Codes]) -> Batch | None:
        """Return a row for each flow whose both ends are recorded; None if there are none."""
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
_BATCHED: Final = ("calls", "ranges", "operators", "gpu", "late")
_BY_PROFILER: Final = frozenset(("Activity Buffer Request", "Buffer Flush", "Instrumentation", "Resource"))
"""Overhead of the profiler; CUDA's own, as loading a function at its first use, is not."""
_MOST_OVERHEADS: Final = 10_000
"""Times of the profiler that are held; traces have a few."""
_MOST_CALLERS: Final = 8
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
        self._held = {kind: EventBuffer() for kind in (*_BATCHED, "overhead")}
        """Events by kind; `late` are collectives whose parameters have not come yet."""
        self._callers = Counter[tuple[int, int | None]]()
        """Calls of the GPU's interface by process and thread."""
        self._links = PassLinks()
        self._collectives: set[int] = set()
        self._named = 0
        self._params: dict[Any, CollectiveArgs] = {}
        """By External id."""
        self._same: dict[CollectiveArgs, CollectiveArgs] = {}
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
        if len(self._held["overhead"]) and len({process for process, _ in self._callers}) == 1:
            yield self._overhead(self._held["overhead"])
        links = self._links.batch(self._processes)
        if links is not None:
            yield links

    def _flush(self, least: int) -> Iterator[Batch]:
        """Yield the rows of the kinds of which at least so many are held."""
        for kind, batch_of in (
            ("calls", self._calls),  # before activities: calls decide the process of a GPU
            ("ranges", self._ranges),
            ("operators", self._operators),
            ("gpu", self._activities),
            ("late", self._activities),
        ):
            held = self._held[kind]
            if len(held) and max(len(held), len(self._held["gpu"]) if kind == "calls" else 0) >= least:
                self._held[kind] = EventBuffer()
                batch = batch_of(held)
                if batch.rows.num_rows:
                    yield batch

    def problems(self) -> list[str]:
        """Return what was left out or is unknown, one sentence each."""
        sentences = []
        if self._endless:
            sentences.append(f"{self._endless:,} calls have no possible duration: their ends are unknown")
        if self._duplicates:
            sentences.append(f"{self._duplicates:,} GPU activities were recorded twice; each was taken once")
        if self.names.invalid:
            sentences.append(f"{self.names.invalid:,} names are not valid UTF-8: their invalid bytes were replaced")
        return sentences + self.processes.problems()

    def _take(self, events: list[Event], key: Callable[[Event], object], kind_of: dict[object, str]) -> None:
        keys, events_of_kind = list(map(key, events)), dict[str | None, list[Event]]()
        list_of_key: dict[object, list[Event]] = {}
        for event_key in set(keys):
            kind = kind_of.get(event_key)
            list_of_key[event_key] = events_of_kind.setdefault("kernel" if kind == "memory" else kind, [])
        # without running Python code for each event
        deque(map(list.append, map(list_of_key.__getitem__, keys), events), maxlen=0)
        if "kernel" in events_of_kind:
            self._add_gpu(events_of_kind["kernel"])
        if calls := events_of_kind.get("call"):
            self._held["calls"].add(calls, self.names.of(list(map(_name, calls))), with_args=True)
        if operators := events_of_kind.get("operator"):
            self._add_operators(operators)
        if overhead := events_of_kind.get("overhead"):
            by_profiler = [one for one in overhead if self.names.text_of(one.name) in _BY_PROFILER]
            del by_profiler[max(_MOST_OVERHEADS - len(self._held["overhead"]), 0) :]
            self._held["overhead"].add(by_profiler, [PROFILER] * len(by_profiler), with_args=False)
        if functions := events_of_kind.get("module"):
            texts = self.names.texts_of(list(map(_name, functions)))
            # few are: choose without running Python code for each
            self._hold_operators(list(compress(functions, map(is_module_or_frame, texts))), is_module=True)
            self._add_built_in(functions, texts)
        if links := events_of_kind.get("pass link"):
            self._links.add(links)
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
        rows = [row for row, name in enumerate(names) if name in self._collectives]
        stated: list[Any] = [None] * len(events)  # arguments, or the External id of the operator that will state them
        for row in rows:
            external, collective_args = parse_collective_args(bytes(events[row].args))
            stated[row] = self._params.get(external, external) if collective_args is None else collective_args
        rows_of_kind: list[list[Any]] = [
            events,
            names,
            list(zip([event.cat in _MEMORY for event in events], stated, strict=True)),
        ]
        if any(is_late := [type(args) is int for args in stated]):
            self._held["late"].add(*(list(compress(column, is_late)) for column in rows_of_kind), with_args=True)
            rows_of_kind = [list(compress(column, map(not_, is_late))) for column in rows_of_kind]
        self._held["gpu"].add(*rows_of_kind, with_args=True)

    def _add_operators(self, events: Sequence[Event]) -> None:
        """Add operators, without short ones that launch nothing: they are about half of all."""
        texts = list(map(_name, events))
        if isinstance(texts[0], str):
            is_pure = list(map(_LAUNCHES_NOTHING.__contains__, texts))
            pure = list(compress(events, is_pure))
            self._hold_operators(_long(pure))
            events = list(compress(events, map(not_, is_pure)))
        self._hold_operators(events)

    def _add_built_in(self, functions: Sequence[Event], texts: Sequence[str]) -> None:
        """Add long functions that are no Python code, without the addresses of their objects."""
        built_in = _long([event for event, text in zip(functions, texts, strict=True) if text.startswith("<built-in ")])
        plain = [_BUILT_IN.sub(r"\1", self.names.text_of(event.name)) for event in built_in]
        self._held["operators"].add(built_in, self.names.of(plain), [True] * len(built_in), with_args=False)

    def _hold_operators(self, events: Sequence[Event], *, is_module: bool = False) -> None:
        names = self.names.of(list(map(_name, events)))
        self._held["operators"].add(events, names, [is_module] * len(events), with_args=False)

    def _add_ranges(self, annotations: list[Event], operators: list[Event]) -> None:
        texts = [self.names.text_of(event.name) for event in annotations]
        chosen = [(event, text) for event, text in zip(annotations, texts, strict=True) if not _BACKEND.match(text)]
        for event in operators:
            text = self.names.text_of(event.name)
            if self._is_paddle or _OPERATOR.match(text):
                self._add_operators([event])
            elif not _BACKEND.match(text):
                chosen.append((event, text))
        self._held["ranges"].add([event for event, _ in chosen], [text for _, text in chosen], with_args=False)

    def _activities(self, held: EventBuffer) -> Batch:
        times, args = held.times(), held.args(GpuArgs)
        is_memory, stated = map(list, zip(*held.extra, strict=True))
        comms: list[Any] = [self._params.get(one) if type(one) is int else one for one in stated]
        # kernels with other names may be collectives, too
        custom = [row for row, one in enumerate(args) if one.collective is not NULL and comms[row] is None]
        for row, text in zip(custom, held.args_of(custom), strict=True):
            comms[row] = parse_collective_args(text)[1]
        devices, streams, correlation = _devices(held, args), _streams(held, args), correlations(args)
        keep = np.ones(len(held), np.bool_)
        marker = self.names.number(_MARKER)
        if marker in held.names or any(one.kind == _MARKER for one in args):
            keep &= ~_are_markers(held, args, marker)
        is_repeated = _are_repeated(times, (held.names, devices, streams, correlation))
        self._duplicates += int(is_repeated.sum())
        keep &= ~is_repeated
        columns: dict[str, pa.Array] = {
            "device": integer_column(devices, pa.int32()),
            "stream": integer_column(streams, pa.int64()),
            "name": pa.array(held.names, pa.int32()),
            "is_memory": pa.array(is_memory, pa.bool_()),
            **times.columns(),
            "correlation": integer_column(correlation, pa.int64()),
        }
        for part, texts in (("grid", [one.grid for one in args]), ("block", [one.block for one in args])):
            columns |= zip((f"{part}_x", f"{part}_y", f"{part}_z"), _axes(texts), strict=True)
        rows = [row for row, comm in enumerate(comms) if comm is not None]
        if rows:
            number = np.full(len(held), -1, np.int32)
            number[rows] = np.arange(len(rows))
            columns |= columns_of_records([comms[row] for row in rows], number)
        if any(is_memory):
            copied = [parse_int(one.copied) if is_copy else None for one, is_copy in zip(args, is_memory, strict=True)]
            sizes = integer_column(copied, pa.int64())
            columns["size_bytes"] = pc.coalesce(columns.get("size_bytes", sizes), sizes)
        pids = integer_column(held.pids(), pa.int64())
        if not keep.all():
            mask = pa.array(keep)
            pids, columns = pids.filter(mask), {name: column.filter(mask) for name, column in columns.items()}
        columns["process"] = _process(
            pids, columns["device"], columns["correlation"], times.start_ns[keep], self.processes
        )
        self.activities += len(pids)
        return make_batch("activities", columns)

    def _calls(self, held: EventBuffer) -> Batch:
        times, args = held.times(), held.args(CallArgs)
        self._endless += int((times.has_start & ~times.has_end).sum())
        columns = self._host_columns(held, times)
        columns["name"] = pa.array(held.names, pa.int32())
        columns["correlation"] = integer_column(correlations(args), pa.int64())
        process = columns["process"].to_numpy()
        numbers = columns["correlation"].fill_null(-1).to_numpy(zero_copy_only=False)
        for number in np.unique(process).tolist():
            self.processes.called(number, numbers[process == number], times.start_ns[process == number])
            for thread in columns["thread"].filter(pa.array(process == number)).value_counts().to_pylist():
                self._callers[number, thread["values"]] += thread["counts"]
        if any(one.rank is not None for one in args):
            for number, one in zip(process.tolist(), args, strict=True):
                self.processes.state_rank(number, one.rank)
        return make_batch("calls", columns)

    def _ranges(self, held: EventBuffer) -> Batch:
        return make_batch(
            "ranges", self._host_columns(held, held.times()) | {"text": pa.array(held.names, pa.string())}
        )

    def _operators(self, held: EventBuffer) -> Batch:
        times = held.times()
        columns = self._host_columns(held, times)
        columns |= {"name": pa.array(held.names, pa.int32()), "is_module": pa.array(held.extra, pa.bool_())}
        is_long = pa.array(times.has_end & (times.end_ns - times.start_ns >= SHORTEST_LAUNCH_NS))
        return make_batch("operators", {name: column.filter(is_long) for name, column in columns.items()})

    def _overhead(self, held: EventBuffer) -> Batch:
        """Return the profiler's own work on the threads that call most: which one it held up is not recorded."""
        times, callers = held.times(), [caller for caller, _ in self._callers.most_common(_MOST_CALLERS)]
        process, thread = zip(*callers, strict=True)
        rows, count = np.repeat(np.arange(len(held)), len(callers)), len(held)
        columns = {
            "process": pa.array(np.tile(np.array(process, np.int32), count)),
            "thread": pa.array(list(thread) * count, pa.int64()),
            **{name: column.take(pa.array(rows)) for name, column in times.columns().items()},
            "name": pa.array(np.full(len(rows), self.names.of([PROFILER])[0], np.int32)),
            "is_module": pa.array(np.zeros(len(rows), np.bool_)),
        }
        return make_batch("operators", columns)

    def _host_columns(self, held: EventBuffer, times: Times) -> dict[str, pa.Array]:
        """Return process, thread, start and end of the rows."""
        thread = integer_column(held.tids(), pa.int64())
        return {"process": pa.array(self._processes(held.pids())), "thread": thread, **times.columns()}

    def _processes(self, pids: Sequence[int | None]) -> Codes:
        process_of_pid = {pid: self.processes.of(pid) for pid in dict.fromkeys(pids)}
        if len(process_of_pid) == 1:
            return np.full(len(pids), next(iter(process_of_pid.values())), dtype=np.int32)
        return np.array([process_of_pid[pid] for pid in pids], dtype=np.int32)
