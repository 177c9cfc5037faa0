"""Threads that launch one after the other, however often they switch, hold each other up; others do not."""

import numpy as np
import pytest

from jitter.analysis.alignment.program import Operation, Program
from jitter.analysis.execution.run_rules import threads_of
from jitter.analysis.execution.step_times import TeamTimes
from jitter.core.names.kernels import COMPUTE

NONE = np.nan
THREADS = [0, 0, 1, 1, 0, 1]
"""Of six operations, and the same again: they switch before the third, the fifth and the sixth, and after that."""
TIMES_OVER, LATER = 4, 100


def step(*calls: list[float], length: float = 5.0) -> TeamTimes:
    """Calls of each rank, each so long, of six operations; the others' are the same, so much later each time."""
    call = np.concatenate([np.array(calls).T + LATER * number for number in range(TIMES_OVER)])
    return TeamTimes(np.arange(call.shape[1]), call + 9, call + 10, call, call + length)


@pytest.fixture
def program() -> Program:
    return Program(tuple(Operation("k", COMPUTE, 0, thread) for thread in THREADS * TIMES_OVER), {}, (0, "k"))


def take_turns(program: Program, steps: list[TeamTimes]) -> bool:
    threads = threads_of(program, steps).tolist()
    assert threads in ([0] * len(threads), THREADS * TIMES_OVER)
    return not any(threads)


def test_one_after_the_other(program: Program):
    assert take_turns(program, [step([10, 20, 30, 40, 50, 60], [0, 6, 12, 18, 24, 30])])


def test_begun_while_the_others_lasts(program: Program):
    assert not take_turns(program, [step([10, 20, 24, 40, 50, 60])])
    assert not take_turns(program, [step([10, 20, 30, 40, 50, 60]), step([10, 20, 30, 40, 44, 60])])


def test_within_a_thread_it_does_not_matter(program: Program):
    assert take_turns(program, [step([10, 12, 30, 33, 50, 60])])


def test_calls_that_were_not_recorded(program: Program):
    assert take_turns(program, [step([10, 20, NONE, 40, 50, 60])])
    assert not take_turns(program, [step([10, 20, NONE, 40, 44, 60])])
    assert take_turns(program, [step([NONE] * 6)])


def test_a_clock_may_err_now_and_then(program: Program):
    apart, touching = [10.0, 20, 30, 40, 50, 60], [10.0, 20, 24, 40, 50, 60]
    assert take_turns(program, [step(*[apart] * 99, touching)])
    assert not take_turns(program, [step(*[apart] * 9, touching)])
