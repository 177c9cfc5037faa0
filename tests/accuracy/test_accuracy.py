"""A few small jobs of the harness: what `make accuracy` promises of all jobs holds of these."""

from tests.accuracy.cases import REPORTED, tenth
from tests.accuracy.scoring import score
from tests.accuracy.table import misses, table, targets

SMALL = [REPORTED + number for number in (22, 77, 99, 211, 222, 255, 266, 288, 322)]
"""Each shape, with at most 4,500 kernels in all; three are healthy, one has two faults."""


def test_a_few_small_jobs():
    assert set(SMALL) < set(tenth(REPORTED))
    scores = [score(seed) for seed in SMALL]
    assert len({one.shape for one in scores}) == 6
    missed = [target for target in targets(scores) if not target.met]
    assert not missed, "\n".join(["", *misses(scores), "", *table(scores)])
