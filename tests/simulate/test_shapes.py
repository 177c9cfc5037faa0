"""Every shape of job against the simulation oracle, and the rules of streams, events, collectives, queues and syncs."""

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import jitter
from jitter.core.errors import JitterError, UsageError
from jitter.simulate import Fault, Job, RankRecording, Run, simulate, write
from jitter.simulate.program import GPU_KINDS, Operation, Plan, Program, number_operations
from jitter.simulate.shapes import SHAPES
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.kernel_truth import kernel_truth
from tests.support.metric_assertions import assert_matches_truth
from tests.support.oracles.simulation import simulation_oracle
from tests.support.simulated import ingest_run
from tests.support.true_dependencies import true_dependencies

pytestmark = pytest.mark.slow

SIZE = {"ranks": 8, "gpus_per_node": 4, "steps": 2, "kernels": 110, "seed": 4, "first_step": 10}
MODIFIERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "queue": {"launch_queue": 12},
    "syncs": {"syncs": frozenset({"loss", "before", "after"})},
    "varied": {"variable_work": 0.2, "autotuned": 0.5, "side_stream": 21},
    "cpu": {"cpu_bound": True, "launch_queue": 200, "second_thread": False},
}


def job(shape: str, modifier: str = "plain", **more: Any) -> Job:
    return Job(**{**SIZE, **MODIFIERS[modifier], **more}, shape=shape)


def global_times(recording: RankRecording) -> tuple[Any, Any, Any, Any]:
    zero = recording.clock.offset_ns
    columns = (recording.launch_start_ns, recording.launch_end_ns, recording.start_ns, recording.end_ns)
    return tuple(column - zero for column in columns)  # type: ignore[return-value]


@fuzz
@pytest.mark.parametrize(("shape", "modifier"), some_of(product(SHAPES, MODIFIERS), 4))
def test_against_the_oracle(shape: str, modifier: str):
    faults = [
        Fault.parse("cpu_stall:rank=1,step=11,kernel=17,ms=0.7"),
        Fault.parse("slow_link:rank=6,factor=3"),
        Fault.parse("missing_kernel:rank=2,step=10,kernel=1"),
        Fault.parse("extra_kernel:rank=5,step=11,kernel=8,ms=0.2"),
        Fault.parse("pause:every=2,ms=0.4"),
    ]
    run = simulate(job(shape, modifier), faults)
    wanted = simulation_oracle(run)
    for recording in run.ranks():
        program = run.plan.programs[run.plan.stage[recording.rank]]
        lengths = (len(program.prologue), *[len(program.step)] * run.job.steps, len(program.epilogue))
        gpu = [
            wanted[recording.rank, phase, at]
            for phase, length in enumerate(lengths)
            for at in range(length)
            if (recording.rank, phase, at) in wanted and _ops(program, phase, run.job.steps)[at].kind in GPU_KINDS
        ]
        assert np.array(gpu).T.tolist() == [column.tolist() for column in global_times(recording)]
        calls = [
            wanted[recording.rank, phase, at][:2]
            for phase, length in enumerate(lengths)
            for at in range(length)
            if (recording.rank, phase, at) in wanted and _ops(program, phase, run.job.steps)[at].kind not in GPU_KINDS
        ]
        zero = recording.clock.offset_ns
        assert calls == [(call.start_ns - zero, call.end_ns - zero) for call in recording.calls]


def _ops(program: Program, phase: int, steps: int) -> tuple[Operation, ...]:
    return program.prologue if phase == 0 else program.step if phase <= steps else program.epilogue


@pytest.mark.parametrize("shape", SHAPES)
def test_hosts_make_the_calls_that_wait_which_were_asked_for(shape: str):
    for recording in simulate(job(shape, "syncs")).ranks():
        calls = {call.name for call in recording.calls if "Synchronize" in call.name}
        reads_loss = any(op.copy == "d2h" for op in recording.ops())
        assert {"cudaDeviceSynchronize", "cudaStreamSynchronize"} <= calls or (shape == "pipeline" and not reads_loss)


def test_gathering_ahead_is_held_by_the_host():
    """A layer's parameters are gathered beside the layer before, and not before the one before that is done."""
    run = simulate(job("sharded"))
    for recording in run.ranks():
        _, _, start, end = global_times(recording)
        events = [call for call in recording.calls if call.name == "cudaEventSynchronize" and call.step == 11]
        gathers = [
            at
            for at, op in enumerate(recording.ops())
            if op.collective == "all_gather" and recording.in_step[at] and recording.step[at] == 11
        ]
        n_layers = len(gathers) // 2
        assert len(events) == len(gathers) - 4 > 0
        first_compute = {
            # of each layer forward: the first main kernel that waits for its gathering
            number: min(int(s) for s in start[gather + 1 :] if s >= end[gather])
            for number, gather in enumerate(gathers[:n_layers])
        }
        assert all(start[gathers[n + 1]] < first_compute[n] for n in range(2, n_layers - 1))


def test_pipeline_stages_run_different_programs():
    run = simulate(job("pipeline", stages=4))
    programs = run.plan.programs
    assert len({tuple(op.name for op in one.step) for one in programs}) == 4
    recordings = list(run.ranks())
    pairs = [{group.name for group in one.groups.values() if group.name.startswith("pipe")} for one in recordings]
    assert pairs[::2] == [{"pipe0"}, {"pipe0", "pipe1"}, {"pipe1", "pipe2"}, {"pipe2"}]
    said = [op.collective for op in programs[1].step if op.group == "pipe1"]
    assert said == ["send"] * 2 + ["send_recv"] * 6 + ["recv"] * 2
    assert [op.collective for op in programs[3].step if op.group == "pipe2"] == ["recv", *["send_recv"] * 7, "send"]


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 2), (2, 1), (4, 2), (4, 7), (8, 3)])
def test_pipelines_of_any_depth_come_to_an_end(stages: int, microbatches: int):
    run = simulate(job("pipeline", stages=stages, microbatches=microbatches, kernels=160))
    assert all(time is None or time > 0 for time in run.step_times().values())


def test_ranks_that_wait_for_each_other_are_told():
    def stage(*groups: str) -> Program:
        ops = [Operation("x", "collective", "cudaLaunchKernel", 7, group=name, collective="send") for name in groups]
        return Program(number_operations(ops))

    plan = Plan(
        (stage("a", "b"), stage("b", "a")), np.array([0, 1]), {"a": np.zeros(2, np.int64), "b": np.zeros(2, np.int64)}
    )
    with pytest.raises(JitterError, match="wait for each other: stage 0 in send 1 of group a, stage 1 in send 1 of"):
        list(Run(Job(ranks=2), (), plan).ranks())


@pytest.mark.parametrize("shape", SHAPES)
def test_the_step_has_the_kernels_asked_for(shape: str):
    for kernels in (110, 251):
        run = simulate(job(shape, kernels=kernels, steps=1))
        counts = [one.kernels for one in run.plan.programs]
        if shape == "pipeline":
            # the first and the last stage have kernels of their own; the rest is rounded to micro-batches
            assert kernels - 30 < min(counts) <= max(counts) <= kernels + 25
        else:
            assert counts == [kernels]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_cpu_bound_host_is_never_ahead(shape: str):
    """Some rank's: the others, if their hosts began earlier, stay ahead of their GPUs, which wait for that one's."""

    def least_ahead(cpu_bound: bool) -> float:
        found = []
        for recording in simulate(job(shape, cpu_bound=cpu_bound, stages=1, microbatches=2)).ranks():
            compute = np.array([op.kind == "compute" for op in recording.ops()])
            late = recording.start_ns - recording.launch_end_ns > 20_000
            found.append(float(late[compute & recording.in_step].mean()))
        return min(found)

    assert least_ahead(True) < 0.2
    assert least_ahead(False) > 0.5


def test_variable_work_moves_grids_and_durations_together():
    run, same = simulate(job("tensor_parallel", variable_work=0.3)), simulate(job("tensor_parallel"))
    factors = []
    for one, other in zip(run.ranks(), same.ranks(), strict=True):
        longer = (one.end_ns - one.start_ns) / (other.end_ns - other.start_ns)
        wider = one.grid_x / other.grid_x
        sized = np.array([op.sized for op in one.ops()])
        assert 0.2 < sized.mean() < 0.8
        assert longer[sized] == pytest.approx(wider[sized], rel=0.02)
        assert (wider[~sized] == 1).all()
        for step in (10, 11):
            mine = sized & one.in_step & (one.step == step)
            assert np.ptp(longer[mine]) < 0.02
            factors.append(float(longer[mine].mean()))
    assert 0.7 <= min(factors) < 0.85
    assert 1.15 < max(factors) <= 1.3
    assert len({round(factor, 3) for factor in factors}) > 12


def test_autotuned_names_differ_by_rank_and_nothing_else_does():
    run, same = simulate(job("sharded", autotuned=0.5)), simulate(job("sharded"))
    names = [[op.name for op in one.ops()] for one in run.ranks()]
    differing = [at for at, seen in enumerate(zip(*names, strict=True)) if len(set(seen)) > 1]
    assert 4 < len(differing) < len(names[0]) / 4
    for one, other in zip(run.ranks(), same.ranks(), strict=True):
        assert one.start_ns.tolist() == other.start_ns.tolist()


def test_the_side_stream_waits_and_is_waited_for():
    run = simulate(job("data_parallel", side_stream=21))
    (program,) = run.plan.programs
    aside = [at for at, op in enumerate(program.step) if op.stream == 21]
    assert len(aside) > 20
    back = {other for op in program.step if op.stream == 7 for other in op.after if program.step[other].stream == 21}
    there = [op.after for op in program.step if op.stream == 21 and op.after]
    assert back
    assert len(there) == len(back)
    assert back <= set(aside)


@pytest.mark.parametrize("shape", SHAPES)
def test_step_times_are_from_meeting_to_meeting(shape: str):
    run = simulate(job(shape))
    ends: dict[int, int] = {}
    for recording in run.ranks():
        _, _, _, end = global_times(recording)
        for at, op in enumerate(recording.ops()):
            if op.group == "world" and recording.in_step[at]:
                step = int(recording.step[at])
                ends[step] = max(ends.get(step, 0), int(end[at]))
    assert run.step_times() == {10: None, 11: ends[11] - ends[10]}


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"shape": "tensor_data", "tensor": 3}, "tensor=3 does not divide the 8 ranks"),
        ({"shape": "pipeline", "stages": 5}, "stages=5 does not divide"),
        ({"shape": "pipeline", "kernels": 30}, "give at least"),
        ({"shape": "sharded", "kernels": 12}, "give at least"),
        ({"shape": "expert", "experts": 0}, "experts=0 is not 1 or more"),
        ({"side_stream": 7}, "stream 7 is taken"),
        ({"shape": "tensor_parallel", "launch_queue": 1}, "at least 2 launches"),
        ({"shape": "tensor_parallel", "syncs": frozenset({"often"})}, "no sync is called 'often'"),
        ({"shape": "tensor_parallel", "variable_work": 2}, "variable_work is a fraction"),
    ],
)
def test_impossible_jobs(wrong: dict[str, Any], complaint: str):
    with pytest.raises(UsageError) as raised:
        simulate(Job(**{**SIZE, **wrong}))
    assert complaint in str(raised.value) + str(raised.value.hint)


def test_needed_kernels_are_enough():
    for shape in ("tensor_parallel", "sharded", "tensor_data", "expert", "pipeline"):
        with pytest.raises(UsageError) as raised:
            simulate(job(shape, kernels=8))
        needed = int("".join(filter(str.isdigit, str(raised.value.hint))))
        simulate(job(shape, kernels=needed))


def test_dependencies_are_those_of_the_recordings():
    """Each that is said to hold an operation does, in as many steps of as many ranks as it says."""
    for shape in SHAPES:
        run = simulate(job(shape, "queue", syncs=frozenset({"loss"})))
        for stage, found in true_dependencies(run).items():
            assert {one.kind for one in found} == {"event", "sync", "queue"} or shape == "pipeline"
            of_step: list[Any] = []
            for recording in run.ranks(run.plan.ranks_of(stage).tolist()):
                times = np.array(global_times(recording))
                for step in run.job.step_numbers:
                    mine = recording.in_step & (recording.step == step)
                    of_step.append((recording.rank, times[:, mine]))
            assert all(a <= b for (a, _), (b, _) in pairwise(of_step))
            for one in found:
                if one.steps_back or one.kind != "event":
                    continue
                cells = [t[2, one.ordinal] == t[3, one.on_ordinal] for _, t in of_step]
                assert sum(cells) == one.binding
                assert all(t[2, one.ordinal] >= t[3, one.on_ordinal] for _, t in of_step)
            for one in found:
                if one.kind == "queue" and not one.steps_back:
                    assert sum(t[1, one.ordinal] == t[2, one.on_ordinal] for _, t in of_step) == one.binding


def the_run(shape: str) -> Run:
    more = {"syncs": frozenset({"loss", "before"}), "side_stream": 21, "autotuned": 0.3, "launch_queue": 40}
    sizes = {"ranks": 4, "gpus_per_node": 2, "kernels": 110, "steps": 2, "seed": 3}
    return simulate(Job(**sizes, **more, shape=shape, marker="profiler", epoch=None))  # type: ignore[arg-type]


def rows(lake: Path, under: str) -> pd.DataFrame:
    return pd.concat(pd.read_parquet(path) for path in sorted((lake / under).rglob("*.parquet")))


@fuzz
@pytest.mark.parametrize(("shape", "form"), some_of(product(SHAPES, ["kineto", "nsys", "rocpd"]), 2))
def test_a_job_of_any_shape_arrives(tmp_path: Path, shape: str, form: str):
    run = the_run(shape)
    ingest_run(run, tmp_path, form)
    recordings = list(run.ranks())
    if form != "rocpd":  # RCCL has one name for all collectives
        assert_matches_truth(jitter.open(tmp_path / "lake"), kernel_truth(run))
    host = rows(tmp_path / "lake", "host")
    syncs = host[host["kind"] == "sync"]
    wanted = sorted(
        (call.start_ns, call.end_ns) for one in recordings for call in one.calls if "Synchronize" in call.name
    )
    assert sorted(zip(syncs["start_ns"], syncs["end_ns"], strict=True)) == wanted
    kernels = rows(tmp_path / "lake", "kernels")
    collectives = kernels[kernels["kind"] == "collective"]
    if form == "kineto":
        groups = {group.number: list(group.ranks) for one in recordings for group in one.groups.values()}
        used = {one.groups[op.group].number for one in recordings for op in one.operations if op.group}
        said = {
            name: list(ranks) for name, ranks in zip(collectives["group_name"], collectives["group_ranks"], strict=True)
        }
        assert said == {name: groups[name] for name in used}
        assert (collectives["group_size"] == collectives["group_ranks"].str.len()).all()
    else:
        assert collectives["group_name"].isna().all()


def test_numbers_of_collectives_in_their_groups(tmp_path: Path):
    run = the_run("tensor_data")
    write(run, tmp_path / "traces", "kineto", sequence=True)
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake")
    kernels = rows(tmp_path / "lake", "kernels")
    collectives = kernels[kernels["kind"] == "collective"].sort_values("start_ns")
    for (_, _), own in collectives.groupby(["rank", "group_name"]):
        assert own["sequence"].tolist() == list(range(1, len(own) + 1))
