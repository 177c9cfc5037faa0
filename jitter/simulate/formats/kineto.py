"""PyTorch profiler (Kineto) traces: Chrome trace JSON, one per rank, in the layouts of several years."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from jitter.core.errors import UsageError
from jitter.core.files import atomic_file
from jitter.simulate.capture import CaptureOptions, apply_capture, find_graph_heads
from jitter.simulate.job import MAIN_STREAM, Job
from jitter.simulate.program import Operation
from jitter.simulate.recording import ProcessGroup, RankRecording

_HIP_CALLS: Final = {"cudaLaunchKernelExC": "hipExtLaunchKernel"}
"""Calls of CUDA whose name in HIP is not the same after the prefix."""
_COPIES: Final = {
    "h2d": "Memcpy HtoD (Pageable -> Device)",
    "d2h": "Memcpy DtoH (Device -> Pageable)",
    "memset": "Memset (Device)",
}
_RCCL_KERNEL: Final = "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)"


@dataclass(frozen=True)
class KinetoDialect:
    """Categories, names and units of a layout."""

    kernel: str
    copy: str
    fill: str
    runtime: str
    operator: str
    annotation: str
    is_rocm: bool
    first_device: int
    base_ns: int
    """Offset added to every time."""
    whole: bool
    """Whether times are whole microseconds."""

    def stream(self, stream: int) -> int:
        """Return the stream's number in the trace; ROCm's default stream is 0."""
        return 0 if self.is_rocm and stream == MAIN_STREAM else stream

    def call(self, name: str) -> str:
        return _HIP_CALLS.get(name, name.replace("cuda", "hip", 1)) if self.is_rocm else name

    def gpu(self, op: Operation) -> tuple[str, str]:
        """Return category and name of an activity."""
        if op.copy is not None:
            return (self.fill if op.copy == "memset" else self.copy), _COPIES[op.copy]
        return self.kernel, _RCCL_KERNEL if self.is_rocm and op.kind == "collective" else op.name


def kineto_dialect(layout: str, base_ns: int) -> KinetoDialect:
    """Return the dialect of a layout: 2024, 2021 or rocm."""
    rocm = layout == "rocm"
    if layout == "2021":
        words = ("Kernel", "Memcpy", "Memset", "Runtime", "Operator", "Operator")
    else:
        words = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cpu_op", "user_annotation")
    return KinetoDialect(*words, rocm, 2 if rocm else 0, base_ns, layout == "2021")


def format_timestamp(time_ns: int, spelled: KinetoDialect) -> str:
    """Format a time in microseconds, exactly: a float would lose digits."""
    micros, nanos = divmod(time_ns + spelled.base_ns, 1000)
    return str(micros) if spelled.whole else f"{micros}.{nanos:03d}"


def format_duration(start_ns: int, end_ns: int, spelled: KinetoDialect) -> str:
    """Format a duration in microseconds; between whole times in a dialect with whole microseconds."""
    if spelled.whole:
        return str((end_ns + spelled.base_ns) // 1000 - (start_ns + spelled.base_ns) // 1000)
    micros, nanos = divmod(end_ns - start_ns, 1000)
    return f"{micros}.{nanos:03d}"


_EVENTS_A_WRITE: Final = 5_000
_OPERATORS: Final = ("aten::linear", "aten::addmm", "aten::to", "aten::empty_strided", "aten::as_strided", "aten::mul")
_NAMES: Final = {
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv",
    "send_recv": "coalesced",
}
"""PyTorch's names of operations that differ from the plain name."""
_MARGIN_NS: Final = 400
"""Time from the begin of an operator to the call inside it."""
_RANKS_SHOWN: Final = 30
"""Ranks of a process group that are listed; longer lists are cut."""


@dataclass(frozen=True)
class Options(CaptureOptions):
    profiler = "PyTorch's profiler"
    layout: Literal["2024", "2021", "rocm"] = "2024"
    """2021: capitalised categories, whole absolute microseconds, bare collectives. rocm: HIP, stream 0."""
    container: Literal["object", "array"] = "object"
    """object or array; an array holds only events, with absolute times and without a rank."""
    distributed: Literal["before", "after", "absent"] = "before"
    """Position of `distributedInfo` (rank, world size) and base time: before or after the events, or absent."""
    sequence: bool = False
    """Whether a collective's kernel states its sequence number in its group, as in some versions."""
    names: Literal["rank", "host"] = "rank"
    """File names by rank, or by host and process as torch.profiler writes them."""
    zipped: bool = True
    cpu_ops: int = 0
    """Operator events per launch; real traces have 3 to 10 (4 million events: 1 GB)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cpu_ops < 0:
            raise UsageError("cpu_ops is a count, 0 or more")


def write(ranks: list[RankRecording], number: int, folder: Path, options: Options, job: Job) -> Path:
    recording = apply_capture(ranks[0], options)
    stem = (
        f"rank-{recording.rank}"
        if options.names == "rank"
        else f"{recording.host}_{recording.pid}.{recording.clock.utc_epoch_ns}"
    )
    path = folder / f"{stem}.pt.trace.json{'.gz' if options.zipped else ''}"
    _write_trace(path, recording, job.ranks, options)
    return path


def _write_trace(path: Path, recording: RankRecording, world: int, options: Options) -> None:
    base = recording.clock.utc_epoch_ns
    about: dict[str, Any] = {"displayTimeUnit": "ms"}
    absolute = options.container == "array" or options.layout == "2021"
    if not absolute:
        about["baseTimeNanoseconds"] = base
    if options.distributed != "absent":
        about["distributedInfo"] = {"backend": "nccl", "rank": recording.rank, "world_size": world}
    members = [json.dumps(name) + ": " + json.dumps(value) for name, value in about.items()]
    spelled = kineto_dialect(options.layout, base if absolute else 0)
    with atomic_file(path) as half, half.open("wb") as file:
        # without file name and time, so that the same run gives the same bytes
        packed = gzip.GzipFile("", "wb", 4, file, mtime=0) if options.zipped else file
        with TextIOWrapper(packed, encoding="utf-8") as out:
            _write_document(out, recording, members, options, spelled)


def _write_document(
    out: TextIOWrapper, recording: RankRecording, members: list[str], options: Options, spelled: KinetoDialect
) -> None:
    after = options.distributed == "after"
    if options.container == "array":
        out.write("[\n")
    else:
        first = ['"schemaVersion": 1', *([] if after else members), '"traceEvents": [']
        out.write("{\n  " + ",\n  ".join(first) + "\n")
    separator = ""
    events = _events(recording, options, spelled)
    while some := list(islice(events, _EVENTS_A_WRITE)):
        out.write(separator + ",\n".join(some))
        separator = ",\n"
    last = [*(members if after else []), '"traceName": "trace.json"']
    out.write("\n]\n" if options.container == "array" else "\n  ],\n  " + ",\n  ".join(last) + "\n}\n")


def _events(recording: RankRecording, options: Options, spelled: KinetoDialect) -> Iterator[str]:
    """Yield all events, one JSON object each."""
    yield from _ranges(recording, spelled)
    yield from _host_events(recording, spelled, options.cpu_ops)
    yield from _gpu(recording, options, spelled)
    yield from _flows(recording, spelled)


def _ranges(recording: RankRecording, spelled: KinetoDialect) -> Iterator[str]:
    for number, r in enumerate(recording.ranges, start=1):
        # the profiler has one name for steps; an open step lasts to the end of the recording
        name = f"ProfilerStep#{r.step}" if r.kind == "step" else r.text
        end = int(recording.end_ns.max()) if r.end_ns is None else r.end_ns
        head = (
            f'{{"ph": "X", "cat": "{spelled.annotation}", "name": {json.dumps(name)}, "pid": {recording.pid}, "tid": '
        )
        timed = f'"ts": {format_timestamp(r.start_ns, spelled)}, "dur": {format_duration(r.start_ns, end, spelled)}'
        yield f'{head}{recording.threads[r.thread]}, {timed}, "args": {{"External id": {number}}}}}'


def _collective_args(op: Operation, group: ProcessGroup) -> str:
    """Return the arguments with a collective's operation, size and process group."""
    size = len(group.ranks)
    n_in = n_out = (op.n_bytes or 0) // 2
    # `n_bytes` is the larger side: the output of an all-gather, the input of a reduce-scatter
    if op.collective == "all_gather":
        n_in //= size
    elif op.collective == "reduce_scatter":
        n_out //= size
    name = _NAMES.get(op.collective or "", (op.collective or "").replace("_", ""))
    description = "default_pg" if group.number == "0" else group.name
    shown = ", ".join(map(str, group.ranks[:_RANKS_SHOWN])) + (", ..." if size > _RANKS_SHOWN else "")
    return (
        f', "Collective name": "{name}", "In msg nelems": {n_in}, "Out msg nelems": {n_out}, "Group size": {size}, '
        '"dtype": "BFloat16", "In split size": "[]", "Out split size": "[]", '
        f'"Process Group Name": "{group.number}", "Process Group Description": "{description}", '
        f'"Process Group Ranks": "[{shown}]"'
    )


def _gpu(recording: RankRecording, options: Options, spelled: KinetoDialect) -> Iterator[str]:
    device = recording.device + spelled.first_device
    heads, tails = [], []
    for op in recording.operations:
        stream = spelled.stream(op.stream)
        category, name = spelled.gpu(op)
        heads.append(
            f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": {device}, "tid": {stream}, "ts": '
        )
        extra = f', "bytes": {op.n_bytes}' if op.kind == "memory" else ""
        if op.kind != "memory":
            extra = f', "block": [{op.block[0]}, 1, 1]'
            if op.kind == "collective" and options.layout != "2021":
                extra += _collective_args(op, recording.groups[op.group or ""])
        tails.append(f', "device": {device}, "context": 1, "stream": {stream}{extra}, "correlation": ')
    is_kernel = [op.kind != "memory" for op in recording.operations]
    columns = (recording.operation, recording.start_ns, recording.end_ns, recording.correlation, recording.grid_x)
    met: Counter[str] = Counter()
    for at, start, end, number, grid in zip(*(c.tolist() for c in columns), strict=True):
        shape = f', "grid": [{grid}, 1, 1]' if is_kernel[at] else ""
        if options.sequence and (group := recording.operations[at].group) is not None:
            met[group] += 1
            shape += f', "Seq": {met[group]}'
        timed = f'{format_timestamp(start, spelled)}, "dur": {format_duration(start, end, spelled)}'
        yield f'{heads[at]}{timed}, "args": {{"External id": {number}{tails[at]}{number}{shape}}}}}'


def _flows(recording: RankRecording, spelled: KinetoDialect) -> Iterator[str]:
    device = recording.device + spelled.first_device
    drawn = recording.has_launch & ~(recording.shares_launch | find_graph_heads(recording))
    rows = drawn.nonzero()[0]
    columns = (recording.operation, recording.correlation, recording.launch_start_ns, recording.start_ns)
    for at, number, called, start in zip(*(c[rows].tolist() for c in columns), strict=True):
        op = recording.operations[at]
        head = f'{{"ph": "%s", "id": {number}, "pid": %d, "tid": %d, "ts": %s, "cat": "ac2g", "name": "ac2g"%s}}'
        yield head % ("s", recording.pid, recording.threads[op.thread], format_timestamp(called, spelled), "")
        yield head % ("f", device, spelled.stream(op.stream), format_timestamp(start, spelled), ', "bp": "e"')


def _host_events(recording: RankRecording, spelled: KinetoDialect, cpu_ops: int) -> Iterator[str]:
    """Yield one event per recorded call, each launch inside `cpu_ops` operators."""
    rows = (recording.has_launch & ~recording.shares_launch).nonzero()[0]
    heads = find_graph_heads(recording)[rows].tolist()
    columns = (recording.operation, recording.launch_start_ns, recording.launch_end_ns, recording.correlation)
    names = [spelled.call(op.call) for op in recording.operations]
    graph = spelled.call("cudaGraphLaunch")
    event = (
        f'{{"ph": "X", "cat": "{spelled.runtime}", "name": "%s", "pid": {recording.pid}, "tid": %d, "ts": %s, "dur": %s'
    )
    for (at, start, end, number), is_graph in zip(
        zip(*(c[rows].tolist() for c in columns), strict=True), heads, strict=True
    ):
        op = recording.operations[at]
        thread = recording.threads[op.thread]
        if cpu_ops:
            yield from _operators(recording.pid, thread, start, end, number, spelled, cpu_ops)
        where = f', "stream": "{hex(spelled.stream(op.stream))}"' if spelled.is_rocm else ""
        timed = (format_timestamp(start, spelled), format_duration(start, end, spelled))
        args = f', "args": {{"External id": {number}, "cbid": 211, "correlation": {number}{where}}}}}'
        yield event % (graph if is_graph else names[at], thread, *timed) + args
    for call in recording.calls:
        timed = (format_timestamp(call.start_ns, spelled), format_duration(call.start_ns, call.end_ns, spelled))
        args = f', "args": {{"cbid": 131, "correlation": {call.correlation}}}}}'
        yield event % (spelled.call(call.name), recording.threads[call.thread], *timed) + args


def _operators(
    pid: int, thread: int, start: int, end: int, number: int, spelled: KinetoDialect, count: int
) -> Iterator[str]:
    for depth in range(count, 0, -1):
        first, last = start - depth * _MARGIN_NS, end + depth * _MARGIN_NS // 2
        yield (
            f'{{"ph": "X", "cat": "{spelled.operator}", "name": "{_OPERATORS[depth % len(_OPERATORS)]}", "pid": {pid}, '
            f'"tid": {thread}, "ts": {format_timestamp(first, spelled)}, '
            f'"dur": {format_duration(first, last, spelled)}, "args": '
            f'{{"External id": {number}, "Record function id": 0, "Sequence number": {number}, "Fwd thread id": 0, '
            f'"Input Dims": [[640, 1024], [1024]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}}}}'
        )
