"""The analysis against the oracle, on small steps of every kind: any order, any streams, any lack."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.lakes import MAIN, RankLake, collective, kernel, lake_of
from tests.support.metric_assertions import assert_matches_oracle

NAMES = ("gemm", "relu", "norm")
PLACE_NS = 400_000  # between two kernels of the program: collectives end in the same order everywhere
SPREAD_NS = 15_000  # how far apart ranks leave a collective that all leave together

compute = st.tuples(st.just("compute"), st.sampled_from(NAMES), st.sampled_from((MAIN, MAIN, MAIN, 13)))
meeting = st.tuples(
    st.just("collective"),
    st.sampled_from(("all_reduce", "all_reduce", "broadcast", "all_gather")),
    st.sampled_from((MAIN, 20, 21)),
)
generic = st.tuples(st.just("generic"), st.sampled_from((False, False, False, True)), st.just(20))
memory = st.tuples(st.just("memory"), st.just("[CUDA memcpy HtoD]"), st.just(MAIN))
with_operations = st.lists(st.one_of(compute, compute, compute, meeting, memory), min_size=1, max_size=9)
with_rccl = st.lists(st.one_of(compute, compute, generic), min_size=1, max_size=9)


@st.composite
def jobs(draw: st.DrawFn, programs: Any, lossy: bool) -> list[RankLake]:
    """Ranks that run variants of one program; everything after the program is up to chance."""
    program = draw(programs)
    # of collectives that name nothing, more than half must be sound: else nobody can tell which are
    bad = [n for n, (kind, odd, _) in enumerate(program) if kind == "generic" and odd]
    sound = [n for n, (kind, odd, _) in enumerate(program) if kind == "generic" and not odd]
    if len(sound) < 2 or len(sound) <= len(bad):
        program = [("generic", False, 20) if n in bad else one for n, one in enumerate(program)]
    n_ranks = draw(st.integers(1, 4))
    n_steps = draw(st.integers(1, 2))
    shared = draw(st.booleans())
    groups = draw(st.sampled_from(("untold", "sizes", "ranks", "part")))
    ranks = []
    for rank in range(n_ranks):
        zero = draw(st.integers(0, 10**12))
        steps: dict[tuple[int | None, int], list[dict[str, Any]]] = {}
        cut = set()
        for step in range(n_steps):
            if n_steps > 1 and rank and draw(st.integers(0, 5)) == 0:
                continue  # a rank that misses a step
            rows = _rows(draw, program, rank, n_ranks, zero + step * 10**8, groups)
            if lossy and draw(st.integers(0, 4)) == 0:
                cut.add((None, step))
                rows = rows[: draw(st.integers(1, len(rows)))]
            steps[None, step] = rows
        known = draw(st.integers(0, 3)) > 0
        ranks.append(RankLake(rank, steps, cut, 10**18 - zero if known else None, "one recording" if shared else None))
    return ranks


def _rows(draw: st.DrawFn, program: list[Any], rank: int, n_ranks: int, zero: int, groups: str) -> list[dict[str, Any]]:
    rows = []
    shared_launch = 0
    for place, (kind, what, stream) in enumerate(program):
        base = zero + (place + 1) * PLACE_NS
        start = base + draw(st.integers(-PLACE_NS, PLACE_NS))
        if kind == "compute":
            if draw(st.integers(0, 11)) == 0:
                continue  # only this rank lacks it
            launch = draw(st.sampled_from((start - 4000, start - 4000, start + 1, None, shared_launch)))
            shared_launch = launch or shared_launch
            duration = draw(st.integers(0, 2 * PLACE_NS))
            rows.append(kernel(what, start, start + duration, stream, launch_start_ns=launch))
            if draw(st.integers(0, 11)) == 0:
                rows.append(kernel(f"only on {rank}", start + 7, start + 900, stream))
        elif kind == "memory":
            rows.append(kernel(what, start, start + 30, stream, kind="memory"))
        else:
            end = base + PLACE_NS + draw(st.integers(0, SPREAD_NS))
            if kind == "generic":
                end += rank * 450_000 * (place + 1) if what else 0
                name, operation = "ncclDevKernel_Generic", None
            else:
                name, operation = f"ncclDevKernel_{what}", what
            told = {
                "untold": {},
                "sizes": {"group_size": n_ranks},
                "ranks": {"group_size": n_ranks, "group_ranks": list(range(n_ranks))},
                "part": {"group_size": max(1, n_ranks - 1), "group_ranks": list(range(max(1, n_ranks - 1)))},
            }[groups if place % 2 else "untold"]
            rows.append(collective(name, start - PLACE_NS, end, operation, stream=stream, **told))
    return rows or [kernel("gemm", zero, zero + 5)]


def check(ranks: list[RankLake]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_matches_oracle(lake_of(Path(folder) / "lake", ranks))


RULES = settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@RULES
@given(jobs(with_operations, lossy=False))
def test_whole_captures(ranks):
    check(ranks)


@RULES
@given(jobs(with_operations, lossy=True))
def test_cut_captures(ranks):
    check(ranks)


@RULES
@given(jobs(with_rccl, lossy=False))
def test_collectives_that_name_no_operation(ranks):
    check(ranks)
