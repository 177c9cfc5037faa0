"""Capture: the rows of one recording while it is read, in memory or, for a long recording, on disk."""

import re
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from jitter.ingestion.transform.collective_calls import CollectiveCall, Communication, parse_collective_call
from jitter.ingestion.transform.launch_join import HostRange, JoinedCapture
from jitter.ingestion.transform.memory_join import MemoryJoin
from jitter.ingestion.transform.step_markers import Marker, parse_marker
from jitter.ingestion.transform.step_names import host_range_kind, is_unnumbered_step
from jitter.readers import Batch

if TYPE_CHECKING:
    from jitter.ingestion.transform.duckdb_join import DuckDbJoin

SPILL_BYTES = 64 << 20
"""Bytes of rows above which a recording is written to disk as it is read."""


LONGEST_NAME = 1 << 16
"""Characters of a name or of a range's text; longer ones are cut."""


class Capture:
    """Collects the rows of one recording: call `add` for each batch, then `join` once.

    A context manager; the result of `join` is valid within its block.
    """

    def __init__(self, pattern: re.Pattern[str], scratch: Path, declared: re.Pattern[str] | None = None) -> None:
        """Start empty; `declared` is the pattern of kernels that the user declares as communication."""
        self._pattern = pattern
        self._declared = declared
        self._collective_calls: list[CollectiveCall] = []
        self._scratch = scratch
        self._end = ExitStack()
        self._held: list[Batch] = []
        self._held_bytes = 0
        self._on_disk: DuckDbJoin | None = None
        self._host_ranges: list[HostRange] = []
        self.long_texts = 0
        """Number of range texts longer than `LONGEST_NAME`, which were cut."""
        self.markers: dict[int, list[Marker]] = defaultdict(list)
        """Ranges whose text states a step number, by process."""
        self.unnumbered: dict[int, list[Marker]] = defaultdict(list)
        """Ranges that are steps of a framework that writes no number, by process; their `step` is 0."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.close()

    def add(self, batch: Batch) -> None:
        """Add a batch; batches may come in any order."""
        if batch.table == "ranges":
            self._add_ranges(batch.rows)
        elif self._on_disk is not None:
            self._on_disk.add(batch.table, batch.rows)
        else:
            self._held.append(batch)
            self._held_bytes += batch.rows.nbytes
            if self._held_bytes > SPILL_BYTES:
                self._spill()

    def join(self, names: Sequence[str]) -> JoinedCapture:
        """Join activities with their launching calls; `names` are the names of the recording."""
        if self._on_disk is not None:
            self._on_disk.join(self._host_ranges, names, self.communication)
            return self._on_disk
        activities, calls = (
            [batch.rows for batch in self._held if batch.table == table] for table in ("activities", "calls")
        )
        self._held = []
        return MemoryJoin(activities, calls, self._host_ranges, names, self.communication)

    @property
    def communication(self) -> Communication:
        """Facts on the recording's communication besides its kernels; final after the last `add`."""
        return Communication(self._declared, self._collective_calls)

    def _spill(self) -> None:
        """Move the rows held so far into a database on disk."""
        from jitter.ingestion.transform.duckdb_join import (
            DuckDbJoin,
        )  # imports DuckDB, which most recordings do not need

        folder = self._end.enter_context(tempfile.TemporaryDirectory(dir=self._scratch, prefix="spill-"))
        self._on_disk = DuckDbJoin(Path(folder))
        self._end.callback(self._on_disk.close)
        held = self._held[::-1]
        self._held = []
        while held:  # one by one, so that rows are freed as the database takes them
            batch = held.pop()
            self._on_disk.add(batch.table, batch.rows)

    def _add_ranges(self, rows: pa.RecordBatch) -> None:
        columns = (rows.column(name).to_pylist() for name in ("process", "thread", "text", "start_ns", "end_ns"))
        for process, thread, whole_text, start_ns, end_ns in zip(*columns, strict=True):
            text = whole_text[:LONGEST_NAME]
            self.long_texts += len(whole_text) > LONGEST_NAME
            marker = parse_marker(self._pattern, thread, text, start_ns, end_ns)
            if marker is not None:
                self.markers[process].append(marker)
            elif is_unnumbered_step(text):
                kind = "".join("N" if char.isdecimal() else char for char in text)
                self.unnumbered[process].append(Marker(thread, text, start_ns, end_ns, None, 0, None, kind))
            elif (host_kind := host_range_kind(text)) is not None:
                self._host_ranges.append(HostRange(process, host_kind, text, thread, start_ns, end_ns))
            elif (call := parse_collective_call(text)) is not None:
                self._collective_calls.append(CollectiveCall(process, thread, start_ns, end_ns, *call))
