"""Protobuf messages read field by field, without their descriptions, and the rows of what they hold in batches."""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from jitter.core.schema import ACTIVITIES, CALLS, RANGES
from jitter.readers import Batch, Recording, TableName, make_batch
from jitter.readers.columns import Interner

MOST_ROWS: Final = 20_000
"""Rows of a batch."""
MORE: Final = 0x80
"""Bytes of an integer from this one on are not its last."""
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
"""Kinds of fields."""

Span = tuple[int, int]
"""Where a text or message begins and ends."""


@contextmanager
def mapped(path: Path) -> Iterator[memoryview]:
    """Yield the bytes of a file, which are read where they are looked at."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        data = memoryview(content)
        try:
            yield data
        finally:
            data.release()


def text_at(data: memoryview | bytes, span: Span) -> str:
    return bytes(data[span[0] : span[1]]).decode("utf-8", "replace")


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def varint(data: memoryview | bytes, at: int) -> tuple[int, int]:
    """Return the integer at a place, and the place after it."""
    byte = data[at]
    if byte < MORE:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < MORE:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + 1
        shift += 7
        if shift > 63:
            raise ValueError(f"no integer ends at byte {at:,}")


def message(data: bytes, at: int) -> Span:
    """Return where the message at a place lies, whose length comes first; cut where the data end."""
    length, start = varint(data, at)
    return start, min(start + length, len(data))


def fields(data: memoryview | bytes, at: int, end: int, *, clamp: bool = False) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of a message: number, integer, and where a text or message begins and ends.

    Raises `ValueError` where the bytes are no message, or a field ends after it; with `clamp` the latter is yielded.
    """
    while at < end:
        tag, at = varint(data, at)
        kind, value, start = tag & 7, 0, at
        if kind == _VARINT:
            value, at = varint(data, at)
        elif kind == _BYTES:
            length, start = varint(data, at)
            at = start + length
        elif kind == _EIGHT:
            at += 8
        elif kind == _FOUR:
            at += 4
        else:
            raise ValueError(f"no field at byte {start:,}")
        if at > end and not clamp:
            raise ValueError(f"a field ends after its message, at byte {start:,}")
        yield tag >> 3, value, start, at


def spans(data: memoryview | bytes, at: Span, *path: int) -> Iterator[Span]:
    """Yield where the texts or messages in a message lie that these field numbers lead to, one inside another."""
    for number, _, start, stop in fields(data, *at):
        if number == path[0]:
            yield from spans(data, (start, stop), *path[1:]) if len(path) > 1 else ((start, stop),)


_COLUMNS: Final = {
    "activities": [
        *ACTIVITIES.names[: ACTIVITIES.get_field_index("collective")],
        *("size_bytes", "group_size", "group_ranks"),
    ],
    "calls": CALLS.names,
    "ranges": RANGES.names,
}


class RowBatches:
    """Collects rows of the recording's tables and makes batches of them; numbers names."""

    def __init__(self, recording: Recording) -> None:
        self._names: Interner[str] = Interner()
        recording.names = self._names.keys
        self._rows: dict[TableName, list[tuple[Any, ...]]] = {}
        self._count = 0

    def name(self, name: str) -> int:
        """Return the number of a name."""
        return self._names.position(name)

    def add(self, table: TableName, *row: Any) -> None:
        """Add a row with the columns of `_COLUMNS`."""
        self._rows.setdefault(table, []).append(row)
        self._count += 1

    @property
    def is_full(self) -> bool:
        """Whether enough rows for a batch are held."""
        return self._count >= MOST_ROWS

    def flush(self) -> Iterator[Batch]:
        """Yield the rows that are held, a batch a table."""
        held, self._rows, self._count = self._rows, {}, 0
        for table, rows in held.items():
            arrays = [pa.array(column) for column in zip(*rows, strict=True)]
            yield make_batch(table, dict(zip(_COLUMNS[table], arrays, strict=True)))
