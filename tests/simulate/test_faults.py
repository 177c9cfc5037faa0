"""Each fault does what it says, where it says, and nothing anywhere else."""

import numpy as np
import pytest

from jitter.core.errors import UsageError
from jitter.simulate import Fault, Job, RankRecording, simulate, truth_document

JOB = Job(ranks=3, steps=4, kernels=60, seed=2, first_step=10, buckets=2)


def pair(text: str) -> tuple[list[RankRecording], list[RankRecording]]:
    run = simulate(JOB, [Fault.parse(text)])
    return list(run.ranks()), list(run.without().ranks())


def of_step(recording: RankRecording, step: int, kernels: bool = True) -> list[int]:
    return [
        at
        for at, op in enumerate(recording.ops())
        if recording.in_step[at] and recording.step[at] == step and (op.kind != "memory" or not kernels)
    ]


def launch_delays(recording: RankRecording, step: int):
    which = of_step(recording, step)
    return recording.launch_start_ns[which] - recording.launch_start_ns[which[0]]


def durations(recording: RankRecording, step: int):
    """Of the compute kernels: a collective's own tells of the others."""
    which = [at for at in of_step(recording, step) if recording.operations[recording.operation[at]].kind == "compute"]
    return recording.end_ns[which] - recording.start_ns[which]


def same(one, other) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def test_cpu_stall():
    with_it, without = pair("cpu_stall:rank=1,step=12,kernel=17,ms=2")
    change = launch_delays(with_it[1], 12) - launch_delays(without[1], 12)
    assert change.tolist() == [0] * 17 + [2_000_000] * 43
    for step in (10, 11, 13):
        assert same(launch_delays(with_it[1], step), launch_delays(without[1], step))
    for rank in (0, 2):
        assert same(launch_delays(with_it[rank], 12), launch_delays(without[rank], 12))
    assert all(same(durations(with_it[r], s), durations(without[r], s)) for r in range(3) for s in range(10, 14))


def test_slow_cpu():
    with_it, without = pair("slow_cpu:ranks=0+2,steps=11-12,factor=3,kernels=10-19")
    for rank, step in ((0, 11), (2, 12)):
        between = np.diff(launch_delays(with_it[rank], step)) / np.diff(launch_delays(without[rank], step))
        assert between[10:18] == pytest.approx(3, rel=1e-3)
        assert between[:9] == pytest.approx(1)
        assert between[20:] == pytest.approx(1)
    assert same(launch_delays(with_it[0], 13), launch_delays(without[0], 13))
    assert same(launch_delays(with_it[1], 11), launch_delays(without[1], 11))


def test_slow_gpu_and_unequal_work():
    for kind in ("slow_gpu", "unequal_work"):
        with_it, without = pair(f"{kind}:rank=1,factor=1.5,every=3,kernels=5-9")
        change = durations(with_it[1], 12) / durations(without[1], 12)
        assert change[5:10] == pytest.approx(1.5, rel=1e-3)
        assert (np.delete(change, range(5, 10)) == 1).all()
        assert same(durations(with_it[1], 11), durations(without[1], 11))
        which = of_step(with_it[1], 12)[5:10]
        larger = with_it[1].grid_x[which] / without[1].grid_x[which]
        assert larger == pytest.approx(1.5 if kind == "unequal_work" else 1, rel=0.01)


@pytest.mark.parametrize("covered", [True, False])
def test_late_start(covered: bool):
    with_it, without = pair(f"late_start:rank=1,step=11,ms=6,loading={'yes' if covered else 'no'}")

    def lead(recording: RankRecording) -> int:
        marker = next(r for r in recording.steps if r.step == 11)
        return int(recording.launch_start_ns[of_step(recording, 11, kernels=False)[0]]) - marker.start_ns

    def loading(recording: RankRecording) -> int:
        one = next(r for r in recording.ranges if r.kind == "data_loading" and r.step == 11)
        return (one.end_ns or 0) - one.start_ns

    assert lead(with_it[1]) - lead(without[1]) == 6_000_000
    assert loading(with_it[1]) - loading(without[1]) == (6_000_000 if covered else 0)
    assert lead(with_it[0]) == lead(without[0])


def test_extra_and_missing_kernel():
    with_it, without = pair("extra_kernel:rank=1,step=12,kernel=17,ms=0.5")
    assert len(of_step(with_it[1], 12)) == 61
    assert [len(of_step(r, 12)) for r in (with_it[0], with_it[2])] == [60, 60]
    assert len(of_step(with_it[1], 11)) == 60
    added = with_it[1].operations[with_it[1].operation[of_step(with_it[1], 12)[17]]]
    assert "index_elementwise" in added.name
    assert durations(with_it[1], 12)[17] == pytest.approx(500_000, rel=0.1)
    assert same(np.delete(durations(with_it[1], 12), 17), durations(without[1], 12))

    with_it, without = pair("missing_kernel:rank=2,steps=11-12,kernel=3")
    assert same(durations(with_it[2], 12), np.delete(durations(without[2], 12), 3))
    assert len(of_step(with_it[2], 13)) == 60


def test_several_added_kernels_keep_apart():
    faults = [
        Fault.parse("extra_kernel:rank=0,step=11,kernel=5,ms=1"),
        Fault.parse("extra_kernel:rank=2,kernel=2,ms=3"),
    ]
    run = simulate(JOB, faults)
    first, middle, last = run.ranks()
    assert [len(of_step(r, 11)) for r in (first, middle, last)] == [61, 60, 61]
    assert [len(of_step(r, 12)) for r in (first, middle, last)] == [60, 60, 61]
    assert durations(first, 11)[5] == pytest.approx(1_000_000, rel=0.1)
    assert durations(last, 11)[2] == pytest.approx(3_000_000, rel=0.1)


def test_slow_collective():
    with_it, without = pair("slow_collective:step=12,factor=5")

    def transfers(recordings: list[RankRecording], step: int):
        first = recordings[0]
        at = [a for a in of_step(first, step) if first.operations[first.operation[a]].kind == "collective"]
        arrived = np.max([r.start_ns[at] - r.clock.offset_ns for r in recordings], axis=0)
        return first.end_ns[at] - first.clock.offset_ns - arrived

    assert transfers(with_it, 12) / transfers(without, 12) == pytest.approx(5, rel=1e-3)
    assert same(transfers(with_it, 11), transfers(without, 11))


GROUPED = Job(ranks=8, steps=3, kernels=110, seed=2, first_step=10, shape="tensor_data", gpus_per_node=2)


def transfers_by_group(recordings: list[RankRecording], step: int) -> dict[tuple[str, int], int]:
    """(group, which of its collectives) -> from the last arrival to the end."""
    come: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for recording in recordings:
        counts: dict[str, int] = {}
        for at in of_step(recording, step):
            op = recording.operations[recording.operation[at]]
            if op.kind == "collective":
                number = recording.groups[op.group].number
                counts[number] = counts.get(number, 0) + 1
                zero = recording.clock.offset_ns
                span = int(recording.start_ns[at]) - zero, int(recording.end_ns[at]) - zero
                come.setdefault((number, counts[number]), []).append(span)
    return {key: spans[0][1] - max(start for start, _ in spans) for key, spans in come.items()}


def test_slow_link():
    run = simulate(GROUPED, [Fault.parse("slow_link:rank=5,step=11,factor=4")])
    with_it, without = list(run.ranks()), list(run.without().ranks())
    assert transfers_by_group(with_it, 10) == transfers_by_group(without, 10)
    mine = {group.number for group in with_it[5].groups.values()}
    assert len(mine) == 3
    slow, usual = transfers_by_group(with_it, 11), transfers_by_group(without, 11)
    assert {number for number, _ in slow} > mine
    for key, time in slow.items():
        assert time == pytest.approx(usual[key] * (4 if key[0] in mine else 1), abs=1)


def test_groups_have_noise_of_their_own():
    found = transfers_by_group(list(simulate(GROUPED).ranks()), 11)
    first = [time for (_, order), time in found.items() if order == 1]
    assert len(set(first)) == len(first) > 4


def host_times(recording: RankRecording, step: int):
    """Between the end of each call of a step and the start of the next, from the end of the loading on."""
    launched = zip(recording.launch_start_ns, recording.launch_end_ns, recording.step, strict=True)
    calls = [(call.start_ns, call.end_ns, call.step) for call in recording.calls]
    mine = sorted((start, end) for start, end, of in [*launched, *calls] if of == step)
    loaded = next(r.end_ns for r in recording.ranges if r.kind == "data_loading" and r.step == step)
    return np.array([start for start, _ in mine]) - np.array([loaded, *(end for _, end in mine[:-1])])


def test_pauses_come_in_turn():
    run = simulate(JOB, [Fault.parse("pause:every=3,ms=2")])
    with_it, without = list(run.ranks()), list(run.without().ranks())
    hit = set()
    for one, other in zip(with_it, without, strict=True):
        for step in JOB.step_numbers:
            longer = host_times(one, step) - host_times(other, step)
            assert set(longer.tolist()) <= {0, 2_000_000}
            if longer.any():
                hit.add((one.rank, step))
    assert hit == {(rank, step) for rank in range(3) for step in JOB.step_numbers if (rank + step) % 3 == 0}
    said = truth_document(run)
    assert said["faults"][0]["ranks"] == [0, 1, 2]
    assert [one["culprits"] for one in said["steps"]] == [[2], [1], [0], [2]]


def test_drift():
    with_it, without = pair("slow_gpu:rank=1,factor=1.6,drift=yes")
    grown = [float(np.mean(durations(with_it[1], step) / durations(without[1], step))) for step in JOB.step_numbers]
    assert grown == pytest.approx([1, 1.2, 1.4, 1.6], rel=1e-3)


def test_answers_of_a_pipeline_name_its_stages():
    job = Job(ranks=4, steps=2, kernels=110, shape="pipeline", stages=2, microbatches=2)
    said = truth_document(simulate(job, [Fault.parse("slow_gpu:rank=3,factor=2")]))
    assert [one["ranks"] for one in said["stages"]] == [[0, 1], [2, 3]]
    assert said["faults"][0]["gain_ns"] > 0
    assert "stages" not in truth_document(simulate(JOB))


def test_answers():
    run = simulate(
        JOB, [Fault.parse("cpu_stall:rank=1,step=12,kernel=17,ms=4"), Fault.parse("slow_gpu:rank=0,factor=1.3")]
    )
    said = truth_document(run)
    stall, slow = said["faults"]
    assert (stall["cause"], stall["ranks"], stall["steps"], stall["kernel"]) == ("cpu_launch", [1], [12], 17)
    assert (slow["cause"], slow["ranks"], slow["steps"]) == ("gpu_compute", [0], [10, 11, 12, 13])
    steps = {s["step"]: s for s in said["steps"]}
    assert steps[10]["step_time_ns"] is None
    assert steps[12]["culprits"] == [0, 1]
    assert steps[11]["culprits"] == [0]
    lost = [steps[s]["step_time_ns"] - steps[s]["healthy_step_time_ns"] for s in (11, 12, 13)]
    # the stall hides the slow kernels of the other rank behind it
    assert lost[1] > 3_000_000 > lost[0] > 200_000
    alone = simulate(JOB, [Fault.parse("cpu_stall:rank=1,step=12,kernel=17,ms=4")])
    assert truth_document(alone)["faults"][0]["gain_ns"] == pytest.approx(3_700_000, rel=0.1)
    assert run.without(run.faults[0]).faults == (run.faults[1],)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cpu_stal:rank=1", "no fault is called 'cpu_stal'"),
        ("cpu_stall:rank=1,ms=2", "needs kernel="),
        ("cpu_stall:kernel=1,ms=2", "needs rank="),
        ("cpu_stall:rank=1,kernel=1,ms=x", "ms=x is not a number of milliseconds"),
        ("cpu_stall:rank=5-2,kernel=1,ms=1", "rank=5-2 is not a number, a range"),
        ("cpu_stall:rank=1,kernel=-1,ms=1", "kernel=-1 is not a kernel index"),
        ("cpu_stall:rank=1,kernel=1,ms=0", "needs ms > 0"),
        ("cpu_stall:rank=1,kernel=1,ms=1,factor=2", "has no 'factor'"),
        ("slow_gpu:rank=1,rank=2,factor=2", "says rank twice"),
        ("slow_gpu:rank=1,factor=-1", "needs factor > 0"),
        ("slow_gpu:rank=1,factor", "has no 'factor'"),
        ("late_start:rank=1,ms=1,every=0", "needs every >= 1"),
        ("late_start:rank=1,ms=1,loading=maybe", "loading=maybe is not yes or no"),
    ],
)
def test_wrong_words(text: str, complaint: str):
    with pytest.raises(UsageError) as raised:
        Fault.parse(text)
    assert complaint in raised.value.message


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("slow_gpu:rank=3,factor=2", "is for rank 3"),
        ("slow_gpu:rank=1,factor=2,step=9", "is for no step"),
        ("slow_gpu:rank=1,factor=2,kernels=60-70", "a kernel that no step has"),
        ("missing_kernel:rank=1,kernel=60", "a kernel that no step has"),
        ("missing_kernel:rank=1,kernel=57", "is a collective"),
        ("pause:every=50,ms=1", "in no step of the job"),
    ],
)
def test_faults_that_the_job_cannot_have(text: str, complaint: str):
    with pytest.raises(UsageError) as raised:
        simulate(JOB, [Fault.parse(text)])
    assert complaint in raised.value.message


def test_parsing():
    fault = Fault.parse(" slow_cpu : rank=0-2+7 , every=10, factor=2.5,steps=20-40 ")
    assert fault == Fault("slow_cpu", frozenset({0, 1, 2, 7}), frozenset(range(20, 41)), 10, factor=2.5)
    assert [s for s in range(50) if fault.at_step(s)] == [20, 30, 40]
