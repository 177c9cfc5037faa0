"""Collectives that only some steps have, such as of an evaluation, meet as those of every step do."""

from pathlib import Path

from jitter.analysis.collectives.matching import Group, join_attended
from tests.support.lakes import RankLake, collective, lake_of

EVERYONE = Group((0, 1))


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
    assert [sum(len(member.group) for member in one.members) for one in matching.collectives] == [2, 2]


def test_collectives_that_not_all_members_have_do_not_shift_the_others():
    first = {0: {0: EVERYONE, 5: EVERYONE}, 1: {0: EVERYONE, 5: EVERYONE}}
    alike = {rank: {**own, 3: EVERYONE} for rank, own in first.items()}
    team_of = {0: 0, 1: 0}
    assert join_attended(first, alike, team_of) == {rank: [(at, EVERYONE) for at in (0, 3, 5)] for rank in first}
    uneven = {0: alike[0], 1: first[1]}
    assert join_attended(first, uneven, team_of) == {rank: [(at, EVERYONE) for at in (0, 5)] for rank in first}
