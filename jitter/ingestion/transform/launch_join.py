"""What a capture gives once its rows are joined, whether they fit in memory or not."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from jitter.ingestion.transform.step_markers import StepRange

_NEVER = np.iinfo(np.int64).max


class Gpu(NamedTuple):
    """One GPU that one process used: what becomes a rank."""

    process: int
    device: int | None


@dataclass(frozen=True)
class GpuUsage:
    """What one process did on one GPU, over the whole capture."""

    gpu: Gpu
    kernels: int
    compute_kernels: int
    main_stream: int | None
    """The stream with the most compute kernels (ties: the lowest id)."""
    first_ns: int
    last_ns: int


class DataLoading(NamedTuple):
    """A host's wait for data. Times in ns; `end_ns` is None where the recording ended first."""

    process: int
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
        """The processes of which launches were recorded."""
        ...

    def gpus(self) -> list[GpuUsage]:
        """Who used which GPU, by process and device."""
        ...

    def sequence(self, gpu: Gpu, kind: str, stream: int | None = None) -> pa.Table:
        """What one GPU ran in launch order: `name` (position in the recording's names), `place_ns`.

        Of one kind (compute, collective), on one stream or on all of them; copies and fills left out.
        """
        ...

    def in_steps(self, steps: Steps) -> Iterator[tuple[Gpu, pa.Table]]:
        """Yield some steps of one GPU at a time: whole ones, in order, rows in launch order, `step_row` with each.

        `step_row` is the position in the process's steps. Columns: those of `schema.ACTIVITIES`, nullable ones
        optional, and `launch_name`, `launch_start_ns`, `launch_end_ns`, `launch_thread`.
        """
        ...

    def before_capture(self) -> dict[Gpu, int]:
        """Count the kernels that were launched before the capture began: they belong to no step."""
        ...

    def lost_launches(self, steps: Steps) -> dict[tuple[int, int], int]:
        """Count the launches whose kernels were lost by (process, position in its steps)."""
        ...

    def host(self, steps: Steps) -> pa.Table:
        """What held the hosts up: `process`, `step_row` (null: in no step) and the columns of `schema.HOST`."""
        ...


def locate_in_steps(times_ns: npt.NDArray[np.int64], steps: Sequence[StepRange]) -> npt.NDArray[np.int32]:
    """The position in a process's steps of each of these times; -1: in none."""
    starts = np.array([step.start_ns for step in steps], np.int64)
    untils = np.array([_NEVER if step.until_ns is None else step.until_ns for step in steps], np.int64)
    rows = np.searchsorted(starts, times_ns, side="right") - 1
    inside = rows >= 0
    inside[inside] = times_ns[inside] < untils[rows[inside]]
    return np.where(inside, rows, -1).astype(np.int32)
