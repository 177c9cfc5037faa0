"""Batches of AMD's profilers: conversion of their raw columns to activities, calls and ranges."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import map_distinct
from jitter.readers import Batch, Process, Recording, make_batch
from jitter.readers.amd.file_names import rank_in_file_name
from jitter.readers.capture_times import CaptureTimes

Columns = Mapping[str, pa.Array]

BATCH_ROWS: Final = 32_768
SHAPE_COLUMNS: Final = {
    f"{column}_{axis}": f"{source}_size_{axis}"
    for column, source in (("grid", "grid"), ("block", "workgroup"))
    for axis in "xyz"
}
"""The columns of launch shapes by those of `schema.ACTIVITIES`, as rocprofv3 names them in CSV files and databases."""
INVALID_BYTE: Final = "\x1a"
"""Stands for an invalid byte in the texts of CSV files: the control character SUBSTITUTE, which no name contains."""
_MOST_NAMES: Final = 5
_WORDS: Final = {"activities": "GPU activities", "calls": "API calls", "ranges": "roctx ranges"}
# queue entries that order other entries and run nothing
_NO_KERNEL: Final = re.compile(r'^"*<?\s*barrier(?:\s+packet)?\s*>?"*$|^Marker$|^Barrier(?:Packet)?$', re.IGNORECASE)
# kernels with which HIP copies and fills where it does not use copy engines
_BLIT: Final = re.compile(r"^__amd_rocclr_(?:copy|fill)")
_LOADER_SUFFIX: Final = re.compile(r"(?: \[clone \.kd\]|\.kd)$")


class BatchBuilder:
    """Converts raw columns into batches, with shared processes, names and counts of rows left out."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.names: list[str] = []
        self.left_out: Counter[str] = Counter()
        """Number of rows that could not be used, by reason."""
        # one for each kind of file: those of one recording may have several clocks
        self._times: defaultdict[str, CaptureTimes] = defaultdict(CaptureTimes)
        self._process_of: dict[Hashable, int] = {}
        self._name_of: dict[str, int] = {}
        self._is_blit: list[bool] = []
        self._is_kernel: list[bool] = []

    def process(self, key: Hashable, make: Callable[[], Process]) -> int:
        """Return the index of the process with this key; `make` creates a new one."""
        if key not in self._process_of:
            self._process_of[key] = len(self.processes)
            self.processes.append(make())
        return self._process_of[key]

    def by_pid(self, pids: pa.Array) -> pa.Array:
        """Return the indices (int32) of the processes with these pids (int64, null where not recorded)."""
        return map_distinct(pids, lambda pid: self.process(pid, lambda: Process(pid, None)), pa.int32())

    def name(self, text: str) -> int:
        """Return the index of a name."""
        text = _LOADER_SUFFIX.sub("", text)
        if text not in self._name_of:
            self._name_of[text] = len(self.names)
            self.names.append(text)
            self._is_blit.append(_BLIT.match(text) is not None)
            self._is_kernel.append(_NO_KERNEL.match(text) is None)
        return self._name_of[text]

    def named(self, texts: pa.Array) -> pa.Array:
        """Return the indices (int32) of names (binary or string; null is the empty name)."""
        return map_distinct(texts, lambda text: self.name(decode_text(text)), pa.int32())

    def activities(self, columns: Columns, *, copies: bool, grids_in_items: bool = True) -> Batch:
        """Return a batch of activities from columns of ACTIVITIES; grids in work items become work groups.

        Barriers and markers are dropped; rows without a valid time are counted and left out.
        """
        names = columns["name"].to_numpy()
        kept = np.array(self._is_kernel, np.bool_)[names] if len(names) else np.zeros(0, np.bool_)
        ends_after = pc.fill_null(pc.greater_equal(columns["end_ns"], columns["start_ns"]), False)
        possible = pc.and_(
            ends_after, self._times["copies" if copies else "activities"].check(columns["start_ns"], columns["end_ns"])
        )
        possible = possible.to_numpy(zero_copy_only=False)
        self._leave_out("activities", int((kept & ~possible).sum()))
        mask = pa.array(kept & possible)
        found = {name: column.filter(mask) for name, column in columns.items()}
        blit = np.array(self._is_blit, np.bool_)
        which = found["name"].to_numpy()
        found["is_memory"] = pa.array(np.full(len(which), True) if copies else blit[which])
        for axis in "xyz":
            items, group = found.get(f"grid_{axis}"), found.get(f"block_{axis}")
            if grids_in_items and items is not None and group is not None:
                found[f"grid_{axis}"] = _groups(items, group)
        return make_batch("activities", found)

    def calls(self, columns: Columns) -> Batch:
        """Return a batch of calls from columns of CALLS; rows without a possible time are counted and left out."""
        return make_batch("calls", self._started("calls", columns))

    def ranges(self, columns: Columns) -> Batch:
        """Return a batch of ranges from columns of RANGES.

        Marks (no duration) are dropped; rows without a possible time or a text are counted and left out.
        """
        mark = pc.fill_null(pc.equal(columns["start_ns"], columns["end_ns"]), False)
        found = {name: column.filter(pc.invert(mark)) for name, column in columns.items()}
        started = self._started("ranges", found)
        texts = [None if value is None else decode_text(value) for value in started["text"].to_pylist()]
        started["text"] = pa.array(texts, pa.string())
        has_text = started["text"].is_valid()
        if has_text.false_count:
            self.left_out["roctx ranges without a text"] += has_text.false_count
        return make_batch("ranges", {name: column.filter(has_text) for name, column in started.items()})

    def problems(self) -> list[str]:
        """Return a sentence for each kind of rows left out."""
        return [f"{count} {what} were left out" for what, count in self.left_out.items() if count]

    def complete(self, recording: Recording, name: str, problems: Iterable[str] = ()) -> None:
        """Complete a recording after its last row: processes, names, the rank that `name` ends with, problems."""
        recording.processes, recording.names = self.processes, self.names
        pids = frozenset(process.pid for process in self.processes if process.pid is not None)
        recording.rank_in_name = rank_in_file_name(name, pids)
        recording.problems += [*problems, *self.problems()]

    def _started(self, table: Literal["calls", "ranges"], columns: Columns) -> dict[str, pa.Array]:
        valid = self._times[table].check(columns["start_ns"], columns["end_ns"])
        self._leave_out(table, valid.false_count)
        found = {name: column.filter(valid) for name, column in columns.items()}
        possible = pc.greater_equal(found["end_ns"], found["start_ns"])
        found["end_ns"] = pc.if_else(possible, found["end_ns"], pa.scalar(None, pa.int64()))
        return found

    def _leave_out(self, table: str, count: int) -> None:
        if count:
            self.left_out[f"{_WORDS[table]} without a possible time"] += count


def decode_text(value: bytes | str | None) -> str:
    """Return a name or text as a string; invalid UTF-8 is replaced, null is empty."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else value.decode("utf-8", "replace")
    return text.replace(INVALID_BYTE, "\ufffd")


def process_column(position: int, rows: int) -> pa.Array:
    """Return a process column with the same index in each row."""
    return pa.repeat(pa.scalar(position, pa.int32()), rows)


def join_names(names: Sequence[str]) -> str:
    """Return the first names as text, with the number of the others."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _groups(items: pa.Array, group: pa.Array) -> pa.Array:
    size = pc.if_else(pc.greater(group, 0), group, pa.scalar(None, group.type))
    groups = pc.divide(pc.add(items, pc.subtract(size, 1)), size)
    return pc.if_else(pc.less(groups, 2**31), groups, pa.scalar(None, groups.type))
