"""The own times that a scenario computes with: as recorded, or the median's where they are repaired.

They are made a few operations at a time, and used while they are in the processor's cache: a step of 960 ranks × 907
rows has 35 MB of them. Who has everything repaired needs none that were recorded.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from jitter.own_time import CELLS_AT_ONCE, OwnOfStrips, OwnTimes
from jitter.program import Program
from jitter.readiness import Tail
from jitter.recorded import Recorded
from jitter.rules import Rules
from jitter.sheets import Floats

Bools = npt.NDArray[np.bool_]
START, CPU, GPU = range(3)
"""Positions in `Repairs`."""
_OF_HOST: Final = ("host", "call", "lead")
_OF_GPU: Final = ("delay", "gpu")


class Repairs(NamedTuple):
    """Where own times are replaced by the median, (scenarios, ranks) each."""

    start: Bools
    """The host's, up to the step's first main-stream kernel."""
    cpu: Bools
    """The host's after that."""
    gpu: Bools
    """Durations and delays on the GPU."""


class OwnOfOperation(NamedTuple):
    """`OwnTimes` of one operation, each (scenarios, ranks) or what can be broadcast to it."""

    host: Floats
    call: Floats
    lead: Floats
    delay: Floats
    gpu: Floats


class RepairedTimes:
    """One block's own times in one step; to be asked for in the program's order."""

    def __init__(
        self, program: Program, rules: Rules, recorded: Recorded, tail: Tail, typical: OwnTimes, repairs: Repairs
    ) -> None:
        """`tail` is how the step before left the ranks; `typical` are the medians, (operations, 1)."""
        self._recorded, self._typical, self._repairs = recorded, typical, repairs
        self._own = None if all(where.all() for where in repairs) else OwnOfStrips(program, rules, tail)
        self._first_kernel, self._operations = program.first_kernel, len(program.operations)
        self._height = max(1, CELLS_AT_ONCE // max(1, len(recorded.ranks))) if self._own else self._operations
        self._first = 0
        self._strip: list[OwnOfOperation] = []

    def at(self, place: int) -> OwnOfOperation:
        """One operation's."""
        while place >= self._first + len(self._strip):
            self._first += len(self._strip)
            rows = range(self._first, min(self._first + self._height, self._operations))
            self._strip = list(self._of(rows))
        return self._strip[place - self._first]

    def _of(self, rows: range) -> Iterator[OwnOfOperation]:
        usual = self._typical.strip(slice(rows.start, rows.stop))
        own = None
        if self._own is not None:
            own = self._own.of(rows, self._recorded.strip(slice(rows.start, rows.stop)))
        # the host's times are of one part up to the first kernel, of the other after it
        begun = min(max(self._first_kernel + 1 - rows.start, 0), len(rows))
        for part, where in ((slice(0, begun), self._repairs.start), (slice(begun, len(rows)), self._repairs.cpu)):
            hosts = (_chosen(where, usual, own, name, part) for name in _OF_HOST)
            gpus = (_chosen(self._repairs.gpu, usual, own, name, part) for name in _OF_GPU)
            yield from map(OwnOfOperation._make, zip(*hosts, *gpus, strict=True))


def _chosen(where: Bools, usual: OwnTimes, own: OwnTimes | None, name: str, part: slice) -> Floats:
    """(operations, …) the median's `where` (scenarios, ranks) they are repaired."""
    typical: Floats = getattr(usual, name)[part]
    if own is None or where.all():
        return typical
    recorded: Floats = getattr(own, name)[part]
    if not where.any():
        return recorded
    return np.where(where, typical[:, None], recorded[:, None])
