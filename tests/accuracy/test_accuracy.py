"""A fixed tenth of the harness: what `make accuracy` promises of all jobs holds of these."""

from tests.accuracy.cases import JOBS, REPORTED, tenth
from tests.accuracy.scoring import score_all
from tests.accuracy.table import misses, table, targets


def test_a_tenth_of_the_jobs():
    scores = list(score_all(tenth(REPORTED), processes=2))
    assert len(scores) == JOBS // 10
    missed = [target for target in targets(scores) if not target.met]
    assert not missed, "\n".join(["", *misses(scores), "", *table(scores)])
