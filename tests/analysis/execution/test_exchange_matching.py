"""Sends and receives that name no peer, matched by which pairs of ranks leave them together."""

import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from jitter.analysis.collectives import exchange_matching
from jitter.analysis.collectives.exchange_matching import Exchanges, match_exchanges
from tests.accuracy.layouts.job import LayoutJob, Naming
from tests.accuracy.layouts.traces import ingest_job, true_cost_ns


def chain(ranks: int, messages: int, steps: int = 4, error_ns: float = 0.0) -> dict[int, Exchanges]:
    """Each rank exchanges so many messages with the next one, on a stream for each neighbour."""
    rng = np.random.default_rng(1)
    clocks = rng.uniform(-9e9, 9e9, ranks)
    ends = {pair: np.sort(rng.uniform(0, 2e7, (steps, messages)), axis=1) for pair in pairwise(range(ranks))}
    found = {}
    for rank in range(ranks):
        own = [end for pair, end in ends.items() if rank in pair]
        stream = np.repeat([pair[0] for pair in ends if rank in pair], messages)
        end = np.concatenate(own, axis=1) + clocks[rank]
        found[rank] = exchanges_of(end + rng.normal(0, error_ns, end.shape), np.full(end.shape, 2e4), stream)
    return found


def exchanges_of(end, took, stream, among=None) -> Exchanges:
    return Exchanges(end, took, stream, among or [None] * len(stream), np.ones(len(stream), np.bool_))


def pairs_of(exchanges: dict[int, Exchanges]) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    return {pair.ranks: pair.messages for pair in match_exchanges(exchanges, dict.fromkeys(exchanges, 0))}


@pytest.mark.parametrize(("messages", "error_ns"), [(2, 0.0), (12, 0.0), (12, 300.0), (12, 1_500.0)])
def test_neighbours_are_matched_message_by_message(messages: int, error_ns: float):
    found = pairs_of(chain(4, messages, error_ns=error_ns))
    assert found == {
        (0, 1): tuple((at, at) for at in range(messages)),
        (1, 2): tuple((messages + at, at) for at in range(messages)),
        (2, 3): tuple((messages + at, at) for at in range(messages)),
    }


def test_ranks_that_exchange_nothing_are_not_matched():
    ends = np.random.default_rng(2).uniform(0, 2e7, (2, 4, 12))
    assert not pairs_of(
        {rank: exchanges_of(ends[rank], np.full((2, 12), 2e4), np.zeros(12, np.int64)) for rank in (0, 1)}
    )


def test_of_messages_that_end_at_once_those_on_the_usual_streams_are_matched():
    exchanges = chain(3, 6)
    middle = exchanges[1]
    # the middle rank's first messages with both neighbours end at the same time
    shift = middle.end[:, 0] - middle.end[:, 6]
    middle.end[:, 6] += shift
    exchanges[2].end[:, 0] += shift
    found = pairs_of(exchanges)
    assert found[0, 1][0] == (0, 0)
    assert found[1, 2][0] == (6, 0)


def test_the_peer_is_of_the_stated_group():
    """Two chains that run in step: without their groups, messages of the one fit those of the other as well."""
    one = chain(3, 6)
    other = {3 + rank: own for rank, own in one.items()}
    stated = {
        rank: own._replace(among=[frozenset({rank // 3 * 3, rank // 3 * 3 + 1, rank // 3 * 3 + 2})] * len(own.among))
        for rank, own in (one | other).items()
    }
    assert sorted(pairs_of(stated)) == [(0, 1), (1, 2), (3, 4), (4, 5)]


def test_kernels_that_exchange_with_both_neighbours_at_once_are_no_pairs():
    """One kernel carries messages to several ranks: passes that follow each other evenly end together on any two."""
    rng = np.random.default_rng(5)
    begin, (start, end) = np.zeros(4), np.zeros((2, 4, 8, 6))
    for step, at in np.ndindex(8, 6):
        arrived = start[:, step, at] = begin + 5e5 * (1 + rng.normal(0, 0.005, 4))
        around = np.concatenate([[-np.inf], arrived, [-np.inf]])
        begin = end[:, step, at] = np.lib.stride_tricks.sliding_window_view(around, 3).max(axis=1) + 2.5e4
    column = [frozenset(range(4))] * 6
    line = {rank: exchanges_of(end[rank], end[rank] - start[rank], np.zeros(6, np.int64), column) for rank in range(4)}
    assert not pairs_of(line)


def interleaved(stages: int, steps: int = 5, passes: int = 8) -> dict[int, Exchanges]:
    """Two replicas of a pipeline whose last stage hands on to the first one; each rank has one stream for all messages.

    Rank 2 s + d is stage s of replica d. Of passes, every other one begins at the first stage without a message.
    """
    rng = np.random.default_rng(3)
    ranks = 2 * stages
    arrived: dict[int, list[list[float]]] = {rank: [[] for _ in range(steps)] for rank in range(ranks)}
    left: dict[int, list[list[float]]] = {rank: [[] for _ in range(steps)] for rank in range(ranks)}
    for step, replica in np.ndindex(steps, 2):
        free, ready = np.zeros(ranks), np.zeros(ranks)
        for at, stage in np.ndindex(passes, stages):
            rank, before = 2 * stage + replica, 2 * ((stage - 1) % stages) + replica
            if stage or at % 2:
                own, sent = max(ready[rank], free[rank]), max(ready[before], free[before])
                end = max(own, sent) + 8e3
                for member, begin in ((rank, own), (before, sent)):
                    arrived[member][step].append(begin)
                    left[member][step].append(end)
                    free[member] = end
                ready[rank] = end
            ready[rank] += 1e6 * (1 + 0.002 * rng.normal())
    clocks = rng.uniform(-9e9, 9e9, ranks)
    ends = {rank: np.array(times) for rank, times in left.items()}
    return {
        rank: exchanges_of(end + clocks[rank], end - np.array(arrived[rank]), np.zeros(end.shape[1]))
        for rank, end in ends.items()
    }


def one_forward_one_backward(
    stages: int, slow_edge: int = -1, passes: int = 16, steps: int = 6
) -> dict[int, Exchanges]:
    """Stages of two ranks that keep pace, each with one stream for both neighbours; rank 2 s + d is of stage s."""
    rng = np.random.default_rng(4)

    def program(stage: int) -> str:
        """Compute (`c`), and exchange with the stage before (`<`) or after (`>`)."""
        first = min(stages - stage - 1, passes)
        ops = "<c>" * first + "<" + "c>c<" * (passes - first) + ">c<" * first
        unknown = "<" * (stage == 0) + ">" * (stage == stages - 1)
        return "".join(op for op in ops if op not in unknown)

    programs = [program(stage) for stage in range(stages)]
    times: list[list[tuple[list[float], list[float]]]] = [[] for _ in range(2 * stages)]
    for _ in range(steps):
        now, at = np.zeros(stages), [0] * stages
        for of_rank in times:
            of_rank.append(([], []))
        while any(at[stage] < len(programs[stage]) for stage in range(stages)):
            for stage in range(stages):
                here = programs[stage][at[stage] : at[stage] + 1]
                if here == "c":
                    now[stage] += 1e6 * (1 + abs(rng.normal(0, 0.01)))
                    at[stage] += 1
                elif here == ">" and programs[stage + 1][at[stage + 1] : at[stage + 1] + 1] == "<":
                    both = [stage, stage + 1]
                    end = now[both].max() + (8e5 if stage == slow_edge else 2e5)
                    for peer in (0, 1):
                        own_end = end + rng.uniform(0, 4e3)  # peers meet others, so they leave about together
                        for member in both:
                            begins, ends = times[2 * member + peer][-1]
                            begins.append(now[member])
                            ends.append(own_end + rng.uniform(0, 1e3))
                    now[both] = end + 4e3
                    for member in both:
                        at[member] += 1
    clocks = rng.uniform(-9e9, 9e9, 2 * stages)
    found = {}
    for rank, of_rank in enumerate(times):
        begin, end = (np.array([one[side] for one in of_rank]) for side in (0, 1))
        found[rank] = exchanges_of(end + clocks[rank], end - begin, np.zeros(end.shape[1]))
    return found


@pytest.mark.parametrize(("stages", "slow_edge"), [(4, -1), (4, 1), (16, -1), (16, 3), (16, 14)])
def test_stages_with_one_stream_exchange_with_both_neighbours(stages: int, slow_edge: int):
    """Peers of a stage have as many messages, and leave them together: but then even the later one waits."""
    exchanges = one_forward_one_backward(stages, slow_edge)
    found = match_exchanges(exchanges, {rank: rank // 2 for rank in exchanges})
    assert sorted(pair.ranks for pair in found if pair.ranks[1] - pair.ranks[0] != 2) == []
    assert sorted(pair.ranks for pair in found) == [(rank, rank + 2) for rank in range(2 * stages - 2)]
    assert sum(2 * len(pair.messages) for pair in found) == sum(own.end.shape[1] for own in exchanges.values())


@pytest.mark.parametrize("passes", [8, 180])
def test_replicas_that_keep_pace_do_not_exchange(passes: int):
    """All messages of theirs end within microseconds; but then even the later rank waits, which waits for none."""
    found = match_exchanges(interleaved(4, passes=passes), dict.fromkeys(range(8), 0))
    assert sorted(pair.ranks for pair in found) == [(0, 2), (0, 6), (1, 3), (1, 7), (2, 4), (3, 5), (4, 6), (5, 7)]
    assert max(pair.wait_ns for pair in found) < 10e3


def test_messages_on_a_slow_link_are_no_waits():
    """They take longer than the second rank's others: first ranks of replicas, which keep pace, were matched."""
    rng = np.random.default_rng(4)
    pace = {link: rng.normal(0, spread_ns, (4, 8)) for link, spread_ns in enumerate((5e3, 1e6))}
    exchanges = {}
    for rank, own in chain(3, 8).items():
        took = np.where(own.stream == 0, 1.3e5, 6e4) * np.ones((4, 1))
        apart = np.concatenate([pace[link] for link in dict.fromkeys(own.stream.tolist())], axis=1)
        exchanges |= {rank: own._replace(took=took), 3 + rank: own._replace(end=own.end + apart, took=took)}
    assert sorted(pairs_of(exchanges)) == [(0, 1), (1, 2), (3, 4), (4, 5)]


def test_streams_of_a_direction_hold_messages_with_both_neighbours():
    """Replicas that keep pace leave whole streams together, to within 10 µs; partners do far more closely."""
    pace = np.random.default_rng(4).normal(0, 2_500, (4, 24))
    exchanges = {}
    for rank, own in chain(4, 12, error_ns=300.0).items():
        is_forward = np.arange(len(own.stream)) % 12 < 6
        sends = is_forward == (own.stream == rank)
        one = own._replace(stream=np.where(sends, 1, 0), took=np.full(own.end.shape, 2e5))
        exchanges |= {rank: one, 4 + rank: one._replace(end=own.end + pace[:, : own.end.shape[1]])}
    assert sorted(pairs_of(exchanges)) == [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7)]


@pytest.mark.parametrize("stages", [3, 4, 8])
def test_a_stream_without_a_name_may_hold_those_of_both_neighbours(stages: int):
    """The first stage's stream is a part of the second one's; what is left of this is shared with the third."""
    exchanges = {
        rank: own._replace(
            named=np.zeros(len(own.stream), np.bool_),
            among=[frozenset(range(2 * stages)) - {rank // 2 * 2, rank // 2 * 2 + 1}] * len(own.stream),
        )
        for rank, own in one_forward_one_backward(stages).items()
    }
    found = match_exchanges(exchanges, {rank: rank // 2 for rank in exchanges})
    assert sorted(pair.ranks for pair in found) == [(rank, rank + 2) for rank in range(2 * stages - 2)]
    assert sum(2 * len(pair.messages) for pair in found) == sum(own.end.shape[1] for own in exchanges.values())


def test_middle_stages_of_one_program_exchange_without_names():
    """A stream of theirs that holds messages with the first stage holds those with each other as well."""
    rng = np.random.default_rng(8)
    stages, passes = 6, 6
    # of each link all messages of the forward passes, and then all of the backward ones
    forward = np.arange(passes) * 1e6 + np.arange(stages - 1)[:, None] * 2e5
    backward = 2e7 + np.arange(passes) * 2e6 + np.arange(stages - 1)[::-1, None] * 4e5
    ends = np.hstack([forward, backward]) + rng.normal(0, 3e4, (4, stages - 1, 2 * passes))
    exchanges = {}
    for rank in range(stages):
        links = [link for link in (rank - 1, rank) if 0 <= link < stages - 1]
        end = ends[:, links].reshape(4, -1) + rng.uniform(-9e9, 9e9) + rng.normal(0, 300, (4, len(links) * 2 * passes))
        is_sent = np.repeat([link == rank for link in links], 2 * passes) == (np.arange(end.shape[1]) % 12 < passes)
        order = np.argsort(end[0])
        own = exchanges_of(end[:, order], np.full(end.shape, 2e4), np.where(is_sent, 1, 0)[order])
        middle = frozenset(range(1, stages - 1))
        among = [frozenset(range(stages)) - (middle if rank in middle else {rank})] * len(order)
        exchanges[rank] = own._replace(named=np.zeros(len(order), np.bool_), among=among)
    found = match_exchanges(exchanges, {0: 0, 5: 2} | dict.fromkeys(range(1, 5), 1))
    assert sorted((pair.ranks, len(pair.messages)) for pair in found) == [(ranks, 12) for ranks in pairwise(range(6))]


def test_of_operations_without_a_name_whole_streams_are_matched():
    exchanges = chain(3, 6)
    unnamed = {rank: own._replace(named=np.zeros(len(own.stream), np.bool_)) for rank, own in exchanges.items()}
    assert pairs_of(unnamed) == pairs_of(exchanges)
    # collectives of a stage, which no other stage leaves together, are more than its messages
    with_collectives = {
        rank: exchanges_of(
            np.hstack([own.end, np.cumsum(np.random.default_rng(rank).uniform(2e4, 2e5, (4, 60)), axis=1)]),
            np.full((4, own.end.shape[1] + 60), 2e4),
            np.append(own.stream, np.full(60, 9)),
        )._replace(named=np.zeros(len(own.stream) + 60, np.bool_))
        for rank, own in exchanges.items()
    }
    assert pairs_of(with_collectives) == pairs_of(exchanges)
    unnamed[2].end[:, 0] += 1e6  # one message less is no stream
    assert set(pairs_of(unnamed)) == {(0, 1)}
    exchanges[2].end[:, 0] += 1e6
    assert set(pairs_of(exchanges)) == {(0, 1), (1, 2)}


def test_many_ranks_are_matched_by_their_distance():
    found = pairs_of(chain(40, 3))
    assert sorted(found) == list(pairwise(range(40)))


def test_replicas_that_keep_pace_do_not_make_all_distances_likely(monkeypatch: pytest.MonkeyPatch):
    """Two stages of 64 ranks, of which each leaves its messages hardly apart from all others of its stage."""
    rng = np.random.default_rng(6)
    ends, apart = np.sort(rng.uniform(0, 2e7, (4, 8)), axis=1), rng.normal(0, 5_000, (64, 4, 8))
    end = np.concatenate([ends + apart, ends + apart + rng.normal(0, 100, apart.shape)])
    exchanges = {rank: exchanges_of(end[rank], np.full((4, 8), 2e4), np.repeat([7, 8], 4)) for rank in range(128)}
    compared = Counter[int]()
    match = exchange_matching._match_streams
    monkeypatch.setattr(
        exchange_matching, "_match_streams", lambda of, ranks: (compared.update(ranks), match(of, ranks))[1]
    )
    matched = match_exchanges(exchanges, {rank: rank // 64 for rank in exchanges})
    assert [pair.ranks for pair in sorted(matched, key=lambda pair: pair.ranks)] == [(at, at + 64) for at in range(64)]
    assert sorted(compared.values())[-3] < 16  # but for the two first ranks


def test_many_operations_without_a_name_are_not_compared_each_with_each():
    """That took as much memory and time as operations squared: 30 times as long."""
    exchanges = chain(26, 400)
    unnamed = {rank: own._replace(named=np.zeros(len(own.stream), np.bool_)) for rank, own in exchanges.items()}
    start = time.process_time()
    assert sorted(pairs_of(unnamed)) == list(pairwise(range(26)))
    assert time.process_time() - start < 1.5


JOBS = {
    "four stages of two ranks": LayoutJob(3, shape="pipeline", slow=(5, 1.2)),
    "two stages of three ranks": LayoutJob(22, shape="pipeline", row=2, ranks=6, slow=(5, 1.2)),
    "stages of the column, without the peer": LayoutJob(6, shape="pipeline", slow=(5, 1.2), naming="column"),
    "operations without a name": LayoutJob(3, shape="pipeline", slow=(5, 1.2), naming="nothing"),
    "peers by rank": LayoutJob(4, shape="pipeline", slow=(5, 1.2), naming="peers"),
    "peers by place in the group": LayoutJob(5, shape="pipeline", slow=(5, 1.2), naming="local_peers"),
}


@pytest.mark.parametrize("name", JOBS)
def test_a_slow_gpu_in_a_pipeline_is_found_and_priced(tmp_path, name: str):
    """Its partners wait for it in their receives: that is no slow communication."""
    job = JOBS[name]
    lake = ingest_job(job, tmp_path)
    assert lake.analyze().run.matching.unpaired == 0
    (found,) = lake.diagnose().culprits
    assert (found.ranks, found.cause) == ((job.slow[0],), "gpu_compute")
    assert found.gain_ns == pytest.approx(true_cost_ns(job, job.healthy()), rel=0.1)


@pytest.mark.parametrize("naming", ["none", "nothing"])
@pytest.mark.parametrize(("seed", "late"), [(403, 7), (442, 6)])
def test_two_stages_that_have_as_many_messages_are_a_pipeline(tmp_path, naming: Naming, seed: int, late: int):
    """Their replicas keep pace, so their messages end together as closely; most neighbours are at one distance."""
    steps = {403: 3, 442: 5}[seed]
    job = LayoutJob(seed, steps=steps, shape="pipeline", row=2, noise=0.003, end_spread_ns=5e3, naming=naming)
    job = replace(job, late=(late, 6e5))
    (found,) = (one for one in ingest_job(job, tmp_path).diagnose().culprits if one.rung == "ranks")
    assert (found.ranks, found.cause, found.confidence) == ((late,), "late_start", "high")
    assert found.gain_ns == pytest.approx(true_cost_ns(job, job.healthy()), rel=0.05)


def test_a_healthy_pipeline_has_no_finding(tmp_path):
    assert not ingest_job(LayoutJob(13, shape="pipeline", steps=4), tmp_path).diagnose().culprits


@pytest.mark.parametrize(("naming", "noise"), [("column", 0.003), ("none", 0.01)])
def test_messages_of_passes_that_follow_each_other_evenly_are_told_apart(tmp_path, naming: Naming, noise: float):
    """By other clocks, messages of other ranks would end together within the same microseconds."""
    job = LayoutJob(40, steps=4, shape="pipeline", microbatches=4, noise=noise, end_spread_ns=1_500.0, naming=naming)
    matching = ingest_job(job, tmp_path).analyze().run.matching
    assert matching.unpaired == 0
    pairs = set()
    arrays = matching.arrays
    for number, members in enumerate(matching.members):
        if len(members) == 2:
            for group in range(*arrays.first_group[number : number + 2]):
                pairs.add(tuple(matching.ranks[arrays.rank[arrays.group == group]].tolist()))
    assert pairs == {(rank, rank + job.columns) for rank in range(job.ranks - job.columns)}
