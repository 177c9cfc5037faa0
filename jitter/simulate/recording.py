"""The recording of one rank: activities, calls and ranges, on the rank's clock.

Each recording has its own zero, and states a wall clock with an error as NTP leaves it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jitter.simulate.job import Job, MarkerStyle
from jitter.simulate.program import Ints, Operation

Bools = NDArray[np.bool_]
_START_UTC_NS = 1_718_000_000_000_000_000
"""The UTC at which a job runs step 0."""
_STEP_PITCH_NS = 10**9
"""UTC between the beginnings of two recordings, for each step between their first steps."""
_LEAD_NS = 1_500_000_000
"""Shortest time from the start of a recording to its first kernel."""
_CLOCK_SPREAD_NS = 90_000_000_000
"""Largest difference between the starts of two ranks' recordings."""
_CLOCKS = 2**41
"""Seed of the clocks, in place of a rank."""


def begin_utc_ns(job: Job) -> int:
    """Return the UTC at which the recording of a job begins: that of a later step begins later."""
    return _START_UTC_NS + job.first_step * _STEP_PITCH_NS


@dataclass(frozen=True)
class Clock:
    """A rank's clock: local = global + offset_ns; the UTC that the recording states = local + utc_epoch_ns."""

    offset_ns: int
    utc_epoch_ns: int


def make_clock(job: Job, rank: int) -> Clock:
    """Return the clock of a rank's recording. Ranks of a node share the error of the wall clock, but not the zero."""
    rng = np.random.default_rng((job.seed, _CLOCKS, rank))
    offset = _LEAD_NS + round(float(rng.random()) * _CLOCK_SPREAD_NS)
    node = np.random.default_rng((job.seed, _CLOCKS + 1, rank // job.gpus_per_node))
    error = round(float(node.standard_normal()) * job.clock_error_ns)
    return Clock(offset, begin_utc_ns(job) - offset + error)


class HostRange(NamedTuple):
    """A host-side range. `end_ns` is None if the recording ended first."""

    kind: Literal["step", "data_loading", "phase"]
    text: str
    thread: int
    start_ns: int
    end_ns: int | None
    step: int
    epoch: int | None = None


class ProcessGroup(NamedTuple):
    number: str
    """Number among the job's groups, as text; "0" is the whole job."""
    name: str
    """Purpose of the group."""
    ranks: tuple[int, ...]


class HostCall(NamedTuple):
    """A host call without an activity: a sync, an event, or a launch whose activity was lost."""

    name: str
    thread: int
    start_ns: int
    end_ns: int
    correlation: int
    step: int | None


def format_marker(style: MarkerStyle, epoch: int | None, step: int, rank: int) -> str:
    if style == "talk":
        return f"{'' if epoch is None else f'epoch{epoch}_'}step{step}-rank{rank}-640_8-640_8-640_8"
    return f"ProfilerStep#{step}" if style == "profiler" else f"iteration {step}"


@dataclass(frozen=True)
class RankRecording:
    """The recording of one rank. Arrays are parallel, one entry per GPU activity, in launch order."""

    rank: int
    host: str
    pid: int
    device: int
    clock: Clock
    operations: tuple[Operation, ...]
    """Operations with name, kind, stream, thread, block, bytes; the array `operation` holds positions in it."""
    operation: Ints
    step: Ints
    """-1 outside of all steps."""
    start_ns: Ints
    end_ns: Ints
    has_launch: Bools
    """False if the launch was not recorded: its times are undefined then."""
    launch_start_ns: Ints
    launch_end_ns: Ints
    shares_launch: Bools
    """True for a kernel that shares the launch of the kernel before it (a CUDA graph)."""
    correlation: Ints
    grid_x: Ints
    calls: tuple[HostCall, ...]
    ranges: tuple[HostRange, ...]
    groups: Mapping[str, ProcessGroup] = field(default_factory=dict)
    """Process groups of the rank, by the name that its operations use."""

    def __len__(self) -> int:
        return len(self.operation)

    @property
    def threads(self) -> tuple[int, ...]:
        """Thread ids of the operating system; the main thread's is the pid."""
        return (self.pid, self.pid + 41)

    @property
    def in_step(self) -> Bools:
        """Whether each activity is of a step."""
        inside: Bools = self.step >= 0
        return inside

    @property
    def steps(self) -> list[HostRange]:
        return [r for r in self.ranges if r.kind == "step"]

    def ops(self) -> Iterator[Operation]:
        return map(self.operations.__getitem__, self.operation.tolist())

    def moved(self, by_ns: int) -> "RankRecording":
        """Return the recording on a clock that is ahead by `by_ns`, for traces that hold several ranks."""
        shift = replace(
            self.clock,
            offset_ns=self.clock.offset_ns + by_ns,
            utc_epoch_ns=self.clock.utc_epoch_ns - by_ns,
        )
        return replace(
            self,
            clock=shift,
            start_ns=self.start_ns + by_ns,
            end_ns=self.end_ns + by_ns,
            launch_start_ns=self.launch_start_ns + by_ns,
            launch_end_ns=self.launch_end_ns + by_ns,
            calls=tuple(c._replace(start_ns=c.start_ns + by_ns, end_ns=c.end_ns + by_ns) for c in self.calls),
            ranges=tuple(
                r._replace(start_ns=r.start_ns + by_ns, end_ns=None if r.end_ns is None else r.end_ns + by_ns)
                for r in self.ranges
            ),
        )
