"""Batches of AMD's profilers: conversion of their raw columns to activities, calls and ranges."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.schema import ACTIVITIES, CALLS, RANGES
from jitter.readers import Batch, Process

Columns = Mapping[str, pa.Array]

BATCH_ROWS: Final = 32_768
INVALID_BYTE: Final = "\x1a"
"""Stands for an invalid byte in the texts of CSV files: the control character SUBSTITUTE, which no name contains."""
_TABLES: Final = {"activities": ACTIVITIES, "calls": CALLS, "ranges": RANGES}
_WORDS: Final = {"activities": "GPU activities", "calls": "API calls", "ranges": "roctx ranges"}
# queue entries that order other entries and run nothing
_NO_KERNEL: Final = re.compile(r'^"*<?\s*barrier(?:\s+packet)?\s*>?"*$|^Marker$|^Barrier(?:Packet)?$', re.IGNORECASE)
# kernels with which HIP copies and fills where it does not use copy engines
_BLIT: Final = re.compile(r"^__amd_rocclr_(?:copy|fill)")
_LOADER_SUFFIX: Final = re.compile(r"(?: \[clone \.kd\]|\.kd)$")


class BatchBuilder:
    """Converts raw columns into batches, with shared processes, names and counts of rows left out."""

    def __init__(self) -> None:
        """Start without processes and names."""
        self.processes: list[Process] = []
        self.names: list[str] = []
        self.left_out: Counter[str] = Counter()
        """Number of rows that could not be used, by reason."""
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

    def by_pid(self, pids: pa.Array, host: str | None = None) -> pa.Array:
        """Return the indices (int32) of the processes with these pids (int64, null where not recorded)."""
        encoded = pids.dictionary_encode("encode")
        lookup = np.array(
            [self.process(pid, lambda pid=pid: Process(pid, host)) for pid in encoded.dictionary.to_pylist()],  # type: ignore[misc]
            np.int32,
        )
        return pa.array(lookup[encoded.indices.to_numpy()], pa.int32())

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
        encoded = texts.dictionary_encode("encode")
        lookup = np.array([self.name(decode_text(value)) for value in encoded.dictionary.to_pylist()], np.int32)
        return pa.array(lookup[encoded.indices.to_numpy()], pa.int32())

    def activities(self, columns: Columns, *, copies: bool, grids_in_items: bool = True) -> Batch:
        """Return a batch of activities from columns of ACTIVITIES; grids in work items become work groups.

        Barriers and markers are dropped; rows without a valid time are counted and left out.
        """
        names = columns["name"].to_numpy()
        kept = np.array(self._is_kernel, np.bool_)[names] if len(names) else np.zeros(0, np.bool_)
        possible = pc.fill_null(pc.greater_equal(columns["end_ns"], columns["start_ns"]), False)
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
        return _batch("activities", found)

    def calls(self, columns: Columns) -> Batch:
        """Return a batch of calls from columns of CALLS; rows without a start are counted and left out."""
        return _batch("calls", self._started("calls", columns))

    def ranges(self, columns: Columns) -> Batch:
        """Return a batch of ranges from columns of RANGES.

        Marks (no duration) are dropped; rows without a start or text are counted and left out.
        """
        mark = pc.fill_null(pc.equal(columns["start_ns"], columns["end_ns"]), False)
        found = {name: column.filter(pc.invert(mark)) for name, column in columns.items()}
        started = self._started("ranges", found)
        texts = [None if value is None else decode_text(value) for value in started["text"].to_pylist()]
        started["text"] = pa.array(texts, pa.string())
        has_text = started["text"].is_valid()
        missing = len(texts) - int(pc.sum(has_text.cast(pa.int64())).as_py() or 0)
        if missing:
            self.left_out["roctx ranges without a text"] += missing
        return _batch("ranges", {name: column.filter(has_text) for name, column in started.items()})

    def problems(self) -> list[str]:
        """Return a sentence for each kind of rows left out."""
        return [f"{count} {what} were left out" for what, count in self.left_out.items() if count]

    def _started(self, table: Literal["calls", "ranges"], columns: Columns) -> dict[str, pa.Array]:
        valid = columns["start_ns"].is_valid()
        self._leave_out(table, len(valid) - int(pc.sum(valid.cast(pa.int64())).as_py() or 0))
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


def parse_integers(values: pa.Array) -> pa.Array:
    """Return texts (binary or string) as int64; null where a text is no integer."""
    texts = values.cast(pa.string()) if _is_utf8(values) else pa.array([decode_text(v) for v in values.to_pylist()])
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:
        plain = pc.match_substring_regex(texts, r"^-?\d{1,18}$")
        return pc.if_else(plain, texts, pa.scalar(None, pa.string())).cast(pa.int64())


def constant_column(value: int | None, rows: int, kind: pa.DataType | None = None) -> pa.Array:
    """Return a column with the same value in each row."""
    return pa.array([value], kind or pa.int64()).take(pa.array(np.zeros(rows, np.int32)))


def process_column(position: int, rows: int) -> pa.Array:
    """Return a process column with the same index in each row."""
    return constant_column(position, rows, pa.int32())


def map_values(keys: pa.Array, by_key: Mapping[int, int], *, or_itself: bool) -> pa.Array:
    """Return the value of each key (int64); for an unknown key the key itself (`or_itself`) or null."""
    encoded = keys.dictionary_encode("encode")
    found = [by_key.get(key, key if or_itself else None) for key in encoded.dictionary.to_pylist()]
    return pa.array(found, pa.int64()).take(encoded.indices)


def join_names(names: Sequence[str], most: int = 5) -> str:
    """Return at most `most` names as text, with the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _is_utf8(values: pa.Array) -> bool:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _groups(items: pa.Array, group: pa.Array) -> pa.Array:
    size = pc.if_else(pc.greater(group, 0), group, pa.scalar(None, group.type))
    groups = pc.divide(pc.add(items, pc.subtract(size, 1)), size)
    return pc.if_else(pc.less(groups, 2**31), groups, pa.scalar(None, groups.type))


def _batch(table: Literal["activities", "calls", "ranges"], columns: Columns) -> Batch:
    schema = _TABLES[table]
    fields = [schema.field(name) for name in columns]
    arrays = [columns[field.name].cast(field.type) for field in fields]
    return Batch(table, pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)))
