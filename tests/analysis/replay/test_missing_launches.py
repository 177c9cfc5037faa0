"""Traces that hold no launches: who joins later is placed by the starts of its kernels alone."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jitter
from jitter.analysis.execution.self_times import GPU
from jitter.analysis.replay.what_if import Scenario, ScenarioReplay
from jitter.simulate import Fault, simulate
from tests.support.simulated import accept_changed_files, ingest_partial_run, small

STEPS = 6


def forget_launches(lake: "jitter.Lake") -> jitter.Lake:
    for path in (lake.root / "kernels").rglob("*.parquet"):
        rows = pq.read_table(path, partitioning=None)
        for name in ("launch_name", "launch_start_ns", "launch_end_ns", "launch_thread"):
            at = rows.schema.get_field_index(name)
            field = rows.schema.field(at)
            rows = rows.set_column(at, field, pa.nulls(rows.num_rows, field.type))
        pq.write_table(rows, path)
    return accept_changed_files(lake)


@pytest.mark.parametrize("shape", ["tensor_parallel", "sharded"])
def test_who_joins_later_joins_where_the_others_then_are(tmp_path: Path, shape: str):
    """Rank 3 was not recorded in step 2; with the fault repaired all stand earlier by then."""
    fault = Fault.parse("slow_gpu:rank=1,factor=1.6")
    run = simulate(small(shape, steps=STEPS, noise=0.0, cpu_noise=0.0), [fault])
    lake = ingest_partial_run(run, tmp_path, sees=lambda rank, step: (rank, step) != (3, 2))
    lake = forget_launches(lake)
    examined = lake.analyze()
    repaired = Scenario({(1, GPU): frozenset(range(STEPS))})
    replay = ScenarioReplay(examined.run, examined.ends, [repaired], examined.baseline_transfers)
    for step in examined.steps.steps():
        replay.step(step, examined.steps.baseline(step))
    gained = [float(step[0]) for step in replay.gained[1:]]
    true = np.diff(run.last_collective_ends()) - np.diff(run.without(fault).last_collective_ends())
    assert gained == pytest.approx(true.tolist(), abs=1e-3)
    assert min(gained) > 100_000
