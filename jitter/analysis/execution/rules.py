"""What holds for every rank and step of a program: what waits for what, and how long starts usually take."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from jitter.analysis.execution.program import Program
from jitter.core.arrays import Ints
from jitter.core.kernels import SYNC


class Wait(NamedTuple):
    """An operation (`ordinal`: its place in the program) waits for another one's end.

    `on_ordinal` below 0 is the last operation of the step before on lane ~`on_ordinal`.
    """

    ordinal: int
    on_ordinal: int
    kind: Literal["event", "sync"]


@dataclass(frozen=True)
class Rules:
    """The rules of one program."""

    waits: tuple[Wait, ...]
    thread: Ints
    """(operations,) which host thread's calls it follows; all 0 where the threads hand over to each other."""
    queue: int | None
    """How many launches may be pending before the host has to wait; None: no limit was seen."""
    launch_ns: float
    """Usual time from the end of a launch to the start of its kernel, where only that held it back."""
    stream_ns: float
    """The same from the end of the operation before it on its stream."""

    @cached_property
    def by_place(self) -> dict[int, tuple[int, ...]]:
        """Place to the places it waits for."""
        found: dict[int, tuple[int, ...]] = {}
        for wait in self.waits:
            found[wait.ordinal] = (*found.get(wait.ordinal, ()), wait.on_ordinal)
        return found


def waits_by_ordinal(program: Program, rules: Rules) -> list[Wait]:
    """The waits within a step, with places as ordinals of the program's commonest sequence (rows of the lake).

    A call that waits has none: what is launched next stands for it.
    """
    operations = program.operations
    reference = sorted(program.places[program.reference].tolist())
    ordinal = {place: number for number, place in enumerate(p for p in reference if operations[p].kind != SYNC)}
    found = []
    for wait in rules.waits:
        waiting = wait.ordinal
        while waiting < len(operations) and waiting not in ordinal:
            waiting += 1
        if waiting in ordinal and (wait.on_ordinal < 0 or wait.on_ordinal in ordinal):
            found.append(Wait(ordinal[waiting], ordinal.get(wait.on_ordinal, wait.on_ordinal), wait.kind))
    return found
