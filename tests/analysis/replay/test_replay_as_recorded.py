"""Replayed with its own own times, every run is what was recorded, to the nanosecond."""

from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jitter
from jitter.analysis.execution.schedule import CALLS
from jitter.simulate import Fault, simulate
from jitter.simulate.shapes import SHAPES
from tests.accuracy.layouts.job import LayoutJob, Naming
from tests.accuracy.layouts.traces import ingest_job, true_cost_ns
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.loops import WAYS, run_loops
from tests.support.replay_assertions import assert_replay_matches_recording
from tests.support.simulated import accept_changed_files, ingest_partial_run, ingest_run, rewrite_kernels, small

pytestmark = pytest.mark.slow

OPTIONS = {
    "plain": {},
    "held": {"launch_queue": 24, "syncs": frozenset({"loss", "before", "after"}), "autotuned": 0.4},
    "beside": {"side_stream": 21, "second_thread": False, "cpu_bound": True, "variable_work": 0.03},
}
MISSING = {"pipeline": "5"}
"""No collective."""


@fuzz
@pytest.mark.parametrize(("shape", "option"), some_of(product(SHAPES, OPTIONS), 4))
def test_of_every_shape(tmp_path: Path, shape: str, option: str):
    job = small(shape, **OPTIONS[option])
    run = simulate(job, [Fault.parse("slow_cpu:rank=1,step=2,factor=3"), Fault.parse("slow_gpu:rank=2,factor=1.3")])
    ingest_run(run, tmp_path)
    for way in WAYS:
        with run_loops(way):
            assert_replay_matches_recording(jitter.open(tmp_path / "lake"))


@pytest.mark.parametrize(
    ("shape", "form"), [("data_parallel", "rocpd"), ("tensor_parallel", "nsys"), ("sharded", "nsys")]
)
def test_without_recorded_groups(tmp_path: Path, shape: str, form: str):
    job = small(shape, syncs=frozenset({"loss"}))
    assert_replay_matches_recording(
        ingest_run(simulate(job, [Fault.parse("slow_cpu:rank=1,factor=2")]), tmp_path, form)
    )


@fuzz
@pytest.mark.parametrize("shape", some_of(SHAPES, 2, first=1))
def test_of_runs_recorded_in_part(tmp_path: Path, shape: str):
    """Rank 5 is missing; rank 2 has no first step, rank 3 no last, rank 6 lacks one in between."""
    job = small(shape, ranks=8, syncs=frozenset({"loss"}))
    lost = {(2, 0), (3, 3), (6, 1)}
    lake = ingest_partial_run(
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
    assert_replay_matches_recording(lake)


def test_of_ranks_that_wait_less_often(tmp_path: Path):
    """Rank 1 makes no call that waits in step 2, rank 3 only every other one anywhere."""
    lake = ingest_run(simulate(small("sharded", syncs=frozenset({"loss", "before", "after"}))), tmp_path)
    for path in (lake.root / "host").rglob("*.parquet"):
        rows = pq.read_table(path, partitioning=None)
        rank = int(path.parent.name.removeprefix("rank="))
        kinds, steps = rows["kind"].to_pylist(), rows["step"].to_pylist()
        calls = [at for at, kind in enumerate(kinds) if kind == "sync"]
        gone = {1: {at for at in calls if steps[at] == 2}, 3: set(calls[::2])}.get(rank, set())
        pq.write_table(rows.filter(pa.array([at not in gone for at in range(len(kinds))])), path)
        assert not gone or len(gone) < len(calls)
    assert_replay_matches_recording(accept_changed_files(lake))


@pytest.mark.parametrize("shape", ["tensor_parallel", "sharded"])
def test_of_a_full_launch_queue_where_ranks_do_not_run_the_same_kernels(tmp_path: Path, shape: str):
    faults = ["extra_kernel:rank=1,kernel=9", "missing_kernel:rank=2,kernel=17", "slow_gpu:rank=3,factor=1.3"]
    run = simulate(small(shape, launch_queue=12), [Fault.parse(fault) for fault in faults])
    lake = ingest_run(run, tmp_path)
    assert [rules.queue for rules in lake.analyze().run.dependencies.values()] == [12]
    assert_replay_matches_recording(lake)


@pytest.mark.parametrize(("slow", "naming"), [(1, "ranks"), (6, "ranks"), (6, "nothing")])
def test_of_ranks_that_come_to_their_messages_in_different_orders(tmp_path: Path, slow: int, naming: Naming):
    """The second stage posts two receives once a third message is there, which the first stage sends after theirs."""
    job = LayoutJob(5, shape="crossed", row=2, microbatches=4, naming=naming, slow=(slow, 1.3))
    lake = ingest_job(job, tmp_path)
    order = lake.analyze().run.schedule
    assert order.uncoupled == frozenset()
    assert any(part == CALLS for *_, part in order.instructions)
    assert_replay_matches_recording(lake)
    (found,) = lake.diagnose().culprits
    assert (found.rank, found.cause) == (slow, "gpu_compute")
    assert found.gain_ns == pytest.approx(true_cost_ns(job, job.healthy()), rel=0.05)


def test_of_groups_that_cannot_be_right(tmp_path: Path):
    """Two ranks meet in two groups, each in the other order."""
    orders = {0: ["one", "two"], 1: ["two", "one"]}

    def cross(rows: pa.Table) -> dict[str, list[str | None]]:
        names = rows["group_name"].to_pylist()
        crossing = [at for at, kind in enumerate(rows["kind"].to_pylist()) if kind == "collective"][:2]
        for at, name in zip(crossing, orders[rows["rank"][0].as_py()], strict=True):
            names[at] = name
        return {"group_name": names, "group_ranks": [None] * len(names)}  # who takes part would tell more than a name

    lake = rewrite_kernels(ingest_run(simulate(small("tensor_parallel", ranks=2)), tmp_path), cross)
    examined = lake.analyze()
    assert len(examined.run.schedule.uncoupled) == 1
    assert len(examined.run.matching.members) > 2
    assert_replay_matches_recording(lake)
    # nothing is charged to it: each rank ends it by itself
    (uncoupled,) = examined.run.schedule.uncoupled
    group = int(examined.run.collective_arrays.first_group[uncoupled])
    assert all((account.losses.group != group).all() for account in examined.account.of_steps)
    assert all(len(account.losses) for account in examined.account.of_steps)
    # as no rank is known to wait there, none is cleared
    conclusion = lake.diagnose().conclusion
    assert conclusion.cleared == ()
    assert any("contradict their order" in doubt for doubt in conclusion.doubts)
