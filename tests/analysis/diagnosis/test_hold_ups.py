"""What a recording says of how a host was held up, by its profiler or in calls, decides the advice."""

import json
import re
import sqlite3
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jitter.core.schema import PROFILER
from jitter.report.text.fix_list import describe_place
from jitter.simulate import Fault, simulate
from tests.support.nsys_additions import add_scheduling
from tests.support.simulated import ingest_run, ingest_traces, small, true_gain_ns, write_traces

RUN = simulate(small(ranks=4, steps=10), [Fault.parse("cpu_stall:rank=1,step=5,kernel=20,ms=30")])


def longest_gap(calls: list[tuple[int, int]]) -> tuple[int, int]:
    """End and start of the calls (start, end) between which most time passes."""
    return max(((end, start) for (_, end), (start, _) in pairwise(sorted(calls))), key=lambda gap: gap[1] - gap[0])


def hold_up_by_nsys(trace: Path, kind: int | str) -> None:
    """Put an overhead of this kind, or calls of this name, where the host pauses."""
    with sqlite3.connect(trace) as export:
        calls = export.execute("SELECT start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME").fetchall()
        (thread,) = export.execute("SELECT globalTid FROM CUPTI_ACTIVITY_KIND_RUNTIME LIMIT 1").fetchone()
        if isinstance(kind, str):
            export.execute("INSERT INTO StringIds (id, value) VALUES (77777, ?)", (kind,))
            begin, end = longest_gap(calls)
            middle = (begin + end) // 2
            export.execute("CREATE TEMP TABLE call AS SELECT * FROM CUPTI_ACTIVITY_KIND_RUNTIME LIMIT 1")
            for number, times in enumerate([(begin, middle), (middle, end)], 88_888):
                export.execute(
                    "UPDATE call SET start = ?, end = ?, correlationId = ?, nameId = 77777", (*times, number)
                )
                export.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME SELECT * FROM call")
            return
        export.execute("DROP TABLE IF EXISTS CUPTI_ACTIVITY_KIND_OVERHEAD")
        columns = "start, end, globalTid, nameId, overheadType"
        export.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_OVERHEAD ({columns})")
        row = *longest_gap(calls), thread, 0, kind
        export.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_OVERHEAD ({columns}) VALUES (?, ?, ?, ?, ?)", row)


def hold_up_by_kineto(trace: Path, name: str) -> None:
    """Put an overhead or a call of this name where the host pauses."""
    content = json.loads(trace.read_text())
    calls = [event for event in content["traceEvents"] if event.get("cat") == "cuda_runtime"]
    begin, end = longest_gap([(call["ts"], call["ts"] + call["dur"]) for call in calls])
    late = next(call for call in calls if call["ts"] == end)
    thread = {"pid": late["pid"], "tid": late["tid"], "cat": "cuda_runtime", "args": {"correlation": 88_888}}
    where = thread if name[:2] in ("cu", "hi") else {"pid": -1, "tid": 0, "cat": "overhead"}
    where = {**thread, "cat": "user_annotation"} if name.endswith("(dynamo_timed)") else where
    where = {**thread, "cat": "python_function"} if name.startswith("<") else where
    content["traceEvents"].append({"ph": "X", "name": name, **where, "ts": begin, "dur": end - begin})
    trace.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("form", "kind", "advice"),
    [
        ("kineto", "<built-in function collect>", "Python's garbage collection"),
        ("kineto", "<built-in method collect of module object at 0x7f15c8>", "Python's garbage collection"),
        ("kineto", "<built-in method read of _io.FileIO object at 0x7f15c8>", "`built-in method read of _io.FileIO`"),
        ("nsys", 3, "held up by its profiler"),
        ("nsys", 7, ""),
        ("nsys", "cudaMalloc_v3020", "held up by allocating"),
        ("nsys", "cuModuleLoadDataEx", "loads or compiles kernels"),
        ("kineto", "Buffer Flush", "held up by its profiler"),
        ("kineto", "Lazy Function Loading", ""),
        ("kineto", "cudaFree", "held up by allocating"),
        ("kineto", "hipModuleLoadData", "loads or compiles kernels"),
        ("kineto", "_compile.compile_inner (dynamo_timed)", "loads or compiles kernels"),
        ("kineto", "cudaMallocHost", "check what `cudaMallocHost` does"),
    ],
)
def test_what_held_up_a_host_is_told(tmp_path: Path, form: str, kind: int | str, advice: str):
    traces = write_traces(RUN, tmp_path / "traces", form)
    (hold_up_by_nsys if form == "nsys" else hold_up_by_kineto)(traces[1], kind)
    (culprit,) = ingest_traces(tmp_path).diagnose().culprits
    assert (culprit.ranks, culprit.cause) == ((1,), "cpu_launch")
    assert advice in culprit.advice
    assert bool(advice) is bool(culprit.advice)


def test_an_operation_that_seems_to_end_after_the_next_launch_begins_is_told(tmp_path: Path):
    """Traces round times, of large ones to a quarter of a microsecond: the call ends after the operation."""
    trace = write_traces(RUN, tmp_path / "traces")[1]
    content = json.loads(trace.read_text())
    calls = [event for event in content["traceEvents"] if event.get("cat") == "cuda_runtime"]
    begin, end = longest_gap([(call["ts"], call["ts"] + call["dur"]) for call in calls])
    late = next(call for call in calls if call["ts"] == end)
    operation = {"pid": late["pid"], "tid": late["tid"], "ph": "X", "cat": "cpu_op", "name": "CPUAdam.step"}
    content["traceEvents"].append({**operation, "ts": begin, "dur": end - begin + 0.25})
    trace.write_text(json.dumps(content))
    (culprit,) = ingest_traces(tmp_path).diagnose().culprits
    assert "check what `CPUAdam.step` does" in culprit.advice


def test_the_profiler_counts_once_whichever_thread_it_held_up(tmp_path: Path):
    """Kineto does not state the thread, so every thread that launches has the event."""
    paused = write_traces(RUN, tmp_path / "traces")[1]
    hold_up_by_kineto(paused, "Activity Buffer Request")
    lake = ingest_traces(tmp_path, paused)
    hosts = lake.run_reader(lake.step_keys).host(lake.step_keys[5], 1)
    profiler = re.compile(PROFILER)
    assert hosts.of_events(profiler, lake.step_keys[5]).total_ns == pytest.approx(30e6, rel=0.1)
    assert hosts.of_events(profiler, lake.step_keys[4]).total_ns == 0


def test_a_pause_at_the_end_of_a_step_is_told_with_the_step_that_it_delays_and_its_own(tmp_path: Path):
    run = simulate(small(ranks=4, steps=10), [Fault.parse("late_end:rank=1,step=5,ms=30")])
    diagnosis = ingest_run(run, tmp_path, "kineto").diagnose()
    assert "(seen in 1 of 10 steps: step 6, at the end of step 5)" in diagnosis.verdict
    assert describe_place(diagnosis.culprits[0]) == "after the last launch of the step before"


@pytest.mark.parametrize("is_between", [False, True])
def test_a_checkpoint_after_the_last_launch_is_one_finding(tmp_path: Path, is_between: bool):
    """Within the step's marker, or between two markers: a copy that the host waits for, then calls that write it."""
    run = simulate(small(ranks=4, steps=10), [Fault.parse("late_end:rank=1,step=5,ms=30")])
    trace = write_traces(run, tmp_path / "traces")[1]
    content = json.loads(trace.read_text())
    events = content["traceEvents"]
    calls = [event for event in events if event.get("cat") == "cuda_runtime"]
    begin, end = longest_gap([(call["ts"], call["ts"] + call["dur"]) for call in calls])
    marker = next(one for one in events if one["name"] == "ProfilerStep#5" and one["cat"] == "user_annotation")
    if is_between:
        marker["dur"] = begin + 1 - marker["ts"]
    else:
        end = marker["ts"] + marker["dur"]
    begin += 2
    saved = {"ph": "X", "pid": calls[0]["pid"], "tid": calls[0]["tid"], "ts": begin, "dur": end - begin - 2}
    wait = {"cat": "cuda_runtime", "name": "cudaStreamSynchronize", "args": {"correlation": 88_888}}
    events.append({**saved, "cat": "user_annotation", "name": "save_checkpoint"})
    events.append({**saved, **wait, "dur": saved["dur"] * 0.3})
    trace.write_text(json.dumps(content))
    diagnosis = ingest_traces(tmp_path).diagnose()
    (culprit,) = diagnosis.culprits
    assert culprit.ranks == (1,)
    assert culprit.cause == ("late_start" if is_between else "cpu_after")
    assert culprit.loss_ns == pytest.approx(30e6, rel=0.1)
    assert "is held up by a checkpoint: let it run beside the steps" in diagnosis.verdict
    (told,) = [line for line in culprit.evidence if "checkpoint" in line]
    assert re.fullmatch(r"a checkpoint takes (29|30)\.\d ms of its host's time in one step \(`save_checkpoint`\)", told)
    assert any(note.startswith(f"A checkpoint lies in step {5 + is_between} (rank 1") for note in diagnosis.notes)


def test_an_operation_that_only_one_rank_has_is_named(tmp_path: Path):
    """Logging after the last launch of each step, in an annotation whose name looks like markup and like advice."""
    run = simulate(small(ranks=4, steps=10), [Fault.parse("late_end:rank=1,ms=5")])
    trace = write_traces(run, tmp_path / "traces")[1]
    content = json.loads(trace.read_text())
    events = content["traceEvents"]
    thread = {key: next(one for one in events if one.get("cat") == "cuda_runtime")[key] for key in ("pid", "tid")}
    for marker in [one for one in events if one["name"].startswith("ProfilerStep#")]:
        last = marker["ts"] + marker["dur"]
        for name, ms in (("log {step}: all", 4.9), ("log.py(7): write", 4.6)):
            events.append(
                {
                    "ph": "X",
                    "cat": "user_annotation",
                    "name": name,
                    **thread,
                    "ts": last - ms * 1e3,
                    "dur": ms * 1e3 - 1,
                }
            )
    trace.write_text(json.dumps(content))
    diagnosis = ingest_traces(tmp_path).diagnose()
    (culprit,) = diagnosis.culprits
    assert (culprit.ranks, culprit.cause, culprit.cause_certainty) == ((1,), "cpu_after", "likely")
    assert (
        "`log {step}:all` takes 4.90 ms of host time in each of its worst steps, most of it in `log.py(7):write`, the "
        "other ranks' hardly any"
    ) in culprit.evidence
    assert "check what `log {step}:all` does, and whether a step must wait for it (seen" in diagnosis.verdict


class MarkedStep(NamedTuple):
    """A step of a trace: when its marker begins and ends, and all events of the trace."""

    first: float
    last: float
    events: list[dict[str, Any]]


def add_to_steps(traces: list[Path], operations: Callable[[int, MarkedStep], list[dict[str, Any]]]) -> None:
    """Add operations, of a trace's position and a step, to the launching thread; by default they are operators."""
    for position, trace in enumerate(traces):
        content = json.loads(trace.read_text())
        events = content["traceEvents"]
        thread = {key: next(one for one in events if one.get("cat") == "cuda_runtime")[key] for key in ("pid", "tid")}
        for marker in [one for one in events if one["name"].startswith("ProfilerStep#")]:
            step = MarkedStep(marker["ts"], marker["ts"] + marker["dur"], events)
            events += [{"ph": "X", "cat": "cpu_op", **thread, **one} for one in operations(position, step)]
        trace.write_text(json.dumps(content))


def test_an_operation_in_which_all_hosts_pause_is_named(tmp_path: Path):
    """Between the last launch of each step and the first one of the next; waits for the GPU within it do not count."""
    run = simulate(small(ranks=4, steps=10, kernels=40), [Fault.parse("late_end:rank=0-3,ms=5")])

    def add(_: int, step: MarkedStep) -> list[dict[str, Any]]:
        collect = {"name": "gc.collect", "ts": step.last - 4900, "dur": 4899}
        waited = min(one["ts"] for one in step.events if "Synchronize" in one["name"] and one["ts"] > step.first)
        item = {"name": "item", "ts": waited - 1, "dur": step.last - 4901 - waited}
        within = {**collect, "cat": "user_annotation", "ts": step.last - 4898, "dur": 4896}  # which counts once
        return [collect, within, item]

    add_to_steps(write_traces(run, tmp_path / "traces"), add)
    diagnosis = ingest_traces(tmp_path).diagnose()
    (paused,) = [one for one in diagnosis.of_all_ranks if one.cause == "late_start"]
    assert "`gc.collect` takes 4.90 ms of host time per step" in paused.evidence
    assert "check what `gc.collect` does" in paused.advice


def test_several_operations_that_fill_a_pause_together_are_named(tmp_path: Path):
    """None takes half of it: what the hosts do, of three things, was said of none."""
    run = simulate(small(ranks=4, steps=10, kernels=40), [Fault.parse("late_end:rank=0-3,ms=5")])
    parts = [("gloo:barrier", 4900, 2000), ("wait", 4899, 1990), ("reward", 2800, 1500), ("log", 1200, 900)]

    def add(_: int, step: MarkedStep) -> list[dict[str, Any]]:
        return [{"name": name, "ts": step.last - before, "dur": took} for name, before, took in parts]

    add_to_steps(write_traces(run, tmp_path / "traces"), add)
    diagnosis = ingest_traces(tmp_path).diagnose()
    (paused,) = [one for one in diagnosis.of_all_ranks if one.cause == "late_start"]
    assert "most of it in `gloo:barrier` 2.00 ms, `reward` 1.50 ms per step" in paused.evidence
    assert paused.advice.endswith(": check whether a step must wait for `gloo:barrier`, `reward`")


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_rank_that_does_something_else_while_the_others_stand_in_a_barrier_is_named(
    tmp_path: Path, *, is_recorded: bool
):
    """Not one whose profiler may not have recorded the barrier."""
    run = simulate(small(ranks=4, steps=10, kernels=40), [Fault.parse("late_end:rank=0-3,ms=5")])

    def add(rank: int, step: MarkedStep) -> list[dict[str, Any]]:
        if rank != 2:
            return [{"name": "gloo:barrier", "ts": step.last - 4900, "dur": 4899}]
        log = {"name": "write_log", "ts": step.last - 4900, "dur": 4600}
        return [log, {"name": "gloo:barrier", "ts": step.last - 200, "dur": 199}] if is_recorded else []

    add_to_steps(write_traces(run, tmp_path / "traces"), add)
    diagnosis = ingest_traces(tmp_path).diagnose()
    if not is_recorded:
        assert diagnosis.culprits == ()
        return
    (late,) = diagnosis.culprits
    assert (late.ranks, late.cause, late.confidence) == ((2,), "cpu_after", "high")
    assert late.loss_ns / len(late.steps) == pytest.approx(4.7e6 * 9 / 10, rel=0.01)  # the first step is not timed
    assert any("`write_log` takes 4.60 ms" in told and "the other ranks' hardly any" in told for told in late.evidence)
    assert "check what `write_log` does" in late.advice
    # what all hosts lose is the barrier alone, and what a step begins with
    (paused,) = [one for one in diagnosis.of_all_ranks if one.cause == "late_start"]
    assert 0.2e6 <= paused.loss_ns / len(paused.steps) < 0.3e6


def test_a_host_whose_launching_threads_are_suspended_is_one_finding(tmp_path: Path):
    """Each rank in other steps, one of them before the first kernel."""
    places = ((4, 1), (5, 2), (6, 3), (4, 4), (5, 5), (6, 6), (4, 7))
    stalls = [f"cpu_stall:rank={rank},step={step},kernel=20,ms=9" for rank, step in places]
    faults = [Fault.parse(fault) for fault in (*stalls, "late_start:rank=7,step=8,ms=9,loading=no")]
    run = simulate(small(ranks=16, steps=10, gpus_per_node=4), faults)
    write_traces(run, tmp_path / "traces", "nsys")
    add_scheduling(tmp_path / "traces")
    (host,) = ingest_traces(tmp_path).diagnose().culprits
    assert (host.scope, host.ranks) == ("host", (4, 5, 6, 7))
    assert host.gain_ns == pytest.approx(true_gain_ns(run, *faults), rel=0.05)
    assert any(line.startswith("launching threads are off the CPU for") for line in host.evidence)
