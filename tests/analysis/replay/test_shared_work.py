"""The work of a rank without peers: what the stages of a pipeline tell of their micro-batches."""

import numpy as np
import pytest

from jitter.analysis.replay.shared_work import work_of_operations
from jitter.core.numeric.arrays import Floats

MICRO_BATCHES = 3
FORWARD, BACKWARD = range(2)
SIZES = np.array([[1.0, 1.6, 0.5], [0.8, 1.0, 1.4], [1.7, 0.6, 1.0], [1.0, 0.7, 0.9], [1.3, 1.2, 1.1]])
"""(steps, micro-batches)."""
PARTS = np.array([0, 0, 1, 1, 2, 2])
SLOW = np.where(np.arange(5) == 3, 1.5, 1.0)[:, None]
"""(steps, 1) where a stage is slow in one step."""


def stages(count: int, slow: int | None = None, mixed: bool = False) -> Floats:
    """Return, (steps, operations), what stages take forward and backward; `mixed`: in other order in the first."""
    own = np.repeat(SIZES, 2, axis=1) * np.tile([100.0, 200.0], MICRO_BATCHES)
    times = [own[:, [0, 2, 1, 4, 3, 5]] if mixed and not stage else own for stage in range(count)]
    return np.hstack([of * SLOW if stage == slow else of for stage, of in enumerate(times)])


@pytest.mark.parametrize(("count", "slow", "mixed"), [(2, None, False), (3, 1, False), (3, 0, True), (2, None, True)])
def test_each_micro_batch_has_a_size(count: int, slow: int | None, mixed: bool):
    """Also where a stage runs backward and forward passes of two micro-batches between two messages."""
    first = np.arange(count + 1) * 2 * MICRO_BATCHES
    names = np.tile([FORWARD, BACKWARD], count * MICRO_BATCHES)
    if mixed:
        names[:6] = [FORWARD, FORWARD, BACKWARD, FORWARD, BACKWARD, BACKWARD]
    part = np.concatenate([PARTS + 3 * stage for stage in range(count)])
    usual = stages(1, mixed=mixed)
    work = work_of_operations(first, part, names, 0, stages(count, slow, mixed))
    np.testing.assert_allclose(work, usual / np.median(usual, axis=0))


def test_few_steps_tell_no_micro_batches_apart():
    work = work_of_operations(np.array([0, 6, 12, 12]), np.tile(PARTS, 2), np.zeros(12, np.int64), 0, stages(2)[:2])
    assert len(np.unique(work[0])) == 1
    assert work_of_operations(np.array([0, 6]), PARTS, PARTS, 0, stages(1)).tolist() == np.ones((5, 6)).tolist()
