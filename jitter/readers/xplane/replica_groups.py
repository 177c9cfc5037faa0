"""Groups of the collectives of XLA's programs, from the HLO modules in the plane `/host:metadata`.

The formats are xla/service/hlo.proto and xla/xla_data.proto.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from jitter.readers.protobuf import Span, fields, text_at, varint

METADATA: Final = "/host:metadata"
HLO: Final = "Hlo Proto"
PROGRAM: Final = "program_id"
_COLLECTIVES: Final = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all")
_CROSS_PARTITION: Final = ("all-to-all", "ragged-all-to-all")
"""Operations whose groups list partitions where others list replicas."""


class Group(NamedTuple):
    """The group of a collective, for every process that takes part in the program."""

    size: int
    ranks: tuple[int, ...] | None
    """The members, where they are all devices from 0 on: of several groups the file does not say which is its own."""


class ReplicaGroups:
    """Groups by program and by the name of the HLO operation."""

    def __init__(self) -> None:
        self._of_program: dict[tuple[int, str], Group] = {}
        self._of_operation: dict[str, Group | None] = {}
        """None: programs differ."""

    def of(self, program: int | None, operation: str) -> Group | None:
        """Return the group of an operation; None if it is unknown."""
        stated = None if program is None else self._of_program.get((program, operation))
        return stated or self._of_operation.get(operation)

    def add(self, data: memoryview, entry: Span, stats: dict[int, str]) -> None:
        """Add the collectives of one program: `entry` is its entry in the plane, `stats` the names of statistics.

        Raises `ValueError` or `IndexError` where the bytes are no messages.
        """
        program, modules = None, list[Span]()
        for number, _, start, stop in fields(data, *entry):
            for of, _, first, last in fields(data, start, stop) if number == 2 else ():
                if of == 5:
                    name, value, span = _statistic(data, (first, last), stats)
                    program = value if name == PROGRAM else program
                    modules += [span] if name == HLO else []
        for module in modules:
            for operation, group in _groups_of_module(data, module):
                if program is not None:
                    self._of_program[program, operation] = group
                known = self._of_operation.setdefault(operation, group)
                self._of_operation[operation] = group if known == group else None


def _statistic(data: memoryview, entry: Span, stats: dict[int, str]) -> tuple[str, int, Span]:
    """Return a statistic's name, its integer, and where its bytes lie."""
    name, integer, span = "", 0, entry
    for number, value, start, stop in fields(data, *entry):
        if number == 1:
            name = stats.get(value, "")
        elif number in (3, 4):
            integer = value
        elif number == 6:
            span = start, stop
    return name, integer, span


def _groups_of_module(data: memoryview, hlo: Span) -> Iterator[tuple[str, Group]]:
    """Yield the collectives of a module and their groups."""
    computations: list[Span] = []
    devices: list[list[int]] = []
    for _, _, begin, end in (field for field in fields(data, *hlo) if field[0] == 1):
        for number, _, start, stop in fields(data, begin, end):
            if number == 3:
                computations.append((start, stop))
            elif number == 15:  # for each partition the devices of its replicas
                partitions = [span for of, _, *span in fields(data, start, stop) if of == 3]
                devices = [_integers(data, (first, last), 1) for first, last in partitions]
    members = tuple(sorted(device for partition in devices for device in partition))
    is_numbered = members == tuple(range(len(members)))
    for computation in computations:
        for number, _, start, stop in fields(data, *computation):
            if number == 2 and (found := _collective(data, (start, stop), len(devices))) is not None:
                name, size = found
                if 1 < size <= len(members):
                    yield name, Group(size, members if is_numbered and size == len(members) else None)


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
            sizes.add(len(_integers(data, (start, stop), 1)))
        elif number == 71:
            is_global = value
        elif number == 87:
            sizes |= _listed_sizes(data, (start, stop))
    if len(sizes) != 1:
        return None
    size = sizes.pop()
    if channel and not is_global and operation not in _CROSS_PARTITION:
        size *= partitions  # the groups list replicas, each with all its partitions
    return name, size


def _listed_sizes(data: memoryview, device_list: Span) -> set[int]:
    """Return the sizes of the groups of a list of devices: one for each group, or the shape of regular ones."""
    sizes: set[int] = set()
    for number, _, start, stop in fields(data, *device_list):
        if number == 1:
            sizes.add(len(_integers(data, (start, stop), 1)))
        elif number == 2:
            sizes |= {value for of, value, *_ in fields(data, start, stop) if of == 2}
    return sizes


def _integers(data: memoryview, span: Span, wanted: int) -> list[int]:
    """Return a repeated field of integers, packed or one by one."""
    found: list[int] = []
    for number, _, start, stop in fields(data, *span):
        at = start if number == wanted else stop
        while at < stop:
            value, at = varint(data, at)
            found.append(value)
    return found
