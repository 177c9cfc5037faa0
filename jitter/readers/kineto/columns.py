"""Columns of events: names, exact times and other values, decoded per batch, which is faster than per event."""

import json
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from operator import attrgetter
from types import NoneType
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw, Struct, field

from jitter.core.numeric.arrays import Bools, Ints
from jitter.readers.columns import LARGEST_NS, parse_integer
from jitter.readers.json_document import INVALID, decode_list
from jitter.readers.kineto.events import NULL, Event

_UNNAMED: Final = "(no name)"
_MOST_PLACES: Final = 16
_MICROSECONDS: Final = pa.decimal128(19, 3)
_HEXADECIMAL: Final = re.compile(r"0[xX][0-9a-fA-F]{1,15}")
_RAWS: Final = msgspec.json.Decoder(list[Raw])
_Args = TypeVar("_Args", bound=Struct)
_ts, _dur, _pid, _tid, _args = map(attrgetter, ("ts", "dur", "pid", "tid", "args"))


class NameTable:
    """The distinct names of a trace, numbered in order of first appearance."""

    def __init__(self, suffix: re.Pattern[str] | None = None) -> None:
        """`suffix` is left out of names: what the profiler adds to them."""
        self._suffix = suffix
        self.listed: list[str] = []
        self.invalid = 0
        """Number of names that are not valid UTF-8; their invalid bytes are replaced."""
        self._numbers: dict[bytes | str, int] = {}
        """By name, and by the names' JSON."""

    def of(self, names: Sequence[Raw | str]) -> list[int]:
        """Return the numbers of names, which are either all strings or all JSON."""
        keys: Any = names if names and type(names[0]) is str else list(map(bytes, cast(Sequence[Raw], names)))
        numbers = list(map(self._numbers.get, keys))
        if None in numbers:
            numbers = [
                self._number(key) if number is None else number for key, number in zip(keys, numbers, strict=True)
            ]
        return cast(list[int], numbers)

    def number(self, name: str) -> int | None:
        """Return the number of a name; None if it has not appeared."""
        return self._numbers.get(name)

    def text_of(self, name: Raw | bytes | str) -> str:
        """Return a string given as text or JSON, without numbering it."""
        text = name if isinstance(name, str) else self._decoded(bytes(name))
        return text if self._suffix is None else self._suffix.sub("", text)

    def texts_of(self, names: Sequence[Raw | str]) -> Sequence[str]:
        """Return `text_of` each name; they are either all strings or all JSON."""
        if self._suffix is None and type(names[0]) is str:
            return cast(Sequence[str], names)
        return list(map(self.text_of, names))

    def _number(self, key: bytes | str) -> int:
        number = self._numbers.get(key)
        if number is None:
            name = self.text_of(key) or _UNNAMED
            number = self._numbers.setdefault(name, len(self.listed))
            if number == len(self.listed):
                self.listed.append(name)
            if self._suffix is None:  # with one, nearly every text is another
                self._numbers[key] = number
        return number

    def _decoded(self, text: bytes) -> str:
        if not text.startswith(b'"'):
            return "" if text == b"null" else text.decode("utf-8", "replace")
        try:
            words = text.decode()
        except UnicodeDecodeError:
            self.invalid += 1
            words = text.decode("utf-8", "replace")
        if "\\" in words:
            words = str(json.loads(words, strict=False))
            # half of a surrogate pair cannot be stored as UTF-8
            return words.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return words[1:-1]


class CallArgs(Struct, gc=False):
    """Arguments of an API call. Values may be of any type."""

    correlation: Any = None
    correlation_id: Any = field(name="correlation id", default=None)
    """Paddle's name of it."""
    rank: Any = None
    """Written by tools that merge the traces of several ranks."""


class GpuArgs(CallArgs, gc=False):
    """Arguments of a GPU activity: where it ran and its launch shape."""

    device: Any = None
    stream: Any = None
    grid: Raw = NULL
    block: Raw = NULL
    kind: Any = None
    copied: Any = field(name="bytes", default=None)
    collective: Raw = field(name="Collective name", default=NULL)


class Times(NamedTuple):
    """Starts and ends in ns, and whether each is recorded. An end before its start counts as not recorded."""

    start_ns: Ints
    end_ns: Ints
    has_start: Bools
    has_end: Bools

    def columns(self) -> dict[str, pa.Array]:
        """Return the columns of the times, null where not recorded."""
        return {
            "start_ns": pa.array(self.start_ns, mask=~self.has_start),
            "end_ns": pa.array(self.end_ns, mask=~self.has_end),
        }


class EventBuffer:
    """Collects events of one kind until they fill a batch."""

    def __init__(self) -> None:
        self.names: list[Any] = []
        """The numbers of the events' names, or texts."""
        self.extra: list[Any] = []
        """What else is known of each event; empty if nothing is."""
        self._starts: list[bytes] = []
        self._durations: list[bytes] = []
        self._pids: list[Any] = []
        self._tids: list[Any] = []
        self._args: list[bytes] = []

    def __len__(self) -> int:
        return len(self.names)

    def add(self, events: Sequence[Event], names: Sequence[Any], extra: Sequence[Any] = (), *, with_args: bool) -> None:
        """Add events with a value of `names`, and of `extra` if that is used, for each."""
        if not events:
            return
        self.names += names
        self.extra += extra
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
        return integers(self._pids)

    def tids(self) -> list[int | None]:
        """Return the thread ids; for GPU activities the streams."""
        return integers(self._tids)

    def args(self, kind: type[_Args]) -> list[_Args]:
        """Return the arguments of the events as `kind`; those that are no object have its defaults."""
        missing = kind()
        listed = decode_list(b"[" + b",".join(self._args) + b"]", kind | None, lambda: missing)
        return [arguments or missing for arguments in listed]

    def args_of(self, rows: Sequence[int]) -> list[bytes]:
        """Return the arguments of some events as JSON."""
        raw_args = _RAWS.decode(b"[" + b",".join(self._args) + b"]") if rows else []
        return [bytes(raw_args[row]) for row in rows]


def _shared(values: list[Any]) -> list[Any]:
    """Return the values with one object for all integers that are equal.

    A number of its own for each event would drive those just decoded out of the processor's cache.
    """
    if set(map(type, values)) != {int}:
        return values
    seen: dict[int, int] = {}
    return list(map(seen.setdefault, values, values))


def integers(values: list[Any]) -> list[int | None]:
    """Return the integers that values are or state, None for others; without running Python code if all are."""
    return values if set(map(type, values)) <= {int, NoneType} else list(map(parse_int, values))


def correlations(args: Sequence[CallArgs]) -> list[int | None]:
    """Return the correlation of each activity or call; None where it states none."""
    stated = integers([one.correlation for one in args])
    return stated if any(number is not None for number in stated) else integers([one.correlation_id for one in args])


def parse_int(value: object) -> int | None:
    """Return the integer in 7, 7.0, "7", "0x7" or "stream 7"; None for anything else."""
    if type(value) is int:  # one beyond 64 bits is null in its column, and states something
        return value
    if isinstance(value, str) and len(value) < 40:
        value = value.split()[-1] if value.strip() else ""
        if _HEXADECIMAL.fullmatch(value):
            return int(value, 16)
    return parse_integer(value)


def parse_shape(text: bytes) -> list[int | None]:
    """Return the three integers of a JSON list, missing ones as 1; three None if it is no such list."""
    try:
        value = msgspec.json.decode(text)
    except INVALID:
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


def join_values(values: Sequence[Raw]) -> bytes:
    """Join JSON values with commas; values that contain commas become null."""
    text = b",".join(cast(Sequence[bytes], values))
    if text.count(b",") == len(values) - 1 or not values:
        return text
    return b",".join(b"null" if b"," in value else value for value in map(bytes, values))


def parse_microseconds(texts: Sequence[bytes]) -> tuple[Ints, Bools]:
    """Parse times in microseconds; `texts` are JSON values joined with commas.

    Returns the times in ns, rounded where there are more than three decimals, and whether each is valid: False (and
    the value 0) for values that are no number or exceed 64 bits.
    """
    text = b",".join(texts)
    if not text:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
    plain = _plain(text)
    return plain if plain is not None else _any(text)


def _plain(text: bytes) -> tuple[Ints, Bools] | None:
    """Parse non-negative numbers with at most three decimal places; None for anything else."""
    if text.translate(None, b"0123456789,."):
        return None
    try:
        numbers = pc.split_pattern(pa.array([text.decode()]), ",").values.cast(_MICROSECONDS)
    except pa.ArrowInvalid:  # no number, or one of more places or digits
        return None
    values = np.frombuffer(numbers.buffers()[1], np.uint64)[: 2 * len(numbers) : 2]  # of each the lower 64 bits: the ns
    if (values >= LARGEST_NS).any():
        return None
    return values.astype(np.int64), np.ones(len(values), dtype=bool)


def _any(text: bytes) -> tuple[Ints, Bools]:
    values = [_one(word) for word in text.decode("utf-8", "replace").split(",")]
    return (
        np.array([value or 0 for value in values], dtype=np.int64),
        np.array([value is not None for value in values], dtype=bool),
    )


def _one(word: str) -> int | None:
    try:
        exact = Decimal(word.strip('"'))  # some tools write times as strings
    except InvalidOperation:
        return None
    # test the size first: 1e999999 has too many digits to expand
    if not exact.is_finite() or exact.adjusted() > _MOST_PLACES:
        return None
    value = int((exact * 1000).to_integral_value())
    return value if abs(value) < LARGEST_NS else None
