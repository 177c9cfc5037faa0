"""Records that AMD's profilers make of a rank, with HIP names; each format writes its part."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from jitter.simulate.capture import list_calls
from jitter.simulate.formats.kineto import kineto_dialect
from jitter.simulate.recording import HostCall, HostRange, RankRecording

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
    direction: str
    stream: int
    thread: int
    correlation: int
    start_ns: int
    end_ns: int
    n_bytes: int


@dataclass
class RocprofRecords:
    kernels: list[DispatchRecord]
    copies: list[CopyRecord]
    calls: list[HostCall]
    """With HIP names, on threads of the operating system."""
    rccl: list[HostCall]
    markers: list[HostRange]


def collect_records(recording: RankRecording) -> RocprofRecords:
    """Return the records of a recording; roctx has no ranges without an end."""
    words = kineto_dialect("rocm", recording, 0)
    streams = sorted({words.stream(op.stream) for op in recording.operations})
    queue = {stream: number for number, stream in enumerate(streams, start=1)}
    records = RocprofRecords([], [], [], [], [])
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
        if launched and not recording.shares_launch[at] and op.kind == "collective":
            said = "nccl" + (op.collective or "").title().replace("_", "")
            times = begun - _MARGIN_NS, done + _MARGIN_NS
            records.rccl.append(HostCall(said, False, thread, *times, 1_000_000_000 + correlation, stream, None))
    threads = recording.threads
    records.calls += [
        call._replace(name=words.call(call.name), thread=threads[call.thread]) for call in list_calls(recording)
    ]
    records.markers += [
        closed._replace(thread=threads[closed.thread]) for closed in recording.ranges if closed.end_ns is not None
    ]
    return records
