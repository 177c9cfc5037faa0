"""What a capture leaves out or tells differently, whatever its format: lost launches, a cut end, CUDA graphs."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from jitter.core.errors import UsageError
from jitter.simulate.program import MAIN_THREAD
from jitter.simulate.recording import Bools, HostCall, RankRecording


@dataclass(frozen=True)
class CaptureOptions:
    """How the profiler was set, and what it lost."""

    graphs: Literal["off", "graph", "node"] = "off"
    """Each step's forward kernels as one CUDA graph: recorded as one activity, or kernel by kernel."""
    unlaunched: int = 0
    """Of every so many kernels the launching call of one was not recorded; 0: none."""
    early: int = 0
    """So many kernels at the start were launched before the capture began."""
    cut_kernels: int = 0
    """So many activities at the end were not recorded, their launches were."""
    open_last: bool = False
    """The last step's range has no end."""

    def __post_init__(self) -> None:
        if self.graphs not in ("off", "graph", "node"):
            raise UsageError(f"graphs={self.graphs} is not one of off, graph, node")
        if min(self.unlaunched, self.early, self.cut_kernels) < 0:
            raise UsageError("unlaunched, early and cut_kernels are counts of kernels, 0 or more")


def apply_capture(recording: RankRecording, capture: CaptureOptions) -> RankRecording:
    """The recording as this capture has it.

    Graphs show as activities that share their launch with the one before; a format that records whole graphs makes
    one row of each (see `find_graph_heads`).
    """
    if capture.graphs != "off":
        recording = _as_graphs(recording)
    if capture.unlaunched:
        kept = np.ones(len(recording), np.bool_)
        kept[capture.unlaunched - 1 :: capture.unlaunched] = False
        # a graph's launch belongs to many kernels: it stays
        kept |= recording.shares_launch | np.append(recording.shares_launch[1:], False)
        recording = replace(recording, has_launch=recording.has_launch & kept)
    if capture.early:
        launched = recording.has_launch & (np.arange(len(recording)) >= capture.early)
        recording = replace(recording, has_launch=launched)
    if capture.cut_kernels:
        recording = _cut(recording, capture.cut_kernels)
    if capture.open_last:
        last = max((r.step for r in recording.steps), default=None)
        ranges = tuple(r._replace(end_ns=None) if r.kind == "step" and r.step == last else r for r in recording.ranges)
        recording = replace(recording, ranges=ranges)
    return recording


def find_graph_heads(recording: RankRecording) -> Bools:
    """Which activities are the first of a graph."""
    heads: Bools = ~recording.shares_launch & np.append(recording.shares_launch[1:], False)
    return heads


def _as_graphs(recording: RankRecording) -> RankRecording:
    """Give each step's forward kernels on the main stream one launch, that of the first of them."""
    of_graph = np.array(
        [op.kind == "compute" and op.phase == "forward" and op.thread == MAIN_THREAD for op in recording.operations]
    )[recording.operation]
    follows = of_graph & np.append(False, of_graph[:-1] & (recording.step[1:] == recording.step[:-1]))
    # the position of the graph's head, for itself and for all that share its launch
    head = np.maximum.accumulate(np.where(follows, 0, np.arange(len(follows))))
    return replace(
        recording,
        shares_launch=follows,
        correlation=recording.correlation[head],
        launch_start_ns=recording.launch_start_ns[head],
        launch_end_ns=recording.launch_end_ns[head],
    )


def _cut(recording: RankRecording, count: int) -> RankRecording:
    late = np.argsort(recording.start_ns, kind="stable")[max(0, len(recording) - count) :]
    lost = [
        HostCall(
            recording.operations[recording.operation[at]].call,
            False,
            recording.operations[recording.operation[at]].thread,
            int(recording.launch_start_ns[at]),
            int(recording.launch_end_ns[at]),
            int(recording.correlation[at]),
            recording.operations[recording.operation[at]].stream,
            int(recording.step[at]) if recording.in_step[at] else None,
        )
        for at in sorted(late.tolist())
        if recording.has_launch[at] and not recording.shares_launch[at]
    ]
    keep = np.ones(len(recording), np.bool_)
    keep[late] = False
    return replace(recording.kept(keep), lost_launches=tuple(lost))
