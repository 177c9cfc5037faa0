"""A run analysed range by range, by workers that get what the whole run tells: the same as in one go."""

import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import jitter
from jitter.analysis.detection.passes import join_statistics, measure_steps
from jitter.analysis.replay.run_steps import RunSteps
from jitter.core.parallel import prefetch
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_partial_run, small

pytestmark = pytest.mark.slow

STEPS = 7
JOBS = {
    "data parallel": (small(steps=STEPS), frozenset()),
    "a launch queue": (small(steps=STEPS, launch_queue=8), frozenset()),
    "tensor and data parallel": (small("tensor_data", steps=STEPS, ranks=8), frozenset()),
    "stages of one rank": (small("pipeline", steps=STEPS), frozenset()),
    "ranks that come and go": (small(steps=STEPS, ranks=6), frozenset({(1, 2), (1, 3), (4, 0), (4, 6)})),
}


@pytest.fixture(scope="module", params=JOBS)
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    job, unseen = JOBS[request.param]
    run = simulate(job, [Fault.parse("cpu_stall:rank=2,step=3,kernel=9,ms=2")])
    first = job.first_step
    folder: Path = tmp_path_factory.mktemp("stretches")
    return ingest_partial_run(run, folder, sees=lambda rank, step: (rank, step - first) not in unseen)


@pytest.mark.parametrize("bounds", [(0, 1, 2, 3, 4, 5, 6, 7), (0, 3, 7), (0, 6, 7)])
def test_the_same(lake: "jitter.Lake", bounds: tuple[int, ...]):
    whole = lake.analyze()
    shared = pickle.loads(pickle.dumps(whole.steps.prepare()))
    seen = []
    for first, last in pairwise(bounds):
        other = RunSteps(jitter.open(lake.root).run_reader(lake.step_keys), shared)
        seen.append(measure_steps(other, first, last))
    np.testing.assert_equal(join_statistics(seen), measure_steps(whole.steps, 0, STEPS))


def test_large_steps_are_not_read_ahead(lake: "jitter.Lake", monkeypatch: pytest.MonkeyPatch):
    usual = jitter.open(lake.root).measure_collectives()
    monkeypatch.setattr(prefetch, "MOST_ROWS", 0)
    aheads: list[int] = []
    monkeypatch.setattr(prefetch, "map_ahead", lambda read, keys, ahead: aheads.append(ahead) or map(read, keys))
    found = jitter.open(lake.root).measure_collectives()
    assert aheads == [0]
    assert found.steps == lake.step_keys
    np.testing.assert_equal(vars(found), vars(usual))
