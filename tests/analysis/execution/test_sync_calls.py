"""Synchronising calls of several recordings side by side: each step's, by rank, as counted out by hand."""

import numpy as np

from jitter.analysis.execution.run_reader import divide_sync_calls
from jitter.core.names.kernels import SYNC
from jitter.core.step_key import StepKey
from jitter.lake.host_events import SyncCalls
from jitter.lake.records import RankStepRecord, SourceRecord, StepRecord
from tests.support.records import source_record

MAIN, AUTOGRAD, WATCHDOG = 11, 12, 99
THREADS = {0: np.array([MAIN, AUTOGRAD]), 1: np.array([MAIN]), 2: np.array([MAIN])}
EVENT, STREAM, FREE, BARRIER = "cudaEventSynchronize", "cudaStreamSynchronize", "cudaFree", "c10d::barrier"
Told = tuple[int, int, int, str]
"""Begin, end, thread and name of a call."""


def recording(name: str, rank: int, starts: dict[int, int]) -> SourceRecord:
    """One rank's, with a step of each of these numbers that begins then."""
    steps = [
        StepRecord(
            step=number,
            epoch=None,
            marker=None,
            start_ns=at,
            end_ns=at + 1,
            cut=False,
            launches_without_kernel=0,
            kernels=0,
            memory_activities=0,
            sequence="",
        )
        for number, at in starts.items()
    ]
    return source_record(name, rank=rank, steps=steps)


def beside(
    recordings: list[tuple[SourceRecord, list[Told]]], own: dict[tuple[int, int], str], asked: list[int]
) -> dict[tuple[int, int], list[Told]]:
    """The synchronizing calls of each rank in each step; `own` says which recording holds (step, rank)."""
    calls = {record.digest: _calls(told) for record, told in recordings}
    records = {record.digest: record for record, _ in recordings}
    held: dict[StepKey, dict[int, RankStepRecord]] = {}
    for (number, rank), name in own.items():
        step = next(step for step in records[name].steps if step.step == number)
        held.setdefault(StepKey(None, number), {})[rank] = RankStepRecord(records[name], step)
    keys = [StepKey(None, number) for number in asked]
    run = divide_sync_calls(records, calls, THREADS)
    found = {}
    for key in keys:
        syncs = run.of_step(held[key])
        for rank in held[key]:
            (first,), (count,) = syncs.of(np.array([rank]))
            times = zip(syncs.start_ns[first : first + count], syncs.end_ns[first : first + count], strict=True)
            found[key.step, rank] = [
                (int(begin), int(end), int(thread), call.name if call.kind == SYNC else "comes to " + call.name)
                for (begin, end), (call, thread) in zip(times, syncs.by(rank), strict=True)
            ]
    return found


def _calls(told: list[Told]) -> SyncCalls:
    begin, end, thread = (np.array([call[field] for call in told], np.int64) for field in range(3))
    names = tuple(call[3] for call in told)
    return SyncCalls(begin, end, thread, np.array([name == BARRIER for name in names], np.bool_), names)


def test_each_steps_calls_by_rank():
    """A call between two steps is the earlier's, one at a step's begin is its own, one before all steps is nobody's."""
    first = [(90, 95, MAIN, FREE), (100, 105, MAIN, EVENT), (199, 260, AUTOGRAD, STREAM), (200, 210, MAIN, EVENT)]
    other = [(5, 6, MAIN, STREAM), (15, 16, MAIN, EVENT), (35, 36, MAIN, STREAM), (900, 901, MAIN, FREE)]
    found = beside(
        [(recording("a", 0, {1: 100, 2: 200}), first), (recording("b", 1, {1: 10, 2: 20, 3: 30}), other)],
        {(1, 0): "a", (2, 0): "a", (1, 1): "b", (2, 1): "b", (3, 1): "b"},
        [1, 2, 3],
    )
    assert found == {(1, 0): first[1:3], (2, 0): first[3:], (1, 1): other[1:2], (2, 1): [], (3, 1): other[2:]}


def test_of_threads_that_launch():
    """Each rank's own: the other's launching thread is no matter; the ranks after count on as if it were not there."""
    first = [(10, 11, WATCHDOG, EVENT), (12, 13, MAIN, STREAM), (14, 90, WATCHDOG, EVENT), (15, 16, AUTOGRAD, FREE)]
    other = [(20, 21, AUTOGRAD, FREE), (22, 23, MAIN, EVENT), (24, 25, WATCHDOG, FREE)]
    found = beside(
        [(recording("a", 0, {1: 0}), first), (recording("b", 1, {1: 0}), other)], {(1, 0): "a", (1, 1): "b"}, [1]
    )
    assert found == {(1, 0): [first[1], first[3]], (1, 1): [other[1]]}


def test_of_two_recordings_of_one_rank_the_one_that_holds_the_step_tells():
    """Both have step 2: whether the one that holds it has the steps before it or those after it."""
    early, late = recording("early", 0, {1: 100, 2: 200}), recording("late", 0, {2: 5000, 3: 5100})
    first = [(110, 111, MAIN, FREE), (210, 211, MAIN, FREE)]
    second = [(5010, 5011, MAIN, EVENT), (5110, 5111, MAIN, STREAM)]
    both = [(early, first), (late, second)]
    for holds, of_two in (("early", first[1:]), ("late", second[:1])):
        found = beside(both, {(1, 0): "early", (2, 0): holds, (3, 0): "late"}, [1, 2, 3])
        assert found == {(1, 0): first[:1], (2, 0): of_two, (3, 0): second[1:]}


def test_a_barrier_is_two_calls():
    """The rank comes to it, and waits for the last one of its step: what the barrier takes then is the host's time."""
    first = [(10, 11, MAIN, STREAM), (12, 19, MAIN, BARRIER), (20, 24, MAIN, BARRIER), (31, 35, MAIN, BARRIER)]
    other = [(112, 115, MAIN, BARRIER), (116, 120, MAIN, BARRIER), (121, 122, MAIN, EVENT), (130, 139, MAIN, BARRIER)]
    found = beside(
        [(recording("a", 0, {1: 0, 2: 30}), first), (recording("b", 1, {1: 100, 2: 125}), other)],
        {(1, 0): "a", (2, 0): "a", (1, 1): "b", (2, 1): "b"},
        [1, 2],
    )

    def both(begin: int, end: int) -> list[Told]:
        return [(begin, end, MAIN, f"comes to {BARRIER}"), (begin, end, MAIN, BARRIER)]

    assert found == {
        (1, 0): [first[0], *both(12, 16), *both(20, 20)],
        (2, 0): both(31, 31),
        (1, 1): [*both(112, 112), *both(116, 116), other[2]],
        (2, 1): both(130, 135),
    }


def test_some_of_the_steps():
    """A step that nobody asks for keeps its calls from those before it."""
    told = [(at, at + 1, MAIN, STREAM) for at in (10, 20, 21, 30)]
    own = dict.fromkeys([(1, 0), (2, 0), (3, 0)], "a")
    found = beside([(recording("a", 0, {1: 10, 2: 20, 3: 30}), told)], own, [1, 3])
    assert found == {(1, 0): told[:1], (3, 0): told[3:]}


def test_who_calls_nothing_has_none():
    """Neither a rank that made none, beside one that did, nor any in a run of such."""
    told = [(10, 11, MAIN, EVENT)]
    silent, other = recording("a", 0, {1: 0}), recording("b", 2, {1: 0})
    assert beside([(silent, []), (other, told)], {(1, 0): "a", (1, 2): "b"}, [1]) == {(1, 0): [], (1, 2): told}
    assert beside([(silent, [])], {(1, 0): "a"}, [1]) == {(1, 0): []}


def test_a_rank_that_is_in_no_step_has_none():
    """Not before, between or after those that are: and of several at once each its own."""
    told = {1: [(10, 11, MAIN, EVENT)], 3: [(12, 13, MAIN, FREE), (14, 15, MAIN, FREE)]}
    records = {rank: recording(str(rank), rank, {1: 0}) for rank in told}
    held = {rank: RankStepRecord(record, record.steps[0]) for rank, record in records.items()}
    calls = {str(rank): _calls(its) for rank, its in told.items()}
    threads = dict.fromkeys(told, np.array([MAIN]))
    syncs = divide_sync_calls({record.digest: record for record in records.values()}, calls, threads).of_step(held)
    _, count = syncs.of(np.array([0, 1, 2, 3, 4]))
    assert count.tolist() == [0, 1, 0, 2, 0]
    assert [syncs.by(rank) for rank in (0, 2, 4)] == [[], [], []]
