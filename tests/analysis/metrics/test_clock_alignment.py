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


def test_the_last_to_end_aligns_not_the_last_launched():
    found = moment(ends(3, 900), ends(5, 400))
    assert (found.method, found.kernel_index) == ("collective", 3)
    assert found.moments_ns == {0: 900, 1: 7_000_000_900, 2: -2_100}


def test_the_last_is_the_one_that_the_median_rank_leaves_last_since_its_own_start():
    """Of three ranks the second: neither rank 0 alone, nor who is late alone, nor whose clock began last."""
    assert moment(ends(3, 1000), ends(5, 900, late=(0, 1100, 1100))).kernel_index == 5
    assert moment(ends(3, 1000), ends(5, 900, late=(0, 0, 5000))).kernel_index == 3
    # of two it is the earlier: 1000 against 900
    both = {"ranks": [0, 1], "group": (0, 1)}
    found = moment(ends(3, 1000, **both), ends(5, 900, late=(0, 800, 0), **both), ranks=[0, 1], whole=frozenset([0, 1]))
    assert found.kernel_index == 3


def test_of_those_that_end_at_once_the_last_by_index_aligns():
    assert moment(ends(3, 500), ends(5, 500)).kernel_index == 5


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"])
def test_what_all_leave_together_aligns(operation):
    assert moment(ends(1, 100), ends(2, 900, operation)).kernel_index == 2


@pytest.mark.parametrize("operation", ["broadcast", "reduce", "gather", "scatter", "send_recv"])
def test_what_they_do_not_does_not(operation):
    assert moment(ends(1, 100), ends(2, 900, operation)).kernel_index == 1
    assert moment(ends(2, 900, operation)) is None


def test_the_whole_cohort_must_take_part():
    part = ends(4, 900, ranks=[0, 1])
    assert moment(ends(1, 100), part).kernel_index == 1
    assert moment(ends(1, 100), ends(4, 900, group=(0, 1, 5))).kernel_index == 1
    assert moment(ends(1, 100), ends(4, 900, size=2)).kernel_index == 1
    assert moment(ends(1, 100), ends(4, 900, group=(0, 1, 2, 3, 4), size=5)).kernel_index == 4
    # rank 2 misses this step, and is of the cohort: a group without it is not the whole cohort
    assert moment(ends(1, 100, group=(0, 1), ranks=[0, 1]), ranks=[0, 1]) is None


def test_one_without_a_place_in_the_kernel_index_aligns_nobody():
    assert moment(ends(1, 100), ends(-1, 900)).kernel_index == 1
    assert moment(ends(-1, 900)) is None


def test_a_group_of_all_who_are_there_is_not_the_whole_cohort():
    """Rank 2 misses this step: a size of two, or of three, is told of the run's ranks."""
    assert moment(ends(1, 100, size=2, ranks=[0, 1]), ranks=[0, 1]) is None
    assert moment(ends(1, 100, size=3, ranks=[0, 1]), ranks=[0, 1]).kernel_index == 1


def test_the_ranks_of_a_group_tell_more_than_its_size():
    assert moment(ends(1, 100), ends(4, 900, group=(0, 1, 2), size=2)).kernel_index == 4
    assert moment(ends(1, 100), ends(4, 900, group=(0, 1, 5), size=3)).kernel_index == 1


def test_of_groups_of_one_size_each_is_looked_at():
    all_of_them, others = (0, 1, 2), (0, 1, 5)
    assert moment(ends(1, 100, group=all_of_them), ends(4, 900, group=others)).kernel_index == 1
    assert moment(ends(1, 100, group=others), ends(4, 900, group=all_of_them)).kernel_index == 4


def test_named_collectives_may_disagree_by_any_amount():
    found = moment(ends(1, 100_000), ends(2, 900_000, late=(0, 400_000, 0)))
    assert (found.kernel_index, found.unsynchronised) == (2, 0)


@pytest.mark.parametrize("late", [(0, 150_000, 0), (0, -150_000, 0), (150_000, 0, 0), (-150_000, 0, 0)])
@pytest.mark.parametrize("sound", [2, 3, 5])
def test_an_unnamed_one_that_contradicts_the_others_aligns_nobody(late, sound):
    some = [ends(n, 1_000_000 * (n + 1), None) for n in range(sound)]
    found = moment(*some, ends(9, 20_000_000, None, late))
    assert (found.method, found.kernel_index, found.unsynchronised) == ("collective", sound - 1, 1)


@pytest.mark.parametrize("late", [(0, 150_000, 0), (0, -150_000, 0), (-150_000, 0, 0)])
def test_a_named_one_is_believed_against_unnamed_ones(late):
    found = moment(ends(1, 1_000_000), ends(2, 2_000_000, None, late), ends(3, 3_000_000, None))
    assert (found.kernel_index, found.unsynchronised) == (3, 1)


def test_one_named_one_is_believed_against_any_number_that_agree():
    """Three that tell the same of the clocks, and another than the one that names its operation."""
    late = (0, 900_000, 0)
    unnamed = [ends(n, 1_000_000 * n, None, late) for n in (2, 3, 4)]
    found = moment(ends(1, 1_000_000), *unnamed)
    assert (found.kernel_index, found.unsynchronised) == (1, 3)
    # without it they are believed
    assert (moment(*unnamed).kernel_index, moment(*unnamed).unsynchronised) == (4, 0)


def test_within_a_tenth_of_a_millisecond_an_unnamed_one_aligns():
    assert moment(ends(1, 1_000_000), ends(2, 2_000_000, None, (0, 100_000, -100_000))).kernel_index == 2
    assert moment(ends(1, 1_000_000), ends(2, 2_000_000, None, (0, 100_001, 0))).kernel_index == 1


def test_two_unnamed_that_disagree_align_nobody_and_one_alone_aligns():
    found = moment(ends(1, 1_000_000, None), ends(2, 2_000_000, None, (0, 900_000, 0)))
    assert (found.method, found.moments_ns, found.unsynchronised) == ("none", {}, 2)
    assert moment(ends(1, 1_000_000, None)).kernel_index == 1


def test_uncertainty_is_how_far_the_ends_disagree():
    assert moment(ends(1, 100)).uncertainty_ns is None
    found = moment(ends(1, 100), ends(2, 200, late=(0, 6, 0)), ends(3, 300, late=(0, 0, 9)))
    # usual offsets are those of the first; the three disagree with them by 0, 6 and 9
    assert found.uncertainty_ns == 6


def test_who_is_early_disagrees_as_much_as_who_is_late():
    # against the usual offsets (0, 0): by 0; rank 1 by -6; rank 2 by -9
    found = moment(ends(1, 100), ends(2, 200, late=(0, -6, 0)), ends(3, 300, late=(0, 0, -9)))
    assert found.uncertainty_ns == 6
    # by 0; by 4 and -5, which are 9 apart; rank 2 by 20
    found = moment(ends(1, 100), ends(2, 200, late=(0, 4, -5)), ends(3, 300, late=(0, 0, 20)))
    assert found.uncertainty_ns == 5 + 4


def test_of_an_even_number_the_lower_of_the_middle_two_is_usual():
    # the usual offset of rank 1 is 2 of (0, 2, 10, 30), of which they differ by 2, 0, 8 and 28
    found = moment(*(ends(n, 100 * n, late=(0, late, 0)) for n, late in enumerate((0, 2, 10, 30))))
    assert found.uncertainty_ns == 2


def test_what_aligns_nobody_makes_the_moment_no_less_certain():
    wrong = ends(3, 3_000_000, None, (0, 900_000, 0))
    found = moment(ends(1, 1_000_000), ends(2, 2_000_000, late=(0, 10, 0)), wrong)
    assert (found.kernel_index, found.unsynchronised, found.uncertainty_ns) == (2, 1, 0)


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
