"""The pipeline stage of each rank, of all replicas of the pipeline, as its collectives tell."""

from collections.abc import Iterable, Mapping

import numpy as np

from jitter.analysis.diagnosis.evidence.locations import ranks_of_group
from jitter.analysis.execution.run_model import RunModel


def stages_of_ranks(run: RunModel) -> Mapping[int, frozenset[int]]:
    """Return for each rank of a pipeline the ranks of its stage, itself among them; without entries of other ranks.

    Ranks that send to each other in pairs are of one replica; more at once, or at one place of their program, are a
    ring, whose ranks do equal work. Collectives join the ranks of a stage if none of these ranks are of the same
    replica, as all ranks of the job, or the first and last stage, are.
    """
    exchanges: set[tuple[int, ...]] = set()
    others: set[tuple[int, ...]] = set()
    for number, collective in enumerate(run.matching.collectives):
        places = [(run.matching.blocks[member.block].team, member.place) for member in collective.members]
        is_exchange = any(run.programs[team].operations[place].is_exchange for team, place in places)
        if is_exchange and len(set(places)) == 1:
            continue
        groups = range(int(np.diff(run.collective_arrays.first_group[number : number + 2])[0]))
        (exchanges if is_exchange else others).update(tuple(ranks_of_group(run, number, group)) for group in groups)
    replica_of = _join(ranks for ranks in exchanges if len(ranks) < 3)
    apart = [
        group
        for group in others
        if all(rank in replica_of for rank in group) and len({replica_of[rank] for rank in group}) == len(group)
    ]
    stage_of = {rank: rank for rank in replica_of} | _join(apart)
    ranks_of: dict[int, set[int]] = {}
    for rank, stage in stage_of.items():
        ranks_of.setdefault(stage, set()).add(rank)
    return {rank: frozenset(ranks_of[stage]) for rank, stage in stage_of.items()}


def _join(groups: Iterable[tuple[int, ...]]) -> dict[int, int]:
    """Return for each rank of some groups one that all ranks joined with it have in common."""
    joined: dict[int, int] = {}

    def lowest(rank: int) -> int:
        while joined.setdefault(rank, rank) != rank:
            rank = joined[rank]
        return rank

    for group in groups:
        least = min(map(lowest, group), default=-1)
        for rank in group:
            joined[lowest(rank)] = least
    return {rank: lowest(rank) for rank in joined}
