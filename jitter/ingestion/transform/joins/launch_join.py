"""The launch join: each GPU activity of a capture with the call that launched it, and its place in launch order.

Two implementations give equal results. `MemoryJoin` (numpy) joins captures of up to `capture.SPILL_BYTES`: it takes a
third less CPU time of the whole ingest than `DuckDbJoin` (0.50 s against 0.76 s for 60,000 kernels, 1.04 s against
1.58 s for 240,000), and most captures are that small. `DuckDbJoin` joins larger ones on disk in bounded memory
(400 MB), where `MemoryJoin` needs about 250 bytes per kernel on top of the rows.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from jitter.core.numeric.arrays import Codes, Ints
from jitter.ingestion.transform.steps.step_markers import StepRange
from jitter.ingestion.transform.steps.step_names import HostRangeKind

COLLECTIVE_COLUMNS = ("collective", "group_name", "group_size")
"""Columns of `schema.ACTIVITIES` that only communication has: a kernel with one of them is communication."""
_NEVER = np.iinfo(np.int64).max


class Gpu(NamedTuple):
    """One GPU used by one process; it becomes a rank."""

    process: int
    device: int | None


@dataclass(frozen=True)
class GpuUsage:
    """Totals of one process on one GPU over the whole capture; times in ns."""

    gpu: Gpu
    kernels: int
    compute_kernels: int
    main_stream: int | None
    """The stream with the most compute kernels (ties: the lowest id)."""
    first_ns: int
    last_ns: int


class HostRange(NamedTuple):
    """A host range of a known kind. Times in ns; `end_ns` is None if the recording ended first."""

    process: int
    kind: HostRangeKind
    text: str
    thread: int | None
    start_ns: int
    end_ns: int | None


Steps = Mapping[int, Sequence[StepRange]]
"""The steps of each process, in order; they do not overlap."""


class JoinedCapture(Protocol):
    """The activities of a capture, each with its launch and its place in launch order."""

    @property
    def has_launches(self) -> Set[int]:
        """The processes whose launches were recorded."""
        ...

    def gpus(self) -> list[GpuUsage]:
        """Return the usage of each GPU, ordered by process and device."""
        ...

    def sequence(self, gpu: Gpu, kind: str, stream: int | None = None) -> pa.Table:
        """Return the kernels of one GPU in launch order: `name` (index into the recording's names), `place_ns`.

        `kind` is compute or collective; `stream` None means all streams. Copies and fills are not included.
        """
        ...

    def in_steps(self, steps: Steps) -> Iterator[tuple[Gpu, pa.Table]]:
        """Yield complete steps of one GPU at a time, in order, with rows in launch order.

        Columns: those of `schema.ACTIVITIES` (nullable ones optional), `launch_name`, `launch_start_ns`,
        `launch_end_ns`, `launch_thread`, `is_collective`, and `step_row`, the index into the process's steps.
        """
        ...

    def before_capture(self) -> dict[Gpu, int]:
        """Count the kernels launched before the capture began, per GPU; they belong to no step."""
        ...

    def uncertain(self, steps: Steps) -> dict[Gpu, int]:
        """Count the activities without a launch that may be of a later step than their predecessor, per GPU.

        Such an activity was launched after its predecessor on its stream, and before it started and its successor was
        launched. It counts in the step of its predecessor.
        """
        ...

    def lost_launches(self, steps: Steps) -> dict[tuple[int, int], int]:
        """Count the launches without a kernel by (process, index into its steps)."""
        ...

    def host(self, steps: Steps) -> pa.Table:
        """Return synchronising calls and host ranges: `process`, `step_row` (null: none), columns of `schema.HOST`."""
        ...


def locate_in_steps(times_ns: Ints, steps: Sequence[StepRange]) -> Codes:
    """Return for each time (n,) in ns the index of the step that contains it; -1 if none does."""
    starts = np.array([step.start_ns for step in steps], np.int64)
    untils = np.array([_NEVER if step.until_ns is None else step.until_ns for step in steps], np.int64)
    rows = np.searchsorted(starts, times_ns, side="right") - 1
    inside = rows >= 0
    inside[inside] = times_ns[inside] < untils[rows[inside]]
    return np.where(inside, rows, -1).astype(np.int32)
