"""Bandwidth against a baseline: what a benchmark measured for the same operation, size and number of ranks."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import log
from statistics import median_low
from typing import NamedTuple

import numpy as np

from jitter.analysis.metrics.communication import CollectiveRow, Communication
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.bandwidth import bus_factor
from jitter.core.formatting import format_count


class BaselineRow(NamedTuple):
    """A row of the table and what the baseline reaches; bandwidths in GB/s."""

    collective: str
    size_bytes: int
    busbw: float
    baseline_busbw: float | None
    """None: the baseline has no measurement of this number of ranks around this size."""
    ratio: float | None


class Baseline:
    """Measured bus bandwidths by operation and number of ranks."""

    def __init__(self, label: str, measured: Iterable[Mapping[str, object]]) -> None:
        """Take rows of the relation `bandwidth`. Rows without size, ranks or bus bandwidth are left out.

        Of several measurements of a size, out of place comes before in place, then the median counts.
        """
        self.label = label
        measurements: dict[tuple[str, int], dict[int, dict[bool, list[float]]]] = {}
        for row in measured:
            collective, size, ranks, busbw = (row[name] for name in ("collective", "size_bytes", "ranks", "busbw"))
            if not (isinstance(collective, str) and isinstance(size, int) and isinstance(ranks, int)):
                continue
            if size > 0 and isinstance(busbw, float) and busbw > 0:
                sizes = measurements.setdefault((collective, ranks), {})
                sizes.setdefault(size, defaultdict(list))[bool(row["in_place"])].append(busbw)
        self._points = {
            key: sorted((size, median_low(by_place[min(by_place)])) for size, by_place in sizes.items())
            for key, sizes in measurements.items()
        }

    def __bool__(self) -> bool:
        """Return whether there is any measurement."""
        return bool(self._points)

    def busbw(self, collective: str, size_bytes: int, ranks: int) -> float | None:
        """Return the bus bandwidth at this size, interpolated in the logarithm of the size; None outside the sizes."""
        points = self._points.get((collective, ranks), [])
        for (low, at_low), (high, at_high) in pairwise(points):
            if low <= size_bytes <= high:
                part = log(size_bytes / low) / log(high / low)
                return at_low + (at_high - at_low) * part
        return next((busbw for size, busbw in points if size == size_bytes), None)

    def ranks(self, collective: str) -> list[int]:
        """Return the numbers of ranks that an operation was measured with."""
        return sorted({ranks for name, ranks in self._points if name == collective})


def compare_with_baseline(rows: Iterable[CollectiveRow], baseline: Baseline) -> tuple[list[BaselineRow], list[str]]:
    """Return the rows that have a bus bandwidth with the baseline's, and reasons for those without one."""
    compared: list[BaselineRow] = []
    other_ranks: dict[tuple[str, int], int] = defaultdict(int)
    outside: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.collective is None or row.size is None or row.busbw is None or row.group_size is None:
            continue
        reached = baseline.busbw(row.collective, row.size, row.group_size)
        ratio = None if reached is None else row.busbw / reached
        compared.append(BaselineRow(row.collective, row.size, row.busbw, reached, ratio))
        if reached is None and row.group_size not in baseline.ranks(row.collective):
            other_ranks[row.collective, row.group_size] += 1
        elif reached is None:
            outside[row.collective] += 1
    reasons = [f"baseline {baseline.label} has no {collective} of {ranks} ranks" for collective, ranks in other_ranks]
    reasons += [
        f"{format_count(count, 'size')} of {collective} lie outside the sizes of baseline {baseline.label}"
        for collective, count in outside.items()
    ]
    return compared, reasons


def below_in_every_step(communication: Communication, baseline: Baseline) -> list[BaselineRow]:
    """Return the kinds of calls whose bus bandwidth is below the baseline's in every step.

    The bandwidths are medians over the calls of a step, then over steps.
    """
    rows = []
    for kind, number in communication.kinds.items():
        if kind.operation is None or kind.size_bytes is None or kind.group_size is None or kind.is_unequal:
            continue
        reached = baseline.busbw(kind.operation, kind.size_bytes, kind.group_size)
        if reached is None:
            continue
        times = [calls.time_ns[(calls.kind == number) & (calls.time_ns > 0)] for calls in communication.calls]
        medians = [float(np.median(step_times)) for step_times in times if len(step_times)]
        if not medians:
            continue
        factor = bus_factor(kind.operation, kind.group_size)
        steps = [kind.size_bytes / time * factor for time in medians]
        if max(steps) < THRESHOLDS.efficiency.below_baseline * reached:
            busbw = float(np.median(steps))
            rows.append(BaselineRow(kind.operation, kind.size_bytes, busbw, reached, busbw / reached))
    return sorted(rows, key=lambda row: row.ratio or 0.0)
