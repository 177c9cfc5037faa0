"""The truth of a run against numbers worked by hand and against all subsequences."""

from dataclasses import replace
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jitter.simulate import Fault, Job, RankRecording, simulate
from jitter.simulate.program import Operation
from jitter.simulate.recording import Clock
from tests.support.kernel_truth import compute_truth, kernel_truth, match_reference

OPS = (
    Operation("first", "compute", "cudaLaunchKernel", 7),
    Operation("copy", "memory", "cudaMemcpyAsync", 7, copy="h2d"),
    Operation("second", "compute", "cudaLaunchKernel", 7),
    Operation("side", "compute", "cudaLaunchKernel", 20),
    Operation("reduce", "collective", "cudaLaunchKernel", 7),
    Operation("third", "compute", "cudaLaunchKernel", 7),
)
#        first     copy      second    side      reduce    third
STARTS = [1000, 1150, 1200, 1210, 1400, 2100]
ENDS = [1100, 1180, 1300, 1290, 2000, 2150]


def recording(rank: int, late: int, offset: int) -> RankRecording:
    n = len(OPS)
    shift = np.array([late] * 4 + [late] + [0])  # all leave the collective together
    start = np.array(STARTS) + shift + offset
    end = np.array(ENDS) + np.array([late] * 4 + [0, 0]) + offset
    return RankRecording(
        rank, "node", 1, rank, Clock(offset, 0, 0), 7, OPS, np.arange(n), np.full(n, 3), np.ones(n, bool),
        start, end, np.ones(n, bool), start - 40, start - 30, np.zeros(n, bool), np.arange(n), np.ones(n),
        (), (), (),
    )  # fmt: skip


def test_by_hand():
    found = compute_truth([recording(0, 0, 50_000), recording(1, 70, 900)], 1)
    assert list(found) == [(1, 3, 0), (1, 3, 1)]
    # index, name, concurrent, duration, gap, time to kernel end, launch latency
    assert [tuple(k) for k in found[1, 3, 0]] == [
        (0, "first", False, 100, 0, 100, 40),
        (1, "second", False, 100, 100, 300, 40),
        (2, "side", True, 80, 0, 300, 40),
        (3, "reduce", True, 600, 0, 300, 40),
        (4, "third", False, 50, 100, 450, 40),
    ]
    late = found[1, 3, 1]
    assert [(k.gap_ns, k.ttke_ns) for k in late] == [(70, 170), (100, 370), (0, 370), (0, 370), (100, 520)]
    assert late[3].duration_ns == 530


def test_the_latency_of_lost_and_shared_launches_is_unknown():
    one = recording(0, 0, 0)
    lost = replace(
        one, has_launch=np.array([True] * 5 + [False]), shares_launch=np.array([False] * 2 + [True] + [False] * 3)
    )
    assert [k.launch_latency_ns for k in compute_truth([lost], None)[None, 3, 0]] == [40, None, 40, 40, None]


def test_an_added_kernel_has_no_index_and_counts_all_the_same():
    job = Job(ranks=3, steps=2, kernels=60)
    faults = [
        Fault.parse("extra_kernel:rank=1,step=1,kernel=17,ms=0.1"),
        Fault.parse("missing_kernel:rank=2,step=1,kernel=20"),
    ]
    found = kernel_truth(simulate(job, faults))
    assert set(found) == {(1, step, rank) for step in (0, 1) for rank in range(3)}
    indices = [k.kernel_index for k in found[1, 1, 1]]
    assert indices == [*range(17), None, *range(17, 60)]
    row = found[1, 1, 1][17]
    assert row.ttke_ns - found[1, 1, 1][16].ttke_ns == row.gap_ns + row.duration_ns
    assert [k.kernel_index for k in found[1, 1, 2]] == [*range(20), *range(21, 60)]
    assert [k.kernel_index for k in found[1, 0, 1]] == list(range(60))
    for step in (0, 1):
        assert min(found[1, step, rank][0].gap_ns for rank in range(3)) == 0


def test_a_stall_shows_where_it_was():
    job = Job(ranks=3, steps=2, kernels=60, noise=0, cpu_noise=0)
    found = kernel_truth(simulate(job, [Fault.parse("cpu_stall:rank=1,step=1,kernel=17,ms=3")]))
    stalled, other = found[1, 1, 1], found[1, 1, 2]
    worse = [a.gap_ns - b.gap_ns for a, b in zip(stalled[1:], other[1:], strict=True)]
    assert max(range(59), key=worse.__getitem__) == 16
    assert 2_000_000 < worse[16] < 3_000_000
    assert stalled[17].launch_latency_ns < 10_000 < other[17].launch_latency_ns


WORDS = st.text("abc", max_size=7)


@given(WORDS, WORDS)
def test_partners_are_a_longest_common_subsequence_of_earliest_places(own: str, reference: str):
    found = match_reference(own, reference)
    matched = [(i, j) for i, j in enumerate(found) if j is not None]
    assert len(found) == len(own)
    assert all(own[i] == reference[j] for i, j in matched)
    assert [j for _, j in matched] == sorted({j for _, j in matched})
    longest = next(
        n
        for n in range(min(len(own), len(reference)), -1, -1)
        if {tuple(c) for c in combinations(own, n)} & {tuple(c) for c in combinations(reference, n)}
    )
    assert len(matched) == longest
    # no other partners of the same own kernels come earlier
    mine = [own[i] for i, _ in matched]
    earliest = min(
        (places for places in combinations(range(len(reference)), longest) if [reference[p] for p in places] == mine),
    )
    assert tuple(j for _, j in matched) == earliest
