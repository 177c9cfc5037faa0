"""Build the timing caches that a large lake lacks. An ingest writes them on its way."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from jitter.core.errors import LakeError
from jitter.core.parallel.processes import WorkerPool, cpu_count
from jitter.core.schema import HOST
from jitter.lake import derived, staging
from jitter.lake.derived.timing_cache import TimingCaches
from jitter.lake.derived.timing_cache_writer import COLUMNS, MAX_ROWS, TimingCacheWriter
from jitter.lake.host_events import read_host_events
from jitter.lake.integrity.rank_files import read_rank_step
from jitter.lake.layout import TIMING_CACHE, timing_cache_file
from jitter.lake.records import RankStepRecord, SourceRecord


def build_timing_cache(
    caches: TimingCaches, sources: Sequence[SourceRecord], progress: Callable[[int, int], None] | None = None
) -> None:
    """Build the timing caches that these recordings lack, if that is at least `derived.MANY_FILES` files to read.

    In a lake of that many files, damaged caches are built again, too.

    `progress` is called with (recordings done, recordings in all). Does nothing if that is not possible: the ranks'
    own files hold the same times.
    """
    root = caches.root
    if not os.access(root, os.W_OK) or sum(len(record.steps) for record in sources) < derived.MANY_FILES:
        return
    missing: list[SourceRecord] = []
    wanted: list[SourceRecord] = []
    for record in sources:
        try:
            caches.open(record)
        except FileNotFoundError:
            if sum(step.rows for step in record.steps) <= MAX_ROWS:
                missing.append(record)
        except (OSError, ValueError):
            wanted.append(record)
    if sum(len(record.steps) for record in missing) >= derived.MANY_FILES:
        wanted += missing
    if not wanted:
        return
    with (
        staging.temporary_folder(root) as run,
        suppress(OSError),
        WorkerPool(cpu_count(), [__name__]) as pool,
    ):
        staging.create_folder(run)
        (root / TIMING_CACHE).mkdir(parents=True, exist_ok=True)
        build = partial(_build_one, root, run)
        for done, _ in enumerate(pool.map(build, wanted, on_death=lambda record: None), 1):
            if progress is not None:
                progress(done, len(wanted))


def _build_one(root: Path, run: Path, record: SourceRecord) -> None:
    """Build one recording's cache, unless one of its files cannot be read: reading that file will report the error."""
    writer, unfinished = TimingCacheWriter(), run / record.digest
    with suppress(LakeError):
        for step in record.steps:
            writer.add(step, read_rank_step(root, RankStepRecord(record, step), COLUMNS))
        if writer.write(unfinished, record, read_host_events(root, record, HOST.names)):
            unfinished.replace(root / timing_cache_file(record.digest))
