"""Clusters of ranks and steps that are slow for all, against totals whose clusters and steps are known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jitter.analysis.detection.deviations import TeamDeviations, subtract_median_of_others
from jitter.analysis.detection.findings import Finding, find_clusters, find_fast_ranks
from jitter.analysis.detection.run_outliers import find_in_like_steps
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.replay.like_steps import first_of_drift
from jitter.analysis.thresholds import THRESHOLDS
from jitter.simulate import Fault, simulate
from tests.accuracy.irregular.job import Fault as Slow
from tests.accuracy.irregular.job import IrregularJob
from tests.accuracy.irregular.scoring import ingest_job
from tests.analysis.detection.test_deviations import find_outliers
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.simulated import ingest_partial_run, ingest_run, run_ns, small, true_gain_ns

STEP = 1e6


def team(gpu_ns: np.ndarray, usual_ns: np.ndarray | None = None) -> TeamDeviations:
    """Return deviations of GPU times (steps, ranks); the other parts are quiet."""
    steps, ranks = gpu_ns.shape
    own = np.random.default_rng(0).normal(0, 100, (3, steps, ranks))
    own[TimePart.GPU] = gpu_ns
    usual = np.full((3, steps, 1), 0.8 * STEP)
    if usual_ns is not None:
        usual[TimePart.GPU, :, 0] = usual_ns
    return TeamDeviations(0, np.arange(ranks), subtract_median_of_others(own), np.full((3, steps, 1), 100.0), usual)


def slow_steps(teams: list[TeamDeviations], step_ns: np.ndarray, loss_ns: np.ndarray | None = None) -> Finding | None:
    loss_ns = np.full(len(step_ns), 1e4) if loss_ns is None else loss_ns
    found = find_in_like_steps(teams, step_ns, loss_ns, np.arange(len(step_ns)))
    assert len(found) < 2
    return found[0] if found else None


def gpus(seed: int, ranks: int, spread: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 0.8 * STEP * (1 + spread * rng.standard_normal((1, ranks))) + rng.normal(0, 2e3, (8, ranks))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("ranks", [6, 8, 16])
def test_gpus_that_differ_by_chance_are_no_clusters(seed: int, ranks: int):
    assert find_clusters(team(gpus(seed, ranks, 0.015)), np.full(8, STEP), []) == []


@pytest.mark.parametrize("slow", [(0, 2, 3, 5, 7), (1, 2, 3, 4, 5, 6)])
def test_most_ranks_are_slow(slow: tuple[int, ...]):
    own = gpus(1, 8, 0.003)
    own[:, list(slow)] += 0.12 * STEP
    (found,) = find_clusters(team(own), np.array([np.nan, *[STEP] * 7]), [])
    assert (found.kind, found.part, found.ranks) == ("two_clusters", TimePart.GPU, slow)
    assert found.known_gain_ns == pytest.approx(7 * 0.12 * STEP, rel=0.05)


def test_most_ranks_are_slow_in_some_steps():
    own = gpus(1, 8, 0.003)
    own[np.ix_([1, 2, 4, 5, 7], [0, 2, 3, 5, 7])] += 0.12 * STEP
    (found,) = find_clusters(team(own), np.full(8, STEP), [])
    assert (found.ranks, found.steps) == ((0, 2, 3, 5, 7), (1, 2, 4, 5, 7))
    assert found.known_gain_ns == pytest.approx(5 * 0.12 * STEP, rel=0.05)


@pytest.mark.parametrize(("ms", "named"), [(0.8, []), (1.5, [(0, 2, 5, 6, 7)])])
def test_slow_hosts_of_most_ranks_cost_what_the_gpus_wait_for_them(tmp_path: Path, ms: float, named: list[object]):
    """Hosts that are ahead of their GPUs may pause for nothing."""
    run = simulate(small(ranks=8, steps=12), [Fault.parse(f"cpu_stall:rank=0+2+5-7,kernel=40,ms={ms}")])
    found = ingest_run(run, tmp_path).diagnose()
    assert [culprit.ranks for culprit in found.culprits] == named
    assert found.what_if.culprits_repaired_ns == pytest.approx(true_gain_ns(run, *run.faults), rel=0.01)


def test_half_of_the_ranks_are_slow_and_the_loss_contains_it():
    """The lower median of equal halves is a fast rank's: the replay tells the saving."""
    own = gpus(1, 8, 0.003)
    own[:, 4:] += 0.12 * STEP
    (found,) = find_clusters(team(own), np.full(8, STEP), [])
    assert (found.ranks, found.known_gain_ns) == ((4, 5, 6, 7), None)
    assert "does not contain it" not in found.evidence[0]
    assert found.excess_ns == pytest.approx(8 * 0.12 * STEP, rel=0.05)


def test_ranks_that_grow_slower_over_the_run_are_a_cluster():
    own = gpus(1, 8, 0.003)
    own[:, 3:] += 0.3 * STEP * np.linspace(0, 1, 8)[:, None]
    (found,) = find_clusters(team(own), np.full(8, STEP), [])
    assert found.ranks == (3, 4, 5, 6, 7)


def test_ranks_that_lack_steps_do_not_hide_clusters():
    """Each cluster is known in only some of the steps, and in one step nobody is."""
    own = gpus(1, 8, 0.003)
    own[:, :5] += 0.12 * STEP
    own[0, :5] = own[1, 5:] = own[2] = np.nan
    (found,) = find_clusters(team(own), np.full(8, STEP), [])
    assert found.ranks == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("seed", range(20))
def test_groups_with_other_work_in_each_step_are_no_clusters(seed: int):
    """Ranks of a tensor-parallel group have equal work, which changes from step to step: no group is slow for good."""
    own = gpus(1, 8, 0.003) + np.random.default_rng(seed).uniform(0, 0.4 * STEP, (8, 2)).repeat(4, axis=1)
    assert find_clusters(team(own), np.full(8, STEP), []) == []


def test_ranks_that_are_as_much_faster_in_another_step_are_no_cluster():
    """Work that varies from step to step may differ alike in five of eight steps by chance."""
    own = gpus(1, 8, 0.003)
    own[:, 2:] += STEP * np.array([-0.02, 0.12, -0.12, 0.12, -0.02, 0.12, 0.15, 0.11])[:, None]
    assert find_clusters(team(own), np.full(8, STEP), []) == []


def test_few_slow_ranks_are_outliers_and_no_cluster():
    own = gpus(1, 8, 0.003)
    own[:, :2] += 0.12 * STEP
    assert find_clusters(team(own), np.full(8, STEP), []) == []


def test_slow_ranks_that_are_known_need_no_other_finding():
    own = gpus(1, 8, 0.003)
    own[:, :4] += 0.12 * STEP
    known = [Outlier(0, rank, TimePart.GPU, tuple(range(8)), 1e6, 20.0, 1e-6, persistent=True) for rank in range(4)]
    assert find_clusters(team(own), np.full(8, STEP), known) == []
    (found,) = find_clusters(team(own), np.full(8, STEP), known[:2])
    assert found.ranks == (0, 1, 2, 3)


def test_what_all_ranks_do_after_a_step_makes_the_next_one_longer():
    """As copies for a checkpoint on the GPU: the time was in no part of the longer step, and told nowhere."""
    usual, step_ns = np.full(8, 0.8 * STEP), np.array([np.nan, *[STEP] * 7])
    usual[[2, 5]] += 0.5 * STEP
    step_ns[[3, 6]] += 0.5 * STEP
    found = slow_steps([team(gpus(1, 8, 0.003), usual)], step_ns)
    assert found is not None
    assert (found.part, found.steps, found.known_gain_ns) == (TimePart.GPU, (2, 5), pytest.approx(STEP, rel=0.05))
    usual[[2, 5]] -= 0.5 * STEP
    assert slow_steps([team(gpus(1, 8, 0.003), usual)], step_ns) is None


def test_a_rank_that_is_far_slower_than_its_cluster_does_not_hide_it():
    own = gpus(1, 8, 0.003)
    own[:, 4:] += 0.05 * STEP
    own[:, 6] += 0.12 * STEP
    assert find_clusters(team(own), np.full(8, STEP), []) == []
    slowest = Outlier(0, 6, TimePart.GPU, tuple(range(8)), 1e6, 20.0, 1e-6, persistent=True)
    (found,) = find_clusters(team(own), np.full(8, STEP), [slowest])
    assert found.ranks == (4, 5, 7)
    assert found.excess_ns == pytest.approx(8 * 0.05 * STEP, rel=0.1)


def test_steps_in_which_all_ranks_are_slow():
    own = gpus(1, 8, 0.003)
    steps = np.array([np.nan, *(STEP + np.random.default_rng(2).normal(0, 3e3, 7))])
    usual = np.full(8, 0.8 * STEP)
    assert slow_steps([team(own, usual)], steps) is None
    steps[[3, 6]] += 0.3 * STEP
    usual[[3, 6]] += 0.3 * STEP
    found = slow_steps([team(own, usual)], steps)
    assert found is not None
    assert (found.kind, found.part, found.steps, found.ranks) == ("slow_steps", TimePart.GPU, (3, 6), tuple(range(8)))
    assert found.known_gain_ns == pytest.approx(0.6 * STEP, rel=0.05)


def test_less_slow_steps_are_found_beside_the_slowest_ones():
    """A clock that swings: what the worst steps vary by is no noise of the others."""
    rng = np.random.default_rng(3)
    own = 0.8 * STEP * (1 + 0.003 * rng.standard_normal((16, 8)))
    usual, steps = np.full(16, 0.8 * STEP), STEP + rng.normal(0, 3e3, 16)
    for longer, here in ((0.19, [1, 6, 11]), (0.12, [2, 7, 12])):
        steps[here] += longer * STEP
        usual[here] += longer * STEP
    found = slow_steps([team(own, usual)], steps)
    assert found is not None
    assert (found.part, found.steps) == (TimePart.GPU, (1, 2, 6, 7, 11, 12))
    assert found.known_gain_ns == pytest.approx(3 * (0.19 + 0.12) * STEP, rel=0.05)


def test_two_causes_in_different_steps_are_two_findings():
    """Loading in half of the steps, slow GPUs in a third: there are three lengths of steps, and few fast ones."""
    rng = np.random.default_rng(6)
    loading, slow = [2, 3, 6, 7, 10, 11, 14, 15], [1, 4, 5, 9, 12]
    own = 0.8 * STEP * (1 + 0.003 * rng.standard_normal((16, 8)))
    steps, usual = STEP + rng.normal(0, 3e3, 16), np.full((3, 16, 1), 0.8 * STEP)
    for part, here, longer in ((TimePart.START, loading, 0.28), (TimePart.GPU, slow, 0.13)):
        varied = longer * STEP * rng.uniform(0.95, 1.05, len(here))
        usual[part, here, 0] += varied
        steps[here] += varied
    both = replace(team(own), usual_ns=usual)
    found = find_in_like_steps([both], steps, np.full(16, 1e4), np.arange(16))
    assert [(one.part, one.steps) for one in found] == [
        (TimePart.START, tuple(loading)),
        (TimePart.GPU, tuple(slow)),
    ]
    gains = [one.known_gain_ns for one in found]
    assert gains == pytest.approx([8 * 0.28 * STEP, 5 * 0.13 * STEP], rel=0.05)


def of_parts(steps_ns: np.ndarray, **usual_ns: np.ndarray) -> list[Finding]:
    """Return the slow steps of 8 equal ranks with these times of steps, and of the usual rank by part."""
    rng, count = np.random.default_rng(7), len(steps_ns)
    usual = np.full((3, count, 1), 0.1 * STEP)
    for part, part_ns in usual_ns.items():
        usual[TimePart[part], :, 0] = part_ns
    ranks = replace(team(0.8 * STEP * (1 + 0.003 * rng.standard_normal((count, 8)))), usual_ns=usual)
    return find_in_like_steps([ranks], steps_ns, np.full(count, 1e4), np.arange(count))


def test_a_part_that_takes_longer_beside_another_one_makes_no_step_slow():
    """The loader sets the pace of each step, and waits for the GPU where that takes longer."""
    longer = np.where(np.arange(16) % 2, 0.25 * STEP, 0.0)
    assert of_parts(np.full(16, STEP), START=0.4 * STEP - longer, GPU=0.6 * STEP + longer) == []


def test_steps_that_another_part_makes_slow_are_not_cleared_by_those_of_one():
    """What hosts do beside their GPUs varies by far more than the GPUs are slow by in six steps."""
    rng, slow, late = np.random.default_rng(8), [1, 4, 7, 9, 12, 14], [3, 10]
    hidden = rng.normal(0.4, 0.03, 16) * STEP
    more = np.zeros((2, 16))
    more[0, slow], more[1, late] = 0.1 * STEP, 0.4 * STEP
    found = of_parts(STEP + more.sum(axis=0) + rng.normal(0, 1e3, 16), START=hidden + more[1], GPU=0.6 * STEP + more[0])
    assert sorted(step for one in found for step in one.steps) == sorted(slow + late)
    assert sum(one.known_gain_ns or 0.0 for one in found) == pytest.approx(6 * 0.1 * STEP + 2 * 0.4 * STEP, rel=0.1)


def test_time_in_steps_of_two_findings_is_told_once():
    """Beside both the network takes longer in the steps that they share: these are longer by no more than they are."""
    start, launches = np.zeros(20), np.zeros(20)
    start[[2, 5, 8, 11, 14, 17]], launches[[3, 5, 7, 11, 13, 17, 18]] = 0.3 * STEP, 0.3 * STEP
    both = (start > 0) & (launches > 0)
    more = start + launches + np.where(both, 0.25 * STEP, 0.0)
    rng = np.random.default_rng(9)
    found = of_parts(STEP + more + rng.normal(0, 1e3, 20), START=0.1 * STEP + start, CPU=0.1 * STEP + launches)
    assert {one.part for one in found} == {TimePart.START, TimePart.CPU}
    assert sum(one.known_gain_ns or 0.0 for one in found) <= 1.02 * more.sum()


@pytest.mark.parametrize("seed", range(40))
def test_few_noisy_steps_have_findings_with_steps(seed: int):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 17))
    parts = {part: 0.3 * STEP * rng.lognormal(0, 0.4, count) for part in ("START", "CPU", "GPU")}
    steps_ns = 0.2 * STEP + sum(parts.values()) + 0.3 * STEP * rng.lognormal(0, 0.5, count)
    steps_ns[0] = np.nan
    assert all(one.steps and (one.known_gain_ns or 0.0) > 0 for one in of_parts(steps_ns, **parts))


def test_slow_steps_of_several_kinds_are_one_finding(tmp_path: Path):
    """Every second step has twice as many micro-batches: the loading of both kinds is mended at once."""
    job = small(ranks=4, steps=16)
    stalls = [Fault.parse(f"late_start:ranks=0-3,step={step},ms=3") for step in (5, 8, 11, 14)]
    longer = [Fault.parse(f"extra_kernel:ranks=0-3,step={step},kernel=3,ms=0.5") for step in range(1, 16, 2)]
    run = simulate(job, stalls + longer)
    found = [one for one in ingest_run(run, tmp_path).diagnose().culprits if one.cause == "late_start"]
    assert [(one.rung, one.seen.steps) for one in found] == [("steps", 4)]
    assert found[0].gain_ns == pytest.approx(true_gain_ns(run, *stalls), rel=0.05)


def test_steps_that_a_node_did_not_record_are_no_slow_ones(tmp_path: Path):
    """A node that is always slow seemed to become so for all ranks where the other one, its baseline, is missing."""
    run = simulate(small(ranks=8, steps=14, gpus_per_node=4), [Fault.parse("slow_gpu:rank=0-3,factor=1.15")])
    lake = ingest_partial_run(run, tmp_path, sees=lambda rank, step: rank < 4 or step < 7)
    found = [one for one in lake.diagnose().culprits if one.rung != "overlap"]
    assert [one.ranks for one in found if one.rung == "ranks"] == [(0, 1, 2, 3)]
    assert not [one for one in found if one.rung == "steps"]


def test_what_ranks_vary_by_in_slow_steps_is_saved_with_them(tmp_path: Path):
    """All loaders restart in two steps, each within its own time: the job waits for the last one."""
    ms = np.random.default_rng(5).uniform(2, 4, (2, 8))
    late = [f"late_start:rank={rank},step={4 + 4 * at},ms={ms[at, rank]:.2f}" for at in range(2) for rank in range(8)]
    faults = [Fault.parse(fault) for fault in late]
    run = simulate(small(ranks=8, steps=14), faults)
    (culprit,) = ingest_run(run, tmp_path).diagnose().culprits
    assert (culprit.rung, culprit.cause, culprit.seen.steps) == ("steps", "late_start", 2)
    saved_ns = true_gain_ns(run, *faults)
    assert culprit.gain_ns == pytest.approx(saved_ns, rel=0.05)
    assert culprit.loss_ns < 0.9 * saved_ns


@pytest.mark.parametrize(("longer", "is_slow"), [(9.0, True), (1.2, True), (0.8, False)])
@pytest.mark.parametrize("before", [[], [np.nan]])
def test_of_two_timed_steps_one_is_slow_if_it_takes_more_than_twice_as_long(
    longer: float, is_slow: bool, before: list[float]
):
    """They show no variation; the first recorded step may have no time."""
    ns = longer * STEP * np.array([*(0.0 for _ in before), 0.0, 1.0])
    own = (gpus(1, 8, 0.003)[: len(ns)]) + ns[:, None]
    found = slow_steps([team(own, 0.8 * STEP + ns)], np.array([*before, STEP, STEP * (1 + longer)]))
    assert (found and found.steps) == ((len(ns) - 1,) if is_slow else None)
    assert found is None or found.known_gain_ns == pytest.approx(longer * STEP)


@pytest.mark.parametrize(("spread", "is_slow"), [(0.003, True), (0.12, False)])
def test_steps_that_are_slow_because_the_median_rank_is_by_chance(spread: float, is_slow: bool):
    """Of ranks whose work varies from step to step, the median does too: two of four steps 10% longer are no event."""
    own = 0.8 * STEP * (1 + spread * np.random.default_rng(1).standard_normal((5, 6)))
    longer = np.array([0.0, 0.0, 0.0, 0.1, 0.1]) * STEP
    steps = STEP + longer + np.array([np.nan, 0.0, 6e3, 0.0, 4e3])
    found = slow_steps([team(own, 0.8 * STEP + longer)], steps)
    assert (found and found.steps) == ((3, 4) if is_slow else None)


def test_all_teams_that_are_slow_in_these_steps_are_named():
    """A pipeline: stage 1 has half of the work and is slow too, stage 2 is not, stage 3 lacks the slow steps."""
    steps = np.array([np.nan, *(STEP + np.random.default_rng(2).normal(0, 3e3, 7))])
    steps[[3, 6]] += 0.3 * STEP
    usual = np.full((4, 8), 0.8 * STEP)
    usual[1] /= 2
    usual[0, [3, 6]] *= 1.4
    usual[1, [3, 6]] *= 1.4
    usual[3, [3, 6]] = np.nan
    stages = [
        replace(team(gpus(1, ranks, 0.003), usual[at]), team=at, ranks=np.arange(ranks) + 10 * at)
        for at, ranks in enumerate((4, 2, 2, 2))
    ]
    found = slow_steps(stages, steps)
    assert found is not None
    assert found.ranks == (0, 1, 2, 3, 10, 11)


def test_a_step_that_is_slow_by_its_loss_is_not_slow_for_all():
    steps, loss = np.full(8, STEP), np.full(8, 1e4)
    steps[3] += 0.3 * STEP
    loss[3] += 0.3 * STEP
    assert slow_steps([team(gpus(1, 8, 0.003))], steps, loss) is None


@pytest.mark.parametrize("late", [(4, 5, 6, 7), (0, 1, 2, 3)])
def test_one_of_two_hosts_is_late_in_some_steps(late: tuple[int, ...]):
    """The other ranks' median of an early rank is then a late one's, and half of the ranks are no spread."""
    own = gpus(1, 8, 0.003)
    for step in (2, 5):
        own[step, list(late)] += 0.5 * STEP
    found = find_outliers(team(own), np.full(8, STEP))
    assert {(one.rank, one.part, one.steps) for one in found} == {(rank, TimePart.GPU, (2, 5)) for rank in late}
    assert [one.excess_ns for one in found] == pytest.approx([STEP] * 4, rel=0.05)


@pytest.mark.parametrize("seed", range(30))
def test_a_step_of_more_spread_is_no_step_of_halves(seed: int):
    own, rng = gpus(seed, 8, 0.003), np.random.default_rng(seed)
    own[[2, 5]] += rng.normal(0, 0.2 * STEP, (2, 8))
    assert not find_outliers(team(own), np.full(8, STEP))


@pytest.mark.parametrize("late", [tuple(range(7)), (0, 1, 2, 3, 5)])
def test_ranks_that_are_not_slow_in_slow_steps_are_not_named(late: tuple[int, ...]):
    own = gpus(1, 8, 0.003)
    own[np.ix_([3, 6], late)] += 0.3 * STEP
    steps = np.array([np.nan, *(STEP + np.random.default_rng(2).normal(0, 3e3, 7))])
    steps[[3, 6]] += 0.3 * STEP
    found = slow_steps([team(own, np.median(own, axis=1))], steps)
    assert found is not None
    assert (found.steps, found.ranks) == ((3, 6), late)
    assert "all ranks" not in found.evidence[0]


def test_a_drift_of_one_of_two_ranks_is_no_scatter():
    """Each rank is the other's baseline: both deviate by the drift, whose growth is not noise."""
    own = gpus(1, 2, 0.003)[:7]
    own[:, 0] += 0.5 * STEP * np.arange(7) / 6
    (found,) = find_outliers(team(own), np.full(7, STEP))
    assert (found.rank, found.part, found.persistent) == (0, TimePart.GPU, True)


@pytest.mark.parametrize("seed", range(5))
def test_the_usual_time_of_a_drift_is_in_its_middle(seed: int):
    """A GPU that slows down evenly, by 12% of a step over the run: no event is above its usual time."""
    own = gpus(seed, 12, 0.003)
    own[:, 5] += 0.12 * STEP * np.arange(8) / 7
    (found,) = find_outliers(team(own), np.full(8, STEP))
    assert (found.rank, found.part, found.persistent) == (5, TimePart.GPU, True)
    assert found.chance < THRESHOLDS.medium_chance


def test_what_runs_in_one_step_only_has_the_scatter_of_that_step():
    """As an allocation before the first kernel of one step: zeros in all other steps are no measure of it."""
    own = np.zeros((4, 8))
    own[1] = [-577e3, 1_121e3, -5e3, 1_603e3, 5e3, 405e3, -924e3, -862e3]
    assert not find_outliers(team(own), np.full(4, 8 * STEP))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ranks", [3, 4, 8, 16])
def test_gpus_that_differ_by_chance_leave_no_gap(seed: int, ranks: int):
    assert find_fast_ranks(team(gpus(seed, ranks, 0.015)), STEP) is None


@pytest.mark.parametrize(("ranks", "fast"), [(3, (1,)), (4, (3,)), (5, (0, 2)), (8, (5,)), (8, (1, 4, 6))])
def test_fewer_than_half_are_fast(ranks: int, fast: tuple[int, ...]):
    own = gpus(1, ranks, 0.003)
    own[:, list(fast)] -= 0.12 * STEP
    found = find_fast_ranks(team(own), STEP)
    assert found is not None
    assert found.fast == fast
    assert found.slow == tuple(rank for rank in range(ranks) if rank not in fast)
    assert found.gap_ns == pytest.approx(0.12 * STEP, rel=0.1)


@pytest.mark.parametrize(("ranks", "fast"), [(2, (0,)), (4, (0, 1)), (4, (0, 1, 2)), (8, (1, 2, 3, 4, 5, 6))])
def test_half_or_more_of_the_ranks_are_not_few(ranks: int, fast: tuple[int, ...]):
    own = gpus(1, ranks, 0.003)
    own[:, list(fast)] -= 0.12 * STEP
    assert find_fast_ranks(team(own), STEP) is None


def test_slow_ranks_that_spread_as_widely_leave_no_gap():
    own = gpus(1, 6, 0.003)
    own += np.array([0.0, 0.08, 0.12, 0.16, 0.2, 0.24]) * STEP
    assert find_fast_ranks(team(own), STEP) is None


def test_three_slow_ranks_of_four_are_not_cleared(tmp_path: Path):
    faults = [Fault.parse(f"slow_gpu:rank={rank},factor=1.3") for rank in (0, 2, 3)]
    found = ingest_run(simulate(small(ranks=4, steps=6), faults), tmp_path).diagnose()
    assert not {rank for one in found.culprits for rank in one.ranks} & {1}
    assert found.conclusion.cleared == ()
    assert any(note.startswith("Rank 1 needs") and "than ranks 0,2-3: unless" in note for note in found.notes)
    assert "Rank 1 needs" in found.verdict


@pytest.mark.parametrize("seed", [2, 3])
def test_slow_gpus_in_turn_are_one_finding_with_all_of_them(tmp_path: Path, seed: int):
    """Each by 25% in one step: of eight, one was within what chance gives of one rank, and its step had no cause."""
    turns = [Fault.parse(f"slow_gpu:rank={7 * step % 16},step={step},factor=1.25") for step in range(1, 9)]
    run = simulate(small(ranks=16, steps=9, noise=0.02, seed=seed), turns)
    found = ingest_run(run, tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.scope, culprit.recurs) == ("job", "no")
    assert culprit.ranks == tuple(sorted(7 * step % 16 for step in range(1, 9)))
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run), rel=0.05)
    assert all(step.cause == culprit.cause for step in found.steps[1:])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("growth", "is_found"), [(0.015, True), (-0.015, False), (0.001, False)])
def test_steps_that_get_longer_and_longer_are_slow(seed: int, growth: float, is_found: bool):
    """As under a GPU's rising temperature: the growth is no scatter, and more than half of the steps may be slow."""
    rng = np.random.default_rng(seed)
    grown_ns = growth * STEP * np.arange(20) + rng.normal(0, 2e3, 20)
    own = 0.8 * STEP + grown_ns[:, None] + rng.normal(0, 2e3, (20, 8))
    found = slow_steps([team(own, 0.8 * STEP + grown_ns)], STEP + grown_ns)
    assert (found is not None) is is_found
    if found is not None:
        assert found.ranks == tuple(range(8))
        assert found.steps == tuple(range(found.steps[0], 20))
        above_ns = grown_ns[list(found.steps)] - grown_ns[0]
        assert 0.5 * above_ns.sum() < (found.known_gain_ns or 0.0) <= above_ns.sum()


@pytest.mark.parametrize("noise", ["normal", "uniform"])
def test_thousands_of_steps_of_noise_have_no_outliers(noise: str):
    """Their middle tells that the noise has lighter tails than the worst case, and no rank is late."""
    rng = np.random.default_rng(1)
    scatter = rng.standard_normal((5_000, 2)) if noise == "normal" else rng.uniform(-(3**0.5), 3**0.5, (5_000, 2))
    assert find_outliers(team(0.8 * STEP + 1.5e4 * scatter), np.full(5_000, STEP)) == []


@pytest.mark.parametrize("steps", ["4-11", "8-11"])
def test_gpus_that_all_get_slower_for_good_are_no_larger_batches(tmp_path: Path, steps: str):
    """Also where they are slow in most of the steps, and the median one is."""
    slow = Fault.parse(f"slow_gpu:rank=0-7,step={steps},factor=1.3")
    run = simulate(small(ranks=8, steps=12, kernels=120), [slow])
    culprit = ingest_run(run, tmp_path).diagnose().culprits[0]
    assert (culprit.scope, culprit.cause, culprit.rung) == ("job", "gpu_compute", "steps")
    first, last = map(int, steps.split("-"))
    assert [key.step for key in culprit.steps] == list(range(first, last + 1))
    assert culprit.loss_ns == pytest.approx(true_gain_ns(run, slow), rel=0.05)


ALL = tuple(range(6))


@fuzz
@pytest.mark.parametrize("seed", some_of(range(5, 15), 5))
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Slow("slow_network", ALL, 4.0, (4, 5, 9)), "communication"),
        (Slow("late", ALL, 0.6, (4, 5, 9)), "late_start"),
        (Slow("pause", ALL, 0.7, (6,)), "cpu_launch"),
        (None, None),
    ],
)
def test_what_all_ranks_wait_for_between_batches_of_many_sizes(
    tmp_path: Path, fault: Slow | None, cause: str | None, seed: int
):
    """The steps take as long as their batches, from half to twice the usual time: the network and the hosts do not."""
    faults = () if fault is None else (fault,)
    job = IrregularJob(seed, "overlapped", 6, 12, 30, "batches", transfer=0.12, batches=0.25, faults=faults)
    lake, saved = ingest_job(job, tmp_path)
    found, least_ns = lake.diagnose().culprits, 0.02 * lake.diagnose().time_ns
    named = [(one.cause, len(one.ranks), tuple(key.step for key in one.steps)) for one in found]
    expected = [] if fault is None else [(cause, 6, fault.steps)]
    # a host that is ahead may pause for nothing
    assert named == expected or (saved < least_ns and not named)
    for one in found:
        assert one.gain_ns == pytest.approx(saved, rel=0.1, abs=least_ns)


@pytest.mark.parametrize(
    ("kind", "growth", "cause"),
    [("slow_collective:", 0.2, "communication"), ("slow_gpu:rank=0-7,", 0.03, "gpu_compute")],
)
def test_what_grows_from_step_to_step_is_compared_with_its_begin(tmp_path: Path, kind: str, growth: float, cause: str):
    faults = [Fault.parse(f"{kind}step={step},factor={1 + growth * step}") for step in range(1, 16)]
    run = simulate(small(ranks=8, steps=16), faults)
    (found,) = ingest_run(run, tmp_path).diagnose().culprits
    assert (found.cause, len(found.ranks), found.step_pattern.grows) == (cause, 8, True)
    truth_ns = run_ns(run) - run_ns(simulate(run.job))
    assert 0.75 * truth_ns < found.gain_ns < 1.05 * truth_ns  # what begins with the noise stays in it


@pytest.mark.parametrize("steps", [16, 200, 5_000])
@pytest.mark.parametrize("seed", range(3))
def test_with_what_a_drift_begins(steps: int, seed: int):
    """Also where it is little from step to step, beside the noise."""
    noise = np.random.default_rng(seed).normal(0, 2.0, steps)
    values = 100 + 40 * np.arange(steps) / (steps - 1) + noise
    values[2] = np.nan
    first = first_of_drift(values)
    assert first is not None
    assert first == pytest.approx(100, abs=3)
    assert first_of_drift(100 + noise) is None
    assert first_of_drift(np.full(steps, 100.0)) is None
