"""Rows of AMD's profilers: columns of a source become activities, calls and ranges, with RCCL's message sizes."""

import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.arrow import map_distinct
from jitter.core.bandwidth import NCCL_TYPES, element_bytes
from jitter.core.errors import UnreadableTraceError
from jitter.core.names.kernels import collective_operation
from jitter.core.schema import READER_TABLES
from jitter.readers import Batch, Process, Recording, SourceReader, TableName, make_batch
from jitter.readers.columns import Interner, Progress
from jitter.readers.nccl_calls import NcclCall, NcclCalls

_COUNTS: Final = ("count", "sendcount", "recvcount")
_LARGEST: Final = 2**62


Columns = Mapping[str, pa.Array]


def message_bytes(arguments: Mapping[str, str]) -> int | None:
    """Return count × element size of a call with these arguments (name to text); None if one of them is unknown."""
    counts = [int(text) for name in _COUNTS if (text := arguments.get(name, "")).isdecimal()]
    datatype = arguments.get("datatype", "")  # `7`, `ncclFloat32`, `(ncclDataType_t) 7`
    if match := re.search(r"(?:^|[\s)=])(\d{1,2})$", datatype):
        datatype = dict(enumerate(NCCL_TYPES)).get(int(match[1]), "")
    size = element_bytes(datatype)
    if len(counts) != 1 or size is None or counts[0] * size > _LARGEST:
        return None
    return counts[0] * size


NAMING_HINT: Final = (
    "name rocprof's output after the rank, as in `rocprofv3 -o rank-%env{RANK}%` "
    "(under srun %env{SLURM_PROCID}%; %pid% and, under torchrun, %rank% are not the rank)"
)
"""Advice on naming files so that the rank is known."""

# `myprofile-3`: a short number after a word; not dates, times or bare process ids
_TRAILING: Final = re.compile(r"(?P<before>.*[A-Za-z].*?)[-_.](?P<number>\d{1,5})")
_NO_RANK: Final = re.compile(
    r"(?i)(?:^|[^a-z])(?:local[-_.]?rank|pid|p|process|proc|node|host|step|epoch|iter|iteration|run|try|trial|attempt"
    r"|job|v|version|part|gpu|device|worker[-_.]?pid)[-_.]?$"
)


def sibling_files(path: Path, prefix: str) -> list[Path]:
    """Return the other files in the same folder whose names start with `prefix`, sorted."""
    # names only: a folder may hold the files of a thousand ranks and is listed for each
    names = sorted(name for name in os.listdir(path.parent) if name.startswith(prefix) and name != path.name)  # noqa: PTH208
    return [file for name in names if (file := path.parent / name).is_file()]


def rank_in_file_name(stem: str, pids: frozenset[int] = frozenset()) -> int | None:
    """Return the rank at the end of a name given with -o (`myprofile-3`); None for process ids and other numbers."""
    match = _TRAILING.fullmatch(stem.rstrip("-_."))
    if match is None or _NO_RANK.search(match["before"]):
        return None
    number = int(match["number"])
    return None if number in pids else number


def pid_in_file_name(stem: str) -> int | None:
    """Return the process id with which rocprofv3 starts file names by default (`4711_kernel_trace.csv`), else None."""
    match = re.match(r"(\d{1,9})(?:_|$)", stem)
    return int(match[1]) if match else None


BATCH_ROWS: Final = 32_768
SHAPE: Final = {
    f"{column}_{axis}": f"{source}_size_{axis}"
    for column, source in (("grid", "grid"), ("block", "workgroup"))
    for axis in "xyz"
}
"""The columns of launch shapes by those of `schema.ACTIVITIES`, as rocprofv3 names them in CSV files and databases."""
NO_CALLS: Final = "no HIP API calls recorded: the launching calls are unknown; record with --hip-trace"
NO_RANGES: Final = "no roctx ranges recorded; record with --marker-trace"
_NO_STREAMS: Final = (
    "no kernel states its HIP stream: those of {} queues are read as one stream, so that gaps between them may be "
    "wrong; record with --hip-trace"
)
# queue entries that order other entries and run nothing
_NO_KERNEL: Final = re.compile(r'^"*<?\s*barrier(?:\s+packet)?\s*>?"*$|^Marker$|^Barrier(?:Packet)?$', re.IGNORECASE)
# kernels with which HIP copies and fills where it does not use copy engines
_BLIT: Final = re.compile(r"^__amd_rocclr_(?:copy|fill)")
_LOADER_SUFFIX: Final = re.compile(r"(?: \[clone \.kd\]| \(\.kd\)|\.kd)$")
# calls that are read: of HIP, and those of HSA that write a queue's doorbell, which launches kernels
_IS_READ: Final = re.compile(r"(?i:hip)|hsa_(?:signal_store|queue_(?:store|add|cas)_write)")
_AGENT: Final = re.compile(r"(?:(?P<word>Agent|GPU)\s*)?(?P<number>\d{1,9})", re.IGNORECASE)
_ROCMINFO_NODE: Final = re.compile(r"^\s*Node:\s*(\d+)\s*$")
_ROCMINFO_TYPE: Final = re.compile(r"^\s*Device Type:\s*(\w+)\s*$")


Kind = Literal["rccl", "calls", "kernels", "copies", "ranges"]
"""What columns hold: calls of RCCL, of HIP and HSA, kernels, copies and fills, roctx ranges."""


class AmdReader(SourceReader):
    """A reader of one of AMD's forms, which is what `parts` yields of it."""

    version = 4
    rank_hint = NAMING_HINT

    @abstractmethod
    def parts(self, path: Path, rows: "RowBuilder", progress: Progress) -> Iterator[tuple[Kind, Columns]]:
        """Yield all columns of a recording, RCCL's calls first and calls before kernels; see `RowBuilder`."""

    def batches(self, recording: Recording, progress: Progress) -> Iterator[Batch]:
        rows = RowBuilder(recording)
        for kind, columns in self.parts(recording.path, rows, progress):
            if (batch := rows.batch(kind, columns)) is not None:
                yield batch
        rows.complete()


class RowBuilder:
    """Builds batches from columns of a source, with shared processes, names and counts.

    Columns are those of our tables, int64 or texts (binary or string); absent ones are null, and further ones are left
    out. Processes are process ids (int64) or already positions (int32), names of kernels texts or positions.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.stem = recording.path.stem
        """The part of the recording's name that may end with its rank."""
        self.option = "--kernel-trace"
        """The profiler's option that records kernels."""
        self.grids_in_items = True
        """Whether grids are in work items, and not in work groups."""
        self.problems: list[str] = []
        """What is missing or damaged, one sentence each."""
        self.threads: set[int] = set()
        """Threads that launched kernels: where no process id is recorded, it is one of them."""
        self.processes: list[Process] = []
        self._names: Interner[str] = Interner()
        self.names = self._names.keys
        self.counts: Counter[str] = Counter()
        """Number of kernels, copies, calls and ranges so far."""
        self._textless = 0
        """Number of ranges without a text."""
        self._rccl = NcclCalls()
        self._has_streams = False
        """Whether a kernel states another stream than 0, which is the null stream and also an unknown one."""
        self._queues: set[int] = set()
        """Queues of kernels of stream 0."""
        self._process_of: dict[Hashable, int] = {}

    def process(self, key: Hashable, make: Callable[[], Process]) -> int:
        """Return the position of the process with this key; `make` creates a new one."""
        if key not in self._process_of:
            self._process_of[key] = len(self.processes)
            self.processes.append(make())
        return self._process_of[key]

    def name(self, text: str) -> int:
        """Return the position of a name."""
        return self._names.position(_LOADER_SUFFIX.sub("", text))

    def batch(self, kind: Kind, columns: Columns) -> Batch | None:
        """Return a batch of these columns; None for calls of RCCL, which are only noted.

        Barriers and markers among kernels, marks (no duration) among ranges, and calls that launch nothing, are left
        out. Of kernels a column `queue` is noted, of RCCL's calls the size of the message in bytes, `size_bytes`.
        """
        if kind == "rccl":
            names = [decode_text(name) for name in columns["name"].to_pylist()]
            sizes = columns["size_bytes"].to_pylist() if "size_bytes" in columns else None
            typed = self._typed("ranges", columns)
            spans = (typed[name].to_pylist() for name in ("process", "thread", "start_ns", "end_ns"))
            for process, thread, start, end, name, size in zip(
                *spans, names, sizes or [None] * len(names), strict=True
            ):
                if start is not None and end is not None:
                    self._rccl.add((process, thread), NcclCall(start, end, name, size=size))
            return None
        if kind == "calls":
            return make_batch("calls", self._calls(columns))
        if kind == "ranges":
            return make_batch("ranges", self._ranges(columns))
        typed = self._typed("activities", columns)
        if kind == "kernels":
            if "queue" in columns:
                is_unknown = pc.fill_null(pc.equal(columns["stream"], 0), False)
                self._has_streams |= is_unknown.false_count > 0
                self._queues.update(pc.unique(pc.drop_null(columns["queue"].filter(is_unknown))).to_pylist())
            if "correlation" in typed and self._rccl.messages:
                typed |= self._messages(typed)
        return make_batch("activities", self._activities(kind, typed))

    def need(self, kind: Literal["calls", "ranges"], before: Mapping[str, int] = {}) -> None:
        """Note it as a problem if there are no calls or ranges beyond those counted `before`."""
        if self.counts[kind] == before.get(kind, 0):
            self.problems.append(NO_CALLS if kind == "calls" else NO_RANGES)

    @contextmanager
    def leaving_out(self, path: Path) -> Iterator[None]:
        """Note it as a problem if a companion file cannot be read."""
        try:
            yield
        except UnreadableTraceError as error:
            self.problems.append(f"{path.name}: {error.message.partition(': ')[2]}; it is left out")

    def complete(self) -> None:
        """Complete the recording after the last row. Raises UnreadableTraceError for one without GPU activity."""
        recording = self.recording
        if not self.counts["kernels"] + self.counts["copies"]:
            raise UnreadableTraceError(
                f"{recording.path}: no kernels in it", f"did the process use a GPU? record with {self.option}"
            )
        recording.processes, recording.names = self.processes, self.names
        pids = {process.pid for process in self.processes if process.pid is not None}
        in_name = pid_in_file_name(recording.path.name)
        if in_name in pids:  # rocprofv3's default: a folder of the host's name
            host = recording.path.absolute().parent.name
            for process in self.processes:
                process.host = process.host or (None if re.search("(?i)rank", host) else host)
        recording.rank_in_name = rank_in_file_name(self.stem, frozenset(pids or self.threads))
        recording.problems += self.problems
        if self._textless:
            recording.problems.append(f"{self._textless} roctx ranges without a text were left out")
        if len(self._queues) > 1 and not self._has_streams:
            recording.problems.append(_NO_STREAMS.format(len(self._queues)))

    def _calls(self, columns: Columns) -> dict[str, pa.Array]:
        is_read = map_distinct(columns["name"], lambda name: _IS_READ.match(decode_text(name)) is not None, pa.bool_())
        typed = self._typed("calls", {name: column.filter(is_read) for name, column in columns.items()})
        self.counts["calls"] += len(typed["name"])
        self._rccl.close()
        if self._rccl.messages:
            self._rccl.note_launches(pa.table(typed))
        return typed

    def _messages(self, kernels: Columns) -> dict[str, pa.Array]:
        """Return the columns of `Message` of kernels (columns of ACTIVITIES) in RCCL calls.

        `collective` is null for kernels whose name states the operation. Kernels of other names, renamed by markers or
        of another library that RCCL calls, are communication by it. The number of ranks is not recorded, so S is null
        for collectives of which a rank's message is one part.
        """
        columns = self._rccl.columns(kernels["process"].to_numpy(), kernels["correlation"])
        is_stated = map_distinct(
            kernels["name"], lambda name: collective_operation(self.names[name]) is not None, pa.bool_()
        )
        return columns | {"collective": pc.if_else(is_stated, None, columns["collective"])}

    def _ranges(self, columns: Columns) -> dict[str, pa.Array]:
        self.counts["ranges"] += len(columns["text"])
        is_range = pc.invert(pc.fill_null(pc.equal(columns["start_ns"], columns["end_ns"]), False))
        typed = self._typed("ranges", {name: column.filter(is_range) for name, column in columns.items()})
        texts = [None if value is None else decode_text(value) for value in typed["text"].to_pylist()]
        typed["text"] = pa.array(texts, pa.string())
        has_text = typed["text"].is_valid()
        self._textless += has_text.false_count
        return {name: column.filter(has_text) for name, column in typed.items()}

    def _typed(self, table: TableName, columns: Columns) -> dict[str, pa.Array]:
        """Return the columns of a table, with positions of processes and names; the thread 0 is an unknown one."""
        typed = {name: columns[name] for name in READER_TABLES[table].names if name in columns}
        processes = columns.get("process", pa.nulls(len(columns["start_ns"]), pa.int64()))
        if processes.type != pa.int32():
            processes = map_distinct(processes, lambda pid: self.process(pid, lambda: Process(pid)), pa.int32())
        typed["process"] = processes
        if "name" in typed and columns["name"].type != pa.int32():
            typed["name"] = map_distinct(columns["name"], lambda text: self.name(decode_text(text)), pa.int32())
        if "thread" in typed:
            is_known = pc.not_equal(columns["thread"], 0)
            typed["thread"] = pc.if_else(is_known, columns["thread"], pa.scalar(None, pa.int64()))
        return typed

    def _are_named(self, pattern: re.Pattern[str], names: pa.Array) -> pa.Array:
        """Return whether the names at these positions match a pattern."""
        return map_distinct(names, lambda name: pattern.match(self.names[name]) is not None, pa.bool_())

    def _activities(self, kind: Literal["kernels", "copies"], columns: dict[str, pa.Array]) -> dict[str, pa.Array]:
        runs = pc.invert(self._are_named(_NO_KERNEL, columns["name"]))
        kept = {name: column.filter(runs) for name, column in columns.items()}
        self.counts[kind] += len(kept["name"])
        kept["is_memory"] = pc.or_(self._are_named(_BLIT, kept["name"]), kind == "copies")
        for axis in "xyz" if kind == "kernels" and self.grids_in_items else "":
            items, group = kept.get(f"grid_{axis}"), kept.get(f"block_{axis}")
            if items is not None and group is not None:
                size = pc.if_else(pc.greater(group, 0), group, pa.scalar(None, group.type))
                groups = pc.divide(pc.add(items, pc.subtract(size, 1)), size)
                kept[f"grid_{axis}"] = pc.if_else(pc.less(groups, 2**31), groups, pa.scalar(None, groups.type))
        return kept


@dataclass
class Agents:
    """GPU ordinals by node number and by logical number; empty if not recorded.

    HSA numbers processors and GPUs together.
    """

    by_node: dict[int, int] = field(default_factory=dict)
    by_logical: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Iterable[tuple[str, int, int | None]]) -> Self:
        """Build from (type, node number, logical number or None) of each agent."""
        logical_by_node = {node: logical for kind, node, logical in rows if kind.strip().upper() == "GPU"}
        nodes = sorted(logical_by_node)
        logical = [logical_by_node[node] for node in nodes]
        return cls(
            {node: ordinal for ordinal, node in enumerate(nodes)},
            {number: ordinal for ordinal, number in enumerate(logical) if number is not None},
        )

    @classmethod
    def of_rocminfo(cls, text: str) -> Self:
        """Build from the output of `rocminfo`; empty if it lists no agents."""
        rows: list[tuple[str, int, int | None]] = []
        kind: str | None = None
        node: int | None = None
        for line in text.splitlines():
            # in some versions the type comes before its node
            if match := _ROCMINFO_NODE.match(line):
                node = int(match[1])
            elif match := _ROCMINFO_TYPE.match(line):
                kind = match[1]
            if kind is not None and node is not None:
                rows.append((kind, node, None))
                kind = node = None
        return cls.of(rows)

    def device(self, text: str) -> int | None:
        """Return the ordinal of "4" (node), "Agent 4" (logical) or "GPU 0"; the recorded number if unknown."""
        match = _AGENT.fullmatch(text.strip())
        if match is None:
            return None
        number = int(match["number"])
        word = (match["word"] or "").lower()
        if word == "gpu":
            return number
        for numbers in (self.by_logical, self.by_node) if word == "agent" else (self.by_node, self.by_logical):
            if number in numbers:
                return numbers[number]
        return number

    def ordinals(self, nodes: pa.Array) -> pa.Array:
        """Return the ordinal of each node number (int64); the recorded number if unknown."""
        return map_distinct(nodes, lambda node: self.by_node.get(node, node), pa.int64())


def columns_of(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns of a batch by name."""
    return dict(zip(rows.schema.names, rows.columns, strict=True))


def decode_text(value: bytes | str | None) -> str:
    """Return a name or text as a string; invalid UTF-8 is replaced, null is empty."""
    if value is None:
        return ""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
