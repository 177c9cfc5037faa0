"""Findings name the operator, the modules and the phase of their kernel, and what the host did before a late launch."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import jitter
from jitter.analysis.diagnosis.evidence.code import describe_code
from jitter.analysis.diagnosis.model import CodeLocation
from jitter.simulate import Fault, Job, simulate, write

Event = dict[str, Any]


def edit(path: Path, change: Any) -> None:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        trace = json.load(file)
    change(trace["traceEvents"])
    with opened(path, "wt") as file:
        json.dump(trace, file)


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
    launches = sorted((one for one in events if "LaunchKernel" in one.get("name", "")), key=lambda one: one["ts"])
    steps = [one for one in events if one.get("name", "").startswith("ProfilerStep")]
    pauses = [
        (after["ts"] - before["ts"] - before["dur"], before)
        for before, after in pairwise(launches)
        if any(step["ts"] <= before["ts"] and after["ts"] < step["ts"] + step["dur"] for step in steps)
    ]
    pause, before = max(pauses, key=lambda one: one[0])
    place = {"ph": "X", "pid": before["pid"], "tid": before["tid"]}
    start = before["ts"] + before["dur"]
    events.append({**place, "cat": "cpu_op", "name": "aten::empty", "ts": start + 5, "dur": pause - 10})
    call = {"cat": "cuda_runtime", "name": "cudaMalloc", "ts": start + 10, "dur": pause - 20}
    events.append({**place, **call, "args": {"correlation": 999_999}})


@pytest.mark.parametrize("allocates", [True, False])
def test_a_late_launch(tmp_path: Path, allocates: bool):
    job = Job(ranks=4, steps=8, kernels=60, seed=3)
    write(simulate(job, [Fault.parse("cpu_stall:rank=2,step=4,kernel=17,ms=3")]), tmp_path / "traces", "kineto")
    for path in (tmp_path / "traces").iterdir():
        edit(path, add_operators)
        if allocates and "2" in path.name.partition("rank")[2][:2]:
            edit(path, add_allocation)
    jitter.ingest(tmp_path / "traces", tmp_path / "lake", executor=jitter.LocalExecutor())
    lake = jitter.open(tmp_path / "lake")
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


def test_only_annotations_are_recorded(tmp_path: Path):
    job = Job(ranks=4, steps=8, kernels=60, seed=3)
    write(simulate(job, [Fault.parse("cpu_stall:rank=2,step=4,kernel=17,ms=3")]), tmp_path / "traces", "nsys")
    jitter.ingest(tmp_path / "traces", tmp_path / "lake", executor=jitter.LocalExecutor())
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
    write(simulate(job, [Fault.parse("pause:every=5,ms=3")]), tmp_path / "traces", "kineto")
    for path in (tmp_path / "traces").iterdir() if allocates else ():
        edit(path, add_allocation)
    jitter.ingest(tmp_path / "traces", tmp_path / "lake", executor=jitter.LocalExecutor())
    (culprit,) = jitter.open(tmp_path / "lake").diagnose().culprits
    assert (culprit.scope, culprit.cause) == ("job", "cpu_launch")
    assert len(culprit.pauses) == 3
    assert len({(pause.key, pause.rank) for pause in culprit.pauses}) == 3
    assert all(pause.excess_ns == pytest.approx(3e6, rel=0.1) for pause in culprit.pauses)
    (told,) = [text for text in culprit.evidence if text.startswith("the longest pauses that the job waited for: ")]
    first = culprit.pauses[0]
    assert f"before kernel {first.kernel_index} on rank {first.rank} in {first.key}" in told
    # each rank's longest pause is covered
    assert ("(in `cudaMalloc` (called by `aten::empty`)" in told) == allocates
