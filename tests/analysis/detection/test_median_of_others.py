"""Each rank against the median of the others, beside the slow way."""

import numpy as np
import pytest

from jitter.analysis.detection.deviations import subtract_median_of_others


def oracle(total: np.ndarray) -> np.ndarray:
    found = np.full_like(total, np.nan)
    for part, step, rank in np.ndindex(*total.shape):
        others = sorted(v for at, v in enumerate(total[part, step]) if at != rank and not np.isnan(v))
        if others:
            found[part, step, rank] = total[part, step, rank] - others[(len(others) - 1) // 2]
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
@pytest.mark.parametrize("seed", range(5))
def test_the_other_ranks_median(ranks: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    total = random.integers(-5, 5, (3, 6, ranks)).astype(float)  # few values: ties are common
    total[random.random(total.shape) < 0.3] = np.nan
    np.testing.assert_array_equal(subtract_median_of_others(total), oracle(total))


def test_a_rank_without_others_is_its_own_total() -> None:
    total = np.array([[[3.0], [np.nan]]])
    np.testing.assert_array_equal(subtract_median_of_others(total), total)
