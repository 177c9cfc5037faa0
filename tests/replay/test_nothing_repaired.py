"""Replayed with its own own times, every run is what was recorded, to the nanosecond."""

from pathlib import Path

import numpy as np
import pytest
from examined_jobs import lake_of_run, on_disk, small

from jitter.replay import Repairs, Replay
from jitter.simulate import Fault, Job, simulate
from jitter.simulate.shapes import SHAPES

OPTIONS = {
    "plain": {},
    "held": {"launch_queue": 24, "syncs": frozenset({"loss", "before", "after"}), "autotuned": 0.4},
    "beside": {"side_stream": 21, "second_thread": False, "cpu_bound": True, "variable_work": 0.03},
}
MISSING = {"pipeline": "5"}
"""No collective."""


def check(lake, job: Job) -> None:
    """Every activity of every rank's step is there once, and ends when its file says."""
    examined = lake.examination()
    run = examined.run
    replay = Replay(run.programs, run.rules, run.meetings, run.schedule, 1)
    assert not run.schedule.uncoupled
    seen = set()
    for number, work in examined.works():
        nothing = [_none(len(block.ranks)) for block in run.meetings.blocks]
        transfers = {meeting: took[None] for meeting, took in work.transfers.items()}
        ends = replay.step(work.blocks, nothing, transfers, np.zeros(1))
        for block, columns, block_ends in zip(run.meetings.blocks, work.columns, ends, strict=True):
            for column, (rank, of_team) in enumerate(zip(block.ranks, columns.tolist(), strict=True)):
                if of_team < 0:
                    continue
                key = examined.keys[number]
                row = run.rows(key, block.team)[:, of_team]
                told = on_disk(lake, rank, key.step).rows
                assert sorted(row[row >= 0]) == told["ordinal"].tolist()
                replayed = block_ends[row >= 0, 0, column] + examined.lake.origin_ns[rank]
                assert np.flatnonzero(replayed != told["end_ns"].to_numpy()[row[row >= 0]]).tolist() == [], (rank, key)
                seen.add((rank, number))
    assert len(seen) == sum(len(lake.steps_of(rank)) for rank in lake.ranks)


def _none(ranks: int) -> Repairs:
    return Repairs(*(np.zeros((1, ranks), np.bool_) for _ in range(3)))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_of_every_shape(tmp_path: Path, shape: str, option: str):
    job = small(shape, **OPTIONS[option])
    run = simulate(job, [Fault.parse("slow_cpu:rank=1,step=2,factor=3"), Fault.parse("slow_gpu:rank=2,factor=1.3")])
    check(lake_of_run(run, tmp_path), job)


@pytest.mark.parametrize(
    ("shape", "form"), [("data_parallel", "rocpd"), ("tensor_parallel", "nsys"), ("sharded", "nsys")]
)
def test_without_recorded_groups(tmp_path: Path, shape: str, form: str):
    job = small(shape, syncs=frozenset({"loss"}))
    check(lake_of_run(simulate(job, [Fault.parse("slow_cpu:rank=1,factor=2")]), tmp_path, form), job)


@pytest.mark.parametrize("shape", SHAPES)
def test_of_runs_recorded_in_part(tmp_path: Path, shape: str):
    """Rank 5 is missing; rank 2 has no first step, rank 3 no last, rank 6 lacks one in between."""
    job = small(shape, ranks=8, syncs=frozenset({"loss"}))
    lost = {(2, 0), (3, 3), (6, 1)}
    lake = lake_of_run(
        simulate(
            job,
            [
                Fault.parse("extra_kernel:rank=1,kernel=9"),
                Fault.parse("missing_kernel:rank=4,kernel=" + MISSING.get(shape, "3")),
            ],
        ),
        tmp_path,
        absent=frozenset({5}),
        sees=lambda rank, step: (rank, step) not in lost,
    )
    check(lake, job)
