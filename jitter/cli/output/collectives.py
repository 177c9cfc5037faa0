"""Output of `jitter collectives`: tables for people, rows and a document for programs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from jitter.analysis.metrics.bandwidth_baseline import Baseline, BaselineRow, compare_with_baseline
from jitter.analysis.metrics.communication import (
    CollectiveRow,
    Communication,
    SizeBin,
    TimeRow,
    tabulate_collectives,
    tabulate_ranks,
    tabulate_sizes,
    tabulate_steps,
)
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import escape_control, format_columns

COLLECTIVES_SCHEMA_VERSION: Final = 1
_DECIMALS: Final = 3
_DASH: Final = "-"


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
            f"{row.collective} of {row.size_bytes:,} B reaches {row.busbw:.1f} of {row.baseline_busbw:.1f} GB/s"
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
    if report.by in ("rank", "step"):
        rows = report.ranks if report.by == "rank" else report.steps
        parts = [format_columns([_TIME_HEADS[report.by], *(_time_cells(report.by, row) for row in rows)])]
    else:
        parts = [format_columns([_heads(report), *(_cells(report, row) for row in report.collectives)])]
        if report.sizes:
            parts.append(format_columns([_SIZE_HEADS, *map(_size_cells, report.sizes)]))
    if report.compared and report.baseline is not None:
        heads = ("baseline", "size", "busbw", "baseline GB/s", "ratio")
        parts.append(format_columns([heads, *map(_baseline_cells, report.compared)]))
    notes = [*report.findings, *report.reasons]
    if notes:
        parts.append("".join(f"{note}\n" for note in notes))
    return "\n".join(parts)


_SIZE_HEADS: Final = ("sizes", "from", "to below", "calls/step", "bytes/step")
_TIME_HEADS: Final = {
    "rank": ("rank", "host", "steps", "step ms", "compute", "hidden", "exposed", "waiting", "copies", "idle"),
    "step": ("step", "ranks", "step ms", "compute", "hidden", "exposed", "waiting", "copies", "idle"),
}


def _heads(report: CollectiveReport) -> tuple[str, ...]:
    group = ("group",) if report.by == "group" else ()
    return (
        *("collective", *group, "calls", "size", "dtype", "group size", "hosts", "time µs", "algbw", "busbw"),
        *("wait µs", "last rank", "last share", "hidden", "lost ms"),
    )


def _cells(report: CollectiveReport, row: CollectiveRow) -> tuple[str, ...]:
    group = (escape_control(row.group or _DASH),) if report.by == "group" else ()
    imbalance = "" if row.imbalance is None else f" (largest/mean part {row.imbalance:.2f})"
    return (
        *((row.collective or "unknown") + imbalance, *group, f"{row.calls:,}", _number(row.size)),
        *(escape_control(row.dtype or _DASH), _number(row.group_size), row.hosts or _DASH),
        *(
            _number(row.time_us, ",.1f"),
            _number(row.algbw, ",.1f"),
            _number(row.busbw, ",.1f"),
            _number(row.wait_us, ",.1f"),
        ),
        *(
            _number(row.last_rank),
            _number(row.last_share, ".0%"),
            _number(row.hidden_share, ".0%"),
            _number(row.lost_ms, ",.3f"),
        ),
    )


def _time_cells(by: str, row: TimeRow) -> tuple[str, ...]:
    times = (row.step_ms, row.compute_ms, row.hidden_ms, row.exposed_ms, row.waiting_ms, row.copies_ms, row.idle_ms)
    shown = tuple(f"{value:.3f}" for value in times)
    if by == "rank":
        return str(row.rank), escape_control(row.host or _DASH), str(row.samples), *shown
    return str(row.step) if row.epoch is None else f"{row.epoch}/{row.step}", str(row.samples), *shown


def _size_cells(size_bin: SizeBin) -> tuple[str, ...]:
    below = 2 * size_bin.at_least_bytes if size_bin.at_least_bytes else 1
    calls = f"{size_bin.calls_per_step:,.1f}".removesuffix(".0")
    return size_bin.operation, f"{size_bin.at_least_bytes:,}", f"{below:,}", calls, f"{size_bin.bytes_per_step:,.0f}"


def _baseline_cells(row: BaselineRow) -> tuple[str, ...]:
    ratio = _DASH if row.ratio is None else f"{row.ratio:.2f}"
    return row.collective, f"{row.size_bytes:,}", _number(row.busbw, ",.1f"), _number(row.baseline_busbw, ",.1f"), ratio


def _number(value: float | None, form: str = ",") -> str:
    return _DASH if value is None else format(value, form)
