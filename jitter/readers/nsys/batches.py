"""Batches of an Nsight Systems export: activities, calls, ranges, and what delayed the threads of the host."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.errors import UnreadableTraceError
from jitter.core.numeric.arrays import Bools, Ints
from jitter.core.schema import LONG_OPERATION_NS, MIGRATION, OFF_CPU, PROFILER
from jitter.readers import Batch, make_batch
from jitter.readers.columns import Interner, look_up
from jitter.readers.nccl_calls import NcclCalls
from jitter.readers.nsys.metadata import ExportMetadata, process_key, read_nccl_calls
from jitter.readers.nsys.tables import (
    CALL_CHAINS,
    CUPTI_OVERHEAD,
    GRAPH_TRACE,
    KERNEL,
    MEMCPY,
    MEMSET,
    NVTX,
    OSRT,
    OVERHEAD,
    RUNTIME,
    SCHEDULING,
    ExportStrings,
    NameKey,
    RowFilter,
    Tables,
    decode_utf8,
    name_copies,
    read_registered_strings,
)

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
        self._last = np.zeros((len(SCHEDULING_COLUMNS), 0), np.int64)
        """The last event of each thread, a column each."""

    def pair(self, rows: pa.RecordBatch) -> OffCpu:
        """Return the intervals that end in these rows (`SCHEDULING_COLUMNS`); rows that lack a value are left out."""
        known = pa.Table.from_batches([rows]).drop_null()
        events = np.concatenate([self._last, [known[name].to_numpy() for name in SCHEDULING_COLUMNS]], axis=1)
        start, _, is_in, thread = events
        # at equal times a thread leaves before it comes back
        start, cpu, is_in, thread = events = events[:, np.lexsort((is_in != 0, start, thread))]
        is_same = np.diff(thread) == 0
        self._last = events[:, np.append(~is_same, True)[: len(thread)]]
        back = np.flatnonzero(is_same & (is_in[:-1] == 0) & (is_in[1:] != 0))
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
        return np.where(is_valid, look_up(self._ids, self._function, wanted), -1)

    def _program_frames(self, tables: Tables) -> tuple[Ints, Ints]:
        """Return (symbol, module) of the frames that are of the program, sorted, shape (2, n), with their functions."""
        distinct = np.zeros((2, 0), np.int64)
        for rows in tables.read(CALL_CHAINS, ["symbol", "module"]):
            pairs = np.stack([column.fill_null(-1).to_numpy() for column in rows.columns])
            distinct = np.unique(np.concatenate([distinct, pairs], axis=1), axis=1)
        strings = ExportStrings(tables, np.unique(distinct))
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
            number = look_up(combined, functions, wanted)
            of_program = number >= 0
            chain = np.concatenate([chain, ids[of_program]])
            depth = np.concatenate([depth, level[of_program]])
            function = np.concatenate([function, number[of_program]])
            order = np.lexsort((depth, chain))
            kept = order[np.append(True, np.diff(chain[order]) != 0)] if len(order) else order
            chain, depth, function = chain[kept], depth[kept], function[kept]
        self._ids, self._function = chain, function


def _smallest(tables: Tables, table: str, column: str) -> int | None:
    """Return the smallest value of a column; None if all are null."""
    minima = [pc.min(rows[column]).as_py() for rows in tables.read(table, [column])]
    return min((minimum for minimum in minima if minimum is not None), default=None)


_CALLS: Final = RowFilter("eventClass", (0, 1))  # runtime and driver; 67 repeats a call with its call chain
_CHAINED: Final = RowFilter("eventClass", (67,))
_BY_PROFILER: Final = RowFilter("overheadType", (3, 4, 5))  # flush, instrumentation, resources; others are CUDA's
_OVERHEAD_COLUMNS: Final = ("start", "end", "globalTid")
_MPI_RANK: Final = 39
_RANGES: Final = RowFilter("eventType", (59, 60, _MPI_RANK))  # push/pop, start/end
_MPI_RANK_TEXT: Final = re.compile(r"MPI Rank (\d{1,9})")
_THREAD_BITS: Final = 0xFF_FFFF
_GRID: Final = {f"{part}_{axis}": f"{part}{axis.upper()}" for part in ("grid", "block") for axis in "xyz"}


_REPLAYS: Final = (
    "CUDA graph replays were recorded as a whole; `nsys profile --cuda-graph-trace=node` would show their kernels"
)
_OF_SEVERAL: Final = (
    "GPU activities state no process, and several processes made CUDA calls: their launches are unknown"
)
_TEXTLESS: Final = "NVTX ranges without a text were left out"
_INVALID: Final = "texts are not valid UTF-8: their invalid bytes were replaced"
_NAMELESS: Final = "names are missing from the export's StringIds"
_LAST: Final = (_OF_SEVERAL, _TEXTLESS, _INVALID, _NAMELESS)


class NsysBatches:
    """Converts the tables of one export into batches, with shared processes, names and counts."""

    def __init__(self, tables: Tables, origin: ExportMetadata) -> None:
        """Prepare without reading anything."""
        self._tables = tables
        self._origin = origin
        self.processes: Interner[int | None] = Interner()
        """Keys are globalPid >> 24; None for rows without a process."""
        self.names: Interner[NameKey] = Interner()
        self.nvtx_ranks: dict[int | None, set[int]] = {}
        """Ranks from "MPI Rank N" annotations, by globalPid >> 24."""
        self._counts: Counter[str] = Counter()
        """Number of rows that are incomplete, by what is wrong with them."""

    @cached_property
    def nccl(self) -> NcclCalls:
        """Messages of NCCL's kernels; read with the first kernels."""
        return read_nccl_calls(self._tables)

    def problems(self, missing_names: int, invalid_names: int) -> list[str]:
        """Return what is missing or damaged, one sentence each, after the last row."""
        counts = self._counts + Counter({_NAMELESS: missing_names, _INVALID: invalid_names})
        problems = [f"{counts.pop(_REPLAYS)} {_REPLAYS}"] if _REPLAYS in counts else []
        problems += [f"{count} {what}" for what, count in counts.items() if what not in _LAST]
        problems += self._tables.problems()
        if self.nccl.unknown_sizes:
            problems.append(
                f"sizes of {self.nccl.unknown_sizes} collective calls are unknown: the creation of their "
                "communicators, which states the number of ranks, was not recorded"
            )
        if not self._tables.columns(RUNTIME):
            problems.insert(0, "no CUDA API calls in this export: which call launched a kernel is unknown")
        return problems + [f"{counts[what]} {what}" for what in _LAST if what in counts]

    def parts(self) -> dict[str, Callable[[], Iterator[Batch]]]:
        """Return the function that reads each table, for the tables that the export has."""
        parts: dict[str, Callable[[], Iterator[Batch]]] = {
            KERNEL: self._kernels,
            GRAPH_TRACE: self._replays,
            MEMCPY: lambda: self._memory(MEMCPY, ["copyKind", "srcKind", "dstKind", "bytes"]),
            MEMSET: lambda: self._memory(MEMSET, ["bytes"]),
            RUNTIME: self._calls,
            NVTX: self._ranges,
            OSRT: self._system_calls,
            SCHEDULING: self._off_cpu,
            OVERHEAD: lambda: self._overhead(OVERHEAD),
            CUPTI_OVERHEAD: lambda: self._overhead(CUPTI_OVERHEAD),
            CALL_CHAINS: self._callers,
        }
        return {table: part for table, part in parts.items() if self._tables.columns(table)}

    def _kernels(self) -> Iterator[Batch]:
        name = "demangledName" if "demangledName" in self._tables.columns(KERNEL) else "shortName"
        for rows in self._read(KERNEL, [name, *_GRID.values()]):
            yield self._activities(rows, self.names.positions(rows[name], lambda id_: id_), is_memory=False)

    def _replays(self) -> Iterator[Batch]:
        for rows in self._read(GRAPH_TRACE, ["graphId"]):
            self._counts[_REPLAYS] += rows.num_rows
            names = self.names.positions(
                rows["graphId"], lambda number: "CUDA graph" if number is None else f"CUDA graph {number}"
            )
            yield self._activities(rows, names, is_memory=False)

    def _memory(self, table: str, further: Sequence[str]) -> Iterator[Batch]:
        for rows in self._read(table, further):
            if "copyKind" in self._tables.columns(table):
                names = name_copies(rows, self.names, self._origin.copy_kinds)
            else:
                names = self._one_name("[CUDA memcpy]" if table == MEMCPY else "[CUDA memset]", rows.num_rows)
            yield self._activities(rows, names, is_memory=True)

    def _read(self, table: str, further: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the activities of a table."""
        yield from self._read_timed(table, ["deviceId", "streamId", "correlationId", "globalPid", *further])

    def _activities(self, rows: pa.RecordBatch, names: pa.Array, *, is_memory: bool) -> Batch:
        processes = self._processes_of(self._of_only_process(rows["globalPid"]))
        columns = {
            "process": processes,
            "device": self._gpus(processes, rows["deviceId"]),
            "stream": rows["streamId"],
            "name": names,
            "is_memory": pa.array(np.full(rows.num_rows, is_memory)),
            "start_ns": rows["start"],
            "end_ns": rows["end"],
            "correlation": rows["correlationId"],
        }
        columns |= {name: rows[source] for name, source in _GRID.items() if source in rows.schema.names}
        if is_memory:
            columns["size_bytes"] = rows["bytes"]
        elif self.nccl.messages:
            keys = np.array([-1 if key is None else key for key in self.processes.keys], np.int64)
            columns |= self.nccl.columns(keys[processes.to_numpy()], columns["correlation"])
        return make_batch("activities", columns)

    def _calls(self) -> Iterator[Batch]:
        for rows in self._read_timed(RUNTIME, ["globalTid", "correlationId", "nameId"], only=_CALLS):
            columns = self._host_columns(rows["globalTid"], rows["start"], rows["end"])
            columns["name"] = self.names.positions(rows["nameId"], lambda id_: id_)
            yield make_batch("calls", columns | {"correlation": rows["correlationId"]})

    def _ranges(self) -> Iterator[Batch]:
        if _RANGES.column not in self._tables.columns(NVTX):
            return
        registered = read_registered_strings(self._tables, NVTX, _RANGES)
        for read in self._read_timed(NVTX, ["eventType", "globalTid", "textId"], ["text"], _RANGES):
            texts = pc.coalesce(read["text"], registered.at(read["textId"]))
            rows = read.filter(texts.is_valid())
            self._counts[_TEXTLESS] += len(texts) - rows.num_rows
            text, invalid = decode_utf8(texts.drop_null())
            self._counts[_INVALID] += invalid
            is_rank = pc.equal(rows["eventType"], _MPI_RANK)
            for thread, label in zip(
                rows["globalTid"].filter(is_rank).to_pylist(), text.filter(is_rank).to_pylist(), strict=True
            ):
                if match := _MPI_RANK_TEXT.fullmatch(label.strip()):
                    self.nvtx_ranks.setdefault(_process_key(thread), set()).add(int(match[1]))
            is_range = pc.invert(is_rank)
            rows, text = rows.filter(is_range), text.filter(is_range)
            columns = self._host_columns(rows["globalTid"], rows["start"], rows["end"])
            yield make_batch("ranges", columns | {"text": text})

    def _system_calls(self) -> Iterator[Batch]:
        """Yield long calls of the operating system's libraries (locks, polls, file access) as operators."""
        for read in self._read_timed(OSRT, ["globalTid", "nameId"]):
            took = pc.subtract(read["end"], read["start"])
            rows = read.filter(pc.fill_null(pc.greater_equal(took, LONG_OPERATION_NS), False))
            names = self.names.positions(rows["nameId"], lambda id_: id_)
            yield self._operators(rows["globalTid"], names, rows["start"], rows["end"])

    def _off_cpu(self) -> Iterator[Batch]:
        """Yield migrations of threads to another core, and other times off the CPU if they are long, as operators."""
        threads = ThreadScheduling()
        for read in self._tables.read(SCHEDULING, list(SCHEDULING_COLUMNS)):
            intervals = threads.pair(read)
            kept = intervals.is_migration | (intervals.end_ns - intervals.start_ns >= LONG_OPERATION_NS)
            names = np.array([self.names.position(OFF_CPU), self.names.position(MIGRATION)], np.int32)
            yield self._operators(
                pa.array(intervals.thread[kept]),
                pa.array(names[intervals.is_migration[kept].astype(np.int64)]),
                pa.array(intervals.start_ns[kept]),
                pa.array(intervals.end_ns[kept]),
            )

    def _overhead(self, table: str) -> Iterator[Batch]:
        """Yield the times in which the profiler held up a thread as operators."""
        has = self._tables.columns(table)
        if not has.issuperset(_OVERHEAD_COLUMNS) or (_BY_PROFILER.column not in has and table == CUPTI_OVERHEAD):
            return  # CUDA's own overhead stands there, too
        for rows in self._tables.read(table, _OVERHEAD_COLUMNS, only=_BY_PROFILER):
            names = self._one_name(PROFILER, rows.num_rows)
            yield self._operators(rows["globalTid"], names, rows["start"], rows["end"])

    def _callers(self) -> Iterator[Batch]:
        """Yield the functions that made CUDA calls, each over its call, as frames of the stack."""
        if not self._tables.columns(RUNTIME).issuperset((_CHAINED.column, "callchainId", "globalTid")):
            return
        chains = CallChains(self._tables)
        names = np.array([self.names.position(text) for text in chains.functions], np.int32)
        for read in self._tables.read(RUNTIME, ["start", "end", "globalTid", "callchainId"], only=_CHAINED):
            function = chains.of(read["callchainId"])
            is_known = (function >= 0) & read["start"].is_valid().to_numpy(zero_copy_only=False)
            rows = read.filter(pa.array(is_known))
            start_ns = pc.subtract(rows["start"], 1)  # around the call
            ends = pc.max_element_wise(rows["start"], rows["end"])
            functions = pa.array(names[function[is_known]])
            yield self._operators(rows["globalTid"], functions, start_ns, ends, is_module=True)

    def _operators(
        self, threads: pa.Array, names: pa.Array, start_ns: pa.Array, end_ns: pa.Array, *, is_module: bool = False
    ) -> Batch:
        columns = self._host_columns(threads, start_ns, end_ns)
        columns |= {"name": names, "is_module": pa.array(np.full(len(threads), is_module))}
        return make_batch("operators", columns)

    def _host_columns(self, threads: pa.Array, start_ns: pa.Array, end_ns: pa.Array) -> dict[str, pa.Array]:
        return {
            "process": self._processes_of(threads),
            "thread": pc.bit_wise_and(threads, _THREAD_BITS),
            "start_ns": start_ns,
            "end_ns": end_ns,
        }

    def _read_timed(
        self, table: str, integers: Sequence[str], texts: Sequence[str] = (), only: RowFilter | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield these columns, `start` and `end` of a table, which must have the latter."""
        for column in ("start", "end"):
            if column not in self._tables.columns(table):
                raise UnreadableTraceError(
                    f"{self._tables.path}: table {table} has no column `{column}`",
                    f"export the report again: nsys export --type {self._tables.export_type} REPORT.nsys-rep",
                )
        yield from self._tables.read(table, ["start", "end", *integers], texts, only)

    def _processes_of(self, global_ids: pa.Array) -> pa.Array:
        # the low bits identify threads: without them few distinct values remain
        pids = pc.bit_wise_and(global_ids, ~_THREAD_BITS)
        return self.processes.positions(pids, _process_key)

    def _of_only_process(self, global_ids: pa.Array) -> pa.Array:
        """Return the globalPids of activities; where it is not recorded, that of the only process, if there is one."""
        if not global_ids.null_count:
            return global_ids
        if len(self._calling_processes) == 1:
            return global_ids.fill_null(self._calling_processes[0])
        self._counts[_OF_SEVERAL] += global_ids.null_count if self._calling_processes else 0
        return global_ids

    @cached_property
    def _calling_processes(self) -> list[int]:
        """The processes that made CUDA calls, or else have NVTX ranges, as globalPids."""
        for table in (RUNTIME, NVTX):
            process_ids: set[int] = set()
            for rows in self._tables.read(table, ["globalTid"]):
                process_ids.update(pc.unique(pc.bit_wise_and(rows["globalTid"], ~_THREAD_BITS)).drop_null().to_pylist())
            if process_ids:
                return sorted(process_ids)
        return []

    def _gpus(self, processes: pa.Array, devices: pa.Array) -> pa.Array:
        """Return the recording's GPU numbers; a process numbers only the GPUs it sees (CUDA_VISIBLE_DEVICES)."""
        if not self._origin.gpus:
            return devices
        device = devices.fill_null(-1).to_numpy()
        gpu = device.copy()
        process = processes.to_numpy()
        for position, key in enumerate(self.processes.keys):
            for (pid, cuda), number in self._origin.gpus.items():
                if key is not None and key & _THREAD_BITS == pid:
                    gpu[(process == position) & (device == cuda)] = number
        return pa.array(gpu, mask=devices.is_null().to_numpy(zero_copy_only=False))

    def _one_name(self, name: str, rows: int) -> pa.Array:
        return pa.array(np.full(rows, self.names.position(name), np.int32))


def _process_key(global_id: int | None) -> int | None:
    return None if global_id is None else process_key(global_id)
