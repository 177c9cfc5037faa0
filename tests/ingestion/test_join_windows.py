"""The launch join holds windows of a recording, whatever the order of its rows, and gives what one window gives."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from jitter.core.schema import ACTIVITIES, CALLS
from jitter.core.step_key import StepKey
from jitter.ingestion.transform import launch_join, sorted_rows
from jitter.ingestion.transform.capture import Capture
from jitter.ingestion.transform.launch_join import LaunchMatch
from jitter.ingestion.transform.sorted_rows import KEY, SortedRows, windows
from jitter.ingestion.transform.steps.step_markers import StepRange
from jitter.readers import Batch

KERNELS, BATCH, WINDOW = 6_000, 500, 600
STEPS = {
    0: [StepRange(StepKey(None, row), None, 10_000 * row, 10_000 * (row + 1), None) for row in range(KERNELS // 1_000)]
}
NAMES = ["gemm", "cudaLaunchKernel"]
Rows = list[dict[str, Any]]


def _call(number: int) -> dict[str, Any]:
    start = number * 10
    return {"process": 0, "thread": 1, "name": 1, "start_ns": start, "end_ns": start + 5, "correlation": number}


def _kernel(number: int) -> dict[str, Any]:
    start = number * 10 + 7
    place = {"process": 0, "device": 0, "stream": 7 + number % 2, "name": 0, "is_memory": False, "grid_x": number}
    return place | {"start_ns": start, "end_ns": start + 6, "correlation": number}


def in_order(kernels: Rows, calls: Rows) -> None:
    """As profilers write most recordings."""


def out_of_order(kernels: Rows, calls: Rows) -> None:
    random.Random(1).shuffle(kernels)
    random.Random(2).shuffle(calls)


def launches_at_the_end(kernels: Rows, calls: Rows) -> None:
    """The launches of the first kernels come last in the file."""
    calls[:] = calls[KERNELS // 2 :] + calls[: KERNELS // 2][::-1]


def correlations_of_no_order(kernels: Rows, calls: Rows) -> None:
    numbers = np.random.default_rng(3).permutation(KERNELS).astype(object) * 2**50 - 2**61
    for row in (*kernels, *calls):
        row["correlation"] = int(numbers[row["correlation"]])


def correlations_reused(kernels: Rows, calls: Rows) -> None:
    """After a third of the recording they begin anew."""
    for row in (*kernels, *calls):
        row["correlation"] %= KERNELS // 3


def _joined(change: Callable[[Rows, Rows], None], folder: Path) -> dict[str, Any]:
    kernels, calls = list(map(_kernel, range(KERNELS))), list(map(_call, range(KERNELS)))
    change(kernels, calls)
    capture = Capture(re.compile("(?P<step>)x"), folder)
    for table, rows, schema in (("activities", kernels, ACTIVITIES), ("calls", calls, CALLS)):
        for first in range(0, len(rows), BATCH):
            capture.add(Batch(table, pa.RecordBatch.from_pylist(rows[first : first + BATCH], schema)))  # type: ignore[arg-type]
    joined = capture.join(NAMES)
    steps = [rows.to_pylist() for _, rows in joined.in_steps(STEPS)]
    return {
        "uses": joined.gpus(),
        "steps": [row for rows in steps for row in rows],
        "before": joined.before_capture,
        "uncertain": joined.uncertain(STEPS),
        "lost": joined.lost_launches(STEPS),
    }


@pytest.mark.parametrize(
    "change", [in_order, out_of_order, launches_at_the_end, correlations_of_no_order, correlations_reused]
)
def test_windows_are_small_and_change_nothing(
    change: Callable[[Rows, Rows], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = _joined(change, tmp_path)
    assert whole["steps"]
    matched: list[int] = []
    really = launch_join.match_launches

    def watched(activities: pa.Table, calls: pa.Table) -> LaunchMatch:
        matched.append(len(activities) + len(calls))
        return really(activities, calls)

    monkeypatch.setattr(launch_join, "match_launches", watched)
    monkeypatch.setattr(launch_join, "ROWS_AT_ONCE", WINDOW)
    monkeypatch.setattr(sorted_rows, "STRIDE", 20)
    monkeypatch.setattr(sorted_rows, "RUN_BYTES", 50_000)
    assert _joined(change, tmp_path) == whole
    assert len(matched) > 10
    assert max(matched) < 2 * WINDOW
    assert not list(tmp_path.iterdir())  # temporary files have no name


def test_ranges_of_sorted_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Against numpy: rows of groups, in memory and in runs, by ranges of keys."""
    monkeypatch.setattr(sorted_rows, "RUN_BYTES", 20_000)
    monkeypatch.setattr(sorted_rows, "STRIDE", 8)
    random_numbers = np.random.default_rng(4)
    keys, groups = random_numbers.integers(-300, 300, 9_000), random_numbers.integers(0, 3, 9_000).astype(np.int32)
    table = SortedRows(tmp_path, pa.schema([("number", pa.int64())]))
    for first in range(0, 9_000, 700):
        part = slice(first, first + 700)
        table.add(pa.table({"number": np.arange(9_000)[part]}), keys[part], groups[part])
    table.finish()
    for group in range(4):
        bounds = windows([table], 500)
        found = [table.rows(low, high, group) for low, high in bounds]
        for (low, high), rows in zip(bounds, found, strict=True):
            least, limit = (-1000 if low is None else low), (1000 if high is None else high)
            expected = np.flatnonzero((groups == group) & (keys >= least) & (keys < limit))
            # rows of one key stay in the order in which they came
            order = np.argsort(rows[KEY].to_numpy(), kind="stable")
            assert np.array_equal(rows["number"].to_numpy()[order], expected[np.argsort(keys[expected], kind="stable")])
        limits = np.array([-301, -7, 0, 0, 299, 301])
        assert table.count(group, limits).tolist() == [int(((groups == group) & (keys < at)).sum()) for at in limits]
