"""Lakes made by hand for the report: a small job with exactly known times, and what may be missing from it."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import jitter
from jitter.lake import LakeFolder, write_kernels
from jitter.lake_paths import kernels_file
from jitter.records import SourceRecord, StepRecord
from jitter.schema import KERNELS
from jitter.steps import StepKey
from tests.support.records import source_record

MAIN = 7
Rows = list[dict[str, Any]]
_PLAIN = pa.schema([pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in KERNELS])


def step_rows(
    rank: int,
    step: int,
    kernels: int = 12,
    late: Mapping[int, int] | None = None,
    name: Callable[[int], str] = lambda k: f"void ns::kernel_{k}<int>(float*)",
    collective: bool = True,
) -> Rows:
    """One rank's step: `late[k]` ns more before kernel k; all leave one all-reduce together, a kernel follows it.

    Own times differ a little from rank to rank, by a rule and not by chance. Each rank has a clock of its own.
    """
    clock = 1_000_000_000 * (rank + 1) + 50_000_000 * step
    time, rows = clock, []
    for k in range(kernels):
        time += 1000 + (rank * 37 + k * 11 + step * 5) % 40 + (late or {}).get(k, 0)
        duration = 20_000 + (rank * 53 + k * 29 + step * 3) % 200
        rows.append(_row(name(k), "compute", MAIN, time, time + duration))
        time += duration
    if collective:
        end = clock + 30_000_000
        rows.append(_row("ncclDevKernel_AllReduce_Sum_f16_RING_LL", "collective", 20, time + 500, end))
        rows[-1]["collective"] = "all_reduce"
        rows.append(_row(name(kernels), "compute", MAIN, end + 3000, end + 23_000))
    return rows


def _row(name: str, kind: str, stream: int, start: int, end: int) -> dict[str, Any]:
    launch = start - 5000 - (end - start) % 700
    return {
        "kernel_name": name,
        "kind": kind,
        "stream": stream,
        "start_ns": start,
        "end_ns": end,
        "launch_start_ns": launch,
        "launch_end_ns": launch + 900,
        "launch_thread": 1,
    }


def report_lake(
    root: Path,
    ranks: Mapping[int, Mapping[tuple[int | None, int], Rows]],
    cut: Sequence[tuple[int, int]] = (),
    refused: Sequence[str] = (),
    problems: Sequence[str] = (),
    host: Callable[[int], str | None] = lambda rank: f"node{rank // 2}",
) -> "jitter.Lake":
    """Write rank -> (epoch, step) -> rows, and open it. `cut`: (rank, step); `refused`: a source for each problem."""
    folder = LakeFolder(root)
    folder.create()
    for rank, its_steps in ranks.items():
        records = []
        for (epoch, number), step in its_steps.items():
            rows = [
                row | {"rank": rank, "ordinal": n, "device": 0, "duration_ns": row["end_ns"] - row["start_ns"]}
                for n, row in enumerate(step)
            ]
            key = StepKey(epoch, number)
            write_kernels(root / kernels_file(key, rank), pa.Table.from_pylist(rows, _PLAIN))
            records.append(_step(key, rows, (rank, number) in cut))
        folder.write_record(_record(f"{rank:032x}", rank, host(rank), records, list(problems)))
    for n, problem in enumerate(refused):
        folder.write_record(_record(f"{10**6 + n:032x}", None, None, [], [problem]))
    return jitter.open(root)


def job(
    root: Path, ranks: int = 4, steps: int = 3, late: tuple[int, int, int, int] = (2, 1, 5, 400_000)
) -> "jitter.Lake":
    """A job where `late` = (rank, step, kernel, ns) is the one thing that goes wrong."""
    rank, step, kernel, ns = late
    return report_lake(
        root,
        {
            r: {(1, s): step_rows(r, s, late={kernel: ns} if (r, s) == (rank, step) else None) for s in range(steps)}
            for r in range(ranks)
        },
    )


def _step(key: StepKey, rows: Rows, cut: bool) -> StepRecord:
    elements = [(row["kernel_name"], row["kind"] == "collective" or row["stream"] != MAIN) for row in rows]
    return StepRecord(
        step=key.step,
        epoch=key.epoch,
        marker=f"step{key.step}",
        start_ns=0,
        end_ns=None if cut else 1,
        cut=cut,
        launches_without_kernel=0,
        kernels=len(rows),
        memory_activities=0,
        sequence=hashlib.blake2b(repr(elements).encode(), digest_size=16).hexdigest(),
    )


def _record(
    digest: str, rank: int | None, host: str | None, steps: list[StepRecord], problems: list[str]
) -> SourceRecord:
    return source_record(
        digest,
        file=f"/traces/{digest.lstrip('0') or '0'}.sqlite",
        profiler_version="2026.2",
        rank=rank,
        host=host,
        main_stream=MAIN,
        outside_steps=3,
        before_capture=1,
        steps=steps,
        problems=problems,
    )
