"""Reader of rocprofv2's CSV: `results_…` holds the kernels, `hip_api_trace_…` the calls that launched them."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.errors import UnreadableTraceError
from jitter.readers import Advance, Batch, Files, Reader, Recording
from jitter.readers.amd.batches import BatchBuilder, process_column
from jitter.readers.amd.csv_file import CsvFile, read_header
from jitter.readers.amd.file_names import NAMING_HINT, sibling_files
from jitter.readers.integers import to_int64

_NEEDED: Final = frozenset({"dispatch_id", "gpu_id", "kernel_name", "start_timestamp", "end_timestamp"})
_NUMBERS: Final = ("gpu_id", "queue_id", "pid", "start_timestamp", "end_timestamp", "correlation_id")
_CALL: Final = ("function", "start_timestamp", "end_timestamp", "correlation_id")
_RESULTS: Final = re.compile(r"(?P<before>.*?)results_(?P<own>.+)\.csv", re.IGNORECASE)


class RocprofV2Reader:
    """Reads `results_*.csv` with `hip_api_trace_*.csv` of the same suffix."""

    name = "rocprof-v2"
    version = 1

    def sniff(self, path: Path) -> bool:
        if path.suffix.lower() != ".csv" or not path.is_file():
            return False
        try:
            return {name.lower() for name in read_header(path)} >= _NEEDED
        except OSError:
            return False

    def files(self, path: Path) -> Files:
        others = _sibling_csvs(path)
        calls = tuple(file for file in others if "hip_api" in file.name.lower())
        return Files((path, *calls), tuple(file for file in others if file not in calls))

    def open(self, path: Path) -> tuple[Recording, Callable[[Advance], Iterator[Batch]]]:
        """Return the recording and its batches. Raises UnreadableTraceError for a file that is no results file."""
        file = CsvFile(path)
        if not file.has(*_NEEDED):
            raise UnreadableTraceError(f"{path}: no results of rocprofv2", "record again")
        recording = Recording(path=path, format=self.name, rank_hint=f"with rocprofv3, {NAMING_HINT}")
        return recording, lambda advance: self._batches(recording, file, advance)

    def _batches(self, recording: Recording, file: CsvFile, advance: Advance) -> Iterator[Batch]:
        rows, kernels = BatchBuilder(), 0
        for batch in _kernels(file, rows, advance):
            kernels += batch.rows.num_rows
            yield batch
        if not kernels:
            raise UnreadableTraceError(f"{recording.path}: no kernels in it", "did the process use a GPU?")
        problems = file.problems()
        calls = self.files(recording.path).read[1:]
        for path in calls:
            trace = CsvFile(path)
            if len(rows.processes) != 1:
                # calls state no process, so with several processes that of a call is unknown
                problems.append(f"{path.name}: not read, because the kernels belong to {len(rows.processes)} processes")
                advance(path.stat().st_size)
                continue
            try:
                yield from _calls(trace, rows, advance)
            except UnreadableTraceError as error:
                problems.append(f"{path.name}: {error.message.partition(': ')[2]}; it is left out")
            problems += trace.problems()
        if not calls:
            problems.append("no hip_api_trace_….csv in the folder: the launching calls are unknown")
        problems.append("rocprofv2 records no ends of roctx ranges: its markers are not read")
        named = _RESULTS.fullmatch(recording.path.name)
        rows.complete(recording, named["before"] + named["own"] if named else recording.path.stem, problems)


READER: Reader = RocprofV2Reader()


def _kernels(file: CsvFile, rows: BatchBuilder, advance: Advance) -> Iterator[Batch]:
    for read in file.batches(("kernel_name", *_NUMBERS), advance):
        number = {name: to_int64(read[name]) for name in _NUMBERS if name in read.schema.names}
        missing = pa.nulls(read.num_rows, pa.int64())
        columns = {
            "process": rows.by_pid(number.get("pid", missing)),
            "device": number["gpu_id"],
            "stream": number.get("queue_id", missing),
            "name": rows.named(read["kernel_name"]),
            "start_ns": number["start_timestamp"],
            "end_ns": number["end_timestamp"],
            "correlation": number.get("correlation_id", missing),
        }
        yield rows.activities(columns, copies=False)


def _calls(file: CsvFile, rows: BatchBuilder, advance: Advance) -> Iterator[Batch]:
    if not file.has(*_CALL):
        raise UnreadableTraceError(f"{file.path}: no trace of HIP calls", "record again")
    for read in file.batches(_CALL, advance):
        batch = read.filter(pc.starts_with(read["function"], b"hip"))
        columns: dict[str, pa.Array] = {
            "process": process_column(0, batch.num_rows),
            "name": rows.named(batch["function"]),
            "start_ns": to_int64(batch["start_timestamp"]),
            "end_ns": to_int64(batch["end_timestamp"]),
            "correlation": to_int64(batch["correlation_id"]),
        }
        yield rows.calls(columns)


def _sibling_csvs(path: Path) -> list[Path]:
    """Return the other files of the run, which have the same suffix after a word for their contents."""
    named = _RESULTS.fullmatch(path.name)
    if named is None:
        return []
    pattern = re.compile(
        re.escape(named["before"]) + r"(?:hip_api|hsa_api|hip_activity|hcc_ops|async_copy|hsa_async_copy|roctx)_trace_"
        + re.escape(named["own"]) + r"\.csv",
        re.IGNORECASE,
    )  # fmt: skip
    return [file for file in sibling_files(path, named["before"]) if pattern.fullmatch(file.name)]
