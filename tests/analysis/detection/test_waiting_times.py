"""How long each rank waited for others in a step: its time in each collective beyond that of the last to come."""

from pathlib import Path

import pandas as pd
import pytest

import jitter
from jitter.simulate import Fault, simulate
from tests.support.simulated import activities, ingest_partial_run, small

JOBS = {
    "all with all": small(ranks=4),
    "in groups": small("tensor_data", ranks=8),
    "in stages": small("pipeline", ranks=8, stages=2),
}
ABSENT = {(0, 0), (1, 1), (3, 3)}
"""By (step, rank): of the first step not the first rank; of the last not the last of four."""


@pytest.fixture(scope="module", params=JOBS)
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    job = JOBS[request.param]
    faults = ["slow_gpu:rank=2,factor=1.4", "late_start:rank=0,step=2,ms=2"]
    run = simulate(job, [Fault.parse(fault) for fault in faults])
    folder: Path = tmp_path_factory.mktemp("waited")
    return ingest_partial_run(run, folder, sees=lambda rank, step: (step - job.first_step, rank) not in ABSENT)


def in_collectives(rows: pd.DataFrame) -> dict[tuple[object, int], int]:
    """By group, and how often it has met before in the step: how long a rank was in it."""
    found: dict[tuple[object, int], int] = {}
    for row in rows[rows["kind"] == "collective"].itertuples():
        group = tuple(row.group_ranks)
        met = sum(other == group for other, _ in found)
        found[group, met] = row.end_ns - row.start_ns
    return found


def test_from_each_ones_arrival_to_the_last_ones(lake: "jitter.Lake"):
    """The last rank is in it for the shortest time; an absent rank waits for nobody and nobody for it."""
    analysis, answers = lake.analyze(), lake.diagnose().steps
    seen = 0
    waited_ns = analysis.measured.statistics.arrivals.waited_ns
    for number, key in enumerate(analysis.keys):
        ranks = [rank for rank in lake.cohorts if (number, rank) not in ABSENT]
        took = {rank: in_collectives(activities(lake, rank, key)) for rank in ranks}
        waited = {
            rank: sum(own - min(its[met] for its in took.values() if met in its) for met, own in of_rank.items())
            for rank, of_rank in took.items()
        }
        expected = [waited.get(rank, 0) for rank in analysis.run.rank_numbers.tolist()]
        assert waited_ns[number].tolist() == pytest.approx(expected, abs=1e-3)
        assert min(waited.values()) >= 0
        assert answers[number].min_rank == max(waited, key=lambda rank: (waited[rank], -rank))
        seen += max(waited.values()) > 1e6
    assert seen == len(analysis.keys) == 4
