"""Self times of small random steps, against the same told slowly, an operation at a time; compiled and not."""

from itertools import pairwise

import numpy as np
import pytest

from jitter.analysis.execution.dependencies import Wait
from jitter.analysis.execution.job_arrays import CarriedState
from jitter.analysis.execution.self_times import SelfTimes, baselines, follow_steps
from jitter.analysis.execution.step_times import StepTimes
from jitter.analysis.replay.run_steps import find_end_cells, find_least
from tests.support.programs import by_operation, job_of, no_state, state_of, step_of

WORDS = "kkaKskgkKsak"
STREAMS = {"k": 0, "a": 1, "g": 1, "K": 2}
RANKS = 5
WAITS = (Wait(1, ~1, "event"), Wait(4, 2, "sync"), Wait(5, 3, "event"), Wait(5, 2, "event"), Wait(9, 6, "sync"))
"""Of the step before, of one operation, of several; the last wait for nothing."""


pytestmark = pytest.mark.usefixtures("each_way")


def any_step(chance: np.random.Generator) -> StepTimes:
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
    return step_of(start, end, call, back)


def any_state(chance: np.random.Generator, queue: int | None) -> CarriedState:
    starts = np.sort(chance.integers(-5000, 0, (queue or 0, RANKS)), axis=0).astype(float)
    return state_of(-chance.integers(0, 900, (3, RANKS)), np.full((1, RANKS), -700.0), starts)


def told_slowly(step: StepTimes, state: CarriedState, waits: tuple[Wait, ...], queue: int | None, rank: int) -> list:
    """One rank's (host, call, lead, delay, gpu), operation by operation, from lists of what was so far."""
    first = int(step.row[rank])
    times = [
        [None if np.isnan(one) else float(one) for one in values[first : first + len(WORDS)]]
        for values in (step.start, step.end, step.call, step.back)
    ]
    returned: list[float] = state.back[rank].tolist()
    ends = {stream: [end] for stream, end in enumerate(state.stream_end[rank].tolist())}
    started: list[float] = state.pending[rank].tolist()
    done: dict[int, float] = {}
    found = []
    for at, (word, start, end, call, back) in enumerate(zip(WORDS, *times, strict=True)):
        awaited = [
            done[wait.on_op_index] if wait.on_op_index >= 0 else float(state.stream_end[rank, ~wait.on_op_index])
            for wait in waits
            if wait.op_index == at
        ]
        held = awaited if word == "s" else sorted(started)[-queue:][:1] if queue else []
        host = in_call = lead = delay = gpu = 0.0
        if call is not None:
            host, in_call = call - returned[-1], back - max([call, *held])
        if start is not None:
            submit = min(start, returned[-1] if back is None else back)
            lead = (returned[-1] if call is None else back) - submit
            delay = start - max([submit, *ends[STREAMS[word]], *awaited])
            gpu = 0.0 if word in "ag" else end - start
            started.append(start)
        found.append((host, in_call, lead, delay, gpu))
        if word != "s":
            done[at] = max(ends[STREAMS[word]]) if end is None else end
            ends[STREAMS[word]] += [] if end is None else [end]
        returned += [] if back is None else [back]
    return found


@pytest.mark.parametrize("queue", [None, 2])
@pytest.mark.parametrize("waits", [WAITS, ()])
def test_as_told_slowly(waits: tuple[Wait, ...], queue: int | None):
    chance = np.random.default_rng(4)
    for _ in range(20):
        step, state = any_step(chance), any_state(chance, queue)
        before = state.copy()
        own, _ = follow_steps(job_of(WORDS, RANKS, waits, queue), step, state, 1)
        for rank in range(RANKS):
            rows = slice(rank * len(WORDS), (rank + 1) * len(WORDS))
            told = list(zip(*(values[rows].tolist() for values in own), strict=True))
            assert told == told_slowly(step, before, waits, queue, rank)


def test_where_nothing_is_known_of_what_held_it_back_nothing_did():
    """Rank 0's first launch is not recorded, and nothing comes before it; rank 1's kernel starts 5 µs after its."""
    step = step_of([[20_000, 20_000], [40_000, 40_000]], [[21_000, 21_000], [41_000, 41_000]])
    step.call[0] = step.back[0] = np.nan
    found = SelfTimes(*(by_operation(values, 2) for values in follow_steps(job_of("kk", 2), step, no_state(2), 1)[0]))
    assert found.delay.tolist() == [[0, 5000], [5000, 5000]]
    assert found.lead.tolist() == [[0, 0], [0, 0]]
    assert found.call.tolist() == [[0, 5000], [5000, 5000]]
    assert found.gpu.tolist() == [[1000, 1000], [1000, 1000]]
    # rank 0's second is its first call that is known: nothing goes before it
    np.testing.assert_array_equal(found.host, [[0, np.nan], [np.nan, 15_000]])


@pytest.mark.parametrize("ranks", [0, 3])
def test_of_nothing_or_of_no_rank(ranks: int):
    for words in ("", "kk"):
        nothing = np.zeros((len(words), ranks))
        job = job_of(words, ranks)
        step = step_of(nothing, nothing)
        own, _ = follow_steps(job, step, no_state(ranks), 1)
        assert {values.shape for values in own} == {(len(words) * ranks,)}
        assert {values.shape for values in baselines(job, step, own, np.zeros((1, ranks)))} == {(1, len(words))}


def test_baselines_are_lower_medians_of_what_is_known():
    """Of five ranks, one of which has not the step; unknown ones are left out."""
    chance = np.random.default_rng(7)
    job, step = job_of(WORDS, RANKS), any_step(chance)
    own, _ = follow_steps(job, step, any_state(chance, None), 1)
    own.host[chance.random(len(own.host)) < 0.3] = np.nan
    own.host[0 :: len(WORDS)] = np.nan
    step.row[2] = -1
    for values, medians in zip(own, baselines(job, step, own, np.zeros((1, RANKS))), strict=True):
        for op, found in enumerate(medians[0].tolist()):
            known = sorted(v for r in (0, 1, 3, 4) if not np.isnan(v := float(values[r * len(WORDS) + op])))
            np.testing.assert_equal(found, known[(len(known) - 1) // 2] if known else np.nan)
    assert np.isnan(baselines(job, step, own, np.zeros((1, RANKS))).host[0, 0])


def test_each_way_takes_the_medians_of_its_ranks_and_as_long_as_the_median_rank():
    """One of three ranks that go the first way stalls there, and delays, some below 0, nearly cancel each other."""
    ranks, first, second = 7, np.array([0, 1]), np.array([2, 3])
    job, step = job_of("kkkk", ranks), step_of(*np.zeros((2, 4, ranks)))
    own = SelfTimes(*np.zeros((5, ranks, 4)))
    own.gpu[:3, first], own.gpu[3:, second] = (100, 500), (400, 200)
    own.gpu[1, 0] = 9000
    own.delay[:3, first], own.delay[3:, second] = (1000, -999), (500, 500)
    own = SelfTimes(*(values.ravel() for values in own))
    usual = baselines(job, step, own, np.zeros((1, ranks)), [(0, [first, second])])
    assert usual.gpu.tolist() == [[100, 500, 400, 200]]
    assert usual.delay[0, second].tolist() == [500, 500]
    assert usual.delay[0, first].sum() == pytest.approx(1000)
    assert np.abs(usual.delay).max() < 2000
    step.row[:] = -1
    assert np.isnan(baselines(job, step, own, np.zeros((1, ranks)), [(0, [first, second])]).gpu).all()


def test_end_cells_are_of_the_place_with_the_latest_median():
    """Of two teams: of the first candidates that any rank of a team recorded; a rank without the step has none."""
    chance = np.random.default_rng(11)
    for _ in range(30):
        step = any_step(chance)
        step.row[chance.integers(RANKS)] = -1
        first_rank = np.array([0, 2, RANKS])
        candidates = [[chance.choice(len(WORDS), chance.integers(0, 4), replace=False) for _ in range(2)] for _ in "ab"]
        end_cells = np.full(RANKS, -1)
        for places in candidates:
            first = np.array([0, *np.cumsum([len(one) for one in places])])
            find_end_cells(step.row, step.end, first_rank, first, np.concatenate(places), np.empty(RANKS), end_cells)
        for team, ranks in enumerate((range(2), range(2, RANKS))):
            medians: list[tuple[float, int]] = []
            for places in candidates:
                for place in places[team].tolist() if not medians else []:
                    ends = [float(step.end[step.row[rank] + place]) for rank in ranks if step.row[rank] >= 0]
                    known = [end for end in ends if not np.isnan(end)]
                    medians += [(float(np.median(known)), place)] if known else []
            for rank in ranks:
                there = medians and step.row[rank] >= 0
                assert end_cells[rank] == (step.row[rank] + max(medians)[1] if there else -1)


def test_least_of_parts():
    """Of arrivals at collectives, some of them unknown."""
    chance = np.random.default_rng(13)
    first = np.array([0, 3, 3, 4, 20])
    for _ in range(20):
        values = chance.integers(-500, 500, 20).astype(float)
        values[chance.random(20) < 0.4] = np.nan
        least, unknown = np.empty(4), np.empty(4, np.int64)
        find_least(first, values, least, unknown)
        parts = [values[low:high].tolist() for low, high in pairwise(first.tolist())]
        known = [[value for value in part if not np.isnan(value)] for part in parts]
        np.testing.assert_equal(least.tolist(), [min(part, default=np.nan) for part in known])
        assert unknown.tolist() == [len(part) - len(some) for part, some in zip(parts, known, strict=True)]
