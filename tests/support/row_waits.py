"""The waits that an analysis inferred, between the rows of a lake."""

from typing import Literal, NamedTuple

import jitter
from jitter.analysis.execution.dependencies import Provenance
from jitter.core.names.kernels import SYNC


class RowWait(NamedTuple):
    """A `Wait` between rows: `ordinal` is the launch order of a row in the program's commonest sequence."""

    ordinal: int
    on_ordinal: int
    kind: Literal["event", "sync"]
    steps_back: int
    provenance: Provenance
    spread_ns: float | None


def row_waits(lake: "jitter.Lake", cohort: int | None = None) -> list[RowWait]:
    """Return the waits of the first team of a cohort (default: of the lake's first team).

    A call that waits has no row: the activity that is launched next stands for it.
    """
    run = lake.analyze().run
    team = min(team for rank, team in run.team_of.items() if cohort in (None, lake.cohorts[rank]))
    program, operations = run.programs[team], run.programs[team].operations
    reference = program.places[program.reference].tolist()
    ordinal = {place: number for number, place in enumerate(p for p in reference if operations[p].kind != SYNC)}
    waits = []
    for wait in run.dependencies[team].waits:
        waiting = wait.op_index
        while waiting < len(operations) and waiting not in ordinal:
            waiting += 1
        if waiting in ordinal and (wait.on_op_index < 0 or wait.on_op_index in ordinal):
            on = ordinal.get(wait.on_op_index, wait.on_op_index)
            waits.append(RowWait(ordinal[waiting], on, wait.kind, wait.steps_back, wait.provenance, wait.spread_ns))
    return waits
