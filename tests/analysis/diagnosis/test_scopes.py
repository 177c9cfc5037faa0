"""What a finding is about: a rank, a node, a group of ranks in a ring."""

from collections.abc import Sequence
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitter.analysis.detection.findings import divide_by_steps
from jitter.analysis.detection.standouts import Outlier
from jitter.analysis.diagnosis.evidence.workload import compare_launch_shapes
from jitter.analysis.diagnosis.finding_groups import RankGroup, chance_of_sharing, group_late_ranks
from jitter.analysis.diagnosis.model import IndexRange, Seen
from jitter.analysis.diagnosis.step_pattern import find_step_pattern
from jitter.analysis.diagnosis.verdict import describe_seen
from jitter.analysis.execution.run_reader import LaunchShapes
from jitter.analysis.execution.self_times import TimePart
from jitter.core.formatting import format_ordinal
from jitter.core.step_key import StepKey
from jitter.lake.rank_places import RankPlace, assign_nodes
from jitter.simulate import Fault, simulate
from tests.accuracy.irregular.engine import Comm, Item, Op, RankTrace
from tests.accuracy.irregular.kineto_trace import write_trace
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.simulated import ingest_run, ingest_traces, run_ns, small

TWO_HOSTS = {rank: RankPlace(f"n{rank // 4}", rank % 4) for rank in range(8)}
EIGHT_GPUS = {rank: RankPlace(f"n{rank // 8}", rank % 8) for rank in range(16)}
FOUR_HOSTS = {rank: RankPlace(f"n{rank // 4}", rank % 4) for rank in range(16)}


def told(late, places=TWO_HOSTS) -> list[tuple]:
    return [(one.scope, one.ranks, one.host, one.device, one.every) for one in group_late_ranks(late, places)]


def test_one_rank_stands_alone():
    assert told({5}) == [("rank", (5,), "n1", 1, None)]
    assert told(set()) == []


def test_a_host():
    assert told({4, 5, 6, 7}) == [("host", (4, 5, 6, 7), "n1", None, None)]
    assert told({4, 5, 7}, FOUR_HOSTS) == [("host", (4, 5, 7), "n1", None, None)]  # three of four
    assert [one[0] for one in told({4, 5})] == ["rank", "rank"]


@pytest.mark.parametrize(
    ("late", "gpus"),
    [
        ({12, 13, 14, 15}, (4, 5, 6, 7)),
        ({0, 1, 2, 3}, (0, 1, 2, 3)),
        ({12, 13, 14}, (4, 5, 6, 7)),
        ({10, 11, 12, 13}, None),  # two of each half
        ({0, 1, 2, 3, 4, 5, 6, 7}, None),  # the whole host
    ],
)
def test_half_of_a_host(late: set[int], gpus: tuple[int, ...] | None):
    """As of one of its two CPU sockets."""
    groups = group_late_ranks(late, EIGHT_GPUS)
    assert [(one.scope, one.ranks, one.host, one.gpus) for one in groups if one.gpus] == (
        [("ranks", tuple(sorted(late)), f"n{min(late) // 8}", gpus)] if gpus else []
    )
    without = {rank: place._replace(device=None) for rank, place in EIGHT_GPUS.items()}
    assert not any(one.gpus for one in group_late_ranks(late, without))


def test_luck_seldom_names_half_of_a_host():
    many = [group_late_ranks(late, EIGHT_GPUS) for late in combinations(range(16), 4)]
    assert 0 < sum(any(one.gpus for one in groups) for groups in many) / len(many) <= 0.05


def test_the_hosts_of_half_of_a_node_are_one_finding(tmp_path: Path):
    """Each is late in other steps, and none of them alone saves much: they were four findings."""
    chance = np.random.default_rng(1)
    stalls = [(rank, step, chance.uniform(1, 3)) for rank in range(12, 16) for step in range(8)]
    faults = [Fault.parse(f"late_start:rank={rank},step={step},ms={ms:.2f}") for rank, step, ms in stalls]
    run = simulate(small(ranks=16, steps=8, gpus_per_node=8), faults)
    (found,) = (one for one in ingest_run(run, tmp_path).diagnose().culprits if one.rung == "ranks")
    assert (found.scope, found.ranks, found.cause) == ("ranks", (12, 13, 14, 15), "late_start")
    assert found.gain_ns == pytest.approx(run_ns(run) - run_ns(simulate(run.job)), rel=0.05)
    assert any("they are GPUs 4-7 of one host, half of it" in line for line in found.evidence)


def test_a_host_and_somebody_else():
    found = told({0, 4, 5, 6, 7}, FOUR_HOSTS)
    assert found == [("host", (4, 5, 6, 7), "n1", None, None), ("rank", (0,), "n0", 0, None)]


def test_the_same_device_of_every_host():
    places = {rank: RankPlace(f"n{rank // 4}", rank % 4) for rank in range(16)}
    assert told({2, 6, 10, 14}, places) == [("device", (2, 6, 10, 14), None, 2, None)]
    assert told({2, 6, 10}, places) == [("device", (2, 6, 10), None, 2, None)]


def test_every_nth_rank():
    places = {rank: RankPlace(None, None) for rank in range(12)}
    assert told({1, 4, 7, 10}, places) == [("ranks", (1, 4, 7, 10), None, None, 3)]
    assert [one[0] for one in told({1, 7}, places)] == ["rank", "rank"]


def test_one_host_is_no_group_and_neither_is_everyone():
    places = {rank: RankPlace("only", rank) for rank in range(4)}
    assert [one[0] for one in told({0, 1, 2, 3}, places)] == ["rank"] * 4
    assert told({0}, {0: RankPlace(None, None)}) == [("rank", (0,), None, None, None)]


def test_one_gpu_a_node_is_no_device_in_common():
    places = {rank: RankPlace(f"n{rank}", 0) for rank in range(4)}
    assert [one[0] for one in told({0, 1, 2}, places)] == ["rank"] * 3
    assert assign_nodes({rank: RankPlace(None, 0) for rank in range(3)}) == {0: 0, 1: 1, 2: 2}


def test_nodes_by_device_numbers_where_no_host_is_named():
    places = {rank: RankPlace(None, rank % 4) for rank in range(8)}
    assert assign_nodes(places) == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1}
    assert told({4, 5, 6, 7}, places) == [("host", (4, 5, 6, 7), None, None, None)]
    assert assign_nodes({0: RankPlace(None, None), 1: RankPlace(None, 1)}) == {}
    assert assign_nodes({0: RankPlace("a", 0), 1: RankPlace(None, 1)}) == {0: "a"}


def test_luck_names_no_group():
    """Three unrelated ranks of two hosts share a device in half of all cases, and a host in one of seven."""
    every = [set(late) for late in combinations(range(8), 3)]
    assert sum(len({rank % 4 for rank in late}) < 3 for late in every) / len(every) > 0.4
    assert {len(told(late)) for late in every} == {3}
    by_two = combinations(range(8), 2)
    assert {len(told(set(late))) for late in by_two} == {2}
    # of more hosts some triples name one: no more than 5% for each of the three kinds
    many = [told(set(late), FOUR_HOSTS) for late in combinations(range(16), 3)]
    named = sum(len(one) < 3 for one in many) / len(many)
    assert 0 < named <= 3 * 0.05


def test_two_groups_are_tested_one_after_the_other():
    """The second host of two is late among the ranks of the hosts left."""
    places = {rank: RankPlace(f"n{rank // 4}", rank % 4) for rank in range(32)}
    found = told({0, 1, 2, 3, 20, 21, 22, 23}, places)
    assert [one[:3] for one in found] == [("host", (0, 1, 2, 3), "n0"), ("host", (20, 21, 22, 23), "n5")]


@pytest.mark.parametrize("groups", [[{0, 1, 2}, {3, 4, 5}, {6, 7, 8}], [{0, 1, 2, 3}, {4, 5, 6}, {7, 8}]])
@pytest.mark.parametrize("drawn", [2, 3, 4])
def test_the_chance_of_sharing_against_all_draws(groups, drawn: int):
    """A group's tail is counted over all draws; the chance is how often any group's is as small."""
    draws = [set(late) for late in combinations(range(9), drawn)]

    def tail(group, late) -> float:
        return sum(len(group & other) >= len(group & late) for other in draws) / len(draws)

    tails = [[tail(group, late) for group in groups] for late in draws]
    for late, its_tails in zip(draws, tails, strict=True):
        for group, own in zip(groups, its_tails, strict=True):
            found = chance_of_sharing(group, late, groups, 9)
            by_counting = sum(any(one <= own for one in others) for others in tails) / len(draws)
            # a sum of tails counts draws twice in which two groups are as improbable
            assert found >= by_counting - 1e-9
            summed = sum(sum(one <= own for one in others) for others in tails) / len(draws)
            assert found == pytest.approx(min(summed, 1.0))


def test_any_two_ranks_of_a_cluster_share_steps():
    """Rank 1 shares half of its steps with rank 0 and with rank 2, which share none."""

    rows = [(1, (1, 2, 3, 4), 5.0), (0, (1, 2), 4.0), (2, (3, 4), 3.0)]
    members = [Outlier(0, rank, TimePart.GPU, steps, excess, 9.0) for rank, steps, excess in rows]
    for order in permutations(members):
        found = [[one.rank for one in cluster] for cluster in divide_by_steps(order)]
        assert found == [[1, 0], [2]]


def test_a_group_is_not_named_twice():
    assert {rank for one in group_late_ranks(range(8), TWO_HOSTS) for rank in one.ranks} == set(range(8))
    assert sum(len(one.ranks) for one in group_late_ranks(range(8), TWO_HOSTS)) == 8
    assert isinstance(group_late_ranks({0}, TWO_HOSTS)[0], RankGroup)


KEYS = [StepKey(None, number) for number in range(100, 120)]


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ([], "no step"),
        (range(20), "every step"),
        (range(1, 20), "nearly every step (19 of 20)"),
        ([*range(16)], "nearly every step (16 of 20)"),
        ([7], "one step: step 107"),
        ([7, 8], "consecutive steps: 107 to 108"),
        ([3, 4, 5, 6], "consecutive steps: 103 to 106"),
        ([4, 9, 14, 19], "every 5th step: 104,109,114,119"),
        ([1, 3, 5, 7, 9, 11, 13, 15, 17, 19], "every 2nd step: 101,103,…,119"),
        ([3, 6, 9, 12, 15, 18], "every 3rd step: 103,106,…,118"),
        ([4, 9, 14], "3 of 20 steps: 104,109,114"),
        ([3, 13], "2 of 20 steps: 103,113"),
        ([3, 5, 13], "3 of 20 steps: 103,105,113"),
    ],
)
def test_patterns(which, words: str):
    alternating = [1.0, -1.0] * 10
    assert find_step_pattern(KEYS, list(which), alternating).words == words


def test_one_step_is_the_only_one():
    assert find_step_pattern(KEYS[:1], [0], [5.0]).words == "the only step"


def test_a_step_of_an_epoch():
    keys = [StepKey(2, number) for number in range(3)]
    assert "epoch 2" in find_step_pattern(keys, [1], [0.0, 9.0, 0.0]).words


def test_drifts():
    grows = [float(n) for n in range(20)]
    assert find_step_pattern(KEYS, list(range(20)), grows).words == "a drift: it grows over the run"
    assert find_step_pattern(KEYS, [2, *range(5, 20)], grows).words == "a drift: it grows over the run"
    assert find_step_pattern(KEYS, list(range(4, 20)), grows).words == f"from step {KEYS[4].step} on, and it grows"
    assert find_step_pattern(KEYS, list(range(16)), grows[::-1]).words == f"up to step {KEYS[15].step}, and it shrinks"
    # as much again is not enough: from 100 to 119
    assert find_step_pattern(KEYS, list(range(20)), [100.0 + n for n in range(20)]).words == "every step"
    assert find_step_pattern(KEYS[:4], list(range(4)), grows[:4]).words == "every step"
    assert find_step_pattern(KEYS, list(range(20)), [7.0] * 20).words == "every step"
    assert find_step_pattern(KEYS, list(range(20)), [np.nan, *grows[1:]]).words == "every step"


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (1, "1st"),
        (2, "2nd"),
        (3, "3rd"),
        (4, "4th"),
        (11, "11th"),
        (12, "12th"),
        (13, "13th"),
        (21, "21st"),
        (112, "112th"),
    ],
)
def test_ordinals(number: int, word: str):
    assert format_ordinal(number) == word


class TestWorkShape:
    """Three operations on four ranks; rank 2 is looked at."""

    usual = np.array([[100.0], [200.0], [50.0]])

    def of(self, late, names=None, threads=None, rows=None):
        where = np.tile(np.arange(3)[:, None], (1, 4)) if rows is None else np.array(rows)
        gpu = np.where(where >= 0, self.usual, 0.0)
        gpu[:, 2] += late
        usual = np.sort(gpu, axis=1)[:, 1:2]
        shapes = [
            LaunchShapes(
                np.array((names or {}).get(rank, [7, 8, 9])), np.array((threads or {}).get(rank, [64.0, 64.0, 64.0]))
            )
            for rank in range(4)
        ]
        return compare_launch_shapes(where, gpu[:, 2], usual[:, 0], np.zeros(3, np.bool_), 2, shapes)

    def test_the_same_kernels_take_longer(self):
        found = self.of([30, 0, 10])
        assert (found.excess_ns, found.differing_ns, found.operations, found.differing) == (40, 0, 2, 0)
        assert not found.extra

    def test_larger_launches_explain_as_much_more_as_they_are_larger(self):
        found = self.of([30, 0, 10], threads={2: [80.0, 64.0, 64.0]})
        assert (found.excess_ns, found.differing_ns, found.differing) == (40, 25, 1)  # a quarter more of 100 ns
        found = self.of([20, 0, 10], threads={2: [80.0, 64.0, 64.0]})
        assert found.differing_ns == 20  # never more than there is

    def test_smaller_launches_explain_nothing(self):
        assert self.of([30, 0, 0], threads={2: [32.0, 64.0, 64.0]}).differing_ns == 0

    def test_unknown_shapes_explain_nothing(self):
        assert self.of([30, 0, 0], threads={2: [np.nan] * 3}).differing_ns == 0
        assert self.of([30, 0, 0], threads=dict.fromkeys(range(4), [np.nan] * 3)).differing_ns == 0

    def test_another_kernel(self):
        found = self.of([30, 0, 10], names={2: [70, 8, 9]})
        assert (found.differing_ns, found.differing, found.extra) == (30, 1, ())

    def test_another_kernel_is_as_much_slower_as_the_equal_ones(self):
        """All kernels take a quarter longer: the GPU is slow, whatever kernel it chose."""
        assert self.of([25, 50, 12.5], names={2: [70, 8, 9]}).differing_ns == 0
        assert self.of([45, 50, 12.5], names={2: [70, 8, 9]}).differing_ns == 20
        # kernels of 100 and 50 ns do not speak for one of 200 ns
        assert self.of([25, 50, 12.5], names={2: [7, 80, 9]}).differing_ns == 12.5

    def test_the_others_other_kernel_is_theirs(self):
        assert self.of([30, 0, 0], names={0: [70, 8, 9]}).differing_ns == 0

    def test_a_kernel_that_most_lack(self):
        rows = [[-1, -1, 0, -1], [0, 0, 1, 0], [1, 1, 2, 1]]
        found = self.of([0, 0, 0], rows=rows, names={2: [70, 7, 8]})
        assert (found.excess_ns, found.differing_ns, found.operations, found.extra) == (100, 100, 1, ((70, 100),))
        assert found.main_replacement == (70, -1)
        assert self.of([0, 0, 0], rows=rows, names={2: [9, 7, 8]}).main_replacement is None  # more of the same

    def test_what_it_lacks_is_no_excess(self):
        rows = [[0, 0, -1, 0], [1, 1, 0, 1], [2, 2, 1, 2]]
        assert self.of([0, 0, 0], rows=rows).excess_ns == 0


HOPS, STEPS, LAUNCH_US, TRANSFER_US, REDUCE_US = 9, 6, 3.0, 60.0, 90.0
COLUMNS = ((0, 2, 4, 6), (1, 3, 5, 7))
SLOW, LATE, LINK = 5, 2, 4


class Job:
    """Eight ranks in two rings: each hop a kernel, then an exchange with both neighbours; an all-reduce ends a step."""

    def __init__(
        self, rings: Sequence[Sequence[int]], seed: int, *, states_groups: bool = True, is_open: bool = False
    ) -> None:
        self.rings, self.seed, self.ranks, self.is_open = rings, seed, sum(map(len, rings)), is_open
        self.states_groups = states_groups
        self.ring_of = {rank: ring for ring in rings for rank in ring}

    def run(self, *, slow: float = 1.0, late_us: float = 0.0, link: float = 1.0) -> tuple[float, list[RankTrace]]:
        """Return the time from the end of the first step to that of the last, us, and what each rank did."""
        draw = np.random.default_rng(self.seed)
        now, traces = np.zeros(self.ranks), [RankTrace() for _ in range(self.ranks)]
        ends = []
        for step in range(STEPS):
            host = now + draw.uniform(40, 60, self.ranks)
            host[LATE] += late_us
            begin, gpu = host.copy(), np.zeros(self.ranks)
            work = draw.normal(200, 2, (HOPS, self.ranks))
            work[:, SLOW] *= slow
            for hop in range(HOPS):
                host, gpu = self._launch(traces, "gemm", 7, host, gpu, work[hop])
                start = np.maximum(gpu, host + 2 * LAUNCH_US)
                took = np.full(self.ranks, TRANSFER_US)
                took[[rank for rank in range(self.ranks) if LINK in self._waits(rank)]] *= link
                end = np.array([start[self._waits(rank)].max() for rank in range(self.ranks)]) + took
                host, gpu = self._launch(traces, "coalesced", 28, host, start, end - start)
            start = np.maximum(gpu, host + 2 * LAUNCH_US)
            host, gpu = self._launch(traces, "allreduce", 20, host, start, start.max() + REDUCE_US - start)
            for rank, trace in enumerate(traces):
                trace.syncs.append((step, host[rank] * 1e3, (gpu[rank] + 3) * 1e3))
                trace.steps[step] = [begin[rank] * 1e3, (gpu[rank] + 4) * 1e3]
            now = gpu + 5
            ends.append(float(np.median(gpu)))
        return ends[-1] - ends[0], traces

    def _waits(self, rank: int) -> list[int]:
        ring = self.ring_of[rank]
        at = ring.index(rank)
        if self.is_open:
            return list(ring[max(at - 1, 0) : at + 2])
        return [ring[at - 1], rank, ring[(at + 1) % len(ring)]]

    def _launch(self, traces: list[RankTrace], name: str, stream: int, host: Any, free: Any, took: Any) -> Any:
        start = np.maximum(host + 2 * LAUNCH_US, free)
        for rank, trace in enumerate(traces):
            ranks = {"coalesced": self.ring_of[rank], "allreduce": range(self.ranks)}.get(name)
            comm = None if ranks is None else Comm(name, f"{name}-{min(ranks)}", tuple(ranks), 8)
            item = Item(Op("kernel", 0, stream=stream, name=name, comm=comm), 0.0, None)
            item.start_ns, item.end_ns = start[rank] * 1e3, (start[rank] + took[rank]) * 1e3
            item.call_start_ns, item.call_end_ns = host[rank] * 1e3, (host[rank] + LAUNCH_US) * 1e3
            trace.items.append(item)
        return host + LAUNCH_US, start + took

    def write(self, folder: Path, traces: list[RankTrace], lost: Sequence[int] = ()) -> Path:
        clocks = np.random.default_rng(self.seed + 1).uniform(-5e6, 5e6, self.ranks)
        folder.mkdir()
        for rank, trace in ((rank, trace) for rank, trace in enumerate(traces) if rank not in lost):
            write_trace(folder, rank, self.ranks, trace, 1e9 + clocks[rank], 0, with_groups=self.states_groups)
        return folder


def diagnose(job: Job, folder: Path, lost: Sequence[int] = (), **fault: float) -> tuple[Any, float]:
    """Return the diagnosis of a job with `lost` recordings, and what the fault costs, ns."""
    time, traces = job.run(**fault)
    return ingest_traces(folder, job.write(folder / "traces", traces, lost)).diagnose(), (time - job.run()[0]) * 1e3


@fuzz
@pytest.mark.parametrize(
    ("fault", "rank", "cause"), [({"slow": 1.2}, SLOW, "gpu_compute"), ({"late_us": 400.0}, LATE, "late_start")]
)
@pytest.mark.parametrize(
    ("states_groups", "rings"),
    some_of(product([True, False], [((*range(8),),), ((0, 1, 2, 3), (4, 5, 6, 7)), COLUMNS]), 2),
)
def test_a_rank_that_its_ring_waits_for(
    tmp_path: Path, rings: Any, fault: Any, rank: int, cause: str, *, states_groups: bool
) -> None:
    found, cost_ns = diagnose(Job(rings, 1, states_groups=states_groups), tmp_path, **fault)
    (culprit,) = (one for one in found.culprits if one.rung == "ranks")
    assert (culprit.ranks, culprit.cause) == ((rank,), cause)
    assert culprit.confidence != "low"
    assert culprit.gain_ns == pytest.approx(cost_ns, rel=0.05)
    assert found.loss.ns == pytest.approx(cost_ns, rel=0.1)


@pytest.mark.parametrize(
    ("fault", "rank", "cause"), [({"slow": 1.2}, SLOW, "gpu_compute"), ({"late_us": 400.0}, LATE, "late_start")]
)
@pytest.mark.parametrize(
    ("rings", "lost"), [(((*range(8),),), [7]), (((*range(8),),), [0, 7]), (COLUMNS, [0]), (COLUMNS, [6])]
)
def test_a_ring_with_a_rank_that_was_not_recorded(
    tmp_path: Path, rings: Any, lost: Sequence[int], fault: Any, rank: int, cause: str
) -> None:
    found, cost_ns = diagnose(Job(rings, 1), tmp_path, lost, **fault)
    (culprit,) = (one for one in found.culprits if one.rung == "ranks" and one.scope == "rank")
    assert (culprit.ranks, culprit.cause) == ((rank,), cause)
    assert culprit.confidence != "low"
    # a lost rank may be as late as its neighbours that wait for it: the saving is a range
    least_ns, most_ns = culprit.gain_range_ns or (culprit.gain_ns, culprit.gain_ns)
    assert least_ns <= cost_ns * 1.05
    assert most_ns == pytest.approx(cost_ns, rel=0.05)


def test_a_rank_of_a_ring_of_two_is_no_pipeline_stage(tmp_path: Path) -> None:
    """Two ranks that exchange with each other at one place do equal work."""
    found, cost_ns = diagnose(Job([(at, at + 1) for at in range(0, 8, 2)], 1), tmp_path, slow=1.2)
    (culprit,) = (one for one in found.culprits if one.rung == "ranks")
    assert (culprit.ranks, culprit.cause) == ((SLOW,), "gpu_compute")
    assert culprit.gain_ns == pytest.approx(cost_ns, rel=0.05)


@pytest.mark.parametrize("lines", [(tuple(range(8)),), ((0, 1, 2, 3, 4), (5, 6, 7))])
def test_a_slow_rank_of_a_line(tmp_path: Path, lines: Any) -> None:
    """Both directions of a pipeline in one kernel: its ends do not wait for each other."""
    found, cost_ns = diagnose(Job(lines, 1, is_open=True), tmp_path, slow=1.2)
    (culprit,) = (one for one in found.culprits if one.rung == "ranks")
    assert (culprit.ranks, culprit.cause, culprit.confidence) == ((SLOW,), "gpu_compute", "high")
    assert culprit.gain_ns == pytest.approx(cost_ns, rel=0.05)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_healthy_ring(tmp_path: Path, *, is_open: bool) -> None:
    found, _ = diagnose(Job(COLUMNS, 2, is_open=is_open), tmp_path)
    assert not [one for one in found.culprits if one.rung == "ranks"]
    assert not any("name no partners" in note for note in found.notes)


def test_a_slow_link_of_a_ring(tmp_path: Path) -> None:
    found, cost_ns = diagnose(Job(COLUMNS, 3), tmp_path, link=3.0)
    culprit = max((one for one in found.culprits if one.rung == "ranks"), key=lambda one: one.gain_ns)
    assert (culprit.ranks, culprit.cause) == ((LINK,), "communication")
    assert culprit.gain_ns == pytest.approx(cost_ns, rel=0.05)


def test_steps_with_nearly_all_of_the_cost_are_named(tmp_path: Path):
    """A rank whose launches are always slow, at next to no cost, and that pauses in three steps."""
    faults = [Fault.parse("slow_cpu:rank=2,factor=1.6"), Fault.parse("cpu_stall:rank=2,kernel=30,ms=4,step=3+7+8")]
    lake = ingest_run(simulate(small(ranks=4, steps=10, kernels=60), faults), tmp_path)
    (culprit,) = lake.diagnose().culprits
    assert (culprit.ranks, culprit.seen) == ((2,), Seen(10, 10))
    assert culprit.step_pattern.words == "every step, nearly all of its cost in 3: 3,7-8"
    assert describe_seen(culprit) == "10 of 10 steps, nearly all of its cost in 3: 3,7-8"
    assert culprit.kernel_index == IndexRange(30, 30)
    assert {(pause.rank, pause.kernel_index, pause.key.step) for pause in culprit.pauses} == {
        (2, 30, step) for step in (3, 7, 8)
    }
    assert any(line.startswith("the longest pauses that the job waited for: 4.0") for line in culprit.evidence)


@pytest.mark.parametrize(("apart", "named"), [(0.01, set()), (0.05, {*range(8, 16)})])
def test_nodes_of_four_speeds(tmp_path: Path, apart: float, named: set[int]):
    """The ranks of each node are alike: what nodes differ by is no spread of the ranks."""
    faults = [Fault.parse(f"slow_gpu:rank={4 * node}-{4 * node + 3},factor={1 + apart * node}") for node in (1, 2, 3)]
    run = simulate(small(ranks=16, steps=8, kernels=60, gpus_per_node=4), faults)
    found = ingest_run(run, tmp_path).diagnose()
    assert {rank for one in found.culprits for rank in one.ranks} == named
    if named:
        (both,) = found.culprits
        # with these two at the median, which lies between those of the others, node 1 is the slowest
        lower = simulate(run.job, [faults[0]])
        assert both.gain_ns == pytest.approx(run_ns(run) - run_ns(lower), rel=0.2)
