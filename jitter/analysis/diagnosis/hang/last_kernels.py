"""Where the ranks of a hang were last, by their recordings: the last kernel, its step and its code."""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import pyarrow.compute as pc

from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import abbreviate, escape_control, format_time
from jitter.core.names.kernels import KINDS, MEMORY, short_name
from jitter.core.step_key import StepKey
from jitter.lake.records import SourceRecord
from jitter.lake.step_reader import StepColumns

_MOST: Final = THRESHOLDS.sentences.max_named
_COLUMNS: Final = ("kernel_name", "kind", "end_ns", "operator", "source_line")


class Recordings(Protocol):
    """The source of the rows; `jitter.Lake` has these members."""

    sources: list[SourceRecord]

    def step_columns(self, key: StepKey, columns: Sequence[str], ranks: Sequence[int] | None = None) -> StepColumns:
        """Return columns of one step's rows."""


def describe_last_kernels(recordings: Recordings, ranks: Sequence[int], entered_ns: int | None) -> list[str]:
    """Return a clause for each of these ranks that has a recording, the first few; `entered_ns` is when they hung.

    Raises `LakeError` if a file of the lake is missing or damaged.
    """
    known = [rank for rank in ranks if any(record.rank == rank and record.steps for record in recordings.sources)]
    return [text for rank in known[:_MOST] for text in _describe(recordings, rank, entered_ns)]


def _describe(recordings: Recordings, rank: int, entered_ns: int | None) -> Iterator[str]:
    held = [(record, step) for record in recordings.sources if record.rank == rank for step in record.steps]
    record, step = max(held, key=lambda one: one[1].start_ns + (one[0].utc_offset_ns or 0))
    rows = recordings.step_columns(step.key, _COLUMNS, [rank]).of_kinds(KINDS[:MEMORY]).table
    if not rows.num_rows:
        return
    last = rows.slice(pc.index(rows["end_ns"], pc.max(rows["end_ns"])).as_py(), 1).to_pylist()[0]
    before = ""
    if entered_ns is not None and record.utc_offset_ns is not None:
        ago = entered_ns - last["end_ns"] - record.utc_offset_ns
        if abs(ago) > THRESHOLDS.evidence.same_run_ns:
            return
        before = f", {format_time(abs(ago))} {'before' if ago >= 0 else 'after'} the call was entered"
    code = ", ".join(filter(None, (last["operator"], last["source_line"])))
    kernel = abbreviate(short_name(last["kernel_name"]))
    yield escape_control(
        f"rank {rank}'s recording ends in step {step.key} with kernel {kernel}{f' ({code})' if code else ''}{before}"
    )
