"""The talk's CSV: one file a GPU a step, its twelve columns under its names."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jitter.analysis import Lake
from jitter.lake_paths import kernels_file
from jitter.steps import StepKey

COLUMNS = (
    "nvtx_text",
    "nvtx_start",
    "nvtx_end",
    "device",
    "crt_name",
    "crt_start",
    "crt_end",
    "kernel_demangled_name",
    "kernel_stream",
    "kernel_start",
    "kernel_end",
    "kernel_duration",
)


def talk_rows(lake: Lake, key: StepKey, rank: int) -> pa.Table:
    """One rank's step as the talk's table: kernels in launch order, copies and fills left out, times in ns."""
    step = next(step for step in lake.steps_of(rank) if step.key == key)
    rows = pq.read_table(lake.root / kernels_file(key, rank), partitioning=None)
    rows = rows.filter(pc.not_equal(rows["kind"], "memory"))
    size = rows.num_rows
    columns = [
        pa.repeat(pa.scalar(step.marker, pa.string()), size),
        pa.repeat(pa.scalar(step.start_ns, pa.int64()), size),
        pa.repeat(pa.scalar(step.end_ns, pa.int64()), size),
        rows["device"],
        rows["launch_name"],
        rows["launch_start_ns"],
        rows["launch_end_ns"],
        rows["kernel_name"],
        rows["stream"],
        rows["start_ns"],
        rows["end_ns"],
        rows["duration_ns"],
    ]
    return pa.table(columns, names=COLUMNS)


def csv_name(key: StepKey, rank: int) -> str:
    """The file of one rank's step."""
    epoch = "" if key.epoch is None else f"epoch{key.epoch}_"
    return f"{epoch}step{key.step}-rank{rank}.csv"


def write_talk_csv(path: Path, rows: pa.Table) -> None:
    """Write one rank's step; text is quoted only where it must be, as in the talk, and null is an empty cell."""
    rows.to_pandas(types_mapper=pd.ArrowDtype).to_csv(path, index=False, lineterminator="\n")
