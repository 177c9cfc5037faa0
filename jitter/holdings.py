"""Which recording holds which rank's step, as the records tell: a lake's records, not its files, say what is in it."""

from collections.abc import Iterable
from typing import NamedTuple

from jitter.records import SourceRecord, StepRecord
from jitter.steps import StepKey


class Held(NamedTuple):
    """One rank in one step: the record of the source it came from, and what that tells of the step."""

    record: SourceRecord
    step: StepRecord


def holdings(records: Iterable[SourceRecord]) -> dict[StepKey, dict[int, Held]]:
    """Sort the records of sources that went in by step and rank."""
    found: dict[StepKey, dict[int, Held]] = {}
    for record in records:
        if record.rank is None:
            continue
        for step in record.steps:
            named = (step.epoch, step.step)  # equal to its key, and made in a third of the time
            if named not in found:
                found[step.key] = {}
            found[named][record.rank] = Held(record, step)  # type: ignore[index]
    return found
