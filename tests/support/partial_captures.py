"""Recordings of a profiler that loses launches and kernels, begins late, or ends within the last step."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from jitter.simulate import Job, RankRecording, Run
from jitter.simulate.capture import CaptureOptions, apply_capture, launch_call


@dataclass(frozen=True)
class PartialCapture:
    """A run as it was captured: in the place of a `Run` where traces are written."""

    run: Run
    graphs: str = "off"
    unlaunched: int = 0
    """One in this many kernels has no recorded launch; 0: all have one."""
    early: int = 0
    """Number of kernels launched before the capture began."""
    cut_kernels: int = 0
    """Number of activities at the end that were not recorded, although their launches were."""
    open_last: bool = False
    """Whether the last step's range has no end."""

    @property
    def job(self) -> Job:
        return self.run.job

    def ranks(self, wanted: Any = None) -> Iterator[RankRecording]:
        return map(self._lose, self.run.ranks(wanted))

    def _lose(self, whole: RankRecording) -> RankRecording:
        recording = apply_capture(whole, CaptureOptions(graphs=self.graphs))  # type: ignore[arg-type]
        launched = np.arange(len(recording)) >= self.early
        if self.unlaunched:
            kept = np.ones(len(recording), np.bool_)
            kept[self.unlaunched - 1 :: self.unlaunched] = False
            # the launch of a graph belongs to many kernels and is kept
            launched &= kept | recording.shares_launch | np.append(recording.shares_launch[1:], False)
        recording = _cut(replace(recording, has_launch=recording.has_launch & launched), self.cut_kernels)
        last = max((r.step for r in recording.steps), default=None)
        is_open = [self.open_last and r.kind == "step" and r.step == last for r in recording.ranges]
        ranges = zip(recording.ranges, is_open, strict=True)
        return replace(recording, ranges=tuple(r._replace(end_ns=None) if ends else r for r, ends in ranges))


def _cut(recording: RankRecording, count: int) -> RankRecording:
    late = np.argsort(recording.start_ns, kind="stable")[max(0, len(recording) - count) :] if count else []
    is_lost = recording.has_launch & ~recording.shares_launch
    lost = tuple(launch_call(recording, at) for at in sorted(map(int, late)) if is_lost[at])
    keep = np.ones(len(recording), np.bool_)
    keep[late] = False
    return replace(keep_activities(recording, keep), calls=(*lost, *recording.calls))


def keep_activities(recording: RankRecording, chosen: Any) -> RankRecording:
    """Return the recording with the activities alone that a mask, or positions in their order, choose."""
    columns = {field.name: getattr(recording, field.name) for field in fields(recording)}
    return replace(recording, **{name: c[chosen] for name, c in columns.items() if isinstance(c, np.ndarray)})
