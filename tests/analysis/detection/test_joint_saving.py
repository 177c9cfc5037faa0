"""Shares add up to the joint saving, are equal for equals, and are the mean over all orders."""

from itertools import permutations

import pytest

from jitter.analysis.detection.joint_saving import shapley_values


def slowest(delays: tuple[float, ...]):
    """Return the saving of repairing a set of ranks: the step takes as long as its slowest rank."""

    def saved(subset: tuple[int, ...]) -> float:
        return max(delays) - max((0.0, *(delay for at, delay in enumerate(delays) if at not in subset)))

    return saved


def by_orders(count: int, value) -> list[float]:
    shares, orders = [0.0] * count, list(permutations(range(count)))
    for order in orders:
        for at, player in enumerate(order):
            shares[player] += value(tuple(sorted(order[: at + 1]))) - value(tuple(sorted(order[:at])))
    return [share / len(orders) for share in shares]


@pytest.mark.parametrize(
    "delays", [(12.0, 2.0), (5.0, 5.0, 5.0), (9.0, 7.0, 1.0, 4.0), (1.0,), (3.0, 0.0, 8.0, 8.0, 2.0)]
)
def test_shares_are_the_mean_over_all_orders(delays: tuple[float, ...]):
    value = slowest(delays)
    found = shapley_values(len(delays), value)
    assert found == pytest.approx(by_orders(len(delays), value))
    assert sum(found) == pytest.approx(max(delays))


def test_a_hidden_fault_has_a_share():
    large, small = shapley_values(2, slowest((12.0, 2.0)))
    assert (large, small) == (11.0, 1.0)
