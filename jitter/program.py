"""What a cohort runs in a step: one list of operations for all its ranks and steps, found from what they did.

Cells that did the same need nothing more. The commonest of the others are laid along the list one after another: what
has no partner by name takes the place of one of the same kind that stands alone too (an autotuned kernel has another
name and the same work), else it gets a place of its own, which the others leave empty.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from jitter.cells import COLLECTIVE, COMPUTE, Cell, Ints
from jitter.lcs import lcs_partners

MAIN = 0
"""The lane of the main stream."""
NO_LANE = -1


class Operation(NamedTuple):
    """A place in the program. `lane` numbers the rank's streams (0: the main one), `thread` its launching threads."""

    name: str
    kind: int
    lane: int
    thread: int

    @property
    def on_main(self) -> bool:
        """Whether it is a compute kernel of the main stream."""
        return self.kind == COMPUTE and self.lane == MAIN

    @property
    def is_kernel(self) -> bool:
        """Whether the kernel index counts it."""
        return self.kind in (COMPUTE, COLLECTIVE)


Signature = tuple[str, bytes]
"""Digest of the kernels' sequence, digest of where copies and synchronising calls stand."""


@dataclass(frozen=True)
class Program:
    """A cohort's operations in launch order, and where in them those of each kind of cell stand."""

    operations: tuple[Operation, ...]
    places: Mapping[Signature, Ints]
    """For each position in a cell its place in `operations`."""
    reference: Signature
    """The commonest cell's; its operations are all in the program under their own names."""

    @property
    def first_kernel(self) -> int:
        """The place of the step's first main-stream kernel: what the host does up to it is its start."""
        return next((place for place, op in enumerate(self.operations) if op.on_main), len(self.operations))


@dataclass
class _Place:
    operation: Operation
    word: int


def lay_out(
    counts: Mapping[Signature, int], content: Callable[[Signature], tuple[Cell, Sequence[str], Sequence[int]]]
) -> Program:
    """Make the program of cells that occurred as often as `counts` says (uncut ones; at least one).

    `content` gives an example of each: the cell, its operations' names and their lanes.
    """
    words: dict[tuple[str, int, bool], int] = {}
    order: list[_Place] = []
    found: dict[Signature, list[_Place]] = {}
    ranked = sorted(counts, key=lambda signature: (-counts[signature], signature))
    for signature in ranked:
        cell, names, lanes = content(signature)
        threads = _threads(cell)
        operations = [
            Operation(name, kind, lane, thread)
            for name, kind, lane, thread in zip(names, cell.kind.tolist(), lanes, threads, strict=True)
        ]
        own = [words.setdefault((op.name, op.kind, op.lane == MAIN), len(words)) for op in operations]
        found[signature] = _merge(order, operations, own)
    number = {id(place): at for at, place in enumerate(order)}
    return Program(
        tuple(place.operation for place in order),
        {signature: np.array([number[id(place)] for place in places], np.int64) for signature, places in found.items()},
        ranked[0],
    )


def _merge(order: list[_Place], operations: Sequence[Operation], words: Sequence[int]) -> list[_Place]:
    """Lay operations along the places there are, adding those that are missing; returns each one's place."""
    partners: list[int | None] = list(lcs_partners(words, [place.word for place in order]))
    matched = [(at, partner) for at, partner in enumerate(partners) if partner is not None]
    for (at, there), (next_at, next_there) in pairwise([(-1, -1), *matched, (len(words), len(order))]):
        _pair_leftovers(order, operations, partners, range(at + 1, next_at), range(there + 1, next_there))
    placed: list[_Place] = []
    extended: list[_Place] = []
    taken = 0
    for at, partner in enumerate(partners):
        if partner is None:
            place = _Place(operations[at], words[at])
        else:
            extended += order[taken:partner]
            taken, place = partner + 1, order[partner]
        extended.append(place)
        placed.append(place)
    order[:] = extended + order[taken:]
    return placed


def _pair_leftovers(
    order: Sequence[_Place],
    operations: Sequence[Operation],
    partners: list[int | None],
    own: range,
    theirs: range,
) -> None:
    """Between two matched operations: the first without a partner takes the first free place of its kind and lane."""
    free = theirs.start
    for at in own:
        op = operations[at]
        for place in range(free, theirs.stop):
            there = order[place].operation
            if there.kind == op.kind and there.lane == op.lane:
                partners[at], free = place, place + 1
                break


def _threads(cell: Cell) -> list[int]:
    """Number the launching threads by first appearance."""
    seen: dict[int, int] = {}
    return [seen.setdefault(thread, len(seen)) for thread in cell.thread.tolist()]


def lanes_of(main_stream: int | None, streams: Sequence[int]) -> dict[int, int]:
    """Number a rank's streams: the main one is 0, the others by first appearance; -1 (a call) is in none."""
    lanes = {-1: NO_LANE}
    if main_stream is not None:
        lanes[main_stream] = MAIN
    beside = Counter[int](stream for stream in streams if stream not in lanes)
    lanes.update({stream: number for number, stream in enumerate(beside, 1)})
    return lanes
