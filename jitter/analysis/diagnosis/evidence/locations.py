"""Locations: kernel index and time range of a share of the loss, the ranks of a group, a rank's stage and GPU."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from jitter.analysis.account.losses import LossClass, Losses
from jitter.analysis.alignment.kernel_index import UNMATCHED, KernelIndex
from jitter.analysis.detection.run_analysis import RunAnalysis
from jitter.analysis.diagnosis.model import Culprit, KernelLocation, ProfileLocation
from jitter.analysis.execution.run_model import RunModel
from jitter.core.grouping import by_key
from jitter.core.names.kernels import MEMORY, SEND_RECV
from jitter.core.numeric.arrays import Ints
from jitter.core.step_key import StepKey
from jitter.lake.rank_places import RankPlace, number_gpus, short_host


class KernelLocator:
    """Finds kernel indices of operations: the ones that `KernelIndex` gives, as in tables, SQL and figures."""

    def __init__(self, analysis: RunAnalysis) -> None:
        self._analysis = analysis
        self._members: dict[int, tuple[Sequence[KernelIndex], dict[int, tuple[KernelIndex, str]]]] = {}
        """By the identity of a step's indices, which most steps share."""
        self._known: dict[tuple[int, str | None, str], Ints] = {}

    def locate(self, key: StepKey, rank: int, team: int, place: int) -> KernelLocation | None:
        """Return the kernel of an operation of a rank in this step; None where no kernel of its step has an index.

        An operation without a kernel index (a copy, a synchronising call, an unmatched kernel) has that of the next
        kernel with one, or else of the last.
        """
        member = self._members_of(key).get(rank)
        if member is None:
            return None
        index, sequence = member
        kernel_index = int(self._indices(key, rank, team, index, sequence)[place])
        return (
            None if kernel_index == UNMATCHED else KernelLocation(kernel_index, index.names[kernel_index], index.cohort)
        )

    def locate_all(self, losses: Losses) -> Ints:
        """Return (rows,) the kernel index of each share in the step of its operation; `UNMATCHED` where there is none.

        As `locate`.
        """
        indices = np.full(len(losses), UNMATCHED, np.int64)
        rows = np.flatnonzero((losses.place >= 0) & (losses.rank >= 0))
        number = losses.origin[rows].astype(np.int64) * (losses.rank.max(initial=0) + 1) + losses.rank[rows]
        _, first, of_rank = np.unique(number, return_index=True, return_inverse=True)
        tables, table_of_rank = dict[int, Ints](), np.full(len(first), -1)
        for at, row in enumerate(rows[first].tolist()):
            key, rank = self._analysis.keys[losses.origin[row]], int(losses.rank[row])
            member = self._members_of(key).get(rank)
            if member is not None:
                table = self._indices(key, rank, int(losses.team[row]), *member)
                tables[id(table)] = table
                table_of_rank[at] = id(table)
        for number_of_table, table in tables.items():
            here = rows[table_of_rank[of_rank] == number_of_table]
            indices[here] = table[losses.place[here]]
        return indices

    def _members_of(self, key: StepKey) -> dict[int, tuple[KernelIndex, str]]:
        indices = self._analysis.lake.indices(key)
        if id(indices) not in self._members:
            members = {member.rank: (index, member.sequence) for index in indices for member in index.members}
            self._members[id(indices)] = indices, members
        return self._members[id(indices)][1]

    def _indices(self, key: StepKey, rank: int, team: int, index: KernelIndex, sequence: str) -> Ints:
        """Return (operations,) the kernel index of each operation of the team's program, for ranks of this sequence."""
        cache_key = (team, index.reference, sequence)
        if cache_key not in self._known:
            places = self._kernel_places(key, rank, team, sequence)
            partners = index.indices[sequence]
            indices = np.full(len(self._analysis.run.programs[team].operations), UNMATCHED, np.int64)
            has_both = (places >= 0) & (partners != UNMATCHED)
            indices[places[has_both]] = partners[has_both]
            self._known[cache_key] = _fill_from_next(indices)
        return self._known[cache_key]

    def _kernel_places(self, key: StepKey, rank: int, team: int, sequence: str) -> Ints:
        """Return (kernels,) for each kernel of the sequence the number of its operation in the program, -1 for none."""
        program = self._analysis.run.programs[team]
        kernels = np.array([operation.is_kernel for operation in program.operations], np.bool_)
        surveyed = [places for signature, places in program.places.items() if signature[0] == sequence]
        if surveyed and all((places >= 0).all() for places in surveyed):
            of_kernels = [places[kernels[places]] for places in surveyed]
            if all(np.array_equal(places, of_kernels[0]) for places in of_kernels):
                return of_kernels[0]
        # where copies or synchronising calls decide which operation a kernel is, the rank's own step must be read
        kind, places = self._analysis.run.operations_of(key, rank)
        places_read: Ints = places[kind < MEMORY]
        return places_read


def stages_of_ranks(run: RunModel) -> Mapping[int, frozenset[int]]:
    """Return for each rank of a pipeline the ranks of its stage, itself among them; without entries of other ranks.

    Ranks that send to each other in pairs are of one replica; more at once, or at one place of their program, are a
    ring, whose ranks do equal work. Collectives, and equal programs, join the ranks of a stage if none of these ranks
    are of the same replica, as all ranks of the job, or the first and last stage, are.
    """
    exchanges: set[tuple[int, ...]] = set()
    others = {tuple(ranks) for ranks in by_key((team, rank) for rank, team in run.team_of.items()).values()}
    for number, (first, last) in enumerate(pairwise(run.collective_arrays.first_group.tolist())):
        is_exchange = SEND_RECV in run.operations_of_collective(number)
        if is_exchange and len(set(run.matching.places(number))) == 1:
            continue
        of_groups = map(run.ranks_of_group, range(first, last))
        (exchanges if is_exchange else others).update(of_groups)
    replica_of = _join(ranks for ranks in exchanges if len(ranks) < 3)
    apart = [
        group
        for group in others
        if all(rank in replica_of for rank in group) and len({replica_of[rank] for rank in group}) == len(group)
    ]
    stage_of = {rank: rank for rank in replica_of} | _join(apart)
    ranks_of = by_key((stage, rank) for rank, stage in stage_of.items())
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


def name_gpus(culprits: Iterable[Culprit], places: Mapping[int, RankPlace]) -> tuple[Culprit, ...]:
    """Return findings with the GPU's number on its host, and the PCI address of one rank's, where they are known."""
    numbers = number_gpus({rank: place._replace(host=short_host(place.host)) for rank, place in places.items()})

    def name(culprit: Culprit) -> Culprit:
        place = places.get(culprit.rank)
        if place is None or culprit.scope not in ("rank", "device"):
            return culprit
        is_of_rank = culprit.scope == "rank"
        number = numbers.get(culprit.rank) if is_of_rank else place.device
        return replace(culprit, device=number, bus_id=place.bus_id if is_of_rank else None)

    return tuple(map(name, culprits))


def _fill_from_next(indices: Ints) -> Ints:
    """Replace each UNMATCHED by the next index, those at the end by the last."""
    matched = np.flatnonzero(indices != UNMATCHED)
    if not len(matched):
        return indices
    following = np.searchsorted(matched, np.arange(len(indices)))
    filled: Ints = indices[matched[np.minimum(following, len(matched) - 1)]]
    return filled


def find_profile_location(
    analysis: RunAnalysis, rank: int, losses: Losses, steps: Sequence[int]
) -> ProfileLocation | None:
    """Return the time range of the shares of the worst step in the rank's recording.

    Args:
        analysis: of the run.
        rank: whose recording; None is returned if it lacks the worst step, or all of its times there.
        losses: shares with places, in order of the steps of their operations; may be empty.
        steps: positions of the steps to choose from without shares; the whole first one is returned then.

    """
    numbers, first = np.unique(losses.origin, return_index=True)
    number = int(numbers[np.add.reduceat(losses.loss_ns, first).argmax()]) if len(numbers) else steps[0]
    key = analysis.keys[number]
    team = analysis.run.team_of.get(rank)
    if team is None or rank not in analysis.run.ranks(key, team):
        return None
    times = analysis.run.rank_times(key, rank)
    begun = np.fmin(times.call, times.start)[:, 0]
    ended = np.fmax(times.back, times.end)[:, 0]
    ran = np.flatnonzero(~np.isnan(begun) & ~np.isnan(ended))
    if not len(ran):
        return None
    chosen, late_ns = ran, 0.0
    shares = losses.where(losses.origin == number)
    if len(shares):
        late_ns = max(float(np.nansum(shares.of([LossClass.START]).excess_ns)), 0.0)
        there = (shares.loss_ns >= shares.loss_ns.max() / 100) & (shares.team == team)
        charged = np.intersect1d(shares.place[there], ran)
        chosen = charged if len(charged) else ran
    before = times.back[: chosen[0], 0]
    # a stall of the host lies before the launch that it delays
    since = np.nanmax(before) if len(before) and not np.isnan(before).all() else begun[chosen].min() - late_ns
    first_ns = float(np.fmin(since, begun[chosen].min()))
    origin = analysis.lake.origin(key, rank)
    file = analysis.lake.records[key][rank].record.file
    return ProfileLocation(file, origin + round(first_ns), origin + round(float(ended[chosen].max())))
