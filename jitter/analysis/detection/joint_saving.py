"""Each finding's share of what fixing all of them saves: findings that share steps hide each other."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.replay.what_if import Scenario, together
from jitter.analysis.thresholds import THRESHOLDS


def share_saving(
    analysis: RunAnalysis, scenarios: Sequence[Scenario], alone_ns: Sequence[float], all_ns: float
) -> list[float]:
    """Return each scenario's share, ns, of what all of them save together.

    The Shapley value of up to `max_exact_shares` scenarios, else the additional saving in the order of what each saves
    alone. Scenarios that do not hide each other keep what they save alone.
    """
    if len(scenarios) < 2 or abs(sum(alone_ns) - all_ns) <= THRESHOLDS.min_gain_share * max(all_ns, 0.0):
        return list(alone_ns)
    everyone = tuple(range(len(scenarios)))
    if len(scenarios) <= THRESHOLDS.max_exact_shares:
        subsets = [subset for size in everyone for subset in combinations(everyone, size + 1)]
    else:
        order = sorted(everyone, key=lambda at: -alone_ns[at])
        subsets = [tuple(sorted(order[: size + 1])) for size in everyone]
    gains = analysis.gains([together(scenarios[at] for at in subset) for subset in subsets])
    value = dict(zip(subsets, gains, strict=True)) | {(): 0.0}
    if len(scenarios) <= THRESHOLDS.max_exact_shares:
        return shapley_values(len(scenarios), lambda subset: value[subset])
    shares = [0.0] * len(scenarios)
    before: tuple[int, ...] = ()
    for subset in subsets:
        (added,) = set(subset) - set(before)
        shares[added] = value[subset] - value[before]
        before = subset
    return shares


def shapley_values(count: int, value: Callable[[tuple[int, ...]], float]) -> list[float]:
    """Return the Shapley value of each of `count` players; `value` is that of a coalition, an ascending tuple.

    The mean over all orders of what a player adds to those before it (Shapley, "A value for n-person games", 1953).

    >>> shapley_values(2, {(): 0.0, (0,): 6.0, (1,): 0.0, (0, 1): 10.0}.__getitem__)
    [8.0, 2.0]
    """
    shares = []
    for player in range(count):
        others = [other for other in range(count) if other != player]
        total = 0.0
        for size in range(count):
            weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
            for before in combinations(others, size):
                total += weight * (value(tuple(sorted((*before, player)))) - value(before))
        shares.append(total)
    return shares
