"""Kernels as CSV, one file per GPU and step, with the twelve columns of NVIDIA's case study (GTC 2020)."""

from pathlib import Path
from typing import Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from jitter.api import Lake
from jitter.core.files import atomic_file
from jitter.core.formatting import csv_text
from jitter.core.step_key import StepKey
from jitter.lake.parquet import read_rank_step

_STORED_COLUMNS: Final = {
    "device": "device",
    "crt_name": "launch_name",
    "crt_start": "launch_start_ns",
    "crt_end": "launch_end_ns",
    "kernel_demangled_name": "kernel_name",
    "kernel_stream": "stream",
    "kernel_start": "start_ns",
    "kernel_end": "end_ns",
    "kernel_duration": "duration_ns",
}
"""The column of `schema.KERNELS` for each column of the file but those of the step's marker."""
CSV_COLUMNS: Final = ("nvtx_text", "nvtx_start", "nvtx_end", *_STORED_COLUMNS)


def read_csv_rows(lake: Lake, key: StepKey, rank: int) -> pa.Table:
    """Return the kernels of one rank's step in launch order, without copies and fills; times in ns.

    Raises `LakeError` if the file of the lake is missing or damaged.
    """
    held = lake.record_of(key, rank)
    step = held.step
    rows = read_rank_step(lake.root, held, ("kind", *_STORED_COLUMNS.values()))
    rows = rows.filter(pc.not_equal(rows["kind"], "memory"))
    size = rows.num_rows
    columns = [
        pa.repeat(pa.scalar(step.marker, pa.string()), size),
        pa.repeat(pa.scalar(step.start_ns, pa.int64()), size),
        pa.repeat(pa.scalar(step.end_ns, pa.int64()), size),
        *(rows[name] for name in _STORED_COLUMNS.values()),
    ]
    return pa.table(columns, names=CSV_COLUMNS)


def csv_file_name(key: StepKey, rank: int) -> str:
    """Return the file name for one rank's step."""
    epoch = "" if key.epoch is None else f"epoch{key.epoch}_"
    return f"{epoch}step{key.step}-rank{rank}.csv"


def write_kernel_csv(path: Path, rows: pa.Table) -> None:
    """Write one rank's step; text is quoted only if necessary, and null is an empty cell."""
    texts = [
        field.name for field in rows.schema if pa.types.is_string(field.type) or pa.types.is_dictionary(field.type)
    ]
    for name in texts:
        rows = rows.set_column(rows.schema.get_field_index(name), name, _guarded(rows[name]))
    with atomic_file(path) as half:
        rows.to_pandas(types_mapper=pd.ArrowDtype).to_csv(half, index=False, lineterminator="\n")


def _guarded(column: pa.ChunkedArray) -> pa.Array:
    """Return a text column for a CSV file; few texts are distinct."""
    encoded = column.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    texts = pa.array([csv_text(text) for text in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)
