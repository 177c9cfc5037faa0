"""Reader of Nsight Systems exports: SQLite (`--type sqlite`) and parquetdir (`--type parquetdir`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from jitter.core.errors import UnreadableTraceError
from jitter.readers import Batch, Process, Recording, SourceReader
from jitter.readers.columns import Progress
from jitter.readers.nsys.batches import NsysBatches
from jitter.readers.nsys.metadata import read_metadata
from jitter.readers.nsys.tables import (
    GRAPH_TRACE,
    KERNEL,
    ParquetTables,
    SqliteTables,
    Tables,
    is_export,
    resolve_names,
)

_PID_BITS = 0xFF_FFFF


class NsysReader(SourceReader):
    """Reads SQLite and parquetdir exports; ingestion exports a `.nsys-rep` first."""

    name = "nsys"
    version = 5

    def sniff(self, path: Path) -> bool:
        try:
            return is_export(path)
        except (OSError, ValueError):
            return False

    def batches(self, recording: Recording, progress: Progress) -> Iterator[Batch]:
        """Yield all rows. Raises UnreadableTraceError for a damaged or unfinished export, or one without kernels."""
        path = recording.path
        tables: Tables = ParquetTables(path) if path.is_dir() else SqliteTables(path)
        if not any(tables.columns(table) and tables.count(table) for table in (KERNEL, GRAPH_TRACE)):
            raise UnreadableTraceError(
                f"{path}: no GPU kernels in this export", "was it recorded with `nsys profile -t cuda`?"
            )
        origin = read_metadata(tables, recording)
        rows = NsysBatches(tables, origin)
        parts = rows.parts()
        progress.expect(sum(tables.count(table) for table in parts))
        for part in parts.values():
            for batch in part():
                progress.rows(batch.rows.num_rows)
                for key in rows.processes.keys[len(recording.processes) :]:
                    process = Process(None if key is None else key & _PID_BITS, origin.host(key))
                    process.launcher_rank, process.launcher_rank_from = origin.launcher
                    recording.processes.append(process)
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
        recording.problems += rows.problems(missing, invalid)


READER: Final = NsysReader()
