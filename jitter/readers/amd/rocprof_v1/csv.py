"""Kernels in rocprof's CSV: quoted or bare column names, counters between them, times if recorded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from jitter.readers import Advance, Batch
from jitter.readers.amd.agents import Agents
from jitter.readers.amd.batches import BatchBuilder
from jitter.readers.amd.csv_file import CsvFile
from jitter.readers.integers import to_int64

CSV_COLUMNS: Final = frozenset({"index", "kernelname", "gpu-id", "queue-id"})
"""Columns that are always present, in lower case."""
_INTEGERS: Final = ("gpu-id", "queue-id", "pid", "tid", "beginns", "endns")


def read_csv(path: Path, rows: BatchBuilder, agents: Agents, problems: list[str], advance: Advance) -> Iterator[Batch]:
    """Yield all kernels. Raises UnreadableTraceError for damage beyond single rows."""
    file = CsvFile(path)
    problems.append("a CSV file of kernels states neither their launching calls nor their steps")
    for read in file.batches(("kernelname", *_INTEGERS), advance):
        number = {name: to_int64(read[name]) for name in _INTEGERS if name in read.schema.names}
        pids = number.get("pid", pa.nulls(read.num_rows, pa.int64()))
        columns = {
            "process": rows.by_pid(pids),
            "device": agents.ordinals(number["gpu-id"]),
            "stream": number["queue-id"],
            "name": rows.named(read["kernelname"]),
            "start_ns": number["beginns"],
            "end_ns": number["endns"],
        }
        yield rows.activities(columns, copies=False)
    problems += file.problems()
