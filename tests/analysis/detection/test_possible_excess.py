"""A rank without peers is late by no more than its steps take: what exceeds that is waiting, and no finding."""

import numpy as np

from jitter.analysis.detection.deviations import TeamDeviations
from jitter.analysis.detection.standouts import find_standouts
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart


def test_a_rank_is_not_late_by_more_than_its_steps_take():
    """A rank alone that waits on several streams for unrecorded ranks has an excess beyond its steps: no finding."""
    rng = np.random.default_rng(3)
    total = rng.normal(0, 1e5, (len(OWN_PARTS), 20, 1))
    total[TimePart.GPU, 4:8, 0] += 3e8
    still = np.full((len(OWN_PARTS), 20, 1), 1e5)
    deviations = TeamDeviations(0, np.array([0]), total, still, still * 100)
    late = find_standouts(deviations, TimePart.GPU, np.full(20, 3.5e7))
    assert late.outliers(np.full(20, 3.5e7)) == []
    (one,) = late.outliers(np.full(20, 3.5e8))
    assert one.steps == (4, 5, 6, 7)
