"""Batches of a Kineto trace: events classified as activities, calls, ranges, operators and backward links."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from operator import attrgetter, not_
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Raw

from jitter.core.names.kernels import is_collective
from jitter.core.numeric.arrays import Bools, Codes, Ints
from jitter.core.schema import BACKWARD, CALLS, OPERATORS, RANGES
from jitter.readers import Batch
from jitter.readers.columns import CaptureTimes
from jitter.readers.kineto.columns import (
    CallArgs,
    EventBuffer,
    NameTable,
    Times,
    integer_column,
    integers,
    join_values,
    nullable_int64,
    parse_int,
    parse_microseconds,
    select,
)
from jitter.readers.kineto.events import (
    CATEGORIES,
    FOREIGN_DEVICES,
    KIND_BY_CATEGORY,
    KIND_BY_TYPE,
    RECORD_PARAM_COMMS,
    Event,
    is_module_or_frame,
)
from jitter.readers.kineto.gpu_activities import ActivityBuffer, CollectiveArgs, parse_collective_args
from jitter.readers.kineto.metadata import ProcessTable

_LAUNCHES_NOTHING: Final = frozenset(
    {
        *("aten::view", "aten::view_as", "aten::as_strided", "aten::as_strided_", "aten::_reshape_alias"),
        *("aten::t", "aten::transpose", "aten::transpose_", "aten::permute", "aten::expand", "aten::expand_as"),
        *(
            "aten::detach",
            "aten::detach_",
            "detach",
            "detach_",
            "aten::alias",
            "aten::_unsafe_view",
            "aten::lift_fresh",
        ),
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
_BACKEND: Final = re.compile(r"(?:nccl|gloo|mpi|ucc):")


class KinetoBatches:
    """Builds batches from events; `problems` states what was left out."""

    def __init__(self) -> None:
        self.names = NameTable()
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
        if len(self._gpu) >= BATCH_ROWS or len(self._calls) >= BATCH_ROWS:
            yield from self._flush_calls()  # before activities: calls decide the process of a GPU
        if len(self._ranges) >= BATCH_ROWS:
            yield from self._flush_ranges()
        if len(self._operators) >= BATCH_ROWS:
            yield from self._flush_operators()
        if len(self._gpu) >= BATCH_ROWS:
            yield from self._flush_gpu()
        if len(self._late) >= BATCH_ROWS:
            yield from self._flush_late()

    def finish(self) -> Iterator[Batch]:
        """Yield the remaining rows."""
        yield from self._flush_calls()
        yield from self._flush_ranges()
        yield from self._flush_operators()
        links = self._links.batch(self._processes)
        if links is not None:
            yield links
        yield from self._flush_gpu()
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
            prefixes = {(event.cat or "").partition("_")[0] for event in events}
            self.foreign_devices.update(FOREIGN_DEVICES[prefix] for prefix in prefixes & FOREIGN_DEVICES.keys())

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
            if _OPERATOR.match(text):
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

    def _flush_gpu(self) -> Iterator[Batch]:
        yield from self._activities(self._gpu)
        self._gpu = ActivityBuffer()

    def _flush_late(self) -> Iterator[Batch]:
        """Yield collectives whose parameters came after them in the trace."""
        collective_args = {
            position: self._params[external]
            for position, external in enumerate(self._late_ids)
            if external in self._params
        }
        self._late.add(
            [], [], [], {position - len(self._late): parameters for position, parameters in collective_args.items()}
        )
        yield from self._activities(self._late)
        self._late = ActivityBuffer()
        self._late_ids = []

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
        correlation = integer_column(select(integers([one.correlation for one in args]), chosen), pa.int64())
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

    def _flush_operators(self) -> Iterator[Batch]:
        operators, self._operators = self._operators, OperatorBuffer()
        batch = operators.batch(self._processes, self.times, self.names)
        if batch is not None:
            yield batch

    def _processes(self, pids: Sequence[int | None]) -> Codes:
        process_of_pid = {pid: self.processes.of(pid) for pid in dict.fromkeys(pids)}
        if len(process_of_pid) == 1:
            return np.full(len(pids), next(iter(process_of_pid.values())), dtype=np.int32)
        return np.array([process_of_pid[pid] for pid in pids], dtype=np.int32)
