"""One rank's step in the order of its host: activities as they were launched, synchronising calls between them."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Kind = Literal["compute", "collective", "memory", "sync"]
KINDS: Final[tuple[Kind, ...]] = ("compute", "collective", "memory", "sync")
COMPUTE, COLLECTIVE, MEMORY, SYNC = range(len(KINDS))
COLUMNS: Final = (
    "rank",
    "ordinal",
    "kind",
    "stream",
    "start_ns",
    "end_ns",
    "launch_start_ns",
    "launch_end_ns",
    "launch_thread",
)
"""What of a lake's rows a cell is made of."""


@dataclass(frozen=True)
class Cell:
    """One rank's step: an entry an operation. Times in ns from `origin_ns` on the rank's clock, NaN if unknown."""

    rank: int
    origin_ns: int
    kind: npt.NDArray[np.int8]
    """Positions in `KINDS`."""
    stream: Ints
    """-1 where unknown, and for synchronising calls."""
    thread: Ints
    start: Floats
    """On the GPU; NaN for synchronising calls."""
    end: Floats
    call: Floats
    """When the host began the launch, or the synchronising call; of a graph's activities only the first has it."""
    back: Floats
    """When that call returned."""
    ordinal: Ints
    """The row in the lake, -1 for synchronising calls."""
    shape: bytes
    """Digest of where copies and synchronising calls stand; with the sequence of kernels it names all operations."""


@dataclass(frozen=True)
class Syncs:
    """A rank's synchronising calls in one step, by start; times in ns on the rank's clock."""

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    names: tuple[str, ...]


NO_SYNCS: Final = Syncs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), ())


def cells(rows: pa.Table, syncs: Mapping[int, Syncs], origins: Mapping[int, int]) -> Iterator[Cell]:
    """Make a cell of each rank in `rows` (`COLUMNS`, by rank and ordinal); `origins` is each rank's zero in ns."""
    ranks = rows["rank"].to_numpy()
    if not len(ranks):
        return
    columns = {name: _whole(rows[name]) for name in ("ordinal", "stream", "launch_thread")}
    kind = _kinds(rows["kind"])
    times = {name: rows[name].combine_chunks() for name in ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns")}
    borders = np.flatnonzero(np.diff(ranks)) + 1
    for first, last in zip([0, *borders.tolist()], [*borders.tolist(), len(ranks)], strict=True):
        rank = int(ranks[first])
        origin = origins[rank]
        part = slice(first, last)
        start, end, call, back = (_since(values[part], origin) for values in times.values())
        yield _cell(
            rank,
            origin,
            kind[part],
            columns["stream"][part],
            columns["launch_thread"][part],
            (start, end, call, back),
            columns["ordinal"][part],
            syncs.get(rank, NO_SYNCS),
        )


def _cell(
    rank: int,
    origin: int,
    kind: npt.NDArray[np.int8],
    stream: Ints,
    thread: Ints,
    times: tuple[Floats, Floats, Floats, Floats],
    ordinal: Ints,
    syncs: Syncs,
) -> Cell:
    start, end, call, back = times
    again = np.zeros(len(call), np.bool_)
    again[1:] = (call[1:] == call[:-1]) & (thread[1:] == thread[:-1])
    # a thread that launches nothing (one that pins memory, a watchdog) holds nobody up by waiting
    held = np.isin(syncs.thread, thread)
    begun = syncs.start_ns[held].astype(np.float64) - origin
    if len(begun):
        launched = np.maximum.accumulate(np.where(np.isnan(call), -np.inf, call))
        # a blocking copy is both a launch and a call that waits: the launch comes first, and ends where the wait begins
        at = np.searchsorted(launched, begun, side="right")
        blocking = np.isin(call, begun)
        back = np.where(blocking, np.clip(start, call, back), back)
        names = tuple(name for name, own in zip(syncs.names, held.tolist(), strict=True) if own)
        nothing = np.full(len(at), np.nan)
        kind = np.insert(kind, at, SYNC)
        stream, ordinal = np.insert(stream, at, -1), np.insert(ordinal, at, -1)
        thread = np.insert(thread, at, syncs.thread[held])
        start, end = np.insert(start, at, nothing), np.insert(end, at, nothing)
        call = np.insert(call, at, begun)
        back = np.insert(back, at, syncs.end_ns[held].astype(np.float64) - origin)
        again = np.insert(again, at, False)
    else:
        names = ()
    call, back = np.where(again, np.nan, call), np.where(again, np.nan, back)
    apart = np.flatnonzero(kind >= MEMORY)
    shape = hashlib.blake2b(digest_size=8)
    shape.update(apart.astype(np.int32).tobytes() + kind[apart].tobytes() + repr(names).encode())
    return Cell(rank, origin, kind, stream, thread, start, end, call, back, ordinal, shape.digest())


def _kinds(column: pa.ChunkedArray) -> npt.NDArray[np.int8]:
    encoded = column.combine_chunks()
    if not isinstance(encoded, pa.DictionaryArray):
        encoded = encoded.dictionary_encode()
    codes = np.array([KINDS.index(name) for name in encoded.dictionary.to_pylist()], np.int8)
    found: npt.NDArray[np.int8] = codes[encoded.indices.to_numpy()]
    return found


def _whole(column: pa.ChunkedArray) -> Ints:
    whole: Ints = column.fill_null(-1).to_numpy().astype(np.int64)
    return whole


def _since(values: pa.Array, origin: int) -> Floats:
    if not values.null_count:
        since: Floats = (values.to_numpy() - origin).astype(np.float64)
        return since
    known = values.is_valid().to_numpy(zero_copy_only=False)
    return np.where(known, (values.fill_null(origin).to_numpy() - origin).astype(np.float64), np.nan)
