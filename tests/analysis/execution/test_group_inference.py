"""Groups of collectives that the trace does not name, inferred from which ranks leave them together."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jitter.analysis.alignment.program import Operation, Program
from jitter.analysis.collectives.group_inference import infer_attended
from jitter.analysis.collectives.leaving_together import (
    ALONE,
    JointClocks,
    _divide_on_one_clock,
    infer_groups,
    with_absent_ranks,
)
from jitter.analysis.collectives.matching import Group, match
from jitter.core.names.kernels import COLLECTIVE
from tests.accuracy.layouts.job import LayoutJob
from tests.accuracy.layouts.traces import ingest_job, true_cost_ns
from tests.support.fuzz_depth import fuzz, some_of

CLOCKS = np.random.default_rng(0).uniform(-9e9, 9e9, 16)
"""What the ranks' clocks are ahead, ns: by far more than what is to be told."""


def times(works: np.ndarray, groups: list[list[list[int]]], transfer: float = 5e4) -> tuple[np.ndarray, np.ndarray]:
    """(steps, collectives, ranks) when ranks enter and leave blocking collectives, given the (…) work before each.

    `groups` are those of each collective. A rank that is in none of them leaves at once.
    """
    start, end = np.empty(works.shape), np.empty(works.shape)
    now = np.zeros(works.shape[2])
    for step, at in np.ndindex(works.shape[:2]):
        arrived = now + works[step, at]
        start[step, at], end[step, at] = arrived, arrived + transfer
        for group in groups[at]:
            end[step, at, group] = arrived[group].max() + transfer
        now = end[step, at].copy()
    return start + CLOCKS[: works.shape[2]], end + CLOCKS[: works.shape[2]]


def works(steps: int, collectives: int, ranks: int, spread_ns: float = 2e4) -> np.ndarray:
    return np.random.default_rng(1).normal(1e6, spread_ns, (steps, collectives, ranks))


def on_streams(*streams: int) -> list[Operation]:
    return [Operation("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", COLLECTIVE, stream, 0) for stream in streams]


def groups_of(labels: np.ndarray) -> list[list[int]]:
    return [np.flatnonzero(labels == label).tolist() for label in np.unique(labels[labels != ALONE])]


ROWS, COLUMNS, ALL = [[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 1, 2, 3]]


@pytest.mark.parametrize("steps", [1, 2, 6])
def test_rows_columns_and_all_ranks(steps: int):
    layout = [ROWS, ROWS, COLUMNS, ROWS, COLUMNS, ROWS, COLUMNS, ALL]
    streams = [{id(ROWS): 1, id(COLUMNS): 2, id(ALL): 3}[id(one)] for one in layout]
    found = infer_groups(on_streams(*streams), *times(works(steps, len(layout), 4), layout)).labels
    assert [groups_of(found[at]) for at in range(len(layout))] == layout


def test_collectives_of_one_stream_may_have_different_groups():
    layout = [ROWS, ROWS, ROWS, COLUMNS, ROWS, COLUMNS, ROWS, ROWS, ALL]
    found = infer_groups(on_streams(*[1] * len(layout)), *times(works(5, len(layout), 4), layout)).labels
    assert [groups_of(found[at]) for at in range(len(layout))] == layout


@pytest.mark.parametrize("late_ns", [0.0, 2e6])
def test_one_collective_of_all_ranks_on_the_stream_of_smaller_groups(late_ns: float):
    """The rows leave it together, too: it was theirs, and the row that waits there for a late rank had a slow link."""
    layout = [ROWS, ROWS, ROWS, ROWS, ROWS, ALL]
    work = works(8, len(layout), 4)
    work[:, 0, 2] += late_ns
    found = infer_groups(on_streams(*[1] * len(layout)), *times(work, layout)).labels
    assert [groups_of(found[at]) for at in range(len(layout))] == layout


def test_a_slow_link_of_one_group_is_no_wait_for_the_others():
    """The last of its ranks to arrive stays as long as for a wait, but the groups' ends differ from step to step."""
    work = works(8, 5, 4)
    start, end = times(work, [ROWS] * 5)
    slow_ns = 2e5 * np.arange(1, 41).reshape(8, 5)  # of the first row's transfers up to each one's end
    end[:, :, :2] += slow_ns[:, :, None]
    start[:, :, :2] += slow_ns[:, :, None] - 2e5
    found = infer_groups(on_streams(*[1] * 5), start, end).labels
    assert [groups_of(found[at]) for at in range(5)] == [ROWS] * 5


def test_messages_tell_the_clocks_of_stages_that_share_a_program():
    """Each of two stages reduces among its replicas, and then all ranks do: in three steps these look alike."""
    layout = [ROWS, ALL]
    start, end = times(works(6, 2, 4), layout)
    found = infer_groups(on_streams(1, 1), start, end).labels
    assert [groups_of(found[at]) for at in (0, 1)] == layout
    start, end = start[:3], end[:3]
    found = infer_groups(on_streams(1, 1), start, end).labels
    assert [groups_of(labels) for labels in found.values()] == [ROWS, ROWS]
    clocks = JointClocks(4, 3)
    for first, second in ([0, 2], [1, 3]):  # the stages of a replica exchange messages
        ahead_ns = np.array([0, CLOCKS[second] - CLOCKS[first]])
        clocks.connect(np.array([first, second]), np.tile(ahead_ns, (3, 1)))
    found = infer_groups(on_streams(1, 1), start, end, clocks).labels
    assert [groups_of(found[at]) for at in (0, 1)] == layout


@pytest.mark.parametrize(("seed", "spread_ns"), [(8, 0.0), (10, 0.0), (10, 1_500.0)])
def test_communicators_that_take_turns_on_one_stream_are_told_apart(tmp_path: Path, seed: int, spread_ns: float):
    """What is late in a row is handed on by the columns: all ranks seem to leave within tens of µs."""
    job = LayoutJob(seed, one_stream=True, slow=(2, 1.2), end_spread_ns=spread_ns)
    (found,) = ingest_job(job, tmp_path).diagnose().culprits
    assert (found.ranks, found.cause, found.confidence) == ((2,), "gpu_compute", "high")
    assert found.gain_ns == pytest.approx(true_cost_ns(job, job.healthy()), rel=0.1)


def test_the_clocks_of_other_collectives_leave_no_rank_alone(tmp_path: Path):
    """Columns that keep pace give clocks some µs off: by these the two ranks of a late row would each be alone."""
    job = LayoutJob(347, ranks=16, row=2, steps=8, operation="alltoall", with_world=False, naming="nothing")
    job = replace(job, slow=(9, 1.2), end_spread_ns=1_500.0)
    (found,) = ingest_job(job, tmp_path).diagnose().culprits
    assert (found.ranks, found.confidence) == ((9,), "high")
    assert found.gain_ns == pytest.approx(true_cost_ns(job, job.healthy()), rel=0.2)


def test_a_group_that_always_follows_another_one_at_a_distance_is_another_group():
    """Ranks 0 and 1 begin each step 3 ms late: until the collective of all ranks, the rows are so far apart."""
    layout = [ROWS, ROWS, ROWS, ROWS, ALL]
    work = np.full((6, len(layout), 4), 1e6)
    work[:, 0, :2] += 3e6
    work[:, :, 1::2] -= 2e5
    found = infer_groups(on_streams(1, 1, 1, 1, 3), *times(work, layout)).labels
    assert [groups_of(found[at]) for at in range(len(layout))] == layout


def test_what_no_ranks_leave_together_is_each_ranks_own():
    layout = [ALL, [], ALL, [], ALL, [], ALL]
    found = infer_groups(on_streams(1, 2, 1, 2, 1, 2, 1), *times(works(5, 7, 4, 2e5), layout)).labels
    assert all((found[at] == ALONE).all() for at in (1, 3, 5))
    assert all(groups_of(found[at]) == ALL for at in (0, 2, 4, 6))


@pytest.mark.parametrize("apart_ns", [500.0, 5_000.0])
def test_ranks_leave_together_within_the_error_of_their_clocks(apart_ns: float):
    layout = [ROWS, COLUMNS] * 4 + [ALL]
    work = works(5, len(layout), 4)
    work[:, :, 3] += 5e5
    start, end = times(work, layout)
    end += np.random.default_rng(2).normal(0, apart_ns, end.shape)
    found = infer_groups(on_streams(*[1, 2] * 4, 3), start, end).labels
    assert [groups_of(found[at]) for at in range(len(layout))] == layout


def test_ranks_that_wait_for_a_late_one_are_of_its_group():
    """Six of 16 ranks leave 600 ns after the others, by their clocks, and wait for one of these in most collectives."""
    work = works(8, 20, 16)
    work[:, :, 9] += 6e4
    start, end = times(work, [[list(range(16))]] * 20, transfer=1.2e5)
    end[:, :, 10:] += np.random.default_rng(2).uniform(0, 1200, (8, 20, 1))
    found = infer_groups(on_streams(*[1] * 20), start, end).labels
    assert all(groups_of(found[at]) == [list(range(16))] for at in range(20))


def test_one_collective_a_step_tells_nothing():
    assert infer_groups(on_streams(1), *times(works(5, 1, 4), [ALL])).labels == {}


def test_a_step_that_a_rank_lacks_does_not_matter():
    layout = [ROWS, ROWS, COLUMNS, ROWS, COLUMNS, ALL]
    start, end = times(works(5, len(layout), 4), layout)
    start[0, :, 1] = end[0, :, 1] = np.nan
    found = infer_groups(on_streams(1, 1, 2, 1, 2, 3), start, end).labels
    assert [groups_of(found[at]) for at in range(len(layout))] == layout


@pytest.mark.parametrize(
    ("recorded", "labels", "groups"),
    [
        ([0, 1, 2, 4, 5, 6, 7], [0, 0, 0, 1, 1, 1, 1], [(0, 1, 2, 3), (4, 5, 6, 7)]),
        ([0, 1, 2, 4, 5, 6, 7], [0, 1, 2, 0, 1, 2, ALONE], [(0, 4), (1, 5), (2, 6)]),
        ([0, 2, 4, 6], [0, 1, 0, 1], [(0, 4), (2, 6)]),
        ([0, 1, 2, 3, 5, 6, 7], [0, 0, 0, 0, 0, 0, 0], [tuple(range(8))]),
        ([0, 1, 2, 5, 6, 7], [0, 0, 1, 0, 1, 1], [(0, 1, 5), (2, 6, 7)]),
    ],
)
def test_ranks_without_a_recording_belong_to_regular_groups(recorded, labels, groups):
    assert with_absent_ranks(recorded, np.array(labels), frozenset(range(8)) - set(recorded)) == groups


JOBS = {
    "rows of neighbours": LayoutJob(3, slow=(5, 1.15)),
    "rows at distances": LayoutJob(4, is_strided=True, slow=(2, 1.15)),
    "exchanges of experts": LayoutJob(5, operation="alltoall", slow=(1, 1.2)),
    "no collective of all ranks": LayoutJob(6, with_world=False, late=(3, 2e6)),
    "one column each step": LayoutJob(7, layers=1, kernels=30, slow=(6, 1.2)),
    "leaving up to 3 µs apart": LayoutJob(8, end_spread_ns=3e3, late=(3, 2e6)),
}


@fuzz
@pytest.mark.parametrize("name", some_of(JOBS, 2))
def test_a_fault_costs_what_it_costs_without_recorded_groups(tmp_path, name: str):
    job = JOBS[name]
    (guilty, _) = job.slow or job.late
    lake = ingest_job(job, tmp_path)
    assert lake.analyze().run.matching.inferred
    found = lake.diagnose()
    assert [one.ranks for one in found.culprits] == [(guilty,)]
    assert found.culprits[0].gain_ns == pytest.approx(true_cost_ns(job, job.healthy()), rel=0.1)


def test_a_healthy_job_of_rows_and_columns_has_no_finding(tmp_path):
    assert not ingest_job(LayoutJob(9), tmp_path).diagnose().culprits


def test_the_report_says_that_groups_are_inferred(tmp_path):
    found = ingest_job(LayoutJob(9, steps=3), tmp_path).diagnose()
    assert any("inferred from which ranks leave them together" in note for note in found.notes)


def test_an_answer_whatever_the_ends_are():
    """As where each rank lost other events, so that its collectives are not those of the other ranks."""
    for seed in range(100):
        chance = np.random.default_rng(seed)
        steps, collectives, ranks = (int(number) for number in chance.integers((1, 2, 2), (4, 7, 6)))
        start, end = times(works(steps, collectives, ranks), [[[*range(ranks)]]] * collectives)
        apart_ns = chance.normal(size=end.shape) * chance.choice([0, 10 ** chance.uniform(3, 9)], end.shape)
        end[chance.random(end.shape) < chance.choice([0, 0.3, 0.5])] = np.nan
        found = infer_groups(on_streams(*[1] * collectives), start, end + apart_ns).labels
        assert all(labels.shape == (ranks,) for labels in found.values())


def test_messages_of_two_ranks_in_both_directions_are_matched_by_their_streams():
    """Two stages: the first one sends twice before it receives, the second one receives and sends in turns."""
    forward, backward = (Operation("ncclDevKernel_SendRecv", COLLECTIVE, stream, 0, "send_recv") for stream in (1, 2))
    orders = {0: [forward, forward, backward, backward], 1: [forward, backward, forward, backward]}
    programs = {rank: Program(tuple(order), {("", b""): np.arange(4)}, ("", b"")) for rank, order in orders.items()}
    pair = Group((0, 1))
    attended = {rank: [(place, pair) for place in range(4)] for rank in (0, 1)}
    clock_ns = 7e6
    ends = {0: np.array([1e6, 2.1e6, 3.3e6, 4.2e6]), 1: clock_ns + np.array([1e6, 3.3e6, 2.1e6, 4.2e6])}
    step = {rank: (np.array([rank]), (end - 1e5)[:, None], end[:, None]) for rank, end in ends.items()}
    inferred, alone, _ = infer_attended(programs, {0: 0, 1: 1}, attended, [step, step])
    assert not alone
    found = match(programs, {0: 0, 1: 1}, inferred, alone)
    assert {frozenset(found.places(number)) for number in range(len(found.members))} == {
        frozenset({(0, first), (1, second)}) for first, second in [(0, 0), (1, 2), (2, 1), (3, 3)]
    }


@pytest.mark.parametrize("apart_ns", [5e3, 75e3])
def test_collectives_of_two_stages_that_end_near_each_other_are_apart(apart_ns: float):
    """Each stage reduces among its replicas, and all ranks the norm, 25 µs after the later stage is through.

    Either the stages' own collectives end together by chance, or one stage's ends nearest to the norm's.
    """
    message, norm = (Operation(name, COLLECTIVE, 1, 0, name) for name in ("send_recv", "all_reduce"))
    programs = {
        stage: Program((*[message] * 4, norm._replace(name=name), norm), {("", b""): np.arange(6)}, ("", b""))
        for stage, name in enumerate(("all_reduce_bf16", "all_reduce_f32"))
    }
    chance = np.random.default_rng(3)
    steps = []
    for number in range(6):
        sent = number * 1e7 + chance.uniform(1e5, 2e5, (4, 2)).cumsum(axis=0)
        left = sent.max() + np.array([1e6 - apart_ns, 1e6])
        step = {}
        for stage in (0, 1):
            ranks = np.array([0, 1]) + 2 * stage
            end = np.vstack([sent, np.full((2, 2), left[stage])])
            end[5] = left.max() + 25e3
            start = end - 1.2e5 - chance.uniform(0, 1e4, end.shape)
            start[4, 0] = end[4, 0] - 1e5
            start[5] = left[stage] + 1e4
            step[stage] = ranks, start + CLOCKS[ranks], end + CLOCKS[ranks]
        steps.append(step)
    team_of = {0: 0, 1: 0, 2: 1, 3: 1}
    attended = {rank: [(place, None) for place in range(6)] for rank in team_of}
    inferred = infer_attended(programs, team_of, attended, steps).attended
    of_rank = {rank: {place: group and group.ranks for place, group in places} for rank, places in inferred.items()}
    assert [of_rank[rank][4] for rank in team_of] == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert [of_rank[rank][5] for rank in team_of] == [(0, 1, 2, 3)] * 4


@pytest.mark.parametrize(("apart_ns", "group"), [(1e6, (0, 1)), (0.0, (0, 1, 2, 3))])
def test_the_only_collective_of_a_stage_is_its_own_if_the_other_stage_leaves_at_another_time(apart_ns: float, group):
    """One collective a step has no other one to compare with; the messages of the stages tell their clocks."""
    message, reduce = (Operation(name, COLLECTIVE, 1, 0, name) for name in ("send_recv", "all_reduce"))
    programs = {
        stage: Program((*[message] * 4, reduce._replace(name=f"{stage}")), {("", b""): np.arange(5)}, ("", b""))
        for stage in (0, 1)
    }
    chance = np.random.default_rng(3)
    steps = []
    for number in range(6):
        sent = number * 1e7 + chance.uniform(1e5, 2e5, (4, 2)).cumsum(axis=0)
        step = {}
        for stage in (0, 1):
            ranks = np.array([0, 1]) + 2 * stage
            end = np.vstack([sent, np.full((1, 2), sent.max() + 1e6 - stage * apart_ns)])
            start = end - 1.2e5 - chance.uniform(0, 1e4, end.shape)
            start[4] -= np.array([3e5, 4e5]) * (stage if not apart_ns else 1)
            step[stage] = ranks, start + CLOCKS[ranks], end + CLOCKS[ranks]
        steps.append(step)
    team_of = {0: 0, 1: 0, 2: 1, 3: 1}
    attended = {rank: [(at, None) for at in range(5)] for rank in team_of}
    inferred = infer_attended(programs, team_of, attended, steps).attended
    assert dict(inferred[0])[4].ranks == group


def test_a_collective_of_all_ranks_that_rows_and_columns_of_a_stage_leave_together():
    """Two stages of two rows: the rows of a stage come to the norm at once, those of the second wait for the first."""
    message, reduce, gather = (
        Operation(name, COLLECTIVE, stream, 0, name)
        for stream, name in ((1, "send_recv"), (2, "all_reduce"), (3, "all_gather"))
    )
    words = (*[message] * 4, *[reduce] * 4, *[gather] * 3)
    programs = {
        stage: Program((*words, *[reduce] * extra, reduce), {("", b""): np.arange(12 + extra)}, ("", b""))
        for stage, extra in ((0, 0), (1, 1))
    }
    chance = np.random.default_rng(4)
    steps = []
    for number in range(6):
        sent = number * 1e7 + chance.uniform(1e5, 2e5, (4, 4)).cumsum(axis=0)
        until = sent.max() + 4e6
        step = {}
        for stage in (0, 1):
            ranks, extra = np.arange(4) + 4 * stage, stage
            rows = np.repeat(sent.max() + chance.uniform(1e5, 2e5, (4 + extra, 2)).cumsum(axis=0), 2, axis=1)
            columns = np.tile(sent.max() + 1e6 + chance.uniform(1e5, 2e5, (3, 2)).cumsum(axis=0), 2)
            end = np.vstack([sent, rows[:4], columns, rows[4:] + 2e6, np.full((1, 4), until)])
            start = end - 5e4
            start[-1] = until - 2e4 - 3e5 * stage
            step[stage] = ranks, start + CLOCKS[ranks], end + CLOCKS[ranks]
        steps.append(step)
    team_of = {rank: rank // 4 for rank in range(8)}
    attended = {rank: [(at, None) for at in range(12 + stage)] for rank, stage in team_of.items()}
    inferred = infer_attended(programs, team_of, attended, steps).attended
    groups = [dict(inferred[rank]) for rank in (0, 4)]
    assert [[of_rank[at].ranks for at in (0, 4, 8)] for of_rank in groups] == [
        [(0, 4), (0, 1), (0, 2)],
        [(0, 4), (4, 5), (4, 6)],
    ]
    assert [max(of_rank.items())[1].ranks for of_rank in groups] == [tuple(range(8))] * 2


def test_what_all_replicas_of_a_stage_exchange_is_no_message():
    """Two stages of four replicas, which keep pace within 3 µs; their experts exchange among all four."""
    kernel = Operation("ncclDevKernel_SendRecv", COLLECTIVE, 1, 0, "send_recv")
    messages, experts = [kernel] * 4, [kernel._replace(stream=2)] * 6
    order = {0: (*experts, *messages), 1: (*messages, *experts)}
    programs = {stage: Program(words, {("", b""): np.arange(10)}, ("", b"")) for stage, words in order.items()}
    chance = np.random.default_rng(3)
    steps = []
    for number in range(6):
        exchanged = number * 1e7 + chance.uniform(1e5, 3e5, (6, 1)).cumsum(axis=0)
        sent = exchanged[-1] + chance.uniform(1e5, 3e5, (4, 1)).cumsum(axis=0)
        of_stage = (exchanged, sent), (sent, sent[-1] + chance.uniform(1e5, 3e5, (6, 1)).cumsum(axis=0))
        pace_ns = chance.uniform(0, 3e3, (4, 4))
        step = {}
        for stage, (first, second) in enumerate(of_stage):
            ranks = np.arange(4) + 4 * stage
            end = np.vstack([first, second]) + chance.uniform(0, 500, (10, 4))
            end[:4] += pace_ns * stage
            end[6:] += pace_ns * (1 - stage)
            step[stage] = ranks, end - 5e4 - chance.uniform(0, 3e4, end.shape) + CLOCKS[ranks], end + CLOCKS[ranks]
        steps.append(step)
    team_of = {rank: rank // 4 for rank in range(8)}
    attended = {rank: [(at, None) for at in range(10)] for rank in team_of}
    inferred = infer_attended(programs, team_of, attended, steps).attended
    for rank, stage in team_of.items():
        told = [group and group.ranks for _, group in inferred[rank]]
        replica, first = rank % 4, 4 * stage
        of_experts, of_messages = (told[:6], told[6:]) if stage == 0 else (told[4:], told[:4])
        assert of_messages == [(replica, replica + 4)] * 4
        assert of_experts == [tuple(range(first, first + 4))] * 6


def test_a_rank_whose_clock_is_unknown_in_a_step_hides_no_groups_of_the_others():
    ends, clocks = np.array([[[0.0, 5.0, 1e6, 1e6 + 5.0]]] * 5), np.zeros((5, 4))
    clocks[:4, 3] = np.nan
    assert _divide_on_one_clock(ends, np.full_like(ends, 1e3), clocks).tolist() == [0, 0, 1, 1]
    clocks[4, 3] = np.nan
    assert _divide_on_one_clock(ends, np.full_like(ends, 1e3), clocks).tolist() == [0, 0, ALONE, ALONE]
