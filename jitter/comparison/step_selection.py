"""Restrict a document to some of its steps, as if the others had not been recorded."""

from collections.abc import Collection

import msgspec

from jitter.comparison.document import Document, StepEntry, Team
from jitter.core.errors import UsageError
from jitter.core.formatting import format_numbers


def select_steps(document: Document, numbers: Collection[int]) -> Document:
    """Return the document of the steps with these numbers; raise `UsageError` if it holds none of them.

    Collectives, ranks and culprits stay those of all steps, and a note says so.
    """
    wanted = [at for at, step in enumerate(document.steps) if step.step in numbers]
    if not wanted:
        first, last = (document.steps[0].step, document.steps[-1].step) if document.steps else (None, None)
        raise UsageError(
            f"{document.label}: holds none of the steps {format_numbers(numbers)}", f"it holds {first} to {last}"
        )
    if len(wanted) == len(document.steps):
        return document
    steps = tuple(_entry(document, at, wanted) for at in wanted)
    timed = [step for step in steps if step.step_time_ns and step.loss_ns is not None]
    whole = sum(step.step_time_ns or 0 for step in timed)
    note = f"{document.label}: collectives, ranks and culprits are those of all its {len(document.steps)} steps."
    return msgspec.structs.replace(
        document,
        steps=steps,
        teams=tuple(_team(team, wanted) for team in document.teams),
        loss_ns=sum(step.loss_ns or 0 for step in steps) if any(step.loss_ns is not None for step in steps) else None,
        loss_fraction=sum(step.loss_ns or 0 for step in timed) / whole if whole else None,
        notes=(*document.notes, note),
    )


def _entry(document: Document, at: int, wanted: list[int]) -> StepEntry:
    """Return the entry of a step; when it began is unknown without the step before."""
    step = document.steps[at]
    before = document.steps[at - 1] if at - 1 in wanted else None
    if before is not None and (before.epoch, before.step + 1) == (step.epoch, step.step):
        return step
    return StepEntry(step.epoch, step.step, None, None, None)


def _team(team: Team, wanted: list[int]) -> Team:
    new = {at: number for number, at in enumerate(wanted)}
    kept = [column for column, at in enumerate(team.steps) if at in new]
    return Team(
        team.ranks,
        team.places,
        team.copies,
        tuple(new[team.steps[column]] for column in kept),
        tuple(tuple(times[column] for column in kept) for times in team.times_ns),
    )
