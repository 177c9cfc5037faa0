"""Collectives that are slow though all have arrived: everywhere, in one group, behind one rank; and chance."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jitter.analysis.collectives.matching import Group, match
from jitter.analysis.detection.run_transfers import attribute_to_ranks, find_slow_collectives
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.thresholds import THRESHOLDS
from jitter.simulate import Fault, simulate
from tests.accuracy.layouts.job import LayoutJob
from tests.accuracy.layouts.traces import ingest_job, true_cost_ns
from tests.support.programs import program
from tests.support.simulated import ingest_run, ingest_traces, small, true_gain_ns, write_traces

STEPS = 12
STEP_NS = np.full(STEPS, 1e6)
USUAL = 50_000.0


def meetings_of(groups: dict[int, list[object]]):
    """`groups` gives for each rank the groups of its collectives, in order."""
    count = len(groups[0])
    words = "a" * count
    attended = {rank: [(at, own[at]) for at in range(count)] for rank, own in groups.items()}
    return match({0: program(words)}, dict.fromkeys(groups, 0), attended)


def two_of_all(ranks: int = 4):
    everyone = Group(tuple(range(ranks)))
    return meetings_of({rank: [everyone, everyone] for rank in range(ranks)})


def pairs_and_all():
    """Two collectives of pairs (0, 1), (2, 3), two of (0, 2), (1, 3)."""
    one = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    other = {0: (0, 2), 2: (0, 2), 1: (1, 3), 3: (1, 3)}
    return meetings_of({r: [Group(tuple(one[r]))] * 2 + [Group(tuple(other[r]))] * 2 for r in range(4)})


def ranks_of(matching, number: int, group: int) -> frozenset[int]:
    arrays = matching.arrays
    return frozenset(matching.ranks[arrays.rank[arrays.group == arrays.first_group[number] + group]].tolist())


def found(
    matching,
    late=lambda step, ranks, number: 0.0,
    step_ns=STEP_NS,
    noise: float = 500.0,
    seed: int = 3,
    nodes=None,
    *,
    are_alike: bool = False,
    messages: tuple[int, ...] = (),
):
    """`late(step, ranks, collective)` ns come on top of chance; the first of alike collectives is the usual."""
    rng = np.random.default_rng(seed)
    groups = np.diff(matching.arrays.first_group).tolist()
    numbered = [(number, group) for number, count in enumerate(groups) for group in range(count)]
    seen = [
        np.array(
            [
                USUAL + rng.normal(0, noise) + late(step, ranks_of(matching, number, group), number)
                for number, group in numbered
            ]
        )
        for step in range(len(step_ns))
    ]
    usual = np.empty(len(numbered))
    for number in range(len(groups)):
        its, like = ([at for at, (other, _) in enumerate(numbered) if other == of] for of in (number, 0))
        like = like if are_alike else its
        usual[its] = sorted(float(step[at]) for step in seen for at in like)[(len(seen) * len(like) - 1) // 2]
    every, exchanges = np.arange(len(step_ns)), np.array([number in messages for number, _ in numbered])
    whole = np.ones((len(seen), len(numbered)), np.bool_)
    of_run = matching, np.array(seen), [usual] * len(seen), whole, step_ns, [every], nodes or {}, exchanges
    return find_slow_collectives(*of_run), seen, usual


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("make", [two_of_all, pairs_and_all])
def test_chance_is_no_slow_transfer(make, seed: int):
    assert found(make(), seed=seed)[0] == []


def test_of_all_in_two_steps():
    slow, seen, usual = found(two_of_all(), lambda step, ranks, number: 60_000.0 if step in (4, 5) else 0.0)
    assert [(one.ranks, one.steps) for one in slow] == [((0, 1, 2, 3), (4, 5))]
    excess = sum(seen[step][number] - usual[number] for step in (4, 5) for number in (0, 1))
    assert slow[0].excess_ns == pytest.approx(excess)
    assert slow[0].sigmas > 6


STAGE_OF = {rank: rank // 2 for rank in range(8)}
BORDERS, REPLICAS, WORLD = (0, 1), 2, 3


def stages_in_a_ring():
    """Four stages of two ranks: messages with the next stage and the one before, all-reduces of a stage, and of all."""
    groups: dict[int, list[object]] = {}
    for rank, stage in STAGE_OF.items():
        upward, downward = (rank, (rank + 2) % 8), ((rank - 2) % 8, rank)
        borders = [upward, downward] if stage % 2 == 0 else [downward, upward]
        stage_ranks = (2 * stage, 2 * stage + 1)
        groups[rank] = [*(Group(tuple(sorted(of))) for of in borders), Group(stage_ranks), Group(tuple(range(8)))]
    return meetings_of(groups)


@pytest.mark.parametrize(
    ("slow_ones", "nodes", "findings"),
    [
        ((*BORDERS, REPLICAS), STAGE_OF, [13]),
        (BORDERS, STAGE_OF, [8]),
        ((REPLICAS,), STAGE_OF, [5]),
        (BORDERS, dict.fromkeys(range(8), 0), [4, 4]),
    ],
)
def test_of_a_network_that_is_slow_for_all_its_messages(slow_ones, nodes, findings):
    """What takes no time, as an all-reduce of a number, tells nothing; nor do messages that all leave one node."""

    def late(step: int, ranks: frozenset[int], number: int) -> float:
        return 2e3 - USUAL if number == WORLD else 60_000.0 * (step in (4, 5) and number in slow_ones)

    slow, _, _ = found(stages_in_a_ring(), late, nodes=nodes, messages=BORDERS)
    assert [(one.ranks, one.steps, len(one.transfers)) for one in slow] == [
        (tuple(range(8)), (4, 5), count) for count in findings
    ]


@pytest.mark.parametrize("is_resized", [False, True])
def test_an_algorithm_that_is_slower_is_compared_with_the_one_before_it(tmp_path: Path, *, is_resized: bool):
    """The kernel has another name from step 6 on, the collective is the same, unless its messages have another size."""
    slow = Fault.parse("slow_collective:steps=6-11,factor=4")
    run = simulate(small(ranks=4, steps=12), [slow])
    for path in write_traces(run, tmp_path / "traces"):
        trace = json.loads(path.read_text())
        kernels = [event for event in trace["traceEvents"] if "AllReduce_Sum_bf16_RING" in event["name"]]
        for kernel in sorted(kernels, key=lambda kernel: kernel["ts"])[len(kernels) // 2 :]:
            kernel["name"] = kernel["name"].replace("RING", "TREE")
            kernel["args"]["In msg nelems"] *= 4 if is_resized else 1
            kernel["args"]["Out msg nelems"] *= 4 if is_resized else 1
        path.write_text(json.dumps(trace))
    culprits = [one for one in ingest_traces(tmp_path).diagnose().culprits if one.rung == "ranks"]
    saved_ns = true_gain_ns(run, slow)
    if is_resized:  # what is left are transfers that vary
        assert sum(one.gain_ns for one in culprits) < 0.3 * saved_ns
    else:
        assert [(one.cause, one.scope, one.seen.steps) for one in culprits] == [("communication", "job", 6)]
        assert culprits[0].gain_ns == pytest.approx(saved_ns, rel=0.05)


def test_of_one_group_all_along():
    slow, _, _ = found(pairs_and_all(), lambda step, ranks, number: 30_000.0 if ranks == {2, 3} else 0.0)
    assert [(one.ranks, one.steps) for one in slow] == [((2, 3), tuple(range(STEPS)))]
    assert len(slow[0].transfers) == 2


def test_of_all_groups_all_along():
    """As of a stage with a slow NIC, that all its groups cross: those of other stages tell what is usual."""
    slow, _, _ = found(pairs_and_all(), lambda step, ranks, number: 30_000.0 * (number > 1), are_alike=True)
    assert [(one.ranks, one.steps) for one in slow] == [(of, tuple(range(STEPS))) for of in ((0, 2), (1, 3))]
    assert min(one.sigmas for one in slow) > 10


def test_one_ranks_link_is_behind_all_its_groups():
    matching = pairs_and_all()
    slow, _, _ = found(matching, lambda step, ranks, number: 30_000.0 if 3 in ranks else 0.0)
    assert {one.ranks for one in slow} == {(2, 3), (1, 3)}
    (links,) = attribute_to_ranks(slow, {})
    assert links.ranks == (3,)
    assert len(links.transfers) == sum(len(one.transfers) for one in slow) == 4


def test_the_link_of_a_node_is_behind_the_groups_of_its_ranks():
    groups = {rank: Group(pair) for pair in ((0, 2), (1, 4), (3, 5), (6, 8), (7, 9)) for rank in pair}
    matching = meetings_of({rank: [groups[rank]] * 2 for rank in range(10)})
    slow, _, _ = found(matching, lambda step, ranks, number: 30_000.0 if ranks & {2, 3} else 0.0)
    assert {links.ranks for links in attribute_to_ranks(slow, {})} == {(0, 2), (3, 5)}
    (links,) = attribute_to_ranks(slow, {rank: rank // 2 for rank in range(10)})
    assert (links.ranks, len(links.transfers)) == ((2, 3), 4)


def test_an_end_with_other_fast_links_is_not_named():
    groups = {rank: Group(pair) for pair in ((0, 2), (1, 4)) for rank in pair}
    slow, _, _ = found(meetings_of({rank: [groups[rank]] * 2 for rank in (0, 1, 2, 4)}), lambda *of: 3e4 * (0 in of[1]))
    assert [links.ranks for links in attribute_to_ranks(slow, {}, lambda chosen: [(2, 4)])] == [(0,)]
    assert [links.ranks for links in attribute_to_ranks(slow, {}, lambda chosen: [(0, 4), (2, 4)])] == [(0, 2)]


def test_what_is_slow_in_other_steps_names_no_rank():
    """A group that is slow in two steps by chance had one rank in common with one that is slow in every step."""
    slow, _, _ = found(
        pairs_and_all(), lambda step, ranks, _: 6e4 * (ranks == {2, 3} or (ranks == {1, 3} and step < 2))
    )
    assert sorted(links.ranks for links in attribute_to_ranks(slow, {})) == [(1, 3), (2, 3)]


def test_what_is_slow_by_little_within_a_node_names_no_link_between_nodes():
    slow, _, _ = found(
        pairs_and_all(), lambda step, ranks, _: {(2, 3): 5e4, (1, 3): 5e3}.get(tuple(sorted(ranks)), 0.0)
    )
    told = attribute_to_ranks(slow, {0: 0, 1: 1, 2: 0, 3: 1})
    assert sorted(links.ranks for links in told) == [(1, 3), (2, 3)]


def test_groups_without_a_rank_in_common_answer_for_themselves():
    matching = pairs_and_all()
    slow, _, _ = found(
        matching,
        lambda step, ranks, number: {2: 30_000.0, 5: 60_000.0}.get(step, 0.0) if ranks in ({0, 1}, {2, 3}) else 0.0,
    )
    told = attribute_to_ranks(slow, {})
    assert sorted(links.ranks for links in told) == [(0, 1), (2, 3)]
    assert attribute_to_ranks([], {}) == []


def test_everywhere_is_told_before_groups_are():
    slow, _, _ = found(pairs_and_all(), lambda step, ranks, number: 60_000.0 if step == 6 else 0.0)
    assert [(one.ranks, one.steps) for one in slow] == [((0, 1, 2, 3), (6,))]


def test_what_is_too_little_of_a_step_is_left():
    late = lambda step, ranks, number: 10_000.0 if step == 6 else 0.0  # noqa: E731
    assert found(two_of_all(), late)[0]
    assert found(two_of_all(), late, step_ns=np.full(STEPS, 1e8))[0] == []


def test_groups_of_one_recorded_rank_wait_for_one_that_was_not():
    """Ranks 4 and 5 were not recorded: in steps 3 and 7 one of them, or the network, holds up ranks 0 and 1."""
    matching = meetings_of({0: [Group((0, 4))] * 2, 1: [Group((1, 5))] * 2})
    slow, _, _ = found(matching, lambda step, ranks, number: 90_000.0 if step in (3, 7) else 0.0)
    assert [(one.ranks, one.steps, one.is_incomplete) for one in slow] == [((0, 1), (3, 7), True)]
    slow, _, _ = found(
        matching, lambda step, ranks, number: 90_000.0 * (step == 3) + 50_000.0 * (step == 7 and 0 in ranks)
    )
    assert [(one.ranks, one.steps, one.is_incomplete) for one in slow] == [((0, 1), (3,), True), ((0,), (7,), True)]
    (of_all, of_one) = attribute_to_ranks(slow, {})
    assert (of_all.ranks, of_one.ranks) == ((0, 1), (0,))
    apart = [replace(one, steps_of_rank=dict.fromkeys(one.ranks, (3, 7))) for one in slow]
    (waits,) = attribute_to_ranks(apart, {})
    assert (waits.ranks, waits.steps, len(waits.transfers)) == ((0, 1), (3, 7), 6)


def test_a_rank_with_unknown_partners_tells_nothing():
    matching = meetings_of({0: [Group(None, "a")] * 2, 1: [Group(None, "b")] * 2})
    assert found(matching, lambda step, ranks, number: 90_000.0 if step == 3 else 0.0)[0] == []


def test_the_only_recorded_rank_waits_for_one_that_was_not():
    alone = meetings_of({0: [Group((0, 4))] * 2})
    (slow,) = found(alone, lambda step, ranks, number: 90_000.0 if step == 3 else 0.0)[0]
    assert (slow.ranks, slow.steps, slow.is_incomplete) == ((0,), (3,), True)
    assert slow.excess_ns == pytest.approx(180_000, rel=0.01)


def test_no_collectives_one_step_and_unknown_times():
    nothing = match({0: program("kk")}, {0: 0, 1: 0}, {0: [], 1: []})
    assert found(nothing)[0] == []
    assert found(two_of_all(), step_ns=np.array([1e6]))[0] == []
    assert found(two_of_all(), step_ns=np.full(STEPS, np.nan))[0] == []


def test_one_heavy_tail_is_chance_and_several_are_not():
    """A single step of 10 standard deviations occurs by chance; two larger steps, and one of 100, do not."""
    matching = two_of_all()
    assert found(matching, lambda step, ranks, number: 3_200.0 * (step == 4))[0] == []
    ((often,), *_) = found(matching, lambda step, ranks, number: 6_000.0 * (step in (1, 7)))
    ((far,), *_) = found(matching, lambda step, ranks, number: 60_000.0 * (step == 4))
    assert often.chance < THRESHOLDS.medium_chance
    assert far.chance < THRESHOLDS.high_chance


def test_half_of_the_groups_are_slow_in_every_step():
    """The groups of one of two links: their slowness is no spread of the groups."""
    matching = pairs_and_all()
    slow, *_ = found(matching, lambda step, ranks, number: 60_000.0 * (ranks == {0, 1}))
    assert {(one.ranks, one.steps) for one in slow} == {((0, 1), tuple(range(STEPS)))}


def test_all_groups_of_a_collective_are_one_finding():
    """Disjoint groups hide each other: with all three of them slow, as behind one switch, none stands out."""
    matching = meetings_of({r: [Group((r - r % 2, r - r % 2 + 1)), Group(tuple(range(6)))] for r in range(6)})
    slow, *_ = found(matching, lambda step, ranks, number: 60_000.0 * (len(ranks) == 2 and step in (4, 5)))
    assert [(one.ranks, one.steps) for one in slow] == [(tuple(range(6)), (4, 5))]
    assert len(slow[0].transfers) == 3


COLUMNS = meetings_of({rank: [Group((rank % 8, rank % 8 + 8))] * 3 for rank in range(16)})
"""Eight groups, each of two ranks, as of the rails of two nodes."""


def at_random(share: float, ranks=range(16)):
    """Return what is added to one collective in `share` of a group's steps, where it has any of these ranks."""
    hit = np.random.default_rng(5).random((STEPS, 16, 3)) < share
    return lambda step, of, number: 60_000.0 * hit[step, min(of), number] * (not of.isdisjoint(ranks))


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_what_any_group_has_at_random_is_one_finding(share: float):
    """Half of the steps or more are slow, by amounts that vary: the others tell what is usual."""
    slow, *_ = found(COLUMNS, at_random(share))
    (random,) = (one for one in slow if one.kind == "random_transfers")
    assert (random.ranks, len(random.transfers)) == (tuple(range(16)), 24)
    assert sum(len(one.steps) for one in slow) > STEPS * (1 - (1 - share) ** 24) / 2
    assert random in attribute_to_ranks(slow, {})


def test_what_one_group_or_those_of_one_node_have_is_not_at_random():
    of_one = found(COLUMNS, at_random(0.3, [3]))[0]
    assert [(one.kind, one.ranks) for one in of_one] == [("slow_transfers", (3, 11))]
    of_node = found(COLUMNS, at_random(0.3, range(4)), nodes={rank: rank // 4 for rank in range(16)})[0]
    assert {one.kind for one in of_node} == {"slow_transfers"}


@pytest.mark.parametrize("seed", range(5))
def test_transfers_that_hiccup_in_most_steps_are_events_and_no_noise(seed: int):
    """Any transfer may take 60 us more, one of 15 does: how the totals scatter is no measure of chance."""
    late_ns = 60_000.0 * (np.random.default_rng(seed).random((6, 40)) < 1 / 15)
    (slow,), *_ = found(
        meetings_of({rank: [Group((0, 1))] * 40 for rank in range(2)}),
        lambda step, _, number: late_ns[step, number],
        step_ns=np.full(6, 1e6),
        seed=seed,
    )
    assert slow.steps == tuple(np.flatnonzero(late_ns.any(axis=1)).tolist())
    assert slow.excess_ns == pytest.approx(late_ns.sum(), rel=0.05)


def test_sizes_are_read_of_few_steps_unless_they_vary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of 10,000 steps or 1,000 ranks it takes longer than all else to open each one's file."""
    transfers = ingest_run(simulate(small("tensor_parallel", ranks=2, steps=12), []), tmp_path).analyze().transfers
    read, seen = RunReader.message_sizes, []

    def stated(reader: RunReader, key, ranks):
        seen.append(key.step)
        return [sizes * (key.step + 1 if are_varied else 1) for sizes in read(reader, key, ranks)]

    monkeypatch.setattr(RunReader, "message_sizes", stated)
    for are_varied, expected in ((False, np.ones(12)), (True, np.arange(1, 13) / 6.5)):
        seen.clear()
        sizes = transfers._relative_sizes(np.arange(12))
        np.testing.assert_allclose(sizes, np.broadcast_to(expected[:, None], sizes.shape))
        assert len(set(seen)) == (12 if are_varied else THRESHOLDS.sampled_steps)


def test_groups_without_a_common_rank_that_are_slow_in_one_step_are_named(tmp_path: Path):
    job = LayoutJob(3, ranks=16, row=4, steps=8, naming="ranks", slow_groups=((0, 1, 2, 3), (8, 9, 10, 11)))
    (culprit,) = ingest_job(job, tmp_path).diagnose().culprits
    assert (culprit.ranks, culprit.cause) == ((0, 1, 2, 3, 8, 9, 10, 11), "communication")
    assert culprit.gain_ns == pytest.approx(true_cost_ns(job, job.healthy()), rel=0.02)
    assert any(line.startswith("2 groups (ranks 0-3, ranks 8-11) are slow") for line in culprit.evidence)


def test_a_network_that_is_slow_from_an_early_step_on_is_compared_with_the_steps_before(tmp_path: Path):
    """In most steps: their median is slow, and the fast ones would be what events are missing from."""
    slow = Fault.parse("slow_collective:step=4-11,factor=3")
    run = simulate(small(ranks=8, steps=12, kernels=120), [slow])
    culprit = ingest_run(run, tmp_path).diagnose().culprits[0]
    assert (culprit.scope, culprit.cause, culprit.confidence) == ("job", "communication", "high")
    assert [key.step for key in culprit.steps] == list(range(4, 12))
    assert culprit.loss_ns == pytest.approx(true_gain_ns(run, slow), rel=0.05)
