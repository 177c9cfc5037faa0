"""One list of operations for all that ranks and steps did: orders kept, names kept, alike for what is alike."""

from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitter.analysis.alignment.program import Example, lay_out, number_streams

COMPUTE, COLLECTIVE, MEMORY, SYNC = range(4)
KINDS = {"c": COMPUTE, "n": COLLECTIVE, "m": MEMORY, "s": SYNC}


def example(words: str) -> Example:
    """`cA` is a compute kernel called A; collectives are on stream 1, calls that wait on none."""
    ops = words.split()
    kinds = [KINDS[op[0]] for op in ops]
    streams = [{COLLECTIVE: 1, SYNC: -1}.get(kind, 0) for kind in kinds]
    return Example(kinds, [op[1:] for op in ops], streams, [7] * len(ops))


def laid(*did: str):
    """The program of these, the first the commonest; and where each one's operations stand."""
    counts = {(words, b""): len(did) - at for at, words in enumerate(did)}
    program = lay_out(counts, lambda signature: example(signature[0]), {})
    return program, [program.places[words, b""].tolist() for words in did]


def names(program) -> str:
    return " ".join("cnms"[op.kind] + op.name for op in program.operations)


def test_an_autotuned_kernel_takes_the_others_place():
    program, (_, tuned) = laid("cA cB1 cC nX cD1 cE", "cA cB2 cC nX cD2 cE")
    assert names(program) == "cA cB1 cC nX cD1 cE"
    assert tuned == [0, 1, 2, 3, 4, 5]


def test_of_other_kind_or_lane_nothing_stands_in():
    program, (usual, other) = laid("cA cB cC", "cA mB cC")
    assert names(program) == "cA mB cB cC"
    assert (usual, other) == ([0, 2, 3], [0, 1, 3])


def test_of_two_left_over_the_first_takes_the_first_place():
    program, (_, _, fewer, more) = laid("cA cB cC cZ", "cA cB cC cZ nX", "cA cQ cZ", "cA cQ cR cS cZ")
    assert names(program) == "cA cB cC cS cZ nX"
    assert fewer == [0, 1, 4]
    assert more == [0, 1, 2, 3, 4]


def test_a_compilers_number_decides_no_partner_where_the_rest_of_the_name_gives_more_of_them():
    usual = "ctriton_poi_fused_mul_0 cA ctriton_poi_fused_mul_1 cA ctriton_poi_fused_mul_2 cA"
    program, (_, shifted, longer) = laid(
        usual,
        "ctriton_poi_fused_mul_2 cA ctriton_poi_fused_mul_3 cA ctriton_poi_fused_mul_4 cA",
        "ctriton_poi_fused_mul_0 cA ctriton_poi_fused_mul_1 cA cA",
    )
    assert names(program) == usual
    assert shifted == list(range(6))
    assert longer == [0, 1, 2, 3, 5], "the number tells which one is missing"


def test_streams_that_are_launched_in_another_order_in_each_step_have_the_same_places():
    usual, other, more = did = ("cA nX cB nY cC", "nX nY cA cB cC", "nX cA cB cQ nY cC")
    program = lay_out({(usual, b""): 9, (other, b""): 1, (more, b""): 1}, lambda signature: example(signature[0]), {})
    assert names(program) == "cA nX cB cQ nY cC"
    assert [program.places[words, b""].tolist() for words in did[1:]] == [[1, 4, 0, 2, 5], [1, 0, 2, 3, 4, 5]]


def test_streams_that_a_thread_launches_in_another_order_in_several_steps_keep_it():
    """It is a program of its own: what is launched first delays what comes after it. Two threads delay nobody."""
    usual, other, more = did = ("cA nX cB nY cC", "nX nY cA cB cC", "cA nX cB nY cC cD")
    program, places = laid(*did)
    assert names(program) == "cA nX cB nY cA cB cC cD"
    assert places[1] == [1, 3, 4, 5, 6]
    in_threads = {(words, b""): example(words)._replace(threads=example(words).streams) for words in did}
    program = lay_out({(usual, b""): 3, (other, b""): 2, (more, b""): 1}, in_threads.__getitem__, {})
    assert program.places[other, b""].tolist() == [1, 3, 0, 2, 4]


def test_a_call_of_another_name_has_no_stream_and_the_main_stream_its_number():
    """As of a rank that another profiler recorded: its call got the number of a stream."""
    program, (_, other) = laid("cA sS nX cB", "cC sT nX cB nY")
    assert names(program) == "cA sS nX cB nY"
    assert [program.operations[place].stream for place in other] == [0, -1, 1, 0, 1]
    program, (_, other) = laid("cA sS nX", "cC sT sT nX")
    assert [program.operations[place].stream for place in other] == [0, -1, -1, 1]


def test_the_order_of_streams_is_kept_where_no_operation_would_have_a_place_more():
    program, (_, other) = laid("cA nX cB", "nX cB cA")
    assert names(program) == "cA nX cB cA"
    assert other == [1, 2, 3]


def test_no_call_waits_for_what_its_thread_launches_later():
    program, (_, earlier) = laid("cA cB sS cC cD", "cA sS cB cC cD")
    assert names(program) == "cA cB sS cB cC cD"
    assert earlier == [0, 2, 3, 4, 5]


def test_ways_of_which_none_is_usual_have_places_of_their_own():
    program, places = laid("cA cH cG nX", "cA cH cH nX", "cA cI nX", "cA cH cG nX cZ")
    assert names(program) == "cA cH cG cH cH cI nX cZ"
    assert places == [[0, 1, 2, 6], [0, 3, 4, 6], [0, 5, 6], [0, 1, 2, 6, 7]]
    assert program.alternatives == (((1, 2), (3, 4), (5,)),)


def test_a_signature_met_later_goes_one_way_as_the_one_of_the_same_kernels():
    program, _ = laid("cA cH cG nX", "cA cH cH nX", "cA cI nX", "cA cH cG nX cZ")
    later = "cA cH cH nX", b"with a call more"
    program.fit(later, example("cA cH sW cH nX"))
    assert program.places[later].tolist() == [0, 3, -1, 4, 6]


@pytest.mark.parametrize(
    "others",
    [
        # most do the same; most do nothing there; each does as much by other kernels
        ("cA cH cG nX", "cA cH cH nX"),
        ("cA nX", "cA cH cG nX", "cA nX cZ", "cA cH cH nX"),
        ("cA cH cG nX", "cA cI cJ nX", "cA cK cL nX"),
    ],
)
def test_where_one_way_is_usual_places_are_shared(others: tuple[str, ...]):
    assert laid(*others)[0].alternatives == ()


def test_ways_of_which_there_are_too_many_for_memory_share_places():
    """As where each rank leaves out layers at random: one or two layers of eight have 36 ways."""
    layers = [f"cA{number} cB{number} cC{number}" for number in range(8)]
    kept = [" ".join(of_rank) for size in (7, 6) for of_rank in combinations(layers, size)]
    few = [" ".join(["cS", head, "nX"]) for head in ("cH", "cI cJ", "cK cL cM")]
    program, _ = laid(*(f"{few[at % 3]} {of_rank}" for at, of_rank in enumerate(kept)))
    assert [len(ways) for ways in program.alternatives] == [3]
    assert names(program).endswith("nX " + " ".join(layers))


def test_the_first_kernel_is_the_first_on_the_main_stream():
    program, _ = laid("mM nX sS cA cB")
    assert program.first_kernel == 3
    assert laid("mM nX")[0].first_kernel == 2


def test_what_the_survey_did_not_see_is_fitted_in_without_new_places():
    program, _ = laid("cA cB nX cC")
    before = names(program)
    program.fit(("new", b""), example("cA cQ cR nX cC cT"))
    assert program.places["new", b""].tolist() == [0, 1, -1, 2, 3, -1]
    assert names(program) == before


def test_streams_are_numbered_with_the_main_one_first():
    assert number_streams(7, [33, 7, 20, 33]) == {7: 0, 33: 1, 20: 2}
    assert number_streams(None, [33, 20]) == {33: 1, 20: 2}
    assert number_streams(7, [None, 7])[7] == 0
    assert number_streams(7, [None, 7])[None] == 1


words = st.lists(st.sampled_from(["cA", "cB", "cC", "nX", "nY", "mM", "sS"]), min_size=1, max_size=9).map(" ".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(words, min_size=1, max_size=5, unique=True))
def test_every_order_is_kept(did: list[str]):
    program, places = laid(*did)
    taken = set()
    for own, at in zip(did, places, strict=True):
        ops = own.split()
        assert len(at) == len(ops)
        for stream in set(example(own).streams):
            of_stream = [place for place, there in zip(at, example(own).streams, strict=True) if there == stream]
            assert all(b > a for a, b in pairwise(of_stream))
        taken.update(at)
        for op, place in zip(ops, at, strict=True):
            assert program.operations[place].kind == KINDS[op[0]]
    assert taken == set(range(len(program.operations)))
    # the commonest keep their own names; and of every name there are no fewer places than any of them needs
    assert [names(program).split()[place] for place in places[0]] == did[0].split()
    longest = max(len(own.split()) for own in did)
    assert longest <= len(program.operations) <= sum(len(own.split()) for own in did)


@settings(max_examples=100, deadline=None)
@given(words, st.integers(0, 8), st.sampled_from(["cQ", "nQ", "mQ"]))
def test_one_more_kernel_moves_nobody_else(own: str, where: int, extra: str):
    ops = own.split()
    at = min(where, len(ops))
    more = [*ops[:at], extra, *ops[at:]]
    program, (usual, longer) = laid(own, " ".join(more))
    assert Counter(names(program).split()) == Counter(more)
    assert len(program.operations) == len(ops) + 1
    assert longer == list(range(len(more)))
    assert np.setdiff1d(longer, usual).tolist() == [longer[at]]


def timed_example(words: str) -> Example:
    """`A1` is a kernel called A on stream 1; the first starts at 0, each next one 10 ns later. Nothing was launched."""
    ops = words.split()
    streams = [int(op[1:]) for op in ops]
    starts_ns = [10.0 * at for at in range(len(ops))]
    kinds = [COMPUTE if stream == 0 else COLLECTIVE for stream in streams]
    return Example(kinds, [op[0] for op in ops], streams, [0] * len(ops), (), starts_ns)


def laid_by_time(*did: str):
    """The names of the program of these steps without launches, and where each one's operations stand."""
    counts = {(words, b""): 1 for words in did}
    program = lay_out(
        counts, lambda signature: timed_example(signature[0]), {one: len(one[0].split()) for one in counts}
    )
    names = "".join(op.name for op in program.operations)
    return names, [program.places[words, b""].tolist() for words in did], program


def test_without_launches_streams_that_start_in_another_order_are_one_program():
    names, places, _ = laid_by_time("A0 B0 X1 C0 D0", "A0 X1 B0 C0 D0", "A0 B0 C0 X1 D0")
    assert names == "ABXCD"  # X usually starts third
    assert places == [[0, 1, 2, 3, 4], [0, 2, 1, 3, 4], [0, 1, 3, 2, 4]]


def test_without_launches_a_stream_is_known_by_what_it_runs():
    names, places, program = laid_by_time("A0 X1 Y2 B0 X1 Y2", "A0 Y1 X2 B0 X2 Y1")
    assert sorted(names) == sorted("AXYBXY")
    assert [sorted(names[place] for place in own) for own in places] == [sorted("AXYBXY")] * 2
    assert {op.name: op.stream for op in program.operations} == {"A": 0, "B": 0, "X": 1, "Y": 2}
    program.fit(("later", b""), timed_example("A0 Y1 B0 X2 Y1"))
    later = program.places["later", b""].tolist()
    assert "".join(names[place] for place in later) == "AYBXY"
    assert len(set(later)) == 5


@given(st.lists(st.permutations("AAABBCCC"), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_without_launches_the_order_between_streams_never_adds_a_place(orders: list[list[str]]):
    """Streams A, B and C run the same kernels in each step, in orders between them that nothing restricts."""
    did = [" ".join(f"{name}{'ABC'.index(name)}" for name in order) for order in orders]
    names, places, _ = laid_by_time(*did)
    assert len(names) == 8
    for order, own in zip(orders, places, strict=True):
        assert [names[place] for place in own] == order
        for name in "ABC":
            of_stream = [place for place, kernel in zip(own, order, strict=True) if kernel == name]
            assert of_stream == sorted(of_stream)


def test_without_launches_a_kernel_that_is_missing_moves_no_other_of_its_name():
    whole, later = "A0 X1 B0 X1 C0 X1 D0", "A0 X1 B0 X1 C0 D0 X1"
    names, places, _ = laid_by_time(whole, later, "A0 B0 X1 C0 X1 D0", "A0 X1 B0 X1 C0 D0")
    assert names == "AXBXCXD"
    assert places[0] == [0, 1, 2, 3, 4, 5, 6]
    assert places[2:] == [[0, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 6]]


def test_streams_of_one_launch_are_in_the_order_of_their_starts():
    """Rows of one launch come stream by stream. X starts beside B, and Y after C, which has to wait for X."""
    graph = ([1, 2, 3, 4, 5], [5.0, 10.0, 30.0, 12.0, 40.0])
    rows = example("cS cA cB cC nX nY cE")._replace(graphs=[graph])
    program = lay_out({("graph", b""): 2}, lambda _: rows, {})
    assert names(program) == "cS cA cB nX cC nY cE"
    assert program.places["graph", b""].tolist() == [0, 1, 2, 4, 3, 5, 6]
    program.fit(("new", b""), example("cS cA cB cQ cC nX nY cE"))
    assert program.places["new", b""].tolist() == [0, 1, 2, -1, 4, 3, 5, 6]


def test_the_first_row_of_a_launch_has_the_launch():
    graph = ([0, 1, 2], [20.0, 30.0, 10.0])
    program = lay_out({("graph", b""): 1}, lambda _: example("cA cB nX")._replace(graphs=[graph]), {})
    assert names(program) == "cA nX cB"


def test_what_the_first_example_lacks_stays_in_the_order_of_its_stream():
    """The other example is of a rank that is twice as slow: its kernel L ran between B and C."""
    usual = example("cA cB cC nX")._replace(graphs=[([0, 1, 2, 3], [0.0, 10.0, 20.0, 15.0])])
    slow = example("cA cB cL cC nX")._replace(graphs=[([0, 1, 2, 3, 4], [0.0, 20.0, 29.0, 40.0, 30.0])])
    rows = {"usual": usual, "slow": slow}
    program = lay_out({("usual", b""): 2, ("slow", b""): 1}, lambda signature: rows[signature[0]], {})
    assert names(program) == "cA cB cL nX cC"
    assert program.places["slow", b""].tolist() == [0, 1, 2, 4, 3]
