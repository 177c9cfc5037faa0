"""Exact Shapley values over ranks, and all transfers as one player, by the project's what-if replays."""

import itertools
from collections.abc import Sequence

import numpy as np

from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.execution.self_times import OWN_PARTS
from jitter.analysis.replay.what_if import Scenario, ScenarioReplay
from jitter.core.numeric.arrays import Floats
from tests.account.tape import shapley

LINK = -1
"""The player that has all transfers."""


def mean_gains(analysis: RunAnalysis, scenarios: Sequence[Scenario]) -> Floats:
    """Return, (steps, scenarios), how much shorter each step would be."""
    replayed = ScenarioReplay(analysis.run, scenarios, analysis.transfers.baseline)
    for recorded in analysis.steps.stretches():
        replayed.replay(recorded, analysis.steps.find_baselines(recorded))
    return np.array(replayed.gained)


def exact_shares(analysis: RunAnalysis) -> tuple[dict[int, Floats], Floats]:
    """Return (steps,) the Shapley value of each rank's number and of `LINK` in each step's loss; and the losses, ns."""
    numbers = analysis.run.number_of
    players = [LINK, *numbers]
    every = frozenset(range(len(analysis.keys)))
    transfers = range(int(analysis.run.collective_arrays.first_group[-1]))
    subsets = [frozenset(some) for n in range(len(players) + 1) for some in itertools.combinations(players, n)]
    scenarios = [
        Scenario(
            parts={(rank, part): every for rank in numbers if rank not in some for part in OWN_PARTS},
            transfers={} if LINK in some else dict.fromkeys(transfers, every),
        )
        for some in subsets
    ]
    gains = dict(zip(subsets, -mean_gains(analysis, scenarios).T, strict=True))
    values = shapley(players, gains.__getitem__)  # type: ignore[arg-type]
    loss = gains[frozenset(players)] - gains[frozenset()]
    return {LINK if one == LINK else numbers[one]: value for one, value in zip(players, values, strict=True)}, loss  # type: ignore[misc]
