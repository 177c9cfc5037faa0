"""Lakes made by hand, row by row, through the lake's own writers."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
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


def kernel(name: str, start: int, end: int, stream: int | None = MAIN, **other: Any) -> dict[str, Any]:
    """A row; launched 5000 ns before it starts unless told otherwise."""
    row = {"kernel_name": name, "kind": "compute", "stream": stream, "start_ns": start, "end_ns": end}
    row |= {"launch_start_ns": start - 5000, "launch_end_ns": start - 4000, "launch_thread": 1}
    return row | other


def collective(name: str, start: int, end: int, operation: str | None = "all_reduce", **other: Any) -> dict[str, Any]:
    return kernel(name, start, end, **({"stream": 20} | other), kind="collective", collective=operation)


@dataclass
class RankLake:
    """What one source holds of one rank: (epoch, step) -> rows."""

    rank: int
    steps: dict[tuple[int | None, int], list[dict[str, Any]]]
    cut: set[tuple[int | None, int]] = field(default_factory=set)
    utc_offset_ns: int | None = None
    clock: str | None = None
    """Names the recording: ranks of one share its clock."""
    part: int = 0


def lake_of(root: Path, ranks: Sequence[RankLake]) -> "jitter.Lake":
    """Write and open."""
    folder = LakeFolder(root)
    folder.create()
    for number, one in enumerate(ranks):
        steps = []
        for (epoch, step), given in one.steps.items():
            rows = [
                row | {"rank": one.rank, "ordinal": n, "device": 0, "duration_ns": row["end_ns"] - row["start_ns"]}
                for n, row in enumerate(given)
            ]
            key = StepKey(epoch, step)
            write_kernels(root / kernels_file(key, one.rank), pa.Table.from_pylist(rows, _PLAIN))
            steps.append(_step(key, rows, (epoch, step) in one.cut))
        folder.write_record(_record(number, one, steps))
    return jitter.open(root)


_PLAIN = pa.schema([pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in KERNELS])


def _step(key: StepKey, rows: Sequence[dict[str, Any]], cut: bool) -> StepRecord:
    kernels = [row for row in rows if row["kind"] != "memory"]
    elements = [(row["kernel_name"], row["kind"] == "collective" or row["stream"] != MAIN) for row in kernels]
    return StepRecord(
        step=key.step,
        epoch=key.epoch,
        marker=f"step{key.step}",
        start_ns=0,
        end_ns=None if cut else 1,
        cut=cut,
        launches_without_kernel=0,
        kernels=len(kernels),
        memory_activities=len(rows) - len(kernels),
        sequence=hashlib.blake2b(repr(elements).encode(), digest_size=16).hexdigest(),
    )


def _record(number: int, one: RankLake, steps: list[StepRecord]) -> SourceRecord:
    return source_record(
        f"{number:032x}",
        file=f"/traces/{number}.sqlite",
        file_digest=one.clock or f"file{number}",
        part=one.part,
        rank=one.rank,
        clock="unknown" if one.utc_offset_ns is None else "utc",
        utc_offset_ns=one.utc_offset_ns,
        main_stream=MAIN,
        steps=steps,
    )
