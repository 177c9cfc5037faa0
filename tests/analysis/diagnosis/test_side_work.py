"""A checkpoint inside a step is said, and is the evidence of the delay that it explains."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest

import jitter
from jitter.simulate import Fault, Job, simulate, write


def _trace(folder: Path, rank: int) -> Path:
    (path,) = [path for path in folder.iterdir() if f"rank{rank}." in path.name or f"rank-{rank}." in path.name]
    return path


def _longest_pause(events: list[dict]) -> tuple[dict, float, float]:
    """Return the launch before the longest pause between two launches of one step, and the pause in microseconds."""
    steps = [one for one in events if one.get("name", "").startswith("ProfilerStep")]
    found = []
    for step in steps:
        inside = [
            one
            for one in events
            if "LaunchKernel" in one.get("name", "") and step["ts"] <= one["ts"] < step["ts"] + step["dur"]
        ]
        inside.sort(key=lambda one: one["ts"])
        found += [(b["ts"] - a["ts"] - a["dur"], a) for a, b in pairwise(inside)]
    pause, before = max(found, key=lambda one: one[0])
    return before, before["ts"] + before["dur"], pause


@pytest.mark.parametrize(("name", "kind"), [("save_checkpoint iteration 0", "checkpoint"), ("evaluate", "validation")])
def test_a_checkpoint_explains_late_launches(tmp_path: Path, name: str, kind: str):
    job = Job(ranks=4, steps=8, kernels=60, seed=3)
    faults = [Fault.parse("cpu_stall:rank=2,step=4,kernel=17,ms=3")]
    write(simulate(job, faults), tmp_path / "traces", "kineto")
    path = _trace(tmp_path / "traces", 2)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        trace = json.load(file)
    before, start, pause = _longest_pause(trace["traceEvents"])
    assert pause > 2500
    place = {"pid": before["pid"], "tid": before["tid"], "cat": "user_annotation", "ph": "X"}
    trace["traceEvents"] += [
        {**place, "name": name, "ts": start + 1, "dur": pause - 2},
        {**place, "name": name, "ts": start + 10, "dur": 20},  # nested: its time counts once
    ]
    with opened(path, "wt") as file:
        json.dump(trace, file)
    jitter.ingest(tmp_path / "traces", tmp_path / "lake", executor=jitter.LocalExecutor())
    lake = jitter.open(tmp_path / "lake")
    rows = lake.sql(f"SELECT rank, step, {kind}_ns FROM rank_steps WHERE {kind}_ns IS NOT NULL", arrow=True).to_pylist()
    assert [(row["rank"], row["step"]) for row in rows] == [(2, 4)]
    assert rows[0][f"{kind}_ns"] == pytest.approx((pause - 2) * 1000, abs=1000)
    diagnosis = lake.diagnose()
    (culprit,) = diagnosis.culprits
    assert (culprit.ranks, culprit.cause) == ((2,), "cpu_launch")
    assert any(f"a {kind} takes" in line and "in 1 of 1 step" in line for line in culprit.evidence)
    assert any(note.startswith(f"A {kind} lies in step 4 (rank 2") for note in diagnosis.notes)


def test_a_job_without_checkpoints_says_nothing_of_them(tmp_path: Path):
    write(simulate(Job(ranks=2, steps=4, kernels=40, seed=3), []), tmp_path / "traces", "kineto")
    jitter.ingest(tmp_path / "traces", tmp_path / "lake", executor=jitter.LocalExecutor())
    lake = jitter.open(tmp_path / "lake")
    assert not any("checkpoint" in note or "validation" in note for note in lake.diagnose().notes)
    counts = lake.sql(
        "SELECT count(checkpoint_ns) AS saved, count(validation_ns) AS checked FROM rank_steps", arrow=True
    ).to_pylist()
    assert counts == [{"saved": 0, "checked": 0}]
