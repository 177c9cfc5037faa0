"""Which collectives are one, and in which order all can be computed."""

from pathlib import Path

import numpy as np
import pytest

from jitter.analysis.collectives.matching import Group, join_attended, match, take_stated
from jitter.analysis.execution.dependencies import Wait
from jitter.analysis.execution.schedule import CALLS, STARTS, schedule
from jitter.simulate import Fault, simulate, write
from tests.support.lakes import RankLake, collective, lake_of
from tests.support.programs import dependencies, program
from tests.support.simulated import ingest_run, ingest_traces, small


def met(found) -> set[frozenset[tuple[int, int]]]:
    """Each exchange as its (rank, place)s."""
    exchanges = set()
    for group in range(len(found.absent)):
        here = found.arrays.group == group
        exchanges.add(frozenset(zip(found.ranks[found.arrays.rank[here]], found.arrays.place[here], strict=True)))
    return exchanges


def ranks_of_blocks(found) -> list[tuple[int, ...]]:
    arrays = found.arrays
    return [tuple(found.ranks[block].tolist()) for block in np.split(arrays.member, arrays.first_member[1:-1])]


def all_at(place: int, *ranks: int) -> frozenset[tuple[int, int]]:
    return frozenset((rank, place) for rank in ranks)


TWO_PAIRS = {0: Group((0, 1)), 1: Group((0, 1)), 2: Group((2, 3)), 3: Group((2, 3))}
EVERYONE = Group((0, 1, 2, 3))


@pytest.mark.parametrize("name", ["by ranks", "by name"])
def test_groups_of_recorded_ranks_or_names(name: str):
    def told(group):
        return group if name == "by ranks" else Group(None, str(group))

    attended = {rank: [(1, told(TWO_PAIRS[rank])), (3, told(EVERYONE))] for rank in range(4)}
    found = match({0: program("kaka")}, dict.fromkeys(range(4), 0), attended)
    assert met(found) == {all_at(1, 0, 1), all_at(1, 2, 3), all_at(3, 0, 1, 2, 3)}
    assert ranks_of_blocks(found) == [(0, 1, 2, 3)]
    assert not found.unrecorded
    assert found.unpaired == 0
    assert found.named == (4 if name == "by ranks" else 0)


def test_several_of_one_group_meet_in_their_order():
    """Rank 1 holds the first and second where rank 0 does; the second's names do not matter."""
    attended = {0: [(0, EVERYONE), (2, EVERYONE)], 1: [(0, EVERYONE), (2, EVERYONE)]}
    assert met(match({0: program("akak")}, {0: 0, 1: 0}, attended)) == {all_at(0, 0, 1), all_at(2, 0, 1)}


def test_unrecorded_groups_are_all_ranks():
    attended = {rank: [(1, None), (3, None)] for rank in range(3)}
    found = match({0: program("kaka")}, dict.fromkeys(range(3), 0), attended)
    assert met(found) == {all_at(1, 0, 1, 2), all_at(3, 0, 1, 2)}
    assert found.unrecorded
    assert found.named == 0
    assert np.diff(found.arrays.first_group).tolist() == [1, 1]


def test_teams_with_other_unrecorded_collectives_meet_among_themselves():
    programs = {0: program("ka"), 1: program("kga")}
    attended = {0: [(1, None)], 1: [(1, None)], 2: [(1, None), (2, None)], 3: [(1, None), (2, None)]}
    found = match(programs, {0: 0, 1: 0, 2: 1, 3: 1}, attended)
    assert met(found) == {all_at(1, 0, 1), all_at(1, 2, 3), all_at(2, 2, 3)}


def test_unrecorded_exchanges_of_stages_hold_nobody_up():
    programs = {0: program("kpa"), 1: program("ppka")}
    attended = {0: [(1, None), (2, None)], 1: [(0, None), (1, None), (3, None)]}
    found = match(programs, {0: 0, 1: 1}, attended)
    # each rank's sends and receives are its own; all-reduces are the team's
    assert found.unpaired == 3
    assert {frozenset({(0, 1)}), frozenset({(1, 0)}), frozenset({(1, 1)})} <= met(found)


def test_what_is_not_left_together_is_each_ranks_own():
    attended = {rank: [(1, None), (3, None)] for rank in range(3)}
    found = match({0: program("kaka")}, dict.fromkeys(range(3), 0), attended, frozenset({(0, 1), (1, 1), (2, 1)}))
    assert met(found) == {frozenset({(rank, 1)}) for rank in range(3)} | {all_at(3, 0, 1, 2)}
    assert found.unpaired == 3


def test_sends_and_receives_of_a_pipeline():
    """Stage 1 receives what stage 0 sends, at other places of another program; ranks of a stage form a block."""
    programs = {0: program("kpkp"), 1: program("pkpk")}
    pairs = {0: Group((0, 2)), 2: Group((0, 2)), 1: Group((1, 3)), 3: Group((1, 3))}
    attended = {rank: [(place, pairs[rank]) for place in ((1, 3) if rank < 2 else (0, 2))] for rank in range(4)}
    found = match(programs, {0: 0, 1: 0, 2: 1, 3: 1}, attended)
    assert met(found) == {
        frozenset({(0, 1), (2, 0)}),
        frozenset({(1, 1), (3, 0)}),
        frozenset({(0, 3), (2, 2)}),
        frozenset({(1, 3), (3, 2)}),
    }
    assert list(zip(found.teams, ranks_of_blocks(found), strict=True)) == [(0, (0, 1)), (1, (2, 3))]
    order = schedule(programs, {0: dependencies("kpkp"), 1: dependencies("pkpk")}, found)
    assert order.uncoupled == frozenset()
    assert_computable(order, programs, found)


def test_the_ends_of_a_pipeline_are_blocks_of_their_own():
    """Of one team, the first and last rank meet others at other places than those between."""
    attended = {0: [(1, Group((0, 1)))], 1: [(0, Group((0, 1))), (1, Group((1, 2)))], 2: [(0, Group((1, 2)))]}
    found = match({0: program("ppk")}, dict.fromkeys(range(3), 0), attended)
    assert sorted(ranks_of_blocks(found)) == [(0,), (1,), (2,)]
    assert met(found) == {frozenset({(0, 1), (1, 0)}), frozenset({(1, 1), (2, 0)})}


def assert_computable(order, programs, found) -> None:
    """Each call once and in order, each start after its call and in the order of its stream; each exchange when all
    have come to it, and before anyone goes past it on its stream.
    """
    called = dict.fromkeys(range(len(found.teams)), 0)
    started: set[tuple[int, int]] = set()
    held = set()
    of_place = {member: number for number, members in enumerate(found.members) for member in members}
    for block, first, last, part in order.instructions:
        if block < 0:
            assert first not in held
            held.add(first)
            assert started.issuperset(found.members[first])
            continue
        assert first < last
        if part != STARTS:
            assert called[block] == first
            called[block] = last
        operations = programs[found.teams[block]].operations
        for place in range(first, last) if part != CALLS else ():
            assert place < called[block]
            stream = operations[place].stream
            before = [other for other in range(place) if operations[other].stream == stream and stream >= 0]
            assert started.issuperset((block, other) for other in before)
            if before and (block, before[-1]) in of_place:
                assert of_place[block, before[-1]] in held | order.uncoupled
            started.add((block, place))
    sizes = {number: len(programs[team].operations) for number, team in enumerate(found.teams)}
    assert called == sizes
    assert len(started) == sum(sizes.values())
    assert held | order.uncoupled == set(range(len(found.members)))


@pytest.mark.parametrize("waiting", ["on the stream", "by an event", "by a call"])
def test_contradictory_orders_are_uncoupled_and_do_not_hang(waiting: str):
    """Rank 0 meets in group one, then two; rank 1 the other way round: nobody could ever have run this."""
    words = {"on the stream": "aak", "by an event": "akaK"[:3], "by a call": "asak"}[waiting]
    where = (0, words.index("a", 1))
    waits = {
        "on the stream": (),
        "by an event": (Wait(1, 0, "event"), Wait(2, 1, "event")),
        "by a call": (Wait(1, 0, "sync"),),
    }[waiting]
    one, two = Group(None, "one"), Group(None, "two")
    attended = {0: [(where[0], one), (where[1], two)], 1: [(where[0], two), (where[1], one)]}
    programs = {0: program(words)}
    found = match(programs, {0: 0, 1: 0}, attended)
    assert met(found) == {frozenset({(0, where[0]), (1, where[1])}), frozenset({(0, where[1]), (1, where[0])})}
    order = schedule(programs, {0: dependencies(words, waits)}, found)
    assert len(order.uncoupled) == 1
    assert_computable(order, programs, found)


def test_orders_that_agree_are_all_kept():
    one, two = Group(None, "one"), Group(None, "two")
    attended = {0: [(0, one), (1, two)], 1: [(0, one), (1, two)], 2: [(0, two)]}
    programs = {0: program("aak")}
    found = match(programs, dict.fromkeys(range(3), 0), attended)
    order = schedule(programs, {0: dependencies("aak")}, found)
    assert order.uncoupled == frozenset()
    assert_computable(order, programs, found)


@pytest.mark.parametrize("queue", [None, 3, 2])
def test_hosts_run_ahead_where_ranks_come_to_their_messages_in_different_orders(queue: int | None):
    """Rank 0 sends a third message, on another stream, for which rank 1 waits before it receives the first two."""
    programs = {0: program("kppkp"), 1: program("pkpp")}
    for team, place in ((0, 4), (1, 0)):
        operations = list(programs[team].operations)
        operations[place] = operations[place]._replace(stream=3)
        programs[team] = type(programs[team])((*operations,), programs[team].places, programs[team].reference)
    first, third = Group((0, 1), "first"), Group((0, 1), "third")
    attended = {0: [(1, first), (2, first), (4, third)], 1: [(0, third), (2, first), (3, first)]}
    found = match(programs, {0: 0, 1: 1}, attended)
    rules = {0: dependencies("kppkp", (), queue), 1: dependencies("pkpp", (Wait(1, 0, "event"), Wait(2, 1, "event")))}
    order = schedule(programs, rules, found)
    assert order.uncoupled == frozenset()
    assert any(part == CALLS for *_, part in order.instructions)
    assert_computable(order, programs, found)


PAIR = Group((0, 1))


def test_an_evaluation_in_every_third_step_is_matched(tmp_path: Path):
    """The first step has none: its collective took part in nothing, and waiting in it was own time."""
    steps = {
        (None, number): [
            collective("ncclDevKernel_AllReduce_Sum", 10_000 * number + 10, 10_000 * number + 900),
            *(
                [collective("ncclDevKernel_AllReduce_Max", 10_000 * number + 2_000, 10_000 * number + 2_900)]
                if number % 3 == 2
                else []
            ),
        ]
        for number in range(7)
    }
    lake = lake_of(tmp_path / "lake", [RankLake(rank, steps) for rank in (0, 1)])
    matching = lake.analyze().run.matching
    assert np.diff(matching.arrays.first).tolist() == [2, 2]


def test_collectives_that_not_all_members_have_do_not_shift_the_others():
    first = {0: {0: PAIR, 5: PAIR}, 1: {0: PAIR, 5: PAIR}}
    alike = {rank: {**own, 3: PAIR} for rank, own in first.items()}
    team_of = {0: 0, 1: 0}
    assert join_attended(first, alike, team_of) == {rank: [(at, PAIR) for at in (0, 3, 5)] for rank in first}
    uneven = {0: alike[0], 1: first[1]}
    assert join_attended(first, uneven, team_of) == {rank: [(at, PAIR) for at in (0, 5)] for rank in first}


def test_a_rank_that_states_no_groups_is_in_those_that_others_state():
    """At place 5 two groups of its team name it, so that neither is taken."""
    others = [(1, Group((0, 1))), (3, EVERYONE), (5, Group((0, 1)))], [(1, None), (3, None), (5, None)]
    attended = {0: others[0], 1: others[1], 2: [(1, None), (3, EVERYONE), (5, Group((1, 2)))]}
    taken = take_stated(attended, {0: 0, 1: 0, 2: 0})
    assert taken == {0: others[0], 1: [(1, Group((0, 1))), (3, EVERYONE), (5, None)], 2: attended[2]}


@pytest.mark.parametrize("shape", ["data_parallel", "tensor_data"])
def test_a_node_of_another_profiler_that_states_no_groups_meets_the_others(tmp_path: Path, shape: str):
    run = simulate(small(shape, steps=5), [Fault.parse("slow_gpu:rank=1,factor=1.3")])
    traces = write(run, tmp_path / "kineto", "kineto")[:3] + write(run, tmp_path / "nsys", "nsys")[3:]
    found, whole = ingest_traces(tmp_path, *traces).diagnose(), ingest_run(run, tmp_path / "whole").diagnose()
    assert [(one.ranks, one.cause) for one in found.culprits if one.rung == "ranks"] == [((1,), "gpu_compute")]
    assert found.culprits[0].loss_ns == pytest.approx(whole.culprits[0].loss_ns, rel=0.02)
