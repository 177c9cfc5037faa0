"""Hostile traces, each by name: read or refused with the true reason, in bounded time and memory."""

import json
import resource
import time
from pathlib import Path
from typing import Any

import pytest

import jitter
from jitter.ingestion.ingest import IngestReport
from tests.support.fuzz_depth import fuzz, of_all

SLOWEST_S = 60
"""A bound, not a measure: each takes a few seconds of processor time."""


def kernel(number: int, name: str = "gemm", **other: Any) -> dict[str, Any]:
    start = 1000.0 + 100 * number
    event = {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": 50.0, "pid": 0, "tid": 7}
    return event | {"args": {"device": 0, "stream": 7, "correlation": number + 1}} | other


def launch(number: int) -> dict[str, Any]:
    args = {"correlation": number + 1}
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 990.0 + 100 * number, "dur": 5.0,
            "pid": 1, "tid": 1, "args": args}  # fmt: skip


def step(number: int, name: str | None = None) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name or f"ProfilerStep#{number}", "ts": 985.0 + 100 * number,
            "dur": 90.0, "pid": 1, "tid": 1}  # fmt: skip


def ingested(folder: Path, content: str | bytes, name: str = "rank-0.json") -> IngestReport:
    """Ingest one trace, within bounds of time and memory."""
    (folder / "in").mkdir()
    path = folder / "in" / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    began_s, before_kb = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = jitter.ingest(folder / "in", folder / "lake")
    assert time.process_time() - began_s < SLOWEST_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 1_500_000
    for error in report.refused:
        assert "bug" not in str(error)
        assert "\n" not in str(error)
    return report


def trace(events: list[dict[str, Any]]) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": events})


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"traceEvents":[{"args":'])
def test_deep_nesting(tmp_path: Path, opening: str):
    good = trace([step(0), launch(0), kernel(0)])
    content = good[:-2] + ", " + opening * 200_000
    report = ingested(tmp_path, content)
    assert report.refused or any("damaged" in problem or "cut" in problem for problem in report.added[0].problems)


def test_nesting_beside_the_events(tmp_path: Path):
    deep = "[" * 200_000 + "]" * 200_000
    content = f'{{"schemaVersion": 1, "x": {deep}, ' + trace([step(0), launch(0), kernel(0)])[1:]
    report = ingested(tmp_path, content)
    assert report.added or report.refused


@fuzz
@pytest.mark.slow
def test_many_step_names(tmp_path: Path):
    """A million names that are no steps (a twentieth of them in `make test`), around one that is."""
    names = [step(n, f"phase {n} of {n}") for n in range(of_all(1_000_000, 50_000))]
    report = ingested(tmp_path, trace([*names, step(0, "ProfilerStep#3"), launch(0), kernel(0)]))
    assert [one.step for record in report.added for one in record.steps] == [3]


@fuzz
@pytest.mark.slow
def test_thousands_of_steps_take_linear_time(tmp_path: Path):
    """The processor time of four times the steps is well below 8 times as much."""
    took, few = {}, of_all(1000, 100)
    for count in (few, 4 * few):
        (tmp_path / f"{count}").mkdir()
        events = [event for n in range(count) for event in (step(n), launch(n), kernel(n))]
        began_s = time.process_time()
        report = ingested(tmp_path / f"{count}", trace(events))
        took[count] = time.process_time() - began_s
        assert [len(record.steps) for record in report.added] == [count]
    assert took[4 * few] < 8 * took[few] + 1


@pytest.mark.parametrize(
    "change",
    [
        {"ts": -5e9},
        {"ts": -1.0, "dur": 10.0},
        {"dur": -50.0},
        {"ts": 1e300},
        {"ts": "NaN"},
        {"ts": 9.3e18},
        {"dur": 9.3e18},
        {"ts": None},
        {"args": None},
        {"args": {"device": 2**40, "stream": 2**70, "correlation": -(2**63)}},
        {"args": {"device": -1, "stream": -1, "correlation": 0}},
        {"name": None},
        {"name": ""},
        {"name": "\ud800"},
        {"name": "a\0b"},
        {"pid": "x" * 1000, "tid": {}},
    ],
    ids=lambda change: json.dumps(change)[:40],
)
def test_a_hostile_event_among_good_ones(tmp_path: Path, change: dict[str, Any]):
    """Kernels of the good events stay as they are; the hostile one is read, left out or refused."""
    events = [event for n in range(3) for event in (step(n), launch(n), kernel(n))]
    report = ingested(tmp_path, trace([*events, kernel(1, "hostile") | change]))
    if report.added:
        rows = (
            jitter.open(tmp_path / "lake")
            .sql("select step from kernels where kernel_name = 'gemm'", arrow=True)
            .to_pylist()
        )
        assert sorted(row["step"] for row in rows) == [0, 1, 2]
