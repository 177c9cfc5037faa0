"""Groups of the collectives of XLA's programs, from the HLO modules in the plane `/host:metadata`.

The formats are xla/service/hlo.proto and xla/xla_data.proto.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from jitter.readers.protobuf import Span, fields, spans, text_at, varint

METADATA: Final = "/host:metadata"
HLO: Final = "Hlo Proto"
PROGRAM: Final = "program_id"
_COLLECTIVES: Final = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all")
_CROSS_PARTITION: Final = ("all-to-all", "ragged-all-to-all")
"""Operations whose groups list partitions where others list replicas."""


class ReplicaGroup(NamedTuple):
    """The group of a collective, for every process that takes part in the program."""

    size: int
    ranks: tuple[int, ...] | None
    """The members, where they are all devices from 0 on: of several groups the file does not say which is its own."""


class ReplicaGroups:
    """Groups by program and by the name of the HLO operation."""

    def __init__(self) -> None:
        self._of_program: dict[tuple[int, str], ReplicaGroup] = {}
        self._of_operation: dict[str, ReplicaGroup | None] = {}
        """None: programs differ."""

    def of(self, program: int | None, operation: str) -> ReplicaGroup | None:
        """Return the group of an operation; None if it is unknown."""
        stated = None if program is None else self._of_program.get((program, operation))
        return stated or self._of_operation.get(operation)

    def add(self, data: memoryview, program: int | None, module: slice | None) -> None:
        """Add the collectives of a program by its number and the place of its HLO module.

        Raises `ValueError` or `IndexError` where the bytes are no messages.
        """
        for operation, group in _groups_of_module(data, (module.start, module.stop)) if module else ():
            if program is not None:
                self._of_program[program, operation] = group
            known = self._of_operation.setdefault(operation, group)
            self._of_operation[operation] = group if known == group else None


def _groups_of_module(data: memoryview, hlo: Span) -> Iterator[tuple[str, ReplicaGroup]]:
    """Yield the collectives of a module and their groups."""
    # for each partition the devices of its replicas
    devices = [_integers(data, partition) for partition in spans(data, hlo, 1, 15, 3)]
    members = tuple(sorted(device for partition in devices for device in partition))
    is_numbered = members == tuple(range(len(members)))
    for instruction in spans(data, hlo, 1, 3, 2):
        if (name_and_size := _collective(data, instruction, len(devices))) is not None:
            name, size = name_and_size
            if 1 < size <= len(members):
                yield name, ReplicaGroup(size, members if is_numbered and size == len(members) else None)


def _collective(data: memoryview, instruction: Span, partitions: int) -> tuple[str, int] | None:
    """Return an instruction's name and the size of its groups; None for no collective, or if the sizes differ."""
    name = operation = ""
    sizes: set[int] = set()
    channel = is_global = 0
    for number, value, start, stop in fields(data, *instruction):
        if number == 1:
            name = text_at(data, (start, stop))
        elif number == 2:
            operation = text_at(data, (start, stop)).removesuffix("-start")
            if operation not in _COLLECTIVES:
                return None
        elif number == 26:
            channel = value
        elif number == 49:
            sizes.add(len(_integers(data, (start, stop))))
        elif number == 71:
            is_global = value
        elif number == 87:
            # a list of groups, or the shape of regular ones
            sizes |= {len(_integers(data, group)) for group in spans(data, (start, stop), 1)}
            shapes = spans(data, (start, stop), 2)
            sizes |= {value for shape in shapes for of, value, *_ in fields(data, *shape) if of == 2}
    if len(sizes) != 1:
        return None
    size = sizes.pop()
    if channel and not is_global and operation not in _CROSS_PARTITION:
        size *= partitions  # the groups list replicas, each with all its partitions
    return name, size


def _integers(data: memoryview, span: Span) -> list[int]:
    """Return the integers of field 1, packed or one by one."""
    integers: list[int] = []
    for number, _, start, stop in fields(data, *span):
        at = start if number == 1 else stop
        while at < stop:
            value, at = varint(data, at)
            integers.append(value)
    return integers
