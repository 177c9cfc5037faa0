"""Invariants of the simulated events, each checked from the recordings, in global time."""

import pytest

from jitter.core.errors import UsageError
from jitter.simulate import Fault, Job, RankRecording, simulate
from jitter.simulate import run as run_module
from jitter.simulate.job import MAIN_STREAM
from jitter.simulate.shapes import SHAPES

JOB = Job(ranks=3, steps=3, kernels=60, seed=5, first_step=2000, gpus_per_node=2, buckets=3)


def rows(recording: RankRecording):
    return [(at, op) for at, op in enumerate(recording.ops())]


def test_the_step_has_the_kernels_asked_for():
    for kernels in (8, 9, 60, 903):
        (recording,) = simulate(Job(ranks=1, steps=2, kernels=kernels)).ranks()
        kinds = [op.kind for at, op in rows(recording) if recording.in_step[at] and recording.step[at] == 1]
        assert kinds.count("compute") + kinds.count("collective") == kernels
        assert kinds.count("collective") == Job(kernels=kernels).all_reduces
        assert kinds.count("memory") == 4


def test_launches_follow_each_other_and_backward_has_its_thread():
    for recording in simulate(JOB).ranks():
        assert (recording.launch_start_ns[1:] >= recording.launch_end_ns[:-1]).all()
        threads = {
            op.phase: {o.thread for o in recording.operations if o.phase == op.phase} for _, op in rows(recording)
        }
        assert threads["forward"] == {0}
        assert 1 in threads["backward"]
    (alone,) = simulate(Job(ranks=1, second_thread=False)).ranks()
    assert {op.thread for op in alone.operations} == {0}


def test_a_collective_waits_for_the_kernel_before_it_and_the_optimizer_for_the_collectives():
    for recording in simulate(JOB).ranks():
        ops = rows(recording)
        for at, op in ops:
            if op.kind == "collective":
                before = max(a for a, o in ops[:at] if o.kind == "compute" and o.stream == MAIN_STREAM)
                assert recording.start_ns[at] >= recording.end_ns[before]
            if op.phase == "optimizer" and recording.in_step[at]:
                reduced = [a for a, o in ops[:at] if o.kind == "collective" and recording.step[a] == recording.step[at]]
                assert recording.start_ns[at] >= recording.end_ns[reduced].max()


def test_markers_hold_their_steps_launches_and_nothing_else():
    for recording in simulate(JOB).ranks():
        markers = {r.step: r for r in recording.steps}
        assert list(markers) == [2000, 2001, 2002]
        assert markers[2001].text == f"epoch1_step2001-rank{recording.rank}-640_8-640_8-640_8"
        inside = [[r.start_ns <= t <= r.end_ns for r in markers.values()] for t in recording.launch_start_ns.tolist()]
        assert [any(i) for i in inside] == recording.in_step.tolist()
        assert (~recording.in_step).sum() == JOB.warmup_kernels + JOB.tail_kernels
        loading = [r for r in recording.ranges if r.kind == "data_loading"]
        assert all(markers[r.step].start_ns < r.start_ns < r.end_ns < markers[r.step].end_ns for r in loading)
        assert len(loading) == 3


def test_no_markers():
    (recording,) = simulate(Job(ranks=1, marker="none")).ranks()
    assert recording.steps == []


def assert_same(one: RankRecording, other: RankRecording):
    for name in ("operation", "step", "start_ns", "end_ns", "launch_start_ns", "correlation", "grid_x"):
        assert (getattr(one, name) == getattr(other, name)).all(), name
    assert one.operations == other.operations
    assert one.ranges == other.ranges
    assert one.calls == other.calls


@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_computed_a_few_at_a_time_are_the_same(monkeypatch: pytest.MonkeyPatch, shape: str):
    job = Job(**{**vars(JOB), "ranks": 4, "shape": shape, "kernels": 110, "autotuned": 0.5, "variable_work": 0.2})
    faults = [Fault.parse("extra_kernel:rank=1,kernel=4"), Fault.parse("slow_gpu:rank=2,factor=2,steps=2001-2002")]
    whole = list(simulate(job, faults).ranks())
    monkeypatch.setattr(run_module, "_BLOCK_CELLS", 1)
    for one, other in zip(whole, simulate(job, faults).ranks(), strict=True):
        assert_same(one, other)
    assert_same(whole[2], next(iter(simulate(job, faults).ranks([2]))))


def test_seeds():
    first, again = (next(iter(simulate(JOB).ranks())) for _ in range(2))
    assert_same(first, again)
    other = next(iter(simulate(Job(**{**vars(JOB), "seed": 6})).ranks()))
    assert (first.start_ns != other.start_ns).any()


def test_every_recording_has_its_own_clock_and_states_utc_with_an_error():
    job = Job(ranks=8, gpus_per_node=4, clock_error_ns=2_000_000)
    recordings = list(simulate(job).ranks())
    clocks = [r.clock for r in recordings]
    assert len({c.offset_ns for c in clocks}) == 8
    utc_of_zero = [c.utc_epoch_ns + c.offset_ns for c in clocks]
    assert len(set(utc_of_zero)) == 2  # one a node
    assert 0 < max(utc_of_zero) - min(utc_of_zero) < 20_000_000
    assert {r.host for r in recordings} == {"node0000", "node0001"}
    moved = recordings[1].moved(500)
    assert (moved.start_ns - moved.clock.offset_ns == recordings[1].start_ns - clocks[1].offset_ns).all()
    assert moved.ranges[0].start_ns == recordings[1].ranges[0].start_ns + 500


@pytest.mark.parametrize("wrong", [{"ranks": 0}, {"kernels": 7}, {"noise": 1.0}, {"kernels": 20, "buckets": 9}])
def test_impossible_jobs(wrong):
    with pytest.raises(UsageError):
        Job(**wrong)
    with pytest.raises(UsageError, match="ranks 0 to 2"):
        list(simulate(JOB).ranks([3]))


FACTOR = 0.25
SIZE = {"ranks": 4, "steps": 3, "kernels": 60, "seed": 5}


def kernels(recording: RankRecording, kind: str) -> list[tuple[int, int, int]]:
    """Position, start and end of each kernel of a kind."""
    times = zip(recording.ops(), recording.start_ns.tolist(), recording.end_ns.tolist(), strict=True)
    return [(at, start, end) for at, (op, start, end) in enumerate(times) if op.kind == kind]


def time_beside(start: int, end: int, collectives: list[tuple[int, int, int]]) -> int:
    """How much of a time lies in any of these, which may overlap."""
    found, now = 0, start
    for _, begin, over in sorted(collectives, key=lambda one: one[1]):
        more = min(over, end) - max(begin, now)
        if more > 0:
            found, now = found + more, min(over, end)
    return found


@pytest.mark.parametrize("options", [{"buckets": 5}, {"shape": "sharded"}])
def test_kernels_beside_collectives_take_longer(options: dict[str, object]):
    alone = simulate(Job(**SIZE, **options)).ranks()  # type: ignore[arg-type]
    slowed = simulate(Job(**SIZE, **options, interference=FACTOR)).ranks()  # type: ignore[arg-type]
    beside = 0
    for one, other in zip(alone, slowed, strict=True):
        collectives = kernels(other, "collective")
        for (at, start, end), (_, begin, over) in zip(kernels(one, "compute"), kernels(other, "compute"), strict=True):
            lost = time_beside(begin, over, [one for one in collectives if one[0] < at]) * FACTOR / (1 + FACTOR)
            assert over - begin == pytest.approx(end - start + lost, abs=1)
            beside += lost > 0
    assert beside > 10


def test_it_is_not_below_zero():
    with pytest.raises(UsageError, match="interference"):
        Job(interference=-0.1)
