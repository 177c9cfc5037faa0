"""A complete third-party reader: CSV files with one row per kernel, times in us since 1970.

Its package installs it with an entry point:

    [project.entry-points."jitter.readers"]
    kernel_csv = "kernel_csv_reader:READER"
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from jitter.core.errors import UnreadableTraceError
from jitter.core.schema import ACTIVITIES
from jitter.readers import Batch, Process, Recording, SourceReader
from jitter.readers.columns import Progress

COLUMNS = ["name", "stream", "start_us", "duration_us"]


class KernelCsvReader(SourceReader):
    """Reads the CSV files of an in-house tool."""

    name = "kernel_csv"

    def sniff(self, path: Path) -> bool:
        if path.suffix != ".csv" or not path.is_file():
            return False
        with path.open("rb") as file:
            return file.readline(100).strip() == ",".join(COLUMNS).encode()

    def batches(self, recording: Recording, progress: Progress) -> Iterator[Batch]:
        with recording.path.open(newline="", errors="replace") as lines:
            rows = [row for row in csv.DictReader(lines) if row["duration_us"] and row["duration_us"].isdecimal()]
        if not rows:
            raise UnreadableTraceError(f"{recording.path}: no kernels in it", "record again")
        recording.utc_offset_ns, recording.processes = 0, [Process(pid=None)]
        recording.names = sorted({row["name"] for row in rows})
        starts = [int(row["start_us"]) * 1000 for row in rows]
        columns = {
            "process": [0] * len(rows),
            "device": [0] * len(rows),
            "stream": [int(row["stream"]) for row in rows],
            "name": [recording.names.index(row["name"]) for row in rows],
            "is_memory": [False] * len(rows),
            "start_ns": starts,
            "end_ns": [start + int(row["duration_us"]) * 1000 for start, row in zip(starts, rows, strict=True)],
        }
        schema = pa.schema([ACTIVITIES.field(name) for name in columns])
        yield Batch("activities", pa.record_batch(columns, schema=schema))


READER = KernelCsvReader()
