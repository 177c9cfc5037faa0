"""Makes the extracts that a lake lacks, for one who is about to go through all of its rows: of lakes that an older
version filled, and where somebody deleted them. An ingest makes them on its way.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from jitter.core.errors import LakeError
from jitter.core.processes import WorkerPool, cpu_count
from jitter.core.schema import HOST
from jitter.lake import derived, staging
from jitter.lake.derived.timing_cache import COLUMNS, MAX_ROWS, TEXTS, TimingCacheWriter
from jitter.lake.host_events import read_host_events
from jitter.lake.layout import TIMING_CACHE, kernels_file, timing_cache_file
from jitter.lake.parquet import read_columns
from jitter.lake.records import SourceRecord


def build_timing_cache(
    root: Path, sources: Sequence[SourceRecord], progress: Callable[[int, int], None] | None = None
) -> None:
    """Make what lacks of these recordings' extracts, if that is many files to read; by as many processes as may run.

    `progress` is told (recordings done, recordings in all). What hinders it hinders nobody: the ranks' own files hold
    the same.
    """
    there = {path.name for path in (root / TIMING_CACHE).glob("*") if _has_content(path)}
    lacking = [one for one in sources if timing_cache_file(one.digest).name not in there and _rows(one) <= MAX_ROWS]
    if sum(len(one.steps) for one in lacking) < derived.MANY_FILES or not os.access(root, os.W_OK):
        return
    with (
        staging.temporary_folder(root) as run,
        suppress(OSError),
        WorkerPool(cpu_count(), [__name__]) as pool,
    ):
        staging.create_folder(run)
        (root / TIMING_CACHE).mkdir(parents=True, exist_ok=True)
        make = partial(_make_cache, root, run)
        for done, _ in enumerate(pool.map(make, lacking, on_death=lambda record: None), 1):
            if progress is not None:
                progress(done, len(lacking))


def _has_content(path: Path) -> bool:
    """Whether a file has any: of one made just before the machine died it may be lost."""
    try:
        return path.stat().st_size > 0
    except OSError:  # gone just now
        return False


def _make_cache(root: Path, run: Path, record: SourceRecord) -> None:
    """Make one recording's, unless one of its files cannot be read: who needs that file will say so."""
    assert record.rank is not None
    made, half = TimingCacheWriter(), run / record.digest
    with suppress(LakeError):
        for step in record.steps:
            made.add(step, read_columns(root / kernels_file(step.key, record.rank), COLUMNS, TEXTS))
        if made.write(half, record, read_host_events(root, record, HOST.names)):
            half.replace(root / timing_cache_file(record.digest))


def _rows(record: SourceRecord) -> int:
    return sum(step.rows for step in record.steps)
