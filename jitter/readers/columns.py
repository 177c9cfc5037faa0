"""Columns of sources: column maps, integers of any type, plausible times, keys numbered in order of appearance."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import column_or_nulls, map_distinct
from jitter.core.numeric.arrays import Codes, Ints
from jitter.core.schema import ACTIVITIES, READER_TABLES

Integer64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""The type of a JSON member that is an integer of 64 bits."""
LONGEST_NS: Final = 7 * 86_400 * 10**9
"""Longest capture in ns; a time this far from the others is damaged."""
LARGEST_NS: Final = 2**62
"""All times are below: differences of larger ones do not fit in 64 bits."""
_DIGITS: Final = re.compile(r"\s*[+-]?\d{1,19}\s*")
_MOST: Final = 2**63
Key = TypeVar("Key")


class ColumnMap(NamedTuple):
    """The columns of a source that are read: name of the column here to name there; of several the first present."""

    integers: Mapping[str, str | tuple[str, ...]]
    texts: Mapping[str, str | tuple[str, ...]] = {}

    def select(self, expressions: Mapping[str, str]) -> tuple[dict[str, str | None], dict[str, str | None]]:
        """Return what to read for the integers and for the texts from a source with these columns; None: it has none.

        `expressions` says by name of the column there how it is read.
        """

        def first(columns: Mapping[str, str | tuple[str, ...]]) -> dict[str, str | None]:
            listed = {ours: (theirs,) if isinstance(theirs, str) else theirs for ours, theirs in columns.items()}
            return {ours: next(filter(None, map(expressions.get, theirs)), None) for ours, theirs in listed.items()}

        return first(self.integers), first(self.texts)


def complete_columns(rows: pa.RecordBatch, integers: Iterable[str], texts: Iterable[str]) -> pa.RecordBatch:
    """Return rows with these columns, int64 and binary, null where they lack them."""
    types = {**dict.fromkeys(integers, pa.int64()), **dict.fromkeys(texts, pa.binary())}
    arrays = [column_or_nulls(rows, name, kind) for name, kind in types.items()]
    return pa.RecordBatch.from_arrays(arrays, list(types))


def parse_integer(value: object) -> int | None:
    """Return the integer that a value is or that its text states; None for anything else and beyond 64 bits."""
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and -_MOST <= value < _MOST else None


def to_int64(values: pa.Array) -> pa.Array:
    """Return numbers or texts of any type as int64; unsigned values of 64 bits keep their bits."""
    if pa.types.is_uint64(values.type):
        return values.cast(pa.int64(), safe=False)
    try:
        if pa.types.is_binary(values.type):
            return values.cast(pa.string()).cast(pa.int64())
        return values.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return map_distinct(values, parse_integer, pa.int64())


def fit_integers(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return integers in a type of fewer bits; values beyond it are null."""
    if values.type == kind:
        return values
    limits = np.iinfo(kind.to_pandas_dtype())
    fits = pc.and_(pc.greater_equal(values, int(limits.min)), pc.less_equal(values, int(limits.max)))
    return pc.if_else(fits, values, pa.scalar(None, values.type)).cast(kind)


class PossibleTimes:
    """Leaves out rows of one recording whose times are not possible, and states how many.

    A start far from those of the first rows of its kind is damaged, as is an end far from the start. Where a table
    need not state ends, one before its start counts as not recorded.
    """

    def __init__(self) -> None:
        self.about_ns: int | None = None
        """The median start of the first rows, in ns; None before the first row."""
        self._about_ns: dict[object, int] = {}
        """The same of each table, kernels and copies apart: files of one recording may have clocks of their own."""
        self._left_out: Counter[str] = Counter()

    def keep(self, table: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a table of `schema.READER_TABLES` with possible times."""
        if table not in READER_TABLES or "start_ns" not in rows.schema.names:
            return rows
        end = column_or_nulls(rows, "end_ns", pa.int64())
        (start_ns, is_possible), (end_ns, has_end) = (
            (column.fill_null(0).to_numpy(), column.is_valid().to_numpy(False)) for column in (rows["start_ns"], end)
        )
        is_possible &= (start_ns > -LARGEST_NS) & (start_ns < LARGEST_NS)
        kind = table if table != "activities" or not len(end) else rows["is_memory"][0].as_py()
        if kind not in self._about_ns and is_possible.any():
            starts_ns = np.sort(start_ns[is_possible])
            self._about_ns[kind] = int(starts_ns[len(starts_ns) // 2])
            self.about_ns = self._about_ns[kind] if self.about_ns is None else self.about_ns
        start_ns = np.where(is_possible, start_ns, 0)
        is_early = has_end & (end_ns < start_ns)
        last_ns = np.where(has_end & ~is_early, end_ns, start_ns)
        is_possible &= np.abs(start_ns - self._about_ns.get(kind, 0)) < LONGEST_NS
        is_possible &= (last_ns < LARGEST_NS) & (last_ns - start_ns < LONGEST_NS)
        if not READER_TABLES[table].field("end_ns").nullable:
            is_possible &= has_end & ~is_early
        elif is_early.any():
            known_ends = pc.if_else(pa.array(is_early), pa.scalar(None, pa.int64()), end)
            rows = rows.set_column(rows.schema.get_field_index("end_ns"), rows.schema.field("end_ns"), known_ends)
        if is_possible.all():
            return rows
        self._left_out[table] += int((~is_possible).sum())
        return rows.filter(pa.array(is_possible))

    def problems(self) -> list[str]:
        """Return how many rows of each table were left out, one sentence each."""
        return [
            f"{count:,} {_ROWS_OF.get(table, table)} without a possible time were left out"
            for table, count in self._left_out.items()
        ]


_ROWS_OF: Final = {"activities": "GPU activities"}
"""What people call the rows of a table, if not by its name."""


class Interner(Generic[Key]):
    """Numbers keys in order of first appearance."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self._positions: dict[Key, int] = {}

    def position(self, key: Key) -> int:
        """Return the number of a key; a new key gets the next number."""
        if key not in self._positions:
            self._positions[key] = len(self.keys)
            self.keys.append(key)
        return self._positions[key]

    def positions(self, values: pa.Array, key: Callable[[Any], Key]) -> pa.Array:
        """Return the numbers (int32, no nulls) of the keys of `values`; `key` is called once per distinct value."""
        encoded = values.dictionary_encode("encode")
        lookup = np.array([self.position(key(value)) for value in encoded.dictionary.to_pylist()], np.int32)
        return pa.array(lookup[encoded.indices.to_numpy()], pa.int32())


def look_up(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """Return the values of the keys (sorted) that are wanted, shape (wanted); −1 where there is no such key."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    at = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], -1)


class LaunchesWithin:
    """Which launches lie within calls of their thread, as of a communication library; calls have numbers."""

    def __init__(self) -> None:
        self._calls: dict[tuple[int, int | None], list[tuple[int, int, int]]] = {}
        """By process and thread (None: unknown) the begin, end and number of the calls."""
        self._sorted: dict[tuple[int, int | None], Ints] = {}

    def add_call(self, thread: tuple[int, int | None], start_ns: int, end_ns: int, number: int) -> None:
        """Add a call; a negative number hides the calls before it, and is not returned."""
        self._calls.setdefault(thread, []).append((start_ns, end_ns, number))
        self._sorted.pop(thread, None)

    def around(self, launches: pa.Table) -> Ints:
        """Return the number of the call around each launch (launches,), by `process`, `thread` and `start_ns`.

        Negative: none. A call that ended when the launch began does not hold it.
        """
        around = np.full(len(launches), -1, np.int64)
        process, start_ns = launches["process"].to_numpy(), launches["start_ns"].to_numpy()
        has_thread, thread = launches["thread"].is_valid().to_numpy(), launches["thread"].fill_null(0).to_numpy()
        for place, calls in self._calls.items():
            is_own = (process == place[0]) & (~has_thread if place[1] is None else has_thread & (thread == place[1]))
            if place not in self._sorted:
                self._sorted[place] = np.array(sorted(calls, key=itemgetter(0)), np.int64).T
            starts, ends, numbers = self._sorted[place]
            own_ns = start_ns[is_own]
            at = np.searchsorted(starts, own_ns, side="right") - 1
            around[is_own] = np.where((at >= 0) & (own_ns < ends[at]), numbers[at], -1)
        return around


def columns_of_records(records: Sequence[NamedTuple], record_of_row: Codes) -> dict[str, pa.Array]:
    """Return a column of `schema.ACTIVITIES` for each field of the records: the record of each row; -1 is null."""
    rows = pa.array(record_of_row, mask=record_of_row < 0)
    return {
        name: pa.array([getattr(record, name) for record in records], ACTIVITIES.field(name).type).take(rows)
        for name in type(records[0])._fields
    }


class Progress:
    """Reports progress through a source in bytes: those read, or in proportion to the rows read."""

    def __init__(self, size: int, advance: Callable[[int], None], rows: int = 1) -> None:
        """`size` are the bytes of the source, `rows` is an estimate of all its rows."""
        self._size, self._rest, self._seen = size, size, 0
        self._advance = advance
        self.expect(rows)

    def expect(self, rows: int) -> None:
        """Set the estimate of all rows."""
        self._rows = max(rows, 1)

    def __call__(self, size: int) -> None:
        """Report further bytes."""
        self._rest -= size
        self._advance(size)

    def rows(self, count: int) -> None:
        """Report the bytes of further rows."""
        self._seen += count
        self(max(0, self._size * min(self._seen, self._rows) // self._rows - (self._size - self._rest)))

    def finish(self) -> None:
        """Report the bytes that were not read."""
        self(max(0, self._rest))
