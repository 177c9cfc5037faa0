"""GPU times relative to the sizes of launches: a slow GPU is found where sequence lengths vary."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import jitter
from jitter.analysis.detection import launched_work
from jitter.analysis.detection.deviations import TeamDeviations, subtract_median_of_others
from jitter.analysis.detection.launched_work import (
    LaunchedWork,
    expected_times,
    find_outliers_by_work,
    find_shared_work,
    share_of_varying_ranks,
    times_at_usual_pace,
    times_of_groups,
)
from jitter.analysis.detection.standouts import Outlier, find_standouts
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.analysis.replay.what_if import Scenario, together
from jitter.analysis.thresholds import THRESHOLDS
from tests.accuracy.irregular.job import Fault, IrregularJob
from tests.accuracy.irregular.scoring import ingest_job

JOB = IrregularJob(seed=11, shape="blocking", ranks=8, steps=9, kernels=26, effect="variable lengths", lengths=0.25)
SLOW = Fault("slow_gpu", (5,), 1.15)
LONGER = Fault("more_work", (5,), 1.3)


def test_expected_times():
    """Kernels whose time grows with their launch as its size, its square, and not at all; rank 3 is slow."""
    rng = np.random.default_rng(1)
    length = rng.uniform(0.7, 1.0, (6, 5))
    powers, base = np.array([1.0, 2.0, 0.0]), np.array([50e3, 80e3, 30e3])
    pace = np.array([1.0, 1.0, 1.0, 1.2, 1.0])
    own = base[:, None, None] * length ** powers[:, None, None] * pace
    threads = np.stack([256e3 * length, 128e3 * length, np.full(length.shape, 9e3)])
    ratio = own / expected_times(own, threads)
    # the median of a step is one rank's time: relative to any other rank, the slow one is slow by its pace
    assert ratio / ratio[:, :, [0]] == pytest.approx(np.broadcast_to(pace, ratio.shape), rel=1e-6)
    without = threads.copy()
    without[:, 2, 4] = np.nan
    lacking = own.copy()
    lacking[1, :, 1] = np.nan
    expected = expected_times(lacking, without)
    assert np.isnan(expected[1, :, 1]).all()
    assert expected[:, 2, 4] == pytest.approx(np.nanmedian(lacking[:, 2], axis=1))  # no size is known: the median
    assert not np.isnan(np.delete(expected, 1, axis=0)).any()


def test_a_slow_gpu_among_varying_lengths(tmp_path: Path):
    lake, saved = ingest_job(replace(JOB, faults=(SLOW,)), tmp_path)
    uneven, culprit = lake.diagnose().culprits
    assert (uneven.scope, uneven.cause, uneven.recurs) == ("job", "workload_imbalance", "no")
    assert (culprit.ranks, culprit.cause) == ((5,), "gpu_compute")
    assert culprit.confidence in ("medium", "high")
    assert any("longer than the other ranks' for the same work" in one for one in culprit.evidence)
    assert culprit.gain_ns == pytest.approx(saved, rel=0.1)


def test_a_gpu_that_is_slow_by_plain_time_too_keeps_its_lengths(tmp_path: Path):
    """Its inputs vary in length: what these take is no part of what another GPU would save."""
    lake, saved = ingest_job(replace(JOB, seed=3, ranks=4, steps=12, faults=(Fault("slow_gpu", (1,), 1.35),)), tmp_path)
    (culprit,) = lake.diagnose().culprits
    assert (culprit.ranks, culprit.cause, culprit.confidence) == ((1,), "gpu_compute", "high")
    assert culprit.gain_ns == pytest.approx(saved, rel=0.05)


def test_varying_lengths_alone_and_more_work_are_no_slow_gpu(tmp_path: Path):
    for folder, faults in (("healthy", ()), ("longer", (LONGER,))):
        (tmp_path / folder).mkdir()
        lake, _ = ingest_job(replace(JOB, faults=faults), tmp_path / folder)
        assert lake.analyze().outliers.launched_work
        found = [(one.ranks, one.cause) for one in lake.diagnose().culprits if one.scope == "rank"]
        assert found == ([((5,), "workload_imbalance")] if faults else [])


def test_of_a_long_run_steps_at_even_distances_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lake, _ = ingest_job(replace(JOB, faults=(SLOW,)), tmp_path)
    (whole,) = lake.analyze().outliers.launched_work.values()
    fitting = THRESHOLDS._replace(max_cells=5 * whole.own_ns[:, 0].size)
    monkeypatch.setattr(launched_work, "THRESHOLDS", fitting)
    analysis = jitter.open(tmp_path / "lake").analyze()
    (some,) = analysis.outliers.launched_work.values()
    assert some.steps == (0, 2, 4, 6, 8)
    assert some.own_ns.shape[1] == 5
    (outlier,) = [late for one in analysis.candidates for late in one.members if late.pace is not None]
    assert (outlier.rank, len(outlier.steps)) == (5, 9)
    assert outlier.pace == pytest.approx(1.12, abs=0.02)  # kernels bound by memory feel half of a slow clock
    fitting = THRESHOLDS._replace(max_cells=2 * whole.own_ns[:, 0].size)
    monkeypatch.setattr(launched_work, "THRESHOLDS", fitting)
    assert jitter.open(tmp_path / "lake").analyze().outliers.launched_work == {}


def test_launches_are_not_read_where_gpu_time_is_steady(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lake, _ = ingest_job(replace(JOB, lengths=0.0, faults=(SLOW,)), tmp_path)
    monkeypatch.setattr(RunReader, "launch_shapes", lambda *_: pytest.fail("launches were read"))
    assert lake.analyze().outliers.launched_work == {}


@pytest.mark.parametrize(
    ("faults", "causes"),
    [((), []), ((LONGER,), ["gpu_time"]), ((SLOW,), ["gpu_compute"])],
    ids=["none", "more", "slow"],
)
def test_of_launches_of_one_size_kernels_of_steady_work_tell_the_pace(
    tmp_path: Path, faults: tuple[Fault, ...], causes: list[str]
):
    """As of packed sequences: lengths vary, launch sizes do not. More work is none of these kernels' time."""
    lake, saved = ingest_job(replace(JOB, fixed_grids=True, faults=faults), tmp_path)
    found = [one for one in lake.diagnose().culprits if one.scope == "rank"]
    assert [(one.rank, one.cause) for one in found] == [(5, cause) for cause in causes]
    # a slow clock slows the steady kernels, which memory bounds in this engine, by half
    assert all(0.6 * saved < one.gain_ns < 1.1 * saved for one in found if one.cause == "gpu_compute")


def test_the_pace_where_ranks_run_unlike_numbers_of_like_kernels():
    """As of generated tokens: each kernel varies by its noise alone, the ranks' whole time does."""
    rng = np.random.default_rng(2)
    tokens = rng.integers(20, 60, (9, 8))
    times_ns = 15e3 * rng.normal(1.0, 0.01, (60, 9, 8))
    times_ns[:, :, 3] *= 1.08
    times_ns[np.arange(60)[:, None, None] >= tokens] = np.nan
    at_usual = times_at_usual_pace(times_ns)
    assert at_usual is not None
    paces = np.nanmedian(np.nansum(times_ns, axis=0) / np.nansum(at_usual, axis=0), axis=0)
    assert paces == pytest.approx([1, 1, 1, 1.08, 1, 1, 1, 1], abs=0.01)


def test_the_pace_where_the_ranks_of_a_group_share_their_work():
    """As of tensor parallelism: each replica has its own lengths, which its launches do not show."""
    rng = np.random.default_rng(3)
    replica, other = np.repeat([0, 1], 8), np.tile([0, 1, 2, 3], 4)
    lengths = rng.uniform(0.7, 1.3, (9, 2))
    times_ns = 15e3 * lengths[:, replica] * rng.normal(1.0, 0.01, (60, 9, 16))
    assert find_shared_work(times_ns, [other]) is None
    times_ns[:, :, 3] *= 1.2
    sharing = find_shared_work(times_ns, [other, replica])
    assert sharing is not None
    assert sharing.tolist() == replica.tolist()
    expected = times_of_groups(times_ns, sharing)
    paces = np.nanmedian(np.nansum(times_ns, axis=0) / np.nansum(expected, axis=0), axis=0)
    assert paces == pytest.approx([1.2 if rank == 3 else 1 for rank in range(16)], abs=0.01)


@pytest.mark.parametrize(("changed", "is_shared"), [(range(6), False), (range(0, 12, 2), True)])
def test_what_changes_once_is_no_work_that_ranks_share(changed: range, is_shared: bool):
    """GPUs of one node are slow in the first half of the steps, and those of the other one in the second half."""
    node = np.repeat([0, 1], 8)
    factors = np.where(np.isin(np.arange(12), changed)[:, None] == (node == 0), 1.12, 1.0)
    times_ns = 15e3 * factors * np.random.default_rng(2).normal(1.0, 0.01, (60, 12, 16))
    assert (find_shared_work(times_ns, [node]) is not None) == is_shared


@pytest.mark.parametrize(
    ("varied", "steps", "share"),
    [
        (range(16), range(16), 1.0),
        (range(8, 16), range(16), 0.5),
        (range(8, 16), (2, 4, 10, 11, 13, 15), 0.5),
        (range(5), range(16), 5 / 16),
    ],
)
def test_work_varies_on_all_ranks(varied: Sequence[int], steps: Sequence[int], share: float):
    """Of two nodes one may be slow in some steps, or in each by another factor: that is no work."""
    rng = np.random.default_rng(3)
    time_ns = 5e6 * rng.normal(1.0, 0.004, (16, 16))
    time_ns[np.ix_(list(steps), list(varied))] *= rng.uniform(1.0, 1.3, (len(steps), len(varied)))
    usual_ns = np.sort(time_ns, axis=1)[:, [7]]
    assert share_of_varying_ranks(subtract_median_of_others(time_ns[None])[0], usual_ns) == pytest.approx(
        share, abs=0.07
    )


def test_one_micro_batch_more_in_some_steps_is_work():
    rng = np.random.default_rng(4)
    time_ns = 5e6 * rng.normal(1.0, 0.004, (20, 16)) * np.where(rng.random((20, 16)) < 0.2, 1.25, 1.0)
    usual_ns = np.sort(time_ns, axis=1)[:, [7]]
    assert share_of_varying_ranks(subtract_median_of_others(time_ns[None])[0], usual_ns) > 0.7


@pytest.mark.parametrize(("lacked", "is_told"), [(slice(3, 10), True), (slice(None), False)])
def test_a_rank_without_the_step_tells_nothing_of_the_work(lacked: slice, is_told: bool):
    times_ns = np.full((10, 1, 4), 5.0)
    times_ns[lacked, :, 3] = np.nan
    read = launched_work._Read(times_ns, times_ns, np.zeros(10, np.int64))
    assert launched_work._tells_work(read, np.isnan(times_ns)) == is_told


def test_of_a_step_that_was_not_compared_nothing_is_known_of_the_work():
    """Nor do ranks tell it that lack a step, as most do the last one here."""
    own_ns = np.ones((4, 3, 8))
    own_ns[:, 0, :4] = 2.0  # a group has more work
    own_ns[:, 1, 0] = 2.0
    own_ns[:, 2, 2:] = np.nan
    zero = np.zeros((len(OWN_PARTS), 30, 8))
    of_team = TeamDeviations(0, np.arange(8), zero, zero, zero)
    work = LaunchedWork(of_team, (0, 10, 20), own_ns, own_ns, np.zeros(4, np.int64), np.repeat([0, 1], 4))
    late = {number: Outlier(0, 0, TimePart.GPU, (number,), 1.0, 9.0) for number in (0, 10, 20, 21)}
    assert [number for number, outlier in late.items() if work.is_shared(outlier)] == [0]
    assert [number for number, outlier in late.items() if work.is_behind(outlier)] == [0, 10]
    nobody = find_standouts(of_team, TimePart.GPU, np.ones(30))
    kept = find_outliers_by_work(work, nobody, list(late.values()), np.ones(30))
    assert kept == [late[number] for number in (10, 20, 21)]


def test_scenarios_of_paces():
    one, other = Scenario(paces={1: (1.2, frozenset({2, 3}))}), Scenario(parts={(0, 1): frozenset({5})})
    both = together([one, other])
    assert (both.paces, both.parts, both.steps) == (one.paces, other.parts, frozenset({2, 3, 5}))
    assert one.repairs
    assert [one.at(step) for step in (1, 2)] == [False, True]
