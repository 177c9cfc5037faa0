"""Lakes made by hand, row by row, through the lake's own writers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import jitter
from jitter.core.schema import KERNELS
from jitter.core.step_key import StepKey
from jitter.lake.folder import LakeFolder
from jitter.lake.layout import kernels_file
from jitter.lake.parquet import write_kernels
from tests.support.records import MAIN, source_record, step_record


def kernel(name: str, start: int, end: int, stream: int | None = MAIN, **other: Any) -> dict[str, Any]:
    """A row; launched 5000 ns before it starts unless told otherwise."""
    row = {"kernel_name": name, "kind": "compute", "stream": stream, "start_ns": start, "end_ns": end}
    row |= {"launch_start_ns": start - 5000, "launch_end_ns": start - 4000, "launch_thread": 1}
    return row | other


def collective(name: str, start: int, end: int, operation: str | None = "all_reduce", **other: Any) -> dict[str, Any]:
    return kernel(name, start, end, **({"stream": 20} | other), kind="collective", collective=operation)


@dataclass
class RankLake:
    """The content of one source for one rank."""

    rank: int | None
    """None for a source that the ingest rejected: it has no steps."""
    steps: dict[tuple[int | None, int], list[dict[str, Any]]]
    """(epoch, step) -> rows."""
    cut: set[tuple[int | None, int]] = field(default_factory=set)
    utc_offset_ns: int | None = None
    clock: str | None = None
    """Names the recording: ranks of one share its clock."""
    part: int = 0
    fields: dict[str, Any] = field(default_factory=dict)
    """Further fields of the source's record."""
    begins_with_rows: bool = False
    """Whether steps begin with their first launch; else at 0 on the rank's clock."""


def lake_of(root: Path, ranks: Sequence[RankLake]) -> "jitter.Lake":
    """Write and open a lake of these sources."""
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
            write_kernels(root / kernels_file(key, one.rank), pa.Table.from_pylist(rows, _WITHOUT_DICTIONARIES))
            begin = {"start_ns": rows[0]["launch_start_ns"] or rows[0]["start_ns"]} if one.begins_with_rows else {}
            steps.append(step_record(key, rows, cut=(epoch, step) in one.cut, **begin))
        fields = {
            "file": f"/traces/{number}.sqlite",
            "file_digest": one.clock or f"file{number}",
            "part": one.part,
            "rank": one.rank,
            "clock": "unknown" if one.utc_offset_ns is None else "utc",
            "utc_offset_ns": one.utc_offset_ns,
            "steps": steps,
        }
        folder.write_record(source_record(f"{number:032x}", **(fields | one.fields)))
    return jitter.open(root)


_WITHOUT_DICTIONARIES = pa.schema(
    [pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in KERNELS]
)
