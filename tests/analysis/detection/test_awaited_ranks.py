"""Hosts that wait for another one, as in a barrier: no profiler records it, and who is waited for is to blame."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.model import IndexRange
from jitter.simulate import Fault, Run, simulate
from tests.support.databases import open_database
from tests.support.simulated import ingest_run, ingest_traces, small, true_gain_ns, write_traces

JOB = small(ranks=8, steps=10, kernels=120, gpus_per_node=8)
OTHERS = "0-2+4-7"


def barrier(*of_rank_3: str) -> list[Fault]:
    """What holds rank 3 up in step 5, and the wait of the others there."""
    return [*map(Fault.parse, of_rank_3), Fault.parse(f"cpu_stall:rank={OTHERS},step=5,kernel=60,ms=19.7")]


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("cpu_stall:rank=3,step=5,kernel=20,ms=20", "cpu_launch"),
        ("late_start:rank=3,step=5,ms=20", "late_start"),
        ("late_end:rank=3,step=4,ms=20", "cpu_after"),
    ],
)
def test_the_rank_that_the_others_wait_for_is_to_blame(tmp_path: Path, fault: str, cause: str):
    faults = barrier(fault)
    run = simulate(JOB, faults)
    culprit, *others = ingest_run(run, tmp_path).diagnose().culprits
    assert (culprit.ranks, culprit.cause, culprit.rung) == ((3,), cause, "steps")
    assert not any(3 in other.ranks for other in others)
    assert culprit.confidence == "medium"  # none of these waits is recorded
    assert culprit.loss_ns == pytest.approx(true_gain_ns(run, *faults), rel=0.1)
    assert any(f"hosts of ranks {OTHERS.replace('+', ',')} seem to wait for rank 3" in one for one in culprit.evidence)


@pytest.mark.parametrize(
    ("rank", "others", "stages"), [(6, "0-5+7", 2), (1, "0+2-7", 2), (3, OTHERS, 4), (0, "1-7", 4)]
)
def test_ranks_of_other_stages_may_wait(tmp_path: Path, rank: int, others: str, stages: int):
    """The stage of most of those that wait may be its own or another one: each stage has a program of its own.

    Of a stage of two, the rank that pauses later in the program waits.
    """
    faults = [f"late_start:rank={rank},step=5,ms=60", f"cpu_stall:rank={others},step=5,kernel=60,ms=59.5"]
    run = simulate(replace(JOB, kernels=100, seed=0, shape="pipeline", stages=stages), list(map(Fault.parse, faults)))
    culprit = ingest_run(run, tmp_path).diagnose().culprits[0]
    assert (culprit.ranks, culprit.cause, culprit.rung) == ((rank,), "late_start", "steps")


def test_a_rank_that_the_others_wait_for_in_every_step_is_to_blame(tmp_path: Path):
    faults = [Fault.parse("late_start:rank=3,ms=6"), Fault.parse(f"cpu_stall:rank={OTHERS},kernel=60,ms=5.7")]
    run = simulate(JOB, faults)
    (culprit,) = ingest_run(run, tmp_path).diagnose().findings
    assert (culprit.ranks, culprit.cause, culprit.rung) == ((3,), "late_start", "launch")
    assert (culprit.scope, culprit.confidence) == ("rank", "medium")
    assert any("the input pipeline stalled" in line for line in culprit.evidence)
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, *faults), rel=0.1)


def test_a_rank_that_pauses_before_a_copy_of_its_own_pauses_as_the_others(tmp_path: Path):
    """As the rank of a tensor-parallel group that reads the batch: the others seemed to wait for it."""
    run = simulate(JOB, [Fault.parse("cpu_stall:ranks=0-7,step=5,kernel=60,ms=20")])
    trace = write_traces(run, tmp_path / "traces", "kineto")[3]
    document = json.loads(trace.read_text())
    events = document["traceEvents"]
    calls = sorted((event for event in events if event.get("cat") == "cuda_runtime"), key=lambda event: event["ts"])
    _, late = max(pairwise(calls), key=lambda pair: pair[1]["ts"] - pair[0]["ts"])
    (kernel,) = (
        event
        for event in events
        if event.get("cat") == "kernel" and event["args"]["correlation"] == late["args"]["correlation"]
    )
    args = {"device": 3, "context": 1, "stream": kernel["args"]["stream"], "correlation": 10**7, "bytes": 4096}
    call = {"name": "cudaMemcpyAsync", "ts": late["ts"] - 20, "dur": 5, "args": late["args"] | {"correlation": 10**7}}
    copy = {
        "cat": "gpu_memcpy",
        "name": "Memcpy HtoD (Pinned -> Device)",
        "ts": late["ts"] - 10,
        "dur": 2,
        "args": args,
    }
    events += [late | call, kernel | copy]
    trace.write_text(json.dumps(document))
    (found,) = ingest_traces(tmp_path).diagnose().culprits
    assert (found.ranks, found.cause, found.rung) == (tuple(range(8)), "cpu_launch", "steps")


def _record_barriers(trace: Path, kernel: int, kernels: int) -> None:
    """Add to a trace, in each step, a barrier from the return of the launch before a kernel to that of the kernel."""
    with open_database(trace) as database:
        steps = database.execute(
            "SELECT start, \"end\", globalTid FROM NVTX_EVENTS WHERE text LIKE 'ProfilerStep#%' ORDER BY start"
        ).fetchall()
        for begin, end, thread in steps:
            calls = database.execute(
                'SELECT call.start, call."end" FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel'
                " JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call USING (correlationId)"
                " WHERE call.start BETWEEN ? AND ? ORDER BY call.start",
                (begin, end),
            ).fetchall()
            assert len(calls) == kernels
            database.execute(
                'INSERT INTO NVTX_EVENTS (start, "end", eventType, text, globalTid) VALUES (?, ?, 59, ?, ?)',
                (calls[kernel - 1][1], calls[kernel][0], "c10d::barrier", thread),
            )


@pytest.mark.parametrize("step", ["", ",step=5"])
def test_a_recorded_barrier_tells_who_comes_last(tmp_path: Path, step: str):
    """It needs no likelihood: the other hosts wait there, and what it costs is what the rank is late."""
    faults = [
        Fault.parse(f"late_start:rank=3,ms=6,loading=no{step}"),
        Fault.parse(f"cpu_stall:rank={OTHERS},kernel=60,ms=5.7{step}"),
    ]
    run = simulate(JOB, faults)
    for trace in write_traces(run, tmp_path / "traces", "nsys"):
        _record_barriers(trace, 60, JOB.kernels)
    culprit, *others = ingest_traces(tmp_path).diagnose().findings
    assert (culprit.ranks, culprit.cause, culprit.rung) == ((3,), "late_start", "ranks")
    assert not any("c10d::barrier" in one for other in others for one in other.evidence)
    assert culprit.confidence == "high"
    assert culprit.loss_ns == pytest.approx(true_gain_ns(run, *faults), rel=0.05)
    assert not any("c10d::barrier" in one for one in culprit.evidence)


def test_a_rank_that_loads_the_data_of_all_is_to_blame(tmp_path: Path):
    faults = [
        Fault.parse(f"late_start:rank={ranks},ms=6,loading={loading}")
        for ranks, loading in (("0", "yes"), ("1-7", "no"))
    ]
    culprit = ingest_run(simulate(JOB, faults), tmp_path, "kineto").diagnose().findings[0]
    assert (culprit.ranks, culprit.cause, culprit.confidence) == ((0,), "late_start", "medium")
    assert "loads the data that the other ranks wait for" in culprit.advice


def test_ranks_that_are_late_together_wait_for_none(tmp_path: Path):
    run = simulate(JOB, [Fault.parse("cpu_stall:rank=0-7,step=5,kernel=60,ms=19.7")])
    culprit = ingest_run(run, tmp_path).diagnose().culprits[0]
    assert (culprit.ranks, culprit.scope, culprit.confidence) == (tuple(range(8)), "job", "medium")
    assert culprit.kernel_index == IndexRange(60, 60)
    assert culprit.look_at is not None
    assert 19.7e6 < culprit.look_at.end_ns - culprit.look_at.start_ns < 21e6
    assert not any("of what the job loses" in line for line in culprit.evidence)  # the loss does not contain it
    assert not any("seem to wait" in one for one in culprit.evidence)


_AS_ONE_GRAPH = """
    CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS
        SELECT min(kernel.start) AS start, max(kernel."end") AS "end", deviceId, contextId, 7 AS streamId,
            min(correlationId) AS correlationId, globalPid, 3 AS graphId, 4 AS graphExecId
        FROM CUPTI_ACTIVITY_KIND_KERNEL AS kernel JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS call USING (correlationId)
            JOIN NVTX_EVENTS AS step ON step.text LIKE 'ProfilerStep#%' AND call.start BETWEEN step.start AND step."end"
        GROUP BY step.start;
    DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME
        WHERE correlationId NOT IN (SELECT correlationId FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
    DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL;
    DROP TABLE CUPTI_ACTIVITY_KIND_MEMCPY;
    DROP TABLE CUPTI_ACTIVITY_KIND_MEMSET;
"""
"""Makes each step one launch of a CUDA graph that was recorded as a whole."""


def _diagnose_graphs(run: Run, folder: Path) -> Diagnosis:
    for trace in write_traces(run, folder / "traces", "nsys"):
        with open_database(trace) as database:
            database.executescript(_AS_ONE_GRAPH)
    return ingest_traces(folder).diagnose()


def test_a_rank_that_is_always_late_for_a_graph_has_an_unknown_cost(tmp_path: Path):
    run = simulate(JOB, [Fault.parse("late_start:rank=3,ms=3,loading=no")])
    (culprit,) = _diagnose_graphs(run, tmp_path).culprits
    assert (culprit.ranks, culprit.cause, culprit.is_of_unknown_cost) == ((3,), "late_start", True)


def test_the_rank_that_the_others_wait_for_within_a_graph_is_to_blame(tmp_path: Path):
    late = Fault.parse("late_start:rank=3,step=5,ms=20,loading=no")
    run = simulate(JOB, [late])
    culprit, *others = _diagnose_graphs(run, tmp_path).culprits
    assert not others
    assert (culprit.ranks, culprit.cause, culprit.rung) == ((3,), "late_start", "steps")
    assert culprit.confidence == "low"  # what is inside the graph was not recorded
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, late), rel=0.05)
    assert any(f"GPUs of ranks {OTHERS.replace('+', ',')} seem to wait for rank 3" in one for one in culprit.evidence)


def test_what_costs_time_of_its_own_is_not_waited_for(tmp_path: Path):
    """Where the hosts keep step, rank 3 and then the others are late one after another: both cost time."""
    run = simulate(
        replace(JOB, shape="sharded", kernels=300, cpu_bound=True),
        barrier("cpu_stall:rank=3,step=5,kernel=20,ms=20"),
    )
    culprits = ingest_run(run, tmp_path).diagnose().culprits
    assert not any("seem to wait" in one for culprit in culprits for one in culprit.evidence)


def test_hosts_whose_pauses_differ_wait_for_none(tmp_path: Path):
    """Each takes its time to load data, and rank 3, which is the quickest, as long elsewhere."""
    pauses_ms = (3.2, 3.4, 3.8, 1.3, 3.0, 4.0, 2.6, 2.1)
    faults = [f"late_start:rank={rank},ms={ms},loading=no" for rank, ms in enumerate(pauses_ms)]
    run = simulate(JOB, list(map(Fault.parse, [*faults, "cpu_stall:rank=3,kernel=60,ms=2.2"])))
    assert not any(3 in culprit.ranks for culprit in ingest_run(run, tmp_path).diagnose().culprits)
