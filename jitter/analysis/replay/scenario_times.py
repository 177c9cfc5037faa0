"""The own times that a scenario computes with: as recorded, or the median's where they are repaired.

They are made a few operations at a time, and used while they are in the processor's cache: a step of 960 ranks × 907
rows has 35 MB of them. Who has everything repaired needs none that were recorded.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.execution.own_time import CELLS_AT_ONCE, OwnOfStrips, OwnTimes
from jitter.analysis.execution.program import Program
from jitter.analysis.execution.ready_times import Tail
from jitter.analysis.execution.rules import Rules
from jitter.analysis.execution.step_times import Recorded
from jitter.core.arrays import Bools, Floats

_OF_HOST: Final = ("host", "call", "lead")
_OF_GPU: Final = ("delay", "gpu")


class Repairs(NamedTuple):
    """Where own times are replaced by the median, (scenarios, ranks) each, in the order of `OWN_PARTS`."""

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


def repaired_times(
    program: Program, rules: Rules, recorded: Recorded, tail: Tail, typical: OwnTimes, repairs: Repairs
) -> Iterator[OwnOfOperation]:
    """Give one block's own times in one step, operation after operation of the program.

    `tail` is how the step before left the ranks; `typical` are the medians, (operations, 1).
    """
    start, cpu, gpu = map(_everybody_or_nobody, repairs)
    own_times = None if start is cpu is gpu is True else OwnOfStrips(program, rules, tail)
    operations, ranks = len(program.operations), max(1, len(recorded.ranks))
    for rows in _cut(range(operations), CELLS_AT_ONCE // ranks):
        usual = typical.strip(slice(rows.start, rows.stop))
        own = None if own_times is None else own_times.of(rows, recorded.strip(slice(rows.start, rows.stop)))
        # the host's times are of one part up to the first kernel, of the other after it
        border = min(max(program.first_kernel + 1, rows.start), rows.stop)
        for of_part, where in ((range(rows.start, border), start), (range(border, rows.stop), cpu)):
            for few in _cut(of_part, CELLS_AT_ONCE // (ranks * len(repairs.gpu))):
                part = slice(few.start - rows.start, few.stop - rows.start)
                hosts = (_chosen(where, usual, own, name, part) for name in _OF_HOST)
                gpus = (_chosen(gpu, usual, own, name, part) for name in _OF_GPU)
                yield from map(OwnOfOperation._make, zip(*hosts, *gpus, strict=True))


def _cut(places: range, size: int) -> Iterator[range]:
    """So many at a time, or one."""
    for first in range(places.start, places.stop, max(1, size)):
        yield range(first, min(first + max(1, size), places.stop))


def _everybody_or_nobody(where: Bools) -> Bools | bool:
    return bool(where.flat[0]) if where.size and (where == where.flat[0]).all() else where


def _chosen(where: Bools | bool, usual: OwnTimes, own: OwnTimes | None, name: str, part: slice) -> Floats:
    """(operations, …) the median's `where` (scenarios, ranks) they are repaired."""
    typical: Floats = getattr(usual, name)[part]
    if own is None or where is True:
        return typical
    recorded: Floats = getattr(own, name)[part]
    if where is False:
        return recorded
    return np.where(where, typical[:, None], recorded[:, None])
