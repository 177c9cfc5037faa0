"""Capture: the rows of one recording while it is read."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import column_or_nulls
from jitter.core.schema import ACTIVITIES, CALLS, RANGES
from jitter.ingestion.names import DEFAULT_STEP_PATTERN, host_range_kind, is_unnumbered_step
from jitter.ingestion.transform.collective_calls import CollectiveCall, CommunicationFinder, parse_collective_call
from jitter.ingestion.transform.launch_join import HostRange, JoinedCapture, correlation_keys
from jitter.ingestion.transform.launch_scopes import DETAILS, NO_THREAD, OPEN, CodeRanges
from jitter.ingestion.transform.sorted_rows import SortedRows
from jitter.ingestion.transform.steps.step_markers import Marker, parse_range
from jitter.readers import Batch, Process

_MAX_OTHER_NUMBERED = 100
LONGEST_NAME = 1 << 16
"""Characters of a name or of a range's text; longer ones are cut."""


class Capture:
    """Collects the rows of one recording: call `add` for each batch, then `join` once."""

    def __init__(self, pattern: re.Pattern[str], scratch: Path, declared: re.Pattern[str] | None = None) -> None:
        """Start empty; `declared` is the pattern of kernels that the user declares as communication."""
        self._pattern = pattern
        self._declared = declared
        self._collective_calls: list[CollectiveCall] = []
        self._scratch = scratch
        least = (
            field for field in ACTIVITIES if not field.nullable or field.name in ("device", "stream", "correlation")
        )
        self._joined = {"activities": SortedRows(scratch, pa.schema(least)), "calls": SortedRows(scratch, CALLS)}
        """The tables of the launch join, in the order of their correlation."""
        self._host_ranges: list[HostRange] = []
        self.long_texts = 0
        """Number of range texts longer than `LONGEST_NAME`, which were cut."""
        self.code_ranges = CodeRanges(scratch)
        """The places in the code at which the host was: annotations, operators and modules."""
        self.marked: dict[int, list[Marker]] = defaultdict(list)
        """Ranges that mark steps, or may, by process."""
        self.other_numbered: list[str] = []
        """Numbered texts that the user's pattern does not match. Texts with other numbers are not listed again."""
        self._other_kinds: set[str] = set()

    def add(self, batch: Batch) -> None:
        """Add a batch; batches may come in any order."""
        if batch.table == "ranges":
            self._add_ranges(batch.rows)
        elif batch.table == "operators":
            self.code_ranges.add_operators(batch.rows)
        elif batch.table == "backward":
            self.code_ranges.backward.append(batch.rows)
        else:
            self._joined[batch.table].add(pa.Table.from_batches([batch.rows]), correlation_keys(batch.rows))

    def join(self, names: Sequence[str], processes: Sequence[Process] = ()) -> JoinedCapture:
        """Join activities with their launching calls; `names` and `processes` are those of the recording."""
        activities, calls = self._joined.pop("activities"), self._joined.pop("calls")
        activities.finish()
        calls.finish()
        launched_by = [process.launched_by for process in processes]
        whose = [at if by is None else by for at, by in enumerate(launched_by)] if {*launched_by} - {None} else []
        return JoinedCapture(activities, calls, self._host_ranges, names, self.communication, self._scratch, whose)

    @cached_property
    def communication(self) -> CommunicationFinder:
        """Facts on the recording's communication besides its kernels; read it after the last `add`."""
        return CommunicationFinder(self._declared, self._collective_calls)

    def _add_ranges(self, rows: pa.RecordBatch) -> None:
        texts = rows["text"]
        lengths = pc.utf8_length(texts)
        if len(texts) and pc.max(lengths).as_py() > LONGEST_NAME:
            self.long_texts += pc.sum(pc.greater(lengths, LONGEST_NAME)).as_py()
            texts = pc.utf8_slice_codeunits(texts, 0, LONGEST_NAME)
        if self._pattern.pattern == DEFAULT_STEP_PATTERN and pc.any(pc.match_substring(texts, "op_id = ")).as_py():
            texts = pc.replace_substring_regex(texts, DETAILS, "")  # else the text of each operator is a new one
        encoded = texts.dictionary_encode()
        listed, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
        # each distinct text is looked at once: a recording has many ranges and few texts
        takes, may_be_scope = zip(*map(self._taker, listed), strict=True) if listed else ((), ())
        special = np.array([take is not None for take in takes], np.bool_)[codes]
        columns = {
            name: column_or_nulls(rows, name, RANGES.field(name).type)
            for name in ("process", "thread", "start_ns", "end_ns")
        }
        chosen = np.flatnonzero(special)
        value_lists = (columns[name].take(pa.array(chosen)).to_pylist() for name in columns)
        for code, *values in zip(codes[chosen].tolist(), *value_lists, strict=True):
            take = takes[code]
            assert take is not None
            take(*values)
        kept = np.flatnonzero(np.array(may_be_scope, np.bool_)[codes])
        if len(kept):
            whole = {name: columns[name].take(pa.array(kept)) for name in columns}
            times_ns = np.stack([whole["start_ns"].to_numpy(), whole["end_ns"].fill_null(OPEN).to_numpy()])
            process = whole["process"].to_numpy().astype(np.int64)
            thread = whole["thread"].fill_null(NO_THREAD).to_numpy()
            self.code_ranges.add_ranges(process, thread, codes[kept], listed, times_ns)

    def _taker(self, text: str) -> "tuple[_Taker | None, bool]":
        """Return what takes the ranges with this text as step markers, data loading or collective calls.

        And whether they also count as places in the code.
        """
        if (marker := parse_range(self._pattern, text)) is not None:
            is_step = marker.role == "numbered" or is_unnumbered_step(text)
            return partial(self._add_marker, marker), not is_step
        host_kind = host_range_kind(text)
        if host_kind is not None:
            return lambda process, *rest: self._host_ranges.append(HostRange(process, host_kind, text, *rest)), True
        call = parse_collective_call(text)
        if call is not None:
            return lambda process, thread, start_ns, end_ns: self._collective_calls.append(
                CollectiveCall(process, thread, start_ns, end_ns, *call)
            ), True
        if self._pattern.pattern != DEFAULT_STEP_PATTERN and len(self._other_kinds) < _MAX_OTHER_NUMBERED:
            kind = re.sub(r"\d+", "N", text)
            if kind != text and kind not in self._other_kinds:
                self._other_kinds.add(kind)
                self.other_numbered.append(text)
        return None, True

    def _add_marker(self, marker: Marker, process: int, thread: int | None, start_ns: int, end_ns: int | None) -> None:
        """Add a range of the same text as `marker`."""
        self.marked[process].append(marker._replace(thread=thread, start_ns=start_ns, end_ns=end_ns))


_Taker = Callable[[int, int | None, int, int | None], None]
