"""Slow GPUs and what looks like them: steps that are graphs, slow copies, launches of some ranks alone."""

import json
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitter
from jitter.analysis.diagnosis.evidence import workload
from jitter.analysis.diagnosis.evidence.locations import name_gpus
from jitter.analysis.diagnosis.evidence.workload import _with_peers
from jitter.analysis.execution.run_reader import RunReader
from jitter.analysis.thresholds import THRESHOLDS
from jitter.core.formatting import format_numbers
from jitter.core.names.kernels import short_name
from jitter.lake.rank_places import RankPlace
from jitter.report.text.fix_list import describe_place, name_with_device
from jitter.simulate import Fault, Job, RankRecording, Run, simulate
from tests.accuracy.irregular.job import IrregularJob
from tests.accuracy.irregular.scoring import ingest_job
from tests.support import findings
from tests.support.databases import open_database
from tests.support.simulated import ingest_run, ingest_traces, run_ns, small, true_gain_ns, write_traces


class GraphedRun:
    """A run whose steps are one graph each, in the place of a `Run` where traces are written."""

    def __init__(self, run: Run) -> None:
        self.job: Job = run.job
        self._run = run

    def ranks(self, wanted: Any = None) -> Iterator[RankRecording]:
        """The recordings, each step's activities with the launch of its first."""
        for recording in self._run.ranks(wanted):
            follows = np.append(False, np.diff(recording.step) == 0)
            head = np.maximum.accumulate(np.where(follows, 0, np.arange(len(follows))))
            yield replace(
                recording,
                shares_launch=follows,
                correlation=recording.correlation[head],
                launch_start_ns=recording.launch_start_ns[head],
                launch_end_ns=recording.launch_end_ns[head],
                has_launch=recording.has_launch[head],
            )


@pytest.mark.parametrize("form", ["kineto", "nsys"])
def test_a_slow_gpu_in_graphs_is_found_and_priced(tmp_path: Path, form: str):
    slow = Fault.parse("slow_gpu:rank=2,factor=1.2")
    run = simulate(small("data_parallel", ranks=6, steps=6), [slow])
    graphed: Any = GraphedRun(run)
    found = ingest_run(graphed, tmp_path, form).diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause, culprit.confidence) == ((2,), "gpu_compute", "high")
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, slow), rel=0.05)
    assert found.conclusion.doubts == ()  # the kernels of a graph share a launch: none was lost


_WHOLE = """
    CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE AS
        SELECT min(start) AS start, max("end") AS "end", deviceId, contextId, 7 AS streamId, correlationId, globalPid,
            3 AS graphId, 4 AS graphExecId
        FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId > {first} GROUP BY correlationId;
    DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId > {first};
"""
"""Records graphs, those launched after `first`, as a whole."""


def test_a_late_rank_that_others_await_in_whole_graphs_comes_first_and_nobody_is_cleared(tmp_path: Path):
    late = Fault.parse("late_start:rank=2,steps=4-6,ms=3")
    run: Any = GraphedRun(simulate(small("data_parallel", ranks=6, steps=8), [late]))
    for trace in write_traces(run, tmp_path / "traces", "nsys"):
        with open_database(trace) as database:
            launches = "SELECT DISTINCT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY 1"
            first = [number for (number,) in database.execute(launches)][2]
            database.executescript(_WHOLE.format(first=first))
    found = ingest_traces(tmp_path).diagnose()
    culprit = found.findings[0]
    assert (culprit.ranks, culprit.cause, culprit.is_of_unknown_cost) == ((2,), "late_start", True)
    assert "CUDA graphs without their kernels may hold collectives" in found.verdict
    assert any(note.startswith("CUDA graphs were recorded as a whole") for note in found.notes)


@pytest.mark.parametrize(
    ("form", "ranks", "factor", "memory"),
    [
        ("kineto", 6, 300, b"Pageable"),
        ("kineto", 6, 300, b"Pinned"),
        ("nsys", 6, 300, b""),
        ("kineto", 4, 40, b"Pageable"),
    ],
)
def test_slow_copies_are_named_and_priced(tmp_path: Path, form: str, ranks: int, factor: int, memory: bytes):
    """GPUs differ by 2%, but not in copies alone. Also where the other ranks copy from pinned `memory`."""
    slow = Fault.parse(f"slow_copies:rank=2,factor={factor}")
    run = simulate(small("data_parallel", ranks=ranks, steps=6, kernels=240), [slow])
    for rank, path in enumerate(write_traces(run, tmp_path / "traces", form)):
        if memory and rank != 2:
            path.write_bytes(path.read_bytes().replace(b"Pageable", memory))
    (culprit,) = ingest_traces(tmp_path).diagnose().culprits
    assert (culprit.ranks, culprit.cause, culprit.confidence) == ((2,), "slow_copies", "high")
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, slow), rel=0.05)
    assert any("in copies between host and GPU" in line for line in culprit.evidence)


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ("gpu_pause:rank=2,kernel=60,ms=1", "between kernels that were launched before"),
        ("gpu_pause:rank=2,kernel=60,step=3,ms=8", "between kernels that were launched before"),
        ("slow_gpu:rank=2,kernels=60,step=3,factor=300", "in 1 launch of 5 times the usual length or more"),
    ],
)
@pytest.mark.parametrize("form", ["kineto", "nsys"])
def test_a_gpu_that_pauses_is_no_slow_one(tmp_path: Path, form: str, fault: str, where: str):
    """Nothing takes longer, or one launch of many of its kernel: another process has the GPU, or an error."""
    pause = Fault.parse(fault)
    run = simulate(small("data_parallel", ranks=6, steps=6, kernels=240), [pause])
    culprit = ingest_run(run, tmp_path, form).diagnose().culprits[0]
    assert (culprit.ranks, culprit.cause, culprit.cause_certainty) == ((2,), "gpu_pause", "likely")
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, pause), rel=0.05)
    assert any(where in line for line in culprit.evidence)


@pytest.mark.parametrize("on_main", [(2,), tuple(range(6))])
def test_a_rank_whose_collectives_block_its_kernels_does_not_pause(tmp_path: Path, on_main: tuple[int, ...]):
    """Its GPU runs a collective where the others compute beside one; where all ranks do so, none is slower."""
    job = IrregularJob(5, "overlapped", 6, 8, 30, "streams", transfer=0.2, on_main=on_main)
    found = ingest_job(job, tmp_path)[0].diagnose().culprits
    named = [(one.ranks, one.cause, one.cause_certainty) for one in found if one.rung == "ranks"]
    assert named == ([((2,), "gpu_time", "certain")] if on_main == (2,) else [])
    said = [line for one in found for line in one.evidence if "collectives run on the same stream" in line]
    assert len(said) == len(named)


def test_slow_copies_where_work_varies_over_ranks(tmp_path: Path):
    """A copy tells nothing of the pace of a GPU, by which ranks of uneven work are compared."""
    slow = Fault.parse("slow_copies:rank=2,factor=300")
    uneven = [
        Fault.parse(f"unequal_work:rank={rank},step={step},factor={1 + (3 * rank + 5 * step) % 7 / 20}")
        for rank in range(6)
        for step in range(6)
    ]
    run = simulate(small("data_parallel", ranks=6, steps=6, kernels=240), [slow, *uneven])
    lake = ingest_run(run, tmp_path)
    assert lake.analyze().outliers.launched_work
    culprit = next(one for one in lake.diagnose().culprits if one.ranks == (2,))
    assert culprit.cause == "slow_copies"
    assert describe_place(culprit).startswith("before kernel")
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, slow), rel=0.05)


@pytest.mark.parametrize(
    ("slower", "faster", "said"),
    [
        ("ampere_bf16", (), "takes longer for ampere_bf16"),
        (("ampere_bf16", "nvjet"), "sm90", "takes longer for some of its kernels"),
    ],
)
def test_kernels_that_are_slow_on_one_rank_are_told_and_priced(
    tmp_path: Path, slower: str | tuple[str, ...], faster: str | tuple[str, ...], said: str
):
    """2% of the step: GPUs differ by as much, but not in one kernel alone. Of several the first was named alone."""
    job = small("data_parallel", ranks=8, steps=8, kernels=120)
    (recording,) = simulate(job, []).ranks([0])
    slow, *fast = (
        Fault("slow_gpu", frozenset([5]), kernels=kernels, factor=factor)
        for names, factor in ((slower, 1.1), (faster, 0.95))
        if (kernels := frozenset(op.kernel for op in recording.operations if op.kernel and op.name.startswith(names)))
    )
    run = simulate(job, [slow, *fast])
    found = ingest_run(run, tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause, culprit.confidence, culprit.recurs) == ((5,), "gpu_time", "high", "yes")
    assert f"Rank 5 {said}" in found.verdict
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run, slow), rel=0.05)


class OtherAlgorithm:
    """A run of which one rank runs kernels of another name than simulated, in the place of a `Run` to be written."""

    def __init__(self, run: Run, rank: int, kernels: Container[int | None], name: str) -> None:
        """Name the compute kernels among those with these indices; `name` may hold the simulated one, `{}`."""
        self.job, self._run, self._rank, self._kernels, self._name = run.job, run, rank, kernels, name

    def ranks(self, wanted: Any = None) -> Iterator[RankRecording]:
        for recording in self._run.ranks(wanted):
            names = [
                self._name.replace("{}", op.name) if op.kernel in self._kernels and op.kind == "compute" else op.name
                for op in recording.operations
            ]
            chosen = [replace(op, name=name) for op, name in zip(recording.operations, names, strict=True)]
            yield replace(recording, operations=tuple(chosen)) if recording.rank == self._rank else recording


def test_a_kernel_that_only_one_rank_runs_in_the_place_of_another_is_named(tmp_path: Path):
    slow = Fault.parse("slow_gpu:rank=6,factor=2,kernels=20-22")
    run = simulate(small(ranks=8, steps=8), [slow])
    usual = {op.name for recording in run.ranks([0]) for op in recording.operations if op.kernel == 20}
    write_traces(OtherAlgorithm(run, 6, range(20, 23), "void triton::gemm_cfg7<64>(int)"), tmp_path / "traces")  # type: ignore[arg-type]
    found = ingest_traces(tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause) == ((6,), "workload_imbalance")
    assert f"it runs gemm_cfg7 where most ranks run {short_name(usual.pop())}" in culprit.evidence
    assert "Rank 6 runs gemm_cfg7 where most ranks run" in found.verdict
    assert "check what chose the kernel" in found.verdict


def test_copies_that_one_rank_alone_makes_are_no_uneven_work(tmp_path: Path):
    """As a checkpoint that rank 6 writes: how work is divided has no part in it."""
    run: Any = simulate(small(ranks=8, steps=8), [Fault.parse("slow_gpu:rank=6,factor=3,kernels=20-22")])
    for rank in range(8):
        run = OtherAlgorithm(run, rank, range(20, 23), "Memcpy DtoH (Device -> Pinned)")
    for path in write_traces(run, tmp_path / "traces"):
        told = json.loads(path.read_text())
        copies = [event for event in told["traceEvents"] if "DtoH" in event["name"]]
        for event in copies:
            event["cat"] = "gpu_memcpy"
        if told["distributedInfo"]["rank"] == 6:
            (host, *_) = [event for event in told["traceEvents"] if event.get("cat") == "cuda_runtime"]
            written = {key: host[key] for key in ("ph", "pid", "tid")}
            written |= {"cat": "user_annotation", "name": "save_checkpoint"}
            told["traceEvents"] += [{**written, "ts": copy["ts"], "dur": copy["dur"]} for copy in copies]
        else:
            told["traceEvents"] = [event for event in told["traceEvents"] if event not in copies]
        path.write_text(json.dumps(told))
    found = ingest_traces(tmp_path).diagnose()
    (culprit,) = found.culprits
    assert (culprit.ranks, culprit.cause) == ((6,), "workload_imbalance")
    assert "check whether the job must wait for its copies" in found.verdict
    assert any("a checkpoint takes" in line and "in 3 of 3 steps" in line for line in culprit.evidence)


@pytest.mark.parametrize("factor", [None, 1.15])
def test_a_rank_that_runs_other_variants_of_all_kernels_is_compared_with_the_others(
    tmp_path: Path, factor: float | None
):
    """As with another driver or GPU model; no kernel of the rank has the name of one of the other ranks."""
    slow = [] if factor is None else [Fault.parse(f"slow_gpu:rank=6,factor={factor}")]
    run = simulate(small(ranks=8, steps=8), slow)
    write_traces(OtherAlgorithm(run, 6, range(1000), "sm90_{}"), tmp_path / "traces")  # type: ignore[arg-type]
    found = ingest_traces(tmp_path).diagnose()
    assert not any("program of its own" in doubt for doubt in found.conclusion.doubts)
    assert [(one.ranks, one.cause) for one in found.culprits] == [((6,), "workload_imbalance")] * len(slow)
    for culprit in found.culprits:
        assert culprit.gain_ns == pytest.approx(true_gain_ns(run, *slow), rel=0.05)
        assert "runs sm90_" in found.verdict


@pytest.mark.parametrize(
    ("rank", "ranks", "chosen"),
    [
        (5, [5], [5]),
        (2, [0, 2, 3], [0, 2, 3]),
        (9, [0, 1, 2, 9], [0, 1, 2, 9]),
        (9, [*range(100), 200], [0, 9, 100 // 2, 200]),
        (0, range(8), [0, 1, 4, 7]),
    ],
)
def test_the_rank_and_others_from_first_to_last(rank: int, ranks: list[int], chosen: list[int]):
    assert _with_peers(rank, list(ranks), 3) == chosen


@pytest.mark.parametrize(
    ("fault", "cause", "said"),
    [
        ("slow_gpu:{},factor=1.{}", "gpu_compute", "122 of 122 slower operations have the same launch shape"),
        ("late_start:{},ms=1.{}", "late_start", "the input pipeline stalled"),
    ],
)
def test_each_of_a_slow_majority_is_compared_with_the_fast_ranks(tmp_path: Path, fault: str, cause: str, said: str):
    """The median rank is one of the others that are slow, by another amount."""
    faults = [Fault.parse(fault.format("rank=4-7", "15")), Fault.parse(fault.format("rank=2", "11"))]
    run = simulate(Job(ranks=8, steps=8, kernels=40, seed=5), faults)
    found = next(one for one in ingest_run(run, tmp_path).diagnose().culprits if one.ranks == (2, 4, 5, 6, 7))
    assert (found.cause, found.confidence) == (cause, "high")
    assert any(said in sentence for sentence in found.evidence)
    assert found.gain_ns == pytest.approx(run_ns(run) - run_ns(simulate(run.job)), rel=0.1)


@pytest.mark.parametrize(
    ("copies", "cause", "beside"),
    [
        (90, "slow_copies", ["is in kernels, which take longer, too"]),
        (30, "gpu_compute", ["is in copies between host and GPU, which take longer, too"]),
        (5, "gpu_compute", []),
    ],
)
def test_of_slow_kernels_and_slow_copies_both_are_said(tmp_path: Path, copies: int, cause: str, beside: list[str]):
    faults = [Fault.parse("slow_gpu:rank=2,factor=1.15"), Fault.parse(f"slow_copies:rank=2,factor={copies}")]
    (found,) = ingest_run(simulate(Job(ranks=8, steps=6, kernels=40, seed=5), faults), tmp_path).diagnose().culprits
    assert (found.ranks, found.cause) == ((2,), cause)
    said = [line for line in found.evidence if "take longer, too" in line]
    assert len(said) == len(beside)
    assert all(words in line for words, line in zip(beside, said, strict=True))


def test_a_pause_of_a_slow_gpu_is_another_finding(tmp_path: Path):
    """The worst steps tell the cause: the pause of one step was the cause of what the GPU loses in all of them."""
    slow, pause = map(Fault.parse, ("slow_gpu:rank=5,factor=1.15", "gpu_pause:rank=5,step=4,kernel=17,ms=8"))
    run = simulate(Job(ranks=8, steps=9, kernels=40, seed=5), [slow, pause])
    found = {one.cause: one for one in ingest_run(run, tmp_path).diagnose().culprits}
    assert {cause: (one.ranks, one.seen.steps) for cause, one in found.items()} == {
        "gpu_pause": ((5,), 1),
        "gpu_compute": ((5,), 8),
    }
    assert (found["gpu_compute"].recurs, found["gpu_pause"].recurs) == ("yes", "unknown")
    of_slow_ns = run_ns(simulate(run.job, [slow])) - run_ns(simulate(run.job))
    of_both_ns = run_ns(run) - run_ns(simulate(run.job))
    assert found["gpu_compute"].loss_ns == pytest.approx(of_slow_ns * 8 / 9, rel=0.1)
    assert found["gpu_pause"].loss_ns == pytest.approx(of_both_ns - of_slow_ns * 8 / 9, rel=0.1)


def test_of_a_majority_with_more_work_the_saving_is_that_of_even_work(tmp_path: Path):
    """It was what the job would save if all ranks had as little to do as the few."""
    job = Job(ranks=8, steps=8, kernels=40, seed=5)
    uneven = simulate(job, [Fault.parse("unequal_work:ranks=0-5,factor=1.4")])
    even = simulate(job, [Fault.parse("unequal_work:ranks=0-7,factor=1.3")])
    (found,) = ingest_run(uneven, tmp_path).diagnose().culprits
    assert (found.ranks, found.cause) == (tuple(range(6)), "workload_imbalance")
    assert found.gain_ns == pytest.approx(run_ns(uneven) - run_ns(even), rel=0.05)
    assert found.advice.startswith("have more work than the other ranks")


def test_a_majority_that_is_slow_from_a_step_on_is_one_finding(tmp_path: Path):
    """The steps in which the median rank is slow were a second one, of the same time."""
    late = [f"slow_gpu:ranks=4-7+2,factor=1.15,step={step}" for step in range(6, 16)]
    run = simulate(Job(ranks=8, steps=16, kernels=40, seed=5), [Fault.parse(fault) for fault in late])
    (found,) = ingest_run(run, tmp_path).diagnose().culprits
    assert found.ranks == (2, 4, 5, 6, 7)
    assert found.gain_ns == pytest.approx(run_ns(run) - run_ns(simulate(run.job)), rel=0.1)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [("unequal_work:rank=6,factor=1.8", "workload_imbalance"), ("slow_gpu:rank=6,factor=1.5", "gpu_compute")],
)
def test_few_tell_the_cause_as_all_do(fault: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lake = ingest_run(simulate(small(ranks=12, steps=5), [Fault.parse(fault)]), tmp_path)
    with_all = lake.diagnose()
    assert [(one.ranks, one.cause) for one in with_all.culprits] == [((6,), cause)]
    asked: list[list[int]] = []
    launch_shapes = RunReader.launch_shapes
    monkeypatch.setattr(
        RunReader, "launch_shapes", lambda self, key, ranks: asked.append(ranks) or launch_shapes(self, key, ranks)
    )
    few = jitter.open(lake.root)
    monkeypatch.setattr(workload, "THRESHOLDS", THRESHOLDS._replace(sampled_ranks=3))
    assert few.diagnose() == with_all
    assert asked == [[0, 5, 6, 11]] * 3


@pytest.mark.parametrize("fault", ["unequal_work:rank=2,factor=1.5", "slow_gpu:rank=2,factor=1.5"])
def test_without_launch_shapes_more_work_is_not_excluded(fault: str, tmp_path: Path):
    """The databases of rocprof v1 state none: they counted as equal ones."""
    (culprit,) = ingest_run(simulate(small(steps=6), [Fault.parse(fault)]), tmp_path, "rocprof-v1").diagnose().culprits
    assert (culprit.ranks, culprit.cause, culprit.cause_certainty) == ((2,), "gpu_time", "unknown")
    assert any("their launch shapes are not recorded: more work, or a slow GPU" in line for line in culprit.evidence)


@pytest.mark.parametrize(("ranks", "late"), [(8, "4-7"), (16, "1+3+5+7+9+11+13")])
def test_half_of_the_ranks_is_priced_against_the_usual_rank_of_the_other_half(ranks: int, late: str, tmp_path: Path):
    """The median of all ranks is the slowest of the other half, so the price missed a sixth."""
    slow = Fault.parse(f"slow_gpu:ranks={late},factor=1.1")
    run = simulate(small(ranks=ranks, steps=8, kernels=120), [slow])
    (culprit,) = ingest_run(run, tmp_path).diagnose().culprits
    assert (set(culprit.ranks), culprit.cause) == (set(slow.ranks), "gpu_compute")
    assert culprit.gain_ns == pytest.approx(true_gain_ns(run), rel=0.03)


@pytest.mark.parametrize(
    ("slow", "newer", "told"),
    [
        ("4-7", range(4), "that of the other ranks"),
        ("7", range(7), "that of most ranks"),
        # a slow one of the newer model is slow for another reason
        ("3", range(4), None),
    ],
)
def test_a_gpu_of_another_model_is_told(slow: str, newer: range, told: str | None, tmp_path: Path):
    run = simulate(small(ranks=8, steps=8), [Fault.parse(f"slow_gpu:ranks={slow},factor=1.4")])
    for path in write_traces(run, tmp_path / "traces"):
        trace = json.loads(path.read_text())
        rank = trace["distributedInfo"]["rank"]
        models = [{"id": number, "name": "NVIDIA H100" if rank in newer else "NVIDIA A100"} for number in range(8)]
        path.write_text(json.dumps({**trace, "deviceProperties": models}))
    (culprit,) = ingest_traces(tmp_path).diagnose().culprits
    assert (format_numbers(culprit.ranks), culprit.cause) == (slow, "gpu_compute")
    assert [text for text in culprit.evidence if "NVIDIA" in text] == (
        [] if told is None else [f"its GPU is NVIDIA A100, and {told} NVIDIA H100"]
    )


def test_a_restart_within_the_recording_does_not_hide_a_slow_gpu(tmp_path: Path):
    """All ranks wait 500 ms before step 6; from then on rank 2 is slow: little of the run, much of most steps."""
    restart, slow = map(Fault.parse, ("late_start:ranks=0-3,step=6,ms=500", "slow_gpu:rank=2,steps=6-11,factor=1.15"))
    run = simulate(small(steps=12, kernels=120), [restart, slow])
    gain_ns = true_gain_ns(run, slow)
    assert gain_ns < 0.01 * run_ns(run)
    found = ingest_run(run, tmp_path).diagnose()
    (culprit,) = (one for one in found.culprits if one.scope == "rank")
    assert (culprit.ranks, culprit.cause, culprit.confidence) == ((2,), "gpu_compute", "high")
    assert culprit.gain_ns == pytest.approx(gain_ns, rel=0.05)


def test_a_gpu_that_processes_number_alike_is_named_by_its_pci_address():
    """Processes that see one GPU each number it 0."""

    def device(numbers: list[int]) -> str:
        places = {rank: RankPlace("a", number, f"0000:1{rank}:00") for rank, number in enumerate(numbers)}
        [named] = name_gpus([findings.culprit(rank=1)], places)
        assert named.bus_id == "0000:11:00"
        return name_with_device(named)

    assert device([0, 0, 0]) == "Rank 1, GPU at 0000:11:00"
    assert device([4, 5, 6]) == "Rank 1, device 5"


@pytest.mark.parametrize("shape", ["tensor_parallel", "sharded", "expert"])
@pytest.mark.parametrize("variable_work", [0.1, 0.3])
def test_a_gpu_that_is_slow_in_some_steps_stands_out_from_work_that_varies_more(
    tmp_path: Path, shape: str, variable_work: float
):
    """By plain time none of its steps does: the others' work takes as much longer on one rank after another."""
    job = small(shape, ranks=8, steps=10, variable_work=variable_work, seed=3)
    slow = Fault.parse("slow_gpu:rank=3,step=3+5,factor=1.2")
    run = simulate(job, [slow])
    (found,) = [one for one in ingest_run(run, tmp_path).diagnose().culprits if one.scope == "rank"]
    assert (found.ranks, found.cause, found.confidence) == ((3,), "gpu_compute", "high")
    assert [key.step for key in found.steps] == [job.first_step + 3, job.first_step + 5]
    assert found.gain_ns == pytest.approx(true_gain_ns(run, slow), rel=0.1)
