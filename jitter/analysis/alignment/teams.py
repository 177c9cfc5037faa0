"""Teams: ranks of a cohort that exchange at the same places of their work, and so can share one program.

A cohort's kernels are alike, but pipeline stages of one cohort interleave them with their exchanges in different
orders: what waits for what differs between them. Ranks are of one team if they have as many collectives, do nearly as
much work before each, and, where they exchange with neighbours, the same work: a stage that runs a forward pass where
another one runs a backward pass is of another team. Ranks of the same collectives that exchange with none may differ in
how much work they do.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from itertools import zip_longest
from typing import Final

import numpy as np

from jitter.analysis.alignment.kernel_index import find_commonest
from jitter.analysis.alignment.program import MAIN, Example, Signature
from jitter.analysis.alignment.sequences import lcs_length
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.names.kernels import COLLECTIVE, COMPUTE, SEND_RECV
from jitter.core.numeric.arrays import Ints, KindCodes

_LIMITS: Final = THRESHOLDS.matching


def teams(
    usual: Mapping[int, Signature],
    cohort_of: Mapping[int, int],
    kinds: Mapping[Signature, KindCodes],
    example: Callable[[Signature], Example],
    cut: AbstractSet[int] = frozenset(),
) -> dict[int, int]:
    """Return the team of each rank, numbered from 0.

    `usual` is the signature that each rank's steps have most often, `kinds` are the kinds of its operations, and
    `example` returns the operations themselves. Ranks in `cut` have no whole step, so operations that they lack tell
    nothing: each joins the team of its cohort with which it shares most operations.
    """
    whole = {rank: signature for rank, signature in usual.items() if rank not in cut}
    cohort_of = _join_variants(whole, cohort_of, kinds, example)
    team_of = _split(whole, cohort_of, kinds, example)
    members: dict[int, dict[int, Signature]] = {}
    for rank, team in team_of.items():
        members.setdefault(team, {})[rank] = usual[rank]
    alone: dict[int, Signature] = {}
    for rank in sorted(cut):
        near = [team for team, signatures in members.items() if cohort_of[min(signatures)] == cohort_of[rank]]
        if len(near) > 1:
            number: dict[str, int] = {}
            shared: dict[int, int] = {}
            for team in near:
                samples = example(usual[rank]), example(find_commonest(members[team]))
                first, second = ([number.setdefault(name, len(number)) for name in sample.names] for sample in samples)
                shared[team] = lcs_length(first, second)
            near = [max(near, key=shared.__getitem__)]
        if near:
            team_of[rank] = near[0]
        else:
            alone[rank] = usual[rank]
    team_of_rest = _split(alone, cohort_of, kinds, example)
    team_of |= {rank: len(members) + team for rank, team in team_of_rest.items()}
    return dict(sorted(team_of.items()))


def _join_variants(
    usual: Mapping[int, Signature],
    cohort_of: Mapping[int, int],
    kinds: Mapping[Signature, KindCodes],
    example: Callable[[Signature], Example],
) -> Mapping[int, int]:
    """Return each rank's cohort, small ones joined to a large one that does the same by kernels of other names.

    Another driver, library or GPU model gives some ranks other variants of their kernels, in the same order. Where
    about as many ranks have each, they may be two models.
    """
    ranks_of: dict[int, dict[int, Signature]] = {}
    for rank, signature in usual.items():
        ranks_of.setdefault(cohort_of[rank], {})[rank] = signature
    joined = dict(cohort_of)
    largest = max(ranks_of, key=lambda cohort: (len(ranks_of[cohort]), -cohort), default=0)
    for cohort in ranks_of.keys() - {largest}:
        own, other = find_commonest(ranks_of[cohort]), find_commonest(ranks_of[largest])
        is_few = len(ranks_of[cohort]) <= THRESHOLDS.main_share * len(ranks_of[largest])
        if is_few and np.array_equal(kinds[own], kinds[other]) and _does_alike(example(own), example(other)):
            joined |= {rank: largest for rank, of_rank in cohort_of.items() if of_rank == cohort}
    return joined


def _does_alike(example: Example, reference: Example) -> bool:
    return list(example.collectives) == list(reference.collectives) and list(example.streams) == list(reference.streams)


def _split(
    usual: Mapping[int, Signature],
    cohort_of: Mapping[int, int],
    kinds: Mapping[Signature, KindCodes],
    example: Callable[[Signature], Example],
) -> dict[int, int]:
    """Return the team of each of these ranks, numbered from 0."""
    places = {signature: _places(kinds[signature]) for signature in set(usual.values())}
    waiting = dict(usual)
    team_of: dict[int, int] = {}
    number = 0
    while waiting:
        cohort = min(cohort_of[rank] for rank in waiting)
        mine = {rank: signature for rank, signature in waiting.items() if cohort_of[rank] == cohort}
        commonest = find_commonest(mine)
        usual_order = example(commonest).by_start()
        if usual_order.starts_ns is None and not usual_order.graphs:
            alike = {
                signature
                for signature in set(mine.values())
                if _alike(places[signature], places[commonest]) or _has_uneven_work(example(signature), usual_order)
            }
        else:
            alike = {
                signature
                for signature in set(mine.values())
                if _share_streams(example(signature).by_start(), usual_order)
            }
        # a stage exchanges with other neighbours, or after other work; without launches, and in graphs, the order of
        # streams varies
        streams = _streams_of_exchanges(usual_order)
        for signature in alike - {commonest} if streams else ():
            order = example(signature).by_start()
            is_ordered = order.starts_ns is None and not order.graphs
            if (is_ordered and _streams_of_exchanges(order) != streams) or _is_reordered(order, usual_order):
                alike.remove(signature)
        members = [rank for rank, signature in mine.items() if signature in alike]
        team_of |= dict.fromkeys(members, number)
        for rank in members:
            del waiting[rank]
        number += 1
    return team_of


def _places(kind: KindCodes) -> tuple[Ints, int]:
    """Return the number of compute kernels before each collective, and of all compute kernels."""
    compute = np.cumsum(kind == COMPUTE)
    return compute[kind == COLLECTIVE], int(compute[-1]) if len(compute) else 0


def _alike(places: tuple[Ints, int], reference: tuple[Ints, int]) -> bool:
    return len(places[0]) == len(reference[0]) and bool(
        (np.abs(places[0] - reference[0]) <= _most_apart(places, reference)).all()
    )


def _most_apart(places: tuple[Ints, int], reference: tuple[Ints, int]) -> float:
    return max(THRESHOLDS.min_repeats, _LIMITS.same_place_share * max(places[1], reference[1]))


def _has_uneven_work(example: Example, reference: Example) -> bool:
    """Return whether one of two ranks only runs more kernels than the other, as of more micro-batches: no other stage.

    They have the same collectives, none an exchange, and from each to the next one of them never runs less.
    """
    own, usual = (
        [collective for collective, kind in zip(one.collectives, one.kind, strict=True) if kind == COLLECTIVE]
        for one in (example, reference)
    )
    if own != usual or {SEND_RECV, None} & {*usual}:
        return False
    own_places, usual_places = (_places(np.array(one.kind)) for one in (example, reference))
    more = np.append(own_places[0] - usual_places[0], own_places[1] - usual_places[1])
    apart = _most_apart(own_places, usual_places)
    return any(bool((np.maximum.accumulate(ahead) - ahead <= apart).all()) for ahead in (more, -more))


def _share_streams(example: Example, reference: Example) -> bool:
    """Return whether two ranks without launches, or with graphs, run as many collectives on each stream.

    A step's bound may cut off one. How much work is done before each varies with the time at which the streams run, but
    not before an exchange, which waits for the work before it.
    """
    first, second = _count_collectives(example), _count_collectives(reference)
    is_alike = len(first) == len(second) and all(
        abs(own - other) <= 1 for own, other in zip(first, second, strict=True)
    )
    return is_alike and _alike(_places_of_exchanges(example), _places_of_exchanges(reference))


def _places_of_exchanges(example: Example) -> tuple[Ints, int]:
    """Return the same as `_places` of the compute kernels of the main stream before each send and receive."""
    is_exchange = np.array([collective == SEND_RECV for collective in example.collectives], np.bool_)
    on_main = (np.array(example.kind) == COMPUTE) & (np.array(example.streams) == MAIN)
    compute = np.cumsum(on_main)
    return compute[is_exchange], int(compute[-1]) if len(compute) else 0


def _count_collectives(example: Example) -> list[int]:
    """Return the collectives of each stream that has any, ascending."""
    streams = zip(example.streams, example.kind, strict=True)
    return sorted(Counter(stream for stream, kind in streams if kind == COLLECTIVE).values())


def _streams_of_exchanges(example: Example) -> list[int]:
    """Return the stream of each send and receive: a neighbour, or a direction, has a stream of its own."""
    return [
        stream
        for stream, collective in zip(example.streams, example.collectives, strict=True)
        if collective == SEND_RECV
    ]


def _is_reordered(example: Example, reference: Example) -> bool:
    """Return whether two ranks run some of the same kernels before different collectives.

    Kernels that only one of them runs anywhere, such as another choice of an autotuner, do not count.
    """
    ahead: Counter[str] = Counter()  # how many more kernels of a name the one has run than the other
    only_first = only_second = 0
    lacking: list[tuple[int, int]] = []  # before each collective: what only one of them has run by then
    for first, second in zip_longest(*map(_names_between_collectives, (example, reference)), fillvalue=()):
        for name in first:
            only_first += ahead[name] >= 0
            only_second -= ahead[name] < 0
            ahead[name] += 1
        for name in second:
            only_first -= ahead[name] > 0
            only_second += ahead[name] <= 0
            ahead[name] -= 1
        lacking.append((only_first, only_second))
    return any(
        min(before_first - only_first, before_second - only_second) > THRESHOLDS.min_repeats
        for before_first, before_second in lacking
    )


def _names_between_collectives(example: Example) -> list[list[str]]:
    """Return the names of the compute kernels before each collective, and after the last one."""
    names_between: list[list[str]] = [[]]
    for kind, name in zip(example.kind, example.names, strict=True):
        if kind == COLLECTIVE:
            names_between.append([])
        elif kind == COMPUTE:
            names_between[-1].append(name)
    return names_between
