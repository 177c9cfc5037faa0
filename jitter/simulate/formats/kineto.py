"""PyTorch profiler (Kineto) traces: Chrome trace JSON, one per rank, in the layouts of several years."""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from io import TextIOBase, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from jitter.core.errors import UsageError
from jitter.simulate.capture import CaptureOptions, apply_capture, find_graph_heads
from jitter.simulate.complete_file import complete_file
from jitter.simulate.formats.kineto_calls import collective_args, group_args, host_events
from jitter.simulate.formats.kineto_dialect import KinetoDialect, format_duration, format_timestamp, kineto_dialect
from jitter.simulate.program import Operation
from jitter.simulate.recording import ProcessGroup, RankRecording
from jitter.simulate.run import Run

_EVENTS_A_WRITE: Final = 5_000
_RANKS_SHOWN: Final = 30
"""Ranks of a process group that are listed; longer lists are cut."""
_CHOICES: Final = {
    "layout": ("2024", "2021", "rocm"),
    "distributed": ("before", "after", "absent"),
    "comm_args": ("kernel", "params", "none"),
    "names": ("rank", "host"),
    "container": ("object", "array"),
}


@dataclass(frozen=True)
class Options(CaptureOptions):
    """Options of the format."""

    layout: Literal["2024", "2021", "rocm"] = "2024"
    """2021: capitalised categories, whole absolute microseconds, bare collectives. rocm: HIP, stream 0."""
    container: Literal["object", "array"] = "object"
    """object or array; an array holds only events, with absolute times and without a rank."""
    distributed: Literal["before", "after", "absent"] = "before"
    """Position of `distributedInfo` (rank, world size) and base time: before or after the events, or absent."""
    comm_args: Literal["kernel", "params", "none"] = "kernel"
    """Source of a collective's operation and size: its kernel, the host's record_param_comms, or none."""
    sequence: bool = False
    """Whether a collective's kernel states its sequence number in its group, as in some versions."""
    names: Literal["rank", "host"] = "rank"
    """File names by rank, or by host and process as torch.profiler writes them."""
    zipped: bool = True
    flows: bool = True
    """Whether flow events connect launches with kernels, as in every real trace."""
    cpu_ops: int = 0
    """Operator events per launch; real traces have 3 to 10 (4 million events: 1 GB)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for word, choices in _CHOICES.items():
            if getattr(self, word) not in choices:
                raise UsageError(f"{word}={getattr(self, word)} is not one of {', '.join(choices)}")
        if self.graphs == "graph":
            raise UsageError("PyTorch's profiler records graphs kernel by kernel", "take graphs=node")
        if self.cpu_ops < 0:
            raise UsageError("cpu_ops is a count, 0 or more")


def write(run: Run, folder: Path, options: Options, advance: Callable[[int], None]) -> list[Path]:
    """Write the run, one trace per rank."""
    found = []
    for recording in run.ranks():
        own = apply_capture(recording, options)
        stem = f"rank-{own.rank}"
        if options.names == "host":
            stem = f"{own.host}_{own.pid}.{own.clock.utc_epoch_ns}"
        path = folder / f"{stem}.pt.trace.json{'.gz' if options.zipped else ''}"
        _write_trace(path, own, run.job.ranks, options)
        found.append(path)
        advance(1)
    return found


def _write_trace(path: Path, own: RankRecording, world: int, options: Options) -> None:
    base = own.clock.utc_epoch_ns
    about: dict[str, Any] = {"displayTimeUnit": "ms"}
    absolute = options.container == "array" or options.layout == "2021"
    if not absolute:
        about["baseTimeNanoseconds"] = base
    if options.distributed != "absent":
        about["distributedInfo"] = {"backend": "nccl", "rank": own.rank, "world_size": world}
    members = [json.dumps(name) + ": " + json.dumps(value) for name, value in about.items()]
    spelled = kineto_dialect(options.layout, own, base if absolute else 0)
    with ExitStack() as stack:
        out = stack.enter_context(_opened(stack.enter_context(complete_file(path)), options.zipped))
        after = options.distributed == "after"
        if options.container == "array":
            out.write("[\n")
        else:
            first = ['"schemaVersion": 1', *([] if after else members), '"traceEvents": [']
            out.write("{\n  " + ",\n  ".join(first) + "\n")
        separator = ""
        events = _events(own, options, spelled)
        while some := list(islice(events, _EVENTS_A_WRITE)):
            out.write(separator + ",\n".join(some))
            separator = ",\n"
        last = [*(members if after else []), '"traceName": "trace.json"']
        out.write("\n]\n" if options.container == "array" else "\n  ],\n  " + ",\n  ".join(last) + "\n}\n")


def _opened(path: Path, zipped: bool) -> TextIOBase:
    return _GzipText(path) if zipped else path.open("w", encoding="utf-8")


class _GzipText(TextIOWrapper):
    """A gzip text file without file name and time, so that the same run gives the same bytes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        super().__init__(gzip.GzipFile("", "wb", 4, self._file, mtime=0), encoding="utf-8")

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._file.close()


def _events(own: RankRecording, options: Options, spelled: KinetoDialect) -> Iterator[str]:
    """Yield all events, one JSON object each."""
    yield from _ranges(own, spelled)
    yield from host_events(own, spelled, cpu_ops=options.cpu_ops, with_params=options.comm_args == "params")
    yield from _gpu(own, options, spelled)
    if options.flows:
        yield from _flows(own, spelled)


def _ranges(own: RankRecording, spelled: KinetoDialect) -> Iterator[str]:
    for number, one in enumerate(own.ranges, start=1):
        # the profiler has one name for steps; an open step lasts to the end of the recording
        name = f"ProfilerStep#{one.step}" if one.kind == "step" else one.text
        end = int(own.end_ns.max()) if one.end_ns is None else one.end_ns
        head = f'{{"ph": "X", "cat": "{spelled.annotation}", "name": {json.dumps(name)}, "pid": {own.pid}, "tid": '
        timed = f'"ts": {format_timestamp(one.start_ns, spelled)}, "dur": {format_duration(one.start_ns, end, spelled)}'
        yield f'{head}{own.threads[one.thread]}, {timed}, "args": {{"External id": {number}}}}}'


def _collective_args(op: Operation, group: ProcessGroup) -> str:
    shown = ", ".join(map(str, group.ranks[:_RANKS_SHOWN])) + (", ..." if len(group.ranks) > _RANKS_SHOWN else "")
    split = '"In split size": "[]", "Out split size": "[]"'
    return f', {collective_args(op, group)}, {split}, {group_args(group)}, "Process Group Ranks": "[{shown}]"'


def _gpu(own: RankRecording, options: Options, spelled: KinetoDialect) -> Iterator[str]:
    device = own.device + spelled.first_device
    heads, tails = [], []
    for op in own.operations:
        stream = spelled.stream(op.stream)
        category, name = spelled.gpu(op)
        heads.append(
            f'{{"ph": "X", "cat": "{category}", "name": {json.dumps(name)}, "pid": {device}, "tid": {stream}, "ts": '
        )
        extra = f', "bytes": {op.n_bytes}' if op.kind == "memory" else ""
        if op.kind != "memory":
            extra = f', "block": [{op.block[0]}, 1, 1]'
            if op.kind == "collective" and options.comm_args == "kernel" and options.layout != "2021":
                extra += _collective_args(op, own.groups[op.group or ""])
        tails.append(f', "device": {device}, "context": 1, "stream": {stream}{extra}, "correlation": ')
    is_kernel = [op.kind != "memory" for op in own.operations]
    columns = (own.operation, own.start_ns, own.end_ns, own.correlation, own.grid_x)
    met: Counter[str] = Counter()
    for at, start, end, number, grid in zip(*(c.tolist() for c in columns), strict=True):
        shape = f', "grid": [{grid}, 1, 1]' if is_kernel[at] else ""
        if options.sequence and (group := own.operations[at].group) is not None:
            met[group] += 1
            shape += f', "Seq": {met[group]}'
        timed = f'{format_timestamp(start, spelled)}, "dur": {format_duration(start, end, spelled)}'
        yield f'{heads[at]}{timed}, "args": {{"External id": {number}{tails[at]}{number}{shape}}}}}'


def _flows(own: RankRecording, spelled: KinetoDialect) -> Iterator[str]:
    device = own.device + spelled.first_device
    drawn = own.has_launch & ~(own.shares_launch | find_graph_heads(own))
    rows = drawn.nonzero()[0]
    columns = (own.operation, own.correlation, own.launch_start_ns, own.start_ns)
    for at, number, called, start in zip(*(c[rows].tolist() for c in columns), strict=True):
        op = own.operations[at]
        head = f'{{"ph": "%s", "id": {number}, "pid": %d, "tid": %d, "ts": %s, "cat": "ac2g", "name": "ac2g"%s}}'
        yield head % ("s", own.pid, own.threads[op.thread], format_timestamp(called, spelled), "")
        yield head % ("f", device, spelled.stream(op.stream), format_timestamp(start, spelled), ', "bp": "e"')
