"""Sizes of collectives that a log recorded, for collectives whose trace states none.

A recorded collective and a kernel are one if rank, group and the number in the group are equal.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from jitter.core.step_key import StepKey
from jitter.lake.step_reader import StepColumns

COLUMNS: Final = ("size_bytes", "group_name", "sequence")
DISAGREEING: Final = "{} collectives have another size in a log than in the trace, which is kept"

_HEXADECIMAL: Final = re.compile(r"0x[0-9a-fA-F]{1,16}")


class RecordedSizes:
    """Sizes of the relation `recorded`, by rank, group and number in the group."""

    def __init__(self, recorded: Iterable[Mapping[str, Any]]) -> None:
        """Take the relation's rows; those without rank, group, number or size are left out."""
        self.reasons: Counter[str] = Counter()
        """Number of collectives whose size in the log contradicts the trace's."""
        self._sizes = {
            (row["rank"], _group(row["group_name"]), row["sequence"]): row["size_bytes"]
            for row in recorded
            if None not in (row["rank"], row["group_name"], row["sequence"], row["size_bytes"])
        }

    def fill(self, steps: Iterable[tuple[StepKey, StepColumns]]) -> Iterator[tuple[StepKey, StepColumns]]:
        """Yield the steps, given with `COLUMNS`, with unknown sizes filled in."""
        for key, read in steps:
            yield key, self._filled(read) if self._sizes else read

    def _filled(self, read: StepColumns) -> StepColumns:
        rows = np.flatnonzero(read.known("sequence") & read.known("group_name"))
        if not len(rows):
            return read
        codes, names = read.codes("group_name")
        groups = [_group(name) for name in names]
        ranks = np.repeat(np.array(read.ranks, np.int64), read.rows)[rows]
        sizes = read.table["size_bytes"].to_pylist()
        columns = (rows, ranks, codes[rows], read.values("sequence")[rows])
        for row, rank, code, number in zip(*(column.tolist() for column in columns), strict=True):
            recorded = self._sizes.get((rank, groups[code], number))
            if recorded is not None and sizes[row] is None:
                sizes[row] = recorded
            elif recorded is not None and sizes[row] != recorded:
                self.reasons[DISAGREEING] += 1
        at = read.table.schema.get_field_index("size_bytes")
        table = read.table.set_column(at, "size_bytes", pa.chunked_array([pa.array(sizes, pa.int64())]))
        return replace(read, table=table)


def _group(name: str) -> str | int:
    """Return a communicator's id as a number, whatever its form; other names as they are."""
    return int(name, 16) if _HEXADECIMAL.fullmatch(name) else name
