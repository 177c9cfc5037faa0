"""Nodes of which every rank varies by itself, and is late usually: none shows it alone, all of them do."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jitter.analysis.detection.deviations import TeamDeviations, subtract_median_of_others
from jitter.analysis.detection.standouts import Standouts, find_standouts
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_partial_run, ingest_run, small

STEPS, RANKS, STEP_NS = 14, 16, 2.2e7
NODES = [np.arange(8), np.arange(8, 16)]
LOADING_NS = 5e6


def loading(rng: np.random.Generator, ranks: int = RANKS) -> np.ndarray:
    return LOADING_NS * rng.lognormal(0, 0.35, (STEPS, ranks))


def deviations(start_ns: np.ndarray) -> TeamDeviations:
    own = np.zeros((len(OWN_PARTS), *start_ns.shape))
    own[TimePart.START] = start_ns
    usual = np.full((len(OWN_PARTS), len(start_ns), 1), LOADING_NS)
    noise = np.full_like(usual, 100.0)
    return TeamDeviations(0, np.arange(start_ns.shape[1]), subtract_median_of_others(own), noise, usual)


def standouts(start_ns: np.ndarray, nodes: Sequence[np.ndarray] = NODES) -> tuple[Standouts, np.ndarray]:
    """Return when ranks stand out that begin (steps, ranks) at these times, and the times of the steps."""
    team, step_ns = deviations(start_ns), np.full(len(start_ns), STEP_NS)
    of_nodes = find_standouts(team.of_places(nodes), TimePart.START, step_ns)
    return find_standouts(team, TimePart.START, step_ns).with_places(of_nodes, nodes, step_ns), step_ns


def usually_late(start_ns: np.ndarray) -> list[int]:
    """Return the ranks that usually begin late, of ranks that begin (steps, ranks) at these times."""
    of_ranks, step_ns = standouts(start_ns)
    return [late.rank for late in of_ranks.outliers(step_ns) if late.persistent]


def test_all_ranks_of_a_slow_node_are_late():
    found = 0
    for seed in range(20):
        start_ns = loading(np.random.default_rng(seed))
        start_ns[:, 8:] *= 1.8
        found += usually_late(start_ns) == list(range(8, 16))
    assert found >= 17


def test_no_rank_is_where_each_varies():
    assert sum(bool(usually_late(loading(np.random.default_rng(seed)))) for seed in range(40)) <= 2


def test_no_rank_is_where_those_of_a_node_vary_together():
    of_nodes = (loading(np.random.default_rng(seed), len(NODES)) for seed in range(40))
    assert sum(bool(usually_late(np.repeat(nodes, 8, axis=1))) for nodes in of_nodes) <= 2


def test_nodes_that_are_slow_one_after_the_other_are_named(tmp_path: Path):
    """A job that goes on with other GPUs: it was said that any rank could be next."""
    late = [(rank, step) for step in range(12) for rank in (range(4) if step < 6 else range(4, 8))]
    faults = [Fault.parse(f"slow_gpu:rank={rank},step={step},factor=1.12") for rank, step in late]
    run = simulate(small(ranks=8, steps=12, gpus_per_node=4), faults)
    found = {one.ranks: one for one in ingest_run(run, tmp_path).diagnose().culprits if one.rung == "ranks"}
    assert {ranks: (one.scope, one.cause, one.recurs, one.seen.steps) for ranks, one in found.items()} == {
        (0, 1, 2, 3): ("host", "gpu_compute", "yes", 6),
        (4, 5, 6, 7): ("host", "gpu_compute", "yes", 6),
    }


def test_a_slow_rank_makes_no_slow_node():
    start_ns = loading(np.random.default_rng(0))
    start_ns[:, 3] += 2 * LOADING_NS
    assert usually_late(start_ns) == [3]


def test_a_rank_of_a_slow_node_is_not_late_in_a_step_that_it_lacks():
    """Ranks differ for ever, so that only the last of four nodes shows that its ranks are late."""
    nodes = [np.arange(8 * node, 8 * node + 8) for node in range(4)]
    named = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        usual_ns = LOADING_NS * rng.lognormal(0, 0.1, 32) * np.repeat([1, 1, 1, 1.5], 8)
        start_ns = usual_ns * rng.lognormal(0, 0.01, (STEPS, 32))
        start_ns[4, 30] = np.nan
        of_ranks, step_ns = standouts(start_ns, nodes)
        steps = [late.steps for late in of_ranks.outliers(step_ns) if late.rank == 30]
        named += steps == [tuple(step for step in range(STEPS) if step != 4)]
    assert named == 10


def test_the_rest_of_a_node_is_late_with_most_of_it():
    """From step 7 on each rank of node 1 is late by another time in each step: some do not stand out by themselves."""
    named = whole = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        start_ns = LOADING_NS * rng.normal(1.0, 0.01, (STEPS, RANKS))
        start_ns[7:, 8:] += LOADING_NS * rng.uniform(0.1, 1.2, (STEPS - 7, 8))
        start_ns[7:, 13] = LOADING_NS
        team, step_ns = deviations(start_ns), np.full(STEPS, STEP_NS)
        found = find_standouts(team, TimePart.START, step_ns)
        alone, joined = (
            {late.rank for late in some.outliers(step_ns) if len(late.steps) > 3}
            for some in (found, found.with_rest_of_places(NODES))
        )
        assert alone <= joined
        named += joined == {*range(8, 16)} - {13}
        whole += alone == {*range(8, 16)} - {13}
    assert named >= 17
    assert whole < 15


def test_a_gpu_of_a_slow_node_whose_kernels_leave_the_cause_open_is_slow_with_it(tmp_path: Path):
    """On rank 7 some kernels take no longer: its share of the work may be larger, but its node's GPUs are slow."""
    slow = ["slow_gpu:rank=4-6,factor=1.2", "slow_gpu:rank=7,kernels=0-33,factor=1.2"]
    run = simulate(small(ranks=8, steps=10, gpus_per_node=4), [Fault.parse(fault) for fault in slow])
    (culprit,) = (one for one in ingest_run(run, tmp_path).diagnose().culprits if one.rung == "ranks")
    assert (culprit.scope, culprit.ranks, culprit.cause) == ("host", (4, 5, 6, 7), "gpu_compute")


def test_a_rank_of_a_slow_node_that_is_not_late_itself_does_not_stand_out():
    start_ns = loading(np.random.default_rng(2))
    start_ns[:, 8:] *= 1.8
    start_ns[:, 12] = LOADING_NS * 0.5
    of_ranks, _ = standouts(start_ns)
    assert of_ranks.is_persistent[[8, 12]].tolist() == [True, False]
    assert of_ranks.chance[8] < of_ranks.chance[12] == 1.0


def test_the_hosts_of_a_slow_half_are_named(tmp_path: Path):
    """Two of four nodes: neither stands out from the other three."""
    fault = Fault.parse("slow_gpu:ranks=4-11,factor=1.1")
    run = simulate(small(ranks=16, gpus_per_node=4, steps=8, kernels=24, noise=0.005, seed=8), [fault])
    (culprit, *_) = ingest_run(run, tmp_path, "nsys").diagnose().culprits
    assert set(culprit.ranks) == set(fault.ranks)
    assert any("they are all ranks of 2 hosts (node0001" in sentence for sentence in culprit.evidence)


def test_ranks_that_were_not_recorded_are_none_of_all_ranks_of_a_host(tmp_path: Path):
    fault = Fault.parse("slow_gpu:ranks=4-11,factor=1.1")
    run = simulate(small(ranks=16, gpus_per_node=4, steps=8, kernels=24, noise=0.005, seed=8), [fault])
    (culprit, *_) = ingest_partial_run(run, tmp_path, "nsys", absent=frozenset({2, 6, 10, 14})).diagnose().culprits
    assert set(culprit.ranks) == {4, 5, 7, 8, 9, 11}
    assert any("they are all recorded ranks of 2 hosts (node0001" in sentence for sentence in culprit.evidence)


def test_ranks_of_which_no_one_has_the_middle_step_have_a_node(tmp_path: Path):
    """Nodes were those of the ranks that recorded the middle step: others were tested without their node."""
    lake = ingest_run(simulate(small()), tmp_path)
    middle = lake.step_keys[len(lake.step_keys) // 2]
    records = {
        key: {rank: lake.record_of(key, rank) for rank in lake.ranks_of(key) if key != middle or rank < 2}
        for key in lake.step_keys
    }
    reader = RunReader(lake.root, records, lake.kernel_indices, lake.step_keys)
    assert reader.nodes == {0: 0, 1: 0, 2: 1, 3: 1}
