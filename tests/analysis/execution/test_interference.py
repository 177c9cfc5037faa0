"""Interference of collectives with compute kernels: estimated, taken out, and given back by replay."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from jitter.analysis.account.usual_step import renumber
from jitter.analysis.collectives.matching import Group, match
from jitter.analysis.execution.dependencies import Dependencies
from jitter.analysis.execution.interference import (
    end_beside,
    estimate_interference,
    find_later_beside,
    last_beside,
    time_beside,
)
from jitter.analysis.execution.schedule import CALLS, STARTS, WHOLE, schedule
from jitter.analysis.thresholds import THRESHOLDS
from tests.support.programs import dependencies, program


def covered(intervals: Sequence[tuple[int, int]], at: int) -> bool:
    return any(begin <= at < end for begin, end in intervals)


def end_by_ns(intervals: Sequence[tuple[int, int]], begin: int, work: float, factor: float) -> int:
    """When the work is done, nanosecond by nanosecond."""
    at = begin
    while work > 1e-9:
        work -= 1 / factor if covered(intervals, at) else 1
        at += 1
    return at


def test_the_last_collective_beside_each_operation():
    kinds = program("aaakaak").kinds
    assert last_beside(kinds, {}).tolist() == [-1, 0, 1, 2, 2, 4, 5]
    assert last_beside(kinds, {3: (4,)}).tolist() == [-1, 0, 1, 4, 2, 4, 5]
    assert last_beside(kinds, {3: (4, 5)}).tolist() == [-1, 0, 1, 5, 2, 4, 5]
    assert last_beside(kinds[:0], {}).tolist() == []


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("later", [(), (4,), (4, 5)])
def test_time_beside_collectives_and_back(later: tuple[int, ...]):
    rng = np.random.default_rng(4)
    words = "aaakaak"
    last = last_beside(program(words).kinds, {3: later} if later else {})
    for _ in range(60):
        begins = rng.integers(0, 300, len(words))
        start, end = begins.astype(float), begins + rng.integers(1, 150, len(words)).astype(float)
        if rng.random() < 0.3:
            start[1] = end[1] = np.nan  # the rank has not this one
        for op in (3, 6):
            # of the collectives launched after it those alone that may run beside it
            until = max((op, *(at + 1 for at in later if op == 3)))
            known = [at for at in range(until) if words[at] == "a" and not np.isnan(start[at])]
            intervals = [(int(start[at]), int(end[at])) for at in known]
            beside = sum(covered(intervals, at) for at in range(int(start[op]), int(end[op])))
            assert time_beside(last, 0, 0, op, start, end) == beside
            work, factor = float(rng.integers(1, 200)), float(rng.choice([1.0, 1.25, 1.5]))
            told = end_beside(last, 0, 0, op, start, end, start[op], work, factor)
            assert abs(told - end_by_ns(intervals, int(start[op]), work, factor)) <= 1
            took = end[op] - start[op]
            undisturbed = took - beside * (1 - 1 / factor)
            again = end_beside(last, 0, 0, op, start, end, start[op], undisturbed, factor)
            assert again == pytest.approx(end[op], abs=1e-6)


@pytest.mark.usefixtures("each_way")
def test_an_unknown_begin_has_an_unknown_end():
    last, times = last_beside(program("ak").kinds, {}), (np.array([0.0, 5.0]), np.array([10.0, 20.0]))
    assert np.isnan(end_beside(last, 0, 0, 1, *times, np.nan, 7.0, 1.5))


RANK = np.arange(24) % 4


def sample_of(
    factor: float,
    slow_rank: float = 1.0,
    kernels: int = 12,
    every: int = 1,
    slow_kernels: int = 99,
    least_ns: int = 25_000,
) -> tuple[str, np.ndarray, np.ndarray]:
    """24 cells of 4 ranks: a third of the kernels, a collective, the others; it ends late on three of the ranks.

    Of the kernels, each `every`th is slowed by it; of the slow rank, the first `slow_kernels` are slow.
    """
    rng = np.random.default_rng(7)
    words = "k" * (kernels // 2) + "a" + "k" * kernels
    work = rng.uniform(40_000, 90_000, len(words))
    start, end = np.empty((2, 24, len(words)))
    for cell, rank in enumerate(RANK.tolist()):
        now, over = 0.0, -1.0
        for op, word in enumerate(words):
            start[cell, op] = now
            if word == "a":
                over = now + (30_000 if rank == 0 else kernels * rng.uniform(least_ns, 58_000))
                end[cell, op] = over
                continue
            pace = slow_rank if rank == 0 and op < slow_kernels else 1.0
            took = work[op] * pace * np.exp(0.01 * rng.standard_normal())
            pace_beside = 1 + factor if op % every == 0 else 1.0
            slowed = took * pace_beside
            if now + slowed > over:
                slowed = max(over - now, 0.0) + took - max(over - now, 0.0) / pace_beside
            now += slowed
            end[cell, op] = now
    return words, start, end


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("factor", [0.1, 0.2, 0.3])
def test_estimate(factor: float):
    words, start, end = sample_of(factor)
    assert estimate_interference(program(words), {}, RANK, start, end) == pytest.approx(factor, abs=0.01)
    words, start, end = sample_of(factor, slow_rank=1.3)
    # the slow rank alone runs without a collective: it is compared at its own pace
    assert estimate_interference(program(words), {}, RANK, start, end) == pytest.approx(factor, abs=0.015)


def test_no_interference():
    for slow in (1.0, 1.3):
        words, start, end = sample_of(0.0, slow)
        assert estimate_interference(program(words), {}, RANK, start, end) == 0.0
    for slow_kernels in (1, 2, 4):  # the late rank, which runs without a collective, is slow in some kernels only
        words, start, end = sample_of(0.0, 1.3, slow_kernels=slow_kernels, least_ns=55_000)
        assert estimate_interference(program(words), {}, RANK, start, end) == 0.0
    words, start, end = sample_of(0.5, kernels=60, every=3)
    assert estimate_interference(program(words), {}, RANK, start, end) == 0.0  # no one factor holds of all kernels
    words, start, end = sample_of(0.2)
    few = program(words[:8])
    assert (
        estimate_interference(few, {}, RANK, start[:, :8], end[:, :8]) == 0.0
    )  # one kernel beside it tells too little
    assert estimate_interference(program("k"), {}, RANK[:1], np.array([[np.nan]]), np.array([[np.nan]])) == 0.0


def test_a_kernel_is_replayed_when_the_end_of_the_collective_beside_it_is_known():
    programs = {0: program("kakk")}
    matching = match(programs, {0: 0, 1: 0}, {rank: [(1, Group((0, 1)))] for rank in (0, 1)})
    plain = schedule(programs, {0: dependencies("kakk")}, matching).instructions
    assert plain == ((0, 0, 4, WHOLE), (-1, 0, 0, 0))
    slowed = Dependencies((), np.zeros(4, np.int64), None, 0.0, 0.0, interference=0.2)
    expected = ((0, 0, 2, WHOLE), (-1, 0, 0, 0), (0, 2, 4, WHOLE))
    assert schedule(programs, {0: slowed}, matching).instructions == expected


def test_kernels_that_would_wait_for_each_others_collectives_are_replayed_without_them():
    """Each of two teams launches first what the other launches last, on another stream, so none waits for the other."""
    programs = {0: program("pkpk"), 1: program("pkpk")}
    for team in (0, 1):
        first, *rest = programs[team].operations
        programs[team] = type(programs[team])(
            (first._replace(stream=3), *rest), programs[team].places, programs[team].reference
        )
    one, other = Group((0, 1)), Group((0, 1), "other")
    attended = {0: [(0, one), (2, other)], 1: [(0, other), (2, one)]}
    matching = match(programs, {0: 0, 1: 1}, attended)
    slowed = Dependencies((), np.zeros(4, np.int64), None, 0.0, 0.0, interference=0.2)
    found = schedule(programs, {0: slowed, 1: slowed}, matching)
    assert found.uncoupled == frozenset()
    assert {number for block, number, *_ in found.instructions if block < 0} == {0, 1}


def test_a_host_runs_ahead_of_a_kernel_to_launch_the_collective_beside_it():
    """The kernel at 1 runs beside the collective at 3, which another rank may prolong: its end is computed first."""
    programs = {0: program("kkkak")}
    matching = match(programs, {0: 0, 1: 0}, {rank: [(3, Group((0, 1)))] for rank in (0, 1)})
    rules = Dependencies((), np.zeros(5, np.int64), None, 0.0, 0.0, interference=0.2)
    assert schedule(programs, {0: rules}, matching).instructions[0] == (0, 0, 4, WHOLE)
    beside = replace(rules, later_beside={1: (3,)})
    assert schedule(programs, {0: beside}, matching).instructions == (
        (0, 0, 1, WHOLE),
        (0, 1, 3, CALLS),
        (0, 3, 4, WHOLE),
        (-1, 0, 0, 0),
        (0, 1, 3, STARTS),
        (0, 4, 5, WHOLE),
    )


def test_kernels_beside_collectives_that_another_program_lacks():
    """As of a program without what runs in every tenth step alone."""
    rules = replace(dependencies("kkaa"), later_beside={0: (2,), 1: (2, 3)})
    kept = renumber(rules, {0: 0, 1: 1, 3: 2})
    assert kept.later_beside == {1: (2,)}
    assert last_beside(program("kka").kinds, kept.later_beside).tolist() == [-1, 2, -1]


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("seed", range(30))
def test_which_collectives_launched_later_run_beside_a_kernel(seed: int):
    """Against a count of each nanosecond of all cells."""
    chance = random.Random(seed)
    words = "".join(chance.choices("kKas", (4, 2, 4, 1), k=chance.randint(1, 12)))
    start = np.array([[float(chance.randint(0, 60)) for _ in words] for _ in range(3)])
    end = start + [[chance.randint(1, 25) for _ in words] for _ in range(3)]
    start[np.array([[chance.random() < 0.1 for _ in words] for _ in range(3)])] = np.nan
    end[np.isnan(start)] = np.nan

    def runs(cell: int, at: int, ns: int) -> bool:
        return bool(start[cell, at] <= ns < end[cell, at])

    def shared(cell: int, op: int, other: int) -> int:
        return sum(runs(cell, op, ns) and runs(cell, other, ns) for ns in range(90))

    expected = {
        op: tuple(
            at
            for at in range(op + 1, len(words))
            if words[at] == "a"
            and any(shared(cell, op, at) > THRESHOLDS.tolerance_share * shared(cell, op, op) for cell in range(3))
        )
        for op in range(len(words))
        if words[op] in "kK"
    }
    assert find_later_beside(program(words), start, end) == {op: others for op, others in expected.items() if others}
