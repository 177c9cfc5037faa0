"""Collectives that take long from the last arrival to their end, by the run's other steps or by a benchmark."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from jitter.analysis.collectives.matching import CollectiveMatching
from jitter.analysis.detection.findings import Finding
from jitter.analysis.detection.significance import binomial_tail, drift_lines, qn_sigma
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.metrics.bandwidth_baseline import Baseline
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.bandwidth import bus_factor
from jitter.core.names.kernels import SEND_RECV
from jitter.core.numeric.arrays import Bools, Floats, Ints
from jitter.core.numeric.stats import MAD_TO_SIGMA, known_median, lower_median, mad_sigma
from jitter.core.numeric.student_t import student_tail
from jitter.core.step_key import StepKey


def _slow_transfers(
    ranks: Iterable[int],
    meetings: Iterable[tuple[int, int]],
    steps: tuple[int, ...],
    excess_ns: float,
    sigmas: float,
    chance: float,
    *,
    is_incomplete: bool = False,
) -> Finding:
    return Finding(
        "slow_transfers",
        TimePart.TRANSFER,
        dict.fromkeys(sorted(ranks), steps),
        excess_ns,
        sigmas,
        chance=chance,
        meetings=tuple(meetings),
        is_incomplete=is_incomplete,
    )


def _join(
    slow: Sequence[Finding],
    ranks: Iterable[int],
    sigmas: Callable[[Iterable[float]], float],
    chance: Callable[[Iterable[float]], float],
) -> Finding:
    """Return the transfers of several findings as one of these ranks; the functions choose among their values."""
    return _slow_transfers(
        ranks,
        (meeting for finding in slow for meeting in finding.meetings),
        tuple(sorted({step for finding in slow for step in finding.steps})),
        sum(finding.excess_ns for finding in slow),
        sigmas(finding.sigmas for finding in slow),
        chance(finding.chance for finding in slow),
        is_incomplete=any(finding.is_incomplete for finding in slow),
    )


class _Slow(NamedTuple):
    """Steps in which totals exceed the noise."""

    steps: tuple[int, ...]
    excess_ns: float
    sigmas: float
    chance: float
    """The probability that one group of chance totals has so many steps so far outside."""


class _Family(NamedTuple):
    """Collectives that divide the same ranks into the same groups."""

    ranks: tuple[frozenset[int], ...]
    """Of each group."""
    number: Ints
    """(collectives,) which they are."""
    group: Ints
    """(collectives, groups) each one's numbers of these groups."""

    def late(self, late: Floats, first_group: Ints) -> Floats:
        """(steps, collectives, groups) of (steps, groups of all collectives)."""
        return late[:, first_group[self.number][:, None] + self.group]


def find_slow_collectives(
    matching: CollectiveMatching, seen: Sequence[Floats], usual: Floats, step_ns: Floats
) -> list[Finding]:
    """Find them; `seen` are each step's transfers, (groups of all collectives,) ns, `usual` their medians.

    First those of all ranks in some steps; then those of some groups, in the other steps.
    """
    first_group = np.cumsum([0, *(meeting.groups for meeting in matching.collectives)])
    late = np.stack(seen) - usual
    families = [(family, family.late(late, first_group)) for family in _families(matching)]
    usual_step_ns = known_median(step_ns)
    slow_collectives: list[Finding] = []
    everywhere = _everywhere(families, usual_step_ns)
    if everywhere is not None:
        everyone = {rank for family, _ in families for group in family.ranks for rank in group}
        every = (
            (number, group)
            for family, _ in families
            for number in family.number.tolist()
            for group in range(family.group.shape[1])
        )
        lacks = any(collective.absent for collective in matching.collectives)
        slow_collectives.append(_slow_transfers(everyone, every, *everywhere, is_incomplete=lacks))
    elsewhere = np.ones(len(seen), np.bool_)
    for slow in slow_collectives:
        elsewhere[list(slow.steps)] = False
    trials = sum(len(family.ranks) for family, _ in families)
    for family, late_ns in families:
        total = np.nansum(late_ns, axis=1)[elsewhere]
        noise, of_groups = _noise(late_ns, total), list[Finding]()
        for column, ranks in enumerate(family.ranks):
            slow_steps = _outside(total[:, column], noise, usual_step_ns)
            if slow_steps is not None:
                steps, excess, sigmas, chance = slow_steps
                numbered = tuple(np.flatnonzero(elsewhere)[list(steps)].tolist())
                meetings = tuple(zip(family.number.tolist(), family.group[:, column].tolist(), strict=True))
                lacks = any(matching.collectives[number].is_incomplete(group) for number, group in meetings)
                chance = min(chance * trials, 1.0)
                of_group = _slow_transfers(ranks, meetings, numbered, excess, sigmas, chance, is_incomplete=lacks)
                of_groups.append(of_group)
        if _are_all_alike(of_groups, family):
            everyone = {rank for of_group in of_groups for rank in of_group.ranks}
            of_groups = [_join(of_groups, everyone, min, max)]
        slow_collectives += of_groups
    return slow_collectives


def _are_all_alike(slow: Sequence[Finding], family: _Family) -> bool:
    """Return whether all of a family's many groups are slow in the same steps: then none of them stands out."""
    if len(slow) < max(len(family.ranks), THRESHOLDS.min_repeats):
        return False
    steps = [set(collectives.steps) for collectives in slow]
    return len(set.intersection(*steps)) >= THRESHOLDS.main_share * len(set().union(*steps))


def _everywhere(families: Sequence[tuple[_Family, Floats]], usual_step_ns: float) -> _Slow | None:
    """Return the steps in which the collectives of nearly all groups of all kinds are slow."""
    if sum(len(family.ranks) for family, _ in families) < 2:
        return None  # one group is all there is
    steps: set[int] | None = None
    sigmas, chance, total = np.inf, 0.0, np.zeros(1)
    for family, late_ns in families:
        # a link slows the groups of its rank; only what slows those least slowed too is everywhere
        least = np.nan_to_num(np.sort(late_ns, axis=2)[:, :, len(family.ranks) // 4]).sum(axis=1)
        total = total + least
        slow = _outside(least, _noise(late_ns, least[:, None]), 0.0)
        if slow is None:
            return None
        steps = set(slow.steps) if steps is None else steps & set(slow.steps)
        sigmas, chance = min(sigmas, slow.sigmas), max(chance, slow.chance)
    if not steps:
        return None
    ordered = tuple(sorted(steps))
    excess = float(total[list(ordered)].sum())
    is_much = excess >= THRESHOLDS.min_excess_share * usual_step_ns * len(ordered)
    return _Slow(ordered, excess, sigmas, chance) if is_much else None


def _noise(late_ns: Floats, total: Floats) -> float:
    """Return the standard deviation of totals, (steps, groups) over collectives, by chance and from step to step.

    Half of the groups may be slow at times: the median over groups. Of hardly any steps, the spread over groups.
    """
    if len(total) < THRESHOLDS.min_for_scatter:
        scatter = mad_sigma(total) if total.shape[1] >= THRESHOLDS.min_samples else 0.0
    else:
        scatter = float(np.median(qn_sigma(total - drift_lines(total))))
    return max(_chance(late_ns), scatter, 1.0)


def _chance(late_ns: Floats) -> float:
    """Return the standard deviation of a sum over collectives by each one's spread, (steps, collectives, groups)."""
    apart = np.abs(late_ns).swapaxes(0, 1).reshape(late_ns.shape[1], -1)
    # one half of the groups may be slow: the lower median; of a collective that no two ranks share no time is known
    spread = np.nan_to_num(lower_median(apart))
    return float(np.sqrt(((MAD_TO_SIGMA * spread) ** 2).sum()))


def _outside(late_ns: Floats, noise: float, usual_step_ns: float) -> _Slow | None:
    """Return the steps in which one group's totals, (steps,), exceed the noise; None if none."""
    if not len(late_ns):
        return None
    outside = late_ns >= THRESHOLDS.outlier_sigmas * noise
    tails = np.sort(student_tail(late_ns / noise, THRESHOLDS.tail_degrees))
    counts = dict.fromkeys((1, int(outside.sum())))
    chance = min(binomial_tail(count, len(late_ns), float(tails[max(count, 1) - 1])) for count in counts) * len(counts)
    mean, spread = float(late_ns.mean()), noise / np.sqrt(len(late_ns))
    if len(late_ns) > 1 and mean >= THRESHOLDS.outlier_sigmas * spread and np.median(late_ns) >= mean / 2:
        outside = np.ones(len(late_ns), np.bool_)
        chance = min(chance, float(student_tail(mean / spread, min(len(late_ns) - 1, THRESHOLDS.max_degrees))))
    excess = float(late_ns[outside].sum())
    if not outside.any() or excess < THRESHOLDS.min_excess_share * usual_step_ns * outside.sum():
        return None
    return _Slow(tuple(np.flatnonzero(outside).tolist()), excess, float(late_ns[outside].max() / noise), chance)


def _families(matching: CollectiveMatching) -> list[_Family]:
    """Return the collectives by the groups into which they divide the ranks."""
    by_groups: dict[tuple[frozenset[int], ...], list[tuple[int, list[int]]]] = {}
    is_single = sum(len(block.ranks) for block in matching.blocks) < 2
    for number, meeting in enumerate(matching.collectives):
        ranks: dict[int, set[int]] = {}
        for member in meeting.members:
            for rank, group in zip(matching.blocks[member.block].ranks, member.group.tolist(), strict=True):
                ranks.setdefault(group, set()).update((rank, *(meeting.awaited[group] if meeting.awaited else ())))
        if any(
            len(group_ranks) < 2 and (is_single or not meeting.is_incomplete(group))
            for group, group_ranks in ranks.items()
        ):
            continue  # one rank alone, with partners that are not known or without any other recorded rank
        ordered = sorted(ranks, key=lambda group: min(ranks[group]))
        key = tuple(frozenset(ranks[group]) for group in ordered)
        by_groups.setdefault(key, []).append((number, ordered))
    return [
        _Family(ranks, np.array([number for number, _ in collectives]), np.array([groups for _, groups in collectives]))
        for ranks, collectives in by_groups.items()
    ]


def attribute_to_ranks(slow: Sequence[Finding]) -> list[Finding]:
    """Return the ranks whose links explain the slow collectives, worst first.

    Groups that share steps and ranks with the worst group are explained, with it, by the ranks that all of them have in
    common; if they have none in common, the worst group is explained by itself. Groups with members that were not
    recorded are explained together where they share steps: all of them may wait for one such member.
    """
    remaining = list(slow)
    explained = []
    while remaining:
        worst = max(remaining, key=lambda collectives: collectives.excess_ns)
        same = [collectives for collectives in remaining if set(collectives.steps) & set(worst.steps)]
        if worst.is_incomplete:
            same = [collectives for collectives in same if collectives.is_incomplete]
            shared = set().union(*(collectives.ranks for collectives in same))
        else:
            same = [collectives for collectives in same if set(collectives.ranks) & set(worst.ranks)]
            shared = set(worst.ranks).intersection(*(collectives.ranks for collectives in same))
        if not shared:
            same, shared = [worst], set(worst.ranks)
        explained.append(_join(same, shared, max, min))
        remaining = [collectives for collectives in remaining if collectives not in same]
    return explained


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
    expected_ns = np.full(len(usual), np.nan)
    fastest: dict[str, float] = {}
    least: dict[tuple[str, float], float] = {}
    for group, kind in sorted(kinds.items(), key=lambda group_kind: -group_kind[1].size):
        fastest[kind.operation] = float(np.fmin(fastest.get(kind.operation, np.nan), usual[group]))
        least[kind.operation, kind.size] = fastest[kind.operation]
    for group, kind in kinds.items():
        if kind.is_incomplete and kind.operation == SEND_RECV:
            continue
        if kind.is_incomplete:
            expected_ns[group] = least[kind.operation, kind.size]
        elif benchmark and (reached := benchmark.busbw(kind.operation, int(kind.size), kind.ranks)) is not None:
            expected_ns[group] = kind.size * bus_factor(kind.operation, kind.ranks) / reached  # GB/s are bytes per ns
    return expected_ns


def _kinds(lake: RunReader, run: RunModel, key: StepKey) -> dict[int, _Kind]:
    """Return the kind of each group, of all groups of all collectives, whose operation and size are known."""
    kind_of_group: dict[int, _Kind] = {}
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
                kind_of_group[first + group] = _Kind(operation, ranks[group], size, collective.is_incomplete(group))
    return kind_of_group


def _message_sizes(lake: RunReader, run: RunModel, key: StepKey) -> dict[tuple[int, int], dict[int, float]]:
    """Return message sizes in bytes by (team, rank) and place of the program, of one step."""
    sizes_of_rank: dict[tuple[int, int], dict[int, float]] = {}
    for team in run.programs:
        ranks = sorted(run.ranks(key, team))
        if not ranks:
            continue
        places = run.collective_places(team)
        rows = run.file_rows(key, team, ranks)[places]
        for rank, rank_rows, sizes in zip(ranks, rows.T.tolist(), lake.message_sizes(key, ranks), strict=True):
            recorded_rows = (
                (place, row) for place, row in zip(np.asarray(places).tolist(), rank_rows, strict=True) if row >= 0
            )
            sizes_of_rank[team, rank] = {
                place: float(sizes[row]) for place, row in recorded_rows if not np.isnan(sizes[row])
            }
    return sizes_of_rank


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
) -> Finding | None:
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
    return _slow_transfers(ranks, dict.fromkeys(meetings), steps, float(excess.sum()), sigmas, 0.0)
