"""Batches of rocprofv3's CSV files; columns are found by name, in any case and order."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import column_or_nulls, map_distinct
from jitter.readers import Advance, Batch, Process
from jitter.readers.amd.agents import Agents
from jitter.readers.amd.batches import SHAPE_COLUMNS, BatchBuilder, decode_text
from jitter.readers.amd.csv_file import CsvFile
from jitter.readers.amd.rccl import RcclCalls
from jitter.readers.integers import to_int64

_SPAN: Final = ("start_timestamp", "end_timestamp")
_TIMES: Final = (*_SPAN, "correlation_id")
_CALL: Final = ("guid", "domain", "function", "process_id", "thread_id", *_TIMES)
_KERNEL: Final = ("guid", "agent_id", "queue_id", "stream_id", "thread_id", "kernel_name", *_TIMES)
_COPY: Final = ("guid", "direction", "name", "stream_id", "source_agent_id", "destination_agent_id", *_TIMES)
KNOWN_COLUMNS: Final = frozenset(
    {*_CALL, *_KERNEL, *SHAPE_COLUMNS.values(), *_COPY, "kind", "dispatch_id", "kernel_id", "region", "category"}
    | {"pid", "tid", "private_segment_size", "group_segment_size", "lds_block_size", "scratch_size", "vgpr_count"}
    | {"accum_vgpr_count", "sgpr_count", "lds_block_size_v", "agent_abs_index", "size"}
)
"""All columns of the known versions, in lower case."""
# HSA calls that write a queue's doorbell launch kernels
_HSA_LAUNCH: Final = r"^hsa_(?:signal_store|queue_(?:store|add|cas)_write)"
_MANY_THREADS: Final = 10_000


class CsvBatches:
    """Batches of the files of one recording; read calls before kernels."""

    def __init__(self, agents: Agents, pid: int | None) -> None:
        self.rows = BatchBuilder()
        self.threads: set[int] = set()
        """Threads that launched kernels; where no process id is recorded, it is one of them."""
        self._agents = agents
        self._pid = pid
        self._rccl = RcclCalls()
        self.renamed: set[str] = set()
        """Kernel names that are texts of markers: rocprofv3 --kernel-rename wrote them."""

    def rccl(self, file: CsvFile, advance: Advance) -> Iterator[Batch]:
        """Read RCCL's calls, which state the operations of collectives; yields no batches."""
        file.require("function", *_SPAN)
        for batch in file.batches(("guid", "function", "process_id", "thread_id", *_TIMES), advance):
            self._rccl.add(
                self._processes(batch),
                _integers(batch, "thread_id"),
                _column(batch, "function"),
                _integers(batch, "start_timestamp"),
                _integers(batch, "end_timestamp"),
            )
        yield from ()

    def calls(self, file: CsvFile, advance: Advance) -> Iterator[Batch]:
        """Yield HIP calls, and HSA calls that launch kernels."""
        file.require("function", *_SPAN)
        for read in file.batches(_CALL, advance):
            names = pc.binary_join_element_wise(_column(read, "function"), b"", b"")
            wanted = pc.or_(pc.starts_with(names, b"hip"), pc.match_substring_regex(names, _HSA_LAUNCH))
            batch = read.filter(wanted)
            if not batch.num_rows:
                continue
            columns = {
                "process": self._processes(batch),
                "thread": _integers(batch, "thread_id"),
                "name": self.rows.named(_column(batch, "function")),
                "start_ns": _integers(batch, "start_timestamp"),
                "end_ns": _integers(batch, "end_timestamp"),
                "correlation": _integers(batch, "correlation_id"),
            }
            self._rccl.note_launches(columns)
            yield self.rows.calls(columns)

    def kernels(self, file: CsvFile, advance: Advance) -> Iterator[Batch]:
        """Yield kernel dispatches."""
        stream = "stream_id" if file.has("stream_id") else "queue_id"
        for batch in file.batches((*_KERNEL, *SHAPE_COLUMNS.values()), advance):
            columns = self._activities(batch, "agent_id", stream)
            columns["name"] = self.rows.named(_column(batch, "kernel_name"))
            columns |= {column: _integers(batch, source) for column, source in SHAPE_COLUMNS.items()}
            columns["collective"] = self._rccl.operations(columns, self.rows.names)
            if len(self.threads) < _MANY_THREADS:
                self.threads.update(pc.drop_null(pc.unique(_integers(batch, "thread_id"))).to_pylist())
            yield self.rows.activities(columns, copies=False)

    def copies(self, file: CsvFile, advance: Advance) -> Iterator[Batch]:
        """Yield copies; the device is the agent that is not the host."""
        file.require(*_SPAN)
        direction = "direction" if file.has("direction") else "name"
        for batch in file.batches(_COPY, advance):
            names = _column(batch, direction)
            to_device = pc.match_substring(names.cast(pa.binary()), b"HOST_TO_DEVICE")
            agents = pc.if_else(to_device, _column(batch, "destination_agent_id"), _column(batch, "source_agent_id"))
            batch = batch.append_column("gpu", agents)  # noqa: PLW2901  # the same rows, one column more
            columns = self._activities(batch, "gpu", "stream_id")
            columns["name"] = self.rows.named(names)
            yield self.rows.activities(columns, copies=True)

    def markers(self, file: CsvFile, advance: Advance) -> Iterator[Batch]:
        """Yield roctx ranges; call after `kernels`."""
        file.require("domain", "function", *_SPAN)
        for read in file.batches(_CALL, advance):
            batch = read.filter(pc.starts_with(_column(read, "domain"), b"MARKER_CORE"))
            threads = _integers(batch, "thread_id")
            texts = _column(batch, "function")
            kernels = pa.array([name.encode() for name in self.rows.names], pa.binary())
            same = texts.cast(pa.binary()).filter(pc.is_in(texts.cast(pa.binary()), kernels))
            self.renamed.update(decode_text(text) for text in pc.unique(same).to_pylist())
            columns = {
                "process": self._processes(batch),
                # ranges of roctxRangeStart and roctxRangeStop belong to no thread
                "thread": pc.if_else(pc.equal(threads, 0), pa.scalar(None, pa.int64()), threads),
                "text": texts,
                "start_ns": _integers(batch, "start_timestamp"),
                "end_ns": _integers(batch, "end_timestamp"),
            }
            yield self.rows.ranges(columns)

    def _activities(self, batch: pa.RecordBatch, agent: str, stream: str) -> dict[str, pa.Array]:
        return {
            "process": self._processes(batch),
            "device": self._agents.devices(_column(batch, agent)),
            "stream": _integers(batch, stream),
            "start_ns": _integers(batch, "start_timestamp"),
            "end_ns": _integers(batch, "end_timestamp"),
            "correlation": _integers(batch, "correlation_id"),
        }

    def _processes(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the processes: one, or one per guid where databases were merged; with pids where recorded."""
        found = map_distinct(
            _column(batch, "guid"), lambda guid: self.rows.process(guid, lambda: Process(None)), pa.int32()
        )
        pids = _integers(batch, "process_id")
        positions = found.unique().to_pylist()
        for position in positions:
            process = self.rows.processes[position]
            if process.pid is None:
                own = pc.drop_null(pids.filter(pc.equal(found, position)))
                process.pid = own[0].as_py() if len(own) else self._pid if len(positions) == 1 else None
        return found


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return the column as binary, or nulls if the file lacks it."""
    return column_or_nulls(batch, name, pa.binary())


def _integers(batch: pa.RecordBatch, name: str) -> pa.Array:
    return to_int64(batch[name]) if name in batch.schema.names else pa.nulls(batch.num_rows, pa.int64())
