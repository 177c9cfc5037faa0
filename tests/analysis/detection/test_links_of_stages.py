"""Slow links of pipelines without replicas, whose exchanges have no equal ones: other links are the reference."""

from pathlib import Path

import pytest

from jitter.analysis.detection.run_transfers import number_alike
from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run, true_gain_ns


@pytest.mark.parametrize("form", ["kineto", "nsys"])
@pytest.mark.parametrize(
    ("fault", "ranks", "stages"), [("rank=3", (3,), 6), ("rank=5", (5,), 6), (None, (), 6), ("rank=1", (1,), 4)]
)
def test_a_slow_link_is_named(tmp_path: Path, fault: str | None, ranks: tuple[int, ...], stages: int, form: str):
    """It was part of what all ranks lose to communication. The last stage has one link, whose other end has a fast one.

    Of four stages a middle one has most of the links: their time was the fast one's baseline, and the loss unknown.
    Exports of nsys state no sizes: links with about as many exchanges are taken to carry messages of one size.
    """
    job = Job(ranks=stages, shape="pipeline", stages=stages, steps=6, kernels=240, seed=2)
    faults = [] if fault is None else [Fault.parse(f"slow_link:{fault},factor=10")]
    culprits = ingest_run(simulate(job, faults), tmp_path, form).diagnose().culprits
    slow = [culprit for culprit in culprits if culprit.rung == "ranks" and culprit.cause == "communication"]
    assert [culprit.ranks for culprit in slow] == ([ranks] if ranks else [])
    if slow:
        assert (slow[0].seen.steps, slow[0].confidence) == (6, "high" if form == "kineto" else "medium")
        assert slow[0] == culprits[0]
        assert any("sizes were not recorded" in line for line in slow[0].evidence) == (form == "nsys")


@pytest.mark.parametrize(("gpus_per_node", "links_between"), [(2, 3), (4, 1)])
def test_links_between_nodes_are_compared_with_each_other(tmp_path: Path, gpus_per_node: int, links_between: int):
    """The fastest exchange of each link, the next ones, and so on. Of one link nobody knows whether it is unusual."""
    job = Job(ranks=8, shape="pipeline", stages=8, steps=3, kernels=240, gpus_per_node=gpus_per_node, seed=2)
    analysis = ingest_run(simulate(job, []), tmp_path).analyze()
    arrays = analysis.run.collective_arrays
    alike = number_alike(analysis.run, analysis.keys[1], analysis.transfers.took).numbers
    links: dict[bool, dict[tuple[int, ...], list[tuple[float, int]]]] = {True: {}, False: {}}
    for exchange, number in enumerate(alike.tolist()):
        ranks = tuple(sorted(analysis.run.rank_numbers[arrays.rank[arrays.group == exchange]].tolist()))
        if len(ranks) == 2:
            is_between = ranks[0] // gpus_per_node != ranks[1] // gpus_per_node
            usual_ns = sorted(took[exchange] for took in analysis.transfers.took)[1]
            links[is_between].setdefault(ranks, []).append((usual_ns, number))
    assert {is_between: len(of) for is_between, of in links.items()} == {True: links_between, False: 7 - links_between}
    within, between = ({n for of in links[side].values() for _, n in of} for side in (False, True))
    assert not within & between
    for is_between, of_links in links.items():
        for exchanges in of_links.values():
            numbers = [number for _, number in sorted(exchanges)]
            if is_between and links_between == 1:
                assert len(set(numbers)) == len(numbers)
            else:
                assert numbers == sorted(numbers)
                assert len(set(numbers)) == min(len(numbers), len(between if is_between else within))


def test_what_else_a_slow_link_carries_bounds_the_saving(tmp_path: Path):
    """All collectives of a stage pass its link, and no size was recorded: nothing tells how long they should take."""
    job = Job(ranks=8, shape="pipeline", stages=4, steps=6, kernels=240, gpus_per_node=1, seed=2)
    run = simulate(job, [fault := Fault.parse("slow_link:rank=3,factor=4")])
    culprit = ingest_run(run, tmp_path, "nsys").diagnose().culprits[0]
    assert culprit.ranks == (3,)
    assert culprit.gain_range_ns is not None
    least_ns, most_ns = culprit.gain_range_ns
    assert least_ns < 0.9 * true_gain_ns(run, fault)
    assert most_ns == pytest.approx(true_gain_ns(run, fault), rel=0.15)
    assert culprit.evidence[-1].endswith("no equal collectives tell how long the others of these links should take")


def test_replicas_on_slow_links_do_not_hide_them(tmp_path: Path):
    """All links of one boundary are slow: its exchanges are as slow as their equal ones in other replicas."""
    job = Job(ranks=8, shape="pipeline", stages=4, steps=6, kernels=240, seed=2)
    lake = ingest_run(simulate(job, [Fault.parse("slow_link:ranks=0-1,factor=10")]), tmp_path)
    culprit = lake.diagnose().culprits[0]
    assert (culprit.cause, culprit.rung) == ("communication", "ranks")
    assert set(culprit.ranks) <= {0, 1, 2, 3}


def test_collectives_of_one_stage_alone_are_compared_with_those_of_the_others(tmp_path: Path):
    """The ranks of each stage meet in collectives that no other stage has: slow in every step, they were the usual."""
    job = Job(ranks=8, shape="pipeline", stages=4, steps=4, kernels=240, seed=2)
    (recording,) = simulate(job, []).ranks([0])
    shared = frozenset(op.kernel for op in recording.operations if op.group == "data" and op.kernel)
    slow = Fault("slow_link", frozenset([0]), kernels=shared, factor=10)
    run = simulate(job, [slow])
    diagnosis = ingest_run(run, tmp_path).diagnose()
    assert diagnosis.loss.ns == pytest.approx(true_gain_ns(run, slow), rel=0.15)
