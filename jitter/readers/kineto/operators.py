"""Operators, modules, Python frames and links between forward and backward pass, as batches of few of the events."""

from collections.abc import Callable, Sequence
from itertools import compress
from operator import attrgetter, not_
from typing import Final

import numpy as np
import pyarrow as pa

from jitter.core.numeric.arrays import Codes, Ints
from jitter.core.schema import BACKWARD, OPERATORS
from jitter.readers import Batch
from jitter.readers.columns import CaptureTimes
from jitter.readers.kineto.columns import (
    EventBuffer,
    NameTable,
    integer_column,
    join_values,
    parse_int,
    parse_microseconds,
)
from jitter.readers.kineto.events import Event, is_module_or_frame

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
