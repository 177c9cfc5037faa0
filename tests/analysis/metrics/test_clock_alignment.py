"""The moment all ranks share: which collective gives it, and how much it can be trusted."""

import numpy as np
import pyarrow as pa
import pytest

from jitter.analysis.metrics.clock_alignment import align_by_collective, align_by_wall_clock, find_cohort_collectives
from jitter.analysis.metrics.step_kernels import AlignedRank, StepKernels
from jitter.core.schema import KERNELS
from jitter.lake.step_reader import StepColumns

RANKS = [0, 1, 2]
ZEROS = {0: 0, 1: 7_000_000_000, 2: -3_000}  # where each rank's clock begins
STARTS = ZEROS


def ends(index, at, operation="all_reduce", late=(0, 0, 0), ranks=RANKS, group=None, size=None):
    """One collective, as the rows of those who took part."""
    told = {"kind": "collective", "collective": operation, "group_ranks": group, "group_size": size}
    return [{**told, "rank": r, "index": index, "start_ns": 0, "end_ns": ZEROS[r] + at + late[r]} for r in ranks]


def moment(*found, whole=frozenset(RANKS), ranks=RANKS):
    of = {rank: [row for some in found for row in some if row["rank"] == rank] for rank in ranks}
    rows = [row for rank in ranks for row in of[rank]]
    names = ("kind", "start_ns", "end_ns", "collective", "group_ranks", "group_size")
    columns = {name: pa.array([row[name] for row in rows], KERNELS.field(name).type) for name in names}
    table = pa.table({**columns, **{name: columns[name].dictionary_encode() for name in ("kind", "collective")}})
    places = {rank: AlignedRank(0, np.array([row["index"] for row in of[rank]], np.int64)) for rank in ranks}
    read = StepColumns(table, tuple(ranks), tuple(len(of[rank]) for rank in ranks))
    kernels = StepKernels(read, places, dict.fromkeys(ranks))
    return align_by_collective(find_cohort_collectives(kernels, 0, whole), STARTS)


TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
APART = ("broadcast", "reduce", "gather", "scatter", "send_recv")
FIRST = ends(1, 100)
WHICH = {
    "the last to end, not the last launched": ([ends(3, 900), ends(5, 400)], 3),
    "since its own start the second of three leaves last": ([ends(3, 1000), ends(5, 900, late=(0, 1100, 1100))], 5),
    "who is late alone does not decide": ([ends(3, 1000), ends(5, 900, late=(0, 0, 5000))], 3),
    "of those that end at once the last by index": ([ends(3, 500), ends(5, 500)], 5),
    **{f"all leave {name} together": ([FIRST, ends(2, 900, name)], 2) for name in TOGETHER},
    **{f"they do not leave {name} together": ([FIRST, ends(2, 900, name)], 1) for name in APART},
    **{f"nor {name} alone": ([ends(2, 900, name)], None) for name in APART},
    "a rank took no part": ([FIRST, ends(4, 900, ranks=[0, 1])], 1),
    "its group lacks a rank": ([FIRST, ends(4, 900, group=(0, 1, 5))], 1),
    "its size is too small": ([FIRST, ends(4, 900, size=2)], 1),
    "the cohort is a part of its group": ([FIRST, ends(4, 900, group=(0, 1, 2, 3, 4), size=5)], 4),
    "its ranks tell more than its size: all": ([FIRST, ends(4, 900, group=(0, 1, 2), size=2)], 4),
    "its ranks tell more than its size: another": ([FIRST, ends(4, 900, group=(0, 1, 5), size=3)], 1),
    "of groups of one size, the first": ([ends(1, 100, group=(0, 1, 2)), ends(4, 900, group=(0, 1, 5))], 1),
    "of groups of one size, the second": ([ends(1, 100, group=(0, 1, 5)), ends(4, 900, group=(0, 1, 2))], 4),
    "without a place in the kernel index": ([FIRST, ends(-1, 900)], 1),
    "the only one without a place": ([ends(-1, 900)], None),
    "unnamed, a tenth of a ms apart": ([ends(1, 1_000_000), ends(2, 2_000_000, None, (0, 100_000, -100_000))], 2),
    "unnamed, further apart": ([ends(1, 1_000_000), ends(2, 2_000_000, None, (0, 100_001, 0))], 1),
    "unnamed and alone": ([ends(1, 1_000_000, None)], 1),
}
"""Collectives, and the kernel index of the one that aligns, None where none does."""


@pytest.mark.parametrize(("found", "index"), WHICH.values(), ids=WHICH)
def test_which_collective_aligns(found, index):
    told = moment(*found)
    assert (told and told.kernel_index) == index


@pytest.mark.parametrize(
    ("told", "index"), [({"group": (0, 1)}, None), ({"size": 2}, None), ({"size": 3}, 1)], ids=["group", "two", "three"]
)
def test_of_a_step_that_a_rank_of_the_cohort_misses_the_whole_cohort_must_take_part(told, index):
    found = moment(ends(1, 100, ranks=[0, 1], **told), ranks=[0, 1])
    assert (found and found.kernel_index) == index


def test_moments_are_on_each_ranks_own_clock():
    found = moment(ends(3, 900), ends(5, 400))
    assert (found.method, found.moments_ns) == ("collective", {0: 900, 1: 7_000_000_900, 2: -2_100})


def test_of_two_ranks_the_earlier_decides():
    both = {"ranks": [0, 1], "group": (0, 1)}
    found = moment(ends(3, 1000, **both), ends(5, 900, late=(0, 800, 0), **both), ranks=[0, 1], whole=frozenset([0, 1]))
    assert found.kernel_index == 3


@pytest.mark.parametrize("late", [(0, 150_000, 0), (0, -150_000, 0), (150_000, 0, 0), (-150_000, 0, 0)])
@pytest.mark.parametrize("sound", [2, 3, 5])
def test_an_unnamed_one_that_contradicts_the_others_aligns_nobody(late, sound):
    some = [ends(n, 1_000_000 * (n + 1), None) for n in range(sound)]
    found = moment(*some, ends(9, 20_000_000, None, late))
    assert (found.method, found.kernel_index, found.unsynchronised) == ("collective", sound - 1, 1)


LATE, FAR = (0, 150_000, 0), (0, 900_000, 0)
UNNAMED = [ends(n, 1_000_000 * n, None, FAR) for n in (2, 3, 4)]
BELIEVED = {
    "named ones, apart by any amount": ([ends(1, 100_000), ends(2, 900_000, late=(0, 400_000, 0))], 2, 0),
    **{
        f"a named one against unnamed ones {late}": (
            [ends(1, 1_000_000), ends(2, 2_000_000, None, late), ends(3, 3_000_000, None)], 3, 1,
        )
        for late in (LATE, (0, -150_000, 0), (-150_000, 0, 0))
    },
    "one named one against any number that agree": ([ends(1, 1_000_000), *UNNAMED], 1, 3),
    "those without it": (UNNAMED, 4, 0),
    "of two unnamed that disagree neither": ([ends(1, 1_000_000, None), ends(2, 2_000_000, None, FAR)], None, 2),
}  # fmt: skip
"""Collectives, the kernel index of the one that is believed, and how many contradict it."""


@pytest.mark.parametrize(("found", "index", "unsynchronised"), BELIEVED.values(), ids=BELIEVED)
def test_which_is_believed(found, index, unsynchronised):
    told = moment(*found)
    assert (told.kernel_index, told.unsynchronised) == (index, unsynchronised)
    assert (told.method, bool(told.moments_ns)) == (("none", False) if index is None else ("collective", True))


def ends_by(*late):
    return [ends(number, 100 * number, late=one) for number, one in enumerate(late, 1)]


CERTAIN = {
    "of one nothing is known": (ends_by((0, 0, 0)), None),
    "usual offsets are the first's; they disagree by 0, 6 and 9": (ends_by((0, 0, 0), (0, 6, 0), (0, 0, 9)), 6),
    "who is early counts as much": (ends_by((0, 0, 0), (0, -6, 0), (0, 0, -9)), 6),
    "by 0; by 4 and -5, 9 apart; by 20": (ends_by((0, 0, 0), (0, 4, -5), (0, 0, 20)), 9),
    "of (0, 2, 10, 30) 2 is usual": (ends_by((0, 0, 0), (0, 2, 0), (0, 10, 0), (0, 30, 0)), 2),
    "what aligns nobody does not count": ([*ends_by((0, 0, 0), (0, 10, 0)), ends(3, 3_000_000, None, FAR)], 0),
}
"""Collectives, and how far their ends disagree, ns."""


@pytest.mark.parametrize(("found", "uncertainty_ns"), CERTAIN.values(), ids=CERTAIN)
def test_uncertainty_is_how_far_the_ends_disagree(found, uncertainty_ns):
    assert moment(*found).uncertainty_ns == uncertainty_ns


def test_clocks_that_count_from_1970_and_from_boot_are_compared_to_the_ns():
    """No float holds the ns since 1970: the whole numbers do."""
    apart = 1_700_000_000_000_000_001
    found = moment(*(ends(n, 100 * n, late=(0, apart + extra, 0)) for n, extra in enumerate((0, 3, 5))))
    assert found.uncertainty_ns == 2  # of 3, 0 and 2 against the middle one
    assert found.moments_ns[1] == ZEROS[1] + 200 + apart + 5


def test_wall_clock_puts_every_zero_where_utc_says():
    found = align_by_wall_clock({0: 10_000, 1: 9_200}, {0: "a", 1: "b"})
    assert found.method == "wall clock"
    assert found.uncertainty_ns is None
    # the same instant, UTC 10000 + x, is x on rank 0 and x + 800 on rank 1
    assert found.moments_ns[1] - found.moments_ns[0] == 800


def test_no_wall_clock_no_moment_unless_they_share_one_recording():
    assert align_by_wall_clock({0: 10_000, 1: None}, {0: "a", 1: "b"}) is None
    found = align_by_wall_clock({0: None, 1: None}, {0: "a", 1: "a"})
    assert (found.uncertainty_ns, found.moments_ns[0] - found.moments_ns[1]) == (0, 0)
