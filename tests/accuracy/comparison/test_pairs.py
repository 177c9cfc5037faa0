"""A fixed few of the pairs: what `python -m tests.accuracy.comparison` promises of all holds of these."""

import pytest

from tests.accuracy.comparison.pairs import CHANGED, HEALTHY, score_all
from tests.accuracy.comparison.summary import describe, targets
from tests.support.fuzz_depth import fuzz, of_all, some_of

pytestmark = [pytest.mark.slow, fuzz]


def test_a_few_pairs():
    """Three without a change, and each kind of change once; small ones of each shape."""
    seeds = [*((HEALTHY + number, False) for number in (41, 110, 286))]
    seeds += [(CHANGED + number, True) for number in (16, 23, 51, 79, 116, 210, 276)]
    scores = list(score_all(some_of(seeds, 2), processes=1))
    assert len({one.shape for one in scores}) == of_all(6, 3)
    assert len({one.kind for one in scores}) == of_all(8, 4)
    assert all(target.met for target in targets(scores)), "\n".join(["", *describe(scores)])
