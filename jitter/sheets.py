"""A step in the order of the hosts: activities as they were launched, synchronising calls between them.

Ranks that did the same in the same order share a sheet, one row each: what is computed for one is computed for all.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Kinds = npt.NDArray[np.int8]
Kind = Literal["compute", "collective", "memory", "sync"]
KINDS: Final[tuple[Kind, ...]] = ("compute", "collective", "memory", "sync")
COMPUTE, COLLECTIVE, MEMORY, SYNC = range(len(KINDS))

Signature = tuple[str, bytes]
"""Digest of the kernels' sequence, digest of where copies and synchronising calls stand."""


@dataclass(frozen=True)
class Activities:
    """Rows of ranks with as many each, (ranks, rows); times in ns from each rank's zero, NaN where unknown."""

    ranks: Ints
    sequence: str
    """Digest of the kernels that all of them ran."""
    kind: Kinds
    start: Floats
    end: Floats
    call: Floats
    back: Floats


@dataclass(frozen=True)
class Syncs:
    """A rank's synchronising calls in one step, by start; times in ns on the rank's clock."""

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    names: tuple[str, ...]


NO_SYNCS: Final = Syncs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), ())


@dataclass(frozen=True)
class Sheet:
    """Ranks that did the same: (ranks, operations). Times in ns from each rank's zero, NaN where unknown."""

    ranks: Ints
    signature: Signature
    kind: Kinds
    """(operations,) positions in `KINDS`."""
    row: Ints
    """(operations,) the row in the rank's file (its ordinal); -1 for synchronising calls."""
    calls: tuple[str, ...]
    """The names of the synchronising calls, in order."""
    start: Floats
    """On the GPU; NaN for synchronising calls."""
    end: Floats
    call: Floats
    """When the host began the launch, or the synchronising call; of a graph's activities only the first has it."""
    back: Floats
    """When that call returned."""


def sheets(activities: Activities, syncs: Mapping[int, Syncs], origins: Mapping[int, int]) -> Iterator[Sheet]:
    """Divide ranks by what they did; `syncs` are theirs, `origins` each one's zero on its clock."""
    launched = activities.call
    if any(rank in syncs and syncs[rank].names for rank in activities.ranks.tolist()):
        launched = np.maximum.accumulate(np.where(np.isnan(launched), -np.inf, launched), axis=1)
    alike: dict[tuple[bytes, tuple[str, ...], bytes], list[int]] = {}
    for at, rank in enumerate(activities.ranks.tolist()):
        own = syncs.get(rank, NO_SYNCS)
        # a blocking copy is both a launch and a call that waits: the launch comes first
        where = np.searchsorted(launched[at], (own.start_ns - origins[rank]).astype(np.float64), side="right")
        alike.setdefault((activities.kind[at].tobytes(), own.names, where.astype(np.int32).tobytes()), []).append(at)
    for (_, names, where_bytes), rows in alike.items():
        where = np.frombuffer(where_bytes, np.int32).astype(np.int64)
        yield _sheet(_of(activities, rows), names, where, syncs, origins)


def _of(whole: Activities, rows: Sequence[int]) -> Activities:
    if len(rows) == len(whole.ranks):
        return whole
    times = (values[rows] for values in (whole.start, whole.end, whole.call, whole.back))
    return Activities(whole.ranks[rows], whole.sequence, whole.kind[rows], *times)


def _sheet(
    part: Activities, names: tuple[str, ...], where: Ints, syncs: Mapping[int, Syncs], origins: Mapping[int, int]
) -> Sheet:
    kind, row = part.kind[0], np.arange(part.kind.shape[1], dtype=np.int64)
    start, end, call, back = part.start, part.end, part.call, part.back
    # of the activities of one launch (a graph's) the first alone keeps the call's times
    again = np.zeros(call.shape, np.bool_)
    again[:, 1:] = call[:, 1:] == call[:, :-1]
    if len(where):
        ranks = part.ranks.tolist()
        begun = np.stack([syncs[rank].start_ns - origins[rank] for rank in ranks]).astype(np.float64)
        ended = np.stack([syncs[rank].end_ns - origins[rank] for rank in ranks]).astype(np.float64)
        back = _cut_where_waits_begin(start, call, back, begun, where)
        kind, row = np.insert(kind, where, SYNC), np.insert(row, where, -1)
        nothing = np.nan
        start, end = np.insert(start, where, nothing, axis=1), np.insert(end, where, nothing, axis=1)
        call, back = np.insert(call, where, begun, axis=1), np.insert(back, where, ended, axis=1)
        again = np.insert(again, where, False, axis=1)
    if again.any():
        call, back = np.where(again, np.nan, call), np.where(again, np.nan, back)
    apart = np.flatnonzero(kind >= MEMORY)
    shape = hashlib.blake2b(digest_size=8)
    shape.update(apart.astype(np.int32).tobytes() + kind[apart].tobytes() + repr(names).encode())
    return Sheet(part.ranks, (part.sequence, shape.digest()), kind, row, names, start, end, call, back)


def _cut_where_waits_begin(start: Floats, call: Floats, back: Floats, begun: Floats, where: Ints) -> Floats:
    """A blocking copy's launch ends where its wait begins: no later than the copy itself."""
    found = back.copy()
    for number, at in enumerate(where.tolist()):
        if at > 0:
            blocking = call[:, at - 1] == begun[:, number]
            until = np.clip(start[:, at - 1], call[:, at - 1], back[:, at - 1])
            found[:, at - 1] = np.where(blocking, until, found[:, at - 1])
    return found
