"""What the logs of two runs measured, compared: bus bandwidths by size, and the speed of a training.

Runs without traces have these alone: benchmarks with and without a network plug-in, with one algorithm and another.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import PurePath
from statistics import median
from typing import Any, Final

import msgspec

from jitter.core.formatting import format_bandwidth, format_bytes, format_count, format_digits, format_factor
from jitter.core.grouping import by_key

_MOST_BANDWIDTHS: Final = 4_000
"""Entries of a document: 20 sizes of 200 tables."""
QUANTITIES: Final = {
    "seconds": "run time",
    "step_s": "step time",
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "tflops": "TFLOP/s",
}
"""What trainings are compared by: the first one that both runs state."""


class BandwidthEntry(msgspec.Struct, frozen=True, array_like=True):
    """Bus bandwidth that a benchmark measured; the median of equal measurements."""

    collective: str
    ranks: int | None
    in_place: bool | None
    size_bytes: int
    busbw: float
    """GB/s (1e9 bytes)."""


class ThroughputEntry(msgspec.Struct, frozen=True):
    """What a training states of its speed; of a log with a line a step, medians over the steps."""

    label: str
    """The log's file name without its suffix."""
    seconds: float | None = None
    """Run time of the whole training."""
    samples_per_s: float | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    """Of a GPU."""
    tflops: float | None = None
    """Of a GPU."""
    ranks: int | None = None


class BandwidthChange(msgspec.Struct, frozen=True):
    """One measurement in the base and in the new run."""

    collective: str
    ranks: int | None
    in_place: bool | None
    size_bytes: int
    base: float
    new: float
    ratio: float
    """New ÷ base: above 1 the new run is faster."""


class ThroughputChange(msgspec.Struct, frozen=True):
    """The speed of a training in the base and in the new run."""

    label: str
    quantity: str
    """One of `QUANTITIES`."""
    base: float
    new: float
    base_seconds: float | None
    """The base where it is a run time, as in documents before other quantities were compared."""
    new_seconds: float | None
    speedup: float
    """How many times as fast the new run is."""


def list_bandwidths(rows: Iterable[Mapping[str, Any]]) -> tuple[BandwidthEntry, ...]:
    """Return the bandwidths in rows of the relation `bandwidth`, by operation, ranks and size, up to a limit."""
    busbw_of_key = by_key(
        ((row["collective"], row["ranks"], row["in_place"], row["size_bytes"]), row["busbw"])
        for row in rows
        if row["collective"] and row["size_bytes"] and row["busbw"]
    )
    ordered = sorted(busbw_of_key, key=lambda key: (key[0], key[1] or 0, key[3], bool(key[2])))
    return tuple(BandwidthEntry(*key, median(busbw_of_key[key])) for key in ordered[:_MOST_BANDWIDTHS])


def list_throughputs(rows: Iterable[Mapping[str, Any]]) -> tuple[ThroughputEntry, ...]:
    """Return the speed of each training in rows of the relation `throughput`, in their order."""
    entries = []
    for source, of_log in groupby(rows, key=lambda row: str(row["source"])):
        log_rows = list(of_log)
        name = PurePath(source).stem
        whole = [row for row in log_rows if row["step"] is None]
        for number, row in enumerate(whole, 1):
            label = name if number == 1 else f"{name} {number}"
            entries.append(ThroughputEntry(label, row["seconds"], row["samples_per_s"], ranks=row["ranks"]))
        by_column = {
            column: [row[name] for row in log_rows if row["step"] is not None and row[name] is not None]
            for name, column in (
                ("seconds", "step_s"),
                *((name, name) for name in ("samples_per_s", "tokens_per_s", "tflops")),
            )
        }
        values = {column: median(numbers) for column, numbers in by_column.items() if numbers}
        if values:
            entries.append(ThroughputEntry(f"{name} steps" if whole else name, **values))
    return tuple(entries)


def compare_bandwidths(base: Sequence[BandwidthEntry], new: Sequence[BandwidthEntry]) -> tuple[BandwidthChange, ...]:
    """Match measurements of one operation, size and number of ranks, in the order of the new run."""
    base_busbw = {(entry.collective, entry.ranks, entry.in_place, entry.size_bytes): entry.busbw for entry in base}
    return tuple(
        BandwidthChange(*key, base_busbw[key], entry.busbw, entry.busbw / base_busbw[key])
        for entry in new
        if (key := (entry.collective, entry.ranks, entry.in_place, entry.size_bytes)) in base_busbw
    )


def compare_throughputs(
    base: Sequence[ThroughputEntry], new: Sequence[ThroughputEntry]
) -> tuple[ThroughputChange, ...]:
    """Match trainings of equal labels; else, where each run has one, these."""
    of_base = {entry.label: entry for entry in base}
    pairs = [(of_base[entry.label], entry) for entry in new if entry.label in of_base]
    if not pairs and len(base) == len(new) == 1:
        pairs = [(base[0], new[0])]
    changes = []
    for base_entry, new_entry in pairs:
        stated = (name for name in QUANTITIES if getattr(base_entry, name) and getattr(new_entry, name))
        if (quantity := next(stated, None)) is not None:
            before, after = getattr(base_entry, quantity), getattr(new_entry, quantity)
            base_s, new_s = (before, after) if quantity == "seconds" else (None, None)
            speedup = before / after if quantity in ("seconds", "step_s") else after / before
            changes.append(ThroughputChange(new_entry.label, quantity, before, after, base_s, new_s, speedup))
    return tuple(changes)


def describe_logs(bandwidths: Sequence[BandwidthChange], throughputs: Sequence[ThroughputChange]) -> str:
    """Return what changed by the logs, as one sentence; empty if both runs' logs measured nothing alike."""
    clauses = [
        f"{change.label}: {QUANTITIES[change.quantity]} {format_digits(change.base, 4)} to "
        f"{format_digits(change.new, 4)}{' s' if change.quantity in ('seconds', 'step_s') else ''}, "
        f"{format_factor(change.speedup)} as fast"
        for change in throughputs[:3]
    ]
    for (collective, ranks), group in groupby(bandwidths, key=lambda change: (change.collective, change.ranks)):
        rows = list(group)
        first, last = rows[0], rows[-1]
        of = "" if ranks is None else f" of {format_count(ranks, 'rank')}"
        ends = "; ".join(
            f"at {format_bytes(change.size_bytes)} {format_bandwidth(change.base)} to {format_bandwidth(change.new)}"
            for change in dict.fromkeys((first, last))
        )
        ratio, over = format_factor(median(row.ratio for row in rows)), format_count(len(rows), "measurement")
        clauses.append(f"{collective}{of} reaches {ratio} the bus bandwidth (median over {over}; {ends})")
    return f"By the logs, {'; '.join(clauses)}." if clauses else ""
