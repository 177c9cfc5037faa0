"""Simulated pairs with a known difference: its rows equal the true difference within 5%, and all rows add up."""

import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import pytest

import jitter
from jitter.cli import main
from jitter.comparison.compare_documents import Comparison, Cost, compare_documents, comparison_document, step_times
from jitter.comparison.document import Document, decode_document, encode_document
from jitter.comparison.runs import build_document, load_run
from jitter.core.errors import UsageError
from jitter.core.formatting import format_time
from jitter.simulate import Fault, Job, Run, simulate
from tests.support.fuzz_depth import fuzz, some_of
from tests.support.kineto_traces import Row, call, kernel, step, write
from tests.support.printed import output_of
from tests.support.serving import KERNELS, ServingJob, write_serving
from tests.support.simulated import ingest_partial_run, ingest_run, ingest_traces

SHAPES: dict[str, dict[str, Any]] = {
    "data_parallel": {},
    "tensor_parallel": {},
    "sharded": {},
    "pipeline": {"stages": 2, "microbatches": 3},
}
FAULTS = {
    "every GPU 30% slower": "slow_gpu:rank=0-3,factor=1.3",
    "one GPU 30% slower": "slow_gpu:rank=2,factor=1.3",
    "slower network": "slow_collective:factor=4",
    "a new kernel": "extra_kernel:rank=0-3,kernel=17,ms=0.3",
}


def job_of(shape: str, **more: Any) -> Job:
    given = {"ranks": 4, "steps": 8, "kernels": 100, "seed": 3, "noise": 0.02, "gpus_per_node": 4, "shape": shape}
    return Job(**{**given, "epoch": None, "marker": "profiler", **SHAPES[shape], **more})


@pytest.fixture(scope="module")
def document_of(tmp_path_factory: pytest.TempPathFactory):
    """Return the document of a job with a fault, and the job's true step time; each is simulated once."""
    known: dict[tuple[Job, str], tuple[Document, float]] = {}

    def find(job: Job, fault: str = "") -> tuple[Document, float]:
        if (job, fault) not in known:
            run = simulate(job, [Fault.parse(fault)] if fault else [])
            known[job, fault] = load_run(ingest_run(run, tmp_path_factory.mktemp("run"))), true_step_ns(run)
        return known[job, fault]

    return find


@pytest.mark.parametrize(("slow", "is_told"), [("every GPU 30% slower", True), ("one GPU 30% slower", False)])
def test_a_pace_of_all_kernels_is_told_as_one_change(document_of, slow: str, is_told: bool):
    (base, _), (new, _) = (document_of(job_of("data_parallel"), fault) for fault in ("", FAULTS[slow]))
    said = compare_documents([base], new).sentence
    assert (
        bool(re.search(r"\d+ kernels each take (29|30|31)\.?\d*% more time, as with slower GPU clocks", said))
        is is_told
    )


def test_a_finding_of_several_ranks_is_the_difference(document_of):
    """Of its ranks together: the kernels of the median rank, between slow ones and others, take half of that longer."""
    job = job_of("tensor_parallel", ranks=8, noise=0.01)
    (base, _), (new, _) = (document_of(job, fault) for fault in ("", "slow_gpu:rank=4-7,factor=1.1"))
    said = compare_documents([base], new).sentence
    assert re.search(r"slow GPU of ranks 4-7 \+\d", said), said
    assert "kernels each take" not in said


def test_a_small_difference_has_an_interval_with_its_sign(document_of):
    (base, _), (new, _) = (
        document_of(job_of("data_parallel"), fault) for fault in ("slow_gpu:rank=0-3,factor=1.006", "")
    )
    found = compare_documents([base], new)
    assert found.effect is not None
    assert not found.effect.is_real
    assert found.effect.low_ns < found.effect.difference_ns < found.effect.high_ns < 0
    ends = " to ".join(format_time(ns) for ns in (found.effect.low_ns, found.effect.high_ns))
    assert f"a step, 95% interval {ends}; noise" in found.sentence


def true_step_ns(run: Run) -> float:
    return median(time for time in run.step_times().values() if time is not None)


def add_up(found: Comparison) -> None:
    assert found.effect is not None
    difference_ns = round(found.effect.new_ns) - round(found.effect.base_ns)
    assert sum(part.difference_ns for part in found.split) == difference_ns
    assert sum(one.loss_ns for one in found.costs) == pytest.approx(difference_ns, abs=1)
    for part in found.split:
        of_part = sum(one.loss_ns for one in found.costs if one.loss_class == part.part)
        assert of_part == pytest.approx(part.difference_ns, abs=2)
    for rank in found.ranks:
        of_rank = sum(one.loss_ns for one in found.costs if one.rank == rank.rank)
        assert of_rank == pytest.approx(rank.difference_ns or 0, abs=2)


def charged(costs: Iterable[Cost], **wanted: Any) -> float:
    return sum(one.loss_ns for one in costs if all(getattr(one, name) == value for name, value in wanted.items()))


@fuzz
@pytest.mark.parametrize(("shape", "fault"), some_of(product(SHAPES, FAULTS), 5))
def test_a_fault_of_the_new_run(shape: str, fault: str, document_of):
    (base, usual_ns), (new, slow_ns) = document_of(job_of(shape)), document_of(job_of(shape), FAULTS[fault])
    found = jitter.compare(base, new)
    add_up(found)
    true_ns, part = slow_ns - usual_ns, "transfer" if "network" in fault else "gpu"
    assert found.verdict == "slower"
    assert charged(found.costs, loss_class=part) == pytest.approx(true_ns, rel=0.05)
    assert found.kernels is not None
    assert found.kernels.changes
    if fault == "one GPU 30% slower":
        assert charged(found.costs, loss_class=part, rank=2) == pytest.approx(true_ns, rel=0.05)
        assert "of rank 2" in found.sentence
        assert {one.rank for one in found.kernels.changes} <= {2, None}
    else:
        assert charged(found.costs, loss_class=part, rung="usual") == pytest.approx(true_ns, rel=0.05)
    if fault == "a new kernel":
        (first, *_) = found.kernels.changes
        assert (first.kind, first.kernel_name) == ("appeared", None)
        assert first.loss_ns == pytest.approx(true_ns, rel=0.05)
    back = jitter.compare(new, base)
    add_up(back)
    assert charged(back.costs, loss_class=part) == pytest.approx(-true_ns, rel=0.05)


@fuzz
@pytest.mark.parametrize("shape", some_of(SHAPES, 2))
def test_hosts_that_are_slower(shape: str, document_of):
    """Launches become late: the host's classes have the difference, and neither GPUs nor transfers do."""
    job = job_of(shape, cpu_bound=True)
    (base, usual_ns), (new, slow_ns) = document_of(job), document_of(job, "slow_cpu:rank=0-3,factor=2")
    found = jitter.compare(base, new)
    add_up(found)
    of_hosts = sum(charged(found.costs, loss_class=part) for part in ("start", "launch", "after"))
    assert of_hosts == pytest.approx(slow_ns - usual_ns, rel=0.05)


def test_a_slow_gpu_elsewhere(document_of):
    """One GPU is repaired and another one slow: both are named with what they add, however little is left of it."""
    job = job_of("data_parallel")
    (base, _), (new, _) = (
        document_of(job, f"slow_gpu:rank={at},factor={factor}") for at, factor in ((1, 1.3), (2, 1.35))
    )
    found = jitter.compare(base, new)
    add_up(found)
    assert found.verdict == "slower"
    assert re.search(r"slow GPU of rank 2 \+.*slow GPU of rank 1 −", found.sentence)
    assert found.kernels is not None
    costs = {rank: [kernel.cost_ns for kernel in found.kernels.changes if kernel.rank == rank] for rank in (1, 2)}
    assert costs[1]
    assert max(costs[1]) < 0 < min(costs[2])


def test_a_slow_stage(document_of):
    """No rank of it is later than its peers: its finding says whose time the usual step's is."""
    job = job_of("pipeline", ranks=8, stages=4, kernels=240)
    (base, usual_ns), (new, slow_ns) = (document_of(job, fault) for fault in ("", "slow_gpu:rank=4-5,factor=1.3"))
    found = jitter.compare(base, new)
    add_up(found)
    (stage,) = found.culprits.appeared
    assert stage.difference_ns == pytest.approx(slow_ns - usual_ns, rel=0.05)
    assert "slow GPU or more work of ranks 4-5 +" in found.sentence
    assert "slow GPU or more work of ranks 4-5 −" in jitter.compare(new, base).sentence


def test_faster_kernels_beside_a_slow_gpu(document_of):
    base, _ = document_of(job_of("data_parallel"))
    new, _ = document_of(job_of("data_parallel", gpu_scale=0.85), "slow_gpu:rank=2,factor=1.5")
    found = jitter.compare(base, new)
    add_up(found)
    of_rank = charged(found.costs, loss_class="gpu", rank=2)
    assert of_rank > 1.3 * charged(found.costs, loss_class="gpu") > 0
    assert f"slow GPU of rank 2 {format_time(of_rank, signed=True)}, GPU time −" in found.sentence


def test_a_late_rank_changes_no_kernel(document_of):
    (base, _), (new, _) = (
        document_of(job_of("data_parallel", seed=seed), fault)
        for seed, fault in ((5, ""), (6, "late_start:rank=2,ms=0.5"))
    )
    found = jitter.compare(base, new)
    assert "(CPU) of rank 2" in found.sentence
    assert found.kernels is not None
    assert found.kernels.changes == []


def test_pauses_that_the_median_step_does_not_have(document_of):
    job = job_of("data_parallel", steps=16)
    (base, _), (new, _) = document_of(job), document_of(job, "late_start:rank=2,every=4,ms=2")
    assert (
        "Beside the median step, the new run alone has late step starts of rank 2" in jitter.compare(base, new).sentence
    )
    back = jitter.compare(new, base)
    assert (jitter.compare(base, new).verdict, back.verdict) == ("slower", "faster")
    assert re.search(
        r"Beside the median step, the base alone has late step starts of rank 2 .*in [34] of 16 steps:", back.sentence
    )
    assert "Beside" not in jitter.compare(new, new).sentence


def test_a_longer_program_launches_nothing_late(document_of):
    """A collective that one run alone has waits for its kernels there: that is no call of the host."""
    (base, short_ns), (new, long_ns) = (
        document_of(job_of("data_parallel")),
        document_of(job_of("data_parallel", kernels=160)),
    )
    found = jitter.compare(base, new)
    add_up(found)
    assert abs(charged(found.costs, loss_class="launch")) < 0.02 * (long_ns - short_ns)


def test_collectives_of_other_groups(document_of):
    """Twice the ranks: the collectives of one size are the same ones, in larger groups."""
    (base, _), (new, _) = document_of(job_of("data_parallel", ranks=2)), document_of(job_of("data_parallel"))
    found = jitter.compare(base, new)
    assert found.collectives
    assert all(one.base_calls_per_step == one.new_calls_per_step for one in found.collectives)


def test_collectives_of_unknown_sizes(document_of):
    """One profiler records sizes, the other does not: the calls are the same ones."""
    base, _ = document_of(job_of("data_parallel"))
    unsized = tuple(
        msgspec.structs.replace(entry, size_bytes=None, dtype=None, busbw=None) for entry in base.collectives
    )
    found = jitter.compare(base, msgspec.structs.replace(base, collectives=unsized))
    assert len({entry.size_bytes for entry in base.collectives}) > 1
    (together,) = found.collectives
    assert together.base_calls_per_step == together.new_calls_per_step == sum(e.calls_per_step for e in unsized)


def test_ranks_without_a_recording_may_be_late(document_of, tmp_path: Path):
    """The slow rank was not recorded: the network is not blamed alone."""
    base, _ = document_of(job_of("data_parallel"))
    slow = simulate(job_of("data_parallel"), [Fault.parse("slow_gpu:rank=2,factor=1.3")])
    found = jitter.compare(base, ingest_partial_run(slow, tmp_path, absent=frozenset({2})))
    assert found.verdict == "slower"
    assert "communication (network) or ranks without a recording +" in found.sentence


def test_no_note_asks_for_a_comparison(document_of):
    (base, _), (new, _) = document_of(job_of("tensor_parallel")), document_of(job_of("tensor_parallel"))
    assert not [note for note in jitter.compare(base, new).notes if "jitter compare" in note]


def test_a_renamed_kernel_is_one_change(document_of):
    base, _ = document_of(job_of("data_parallel"))
    old = max(set(base.names), key=lambda name: sum(base.names[place.name] == name for place in base.teams[0].places))
    new = msgspec.structs.replace(base, names=tuple("renamed_kernel" if name == old else name for name in base.names))
    found = jitter.compare(base, new)
    add_up(found)
    assert found.effect is not None
    assert found.effect.difference_ns == 0
    assert all(abs(one.loss_ns) < 1 for one in found.costs)
    assert found.kernels is not None
    assert {(one.kernel_name, one.new_kernel_name, one.kind) for one in found.kernels.changes} == {
        (old, "renamed_kernel", "replaced")
    }


@fuzz
@pytest.mark.parametrize(
    ("shape", "change"),
    some_of(
        product(["data_parallel", "tensor_parallel"], [{"steps": 12}, {"ranks": 2, "gpus_per_node": 2}, {"seed": 4}]),
        2,
    ),
)
def test_another_size_of_the_same_job(shape: str, change: dict[str, Any], document_of):
    """Other numbers of steps or ranks: all rows add up, and what is unexplained is little."""
    (base, _), (new, _) = document_of(job_of(shape)), document_of(job_of(shape, **change))
    found = jitter.compare(base, new)
    add_up(found)
    assert found.effect is not None
    assert abs(charged(found.costs, loss_class="unexplained")) < 0.01 * found.effect.base_ns
    slow, _ = document_of(job_of(shape, **change), "slow_gpu:rank=0-1,factor=1.3")
    assert charged(jitter.compare(base, slow).costs, loss_class="gpu") > 0.1 * found.effect.base_ns


def test_runs_of_an_earlier_version_have_no_rows(document_of, tmp_path: Path):
    from tests.support.version_1_baseline import written_by_version_1

    base, _ = document_of(job_of("data_parallel"))
    new, _ = document_of(job_of("data_parallel"), FAULTS["every GPU 30% slower"])
    old = tmp_path / "old.json"
    old.write_bytes(written_by_version_1(base))
    found = jitter.compare(old, new)
    assert found.verdict == "slower"
    assert (found.split, found.costs) == ((), ())
    assert found.kernels is not None
    assert found.kernels.changes
    assert found.kernels.changes[0].loss_ns is None
    assert any("jitter export LAKE --baseline FILE" in note for note in found.notes)


def test_host_time_after_the_last_launch_is_charged_as_the_report_charges_it(document_of):
    job = job_of("data_parallel")
    (base, usual_ns), (new, slow_ns) = document_of(job), document_of(job, "late_end:rank=2,ms=1")
    assert [(one.cause, one.loss_class, one.steps) for one in new.culprits] == [("cpu_after", "after", 8)]
    found = jitter.compare(base, new)
    add_up(found)
    assert charged(found.costs, loss_class="after", rank=2) == pytest.approx(slow_ns - usual_ns, rel=0.05)
    assert "Beside the median step" not in found.sentence  # all steps have it


def test_profilers_that_name_calls_and_copies_otherwise(tmp_path: Path):
    run = simulate(job_of("data_parallel"), [])
    base, new = (ingest_run(run, tmp_path / form, form) for form in ("nsys", "kineto"))
    found = jitter.compare(base, new)
    add_up(found)
    assert found.verdict == "same"
    assert sum(abs(one.loss_ns) for one in found.costs if one.rung == "usual") < 0.005 * found.effect.base_ns


PROGRAMS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "new calls that wait for the GPU": ({"syncs": frozenset({"loss", "before", "after"})}, {"launch"}),
    "kernels slowed beside collectives": ({"interference": 0.3}, {"overlap"}),
    "longer gaps between kernels": ({"stream_gap_ns": 3000}, {"gpu"}),
}


@pytest.mark.parametrize("change", PROGRAMS)
def test_another_program(change: str, document_of):
    """What changes in how a step runs is charged to its class, both ways round."""
    more, classes = PROGRAMS[change]
    (base, usual_ns), (new, slow_ns) = (
        document_of(job_of("data_parallel")),
        document_of(job_of("data_parallel", **more)),
    )
    for one, other, true_ns in ((base, new, slow_ns - usual_ns), (new, base, usual_ns - slow_ns)):
        found = jitter.compare(one, other)
        add_up(found)
        assert sum(charged(found.costs, loss_class=part) for part in classes) == pytest.approx(true_ns, rel=0.05)


BUCKETS, COMPUTE_US, TRANSFER_US = 4, 400.0, 150.0


def write_buckets(folder: Path, overlap: bool, micro_batches: int = 1, delay: int = 0) -> Path:
    """Write traces of two ranks that reduce a bucket after each kernel, and wait for it there or at the step's end.

    They launch the reduction so many kernels later.
    """
    rng = np.random.default_rng(1 + overlap)
    events: list[list[Row]] = [[], []]
    host, main, link, correlation = np.full((3, 2), 1000.0)[0], np.zeros(2), np.zeros(2), 0

    def launch(name: str, start: Any, took: Any, stream: int) -> Any:
        nonlocal correlation, host
        correlation, host = correlation + 1, host + 5
        for rank in range(2):
            begin, us = round(float(start[rank]), 3), round(float(took[rank]), 3)
            launched = call(ts=round(float(host[rank]) - 4, 3), dur=3.0, correlation=correlation)
            events[rank] += [launched, kernel(name, begin, us, pid=rank, correlation=correlation, stream=stream)]
        return start + took

    for number in range(8):
        begin, due = host.copy(), list[Any]()
        for at in range(BUCKETS * micro_batches):
            took = COMPUTE_US * (1 + 0.005 * rng.standard_normal(2))
            main = launch(f"gemm_{at % BUCKETS}", np.maximum(main + 1, host + 7), took, 7)
            due += [main] if at >= BUCKETS * (micro_batches - 1) else []
            while len(due) > (delay if at < BUCKETS * micro_batches - 1 else 0):
                start = np.maximum(np.maximum(link, due.pop(0)) + 1, host + 7)
                link = launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", start, start.max() + TRANSFER_US - start, 13)
                main = main if overlap else np.maximum(main, link)
        main = launch("adam", np.maximum(np.maximum(main, link) + 1, host + 7), np.full(2, 100.0), 7)
        correlation += 1
        for rank in range(2):
            waited = call("cudaStreamSynchronize", round(float(host[rank]), 3), 3.0, correlation=correlation)
            waited["dur"] = round(float(main[rank] - host[rank]) + 4, 3)
            events[rank] += [
                waited,
                step(number, round(float(begin[rank]), 3), round(float(main[rank] - begin[rank]), 3)),
            ]
        host = main + 30
    folder.mkdir(parents=True)
    for rank, of_rank in enumerate(events):
        info = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
        write(folder / f"rank{rank}.json", of_rank, before=info)
    return folder


def compare_buckets(root: Path, *runs: dict[str, Any]) -> Comparison:
    lakes = []
    for name, run in zip(("base", "new"), runs, strict=True):
        lakes.append(ingest_traces(root / name, write_buckets(root / name / "traces", **run)))
    return jitter.compare(*lakes)


@pytest.mark.parametrize("is_lost", [True, False])
def test_lost_overlap_is_charged_to_what_the_kernels_wait_for(tmp_path: Path, is_lost: bool):
    found = compare_buckets(tmp_path, {"overlap": is_lost}, {"overlap": not is_lost})
    add_up(found)
    true_ns = (BUCKETS - 1) * TRANSFER_US * 1000 * (1 if is_lost else -1)
    assert found.effect is not None
    assert found.effect.difference_ns == pytest.approx(true_ns, rel=0.05)
    (cost,) = [one for one in found.costs if one.loss_class == "overlap"]
    assert cost.loss_ns == pytest.approx(true_ns, rel=0.05)
    assert (cost.kernel_name or "").startswith("ncclDevKernel_AllReduce")
    assert ": overlap with communication " in found.sentence
    more, hides = ("more", "less") if is_lost else ("less", "more")
    said = f" costs {format_time(abs(cost.loss_ns))} {more} a step, as compute hides {hides} of it"
    assert said in found.sentence


def test_a_kernel_that_is_launched_elsewhere_is_not_new(tmp_path: Path):
    found = compare_buckets(tmp_path, {"overlap": True}, {"overlap": True, "delay": 1})
    add_up(found)
    assert found.kernels is not None
    assert {(one.kind, one.places, one.new_places) for one in found.kernels.changes} == {("changed", 1, 1)}


def test_ranks_that_add_as_much_are_named_together(document_of):
    job = job_of("data_parallel")
    (base, _), (new, _) = document_of(job), document_of(job, "slow_gpu:rank=1-2,factor=1.3")
    assert ": GPU time of ranks 1-2 +" in jitter.compare(base, new).sentence


def test_more_micro_batches_are_no_new_kernels(tmp_path: Path):
    found = compare_buckets(tmp_path, {"overlap": True}, {"overlap": True, "micro_batches": 2})
    add_up(found)
    assert charged(found.costs, loss_class="gpu") == pytest.approx(BUCKETS * COMPUTE_US * 1000, rel=0.05)
    assert found.kernels is not None
    assert {(one.kind, one.in_both) for one in found.kernels.changes if one.loss_ns} == {("appeared", True)}
    assert " runs 1 more times, " in found.sentence


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    job = Job(ranks=8, steps=6, kernels=300, seed=3)
    made = {}
    for name, faults in (("slow", [Fault.parse("slow_collective:factor=6")]), ("usual", [])):
        lake = ingest_run(simulate(job, faults), tmp_path_factory.mktemp(name), "nsys", layout="2026.2")
        made[name] = load_run(lake)
    return made


def test_the_gain_is_that_of_communication(documents):
    found = comparison_document(jitter.compare(documents["slow"], documents["usual"]))
    assert found["verdict"] == "faster"
    assert found["step_time"]["base_ns"] == pytest.approx(14.27e6, abs=0.01e6)
    assert found["step_time"]["new_ns"] == pytest.approx(11.11e6, abs=0.01e6)
    assert found["step_time"]["fraction"] == pytest.approx(-0.221, abs=0.001)
    parts = {part["part"]: part for part in found["split"]}
    # short transfers hide less of what GPUs differ by: jitter, and no difference of the usual step
    assert parts["gpu"]["usual_ns"] == pytest.approx(0, abs=0.02e6)
    assert parts["transfer"]["difference_ns"] == pytest.approx(found["step_time"]["difference_ns"], rel=0.05)


def test_bandwidth_by_size(documents):
    found = comparison_document(jitter.compare(documents["slow"], documents["usual"]))
    bandwidth = {one["size_bytes"]: one for one in found["collectives"]}
    assert bandwidth.keys() == {26_214_400, 6_553_600}
    for size, base, new in ((26_214_400, 30.3, 182.0), (6_553_600, 21.4, 128.5)):
        assert bandwidth[size]["base_busbw"] == pytest.approx(base, abs=0.05)
        assert bandwidth[size]["new_busbw"] == pytest.approx(new, abs=0.05)
        assert bandwidth[size]["ratio"] == pytest.approx(6.0, abs=0.01)


def test_the_other_way_round_is_the_loss(documents):
    found = comparison_document(jitter.compare(documents["usual"], documents["slow"]))
    assert found["verdict"] == "slower"
    assert found["kernels"][0]["kernel_name"].startswith("nccl")
    assert "communication (network)" in found["sentence"]


MIXTURES = {"decodes": ("prefill", *["decode"] * 4) * 6, "prefills": ("decode", "prefill", "prefill") * 10}


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, jitter.Lake]:
    root, found = tmp_path_factory.mktemp("kinds"), {}
    for name, kinds in MIXTURES.items():
        traces = write_serving(root / name, ServingJob(kinds=kinds, slow_rank=None))
        assert not jitter.ingest([traces], root / f"{name}-lake").refused
        found[name] = jitter.open(root / f"{name}-lake")
    return found


def test_mostly_different_kinds_are_not_comparable(lakes: dict[str, jitter.Lake]):
    base, new = (build_document(lake) for lake in lakes.values())
    assert (base.step_kind, new.step_kind) == ("decode", "prefill")
    found = compare_documents([base], new)
    assert found.verdict == "incomparable"
    assert "most steps are of kind decode in one run, prefill in another: choose one with --kind" in found.sentence


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_steps_of_one_kind_are_the_same(lakes: dict[str, jitter.Lake], kind: str):
    documents = [build_document(lake, step_kind=kind) for lake in lakes.values()]
    for document, kinds in zip(documents, MIXTURES.values(), strict=True):
        assert [step.kind for step in document.steps] == list(kinds)
        (team,) = document.teams
        assert [document.steps[at].kind for at in team.steps] == [kind] * kinds.count(kind)
        names = {document.names[place.name] for place in team.places}
        assert ("gemv_skinny" in names, "gemm_128x256" in names) == (kind == "decode", kind == "prefill")
        assert len(step_times(document)) >= kinds.count(kind) - 1
    found = compare_documents(documents[:1], decode_document(encode_document(documents[1]), "new"))
    assert found.verdict == "same"
    assert found.effect is not None
    assert abs(found.effect.difference_ns) < 0.005 * found.effect.base_ns
    assert found.kernels is None or not found.kernels.changes
    assert any(f"Steps of kind {kind} are compared" in note for note in found.notes)


SIZES = {"small": (1.0, 1.0, 2.0, 1.0, 4.0) * 6, "large": (4.0, 4.0, 1.0, 4.0, 2.0) * 6, "larger": (8.0,) * 8}


@pytest.fixture(scope="module")
def lakes_of_sizes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, jitter.Lake]:
    root, found = tmp_path_factory.mktemp("sizes"), {}
    for name, work in SIZES.items():
        job = ServingJob(("decode",) * len(work), slow_rank=None, graphs=False, work=work)
        assert not jitter.ingest([write_serving(root / name, job)], root / f"{name}-lake").refused
        found[name] = jitter.open(root / f"{name}-lake")
    return found


def test_batches_of_one_size_are_compared(lakes_of_sizes: dict[str, jitter.Lake], tmp_path: Path):
    small, large = (lakes_of_sizes[name] for name in ("small", "large"))
    for base, new in ((small, large), (large, small)):
        found = jitter.compare(base, new)
        assert found.verdict == "same"
        assert found.effect is not None
        assert abs(found.effect.difference_ns) < 0.005 * found.effect.base_ns
        assert any("Steps of kind decode with about 128 tokens or requests are compared" in one for one in found.notes)
    base = load_run(small)
    assert (base.step_size, load_run(large).step_size) == (32, 128)
    assert load_run(large, beside=[base]).step_size == 32
    assert jitter.compare(decode_document(encode_document(base), "base"), large).verdict == "same"


UNSTATED = {**SIZES, "small, slower": SIZES["small"]}


@pytest.fixture(scope="module")
def lakes_of_unstated_sizes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, jitter.Lake]:
    """Runs whose markers tell no sizes, but their launches do."""
    root, found = tmp_path_factory.mktemp("unstated"), {}
    for name, work in UNSTATED.items():
        kernels = {"decode": tuple((one, 1.2 * us if "slower" in name else us) for one, us in KERNELS["decode"])}
        more: dict[str, Any] = {"slow_rank": None, "graphs": False, "engine": "profiler", "shapes": True}
        job = ServingJob(("decode",) * len(work), work=work, kernels=kernels, **more)
        assert not jitter.ingest([write_serving(root / name, job)], root / f"{name}-lake").refused
        found[name] = jitter.open(root / f"{name}-lake")
    return found


def test_batches_of_one_unstated_size_are_compared(lakes_of_unstated_sizes: dict[str, jitter.Lake]):
    """Another mix of sizes is no slower run, and launched threads tell a larger batch from slower GPUs."""
    small, large, larger, slower = lakes_of_unstated_sizes.values()
    for base, new in ((small, large), (large, small), (load_run(small), large)):
        found = jitter.compare(base, new)
        assert found.verdict == "same"
        assert found.effect is not None
        assert abs(found.effect.difference_ns) < 0.005 * found.effect.base_ns
        assert any("launched threads are compared" in note for note in found.notes)
    found = jitter.compare(large, slower)
    assert found.verdict == "slower"
    assert found.effect is not None
    assert charged(found.costs, loss_class="gpu") == pytest.approx(found.effect.difference_ns, rel=0.05)
    assert 0.1 < found.effect.fraction < 0.2
    # without a common size all steps are compared: longer sequences are a slower step
    found = jitter.compare(small, larger)
    assert found.verdict == "slower"
    assert not any("launched threads" in note for note in found.notes)
    found = jitter.compare(load_run(small), larger)  # the file's usual step is of one size
    assert found.sentence.startswith("Not comparable: one run is of batches of one size")


def test_launched_threads_of_profilers_that_record_no_axes(tmp_path: Path):
    lakes = []
    for name in ("small", "large"):
        more: dict[str, Any] = {"slow_rank": None, "graphs": False, "engine": "profiler", "shapes": True}
        job = ServingJob(("decode",) * len(SIZES[name]), work=SIZES[name], has_axes=False, **more)
        assert not jitter.ingest([write_serving(tmp_path / name, job)], tmp_path / f"{name}-lake").refused
        lakes.append(jitter.open(tmp_path / f"{name}-lake"))
    assert lakes[0].sql("select count(grid_x) as x, count(grid_y) as y from kernels").loc[0, "y"] == 0
    found = jitter.compare(*lakes)
    assert found.verdict == "same"
    assert any("launched threads are compared" in note for note in found.notes)


def test_batches_of_no_common_size_are_not_comparable(lakes_of_sizes: dict[str, jitter.Lake]):
    found = jitter.compare(lakes_of_sizes["small"], lakes_of_sizes["larger"])
    assert found.verdict == "incomparable"
    assert "most batches have 32 in one run, 256 tokens or requests in another" in found.sentence


def test_the_command(lakes: dict[str, jitter.Lake], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    base, new = (str(lake.root) for lake in lakes.values())
    assert "Same step time" in output_of(capsys, "compare", base, new, "--kind", "decode")
    assert main(["compare", base, new, "--kind", "rollout"]) == 2
    assert "no step of kind rollout" in capsys.readouterr().err
    assert main(["export", base, "--baseline", str(tmp_path / "base.json")]) == 0
    with pytest.raises(UsageError, match="a baseline of steps of kind decode, not prefill"):
        jitter.compare(tmp_path / "base.json", new, kind="prefill")


def test_a_slower_data_loader_is_named_with_its_time_in_each_run(document_of):
    job = job_of("data_parallel")
    (base, _), (new, _) = document_of(job), document_of(job, "late_start:rank=0-3,ms=8")
    compared = compare_documents([base], new)
    loader = compared.hosts[0]
    assert loader.name.startswith("enumerate(DataLoader)")
    assert (loader.is_start, loader.difference_ns) == (True, pytest.approx(8e6, rel=0.05))
    assert f"(`{loader.name}`: " in compared.sentence
    older = msgspec.structs.replace(base, hosts_time=None)
    assert not compare_documents([older], new).hosts
