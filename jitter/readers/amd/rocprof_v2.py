"""Reader of rocprofv2's CSV: `results_…` holds the kernels, `hip_api_trace_…` the calls that launched them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa

from jitter.core.errors import UnreadableTraceError
from jitter.readers import Files
from jitter.readers.amd.rows import NAMING_HINT, AmdReader, Columns, Kind, RowBuilder, sibling_files
from jitter.readers.columns import ColumnMap, Progress
from jitter.readers.csv_file import CsvFile, sniff_columns

_TIMES: Final = {"start_ns": "start_timestamp", "end_ns": "end_timestamp", "correlation": "correlation_id"}
_KERNELS: Final = ColumnMap(
    {**_TIMES, "process": "pid", "device": "gpu_id", "stream": "queue_id"}
    | {"grid_x": "grid_size", "block_x": "workgroup_size"},
    {"name": "kernel_name"},
)
_CALLS: Final = ColumnMap(_TIMES, {"name": "function"})
_NEEDED: Final = frozenset({"dispatch_id", "gpu_id", "kernel_name", "start_timestamp", "end_timestamp"})
_RESULTS: Final = re.compile(r"(?P<before>.*?)results_(?P<suffix>.+)\.csv", re.IGNORECASE)


class RocprofV2Reader(AmdReader):
    """Reads `results_*.csv` with `hip_api_trace_*.csv` of the same suffix."""

    name = "rocprof-v2"
    rank_hint = f"with rocprofv3, {NAMING_HINT}"

    def sniff(self, path: Path) -> bool:
        return sniff_columns(path) >= _NEEDED

    def files(self, path: Path) -> Files:
        others = _sibling_csvs(path)
        calls = tuple(file for file in others if "hip_api" in file.name.lower())
        return Files((path, *calls), tuple(file for file in others if file not in calls))

    def parts(self, path: Path, rows: RowBuilder, progress: Progress) -> Iterator[tuple[Kind, Columns]]:
        file = CsvFile(path)
        if not file.has(*_NEEDED):
            raise UnreadableTraceError(f"{path}: no results of rocprofv2", "record again")
        if named := _RESULTS.fullmatch(path.name):
            rows.stem = named["before"] + named["suffix"]
        for columns in file.read(_KERNELS, progress):
            yield "kernels", columns
        if not rows.counts["kernels"]:
            raise UnreadableTraceError(f"{path}: no kernels in it", "did the process use a GPU?")
        rows.problems += file.problems()
        calls = self.files(path).read[1:]
        for trace in map(CsvFile, calls):
            if len(rows.processes) != 1:
                # calls state no process, so with several processes that of a call is unknown
                rows.problems.append(
                    f"{trace.path.name}: not read, because the kernels belong to {len(rows.processes)} processes"
                )
                continue
            with rows.leaving_out(trace.path):
                trace.require("function", *_TIMES.values())
                for columns in trace.read(_CALLS, progress):
                    process = pa.repeat(pa.scalar(0, pa.int32()), len(columns["name"]))
                    yield "calls", columns | {"process": process}
            rows.problems += trace.problems()
        if not calls:
            rows.problems.append("no hip_api_trace_….csv in the folder: the launching calls are unknown")
        rows.problems.append("rocprofv2 records no ends of roctx ranges: its markers are not read")


READER: Final = RocprofV2Reader()


def _sibling_csvs(path: Path) -> list[Path]:
    """Return the other files of the run, which have the same suffix after a word for their contents."""
    named = _RESULTS.fullmatch(path.name)
    if named is None:
        return []
    pattern = re.compile(
        re.escape(named["before"]) + r"(?:hip_api|hsa_api|hip_activity|hcc_ops|async_copy|hsa_async_copy|roctx)_trace_"
        + re.escape(named["suffix"]) + r"\.csv",
        re.IGNORECASE,
    )  # fmt: skip
    return [file for file in sibling_files(path, named["before"]) if pattern.fullmatch(file.name)]
