"""The tables of one step: each rank's time by part; kernels by name, operator and phase, across ranks."""

from dataclasses import dataclass
from typing import Any, Final

from jitter.analysis.metrics.breakdown import NOT_RECORDED, columns_of
from jitter.analysis.metrics.collective_calls import COLUMNS as COMMUNICATION_COLUMNS
from jitter.analysis.metrics.step_metrics import ALL_COLUMNS as METRIC_COLUMNS
from jitter.api import Lake
from jitter.core.step_key import StepKey

MAX_RANKS: Final = 96
"""Ranks in the table of a step: those that wait least, and those that wait most."""
MAX_GROUPS: Final = 40
"""Kernels, operators or phases in a table; those with the most time."""
GROUPS: Final = ("kernel", "operator", "phase")
SECTION_COLUMNS: Final = tuple(
    sorted({*METRIC_COLUMNS, *COMMUNICATION_COLUMNS, *(name for by in (*GROUPS, "stream") for name in columns_of(by))})
)
"""Columns of a step's rows that its metrics, its tables and the shares of its streams need."""


@dataclass(frozen=True)
class StepTables:
    """The rows of the tables, times in ns."""

    ranks: tuple[dict[str, Any], ...]
    """Columns of `Lake.table(by="step")` and `host`, by rank."""
    ranks_left_out: int
    groups: dict[str, tuple[dict[str, Any], ...]]
    """By group the columns of `Lake.table(by=…)`, without groups of which none is recorded."""


def build_step_tables(lake: Lake, key: StepKey) -> StepTables:
    parts = lake.table(by="step", step=key, arrow=True).to_pylist()
    rows = [row | {"host": lake.hosts.get(row["rank"])} for row in parts]
    by_wait = sorted(rows, key=lambda row: row["waiting_ns"] or 0)
    kept = by_wait if len(rows) <= MAX_RANKS else by_wait[: MAX_RANKS // 2] + by_wait[-(MAX_RANKS // 2) :]
    tables = {by: lake.table(by=by, step=key, ranks=[], arrow=True).slice(0, MAX_GROUPS) for by in GROUPS}
    groups = {by: tuple(table.to_pylist()) for by, table in tables.items()}
    return StepTables(
        ranks=tuple(sorted(kept, key=lambda row: row["rank"])),
        ranks_left_out=len(rows) - len(kept),
        groups={
            by: group_rows
            for by, group_rows in groups.items()
            if any(row[by] not in (None, NOT_RECORDED) for row in group_rows)
        },
    )
