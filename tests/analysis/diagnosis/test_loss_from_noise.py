"""The loss that noise alone causes: order statistics against draws, and healthy jobs that wait for their launches."""

from pathlib import Path

import numpy as np
import pytest

from jitter.analysis.account.noise import expected_lower_median, expected_maximum
from jitter.simulate import Job, simulate
from tests.support.simulated import ingest_run


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 16])
def test_expected_order_statistics(count: int):
    draws = np.sort(np.random.default_rng(count).normal(size=(200_000, count)), axis=1)
    assert expected_lower_median(count) == pytest.approx(draws[:, (count - 1) // 2].mean(), abs=0.03)
    assert expected_maximum(count) == pytest.approx(draws[:, -1].mean(), abs=0.03)


@pytest.mark.parametrize(
    ("shape", "ranks", "seed"), [("data_parallel", 4, 2), ("tensor_parallel", 2, 1), ("expert", 2, 2)]
)
def test_noise_of_launches_on_few_ranks_is_no_finding(shape: str, ranks: int, seed: int, tmp_path: Path):
    """The lower median of few ranks lies below the mean, at every launch: most of this loss is no delay of anybody."""
    job = Job(ranks=ranks, steps=8, kernels=200, noise=0.03, seed=seed, shape=shape, cpu_bound=True)
    assert ingest_run(simulate(job), tmp_path, "nsys").diagnose().culprits == ()
