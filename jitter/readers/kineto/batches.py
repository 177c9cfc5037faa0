"""Batches of a Kineto trace: classify events as activities, calls and ranges, and build batches of them."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from operator import attrgetter
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Raw

from jitter.core.names.kernels import is_collective
from jitter.core.numeric.arrays import Bools, Codes
from jitter.core.schema import CALLS, RANGES
from jitter.readers import Batch
from jitter.readers.columns import CaptureTimes
from jitter.readers.kineto.collectives import CollectiveArgs, parse_collective_args
from jitter.readers.kineto.columns import (
    CallArgs,
    EventBuffer,
    NameTable,
    Times,
    integer_column,
    integers,
    nullable_int64,
    select,
)
from jitter.readers.kineto.events import (
    CATEGORIES,
    FOREIGN_DEVICES,
    KIND_BY_CATEGORY,
    KIND_BY_TYPE,
    RECORD_PARAM_COMMS,
    Event,
)
from jitter.readers.kineto.gpu_activities import ActivityBuffer
from jitter.readers.kineto.operators import OperatorBuffer, PassLinks
from jitter.readers.kineto.processes import ProcessTable

BATCH_ROWS: Final = 16_384
_MEMORY: Final = frozenset(CATEGORIES["memory"])
_OPERATORS: Final = frozenset({"cpu_op", "Operator"})
_PARAMS: Final = Raw(b'"%s"' % RECORD_PARAM_COMMS)
_category = attrgetter("cat")
_name = attrgetter("name")
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
        correlation = integer_column(
            select(integers([args.correlation for args in calls.args(CallArgs)]), chosen), pa.int64()
        )
        starts = times.start_ns[keep]
        numbers = correlation.fill_null(-1).to_numpy(zero_copy_only=False)
        for process_number in np.unique(process).tolist():
            self.processes.called(process_number, numbers[process == process_number], starts[process == process_number])
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
