"""Records that AMD's profilers make of a rank, with HIP names; each format writes its part."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from jitter.simulate.capture import find_graph_heads
from jitter.simulate.formats.kineto import kineto_dialect
from jitter.simulate.recording import RankRecording

CPU_NODES: Final = 4
"""CPU agents that HSA numbers before the GPUs."""
_DIRECTIONS: Final = {"h2d": "HOST_TO_DEVICE", "d2h": "DEVICE_TO_HOST"}
_FILL: Final = "__amd_rocclr_fillBufferAligned"
_MARGIN_NS: Final = 300


class DispatchRecord(NamedTuple):
    """A kernel dispatch; sizes in work items, as in HSA."""

    name: str
    queue: int
    stream: int
    thread: int
    correlation: int
    start_ns: int
    end_ns: int
    group: int
    items: int
    launched: bool


class CopyRecord(NamedTuple):
    """A copy by a copy engine."""

    direction: str
    stream: int
    thread: int
    correlation: int
    start_ns: int
    end_ns: int
    n_bytes: int


class HipCallRecord(NamedTuple):
    """A call of HIP, or of RCCL (name ncclAllReduce)."""

    name: str
    thread: int
    correlation: int
    start_ns: int
    end_ns: int


class RangeRecord(NamedTuple):
    """A roctx range."""

    text: str
    thread: int
    start_ns: int
    end_ns: int


@dataclass
class RocprofRecords:
    """All records of one rank."""

    kernels: list[DispatchRecord]
    copies: list[CopyRecord]
    calls: list[HipCallRecord]
    rccl: list[HipCallRecord]
    markers: list[RangeRecord]


def collect_records(recording: RankRecording) -> RocprofRecords:
    """Return the records of a recording; roctx has no ranges without an end."""
    words = kineto_dialect("rocm", recording, 0)
    streams = sorted({words.stream(op.stream) for op in recording.operations})
    queue = {stream: number for number, stream in enumerate(streams, start=1)}
    records = RocprofRecords([], [], [], [], [])
    heads = find_graph_heads(recording).tolist()
    rows = zip(
        recording.ops(),
        recording.start_ns.tolist(),
        recording.end_ns.tolist(),
        recording.correlation.tolist(),
        strict=True,
    )
    launches = zip(recording.launch_start_ns.tolist(), recording.launch_end_ns.tolist(), strict=True)
    for at, ((op, start, end, correlation), (begun, done)) in enumerate(zip(rows, launches, strict=True)):
        stream, thread = words.stream(op.stream), recording.threads[op.thread]
        launched = bool(recording.has_launch[at])
        if op.copy in _DIRECTIONS:
            copied = CopyRecord(_DIRECTIONS[op.copy], stream, thread, correlation, start, end, op.n_bytes or 0)
            records.copies.append(copied)
        else:
            # HIP runs a kernel for a fill
            name = _FILL if op.copy == "memset" else words.gpu(op)[1]
            group = op.block[0]
            items = int(recording.grid_x[at]) * group
            records.kernels.append(
                DispatchRecord(name, queue[stream], stream, thread, correlation, start, end, group, items, launched)
            )
        if launched and not recording.shares_launch[at]:
            call = words.call("cudaGraphLaunch" if heads[at] else op.call)
            records.calls.append(HipCallRecord(call, thread, correlation, begun, done))
            if op.kind == "collective":
                said = "nccl" + (op.collective or "").title().replace("_", "")
                records.rccl.append(
                    HipCallRecord(said, thread, 1_000_000_000 + correlation, begun - _MARGIN_NS, done + _MARGIN_NS)
                )
    for lost in (*recording.lost_launches, *recording.calls):
        call = words.call(lost.name)
        records.calls.append(
            HipCallRecord(call, recording.threads[lost.thread], lost.correlation, lost.start_ns, lost.end_ns)
        )
    for host_range in recording.ranges:
        if host_range.end_ns is not None:
            records.markers.append(
                RangeRecord(
                    host_range.text, recording.threads[host_range.thread], host_range.start_ns, host_range.end_ns
                )
            )
    return records
