"""The tape's own formulas, against their definitions."""

import random

import pytest

from tests.account.tape import Given, Leaf, Mean, Node, Sum, Tape, end_of_work, shapley, shapley_of_latest


def time(r: float, b: float) -> Node:
    return Node(r=r, b=b, step=0)


@pytest.mark.parametrize("seed", range(20))
def test_shapley_values_of_a_maximum(seed: int):
    chosen = random.Random(seed)
    inputs = [time(chosen.randint(0, 9), chosen.randint(0, 9)) for _ in range(chosen.randint(1, 5))]
    since = chosen.randint(-3, 3)
    found = shapley_of_latest(inputs, since)
    by_definition = shapley(
        range(len(inputs)), lambda some: max(one.r if at in some else one.b + since for at, one in enumerate(inputs))
    )
    assert found == pytest.approx(by_definition)
    assert sum(found) == pytest.approx(max(one.r for one in inputs) - max(one.b for one in inputs) - since)


def test_work_beside_collectives():
    assert end_of_work(0, 10, [], 2) == 10
    assert end_of_work(0, 10, [(4, 100)], 2) == 16  # 4 alone, 6 at half the pace
    assert end_of_work(0, 10, [(4, 8), (6, 10)], 2) == 13  # 6 of the time beside either: 3 of the work
    assert end_of_work(5, 10, [(0, 3), (1, 7)], 2) == 16


@pytest.mark.parametrize(("steps_back", "earlier"), [(0, ("carried", 0)), (1, ("gpu", 0))])
def test_what_a_rank_comes_with_is_charged_to_the_steps_before(steps_back: int, earlier: tuple[str, int]):
    tape = Tape()
    # rank 1 is 3 late at the end of step 0, which is 1.5 late in the mean; 2 more in step 1
    begin = Given(r=3, b=3, step=0, rank=1)
    late = Leaf(r=4, b=1, step=0, rank=1, place=0, kind="gpu")
    ends = [Sum(r=7, b=4, step=0, rank=1, inputs=(begin, late)), Sum(r=4, b=4, step=0, rank=0, inputs=(begin,))]
    before = Mean(r=5.5, b=4, step=0, inputs=tuple(ends))
    own = Leaf(r=5, b=3, step=1, rank=1, place=2, kind="gpu")
    end = Sum(r=12, b=7, step=1, rank=1, inputs=(ends[0], own))
    mean = Mean(r=12, b=7, step=1, inputs=(end,))
    for node in (begin, late, *ends, before, own, end, mean):
        tape.put(node)
    tape.ends.append(before)
    shares = tape.shares(mean, steps_back)
    found = {(charge.kind, charge.step): share for charge, share in shares.items() if share}
    assert found == {("gpu", 1): 2.0, earlier: 1.5}
