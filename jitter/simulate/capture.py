"""Effects of a capture in any format: CUDA graphs; the calls that it recorded."""

from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, get_args, get_type_hints

import numpy as np

from jitter.core.errors import UsageError
from jitter.simulate.program import MAIN_THREAD
from jitter.simulate.recording import Bools, HostCall, RankRecording


@dataclass(frozen=True)
class CaptureOptions:
    """Settings of the profiler."""

    graphs: Literal["off", "graph", "node"] = "off"
    """Run each step's forward kernels as a CUDA graph: off, recorded as one activity (graph), or per kernel (node)."""

    profiler: ClassVar[str | None] = None
    """The profiler, if it records graphs kernel by kernel."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for name in (field.name for field in fields(self)):
            choices, value = get_args(hints[name]), getattr(self, name)
            if choices and value not in choices:
                raise UsageError(f"{name}={value} is not one of {', '.join(choices)}")
        if self.profiler is not None and self.graphs == "graph":
            raise UsageError(f"{self.profiler} records graphs kernel by kernel", "take graphs=node")


def apply_capture(recording: RankRecording, capture: CaptureOptions) -> RankRecording:
    """Return the recording as this capture would have made it.

    Kernels of a graph share the launch of the kernel before; a format that records whole graphs writes one row per
    graph (see `find_graph_heads`). A graph is a step's forward kernels on the main stream.
    """
    if capture.graphs == "off":
        return recording
    of_graph = np.array(
        [op.kind == "compute" and op.phase == "forward" and op.thread == MAIN_THREAD for op in recording.operations]
    )[recording.operation]
    follows = of_graph & np.append(False, of_graph[:-1] & (recording.step[1:] == recording.step[:-1]))
    # position of the graph's first kernel, for each kernel of the graph
    head = np.maximum.accumulate(np.where(follows, 0, np.arange(len(follows))))
    return replace(
        recording,
        shares_launch=follows,
        correlation=recording.correlation[head],
        launch_start_ns=recording.launch_start_ns[head],
        launch_end_ns=recording.launch_end_ns[head],
    )


def find_graph_heads(recording: RankRecording) -> Bools:
    """Return a mask of the activities that are the first of a graph."""
    heads: Bools = ~recording.shares_launch & np.append(recording.shares_launch[1:], False)
    return heads


def list_calls(recording: RankRecording) -> list[HostCall]:
    """Return all recorded calls: launches (one of a graph), and calls without an activity."""
    heads = find_graph_heads(recording)
    launched = (recording.has_launch & ~recording.shares_launch).nonzero()[0].tolist()
    launches = [launch_call(recording, at, "cudaGraphLaunch" if heads[at] else None) for at in launched]
    return [*launches, *recording.calls]


def launch_call(recording: RankRecording, at: int, name: str | None = None) -> HostCall:
    """Return the call that launched the activity at this position."""
    op = recording.operations[recording.operation[at]]
    times = int(recording.launch_start_ns[at]), int(recording.launch_end_ns[at])
    step = int(recording.step[at])
    return HostCall(name or op.call, op.thread, *times, int(recording.correlation[at]), step if step >= 0 else None)
