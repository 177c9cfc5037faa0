"""A host that its profiler held up is no slow host: the recording says so, and the advice is another one."""

import json
import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest

from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_traces, small, write_traces

RUN = simulate(small(ranks=4, steps=10), [Fault.parse("cpu_stall:rank=1,step=5,kernel=20,ms=30")])


def longest_gap(calls: list[tuple[int, int]]) -> tuple[int, int]:
    """End and start of the calls (start, end) between which most time passes."""
    return max(((end, start) for (_, end), (start, _) in pairwise(sorted(calls))), key=lambda gap: gap[1] - gap[0])


def hold_up_by_nsys(trace: Path, kind: int) -> None:
    with sqlite3.connect(trace) as export:
        calls = export.execute("SELECT start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchall()
        (thread,) = export.execute("SELECT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME LIMIT 1").fetchone()
        export.execute("DROP TABLE IF EXISTS CUPTI_ACTIVITY_KIND_OVERHEAD")
        columns = "start, end, globalTid, nameId, overheadType"
        export.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_OVERHEAD ({columns})")
        row = *longest_gap(calls), thread, 0, kind
        export.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_OVERHEAD ({columns}) VALUES (?, ?, ?, ?, ?)", row)


def hold_up_by_kineto(trace: Path, name: str) -> None:
    content = json.loads(trace.read_text())
    calls = [
        (event["ts"], event["ts"] + event["dur"])
        for event in content["traceEvents"]
        if event.get("cat") == "cuda_runtime"
    ]
    begin, end = longest_gap(calls)
    overhead = {"ph": "X", "cat": "overhead", "name": name, "pid": -1, "tid": 0, "ts": begin, "dur": end - begin}
    content["traceEvents"].append(overhead)
    trace.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("form", "kind", "is_of_profiler"),
    [
        ("nsys", 3, True),
        ("nsys", 7, False),
        ("kineto", "Buffer Flush", True),
        ("kineto", "Lazy Function Loading", False),
    ],
)
def test_a_pause_of_the_profiler_is_told(tmp_path: Path, form: str, kind: int | str, is_of_profiler: bool):
    traces = write_traces(RUN, tmp_path / "traces", form)
    (hold_up_by_nsys if form == "nsys" else hold_up_by_kineto)(traces[1], kind)
    (culprit,) = ingest_traces(tmp_path).diagnose().culprits
    assert (culprit.ranks, culprit.cause) == ((1,), "cpu_launch")
    assert ("held up by its profiler" in culprit.advice) is is_of_profiler


def test_the_profiler_counts_once_whichever_thread_it_held_up(tmp_path: Path):
    """Kineto does not state the thread, so every thread that launches has the event."""
    paused = write_traces(RUN, tmp_path / "traces")[1]
    hold_up_by_kineto(paused, "Activity Buffer Request")
    lake = ingest_traces(tmp_path, paused)
    hosts = lake.run_reader(lake.step_keys).host(lake.step_keys[5], 1)
    assert hosts.profiling(lake.step_keys[5]).total_ns == pytest.approx(30e6, rel=0.1)
    assert hosts.profiling(lake.step_keys[4]).total_ns == 0
