"""Lakes of random rows in every column of the schema, written through the lake's own writers, read slowly."""

import hashlib
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jitter.core.names.kernels import KINDS
from jitter.core.schema import KERNELS
from jitter.core.step_key import StepKey
from jitter.lake.folder import LakeFolder
from jitter.lake.layout import kernels_file
from jitter.lake.parquet import write_kernels
from jitter.lake.records import SourceRecord, StepRecord
from tests.support.records import source_record, step_record

_TEXTS = ("gemm", "relu<float>", "ncclDevKernel_AllReduce", "été", "")


class RandomLake:
    """A lake that grows and changes; `rows` of each step and rank as they were last written."""

    def __init__(self, root: Path, seed: int = 1) -> None:
        self.root = root
        self.folder = LakeFolder(root)
        self.folder.create()
        self._random = random.Random(seed)
        self._reading = 0
        self._records: dict[int, SourceRecord] = {}

    def put(self, rank: int, steps: list[StepKey], rows: int | None = None) -> None:
        """Take in a recording of this rank, in place of the one that was there."""
        self._reading += 1
        told = []
        for key in steps:
            its = self._rows(rank, self._random.randint(1, 12) if rows is None else rows)
            write_kernels(self.root / kernels_file(key, rank), its)
            told.append(_random_step(key, its))
        self.forget(rank)
        self._records[rank] = source_record(
            f"{self._reading:032x}", file=f"/traces/{rank}.sqlite", rank=rank, steps=told, kernel_columns=len(KERNELS)
        )
        self.folder.write_record(self._records[rank])
        self.folder.close()

    def forget(self, rank: int) -> None:
        """Take the rank's record out; its files stay, as after a death between the two."""
        if rank in self._records:
            (self.folder.sources / self._records.pop(rank).name).unlink()

    def _rows(self, rank: int, count: int) -> pa.Table:
        columns = {field.name: self._values(field, rank, count) for field in KERNELS}
        columns["duration_ns"] = [e - s for s, e in zip(columns["start_ns"], columns["end_ns"], strict=True)]
        return pa.table([pa.array(columns[f.name], _plain(f.type)) for f in KERNELS], names=KERNELS.names)

    def _values(self, field: pa.Field, rank: int, count: int) -> list[Any]:
        if field.name in {"rank", "ordinal"}:
            return [rank] * count if field.name == "rank" else list(range(count))
        nothing = field.nullable and self._random.random() < 0.3
        return [self._value(field, nothing) for _ in range(count)]

    def _value(self, field: pa.Field, nothing: bool) -> Any:
        if field.nullable and (nothing or self._random.random() < 0.2):
            return None
        if pa.types.is_list(field.type):
            return [self._random.randint(0, 9) for _ in range(self._random.randint(0, 3))]
        if pa.types.is_integer(field.type):
            wide = 2**62 if field.type.bit_width == 64 else 2**31 - 1
            return self._random.choice((0, -1, wide, self._random.randint(-wide, wide), 10**9 % wide))
        if pa.types.is_floating(field.type):
            return self._random.choice((1.0, 1.5, 64.0))
        return self._random.choice(KINDS if field.name == "kind" else _TEXTS)


def small_files(root: Path, key: StepKey, ranks: list[int]) -> list[dict[str, Any]]:
    """Read the ranks' own files, one after the other."""
    return [row for rank in ranks for row in pq.ParquetFile(root / kernels_file(key, rank)).read().to_pylist()]


def _plain(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _random_step(key: StepKey, rows: pa.Table) -> StepRecord:
    """Return a record whose sequence tells rows apart by name, kind and stream, whatever the main stream is."""
    elements = [(row["kernel_name"], row["kind"], row["stream"]) for row in rows.to_pylist()]
    sequence = hashlib.blake2b(repr(elements).encode(), digest_size=16).hexdigest()
    return step_record(key, rows.to_pylist(), marker=None, sequence=sequence)
