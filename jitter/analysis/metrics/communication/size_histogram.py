"""How many calls and copies of which size a step has: a histogram with a bin for each power of two."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from jitter.lake.step_reader import StepColumns


@dataclass
class Copies:
    """Sizes of memory copies of known direction: number of copies by (direction, size)."""

    counts: Counter[tuple[str, int]] = field(default_factory=Counter)


class SizeBin(NamedTuple):
    """Operations of sizes from `at_least_bytes` (included) to twice as much (excluded); 0 has a bin of its own."""

    operation: str
    at_least_bytes: int
    calls_per_step: float
    bytes_per_step: float


def count_copies(found: Copies, read: StepColumns) -> None:
    """Add the copies of a step."""
    codes, directions = read.codes("copy_direction")
    rows = np.flatnonzero((codes >= 0) & read.known("size_bytes"))
    if not len(rows):
        return
    sizes = read.values("size_bytes")[rows]
    pairs, counts = np.unique(np.stack([codes[rows].astype(np.int64), sizes]), axis=1, return_counts=True)
    for (code, size), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
        found.counts[directions[code], size] += count


def size_bins(sizes: Counter[tuple[str, int]], steps: int) -> list[SizeBin]:
    """Return the bins of operations by (operation, size), by operation and size; `steps` were counted."""
    calls: Counter[tuple[str, int]] = Counter()
    total: Counter[tuple[str, int]] = Counter()
    for (operation, size), count in sizes.items():
        key = operation, 1 << (size.bit_length() - 1) if size > 0 else 0
        calls[key] += count
        total[key] += count * size
    return [SizeBin(*key, calls[key] / steps, total[key] / steps) for key in sorted(calls)]
