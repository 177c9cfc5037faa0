"""The tables of a comparison as texts, for the terminal, Markdown and the page."""

from collections.abc import Sequence
from math import inf
from typing import Final, NamedTuple

from jitter.analysis.diagnosis.loss.split import LOSS_CLASS_INFO
from jitter.comparison.document import CulpritEntry, Environment
from jitter.comparison.kernel_changes import KernelChange
from jitter.comparison.log_tables import QUANTITIES
from jitter.comparison.model import CollectiveChange, Comparison
from jitter.core.formatting import UNKNOWN, abbreviate, format_bytes, format_count, format_rank, format_time
from jitter.core.names.kernels import short_name
from jitter.report.text.cells import Measure, Shortened, measure_percent, measure_time

_MIN_RANK_CHANGE: Final = 0.005
"""Part of a step; a smaller change of what a rank costs is not listed."""
_MIN_RATIO_CHANGE: Final = 0.03


class ComparisonTable(NamedTuple):
    """One table; the first column is text, the others are numbers."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def describe_sides(comparison: Comparison) -> list[str]:
    """Return a line for each side: its label and its size."""
    lines = []
    for name, side in (("base", comparison.base), ("new", comparison.new)):
        runs = f"{format_count(side.runs, 'run')}, " if side.runs > 1 else ""
        size = f"{format_count(side.ranks, 'rank')}, {format_count(side.steps, 'step')}"
        lines.append(f"{name}: {side.label} ({runs}{size}{'; ' if side.formats else ''}{', '.join(side.formats)})")
    return lines


def build_tables(comparison: Comparison, most: int) -> list[ComparisonTable]:
    """Return the tables that have rows, each with at most `most` rows."""
    tables = [
        _split(comparison),
        _kernels(comparison, most),
        _collectives(comparison, most),
        _ranks(comparison, most),
        _culprits(comparison, most),
        _environment(comparison),
        _throughput(comparison),
        _bandwidths(comparison, most),
    ]
    return [table for table in tables if table.rows]


def _split(comparison: Comparison) -> ComparisonTable:
    effect = comparison.effect
    heads = ("what the new run adds", "usual step", "jitter", "together", "share")
    if effect is None or not comparison.split:
        return ComparisonTable("Where the difference comes from", heads, ())
    whole = sum(part.difference_ns for part in comparison.split)
    rows = [
        (
            LOSS_CLASS_INFO[part.part].words,
            *(measure_time(ns, signed=True) for ns in (part.usual_ns, part.jitter_ns, part.difference_ns)),
            measure_percent(part.difference_ns / whole) if whole and comparison.verdict != "same" else UNKNOWN,
        )
        for part in comparison.split
        if part.usual_ns or part.jitter_ns
    ]
    share = measure_percent(effect.fraction)
    total = (
        f"step: {format_time(effect.base_ns)} to {format_time(effect.new_ns)}",
        measure_time(sum(part.usual_ns for part in comparison.split), signed=True),
        measure_time(sum(part.jitter_ns for part in comparison.split), signed=True),
        measure_time(effect.difference_ns, signed=True),
        Measure(f"{share} of a step", share.raw, share.unit),
    )
    return ComparisonTable("Where the difference comes from", heads, (*rows, total))


def _kernels(comparison: Comparison, most: int) -> ComparisonTable:
    changes = [] if comparison.kernels is None else comparison.kernels.changes
    rows: list[tuple[str, ...]] = [
        (
            Shortened(name_change(change), _whole_names(change)),
            str(change.places or change.new_places),
            measure_time(change.base_ns),
            measure_time(change.new_ns),
            measure_time(change.cost_ns, signed=True),
            change.kind if change.rank is None else f"{change.kind}, rank {change.rank}",
        )
        for change in changes[:most]
    ]
    if len(changes) > most:
        rows.append((f"and {len(changes) - most} more", "", "", "", "", ""))
    shapes = [] if comparison.kernels is None else comparison.kernels.shapes
    for shape in shapes[:most]:
        grids = (_shape(shape.base), _shape(shape.new))
        rows.append((abbreviate(short_name(shape.kernel_name)), str(shape.places), *grids, "", "launch shape"))
    return ComparisonTable("Kernels", ("kernel", "places", "own time", "new", "adds to a step", "change"), tuple(rows))


def name_change(change: KernelChange) -> str:
    """Name what changed: the kernel, or what stands in its place."""
    base, new = (_names(name) for name in (change.kernel_name, change.new_kernel_name))
    if change.kind != "replaced":
        return base or new
    if change.places == change.new_places:
        return f"{base} → {new}"
    fusion = " (fusion?)" if change.new_places < change.places else ""
    return f"{format_count(change.places, 'kernel')} replaced by {change.new_places}{fusion}: {base} → {new}"


def _whole_names(change: KernelChange) -> str:
    names = dict.fromkeys((change.kernel_name, change.new_kernel_name))
    return " → ".join(name for name in names if name is not None)


def _names(joined: str | None) -> str:
    names = [] if joined is None else joined.split(" + ")
    shown = [abbreviate(short_name(name), 34) for name in names[:3]]
    return " + ".join([*shown, "…"] if len(names) > 3 else shown)


def _shape(shape: Sequence[int]) -> str:
    return f"{shape[0]}×{shape[1]}×{shape[2]}/{shape[3]}×{shape[4]}×{shape[5]}"


def _collectives(comparison: Comparison, most: int) -> ComparisonTable:
    changed = [change for change in comparison.collectives if _is_changed(change)]
    rows = [
        (
            " ".join(filter(None, (change.either.collective, _bytes(change.either.size_bytes), change.either.dtype))),
            *(_number(None if side is None else side.calls_per_step) for side in (change.base, change.new)),
            *(_number(None if side is None else side.busbw) for side in (change.base, change.new)),
            Measure(UNKNOWN if change.ratio is None else f"×{change.ratio:.2f}", change.ratio, ""),
            *(_number(None if side is None else side.wait_us) for side in (change.base, change.new)),
        )
        for change in changed[:most]
    ]
    heads = ("collective", "calls/step", "new", "busbw GB/s", "new", "ratio", "wait µs", "new")
    return ComparisonTable("Collectives", heads, tuple(rows))


def _is_changed(change: CollectiveChange) -> bool:
    if change.base is None or change.new is None:
        return True
    is_other = change.ratio is not None and abs(change.ratio - 1) >= _MIN_RATIO_CHANGE
    return is_other or round(change.base.calls_per_step, 2) != round(change.new.calls_per_step, 2)


def _ranks(comparison: Comparison, most: int) -> ComparisonTable:
    effect = comparison.effect
    least = _MIN_RANK_CHANGE * effect.base_ns if effect is not None else inf
    changed = [(abs(change.difference_ns), change) for change in comparison.ranks if change.difference_ns is not None]
    listed = sorted((pair for pair in changed if pair[0] >= least), key=lambda pair: -pair[0])
    rows = [
        (
            format_rank(change.rank, change.host),
            measure_time(change.base_ns),
            measure_time(change.new_ns),
            measure_time(change.difference_ns, signed=True),
        )
        for _, change in listed[:most]
    ]
    return ComparisonTable("Ranks that cost a step more or less", ("rank", "base", "new", "difference"), tuple(rows))


def _culprits(comparison: Comparison, most: int) -> ComparisonTable:
    culprit_changes = comparison.culprits
    rows = [
        (
            name_culprit_entry(change.entry),
            change.entry.cause.replace("_", " "),
            change.entry.confidence,
            _seen(change.entry),
            change.entry.recurs or "-",
            measure_time(change.entry.gain_ns),
            measure_time(change.difference_ns, signed=True),
            what,
        )
        for what, changes in (
            ("appeared", culprit_changes.appeared),
            ("went", culprit_changes.went),
            ("stayed", culprit_changes.stayed),
        )
        for change in changes
    ]
    return ComparisonTable(
        "Findings",
        ("finding", "cause", "confidence", "seen in", "recurs", "time saved", "adds to a step", "in the new run"),
        tuple(rows[:most]),
    )


def _seen(entry: CulpritEntry) -> str:
    """Return in how many steps the finding was seen; a baseline of version 1 does not tell of how many."""
    return (
        format_count(entry.steps, "step") if entry.of_steps is None else f"{entry.steps:,} of {entry.of_steps:,} steps"
    )


def name_culprit_entry(entry: CulpritEntry) -> str:
    """Name a finding by its scope."""
    if entry.scope == "host" and entry.host is not None:
        return f"host {entry.host}"
    if len(entry.ranks) > 1:
        return f"{format_count(len(entry.ranks), 'rank')} from rank {min(entry.ranks)}"
    return format_rank(entry.rank, entry.host)


def _environment(comparison: Comparison) -> ComparisonTable:
    rows = []
    if comparison.environment is not None:
        (_, base), (_, new) = comparison.environment
        for field, label in (
            ("profilers", "profiler"),
            ("nccl", "NCCL"),
            ("networks", "network"),
            ("transports", "transports"),
        ):
            base_text, new_text = _texts(base, field), _texts(new, field)
            if base_text != new_text:
                rows.append((label, base_text, new_text))
    return ComparisonTable("Environment", ("", "base", "new"), tuple(rows))


def _texts(environment: Environment, field: str) -> str:
    return ", ".join(getattr(environment, field)) or UNKNOWN


def _throughput(comparison: Comparison) -> ComparisonTable:
    rows = [
        (
            f"{change.label}, {QUANTITIES[change.quantity]}",
            Measure(f"{change.base:,.5g}", change.base, ""),
            Measure(f"{change.new:,.5g}", change.new, ""),
            Measure(f"{change.speedup:.2f}×", change.speedup, ""),
        )
        for change in comparison.throughput
    ]
    return ComparisonTable("Training, by its log", ("", "base", "new", "speed"), tuple(rows))


def _bandwidths(comparison: Comparison, most: int) -> ComparisonTable:
    """Return the benchmarks' bus bandwidths by size; of many rows, those at even distances."""
    every = max(-(-len(comparison.bandwidths) // (2 * most)), 1)
    rows = [
        (
            f"{change.collective} {format_bytes(change.size_bytes)}{' in place' if change.in_place else ''}",
            Measure(f"{change.base:.3g} GB/s", change.base, "GB/s"),
            Measure(f"{change.new:.3g} GB/s", change.new, "GB/s"),
            Measure(f"{change.ratio:.2f}×", change.ratio, ""),
        )
        for change in comparison.bandwidths[::every]
    ]
    return ComparisonTable("Bus bandwidth, by benchmarks", ("", "base", "new", "ratio"), tuple(rows))


def _number(value: float | None) -> Measure:
    return Measure(UNKNOWN if value is None else f"{value:,.1f}", value, "")


def _bytes(value: int | None) -> str | None:
    return None if value is None else f"{value:,} B"
