"""A rank's own parquet files, held against its record: checksum, rank and number of rows."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jitter.core.names.kernels import KINDS, MEMORY
from jitter.core.parallel.processes import cpu_count
from jitter.lake.integrity.checksums import file_checksum
from jitter.lake.layout import host_file, kernels_file
from jitter.lake.parquet import read_kernels, unreadable_file_error, wrong_checksum_error
from jitter.lake.records import RankStepRecord, SourceRecord

_THREADS: Final = 8
_FILES_PER_CALL: Final = 64
_PARQUET: Final = b"PAR1"
"""A parquet file begins and ends with it."""


def read_rank_step(root: Path, held: RankStepRecord, columns: Sequence[str]) -> pa.Table:
    """Read columns of one rank's step, as `parquet.read_kernels` does.

    Raises `LakeError` if the file is missing or damaged, or holds something else than its record states.
    """
    step, rank = held.step, held.record.rank
    assert rank is not None
    path = root / kernels_file(step.key, rank)
    # a record without checksums was written by an older version: the column of ranks is read instead
    extra = ["rank"] if step.checksum is None and "rank" not in columns else []
    rows = read_kernels(path, [*columns, *extra], step.checksum)
    if rows.num_rows != step.rows:
        raise unreadable_file_error(path, ValueError(f"holds {rows.num_rows} rows, and its record {step.rows}"))
    if "kind" in columns:
        counts = {one["values"]: one["counts"] for one in pc.value_counts(rows["kind"]).to_pylist()}
        if counts.pop(KINDS[MEMORY], 0) != step.memory_activities or not counts.keys() <= set(KINDS):
            raise unreadable_file_error(path, ValueError("its kinds of activities are not those of its record"))
    if step.checksum is None and rows.num_rows:
        found = pc.min_max(rows["rank"]).as_py()
        if found != {"min": rank, "max": rank}:
            raise unreadable_file_error(path, ValueError(f"holds rank {found['max']}, and its record rank {rank}"))
    return rows.select(list(columns)) if extra else rows


def find_incomplete(root: Path, records: Sequence[SourceRecord]) -> dict[str, Path]:
    """Return the first incomplete parquet file of each recording that has one, by digest.

    A file is incomplete if it is missing, has another size than its record states, or does not begin and end as parquet
    does: a power cut can leave zeros. Contents are not read: 48,000 files took 3 s on two busy cores.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        found = pool.map(partial(_first_incomplete, root), records, chunksize=1)
        return {record.digest: path for record, path in zip(records, found, strict=True) if path is not None}


def _first_incomplete(root: Path, record: SourceRecord) -> Path | None:
    assert record.rank is not None
    files = [(kernels_file(step.key, record.rank), step.size) for step in record.steps]
    if record.host_rows:
        files.append((host_file(record.rank, record.digest), record.host_size))
    return next((path for path, size in files if not _is_complete(f"{root}/{path}", size)), None)


def _is_complete(path: str, size: int | None) -> bool:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        found = os.fstat(file).st_size
        is_parquet = (
            os.pread(file, len(_PARQUET), 0) == _PARQUET == os.pread(file, len(_PARQUET), found - len(_PARQUET))
        )
        return is_parquet and size in (None, found)
    except OSError:
        return False
    finally:
        os.close(file)


def check_files(files: Iterable[tuple[Path, str | None]]) -> None:
    """Raise `LakeError` for the first file that is missing or whose checksum is not the recorded one.

    Files without a recorded checksum pass. For a reader other than this package, such as DuckDB.
    """
    known = [(path, recorded) for path, recorded in files if recorded is not None]
    chunks = [known[first : first + _FILES_PER_CALL] for first in range(0, len(known), _FILES_PER_CALL)]
    with ThreadPoolExecutor(min(cpu_count(), _THREADS)) as pool:
        for _ in pool.map(_check_all, chunks):
            pass


def _check_all(files: Sequence[tuple[Path, str]]) -> None:
    for path, recorded in files:
        try:
            is_intact = file_checksum(path) == recorded
        except OSError as error:
            raise unreadable_file_error(path, error) from None
        if not is_intact:
            raise wrong_checksum_error(path)
