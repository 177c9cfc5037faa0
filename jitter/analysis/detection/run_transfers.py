"""How long the transfers of a run's collectives took, how long they should, and which are slow.

They are compared with like ones of the run, or with a benchmark.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from jitter.analysis.collectives.matching import CollectiveArrays, CollectiveMatching
from jitter.analysis.detection.findings import Finding, FindingKind, are_same_steps
from jitter.analysis.detection.measured_run import MeasuredRun
from jitter.analysis.detection.significance import scatter_over_steps
from jitter.analysis.detection.standouts import Standouts, TestedTimes, find_in_samples, is_random_over, quiet_totals
from jitter.analysis.execution.run_model import RunModel
from jitter.analysis.execution.self_times import TimePart
from jitter.analysis.metrics.bandwidth_baseline import Baseline
from jitter.analysis.replay.shared_work import compute_between, work_by_sizes, work_of_transfers
from jitter.analysis.replay.what_if import Scenario, baseline_transfers, together
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.bandwidth import bus_factor
from jitter.core.grouping import by_key
from jitter.core.names.kernels import COLLECTIVE, SEND_RECV
from jitter.core.numeric.arrays import Bools, Floats, Ints, distinct_values, spread_positions
from jitter.core.numeric.stats import MAD_TO_SIGMA, known_medians, lower_median, mad_sigma, middle_value
from jitter.core.step_key import StepKey

_GROUPS_AT_ONCE: Final = 4096
_ANY_GROUP: Final = "{} of {} groups of these collectives are slow at times, none more often than chance gives"


class _Family(NamedTuple):
    """Collectives that divide the same ranks into the same groups."""

    ranks: tuple[frozenset[int], ...]
    """Of each group."""
    groups: Ints
    """(collectives, groups) which of all groups of all collectives these are."""


def find_slow_collectives(
    matching: CollectiveMatching,
    seen: Floats,
    usual: Sequence[Floats],
    whole: Bools,
    step_ns: Floats,
    of_kinds: Sequence[Ints],
    nodes: Mapping[int, object],
    exchanges: Bools,
) -> list[Finding]:
    """Find them by the test of self times, each group's time in a step above its baseline in place of a rank's.

    First what is slow everywhere in a step, all messages between two ranks, or all else, if no node is common to them;
    then what is slow in all groups that divide the same ranks, then what may be slow in any of them, then single
    groups: a step in which many groups are slow says nothing about one of them.

    Args:
        matching: the collectives.
        seen: (steps, groups of all collectives) the transfers, ns.
        usual: each step's baselines.
        whole: (steps, groups of all collectives) whether all members recorded them: waiting in others is no noise.
        step_ns: (steps,) each step's time, NaN where unknown.
        of_kinds: the numbers of the steps of each kind.
        nodes: those of ranks, where known.
        exchanges: (groups of all collectives,) whether they are messages between two ranks.

    """
    families = _families(matching)
    if not families:
        return []
    late_ns = seen - np.stack(usual)
    tests = [
        _test_family(
            late_ns[:, family.groups],
            np.logical_and.reduce(whole[:, family.groups], axis=(1, 2)),
            step_ns,
            of_kinds,
            len(families),
        )
        for family in families
    ]
    is_open, total_ns, sigmas = (
        np.concatenate(columns, axis=1)
        for columns in zip(*((test.is_late, test.total_ns, test.sigmas) for test in tests), strict=True)
    )
    chance = np.concatenate([test.chance for test in tests])
    groups = [(ranks, family.groups[:, at].tolist()) for family in families for at, ranks in enumerate(family.ranks)]
    of_families = np.split(np.arange(len(groups)), np.cumsum([len(family.ranks) for family in families])[:-1])
    # of a group without a baseline no time is known
    usual_of_run = np.nan_to_num(np.stack(usual))
    usual_ns = [float(usual_of_run[:, family.groups].max(axis=2).sum()) for family in families]
    of_kinds_too = [
        [at for at, family in enumerate(families) if exchanges[family.groups[0, 0]] == is_exchange]
        for is_exchange in (False, True)
    ]
    together = [list(range(len(families)))] if len(groups) > 1 else []
    together += [
        kind
        for kind in of_kinds_too
        if 1 < len(kind) < len(families) and not _share_a_node([families[at] for at in kind], nodes)
    ]
    together += [[at] for at, of_family in enumerate(of_families) if len(of_family) >= THRESHOLDS.min_repeats]
    findings = []

    def add(kind: FindingKind, columns: Ints, is_late: Bools, *evidence: str) -> None:
        steps = tuple(np.flatnonzero(is_late.any(axis=1)).tolist())
        slow = [groups[column] for column in columns.tolist()]
        transfers = [transfer for _, of_group in slow for transfer in of_group]
        findings.append(
            Finding(
                kind,
                TimePart.TRANSFER,
                dict.fromkeys(sorted({rank for ranks, _ in slow for rank in ranks}), steps),
                float(np.nansum(total_ns[:, columns][is_late])),
                float(np.median(np.where(is_late, sigmas[:, columns], 0.0).max(axis=0))),
                evidence,
                chance=float(np.median(chance[columns])),
                transfers=tuple(transfers),
                is_incomplete=bool(matching.arrays.incomplete[transfers].any()),
            )
        )
        is_open[:, columns] &= ~is_late

    for parts in together:
        shares = [is_open[:, of_families[at]].mean(axis=1) for at in _main_parts(parts, usual_ns)]
        is_late = np.min(shares, axis=0) > 1 - THRESHOLDS.minor_share
        if is_late.any():
            columns = np.concatenate([of_families[at] for at in parts])
            add("slow_transfers", columns, np.repeat(is_late[:, None], len(columns), axis=1))
    for of_family in of_families:
        is_late, places = is_open[:, of_family], [{nodes.get(rank) for rank in groups[at][0]} for at in of_family]
        at_nodes = (np.array([node in of_group for of_group in places]) for node in set().union(*places) - {None})
        if is_random_over(is_late, at_nodes):
            add("random_transfers", of_family, is_late, _ANY_GROUP.format(is_late.any(axis=0).sum(), len(of_family)))
    for column in np.flatnonzero(is_open.any(axis=0)).tolist():
        add("slow_transfers", np.array([column]), is_open[:, [column]])
    return findings


def _share_a_node(families: Iterable[_Family], nodes: Mapping[int, object]) -> bool:
    """Return whether ranks of one node are in each group, or may be: its link to the others may explain them."""
    return bool(
        set.intersection(*({nodes.get(rank) for rank in ranks} for family in families for ranks in family.ranks))
    )


def _main_parts(parts: Sequence[int], usual_ns: Sequence[float]) -> list[int]:
    """Return the parts that take nearly all of the time: how slow the others are cannot be seen."""
    ordered = sorted(parts, key=lambda at: usual_ns[at])
    up_to_ns = np.cumsum([usual_ns[at] for at in ordered])
    return [
        at
        for at, ns in zip(ordered, up_to_ns.tolist(), strict=True)
        if ns > (1 - THRESHOLDS.whole_share) * up_to_ns[-1] or at == ordered[-1]
    ]


def _test_family(
    late_ns: Floats, is_whole: Bools, step_ns: Floats, of_kinds: Sequence[Ints], families: int
) -> Standouts:
    """Return when the groups of a family are slow; `late_ns` (steps, collectives, groups) is above the baseline."""
    total = np.nansum(late_ns, axis=1)

    def sample(numbers: Ints) -> TestedTimes:
        known = numbers[is_whole[numbers]]
        quiet = known if len(known) >= THRESHOLDS.min_repeats else numbers
        noise = np.full(total[numbers].shape, _noise(late_ns[quiet], total[quiet]))
        groups = np.zeros(total.shape[1])
        # the baseline is that of all groups and steps: what is above it in every step is late in each
        return TestedTimes(total[numbers], groups, groups, noise, groups + np.inf, np.ones((1, 1)))

    return find_in_samples(-1, TimePart.TRANSFER, np.arange(total.shape[1]), total, sample, step_ns, of_kinds, families)


def _noise(late_ns: Floats, total: Floats) -> float:
    """Return the standard deviation of totals, (steps, groups) over collectives, by chance and from step to step.

    Half of the groups may be slow at times: the median over groups. Of hardly any steps, the spread over groups.
    """
    # by each collective's spread: the lower median, as half of the groups may be slow; of some no time is known
    of_collective = late_ns.swapaxes(0, 1).reshape(late_ns.shape[1], -1)
    if of_collective.shape[1] >= THRESHOLDS.min_samples:  # all groups may be slower than those of other families
        of_collective = of_collective - lower_median(of_collective)
    spread = np.nan_to_num(lower_median(np.abs(of_collective)))
    sigma = max(float(np.sqrt(((MAD_TO_SIGMA * spread) ** 2).sum())), 1.0)
    if len(total) < THRESHOLDS.min_repeats:
        return max(sigma, mad_sigma(total) if total.shape[1] >= THRESHOLDS.min_samples else 0.0)
    # where most steps have a transfer that hiccups, none tells how totals scatter without: it counts up to its limit
    least_ns = THRESHOLDS.outlier_sigmas * np.maximum(MAD_TO_SIGMA * spread, 1.0)
    are_most = (late_ns > least_ns).any(axis=1).mean(axis=0) > THRESHOLDS.main_share
    plain = np.where(are_most, np.nansum(np.minimum(late_ns, least_ns), axis=1), total)
    return max(sigma, float(np.median(scatter_over_steps(*quiet_totals(plain, sigma)))))


def _families(matching: CollectiveMatching) -> list[_Family]:
    """Return the collectives by the groups into which they divide the ranks."""
    by_ranks: dict[tuple[frozenset[int], ...], list[list[int]]] = {}
    # the only recorded rank can wait for unrecorded ranks alone; of several ranks, one may wait for another
    is_alone, arrays = matching.lacks_groups and len(matching.ranks) == 1, matching.arrays
    members = np.split(matching.ranks[arrays.rank[arrays.by_group]], arrays.first_in_group[1:-1])
    ranks = [frozenset(of_group.tolist()) for of_group in members]
    is_open = arrays.incomplete | np.array([is_alone or len(of_group) > 1 for of_group in ranks], np.bool_)
    for first, last in pairwise(arrays.first.tolist()):
        groups = arrays.group[first:last]
        if is_open[groups].all():  # else one rank is alone, with partners that are not known
            ordered = sorted(dict.fromkeys(groups.tolist()), key=lambda group: min(ranks[group]))
            by_ranks.setdefault(tuple(ranks[group] for group in ordered), []).append(ordered)
    return [_Family(of_groups, np.array(groups)) for of_groups, groups in by_ranks.items()]


def attribute_to_ranks(
    slow: Sequence[Finding],
    nodes: Mapping[int, object],
    find_clear: Callable[[Sequence[Finding]], Sequence[Collection[int]]] = lambda _: (),
) -> list[Finding]:
    """Return the ranks whose links explain the slow collectives, worst first; `nodes` are those of ranks, where known.

    Groups that are slow in the same steps as the worst group and share ranks with it are explained, with it, by the
    ranks that all of them have in common; or, if these are more groups, those between nodes by the ranks of the nodes
    that all have in common. Of these, ranks or nodes without clear groups, never slow though alike, if there are any:
    `find_clear` gives their ranks. What is slow by little within nodes does not tell whose link between nodes is, nor
    the other way round. With none in common, the worst group is explained by itself, and so is what any group may be.
    Groups with members that were not recorded are explained together where they share steps: all of them may wait for
    one such member.
    """
    explained = [finding for finding in slow if finding.kind == "random_transfers"]
    remaining = [finding for finding in slow if finding not in explained]
    while remaining:
        worst = max(remaining, key=lambda finding: finding.excess_ns)
        is_between, least_ns = _are_between(nodes, worst.ranks), THRESHOLDS.minor_share * worst.excess_ns
        same = [
            finding
            for finding in remaining
            if are_same_steps(finding.steps, worst.steps)
            and (finding.excess_ns > least_ns or _are_between(nodes, finding.ranks) == is_between)
        ]
        if worst.is_incomplete:
            same = [finding for finding in remaining if finding.is_incomplete and set(finding.steps) & set(worst.steps)]
            shared = set().union(*(finding.ranks for finding in same))
        else:
            between = [finding for finding in same if _are_between(nodes, finding.ranks)]
            clear = find_clear(same)
            explained_by = [
                _explain_by_place(worst, same, {rank: rank for finding in same for rank in finding.ranks}, clear)
            ]
            if is_between:
                clear_between = [ranks for ranks in clear if _are_between(nodes, ranks)]
                explained_by += [_explain_by_place(worst, between, nodes, clear_between)]
            same, shared = max(explained_by, key=lambda explanation: len(explanation[0]))
        steps = tuple(sorted({step for finding in same for step in finding.steps}))
        explained.append(
            replace(
                worst,
                steps_of_rank=dict.fromkeys(sorted(shared), steps),
                excess_ns=sum(finding.excess_ns for finding in same),
                sigmas=max(finding.sigmas for finding in same),
                chance=min(finding.chance for finding in same),
                transfers=tuple(transfer for finding in same for transfer in finding.transfers),
                is_incomplete=any(finding.is_incomplete for finding in same),
            )
        )
        remaining = [finding for finding in remaining if finding not in same]
    return explained


def _are_between(nodes: Mapping[int, object], ranks: Iterable[int]) -> bool:
    return len({nodes.get(rank) for rank in ranks}) > 1


def _explain_by_place(
    worst: Finding, slow: Sequence[Finding], place_of: Mapping[int, object], clear: Sequence[Collection[int]]
) -> tuple[list[Finding], set[int]]:
    """Return the slow collectives at any place of the worst ones, and the ranks at the places common to all of them.

    With no place in common the worst alone, and its ranks.
    """
    places = [{place_of[rank] for rank in finding.ranks if rank in place_of} for finding in slow]
    of_worst = places[slow.index(worst)]
    same = [finding for finding, own_places in zip(slow, places, strict=True) if own_places & of_worst]
    common = of_worst.intersection(*(own_places for own_places in places if own_places & of_worst))
    if not common:
        return [worst], set(worst.ranks)
    common = common.difference(place_of.get(rank) for ranks in clear for rank in ranks) or common
    return same, {rank for finding in same for rank in finding.ranks if place_of.get(rank) in common}


class _Kind(NamedTuple):
    """The properties that collectives must share for their times to be compared."""

    operation: str
    ranks: int
    size: float | None
    """Bytes; None where it was not recorded."""
    is_incomplete: bool


def transfers_by_benchmark(run: RunModel, benchmark: Baseline | None, usual: Floats, key: StepKey) -> Floats:
    """Return, (groups of all collectives,), the time that each should take in steps like this one, ns; NaN: unknown.

    A complete group: by the benchmark's bandwidth. A group with unrecorded members: as long as the fastest of the same
    operation with the same or a larger message, by the `usual` times (groups of all collectives,). Not of sends and
    receives: a stage of a pipeline waits for the work of the one before it, which is no lateness.
    """
    kinds = _kinds(run, key)
    sizes = {group: kind.size for group, kind in kinds.items() if kind.size is not None}
    expected_ns = np.full(len(usual), np.nan)
    fastest: dict[str, float] = {}
    least: dict[tuple[str, float], float] = {}
    for group, size in sorted(sizes.items(), key=lambda group_size: -group_size[1]):
        operation = kinds[group].operation
        fastest[operation] = float(np.fmin(fastest.get(operation, np.nan), usual[group]))
        least[operation, size] = fastest[operation]
    for group, size in sizes.items():
        kind = kinds[group]
        if kind.is_incomplete and kind.operation == SEND_RECV:
            continue
        if kind.is_incomplete:
            expected_ns[group] = least[kind.operation, size]
        elif benchmark and (reached := benchmark.busbw(kind.operation, int(size), kind.ranks)) is not None:
            expected_ns[group] = size * bus_factor(kind.operation, kind.ranks) / reached  # GB/s are bytes per ns
    return expected_ns


def _sizes_of_groups(run: RunModel, key: StepKey) -> Floats:
    """Return the largest size that a member of each group, of all groups, records in a step, bytes; NaN: unknown."""
    arrays = run.collective_arrays
    size, largest = np.full(len(arrays.rank), np.nan), np.full(int(arrays.first_group[-1]), np.nan)
    attendances = np.split(
        np.argsort(arrays.rank, kind="stable"),
        np.cumsum(np.bincount(arrays.rank, minlength=len(run.rank_numbers)))[:-1],
    )
    for team in run.programs:
        ranks = sorted(run.ranks(key, team))
        rows = run.file_rows(key, team, ranks)
        for rank, rank_rows, sizes in zip(
            ranks, rows.T, run.reader.message_sizes(key, ranks) if ranks else (), strict=True
        ):
            of_rank = attendances[run.number_of[rank]]
            row = rank_rows[arrays.place[of_rank]]
            size[of_rank[row >= 0]] = sizes[row[row >= 0]]
    np.fmax.at(largest, arrays.group, size)
    return largest


def _kinds(run: RunModel, key: StepKey) -> dict[int, _Kind]:
    """Return the kind of each group, of all groups of all collectives, whose operation is known."""
    arrays, largest = run.collective_arrays, _sizes_of_groups(run, key)
    members = np.bincount(arrays.group, minlength=len(largest))
    kind_of_group: dict[int, _Kind] = {}
    is_incomplete = arrays.incomplete.tolist()
    for number, (first, last) in enumerate(pairwise(arrays.first_group.tolist())):
        operation = next(filter(None, run.operations_of_collective(number)), None)
        if operation is None:
            continue
        for group in range(first, last):
            recorded = None if np.isnan(largest[group]) else float(largest[group])
            kind_of_group[group] = _Kind(operation, int(members[group]), recorded, is_incomplete[group])
    return kind_of_group


def meeting_at_one(arrays: CollectiveArrays, alike: Ints, place_of: Ints) -> Bools:
    """Return, (groups of all collectives,), of which, with those `alike`, ranks of one place take part in most.

    Its link is then part of what is usual. `place_of` (ranks of the run,) are negative where a place does not count.
    """
    place, many = place_of[arrays.rank], int(place_of.max(initial=0)) + 1
    counts = place >= 0
    group, place = np.divmod(distinct_values(arrays.group[counts] * many + place[counts]), many)
    met, shares = np.unique(alike[group] * many + place, return_counts=True)
    numbers = met // many
    return np.isin(alike, numbers[2 * shares > np.bincount(alike)[numbers]])


def number_places(places: Iterable[object]) -> Ints:
    """Return a number for each place, equal ones for equal places."""
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(place, len(numbers)) for place in places], np.int64)


class AlikeTransfers(NamedTuple):
    """Which transfers should take as long, (groups of all collectives,) each."""

    numbers: Ints
    """Those of one number are alike."""
    have_assumed_sizes: Bools
    """Whether their sizes are taken to be equal, and not known."""
    are_reference: Bools
    """Whether they tell what is usual: those of clearly slower links do not, if the others are no minor part."""

    def usual_ns(self, seen: Sequence[Floats]) -> Floats:
        """Return, (groups of all collectives,), what each should take, given each step's times."""
        return baseline_transfers(self.numbers, [np.where(self.are_reference, took, np.nan) for took in seen])


def number_alike(run: RunModel, key: StepKey, seen: Sequence[Floats]) -> AlikeTransfers:
    """Number the groups of all collectives; those of one number should take as long from the last arrival to the end.

    They are the groups of one collective, also where it has another kernel in other steps, as when the communication
    library chooses another algorithm. Exchanges of two ranks, as of pipeline stages, and collectives of whose
    groups one node takes part in most, as of a stage on two nodes, are compared with those of other groups of the
    operation, as many ranks, one size and as many nodes, if these are at least `min_repeats` groups: the fastest of
    each group, the next ones, and so on, as those of one direction may take longer on all links. Where sizes were not
    recorded, pairs with about as many exchanges are taken to have equal ones. A slow node in the middle of a short
    pipeline has most of the links. `seen` are each step's times, of the same shape.
    """
    arrays = run.collective_arrays
    size_of, alike, same = np.diff(arrays.first_in_group), arrays.collective, _find_replaced(run, seen)
    have_assumed_sizes, are_reference = np.zeros(len(alike), np.bool_), np.ones(len(alike), np.bool_)
    nodes = run.reader.nodes
    meet_at_one = meeting_at_one(arrays, alike, number_places(nodes.get(rank) for rank in run.rank_numbers.tolist()))
    meet_at_one &= (size_of > 1) & (size_of < len(run.rank_numbers))
    is_chosen = ((size_of == 2) | meet_at_one) & (same == np.arange(len(same)))
    chosen, member = np.flatnonzero(is_chosen), run.rank_numbers[arrays.rank[arrays.by_group]]
    ascending = member[np.lexsort((member, arrays.awaiting))].tolist()
    first = arrays.first_in_group.tolist()
    members = [tuple(ascending[first[group] : first[group + 1]]) for group in chosen.tolist()]
    if len(set(members)) < 2:
        return AlikeTransfers(alike[same], have_assumed_sizes, are_reference)
    kinds = _kinds(run, key)
    links_by_kind: dict[tuple[_Kind, int, tuple[int, ...]], list[int]] = {}
    for group, ranks in zip(chosen.tolist(), members, strict=True):
        kind = kinds.get(group)
        if kind is None or kind.is_incomplete or not nodes.keys() >= set(ranks):
            continue
        is_exchange = kind.operation == SEND_RECV and kind.ranks == 2
        if is_exchange or (kind.operation != SEND_RECV and meet_at_one[group] and kind.size is not None):
            links_by_kind.setdefault((kind, len({nodes[rank] for rank in ranks}), ranks), []).append(group)
    comparable = by_key(((kind, spanned), link) for (kind, spanned, _), link in links_by_kind.items())
    usual, count = lower_median(np.stack(seen), axis=0)[0], len(arrays.first_group) - 1
    for (kind, _), links_of_size in comparable.items():
        parts = sorted(map(len, links_of_size))[(len(links_of_size) - 1) // 2]
        is_assumed, most = kind.size is None, THRESHOLDS.much_more
        links = [
            links_of for links_of in links_of_size if not is_assumed or parts / most < len(links_of) < parts * most
        ]
        pace_ns = np.array([middle_value(usual[of_pair]) for of_pair in links])
        is_slow = pace_ns > most * np.fmin.reduce(pace_ns, initial=np.inf)
        if len(links) >= THRESHOLDS.min_repeats or (is_slow.any() and not is_assumed):
            for of_pair, is_of_slow in zip(links, is_slow & (is_slow.mean() < 1 - THRESHOLDS.minor_share), strict=True):
                are_reference[of_pair] = not is_of_slow
                ascending = np.array(of_pair)[np.argsort(usual[of_pair], kind="stable")]
                alike[ascending] = count + np.arange(len(of_pair)) * parts // len(of_pair)
                have_assumed_sizes[of_pair] = is_assumed
            count += parts
    return AlikeTransfers(alike[same], have_assumed_sizes[same], are_reference[same])


def _find_replaced(run: RunModel, seen: Sequence[Floats]) -> Ints:
    """Return, (groups of all collectives,), the group in whose place each one meets: itself, or one of other steps.

    A collective replaces the one before it in the program that is the same operation of the same ranks and sizes, if no
    step has both. `seen` is as in `number_alike`.
    """
    arrays, is_there = run.collective_arrays, ~np.isnan(np.stack(seen))
    same = np.arange(is_there.shape[1])
    if not len(same):
        return same
    has = np.logical_or.reduceat(is_there, arrays.first_group[:-1], axis=1)
    are_in_turn = has[:, :-1].any(axis=0) & has[:, 1:].any(axis=0) & ~(has[:, :-1] & has[:, 1:]).any(axis=0)
    for before in np.flatnonzero(are_in_turn).tolist():
        pair = [slice(*arrays.first_group[at : at + 2].tolist()) for at in (before, before + 1)]
        operations = [run.operations_of_collective(at) for at in (before, before + 1)]
        ranks = [[run.ranks_of_group(group) for group in range(groups.start, groups.stop)] for groups in pair]
        if operations[0] == operations[1] and None not in operations[0] and ranks[0] == ranks[1]:
            keys = [run.keys[int(has[:, at].argmax())] for at in (before, before + 1)]
            size, other_size = (_sizes_of_groups(run, key)[groups] for key, groups in zip(keys, pair, strict=True))
            if np.array_equal(size, other_size, equal_nan=True):
                same[pair[1]] = same[pair[0]]
    return same


def slow_in_every_step(seen: Floats, expected: Sequence[Floats]) -> Bools:
    """Return, (groups of all collectives,), which take clearly longer than expected in every step.

    `seen` (steps, groups) are their times, `expected` those of steps of its kind, NaN where unknown.
    """
    least = np.stack(expected)
    unknown = np.isnan(seen) | np.isnan(least)
    as_fast = ~unknown & (seen * THRESHOLDS.efficiency.below_baseline <= least)
    return np.asarray(~as_fast.any(axis=0) & ~unknown.all(axis=0))


def slow_communication(run: RunModel, seen: Floats, expected: Sequence[Floats], slow: Bools) -> Finding | None:
    """Return the collectives that are slow in every step as one finding; None if there are none."""
    arrays = run.collective_arrays
    if not slow.any():
        return None
    ranks = run.rank_numbers[distinct_values(arrays.rank[slow[arrays.group]])].tolist()
    excess = np.nansum((seen - np.stack(expected))[:, slow], axis=1)
    sigmas = float(excess.mean() / max(float(excess.std()), 1.0))
    return Finding(
        "slow_transfers",
        TimePart.TRANSFER,
        dict.fromkeys(sorted(ranks), tuple(range(len(seen)))),
        float(excess.sum()),
        sigmas,
        chance=0.0,
        transfers=tuple(np.flatnonzero(slow).tolist()),
        is_incomplete=bool(arrays.incomplete[slow].any()),
    )


class RunTransfers:
    """By step (groups of all collectives,) times from the last arrival to the end, ns: recorded, and baselines."""

    def __init__(self, measured: MeasuredRun, benchmark: Baseline | None) -> None:
        """`benchmark` are bandwidths that the job's network reaches, if they were measured."""
        self.measured, self._benchmark = measured, benchmark
        self.run = measured.steps.run
        self.took = measured.statistics.transfers.took
        """Those recorded."""

    def of_like_steps(self, compute: Callable[[Ints], Floats]) -> list[Floats]:
        """Return for each step what `compute` gives for the numbers of all steps that should take as long.

        Where transfers have more work in some steps, each step is unlike the others.
        """
        each = np.arange(len(self.took))[:, None]
        value_of_step = {
            int(number): value
            for numbers in (each if self._varies else self.measured.steps.alike.but_for_batches)
            for value in [compute(numbers)]
            for number in numbers
        }
        return [value_of_step[number] for number in range(len(self.took))]

    @cached_property
    def _work(self) -> Floats:
        """(steps, groups of all collectives) the work of each, 1 for the usual one."""
        steps, run, arrays, work = self.measured.steps, self.run, self.run.collective_arrays, np.ones_like(self.took)
        member = arrays.by_group[arrays.first_in_group[:-1]]
        teams, is_collective = run.team_of_number[arrays.rank[member]], run.job.kind == COLLECTIVE
        places = run.job.first[teams] + arrays.place[member]
        # of others equal launches move as much
        may_vary = any(operation.collective == "all_to_all" for operation in run.operations)
        for numbers in steps.alike.by_known_size if len(places) else ():
            if len(numbers) < THRESHOLDS.min_steps:
                continue
            computed = compute_between(run.job.first, is_collective, steps.baselines.gpu[numbers])
            if not computed.varies and not may_vary:
                continue
            took_ns, sizes = self.took[numbers], self._relative_sizes(numbers)
            is_sized: Bools = np.logical_not(np.isnan(sizes).any(axis=0))
            are_unlike = np.ptp(sizes, axis=0) > 0  # equal sizes tell of equal work
            for first in range(0, len(places), _GROUPS_AT_ONCE):
                here = np.arange(first, min(first + _GROUPS_AT_ONCE, len(places)))
                sized, others = here[are_unlike[here]], here[~is_sized[here]]
                work[np.ix_(numbers, sized)] = work_by_sizes(sizes[:, sized], took_ns[:, sized])
                if computed.varies:
                    of_others = work_of_transfers(run.job.first, computed, places[others], took_ns[:, others])
                    work[np.ix_(numbers, others)] = of_others
        return work

    def _relative_sizes(self, numbers: Ints) -> Floats:
        """Return, (steps, groups of all collectives), sizes ÷ the collective's usual one; NaN: not recorded, or 0.

        Where no size varies in a few steps, they are taken to be the same in all: to read a step opens a file a rank.
        """
        first, count = self.run.collective_arrays.first_group, len(numbers)
        for chosen in (spread_positions(count, THRESHOLDS.sampled_steps), np.arange(count)):
            keys = [self.run.keys[number] for number in numbers[chosen].tolist()]
            sizes = np.stack([_sizes_of_groups(self.run, key) for key in keys])
            sizes = np.where(sizes > 0, sizes, np.nan)
            least, most = np.fmin.reduce(sizes), np.fmax.reduce(sizes)
            if not (most > least).any():
                sizes = np.broadcast_to(most, (count, len(most)))
                break
        usual = [known_medians(of_collective) for of_collective in np.split(known_medians(sizes), first[1:-1])]
        return sizes / np.repeat(usual, np.diff(first))

    @cached_property
    def _varies(self) -> bool:
        """Whether any transfer has more work in some steps than in others."""
        return bool((self._work != 1).any())

    @cached_property
    def alike(self) -> AlikeTransfers:
        """Which transfers should take as long."""
        return number_alike(self.run, self.run.keys[len(self.run.keys) // 2], list(self.took / self._work))

    @cached_property
    def _medians(self) -> list[Floats]:
        """The median over like steps, see `baseline_transfers`.

        Where too few of them have all ranks, the lower one of these and of steps that a few ranks lack: others may have
        waited for these.
        """
        transfers, alike, work = self.measured.statistics.transfers, self.alike, self._work
        mostly, whole = (
            np.where(known, transfers.took / work, np.nan) for known in (transfers.mostly_complete, transfers.complete)
        )

        def usual(numbers: Ints) -> Floats:
            known = (~np.isnan(whole[numbers])).sum(axis=0)
            is_known = np.bincount(alike.numbers, known)[alike.numbers] >= THRESHOLDS.min_repeats
            complete, most = (alike.usual_ns([took[number] for number in numbers]) for took in (whole, mostly))
            return np.where(is_known, complete, np.fmin(complete, most))

        if not self._varies:
            return self.of_like_steps(usual)
        medians = np.empty_like(work)
        for numbers in self.measured.steps.alike.by_known_size:
            medians[numbers] = usual(numbers) * work[numbers]
        return list(medians)

    @cached_property
    def expected(self) -> list[Floats]:
        """The time that a benchmark's bandwidth gives; NaN: unknown."""
        usual, keys = self._medians, self.run.keys
        if not self._benchmark and not self.run.collective_arrays.incomplete.any():
            return self.of_like_steps(lambda numbers: np.full(len(usual[numbers[0]]), np.nan))
        return self.of_like_steps(
            lambda numbers: transfers_by_benchmark(
                self.run, self._benchmark, usual[numbers[0]], keys[numbers[len(numbers) // 2]]
            )
        )

    @cached_property
    def baseline(self) -> list[Floats]:
        """The baseline: the median over like steps.

        Of groups with unrecorded members that are slow in every one of them, the time of the fastest alike; of
        collectives that ranks of the lake lack in every one, the median of what the other ranks recorded.
        """
        return self.of_like_steps(self._baseline)

    def _baseline(self, numbers: Ints) -> Floats:
        seen, expected = self.took[numbers], [self.expected[number] for number in numbers]
        slow = slow_in_every_step(seen, expected) & self.run.collective_arrays.incomplete
        usual = np.where(slow, expected[0], self._medians[numbers[0]])
        return np.where(np.isnan(usual), self.alike.usual_ns(list(seen)), usual)

    @cached_property
    def _slow_in_every_step(self) -> Bools:
        return slow_in_every_step(self.took, self.expected)

    def find_slow(self) -> list[Finding]:
        """Return the collectives that are slow at times, or in some groups."""
        return find_slow_collectives(
            self.run.matching,
            self.took,
            self._medians,
            self.measured.statistics.transfers.complete,
            self.measured.assumed_step_ns,
            self.measured.steps.alike.by_program,
            self.run.reader.nodes,
            self._are_exchanges,
        )

    @cached_property
    def _are_exchanges(self) -> Bools:
        """(groups of all collectives,) whether they are messages between two ranks."""
        arrays = self.run.collective_arrays
        numbers = range(len(arrays.first_group) - 1)
        of_collective = np.array([SEND_RECV in self.run.operations_of_collective(number) for number in numbers])
        return np.repeat(of_collective, np.diff(arrays.first_group))

    def find_clear(self, slow: Sequence[Finding], chosen: Sequence[Finding]) -> list[tuple[int, ...]]:
        """Return the ranks of each group that is never one of the slow ones, of those alike to the chosen ones."""
        arrays, alike = self.run.collective_arrays, self.alike.numbers
        are_slow, of_chosen = ([at for finding in some for at in finding.transfers] for some in (slow, chosen))
        is_clear = np.isin(alike, alike[of_chosen])
        is_clear[are_slow] = False
        clear = is_clear[arrays.group]
        ranks = self.run.rank_numbers[arrays.rank[clear]].tolist()
        members = by_key(zip(arrays.group[clear].tolist(), ranks, strict=True))
        return sorted(set(map(tuple, members.values())))

    def with_unmeasured(self, slow: Finding) -> tuple[list[Floats], Scenario] | None:
        """Return the baseline, and the repair, of slow transfers with others that may be as slow in every step.

        They are those of which the ranks of the slow ones take part in most: no equal ones tell how long they should
        take. Those between nodes, if the slow ones are. None where there are none, or few steps are slow.
        """
        if 2 * len(slow.steps) <= len(self.took):
            return None
        arrays, groups = self.run.collective_arrays, list(slow.transfers)
        of_slow = np.where(np.isin(self.run.rank_numbers, slow.ranks), 0, -1)
        chosen = meeting_at_one(arrays, self.alike.numbers, of_slow) & np.isnan(self.expected).all(axis=0)
        chosen &= ~arrays.incomplete & (self._are_between == self._are_between[groups].any())
        chosen[groups] = False
        if not chosen.any():
            return None
        took_ns, usual_ns = (
            sum(float(np.nansum(times[at][groups])) for at in slow.steps) for times in (self.took, self.baseline)
        )
        factor = usual_ns / took_ns if took_ns else 1.0
        baseline = [
            np.where(chosen, factor * took, usual) for took, usual in zip(self.took, self.baseline, strict=True)
        ]
        more = Scenario(transfers=dict.fromkeys(np.flatnonzero(chosen).tolist(), frozenset(slow.steps)))
        return baseline, together([slow.repair, more])

    def find_always_slow(self, *, incomplete: bool) -> Finding | None:
        """Return the collectives that reach less than a benchmark's bandwidth in every step; None if none do.

        Those with unrecorded members if `incomplete`, else the other ones.
        """
        chosen = self._slow_in_every_step & (self.run.collective_arrays.incomplete == incomplete)
        slow = slow_communication(self.run, self.took, self.expected, chosen)
        return slow and self.of_slowest_rank(slow, self.expected)

    def of_slowest_rank(self, slow: Finding, usual: Sequence[Floats]) -> Finding:
        """Return slow collectives with their excess above the `usual` times on the rank that they keep longest."""
        arrays, groups = self.run.collective_arrays, np.array(slow.transfers, np.int64)
        excess_ns = np.zeros(int(arrays.first_group[-1]))
        excess_ns[groups] = np.nansum([(self.took[at] - usual[at])[groups] for at in slow.steps], axis=0)
        slowest = int(np.bincount(arrays.rank, excess_ns[arrays.group]).argmax())
        of_slowest = groups[np.isin(groups, arrays.group[arrays.rank == slowest])]
        return replace(slow, excess_ns=float(excess_ns[of_slowest].sum()), of_slowest=tuple(of_slowest.tolist()))

    @property
    def at_best(self) -> list[Floats]:
        """The baseline, and what a benchmark gives for collectives that reach less in every step."""
        slow = self._slow_in_every_step & ~self.run.collective_arrays.incomplete
        return [np.where(slow, expected, usual) for expected, usual in zip(self.expected, self.baseline, strict=True)]

    def excess_ns(self, slow: Finding, numbers: Sequence[int]) -> Floats:
        """Return, (steps,), how much longer than their baseline the slowest rank's took in steps `numbers`."""
        return self._of_slowest(self.took, slow, numbers) - self.usual_ns(slow, numbers)

    def usual_ns(self, slow: Finding, numbers: Sequence[int]) -> Floats:
        """Return, (steps,), what the slowest rank's should take in the run's steps `numbers`, all together, ns."""
        return self._of_slowest(self.baseline if slow.known_gain_ns is None else self.expected, slow, numbers)

    def _of_slowest(self, of_run: Floats | Sequence[Floats], slow: Finding, numbers: Sequence[int]) -> Floats:
        groups = list(slow.of_slowest)
        times_ns = np.array([of_run[number][groups] for number in numbers]).reshape(len(numbers), len(groups))
        whole_ns: Floats = np.nansum(times_ns, axis=1)
        return whole_ns

    @cached_property
    def _are_between(self) -> Bools:
        """(groups of all collectives,) whether they join nodes."""
        arrays = self.run.collective_arrays
        node_of = number_places(self.run.reader.nodes.get(rank) for rank in self.run.rank_numbers.tolist())[arrays.rank]
        first = arrays.by_group[arrays.first_in_group[:-1]]
        are_between = np.zeros(len(first), np.bool_)
        np.logical_or.at(are_between, arrays.group, node_of != node_of[first[arrays.group]])
        return are_between

    def are_inside_nodes(self, slow: Finding) -> bool:
        """Return whether all slow collectives are known to join ranks of one node each."""
        return bool(self.run.reader.nodes) and not self._are_between[list(slow.transfers)].any()

    def may_carry_more(self, slow: Finding) -> bool:
        """Return whether the slow ones may all be all-to-alls, which carry what their ranks have to exchange.

        Not where the recorded sizes show that they carry about as much as the others.
        """
        arrays, groups = self.run.collective_arrays, list(slow.transfers)
        numbers = set(arrays.collective[groups].tolist())
        operations = {operation for number in numbers for operation in self.run.operations_of_collective(number)}
        members = np.diff(arrays.first_in_group)[groups]
        if not operations <= {"all_to_all", SEND_RECV, None} or (members <= 2).any():
            return False
        sizes = self._relative_sizes(np.array(slow.steps))[:, groups]
        return bool(np.isnan(sizes).any()) or float(np.median(sizes)) > 1 + THRESHOLDS.tolerance_share

    def has_assumed_sizes(self, slow: Finding) -> bool:
        """Return whether slow collectives are compared with others whose sizes are taken to be equal."""
        return bool(self.alike.have_assumed_sizes[list(slow.transfers)].any())

    def lacks_ranks(self, slow: Finding) -> bool:
        """Return whether half of the excess is in steps that some of the collectives' ranks in the lake lack."""
        groups, lacking, whole = list(slow.transfers), 0.0, 0.0
        partial = self.measured.statistics.transfers.partial[list(slow.steps)]
        if not partial.any():
            return False
        for number, of_step in zip(slow.steps, partial, strict=True):
            excess_ns = np.nan_to_num(self.took[number][groups] - self.baseline[number][groups])
            lacking, whole = lacking + float(excess_ns[of_step[groups]].sum()), whole + float(excess_ns.sum())
        return lacking > 0 and lacking >= THRESHOLDS.main_share * whole
