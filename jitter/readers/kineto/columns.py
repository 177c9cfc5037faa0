"""Columns of events: JSON values are collected as text and decoded per batch, which is faster than per event."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Raw, Struct, field

from jitter.core.numeric.arrays import Bools, Ints
from jitter.readers.kineto.event_selection import NULL, Event
from jitter.readers.kineto.numbers import join_values, parse_microseconds

_RAWS: Final = msgspec.json.Decoder(list[Raw])
_Args = TypeVar("_Args", bound=Struct)
_ts, _dur, _pid, _tid, _args = map(attrgetter, ("ts", "dur", "pid", "tid", "args"))


class GpuArgs(Struct, gc=False):
    """Arguments of a GPU activity: where it ran and its launch shape."""

    correlation: int | None = None
    device: int | None = None
    stream: int | str | None = None
    grid: Raw = NULL
    block: Raw = NULL
    kind: str | None = None
    copied: int | None = field(name="bytes", default=None)
    collective: Raw = field(name="Collective name", default=NULL)


class CallArgs(Struct, gc=False):
    """Arguments of an API call."""

    correlation: int | None = None


class _AnyGpuArgs(Struct):
    correlation: Any = None
    device: Any = None
    stream: Any = None
    grid: Raw = NULL
    block: Raw = NULL
    kind: Any = None
    copied: Any = field(name="bytes", default=None)
    collective: Raw = field(name="Collective name", default=NULL)


class _AnyCallArgs(Struct):
    correlation: Any = None


class Times(NamedTuple):
    """Starts and ends in ns, and whether each is recorded. An end before its start counts as not recorded."""

    start_ns: Ints
    end_ns: Ints
    has_start: Bools
    has_end: Bools


class EventBuffer:
    """Collects events of one kind until they fill a batch."""

    def __init__(self) -> None:
        self.names: list[int] = []
        self._starts: list[bytes] = []
        self._durations: list[bytes] = []
        self._pids: list[Any] = []
        self._tids: list[Any] = []
        self._args: list[bytes] = []

    def __len__(self) -> int:
        return len(self.names)

    def add(self, events: Sequence[Event], names: Sequence[int], *, with_args: bool) -> None:
        """Add events; `names` are the indices of their names."""
        if not events:
            return
        self.names += names
        self._starts.append(join_values(list(map(_ts, events))))
        self._durations.append(join_values(list(map(_dur, events))))
        self._pids += _shared(list(map(_pid, events)))
        self._tids += _shared(list(map(_tid, events)))
        if with_args:
            self._args.append(b",".join(map(_args, events)))

    def times(self) -> Times:
        """Return the times of the events."""
        start, has_start = parse_microseconds(self._starts)
        duration, has_duration = parse_microseconds(self._durations)
        return Times(start, start + duration, has_start, has_start & has_duration & (duration >= 0))

    def pids(self) -> list[int | None]:
        """Return the process ids; for GPU activities the devices."""
        return _integers(self._pids)

    def tids(self) -> list[int | None]:
        """Return the thread ids; for GPU activities the streams."""
        return _integers(self._tids)

    def gpu_args(self) -> list[GpuArgs]:
        """Return the arguments of GPU activities."""
        try:
            found = _GPU_ARGS.decode(_list(self._args))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            loose = [_lenient(text, _AnyGpuArgs) for text in _RAWS.decode(_list(self._args))]
            return [
                GpuArgs(
                    parse_int(args.correlation),
                    parse_int(args.device),
                    parse_int(args.stream),
                    args.grid,
                    args.block,
                    args.kind if isinstance(args.kind, str) else None,
                    parse_int(args.copied),
                    args.collective,
                )
                for args in loose
            ]
        return [args or _NO_GPU_ARGS for args in found]

    def args_of(self, rows: Sequence[int]) -> list[bytes]:
        """Return the arguments of some events as JSON."""
        found = _RAWS.decode(_list(self._args)) if rows else []
        return [bytes(found[row]) for row in rows]

    def call_args(self) -> list[CallArgs]:
        """Return the arguments of API calls."""
        try:
            found = _CALL_ARGS.decode(_list(self._args))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return [
                CallArgs(parse_int(_lenient(text, _AnyCallArgs).correlation))
                for text in _RAWS.decode(_list(self._args))
            ]
        return [args or _NO_CALL_ARGS for args in found]


_GPU_ARGS: Final = msgspec.json.Decoder(list[GpuArgs | None])
_CALL_ARGS: Final = msgspec.json.Decoder(list[CallArgs | None])
_NO_GPU_ARGS: Final = GpuArgs()
_NO_CALL_ARGS: Final = CallArgs()


def _list(texts: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(texts) + b"]"


def _shared(values: list[Any]) -> list[Any]:
    """Return the values with one object for all integers that are equal.

    A number of its own for each event would drive those just decoded out of the processor's cache.
    """
    if set(map(type, values)) != {int}:
        return values
    seen: dict[int, int] = {}
    return list(map(seen.setdefault, values, values))


def _integers(values: list[Any]) -> list[int | None]:
    return values if set(map(type, values)) == {int} else list(map(parse_int, values))


def _lenient(text: Raw, kind: type[_Args]) -> _Args:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return kind()


def parse_int(value: object) -> int | None:
    """Return the integer in 7, 7.0, "7", "0x7" or "stream 7"; None for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) < 40:
        word = value.split()[-1] if value.strip() else ""
        try:
            return int(word, 0) if word[:2].lower() == "0x" else int(word)
        except ValueError:
            return None
    return None


def parse_shape(text: bytes) -> list[int | None]:
    """Return the three integers of a JSON list, missing ones as 1; three None if it is no such list."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value = None
    if not isinstance(value, list) or not 0 < len(value) <= 3:
        return [None] * 3
    sizes = [parse_int(size) for size in value]
    return [None] * 3 if None in sizes else sizes + [1] * (3 - len(sizes))


def integer_column(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Return a column of integers; values that do not fit the type are null."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, OverflowError):
        most = 2 ** (kind.bit_width - 1)
        return pa.array([None if value is None or not -most <= value < most else value for value in values], kind)


def nullable_int64(values: Ints, valid: Bools) -> pa.Array:
    """Return an int64 column, null where `valid` is False."""
    return pa.array(values, pa.int64(), mask=None if valid.all() else ~valid)


def select(values: Sequence[Any], keep: Bools | None) -> Sequence[Any]:
    """Return the values where `keep` is True; None keeps all."""
    return values if keep is None else [value for value, keeps in zip(values, keep.tolist(), strict=True) if keeps]
