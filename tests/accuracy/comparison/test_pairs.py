"""A fixed few of the pairs: what `python -m tests.accuracy.comparison` promises of all holds of these."""

import pytest

from tests.accuracy.comparison.pairs import CHANGED, HEALTHY, score_all
from tests.accuracy.comparison.summary import describe, targets

pytestmark = pytest.mark.slow


def test_a_few_pairs():
    """Each shape once without a change, and each kind of change once."""
    seeds = [*((HEALTHY + n, False) for n in range(6)), *((CHANGED + 6 * n + n % 6, True) for n in range(7))]
    scores = list(score_all(seeds, processes=2))
    assert len({one.shape for one in scores}) == 6
    assert len({one.kind for one in scores}) == 8
    assert all(target.is_met for target in targets(scores)), "\n".join(["", *describe(scores)])
