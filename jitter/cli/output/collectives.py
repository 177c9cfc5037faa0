"""Output of `jitter collectives`: tables for people, rows and a document for programs."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from jitter.analysis.metrics.bandwidth_baseline import Baseline, compare_with_baseline
from jitter.analysis.metrics.communication import (
    CollectiveRow,
    Communication,
    tabulate_collectives,
    tabulate_ranks,
    tabulate_sizes,
    tabulate_steps,
)
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import escape_control, format_bandwidth, format_columns, format_digits
from jitter.report.text.tables import UNKNOWN_CELL, Column, build_table

COLLECTIVES_SCHEMA_VERSION: Final = 1
_DECIMALS: Final = 3
_LONGEST_HEADING: Final = 2048
"""Characters of a line of heads: a file without line breaks is not read whole."""


class CollectiveReport:
    """Measurements as tables; `by` is size, group, rank or step."""

    def __init__(
        self, communication: Communication, hosts: Mapping[int, str | None], baseline: Baseline | None, by: str
    ) -> None:
        self.by = by
        self.baseline = baseline
        self.collectives = tabulate_collectives(communication, by_group=by == "group")
        self.ranks = tabulate_ranks(communication, hosts)
        self.steps = tabulate_steps(communication)
        self.sizes = tabulate_sizes(communication)
        self.compared, missing = ([], []) if baseline is None else compare_with_baseline(self.collectives, baseline)
        """The rows that have a bus bandwidth, with the baseline's."""
        unsized = sum(row.calls for row in self.collectives if row.size is None)
        self.reasons = [text.format(count) for text, count in sorted(communication.reasons.items())]
        """Reasons why values are unknown, a sentence each."""
        if unsized:
            self.reasons.append(f"{unsized} collectives have no size: the source does not state it")
        self.reasons += missing

    @property
    def findings(self) -> list[str]:
        return [
            f"{row.collective} of {row.size_bytes:,} B reaches {format_bandwidth(row.busbw, of=row.baseline_busbw)}"
            for row in self.compared
            if row.ratio is not None and row.ratio < THRESHOLDS.efficiency.below_baseline
        ]


def report_document(report: CollectiveReport) -> str:
    """Return the JSON document; numbers to three decimals."""
    baseline = None
    if report.baseline is not None:
        baseline = {"label": report.baseline.label, "rows": _plain(report.compared)}
    document = {
        "schema_version": COLLECTIVES_SCHEMA_VERSION,
        "collectives": _plain(report.collectives),
        "ranks": _plain(report.ranks),
        "steps": _plain(report.steps),
        "sizes": _plain(report.sizes),
        "baseline": baseline,
        "findings": report.findings,
        "reasons": report.reasons,
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _plain(rows: Sequence[NamedTuple]) -> list[dict[str, Any]]:
    return [
        {name: round(value, _DECIMALS) if isinstance(value, float) else value for name, value in row._asdict().items()}
        for row in rows
    ]


def format_report(report: CollectiveReport) -> str:
    """Return the tables for a terminal or a pipe; `-` stands for the unknown."""
    first: dict[str, Sequence[NamedTuple]] = {"rank": report.ranks, "step": report.steps}
    tables: list[tuple[Sequence[Column], Sequence[NamedTuple]]]
    tables = [(_FIRST_TABLE[report.by], first.get(report.by, report.collectives))]
    if report.by not in first:
        tables.append((_SIZES, report.sizes))
    tables.append((_COMPARED, report.compared))
    parts = []
    for number, (columns, rows) in enumerate(tables):
        if rows or not number:
            table = build_table("", columns, rows)
            parts.append(format_columns([table.heads, *table.rows]))
    notes = [*report.findings, *report.reasons]
    if notes:
        parts.append("".join(f"{note}\n" for note in notes))
    return "\n".join(parts)


def is_report(path: Path) -> bool:
    """Whether a file begins with the heads of a report's first table; a pipe is not read."""
    if not path.is_file():
        return False
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            heads = re.split("  +", file.readline(_LONGEST_HEADING).strip())
    except OSError:
        return False
    return any(heads == [column.head for column in columns] for columns in _FIRST_TABLE.values())


def _number(form: str = ",") -> Callable[[float | None], str]:
    return lambda value: UNKNOWN_CELL if value is None else format(value, form)


def _rate(gb_per_s: float | None) -> str:
    return UNKNOWN_CELL if gb_per_s is None else format_digits(gb_per_s)


def _text(text: str | None) -> str:
    return escape_control(text or UNKNOWN_CELL)


def _name_operation(row: CollectiveRow) -> str:
    imbalance = "" if row.imbalance is None else f" (largest/mean part {row.imbalance:.2f})"
    return (row.collective or "unknown") + imbalance


_COLLECTIVES: Final = (
    Column("collective", _name_operation),
    Column("group", "group", _text),
    Column("calls", "calls", _number()),
    Column("size", "size", _number()),
    Column("dtype", "dtype", _text),
    Column("group size", "group_size", _number()),
    Column("hosts", "hosts", _text),
    Column("time µs", "time_us", _number(",.1f")),
    Column("algbw", "algbw", _rate),
    Column("busbw", "busbw", _rate),
    Column("wait µs", "wait_us", _number(",.1f")),
    Column("last rank", "last_rank", _number()),
    Column("last share", "last_share", _number(".0%")),
    Column("hidden", "hidden_share", _number(".0%")),
    Column("lost ms", "lost_ms", _number(",.3f")),
)
_SIZES: Final = (
    Column("sizes", "operation"),
    Column("from bytes", "at_least_bytes", _number()),
    Column("below", lambda row: 2 * row.at_least_bytes or 1, _number()),
    Column("calls/step", "calls_per_step", lambda calls: f"{calls:,.1f}".removesuffix(".0")),
    Column("bytes/step", "bytes_per_step", _number(",.0f")),
)
_COMPARED: Final = (
    Column("baseline", "collective"),
    Column("size", "size_bytes", _number()),
    Column("busbw", "busbw", _rate),
    Column("baseline GB/s", "baseline_busbw", _rate),
    Column("ratio", "ratio", _number(".2f")),
)
_PARTS: Final = tuple(
    Column(f"{part} ms" if part == "step" else part, f"{part}_ms", _number(".3f"))
    for part in ("step", "compute", "hidden", "exposed", "waiting", "copies", "idle")
)
_FIRST_TABLE: Final = {
    "size": tuple(column for column in _COLLECTIVES if column.head != "group"),
    "group": _COLLECTIVES,
    "rank": (Column("rank", "rank"), Column("host", "host", _text), Column("steps", "samples"), *_PARTS),
    "step": (
        Column("step", lambda row: row.step if row.epoch is None else f"{row.epoch}/{row.step}"),
        Column("ranks", "samples"),
        *_PARTS,
    ),
}
