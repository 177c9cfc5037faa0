"""How long collectives should take by a bandwidth benchmark of the same job, and which take longer in every step."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from jitter.analysis.detection.slow_collectives import SlowCollectives, SlowCommunication
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.metrics.communication.baseline import BELOW_BASELINE, Baseline
from jitter.core.arrays import Bools, Floats
from jitter.core.bandwidth import bus_factor


def expected_transfers(lake: RunReader, run: RunModel, benchmark: Baseline) -> Floats:
    """Return, (groups of all collectives,), the time that a benchmark's bandwidth gives, ns; NaN where unknown.

    Sizes are those of the middle step. A group with unrecorded ranks has no known time.
    """
    first_group = run.collective_arrays.first_group
    found = np.full(int(first_group[-1]), np.nan)
    sizes = _message_sizes(lake, run)
    for number, collective in enumerate(run.matching.collectives):
        ranks: Counter[int] = Counter()
        size_of: dict[int, float] = {}
        operation = None
        for member in collective.members:
            block = run.matching.blocks[member.block]
            operation = operation or run.programs[block.team].operations[member.place].collective
            for rank, group in zip(block.ranks, member.group.tolist(), strict=True):
                ranks[group] += 1
                size = sizes.get((block.team, rank), {}).get(member.place)
                if size is not None:
                    size_of[group] = max(size_of.get(group, 0.0), size)
        for group, size in size_of.items():
            if operation is None or collective.incomplete[group]:
                continue
            reached = benchmark.busbw(operation, int(size), ranks[group])
            factor = bus_factor(operation, ranks[group])
            if reached is not None and factor is not None:
                found[int(first_group[number]) + group] = size * factor / reached  # GB/s are bytes per ns
    return found


def _message_sizes(lake: RunReader, run: RunModel) -> dict[tuple[int, int], dict[int, float]]:
    """Return message sizes in bytes by (team, rank) and place of the program, of the middle step."""
    key = run.keys[len(run.keys) // 2]
    found: dict[tuple[int, int], dict[int, float]] = {}
    for team in run.programs:
        ranks = sorted(run.ranks(key, team))
        if not ranks:
            continue
        places = run.collective_places(team)
        rows = run.file_rows(key, team, ranks)[places]
        for rank, own, sizes in zip(ranks, rows.T.tolist(), lake.message_sizes(key, ranks), strict=True):
            known = ((place, row) for place, row in zip(np.asarray(places).tolist(), own, strict=True) if row >= 0)
            found[team, rank] = {place: float(sizes[row]) for place, row in known if not np.isnan(sizes[row])}
    return found


def slow_in_every_step(seen: Sequence[Floats], expected: Floats) -> Bools:
    """Return, (groups of all collectives,), which take clearly longer than expected in every step."""
    every = np.stack(seen)
    known = ~np.isnan(every).all(axis=0) & ~np.isnan(expected)
    found = np.zeros(len(expected), np.bool_)
    found[known] = np.nanmin(every[:, known], axis=0) * BELOW_BASELINE > expected[known]
    return found


def slow_communication(
    run: RunModel, seen: Sequence[Floats], expected: Floats, slow: Bools
) -> SlowCommunication | None:
    """Return the collectives that are slow in every step as one finding; None if there are none."""
    first_group = run.collective_arrays.first_group
    meetings, ranks = [], set()
    for number, collective in enumerate(run.matching.collectives):
        for member in collective.members:
            block = run.matching.blocks[member.block]
            for rank, group in zip(block.ranks, member.group.tolist(), strict=True):
                if slow[int(first_group[number]) + group]:
                    ranks.add(rank)
                    meetings.append((number, group))
    if not meetings:
        return None
    excess = np.nansum(np.stack(seen)[:, slow] - expected[slow], axis=1)
    sigmas = float(excess.mean() / max(float(excess.std()), 1.0))
    steps = tuple(range(len(seen)))
    one = SlowCollectives(frozenset(ranks), tuple(dict.fromkeys(meetings)), steps, float(excess.sum()), sigmas)
    return SlowCommunication(frozenset(ranks), (one,), by_benchmark=True)
