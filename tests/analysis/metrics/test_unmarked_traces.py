"""Traces without step markers: every rank has the steps that it had, under the same numbers, or is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

import jitter
from jitter.simulate import Job, simulate, write
from tests.support.databases import open_database
from tests.support.kernel_truth import kernel_truth
from tests.support.metric_assertions import assert_matches_truth

# twenty times slower GPUs: a step lasts much longer than wall clocks are wrong
JOB = Job(ranks=3, steps=4, kernels=40, marker="none", gpus_per_node=1, gpu_scale=20.0, clock_error_ns=400_000)
RANK_OF_FILE = r"rank(?P<rank>\d+)"


def ingested(folder: Path, tmp_path: Path) -> "jitter.ingest.IngestReport":
    return jitter.ingest([folder], tmp_path / "lake", rank_pattern=RANK_OF_FILE)


@pytest.mark.parametrize(
    ("job", "options"),
    [
        (replace(JOB, seed=1), {"shuffle": True}),
        (replace(JOB, seed=2), {"shuffle": True}),
        (replace(JOB, shape="sharded"), {}),  # steps begin with collectives
        (JOB, {"layout": "2020.3"}),  # no wall clock
    ],
)
def test_every_step_of_every_rank(tmp_path, job, options):
    run = simulate(job)
    write(run, tmp_path / "traces", "nsys", **options)
    assert ingested(tmp_path / "traces", tmp_path).refused == []
    lake = jitter.open(tmp_path / "lake")
    assert {source.steps_from for source in lake.sources} == {"repetition"}
    assert_matches_truth(lake, {(None, step, rank): kernels for (_, step, rank), kernels in kernel_truth(run).items()})
    for source in lake.sources:
        in_steps = sum(step.kernels for step in source.steps)
        assert in_steps + source.outside_steps + source.before_capture == source.kernels


def test_a_rank_that_was_recorded_later_has_the_same_numbers(tmp_path):
    run = simulate(JOB)
    write(run, tmp_path / "traces", "nsys")
    _begun_at(tmp_path / "traces" / "rank1.sqlite", run, 1, step=1)
    assert ingested(tmp_path / "traces", tmp_path).refused == []
    lake = jitter.open(tmp_path / "lake")
    assert {s.rank: [step.step for step in s.steps] for s in lake.sources} == {
        0: [0, 1, 2, 3],
        1: [1, 2, 3],
        2: [0, 1, 2, 3],
    }
    truth = kernel_truth(run)
    for step in (1, 2, 3):
        rows = lake.metrics(step).rows.to_pylist()
        for rank in range(3):
            found = [row["ttke_ns"] for row in rows if row["rank"] == rank]
            assert found == [kernel.ttke_ns for kernel in truth[1, step, rank]]


def test_without_wall_clock_and_with_other_collectives_a_rank_is_refused(tmp_path):
    run = simulate(JOB)
    write(run, tmp_path / "traces", "nsys", layout="2020.3")
    _begun_at(tmp_path / "traces" / "rank1.sqlite", run, 1, step=1)
    report = ingested(tmp_path / "traces", tmp_path)
    assert ["rank1.sqlite" in str(error) and "no wall clock" in str(error) for error in report.refused] == [True]
    lake = jitter.open(tmp_path / "lake")
    assert sorted(source.rank for source in lake.sources) == [0, 2]
    assert [len(source.steps) for source in lake.sources] == [4, 4]


def _begun_at(path: Path, run: object, rank: int, step: int) -> None:
    """Take away what one rank did before this step."""
    (recording,) = run.ranks([rank])
    from_ns = int(recording.launch_start_ns[recording.in_step & (recording.step == step)].min())
    with open_database(path) as connection:
        connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start < ?", (from_ns,))
        for kind in ("KERNEL", "MEMCPY", "MEMSET"):
            table = f"CUPTI_ACTIVITY_KIND_{kind}"
            launched = "SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME"
            connection.execute(f"DELETE FROM {table} WHERE correlationId NOT IN ({launched})")
