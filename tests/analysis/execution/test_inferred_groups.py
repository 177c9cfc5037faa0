"""Collectives whose trace states no group are measured as where the same job's trace states it."""

import json
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

import jitter
from jitter.analysis.execution.inferred_groups import INFERRED_GROUP
from jitter.analysis.metrics.collective_calls import ASSUMED_GROUP
from jitter.cli import main
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small

MEASURED = [
    "collective",
    "group_size",
    "calls",
    "time_us",
    "wait_us",
    "last_rank",
    "last_share",
    "hidden_share",
    "lost_ms",
]


def _waits(lake: "jitter.Lake", folder: Path) -> Counter[str]:
    """Return for whom ranks wait in the timeline of a step, and how often."""
    timeline = folder / "timeline.json"
    assert main(["export", str(lake.root), "--perfetto", str(timeline), "--step", "2", "--force"]) == 0
    events = json.loads(timeline.read_bytes())["traceEvents"]
    return Counter(event["name"] for event in events if event.get("cat") == "waiting")


@pytest.mark.parametrize(
    ("shape", "options", "groups"),
    [
        ("tensor_data", {"ranks": 8, "tensor": 4}, {2, 4, 8}),
        ("pipeline", {"ranks": 8, "stages": 4}, {2, 8}),
        ("sharded", {"ranks": 8}, {8}),
    ],
)
def test_a_trace_without_groups_measures_the_same(
    shape: str, options: dict[str, int], groups: set[int], tmp_path: Path
):
    job = small(shape, steps=3, kernels=120, **options)
    run = simulate(job, [Fault.parse("slow_gpu:rank=5,factor=1.1")])
    stated, unstated = (ingest_run(run, tmp_path / form, form) for form in ("kineto", "nsys"))
    of_stated, of_unstated = (lake.collectives() for lake in (stated, unstated))
    assert set(of_stated["group_size"]) == groups
    pd.testing.assert_frame_equal(
        *(frame[MEASURED].sort_values(MEASURED[:2], ignore_index=True) for frame in (of_stated, of_unstated)), rtol=0.01
    )
    assert _waits(stated, tmp_path) == _waits(unstated, tmp_path)
    reasons: Counter[str] = unstated.measure_collectives().reasons
    assert reasons[INFERRED_GROUP] == of_stated["calls"].sum()
    assert ASSUMED_GROUP not in reasons
    assert INFERRED_GROUP not in stated.measure_collectives().reasons
