"""A lake of many ranks in minutes: a few are simulated and ingested, the others are copies with times of their own.

python -m tests.bench.grown_lake LAKE --ranks N [--steps N] [--kernels N] [--fault FAULT]

What a copy is: the rank's files of every step under another number and on another clock, all its times moved by up to
2 µs by a function of time that keeps their order and leaves the ends of collectives where they are, so that the job's
ranks still meet. The ranks that are simulated suffer one fault or none; of the ranks that have it there are no copies.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jitter.core.schema import KERNELS
from jitter.lake.folder import LakeFolder
from jitter.lake.layout import host_file, kernels_file, times_file
from jitter.lake.parquet import write_host, write_kernels
from jitter.lake.records import SourceRecord
from jitter.lake.times import append_times
from jitter.simulate.faults import Fault

SIMULATED = 16
FIRST_STEP = 2000
_NODE = 8
FAULT = "cpu_stall:rank=3,step=2003-2006,kernel=17,ms=2"
HEALTHY = "none"
_KNOTS_NS = 25_000
_MOVED_NS = 2_000
_CLOCK_NS = 10**9


def grow(lake: Path, ranks: int, steps: int, kernels: int, jobs: int, fault: str = FAULT) -> None:
    """Make a lake with this many ranks, at least `SIMULATED`, in a folder that is not there yet.

    `fault` is one of `jitter sample`, or `HEALTHY`. Of the ranks that have it there are no copies.
    """
    faults = [] if fault == HEALTHY else ["--fault", fault]
    faulty = frozenset[int]() if fault == HEALTHY else Fault.parse(fault).ranks
    with tempfile.TemporaryDirectory(prefix="jitter-bench-") as folder:
        shape = ("--ranks", SIMULATED, "--steps", steps, "--kernels", kernels, "--first-step", FIRST_STEP)
        _jitter("sample", folder, *shape, *faults)
        _jitter("ingest", folder, "-o", lake, "--jobs", jobs)
    sources = sorted((one for one in LakeFolder(lake).records() if one.rank is not None), key=lambda one: one.rank or 0)
    copied = [one for one in sources if one.rank not in faulty]
    tasks = [(lake, one, list(range(ranks))[SIMULATED + at :: len(copied)]) for at, one in enumerate(copied)]
    with ProcessPoolExecutor(jobs) as pool:
        list(pool.map(_copy, *zip(*tasks, strict=True)))


def _jitter(*words: object) -> None:
    command = [sys.executable, "-m", "jitter", *map(str, words), "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _copy(lake: Path, source: SourceRecord, ranks: Sequence[int]) -> None:
    """Write copies of one rank under these numbers, a record each."""
    assert source.rank is not None
    tables = [
        (step.key, pq.read_table(lake / kernels_file(step.key, source.rank), partitioning=None).cast(KERNELS))
        for step in source.steps
    ]
    host = pq.read_table(lake / host_file(source.rank, source.digest), partitioning=None)
    kept = np.sort(np.concatenate([rows["end_ns"].filter(pc.equal(rows["kind"], "collective")) for _, rows in tables]))
    folder = LakeFolder(lake)
    for rank in ranks:
        moved = _Clock(rank, kept)
        digest = f"{rank:04x}{source.digest[4:]}"
        record, own_host = _record(source, rank, digest, moved), moved.table(host)
        for step, (key, rows) in zip(record.steps, tables, strict=True):
            own = moved.table(rows).set_column(0, "rank", _all(rank, rows.num_rows))
            step.checksum, step.size = write_kernels(lake / kernels_file(key, rank), own)
            step.times = append_times(lake / times_file(digest), own, step.start_ns)
        record.host_checksum, record.host_size = write_host(lake / host_file(rank, digest), own_host)
        folder.write_record(record)
    folder.close()


def _record(source: SourceRecord, rank: int, digest: str, moved: "_Clock") -> SourceRecord:
    return msgspec.structs.replace(
        source,
        digest=digest,
        file_digest=digest,
        rank=rank,
        host=f"node{rank // _NODE:04d}",
        device=rank % _NODE,
        utc_offset_ns=None if source.utc_offset_ns is None else source.utc_offset_ns - moved.offset_ns,
        steps=[
            msgspec.structs.replace(
                step,
                start_ns=step.start_ns + moved.offset_ns,
                end_ns=None if step.end_ns is None else step.end_ns + moved.offset_ns,
            )
            for step in source.steps
        ],
    )


class _Clock:
    """One copy's times from those of its original."""

    def __init__(self, rank: int, kept: "np.ndarray[Any, np.dtype[np.int64]]") -> None:
        """Leave the moments `kept`, which ascend, where they are (but for the clock)."""
        random = np.random.default_rng(rank)
        self.offset_ns = rank * _CLOCK_NS
        free = np.arange(kept[0] - _KNOTS_NS, kept[-1] + _KNOTS_NS, _KNOTS_NS)
        gap = np.abs(free - kept[np.clip(np.searchsorted(kept, free), 1, len(kept) - 1) - [[0], [1]]]).min(axis=0)
        free = free[gap > 2 * _MOVED_NS]
        self._knots = np.concatenate([free, kept])
        order = np.argsort(self._knots, kind="stable")
        moves = np.concatenate([random.uniform(-_MOVED_NS, _MOVED_NS, len(free)), np.zeros(len(kept))])
        self._knots, self._moves = self._knots[order], moves[order]

    def table(self, rows: pa.Table) -> pa.Table:
        """The rows with every time of theirs moved."""
        for at, name in enumerate(rows.column_names):
            if name.endswith("_ns") and name != "duration_ns":
                rows = rows.set_column(at, name, self._moved(rows[name]))
        if "duration_ns" in rows.column_names:
            at = rows.column_names.index("duration_ns")
            rows = rows.set_column(at, "duration_ns", pc.subtract(rows["end_ns"], rows["start_ns"]))
        return rows

    def _moved(self, times: pa.ChunkedArray) -> pa.Array:
        known = times.is_valid().to_numpy()
        at = times.fill_null(0).to_numpy()
        by = np.rint(np.interp(at, self._knots, self._moves)).astype(np.int64) + self.offset_ns
        return pa.array(at + by, mask=~known)


def _all(rank: int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(rank, pa.int32()), rows)


def main() -> None:
    """Grow one."""
    options = argparse.ArgumentParser()
    options.add_argument("lake", type=Path)
    options.add_argument("--ranks", type=int, required=True)
    options.add_argument("--steps", type=int, default=50)
    options.add_argument("--kernels", type=int, default=903)
    options.add_argument("--fault", default=FAULT, help=f"as `jitter sample` takes it, or {HEALTHY!r} (%(default)s)")
    chosen = options.parse_args()
    shutil.rmtree(chosen.lake, ignore_errors=True)
    grow(chosen.lake, chosen.ranks, chosen.steps, chosen.kernels, os.cpu_count() or 1, chosen.fault)


if __name__ == "__main__":
    main()
