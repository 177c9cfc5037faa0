"""The columns of the tables that readers return and that a lake stores.

Times are int64 nanoseconds on the recording's own clock. Unknown values are null, never 0 or -1.
"""

from typing import Final

import pyarrow as pa

NAME_ID = pa.int32()
"""Names of kernels and calls are positions in the recording's list of names, since demangled C++ is long."""

_LAUNCH_SHAPE = [pa.field(f"{what}_{axis}", pa.int32()) for what in ("grid", "block") for axis in "xyz"]
_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
"""A column of few distinct texts."""

ACTIVITIES = pa.schema(
    [
        pa.field("process", pa.int32(), nullable=False),  # position in Recording.processes
        pa.field("device", pa.int32()),  # the GPU as the recording numbers it
        pa.field("stream", pa.int64()),  # stream (CUDA) or queue; 0 is a valid stream
        pa.field("name", NAME_ID, nullable=False),  # position in Recording.names
        pa.field("is_memory", pa.bool_(), nullable=False),  # a copy or a fill, not a kernel
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("end_ns", pa.int64(), nullable=False),
        pa.field("correlation", pa.int64()),  # joins the launching call, within the process
        *_LAUNCH_SHAPE,
        pa.field("collective", pa.string()),  # the operation, as kernels.OPERATIONS spells it
        pa.field("message_bytes", pa.int64()),
        pa.field("size_bytes", pa.int64()),  # of a collective as nccl-tests states it; of a copy or a fill
        pa.field("split_imbalance", pa.float64()),  # largest / mean part of an unequal all-to-all
        pa.field("dtype", pa.string()),
        pa.field("group_name", pa.string()),
        pa.field("group_ranks", pa.list_(pa.int32())),
        pa.field("group_size", pa.int32()),
        pa.field("sequence", pa.int64()),
        pa.field("source_rank", pa.int32()),  # of a send or a receive: the global rank that sends
        pa.field("destination_rank", pa.int32()),
    ]
)
"""GPU activities, in any order. A batch may omit any nullable column."""

CALLS = pa.schema(
    [
        pa.field("process", pa.int32(), nullable=False),
        pa.field("thread", pa.int64()),  # the operating system's thread id
        pa.field("name", NAME_ID, nullable=False),
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("end_ns", pa.int64()),
        pa.field("correlation", pa.int64()),
    ]
)
"""Calls of the CUDA or HIP interface: launches, copies, synchronisations. In any order."""

RANGES = pa.schema(
    [
        pa.field("process", pa.int32(), nullable=False),
        pa.field("thread", pa.int64()),
        pa.field("text", pa.string(), nullable=False),
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("end_ns", pa.int64()),  # null: the recording ended first
    ]
)
"""Host-side ranges: NVTX, roctx, user annotations. In any order."""

OPERATORS = pa.schema(
    [
        pa.field("process", pa.int32(), nullable=False),
        pa.field("thread", pa.int64()),
        pa.field("name", NAME_ID, nullable=False),
        pa.field("is_module", pa.bool_(), nullable=False),  # a module of the model or a Python frame, no operator
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("end_ns", pa.int64(), nullable=False),
    ]
)
"""Operators (`aten::mm`) and modules of a framework, and frames of the Python stack (`train.py(12): step`), on the
host. In any order. A reader may leave out events that enclose no call."""

BACKWARD = pa.schema(
    [
        pa.field("process", pa.int32(), nullable=False),
        pa.field("thread", pa.int64(), nullable=False),
        pa.field("at_ns", pa.int64(), nullable=False),  # a time within the backward operator
        pa.field("forward_thread", pa.int64(), nullable=False),
        pa.field("forward_ns", pa.int64(), nullable=False),  # a time within the forward operator
    ]
)
"""Operators of the backward pass, each with the operator of the forward pass that it belongs to. In any order."""

READER_TABLES = {
    "activities": ACTIVITIES,
    "calls": CALLS,
    "ranges": RANGES,
    "operators": OPERATORS,
    "backward": BACKWARD,
}
"""The tables that readers return, by name."""

KERNELS = pa.schema(
    [
        pa.field("rank", pa.int32(), nullable=False),  # the job's global rank
        pa.field("ordinal", pa.int32(), nullable=False),  # launch order in the rank's step, from 0
        pa.field("kernel_name", _TEXT, nullable=False),
        pa.field("kind", _TEXT, nullable=False),
        pa.field("device", pa.int32()),
        pa.field("stream", pa.int64()),
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("end_ns", pa.int64(), nullable=False),
        pa.field("duration_ns", pa.int64(), nullable=False),
        pa.field("launch_name", _TEXT),
        pa.field("launch_start_ns", pa.int64()),
        pa.field("launch_end_ns", pa.int64()),
        pa.field("launch_thread", pa.int64()),
        pa.field("correlation_id", pa.int64()),
        *_LAUNCH_SHAPE,
        *map(ACTIVITIES.field, ("collective", "message_bytes", "dtype", "group_name", "group_ranks", "group_size")),
        *map(ACTIVITIES.field, ("sequence", "source_rank", "destination_rank", "size_bytes", "split_imbalance")),
        pa.field("copy_direction", pa.string()),
        pa.field("operator", _TEXT),
        pa.field("scope", _TEXT),
        pa.field("phase", _TEXT),
        pa.field("source_line", _TEXT),
    ]
)
"""One row per GPU activity of one rank's step, in launch order: `LAKE/kernels/step=N/rank=R.parquet`.

New columns are appended and nullable: files of older versions lack them, and every reader returns nulls for them.
"""

HOST = pa.schema(
    [
        pa.field("epoch", pa.int64()),
        pa.field("step", pa.int64()),
        pa.field("kind", pa.string(), nullable=False),  # sync, barrier, data_loading, checkpoint, validation, operation
        pa.field("name", pa.string(), nullable=False),
        pa.field("thread", pa.int64()),
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("end_ns", pa.int64()),
    ]
)
"""Calls that wait for a GPU or for other hosts, data loading, checkpoints, validation and long operations on a host.

One rank's are in `LAKE/host/rank=R/SOURCE.parquet`.
"""
SHORTEST_LAUNCH_NS: Final = 1_000
"""A launching call takes longer: one that begins less than this before an operation ends is not within it."""
LONG_OPERATION_NS: Final = 50_000
"""Duration from which host operations that launch nothing are read and kept: shorter ones explain no gap."""
OFF_CPU: Final = "off CPU"
"""Name of a host operation: the operating system had suspended the thread."""
MIGRATION: Final = "off CPU, then on another core"
"""The same, and the thread went on on another core, whose caches are cold."""
PROFILER: Final = "profiler overhead"
"""The profiler that records held up the thread: it asked for a buffer, or wrote one out."""
