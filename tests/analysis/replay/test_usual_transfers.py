"""What transfers usually take: over steps, and over the groups that should take as long."""

import numpy as np
import pytest

from jitter.analysis.replay.what_if import baseline_transfers


@pytest.mark.parametrize(
    ("seen", "usual"),
    [
        ([[2.0, 1.0], [2.2, 1.2]], 1.2),
        ([[2.0, 1.0], [2.2, 1.2], [2.1, np.nan]], 1.2),  # the fast group lacks a step
        ([[np.nan, 1.0]], 1.0),
        ([[np.nan, np.nan]], np.nan),
        ([[3.0, 1.0, 2.0], [3.0, np.nan, 2.0], [np.nan, 1.0, np.nan]], 2.0),
    ],
)
def test_each_group_counts_the_same(seen: list[list[float]], usual: float):
    medians = baseline_transfers(np.zeros(len(seen[0]), np.int64), [np.array(step) for step in seen])
    np.testing.assert_equal(medians, np.full(len(seen[0]), usual))
