"""Own times of a step by strips: those of the whole step, however many operations are computed together."""

from dataclasses import fields

import numpy as np
import pytest

from jitter.analysis.execution import own_time
from jitter.analysis.execution.own_time import OwnTimes, own_times
from jitter.analysis.execution.ready_times import Tail, no_tail, readiness
from jitter.analysis.execution.rules import Rules, Wait
from jitter.analysis.execution.step_times import StepArrays
from tests.support.programs import program, rules, step_of

WORDS = "kkaKskgkKsak"
RANKS = 5
WAITS = (Wait(1, ~1, "event"), Wait(4, 2, "sync"), Wait(5, 3, "event"), Wait(5, 2, "event"), Wait(9, 6, "sync"))
"""Of the step before, of the strip before, of several; the last wait for nothing."""


def any_step(chance: np.random.Generator) -> StepArrays:
    """Ranks one µs or so apart; some have not every operation, some calls are not known."""
    calls = len(WORDS), RANKS
    call = np.cumsum(chance.integers(500, 3000, calls), axis=0).astype(float)
    back = call + chance.integers(100, 400, calls)
    start = back + chance.integers(-50, 9000, calls)
    end = start + chance.integers(200, 5000, calls)
    waits = np.array([word == "s" for word in WORDS])
    start[waits] = end[waits] = np.nan
    present = chance.random(calls) > 0.15
    unknown = chance.random(calls) < 0.15
    for times in (start, end, call, back):
        times[~present] = np.nan
    call[unknown] = back[unknown] = np.nan
    return StepArrays(np.arange(RANKS), present, start, end, call, back)


def any_tail(chance: np.random.Generator, queue: int | None) -> Tail:
    starts = np.sort(chance.integers(-5000, 0, (queue or 0, RANKS)), axis=0).astype(float)
    return Tail(-chance.integers(0, 900, (3, RANKS)).astype(float), np.full((1, RANKS), -700.0), starts)


def taken(rule: Rules, step: StepArrays, tail: Tail, words: str = WORDS) -> OwnTimes:
    its = program(words)
    return own_times(its, rule, step, readiness(its, rule.thread, step, tail), tail)


@pytest.mark.parametrize("queue", [None, 2])
@pytest.mark.parametrize("waits", [WAITS, ()])
@pytest.mark.parametrize("high", [0, 1, 2, 5, 11])
def test_strips_of_any_height(high: int, waits: tuple[Wait, ...], queue: int | None, monkeypatch: pytest.MonkeyPatch):
    chance = np.random.default_rng(4)
    for _ in range(20):
        step, tail = any_step(chance), any_tail(chance, queue)
        rule = rules(WORDS, waits, queue)
        whole = taken(rule, step, tail)
        with monkeypatch.context() as small:
            small.setattr(own_time, "CELLS_AT_ONCE", high * RANKS)
            strips = taken(rule, step, tail)
        for field in fields(OwnTimes):
            np.testing.assert_array_equal(getattr(strips, field.name), getattr(whole, field.name), field.name)


def test_of_many_ranks_no_less_than_of_one():
    """More ranks than go into a strip: each has what it would have alone."""
    one = step_of([0], [[10_000], [12_000], [15_000]], [[11_000], [14_000], [16_000]])
    many = 50_000
    times = (np.tile(values, (1, many)) for values in (one.present, one.start, one.end, one.call, one.back))
    alone = taken(rules("kkk"), one, no_tail(1, 1, 1, None), "kkk")
    found = taken(rules("kkk"), StepArrays(np.arange(many), *times), no_tail(1, 1, many, None), "kkk")
    assert alone.gpu[:, 0].tolist() == [1000, 2000, 1000]
    for field in fields(OwnTimes):
        its = getattr(found, field.name)
        assert its.shape == (3, many)
        np.testing.assert_array_equal(its, np.tile(getattr(alone, field.name), (1, many)))


def test_where_nothing_is_known_of_what_held_it_back_nothing_did():
    """Rank 0's first launch is not recorded, and nothing comes before it; rank 1's kernel starts 5 µs after its."""
    step = step_of([0, 1], [[20_000, 20_000], [40_000, 40_000]], [[21_000, 21_000], [41_000, 41_000]])
    step.call[0, 0] = step.back[0, 0] = np.nan
    found = taken(rules("kk"), step, no_tail(1, 1, 2, None), "kk")
    assert found.delay.tolist() == [[0, 5000], [5000, 5000]]
    assert found.lead.tolist() == [[0, 0], [0, 0]]
    assert found.call.tolist() == [[0, 5000], [5000, 5000]]
    assert found.gpu.tolist() == [[1000, 1000], [1000, 1000]]
    # rank 0's second is its first call that is known: nothing goes before it
    np.testing.assert_array_equal(found.host, [[0, np.nan], [np.nan, 15_000]])


@pytest.mark.parametrize("ranks", [0, 3])
def test_of_nothing_or_of_nobody(ranks: int):
    for words in ("", "kk"):
        nothing = [[0.0] * ranks] * len(words)
        step = step_of(list(range(ranks)), nothing, nothing)
        step = step if words else StepArrays(np.arange(ranks), *_empty(ranks))
        found = taken(rules(words), step, no_tail(1, 1, ranks, None), words)
        assert {getattr(found, field.name).shape for field in fields(OwnTimes)} == {(len(words), ranks)}


def _empty(ranks: int) -> list[np.ndarray]:
    return [np.zeros((0, ranks), np.bool_), *(np.zeros((0, ranks)) for _ in range(4))]
