"""Nodes of which every rank varies by itself, and is late usually: none shows it alone, all of them do."""

from pathlib import Path

import numpy as np

from jitter.analysis.detection.deviations import TeamDeviations, subtract_median_of_others
from jitter.analysis.detection.standouts import find_standouts
from jitter.analysis.execution.self_times import OWN_PARTS, TimePart
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small

STEPS, RANKS, STEP_NS = 14, 16, 2.2e7
NODES = [np.arange(8), np.arange(8, 16)]
LOADING_NS = 5e6


def loading(rng: np.random.Generator, ranks: int = RANKS) -> np.ndarray:
    return LOADING_NS * rng.lognormal(0, 0.35, (STEPS, ranks))


def usually_late(start_ns: np.ndarray) -> list[int]:
    """Return the ranks that usually begin late, of ranks that begin (steps, ranks) at these times."""
    own = np.zeros((len(OWN_PARTS), *start_ns.shape))
    own[TimePart.START] = start_ns
    usual = np.full((len(OWN_PARTS), len(start_ns), 1), LOADING_NS)
    noise = np.full_like(usual, 100.0)
    team = TeamDeviations(0, np.arange(RANKS), subtract_median_of_others(own), noise, usual)
    step_ns = np.full(len(start_ns), STEP_NS)
    of_nodes = find_standouts(team.of_places(NODES), TimePart.START, step_ns)
    of_ranks = find_standouts(team, TimePart.START, step_ns).with_places(of_nodes, NODES, step_ns)
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


def test_a_slow_rank_makes_no_slow_node():
    start_ns = loading(np.random.default_rng(0))
    start_ns[:, 3] += 2 * LOADING_NS
    assert usually_late(start_ns) == [3]


def test_the_hosts_of_a_slow_half_are_named(tmp_path: Path):
    """Two of four nodes: neither stands out from the other three."""
    fault = Fault.parse("slow_gpu:ranks=4-11,factor=1.1")
    run = simulate(small(ranks=16, gpus_per_node=4, steps=8, kernels=24, noise=0.005, seed=8), [fault])
    (culprit, *_) = ingest_run(run, tmp_path, "nsys").diagnose().culprits
    assert set(culprit.ranks) == set(fault.ranks)
    assert any("they are all ranks of 2 hosts (node0001" in sentence for sentence in culprit.evidence)
