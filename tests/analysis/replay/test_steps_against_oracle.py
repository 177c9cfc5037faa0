"""The min rank and the time of each step against the same numbers taken one by one."""

import numpy as np
import pytest

from tests.support.oracles.replay import OracleJob

pytestmark = pytest.mark.slow


def test_the_min_rank_waits_longest(job: OracleJob):
    answers = job.lake.diagnose().steps
    for number in range(job.run.job.steps):
        waited = dict.fromkeys(job.recorded, 0.0)
        for at, op in enumerate(job.recorded[0][number]):
            if op.kind != "collective":
                continue
            for rank in job.recorded:
                mine = [other for other in job.recorded if job.group(other, at) == job.group(rank, at)]
                last = max(job.recorded[other][number][at].start for other in mine)
                waited[rank] += last - job.recorded[rank][number][at].start
        assert answers[number].min_rank == max(waited, key=lambda rank: (waited[rank], -rank))


def test_step_times_are_the_simulators(job: OracleJob):
    assert [answer.step_time_ns for answer in job.lake.diagnose().steps] == list(job.run.step_times().values())
    assert np.isnan(job.examined.step_ns[0])
