"""The replay against the slow one, with some ranks' own times at the median."""

from pathlib import Path

import numpy as np
import pytest
from examined_jobs import lake_of_run, on_disk, small
from slow_replay import Op, Own, Rule, medians, own_times, replay, transfers_of

from jitter.replay import CPU, GPU, START, Repairs, Replay
from jitter.simulate import Fault, Run, simulate

FAULTS = [
    Fault.parse("cpu_stall:rank=1,step=2,kernel=9,ms=1.5"),
    Fault.parse("slow_gpu:rank=2,factor=1.4"),
    Fault.parse("late_start:rank=0,step=3,ms=2"),
]
JOBS = {
    "overlap": small("data_parallel"),
    "groups": small("tensor_data"),
    "syncs and a side stream": small("sharded", syncs=frozenset({"loss", "before", "after"}), side_stream=21),
    "a full queue": small("tensor_parallel", launch_queue=12),
}


def recorded_of(run: Run, lake) -> dict[int, list[list[Op]]]:
    """Each rank's steps from its files: activities by ordinal, calls that wait where they began."""
    found = {}
    for recording in run.ranks():
        steps = []
        for number in run.job.step_numbers:
            rows, syncs = on_disk(lake, recording.rank, number)
            ops = [
                (row.launch_start_ns, 0, Op(row.kind, row.kernel_name, row.stream, *times))
                for row in rows.itertuples()
                for times in [(row.launch_start_ns, row.launch_end_ns, row.start_ns, row.end_ns)]
            ]
            ops += [
                (call.start_ns, 1, Op("sync", call.name, None, call.start_ns, call.end_ns, None, None))
                for call in syncs.itertuples()
            ]
            in_order = [op for _, _, op in sorted(ops, key=lambda one: one[:2])]
            zero = recording.clock.offset_ns
            moved = [
                op._replace(
                    **{f: v - zero for f in ("call", "back", "start", "end") if (v := getattr(op, f)) is not None}
                )
                for op in in_order
            ]
            steps.append(moved)
        found[recording.rank] = steps
    return found


@pytest.mark.parametrize("name", JOBS)
def test_repairs_give_the_same_ends(tmp_path: Path, name: str):
    run = simulate(JOBS[name], FAULTS)
    lake = lake_of_run(run, tmp_path)
    examined = lake.examination()
    job = examined.run
    assert list(job.programs) == [0]
    program, rules = job.programs[0], job.rules[0]
    recorded = recorded_of(run, lake)
    assert {tuple((op.kind, op.name) for op in step) for steps in recorded.values() for step in steps} == {
        tuple((["compute", "collective", "memory", "sync"][op.kind], op.name) for op in program.operations)
    }
    streams = {op.lane: own.stream for op, own in zip(program.operations, recorded[0][0], strict=True) if own.stream}
    rule = Rule(
        rules.by_place, [streams[lane] for lane in range(len(streams))], rules.launch_ns, rules.stream_ns, rules.queue
    )
    if name == "a full queue":
        assert rule.queue == 12
    names = [op.group for op in run.plan.programs[0].step if op.kind in ("compute", "collective", "memory", "sync")]
    recording_groups = dict(run.plan.groups.items())

    def group(rank: int, at: int) -> object:
        return names[at], int(recording_groups[names[at]][rank])

    own = own_times(recorded, rule)
    usual = medians(own, sorted(recorded))
    transfers = transfers_of(recorded, group)
    first_kernel = next(
        at for at, op in enumerate(recorded[0][0]) if op.kind == "compute" and op.stream == run.job.main_stream
    )
    scenarios = {
        "nothing": [],
        "one host": [(1, CPU)],
        "one start and one GPU": [(0, START), (2, GPU)],
        "everything": [(rank, part) for rank in recorded for part in (START, CPU, GPU)],
    }
    zeros = {recording.rank: recording.clock.offset_ns for recording in run.ranks()}
    replayed = {
        key: [end - zeros[key[0]] for end in ends]
        for key, ends in replayed_ends(examined, list(scenarios.values())).items()
    }
    for at, which in enumerate(scenarios.values()):
        mixed = {}
        for (rank, number, op), mine in own.items():
            other = usual[rank, number, op]
            host, gpu = (rank, START if op <= first_kernel else CPU) in which, (rank, GPU) in which
            mixed[rank, number, op] = Own(*(other if host else mine)[:3], *(other if gpu else mine)[3:])
        slow = replay(recorded, rule, mixed, group, transfers)
        assert slow.keys() == replayed.keys()
        wrong = {key: (slow[key], replayed[key][at]) for key in slow if abs(slow[key] - replayed[key][at]) > 1e-3}
        assert wrong == {}, list(scenarios)[at]
        assert at == 0 or any(end != replayed[key][0] for key, end in slow.items())


def replayed_ends(examined, scenarios) -> dict[tuple[int, int, int], list[float]]:
    """(rank, step, operation) -> its end in each scenario, on the rank's clock."""
    found = {}
    run = examined.run
    fast = Replay(run.programs, run.rules, run.meetings, run.schedule, len(scenarios))
    for number, work in examined.works():
        repairs = []
        for block in run.meetings.blocks:
            masks = [
                [[(rank, part) in which for rank in block.ranks] for which in scenarios] for part in (START, CPU, GPU)
            ]
            repairs.append(Repairs(*map(np.array, masks)))
        transfers = {meeting: np.repeat(took[None], len(scenarios), axis=0) for meeting, took in work.transfers.items()}
        for block, ends in zip(
            run.meetings.blocks, fast.step(work.blocks, repairs, transfers, np.zeros(len(scenarios))), strict=True
        ):
            for at, scenario_ends in enumerate(ends):
                for column, rank in enumerate(block.ranks):
                    if not np.isnan(scenario_ends[:, column]).any():
                        found[rank, number, at] = (scenario_ends[:, column] + examined.lake.origin_ns[rank]).tolist()
    return found
