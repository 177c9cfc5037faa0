"""One JSON record a source: what came from where. The lake's truth; the catalogue is rebuilt from these."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from jitter.core.step_key import StepKey

RECORD_VERSION = 2
SIZED_RECORD_VERSION = 2
"""From this version on, the files of kernels have sizes and directions of copies."""


class StepRecord(msgspec.Struct, forbid_unknown_fields=False, omit_defaults=False):
    """One step of one rank. Times in ns on the rank's own clock."""

    step: int
    epoch: int | None
    marker: str | None
    """The marker's text; null where the step was found by repetition or is the whole capture."""
    start_ns: int
    end_ns: int | None
    cut: bool
    """Launches in it have no kernel, or its range has no end."""
    launches_without_kernel: int
    kernels: int
    """Kernels in the index's order: compute and collectives, copies and fills left out."""
    memory_activities: int
    sequence: str
    """Digest of (kernel name, concurrent or not) in launch order: equal digests are equal sequences."""

    @property
    def rows(self) -> int:
        """Of its file: kernels, copies and fills."""
        return self.kernels + self.memory_activities

    @property
    def key(self) -> StepKey:
        """What names the step in the run."""
        return StepKey(self.epoch, self.step)


class RepetitionRecord(msgspec.Struct, forbid_unknown_fields=False):
    """How steps without markers were found: what later ranks need to be brought into phase."""

    period: int
    """Kernels a step, on the main stream."""
    end_ns: int
    collectives: str | None
    """Digest of the whole sequence of collectives; null: there are none."""
    collectives_before: list[int]
    """For each step, the collectives launched before it."""


class SourceRecord(msgspec.Struct, forbid_unknown_fields=False, omit_defaults=False):
    """What one recording of one rank gave, or why it gave nothing (`rank` null)."""

    record_version: int
    digest: str
    """Names the record: of the file's content and, where a file holds several GPUs, which of them."""
    file: str
    file_digest: str
    size: int
    mtime_ns: int
    part: int
    parts: int
    """A file of several GPUs gives a record for each; the file is in only when all are."""
    step_pattern: str | None
    """The --step-pattern it was read with."""
    format: str
    reader_version: int
    profiler_version: str | None
    rank: int | None
    rank_told_by: str | None
    host: str | None
    device: int | None
    pid: int | None
    clock: str
    """`utc` where the profiler recorded the wall clock, else `unknown`."""
    utc_offset_ns: int | None
    """Added to a time of this recording it gives UTC."""
    main_stream: int | None
    has_launches: bool
    steps_from: str
    """`marker`, `repetition` or `whole capture`."""
    repetition: RepetitionRecord | None
    kernels: int
    outside_steps: int
    """Kernels in no step."""
    before_capture: int
    """Kernels in no step because they were launched before the capture."""
    steps: list[StepRecord]
    problems: list[str]
    host_rows: int | None = None
    """Rows of what it tells of the host, which have a file if there are any; None: not known."""

    @property
    def name(self) -> str:
        """The record's file name."""
        return f"{self.digest}.json"


def encode_record(record: SourceRecord) -> bytes:
    """The record's file content: indented, fields in their order."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1)


decode_record = msgspec.json.Decoder(SourceRecord).decode


class RankStepRecord(NamedTuple):
    """One rank in one step: the record of the source it came from, and what that tells of the step."""

    record: SourceRecord
    step: StepRecord


def records_by_step(records: Iterable[SourceRecord]) -> dict[StepKey, dict[int, RankStepRecord]]:
    """Sort the records of sources that went in by step and rank."""
    found: dict[StepKey, dict[int, RankStepRecord]] = {}
    for record in records:
        if record.rank is None:
            continue
        for step in record.steps:
            named = (step.epoch, step.step)  # equal to its key, and made in a third of the time
            if named not in found:
                found[step.key] = {}
            found[named][record.rank] = RankStepRecord(record, step)  # type: ignore[index]
    return found
