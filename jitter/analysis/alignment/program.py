"""Program of a cohort: one list of operations for all its ranks and steps, found from their activities.

Ranks and steps with equal sequences need nothing more. Other sequences are aligned to the list one after another: what
has no partner by name takes the place of one of the same kind that stands alone too (an autotuned kernel has another
name and the same work), else it gets a place of its own, which the others leave empty.

The kernel index (`kernel_index`) numbers the kernels of one step's reference, and gives a kernel of another name none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from jitter.analysis.alignment.sequences import align, find_gaps
from jitter.core.names.kernels import COLLECTIVE, COMPUTE, SEND_RECV, collective_operation
from jitter.core.numeric.arrays import Ints

Signature = tuple[str, bytes]
"""Digest of the kernels' sequence, digest of where copies and synchronising calls stand."""
MAIN = 0
"""The number of the main stream."""
NO_STREAM = -1


class Operation(NamedTuple):
    """A place in the program. `stream` numbers the rank's streams (0: the main one), `thread` its launching threads."""

    name: str
    kind: int
    stream: int
    thread: int
    recorded: str | None = None
    """The collective operation that the trace records; None where only the name may state it."""

    @property
    def collective(self) -> str | None:
        """The collective operation, as recorded or else as the name states it."""
        return self.recorded or collective_operation(self.name)

    @property
    def is_exchange(self) -> bool:
        """Whether it is a send or a receive."""
        return self.collective == SEND_RECV

    @property
    def on_main(self) -> bool:
        """Whether it is a compute kernel of the main stream."""
        return self.kind == COMPUTE and self.stream == MAIN

    @property
    def is_kernel(self) -> bool:
        """Whether the kernel index counts it."""
        return self.kind in (COMPUTE, COLLECTIVE)


class Example(NamedTuple):
    """Activities of one rank in one step, operation by operation."""

    kind: Sequence[int]
    names: Sequence[str]
    streams: Sequence[int]
    threads: Sequence[int]
    """The launching threads, by any distinct numbers."""
    collectives: Sequence[str | None] = ()
    """The recorded collective operations; empty where none is recorded."""


@dataclass(frozen=True)
class Program:
    """A cohort's operations in launch order, and where in them those of each kind of cell stand."""

    operations: tuple[Operation, ...]
    places: dict[Signature, Ints]
    """By signature the place in `operations` of each of its operations; -1 where it has none."""
    reference: Signature
    """The commonest; its operations are all in the program under their own names."""

    def fit(self, signature: Signature, example: Example) -> None:
        """Add the places of a signature that the program was not made from; operations without a place get -1."""
        words: dict[_Word, int] = {}
        program_words = [words.setdefault(_word(op), len(words)) for op in self.operations]
        own_operations = _operations(example)
        own_words = [words.setdefault(_word(op), len(words)) for op in own_operations]
        there = [_Place(op, word) for op, word in zip(self.operations, program_words, strict=True)]
        partners = _partners(there, own_operations, own_words)
        self.places[signature] = np.array([-1 if place is None else place for place in partners], np.int64)

    @cached_property
    def kinds(self) -> Ints:
        """(operations,) codes of `jitter.core.names.kernels`."""
        return np.array([op.kind for op in self.operations], np.int64)

    @cached_property
    def streams(self) -> Ints:
        """(operations,) the streams."""
        return np.array([op.stream for op in self.operations], np.int64)

    @cached_property
    def first_kernel(self) -> int:
        """The place of the step's first main-stream kernel: what the host does up to it is its start."""
        return next((place for place, op in enumerate(self.operations) if op.on_main), len(self.operations))


@dataclass
class _Place:
    operation: Operation
    word: int


def lay_out(counts: Mapping[Signature, int], content: Callable[[Signature], Example]) -> Program:
    """Return the program of these signatures.

    `counts` is in how many complete steps each occurred, 0 if in cut ones only; `content` returns an example of each.
    """
    words: dict[_Word, int] = {}
    order: list[_Place] = []
    placed: dict[Signature, list[_Place]] = {}
    ranked = sorted(counts, key=lambda signature: (-counts[signature], signature))
    for signature in ranked:
        operations = _operations(content(signature))
        operation_words = [words.setdefault(_word(op), len(words)) for op in operations]
        placed[signature] = _merge(order, operations, operation_words)
    number = {id(place): at for at, place in enumerate(order)}
    return Program(
        tuple(place.operation for place in order),
        {
            signature: np.array([number[id(place)] for place in places], np.int64)
            for signature, places in placed.items()
        },
        ranked[0],
    )


_Word = tuple[str, int, bool]


def _word(operation: Operation) -> _Word:
    """Identity of an operation: name, kind, and whether it is on the main stream."""
    return operation.name, operation.kind, operation.stream == MAIN


def _operations(example: Example) -> list[Operation]:
    seen: dict[int, int] = {}
    threads = [seen.setdefault(thread, len(seen)) for thread in example.threads]
    recorded = example.collectives or [None] * len(threads)
    columns = (example.names, example.kind, example.streams, threads, recorded)
    return [Operation(*fields) for fields in zip(*columns, strict=True)]


def _merge(order: list[_Place], operations: Sequence[Operation], words: Sequence[int]) -> list[_Place]:
    """Align operations to the existing places and add missing ones; return each operation's place."""
    partners = _partners(order, operations, words)
    placed: list[_Place] = []
    extended: list[_Place] = []
    copied = 0
    for at, partner in enumerate(partners):
        if partner is None:
            place = _Place(operations[at], words[at])
        else:
            extended += order[copied:partner]
            copied, place = partner + 1, order[partner]
        extended.append(place)
        placed.append(place)
    order[:] = extended + order[copied:]
    return placed


def _partners(order: Sequence[_Place], operations: Sequence[Operation], words: Sequence[int]) -> list[int | None]:
    """Return the number of each operation's place, None where it has none."""
    partners = align(words, [place.word for place in order])
    for own_gap, order_gap in find_gaps(tuple(partners), len(order)):
        _pair_leftovers(order, operations, partners, own_gap, order_gap)
    return partners


def _pair_leftovers(
    order: Sequence[_Place],
    operations: Sequence[Operation],
    partners: list[int | None],
    own_gap: range,
    order_gap: range,
) -> None:
    """Give operations between two matched ones, in order, the first free place of their kind and stream."""
    free = order_gap.start
    for at in own_gap:
        op = operations[at]
        for place in range(free, order_gap.stop):
            there = order[place].operation
            if there.kind == op.kind and there.stream == op.stream:
                partners[at], free = place, place + 1
                break


def number_streams(main_stream: int | None, streams: Sequence[int | None]) -> dict[int | None, int]:
    """Return the number of each of a rank's streams: 0 for the main one, the others by first appearance."""
    numbers: dict[int | None, int] = {} if main_stream is None else {main_stream: MAIN}
    for stream in streams:
        numbers.setdefault(stream, len(numbers) + (main_stream is None))
    return numbers
