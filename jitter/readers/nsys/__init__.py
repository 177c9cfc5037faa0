"""Reader of Nsight Systems exports: SQLite (`--type sqlite`) and parquetdir (`--type parquetdir`)."""

from collections.abc import Callable, Iterator
from pathlib import Path

from jitter.core.errors import UnreadableTraceError
from jitter.readers import Advance, Batch, Process, Reader, Recording
from jitter.readers.columns import Progress
from jitter.readers.nsys.batches import NsysBatches
from jitter.readers.nsys.metadata import ExportMetadata, read_metadata
from jitter.readers.nsys.tables import (
    GRAPH_TRACE,
    KERNEL,
    RUNTIME,
    ParquetTables,
    SqliteTables,
    Tables,
    is_export,
    resolve_names,
)

_PID_BITS = 0xFF_FFFF


class NsysReader(Reader):
    """Reads SQLite and parquetdir exports; ingestion exports a `.nsys-rep` first."""

    name = "nsys"
    version = 1

    def sniff(self, path: Path) -> bool:
        try:
            return is_export(path)
        except (OSError, ValueError):
            return False

    def open(self, path: Path) -> tuple[Recording, Callable[[Advance], Iterator[Batch]]]:
        """Return the recording and its batches.

        Raises UnreadableTraceError for a damaged or unfinished export, and for one without GPU kernels.
        """
        tables: Tables = ParquetTables(path) if path.is_dir() else SqliteTables(path)
        if not any(tables.columns(table) and tables.count(table) for table in (KERNEL, GRAPH_TRACE)):
            raise UnreadableTraceError(
                f"{path}: no GPU kernels in this export", "was it recorded with `nsys profile -t cuda`?"
            )
        origin = read_metadata(tables)
        recording = Recording(
            path=path,
            format="nsys",
            profiler_version=origin.profiler_version,
            utc_offset_ns=origin.utc_offset_ns,
            world_size=origin.world_size,
            gpu_models=origin.gpu_models,
            bus_ids=origin.bus_ids,
        )
        return recording, lambda advance: _batches(recording, tables, origin, advance)


READER: Reader = NsysReader()


def _batches(recording: Recording, tables: Tables, origin: ExportMetadata, advance: Advance) -> Iterator[Batch]:
    """Yield all rows, then complete the recording. Raises UnreadableTraceError where the export is damaged."""
    rows = NsysBatches(tables, origin)
    parts = rows.parts()
    progress = Progress(tables.size, advance, sum(tables.count(table) for table in parts))
    for part in parts.values():
        for batch in part():
            progress.rows(batch.rows.num_rows)
            for key in rows.processes.keys[len(recording.processes) :]:
                process = Process(None if key is None else key & _PID_BITS, origin.host(key))
                process.launcher_rank, process.launcher_rank_from = origin.launcher_rank, origin.launcher_rank_from
                recording.processes.append(process)
            if batch.rows.num_rows:
                yield batch
    # names, ranks and problems are known after the last row
    recording.names, missing, invalid = resolve_names(tables, rows.names.keys)
    for process, key in zip(recording.processes, rows.processes.keys, strict=True):
        if key is None:
            continue
        for ranks, source in (
            (rows.nvtx_ranks.get(key, set()), "NVTX 'MPI Rank {}'"),
            (origin.mpi_ranks.get(key, set()), "MPI_RANKS"),
        ):
            if len(ranks) > 1:
                listed = ", ".join(map(str, sorted(ranks)))
                recording.problems.append(f"process {process.pid} has several MPI ranks ({listed})")
            elif ranks and process.rank is None:
                (process.rank,) = ranks
                process.rank_from = source.format(process.rank)
    recording.problems += _problems(rows, missing, invalid + rows.invalid_texts, tables)
    progress.finish()


def _problems(rows: NsysBatches, missing_names: int, invalid_texts: int, tables: Tables) -> list[str]:
    problems = []
    if not tables.columns(RUNTIME):
        problems.append("no CUDA API calls in this export: which call launched a kernel is unknown")
    if rows.graph_replays:
        problems.append(
            f"{rows.graph_replays} CUDA graph replays were recorded as a whole; "
            "`nsys profile --cuda-graph-trace=node` would show their kernels"
        )
    problems += [
        f"{count} {what} without a possible time were left out" for what, count in rows.without_time.items() if count
    ]
    problems += tables.problems()
    if rows.nccl.unknown_sizes:
        problems.append(
            f"sizes of {rows.nccl.unknown_sizes} collective calls are unknown: the creation of their communicators, "
            "which states the number of ranks, was not recorded"
        )
    counts = {
        "GPU activities state no process, and several processes made CUDA calls: their launches are unknown": (
            rows.without_process
        ),
        "NVTX ranges without a text were left out": rows.without_text,
        "texts are not valid UTF-8: their invalid bytes were replaced": invalid_texts,
        "names are missing from the export's StringIds": missing_names,
    }
    return [*problems, *(f"{count} {what}" for what, count in counts.items() if count)]
