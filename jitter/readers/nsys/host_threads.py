"""What delayed the threads of the host: times off the CPU, and the functions of the program that made CUDA calls."""

import re
from pathlib import PurePath
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.numeric.arrays import Bools, Ints
from jitter.readers.nsys.names import StringTable, decode_utf8
from jitter.readers.nsys.tables import CALL_CHAINS, RUNTIME, Tables

SCHEDULING_COLUMNS: Final = ("start", "cpu", "isSchedIn", "globalTid")
_LIBRARY: Final = re.compile(
    r"(?:ld-|lib(?:c|m|rt|dl|pthread|stdc\+\+|gcc_s|gomp|cuda\w*|cu[a-z]+|nv\w*|nccl\w*|c10\w*|torch\w*|python[\d.]*)"
    r"(?:[-.]|$)|python[\d.]*$|\[|linux-vdso|cpython)"
)
"""Modules that are no part of the program: the system's, CUDA's, Python's and PyTorch's."""
_RUNTIME: Final = re.compile(
    r"(?:cuda\w+ )?(?:cuda|cu|nccl)[A-Z]\w*(?:[<(]|$)|__cud\w*|_start$|__libc_start\w*$|clone\d?$|start_thread$|0x"
)
"""Functions of CUDA's runtime, which may be linked into the program, and of its start."""
_FRAMES: Final = ["id", "symbol", "module", "stackDepth"]


class OffCpu(NamedTuple):
    """Intervals between an event out and the next event in of one thread; arrays have shape (intervals,)."""

    thread: Ints
    start_ns: Ints
    end_ns: Ints
    is_migration: Bools
    """Whether the thread came back on another core."""


class ThreadScheduling:
    """Pairs the events of each thread, batch by batch, at which the system schedules it in and out.

    Events may come in any order within a batch; of one thread, a later batch holds later events.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[int, int, int]] = {}
        """The last event of each thread: time, core, whether it is an event in."""

    def pair(self, rows: pa.RecordBatch) -> OffCpu:
        """Return the intervals that end in these rows (`SCHEDULING_COLUMNS`); rows without a thread are left out."""
        is_known = np.logical_and.reduce(
            [rows[name].is_valid().to_numpy(zero_copy_only=False) for name in SCHEDULING_COLUMNS]
        )
        start, cpu, is_in, thread = (rows[name].fill_null(0).to_numpy()[is_known] for name in SCHEDULING_COLUMNS)
        threads = np.unique(thread)
        held = [(thread_id, *self._before[thread_id]) for thread_id in threads.tolist() if thread_id in self._before]
        if held:
            columns = np.array(held, np.int64).T
            thread, start, cpu, is_in = (
                np.concatenate(pair) for pair in zip(columns, (thread, start, cpu, is_in), strict=True)
            )
        # at equal times a thread leaves before it comes back
        order = np.lexsort((is_in != 0, start, thread))
        thread, start, cpu, is_in = thread[order], start[order], cpu[order], is_in[order] != 0
        last = np.flatnonzero(np.append(np.diff(thread) != 0, True)) if len(thread) else np.zeros(0, np.int64)
        for thread_id, *event in zip(*(values[last].tolist() for values in (thread, start, cpu, is_in)), strict=True):
            self._before[thread_id] = (event[0], event[1], int(event[2]))
        back = np.flatnonzero((np.diff(thread) == 0) & ~is_in[:-1] & is_in[1:]) if len(thread) else last
        return OffCpu(thread[back], start[back], start[back + 1], cpu[back] != cpu[back + 1])


class CallChains:
    """The innermost function of the program in each call chain of CUDA calls."""

    def __init__(self, tables: Tables) -> None:
        """Read the chains. Raises what `tables` raises."""
        self.functions: list[str] = []
        """Functions as `module!function`, each once."""
        self._ids: Ints = np.zeros(0, np.int64)
        self._function: Ints = np.zeros(0, np.int64)
        self._shift = 0
        if not tables.columns(CALL_CHAINS).issuperset(_FRAMES):
            return
        self._read(tables, *self._program_frames(tables))
        # exports of 2021 and 2022: calls number the chains from 0, and the table of chains from 1
        self._shift = int(_smallest(tables, CALL_CHAINS, "id") == 1 and _smallest(tables, RUNTIME, "callchainId") == 0)

    def of(self, chains: pa.Array) -> Ints:
        """Return the index into `functions` of each `callchainId` (int64, nullable); −1: none is known."""
        wanted = chains.fill_null(-1).to_numpy() + self._shift
        is_valid = chains.is_valid().to_numpy(zero_copy_only=False)
        return np.where(is_valid, _look_up(self._ids, self._function, wanted), -1)

    def _program_frames(self, tables: Tables) -> tuple[Ints, Ints]:
        """Return (symbol, module) of the frames that are of the program, sorted, shape (2, n), with their functions."""
        distinct = np.zeros((2, 0), np.int64)
        for rows in tables.read(CALL_CHAINS, ["symbol", "module"]):
            pairs = np.stack([column.fill_null(-1).to_numpy() for column in rows.columns])
            distinct = np.unique(np.concatenate([distinct, pairs], axis=1), axis=1)
        strings = StringTable(tables, np.unique(distinct))
        symbols, modules = (decode_utf8(strings.at(pa.array(ids)))[0].to_pylist() for ids in distinct)
        numbers: dict[str, int] = {}
        function = np.full(distinct.shape[1], -1, np.int64)
        for position, (symbol, module) in enumerate(zip(symbols, modules, strict=True)):
            name = "" if module is None else PurePath(module).name
            if symbol is not None and name and not _LIBRARY.match(name) and not _RUNTIME.match(symbol):
                function[position] = numbers.setdefault(f"{name}!{symbol}", len(numbers))
        self.functions = list(numbers)
        return distinct[:, function >= 0], function[function >= 0]

    def _read(self, tables: Tables, pairs: Ints, functions: Ints) -> None:
        width = int(pairs.max(initial=0)) + 2
        combined = pairs[0] * width + pairs[1]
        chain, depth, function = (np.zeros(0, np.int64) for _ in range(3))
        for rows in tables.read(CALL_CHAINS, _FRAMES):
            ids, symbol, module, level = (column.fill_null(-1).to_numpy() for column in rows.columns)
            wanted = np.where((symbol < width) & (module < width), symbol * width + module, -1)
            number = _look_up(combined, functions, wanted)
            of_program = number >= 0
            chain = np.concatenate([chain, ids[of_program]])
            depth = np.concatenate([depth, level[of_program]])
            function = np.concatenate([function, number[of_program]])
            order = np.lexsort((depth, chain))
            kept = order[np.append(True, np.diff(chain[order]) != 0)] if len(order) else order
            chain, depth, function = chain[kept], depth[kept], function[kept]
        self._ids, self._function = chain, function


def _look_up(keys: Ints, values: Ints, wanted: Ints) -> Ints:
    """Return the values of the keys (sorted) that are wanted, shape (wanted); −1 where there is no such key."""
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    at = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], -1)


def _smallest(tables: Tables, table: str, column: str) -> int | None:
    """Return the smallest value of a column; None if all are null, or the table lacks it."""
    if column not in tables.columns(table):
        return None
    minima = [pc.min(rows[column]).as_py() for rows in tables.read(table, [column])]
    return min((minimum for minimum in minima if minimum is not None), default=None)
