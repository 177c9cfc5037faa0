"""What recordings say of a finding: markers, checkpoints, the code behind a kernel, where to look."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitter
from jitter.analysis.account.losses import Losses
from jitter.analysis.diagnosis.evidence.code import describe_code
from jitter.analysis.diagnosis.evidence.locations import find_profile_location
from jitter.analysis.diagnosis.model import CodeLocation
from jitter.lake.records import records_by_step
from jitter.simulate import Fault, Job, simulate
from tests.support.databases import open_database
from tests.support.recorded_events import list_events, remove_events
from tests.support.simulated import ingest_run, ingest_traces, small, write_traces


@pytest.mark.parametrize(("batch", "cause"), [("800_8", "workload_imbalance"), ("640_8", "gpu_compute")])
def test_a_larger_batch(tmp_path: Path, batch: str, cause: str):
    """A GPU that runs the same kernels more slowly: a fault of the GPU, unless its markers state a larger batch."""
    fault = Fault.parse("slow_gpu:rank=2,factor=1.3")
    write_traces(simulate(Job(ranks=6, steps=8, kernels=60, seed=3), [fault]), tmp_path / "traces", "nsys")
    with open_database(tmp_path / "traces" / "rank2.sqlite") as connection:
        connection.execute("UPDATE NVTX_EVENTS SET text = replace(text, '640_8', ?)", [batch])
        connection.execute("UPDATE StringIds SET value = replace(value, '640_8', ?) WHERE value LIKE '%step%'", [batch])
    lake = ingest_traces(tmp_path)
    culprit = lake.diagnose().culprits[0]
    assert (culprit.ranks, culprit.cause) == ((2,), cause)
    told = [text for text in culprit.evidence if "markers state" in text]
    if cause == "workload_imbalance":
        assert told == ["its step markers state more work: number 1 is 800 against 640 on the other ranks"]
        rows = lake.sql(
            "select distinct rank, value from marker_numbers where position = 0 order by rank", arrow=True
        ).to_pylist()
        assert [row["value"] for row in rows] == [640, 640, 800, 640, 640, 640]
    else:
        assert told == []


def _trace(folder: Path, rank: int) -> Path:
    (path,) = [path for path in folder.iterdir() if f"rank{rank}." in path.name or f"rank-{rank}." in path.name]
    return path


Event = dict[str, Any]


def edit(path: Path, change: Any) -> Any:
    """Change a trace's events; return what the change returns."""
    trace = json.loads(path.read_text())
    told = change(trace["traceEvents"])
    path.write_text(json.dumps(trace))
    return told


def longest_pause(events: list[Event]) -> tuple[Event, float, float]:
    """Return the thread of the launches, and begin and length, us, of the longest pause between two of one step."""
    launches = sorted((one for one in events if "LaunchKernel" in one.get("name", "")), key=lambda one: one["ts"])
    steps = [one for one in events if one.get("name", "").startswith("ProfilerStep")]
    pauses = [
        (after["ts"] - before["ts"] - before["dur"], before)
        for before, after in pairwise(launches)
        if any(step["ts"] <= before["ts"] and after["ts"] < step["ts"] + step["dur"] for step in steps)
    ]
    pause, before = max(pauses, key=lambda one: one[0])
    return {"ph": "X", "pid": before["pid"], "tid": before["tid"]}, before["ts"] + before["dur"], pause


@pytest.mark.parametrize(("name", "kind"), [("save_checkpoint iteration 0", "checkpoint"), ("evaluate", "validation")])
def test_a_checkpoint_explains_late_launches(tmp_path: Path, name: str, kind: str):
    job = Job(ranks=4, steps=8, kernels=60, seed=3)
    faults = [Fault.parse("cpu_stall:rank=2,step=4,kernel=17,ms=3")]
    write_traces(simulate(job, faults), tmp_path / "traces")

    def add_range(events: list[Event]) -> float:
        place, start, pause = longest_pause(events)
        place |= {"cat": "user_annotation", "name": name}
        events.append({**place, "ts": start + 1, "dur": pause - 2})
        events.append({**place, "ts": start + 10, "dur": 20})  # nested: its time counts once
        return pause

    pause = edit(_trace(tmp_path / "traces", 2), add_range)
    assert pause > 2500
    lake = ingest_traces(tmp_path)
    rows = lake.sql(f"SELECT rank, step, {kind}_ns FROM rank_steps WHERE {kind}_ns IS NOT NULL", arrow=True).to_pylist()
    assert [(row["rank"], row["step"]) for row in rows] == [(2, 4)]
    assert rows[0][f"{kind}_ns"] == pytest.approx((pause - 2) * 1000, abs=1000)
    diagnosis = lake.diagnose()
    (culprit,) = diagnosis.culprits
    assert (culprit.ranks, culprit.cause) == ((2,), "cpu_launch")
    assert any(f"a {kind} takes" in line and "in one step" in line for line in culprit.evidence)
    assert f"is held up by a {kind}: let it run beside the steps" in diagnosis.verdict
    assert any(note.startswith(f"A {kind} lies in step 4 (rank 2") for note in diagnosis.notes)


def test_a_job_without_checkpoints_says_nothing_of_them(tmp_path: Path):
    lake = ingest_run(simulate(Job(ranks=2, steps=4, kernels=40, seed=3), []), tmp_path, "kineto")
    assert not any("checkpoint" in note or "validation" in note for note in lake.diagnose().notes)
    counts = lake.sql(
        "SELECT count(checkpoint_ns) AS saved, count(validation_ns) AS checked FROM rank_steps", arrow=True
    ).to_pylist()
    assert counts == [{"saved": 0, "checked": 0}]


def add_operators(events: list[Event]) -> None:
    """Put an operator around each launch, numbered in its step, and a module around all launches of a step."""
    steps = sorted((one for one in events if one.get("name", "").startswith("ProfilerStep")), key=lambda one: one["ts"])
    launches = sorted((one for one in events if "LaunchKernel" in one.get("name", "")), key=lambda one: one["ts"])
    for step in steps:
        own = [one for one in launches if step["ts"] <= one["ts"] < step["ts"] + step["dur"]]
        place = {"ph": "X", "pid": own[0]["pid"], "tid": own[0]["tid"]}
        first, last = own[0]["ts"], own[-1]["ts"] + own[-1]["dur"]
        module = {"cat": "python_function", "name": "nn.Module: MLP_3", "ts": first - 0.2, "dur": last - first + 0.4}
        # in PyTorch's order of the fields
        events.append({"ph": "X", **{name: module[name] for name in ("cat", "name")}, **place, **module})
        for number, one in enumerate(own):
            name = f"my::operator_{number}"
            events.append({**place, "cat": "cpu_op", "name": name, "ts": one["ts"] - 0.1, "dur": one["dur"] + 0.2})


def add_allocation(events: list[Event]) -> None:
    """Fill the longest pause between launches with an operator that allocates."""
    place, start, pause = longest_pause(events)
    events.append({**place, "cat": "cpu_op", "name": "aten::empty", "ts": start + 5, "dur": pause - 10})
    call = {"cat": "cuda_runtime", "name": "cudaMalloc", "ts": start + 10, "dur": pause - 20}
    events.append({**place, **call, "args": {"correlation": 999_999}})


@pytest.mark.parametrize("allocates", [True, False])
def test_a_late_launch(tmp_path: Path, allocates: bool):
    job = Job(ranks=4, steps=8, kernels=60, seed=3)
    write_traces(simulate(job, [Fault.parse("cpu_stall:rank=2,step=4,kernel=17,ms=3")]), tmp_path / "traces")
    for path in (tmp_path / "traces").iterdir():
        edit(path, add_operators)
        if allocates and "2" in path.name.partition("rank")[2][:2]:
            edit(path, add_allocation)
    lake = ingest_traces(tmp_path)
    (culprit,) = lake.diagnose().culprits
    assert (culprit.ranks, culprit.cause) == ((2,), "cpu_launch")
    assert culprit.kernel_index is not None
    first = culprit.kernel_index.first
    (code,) = [text for text in culprit.evidence if "launched by" in text]
    assert code.startswith(f"kernel {first} is launched by `my::operator_")
    assert code.endswith("` in `forward/MLP_3`, forward")
    told = [text for text in culprit.evidence if "the host was" in text]
    assert bool(told) == allocates
    if allocates:
        assert f"before the launch of kernel {first} the host was in `cudaMalloc` (called by `aten::empty`)" in told[0]
        kinds = lake.sql("select distinct name from host where kind = 'operation'", arrow=True)["name"].to_pylist()
        assert {"aten::empty", "cudaMalloc"} <= set(kinds)


@pytest.mark.parametrize("recorded", [(2,), (0, 1, 2, 3)])
def test_a_host_that_alone_records_python_stacks_may_be_late_because_of_them(tmp_path: Path, recorded: tuple[int, ...]):
    """Their calls are in the first step alone, where no launch is later than in any other step."""
    job = Job(ranks=4, steps=8, kernels=60, seed=3)
    write_traces(simulate(job, [Fault.parse("slow_cpu:rank=2,factor=6")]), tmp_path / "traces")

    def add_lines(events: list[Event]) -> None:
        launches = sorted((one for one in events if "LaunchKernel" in one.get("name", "")), key=lambda one: one["ts"])
        for number, one in enumerate(launches[:20]):
            of_host = {"ph": "X", "cat": "python_function", "name": f"train.py({number}): step"}
            events.append(
                {**of_host, "pid": one["pid"], "tid": one["tid"], "ts": one["ts"] - 0.1, "dur": one["dur"] + 0.2}
            )

    for rank in recorded:
        edit(_trace(tmp_path / "traces", rank), add_lines)
    (culprit,) = ingest_traces(tmp_path).diagnose().culprits
    assert (culprit.ranks, culprit.cause) == ((2,), "cpu_launch")
    assert ("record all ranks alike" in culprit.advice) == (recorded == (2,))
    assert any("Python stacks" in text for text in culprit.evidence) == (recorded == (2,))


def test_only_annotations_are_recorded(tmp_path: Path):
    job = Job(ranks=4, steps=8, kernels=60, seed=3)
    ingest_run(simulate(job, [Fault.parse("cpu_stall:rank=2,step=4,kernel=17,ms=3")]), tmp_path, "nsys")
    (culprit,) = jitter.open(tmp_path / "lake").diagnose().culprits
    assert [text for text in culprit.evidence if "launched" in text and "`" in text] == [
        "kernel 17 is launched in `forward`"
    ]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (("aten::add_", "model/mlp", "backward", None), "launched by `aten::add_` in `model/mlp`, backward"),
        ((None, "model/mlp", None, None), "launched in `model/mlp`"),
        (("aten::add_", "step/forward", "forward", None), "launched by `aten::add_` in `step/forward`"),
        (("aten::add_", None, "forward", None), "launched by `aten::add_`, forward"),
        ((None, None, "forward", "train.py(12): step"), "launched at `train.py(12): step`, forward"),
        ((None, None, "communication", None), None),
    ],
)
def test_words(code: tuple[str | None, str | None, str | None, str | None], words: str | None):
    assert describe_code(CodeLocation(17, *code)) == words


@pytest.mark.parametrize("allocates", [True, False])
def test_pauses_of_all_ranks(tmp_path: Path, allocates: bool):
    """A finding about the whole job names its longest pauses, and the host operations that cover them."""
    job = Job(ranks=8, steps=12, kernels=60, seed=5, gpus_per_node=2, marker="profiler", epoch=None)
    write_traces(simulate(job, [Fault.parse("pause:every=5,ms=3")]), tmp_path / "traces")
    for path in (tmp_path / "traces").iterdir() if allocates else ():
        edit(path, add_allocation)
    (culprit,) = ingest_traces(tmp_path).diagnose().culprits
    assert (culprit.scope, culprit.cause) == ("job", "cpu_launch")
    assert len(culprit.pauses) == 3
    assert len({(pause.key, pause.rank) for pause in culprit.pauses}) == 3
    assert all(pause.excess_ns == pytest.approx(3e6, rel=0.1) for pause in culprit.pauses)
    (told,) = [text for text in culprit.evidence if text.startswith("the longest pauses that the job waited for: ")]
    first = culprit.pauses[0]
    assert f"before kernel {first.kernel_index} on rank {first.rank} in {first.key}" in told
    # each rank's longest pause is covered
    assert ("(in `cudaMalloc` (called by `aten::empty`)" in told) == allocates


def test_of_ranks_that_pause_alike_none_pauses_longest(tmp_path: Path):
    job = Job(ranks=8, steps=12, kernels=60, seed=5)
    run = simulate(job, [Fault.parse("late_start:ranks=0-7,steps=4+9,ms=5")])
    (culprit,) = [one for one in ingest_run(run, tmp_path).diagnose().culprits if one.rung == "steps"]
    assert (culprit.scope, culprit.cause, [key.step for key in culprit.steps]) == ("job", "late_start", [4, 9])
    assert not [line for line in culprit.evidence if "longest pauses" in line]


def test_a_rank_that_recorded_the_begin_of_the_worst_step_alone(tmp_path):
    write_traces(simulate(small()), tmp_path / "traces", "nsys")
    (trace,) = (tmp_path / "traces").glob("rank1.*")
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    ends = sorted(event.end_ns for event in list_events([trace]) if event.table == table)
    remove_events([trace], lambda event: event.table == table and event.end_ns > ends[int(0.85 * len(ends))])
    lake = ingest_traces(tmp_path)
    analysis, records = lake.analyze(), records_by_step(lake.sources)
    no_shares = Losses(np.empty((6, 0), np.int64), np.empty((2, 0)))
    found = {
        (rank, number): find_profile_location(analysis, rank, no_shares, [number])
        for rank in (0, 1)
        for number in range(len(analysis.keys))
    }
    held = [number for number, key in enumerate(analysis.keys) if 1 in records[key]]
    cut = [number for number in held if records[analysis.keys[number]][1].step.cut]
    assert cut
    assert all(found[1, number] is None for number in cut)
    assert all(found[1, number] is not None for number in held if number not in cut)
    assert all(found[0, number] is not None for number in range(len(analysis.keys)))
