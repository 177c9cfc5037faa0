"""The work of a rank without peers, and of transfers: what the stages of a pipeline tell of their micro-batches."""

import numpy as np
import pytest

from jitter.analysis.replay.shared_work import (
    at_usual_pace,
    compute_between,
    find_most_alike,
    parts_of_teams,
    work_by_sizes,
    work_of_operations,
    work_of_transfers,
)
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
    size, gpu_ns = at_usual_pace(first, stages(count, slow, mixed))
    work = work_of_operations(0, gpu_ns[:, :6], names[:6], size, parts_of_teams(first, part, names, gpu_ns))
    np.testing.assert_allclose(work, usual / np.median(usual, axis=0))


@pytest.mark.parametrize("late", [(0, 2, 3, 7), (0, 2, 3, 5, 7), (1, 2, 3, 4, 5, 6, 8)])
@pytest.mark.parametrize(("count", "slow"), [(2, 1), (3, 1), (3, 2), (4, 2)])
def test_stages_that_are_slow_in_many_steps_have_no_larger_batches(count: int, slow: int, late: tuple[int, ...]):
    """Also most of them, as none speeds up. A stage without kernels says nothing."""
    generator = np.random.default_rng(1)
    sizes, pace = generator.uniform(1, 1.04, 9), np.ones((9, count))
    pace[np.ix_(late, range(slow))] = 1.3
    times = sizes[:, None] * np.repeat(pace, 4, axis=1) * generator.normal(100, 0.1, (9, 4 * count))
    size, gpu_ns = at_usual_pace(np.append(np.arange(count + 1) * 4, 4 * count), times)
    np.testing.assert_allclose(size / size[1], sizes / sizes[1], rtol=0.05)
    np.testing.assert_allclose(gpu_ns / gpu_ns[1], np.broadcast_to((size / size[1])[:, None], gpu_ns.shape), rtol=0.01)


def test_the_smaller_batches_of_two_stages_are_no_pace_of_theirs():
    """The usual batch counted as a third stage. It still does where the two do not vary alike."""
    generator = np.random.default_rng(1)
    sizes, pace, noise = generator.uniform(0.8, 1.2, 12), np.ones((12, 2)), generator.normal(1, 0.003, (12, 2))
    pace[[1, 4, 5, 9, 10], 1] = 1.4
    size, _ = at_usual_pace(np.arange(3), 100 * sizes[:, None] * pace * noise)
    np.testing.assert_allclose(size / size[0], sizes / sizes[0], rtol=0.02)
    apart = generator.uniform(0.8, 1.2, (12, 2))
    size, _ = at_usual_pace(np.arange(3), 100 * apart)
    np.testing.assert_allclose(size, np.median([*(apart / np.median(apart, axis=0)).T, np.ones(12)], axis=0), rtol=0.01)


def test_a_rank_without_other_stages_has_the_usual_work():
    size, gpu_ns = at_usual_pace(np.array([0, 6]), stages(1))
    parts = parts_of_teams(np.array([0, 6]), PARTS, PARTS, gpu_ns)
    assert work_of_operations(0, gpu_ns, PARTS, size, parts).tolist() == np.ones((5, 6)).tolist()


def test_a_part_that_varies_as_an_operation_is_found_as_by_trying_each():
    generator = np.random.default_rng(3)
    gpu_ns = generator.lognormal(5, 0.3, (7, 40))
    gpu_ns[:, 30], gpu_ns[2, 25] = 0, np.nan
    part, names = np.repeat(np.arange(8), 5), generator.integers(0, 4, 40)
    names[20:][names[20:] == 2] = 3  # the other team lacks one name
    own, other = parts_of_teams(np.array([0, 20, 40]), part, names, gpu_ns)
    assert len(own.ratios) == own.first[-1] == len(set(zip(part[:20].tolist(), names[:20].tolist(), strict=True)))
    assert own.first[2] < own.first[3]
    assert other.first[2] == other.first[3]
    nearest = np.empty(20, np.int64)
    ratios = gpu_ns[:, :20].T / np.median(gpu_ns[:, :20], axis=0)[:, None]
    find_most_alike(ratios, names[:20], other, nearest)
    for op, name in enumerate(names[:20].tolist()):
        of_name = range(*other.first[name : name + 2].tolist()) or range(len(other.ratios))
        apart = {at: np.nansum(np.abs(ratios[op] - other.ratios[at])) for at in of_name}
        assert nearest[op] == min(apart, key=lambda at: (apart[at], at))


@pytest.mark.parametrize("variation", [1.0, 0.1])
def test_a_transfer_carries_its_micro_batch_or_as_much_in_each_step(variation: float):
    """Two stages run two kernels a micro-batch, then its transfer; another one, of the gradients, ends the step."""
    sizes = SIZES**variation
    is_collective = np.array([*[False, False, True] * MICRO_BATCHES, True] * 2)
    gpu_ns = np.full((5, len(is_collective)), 7.0)  # as a collective's launch has: no compute
    gpu_ns[:, ~is_collective] = np.tile(np.repeat(sizes, 2, axis=1) * ([30.0, 60.0] * MICRO_BATCHES), (1, 2))
    place = np.flatnonzero(is_collective)
    took_ns = np.hstack([sizes * 10, np.full((5, 1), 40.0)] * 2)
    took_ns[3, 1] *= 3  # a link that is slow once
    took_ns[:, 5], took_ns[:, 7] = np.nan, 0  # never recorded; too short for the clock
    expected = np.hstack([sizes / np.median(sizes, axis=0), np.ones((5, 1))] * 2)
    expected[:, 5] = 1
    first = np.array([0, 10, 20, 20])
    computed = compute_between(first, is_collective, gpu_ns)
    assert computed.varies == (variation == 1)
    if computed.varies:
        np.testing.assert_allclose(work_of_transfers(first, computed, place, took_ns), expected)


def test_the_work_of_recorded_sizes():
    """Of two groups of a collective, of which one has twice the sizes; 4 µs of each transfer are latency."""
    sizes = np.random.default_rng(5).uniform(0.5, 1.5, (9, 1)) * [1, 2]
    took_ns = 4e3 + 1e4 * sizes
    took_ns[3, 1] *= 3  # a link that is slow once
    np.testing.assert_allclose(work_by_sizes(sizes, took_ns), (4e3 + 1e4 * sizes) / 1.4e4)
