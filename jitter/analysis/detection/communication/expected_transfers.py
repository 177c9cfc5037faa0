"""How long collectives should take by a bandwidth benchmark of the same job, and which take longer in every step."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jitter.analysis.detection.communication.slow_collectives import SlowCollectives, SlowCommunication
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.metrics.bandwidth_baseline import Baseline
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.bandwidth import bus_factor
from jitter.core.numeric.arrays import Bools, Floats
from jitter.core.step_key import StepKey


class _Kind(NamedTuple):
    """The properties that collectives must share for their times to be compared."""

    operation: str
    ranks: int
    size: float
    is_incomplete: bool


def transfers_by_benchmark(
    lake: RunReader, run: RunModel, benchmark: Baseline | None, usual: Floats, key: StepKey
) -> Floats:
    """Return, (groups of all collectives,), the time that each should take in steps like this one, ns; NaN: unknown.

    A complete group: by the benchmark's bandwidth. A group with unrecorded members: as long as the fastest of the same
    operation with the same or a larger message, by the `usual` times (groups of all collectives,). Not of sends and
    receives: a stage of a pipeline waits for the work of the one before it, which is no lateness.
    """
    kinds = _kinds(lake, run, key)
    found = np.full(len(usual), np.nan)
    fastest: dict[str, float] = {}
    least: dict[tuple[str, float], float] = {}
    for group, kind in sorted(kinds.items(), key=lambda one: -one[1].size):
        fastest[kind.operation] = float(np.fmin(fastest.get(kind.operation, np.nan), usual[group]))
        least[kind.operation, kind.size] = fastest[kind.operation]
    for group, kind in kinds.items():
        if kind.is_incomplete and kind.operation == "send_recv":
            continue
        if kind.is_incomplete:
            found[group] = least[kind.operation, kind.size]
        elif benchmark and (reached := benchmark.busbw(kind.operation, int(kind.size), kind.ranks)) is not None:
            found[group] = kind.size * bus_factor(kind.operation, kind.ranks) / reached  # GB/s are bytes per ns
    return found


def _kinds(lake: RunReader, run: RunModel, key: StepKey) -> dict[int, _Kind]:
    """Return the kind of each group, of all groups of all collectives, whose operation and size are known."""
    found: dict[int, _Kind] = {}
    sizes = _message_sizes(lake, run, key)
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
        first = int(run.collective_arrays.first_group[number])
        for group, size in size_of.items():
            if operation is not None:
                found[first + group] = _Kind(operation, ranks[group], size, collective.is_incomplete(group))
    return found


def _message_sizes(lake: RunReader, run: RunModel, key: StepKey) -> dict[tuple[int, int], dict[int, float]]:
    """Return message sizes in bytes by (team, rank) and place of the program, of one step."""
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


def slow_in_every_step(seen: Sequence[Floats], expected: Sequence[Floats]) -> Bools:
    """Return, (groups of all collectives,), which take clearly longer than expected in every step.

    `seen` are each step's times, `expected` those of steps of its kind, NaN where unknown.
    """
    every, least = np.stack(seen), np.stack(expected)
    unknown = np.isnan(every) | np.isnan(least)
    as_fast = ~unknown & (every * THRESHOLDS.efficiency.below_baseline <= least)
    return np.asarray(~as_fast.any(axis=0) & ~unknown.all(axis=0))


def slow_communication(
    run: RunModel, seen: Sequence[Floats], expected: Sequence[Floats], slow: Bools
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
    excess = np.nansum((np.stack(seen) - np.stack(expected))[:, slow], axis=1)
    sigmas = float(excess.mean() / max(float(excess.std()), 1.0))
    steps = tuple(range(len(seen)))
    incomplete = run.collective_arrays.incomplete[slow]
    one = SlowCollectives(frozenset(ranks), tuple(dict.fromkeys(meetings)), steps, float(excess.sum()), sigmas)
    return SlowCommunication(frozenset(ranks), (one,), by_benchmark=not incomplete.all())
