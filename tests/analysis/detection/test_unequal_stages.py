"""Pipeline stages compared with each other: more layers are a fault of the program, slower kernels of the GPU."""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import jitter
from jitter.analysis.detection.pipeline_stages import _compare, _Stage
from jitter.simulate import simulate
from tests.accuracy.irregular.job import Fault, IrregularJob
from tests.accuracy.irregular.scoring import ingest_job as ingest_irregular
from tests.accuracy.layouts.job import LayoutJob
from tests.accuracy.layouts.traces import ingest_job, true_cost_ns
from tests.support.recorded_events import Event, list_events, remove_events
from tests.support.simulated import ingest_traces, small, write_traces

LONGER = {
    "of four": LayoutJob(3, shape="pipeline", stage_layers=(1, 1, 5, 1)),
    "the first of four, one rank each": LayoutJob(21, shape="pipeline", ranks=4, stage_layers=(5, 1, 1, 1)),
    "of two, with recorded groups": LayoutJob(
        31, shape="pipeline", row=2, ranks=4, stage_layers=(1, 3), naming="ranks"
    ),
}


def evenly_divided(job: LayoutJob) -> LayoutJob:
    """The job whose stages have all of its layers among them, as many each."""
    return replace(job, stage_layers=(sum(job.stage_layers) / job.row,) * job.row)


@pytest.mark.parametrize("name", LONGER)
def test_a_stage_with_more_layers_is_found_and_priced(tmp_path, name: str):
    job = LONGER[name]
    longest = max(range(job.row), key=lambda stage: job.stage_layers[stage])
    diagnosis = ingest_job(job, tmp_path).diagnose()
    (found,) = diagnosis.culprits
    assert (found.cause, found.confidence) == ("unequal_stages", "high")
    assert found.ranks == tuple(range(longest * job.columns, (longest + 1) * job.columns))
    assert found.gain_ns == pytest.approx(true_cost_ns(job, evenly_divided(job)), rel=0.15)
    assert found.is_beyond_loss
    assert " has more to compute in every step than the ranks that wait for " in diagnosis.verdict
    assert "divide the work anew (the layers of a pipeline, " in diagnosis.verdict
    assert any("it has more of them" in line for line in found.evidence)


def test_two_longer_stages_of_four_are_found_and_divided_together(tmp_path):
    """Divided over all other ranks, what one of them has more made the other one longer, and saved nothing."""
    job = LayoutJob(3, shape="pipeline", stage_layers=(1, 5, 5, 1))
    diagnosis = ingest_job(job, tmp_path).diagnose()
    assert {(one.cause, one.ranks) for one in diagnosis.culprits} == {
        ("unequal_stages", (2, 3)),
        ("unequal_stages", (4, 5)),
    }
    saved_ns = true_cost_ns(job, evenly_divided(job))
    assert sum(one.gain_ns for one in diagnosis.culprits) == pytest.approx(saved_ns, rel=0.15)
    assert diagnosis.what_if.culprits_repaired_ns == pytest.approx(saved_ns, rel=0.15)


def test_a_slow_gpu_that_a_longer_stage_hides_is_told_with_what_both_save(tmp_path):
    job = LayoutJob(3, shape="pipeline", stage_layers=(1, 1, 5, 1), slow=(1, 1.8))
    diagnosis = ingest_job(job, tmp_path).diagnose()
    found = next(one for one in diagnosis.culprits if one.cause == "unequal_stages")
    divided = evenly_divided(job)
    balanced_ns, both_ns = true_cost_ns(job, divided), true_cost_ns(job, replace(divided, slow=None))
    assert both_ns > 1.5 * balanced_ns
    assert found.gain_ns == pytest.approx(balanced_ns, rel=0.1)
    (told,) = [line for line in found.evidence if line.startswith("until rank 1 is as fast as the other ranks")]
    assert float(told.split()[-2]) == pytest.approx(both_ns / 1e6, rel=0.1)
    assert f"would save about {told.split()[-2]} ms" in diagnosis.verdict


def test_a_slow_gpu_of_the_longer_stage_and_that_stage_are_priced_together(tmp_path):
    """Once its GPU is as fast as the other one of its stage, the rank still has the stage's layers, and the reverse."""
    job = LayoutJob(3, shape="pipeline", stage_layers=(1, 1, 5, 1), slow=(5, 1.3))
    diagnosis = ingest_job(job, tmp_path).diagnose()
    assert {(one.cause, one.ranks) for one in diagnosis.culprits} == {("unequal_stages", (4, 5)), ("gpu_compute", (5,))}
    mended_ns = true_cost_ns(job, replace(evenly_divided(job), slow=None))
    assert diagnosis.what_if.culprits_repaired_ns == pytest.approx(mended_ns, rel=0.05)


def test_a_slow_gpu_that_is_a_stage_by_itself_may_have_more_work(tmp_path):
    job = LayoutJob(24, shape="pipeline", row=4, ranks=4, slow=(2, 1.2))
    (found,) = ingest_job(job, tmp_path).diagnose().culprits
    assert (found.scope, found.ranks, found.cause, found.confidence) == ("rank", (2,), "gpu_time", "high")
    assert found.gain_ns == pytest.approx(true_cost_ns(job, job.healthy()), rel=0.1)


@pytest.mark.parametrize(("stages", "slow"), [(2, (0, 1.08)), (2, (1, 1.25)), (4, (1, 1.3))])
def test_the_slower_of_stages_of_one_rank_is_named_and_priced(tmp_path, stages: int, slow: tuple[int, float]):
    """A clock that is 8% slower was below a limit; kernels that memory bounds, which it slows less, were not priced."""
    named = IrregularJob(7, "pipeline", stages, 8, 24, "plain", naming="direction", stages=stages, microbatches=4)
    lake, saved_ns = ingest_irregular(replace(named, faults=(Fault("slow_gpu", slow[:1], slow[1]),)), tmp_path)
    diagnosis = lake.diagnose()
    (found,) = diagnosis.culprits
    assert (found.rank, found.cause, found.cause_certainty) == (slow[0], "gpu_time", "unknown")
    assert found.gain_ns == pytest.approx(saved_ns, rel=0.06)
    assert "takes longer for the same kernels than the other pipeline stages" in diagnosis.verdict


@pytest.mark.parametrize("stages", [2, 4])
def test_stages_of_one_rank_that_differ_as_gpus_do_have_no_finding(tmp_path, stages: int):
    job = IrregularJob(8, "pipeline", stages, 8, 24, "plain", stages=stages, microbatches=4, spread=0.01)
    assert not ingest_irregular(job, tmp_path)[0].diagnose().culprits


def test_micro_batches_of_unequal_size_make_no_stage_longer(tmp_path):
    job = IrregularJob(8, "pipeline", 4, 9, 24, "plain", stages=4, microbatches=3, naming="column", unequal=0.6)
    assert not ingest_irregular(job, tmp_path)[0].diagnose().culprits


@pytest.mark.parametrize("one_name", [False, True])
def test_a_stage_that_a_loss_makes_longer_is_a_limit_of_the_program_and_no_fault(tmp_path, one_name: bool):
    """The simulator's last stage is a quarter longer than the others: by a loss, with a larger product of matrices.

    It was taken for slow GPUs, or for more layers, where the layers' products have the same name.
    """
    job = small("pipeline", stages=4, kernels=200, steps=5)
    write_traces(simulate(job), tmp_path / "traces")
    for path in (tmp_path / "traces").iterdir() if one_name else ():
        path.write_text(re.sub(r'"[^" ]*(gemm|nvjet)[^"]*"', '"gemm_bf16"', path.read_text()))
    lake = ingest_traces(tmp_path)
    diagnosis = lake.diagnose()
    assert not diagnosis.culprits
    (found,) = [one for one in diagnosis.of_all_ranks if one.cause == "unequal_stages"]
    rungs = diagnosis.lower_rungs
    assert found.rung == "balance"
    assert found.loss_ns == pytest.approx((rungs["overlap"] - rungs["balance"]) * found.seen.steps, rel=1e-5)
    compute = "select rank, sum(duration_ns) as ns from kernels where kind = 'compute' and step > 0 group by rank"
    busy = {row["rank"]: float(row["ns"]) for row in lake.sql(compute, arrow=True).to_pylist()}
    longest, mean = max(busy.values()), sum(busy.values()) / len(busy)
    assert found.ranks == tuple(sorted(rank for rank in busy if busy[rank] > mean))
    assert len(found.ranks) == len(busy) / job.stages
    assert 0 < found.loss_ns <= longest - mean < longest  # a step is no shorter than its longest stage
    assert diagnosis.headline == found
    assert "divide the work anew (the layers of a pipeline, the parts of a sequence); it costs " in diagnosis.verdict


def test_work_in_launches_of_another_size_makes_no_stage_longer(tmp_path):
    """Of the kernels of one size the first stage had twice as many, and was the longer one, with high confidence."""
    ingest_job(LayoutJob(26, shape="pipeline", row=2, ranks=4), tmp_path)
    for path in (tmp_path / "traces").iterdir():
        events = path.read_text()
        if "rank-2" in path.name or "rank-3" in path.name:
            events = re.sub(r'(kernel_[024]<[^{]*{[^{]*"grid": )\[128,', r"\1[512,", events)
        path.write_text(re.sub(r"kernel_\d", "gemm", events))
    jitter.ingest([tmp_path / "traces"], tmp_path / "resized")
    assert not jitter.open(tmp_path / "resized").diagnose().culprits


def test_equal_stages_of_one_rank_have_no_finding(tmp_path):
    assert not ingest_job(LayoutJob(26, shape="pipeline", ranks=4, noise=0.04), tmp_path).diagnose().culprits


@pytest.mark.parametrize("rank", [0, 2])
def test_a_stage_with_a_rank_that_lost_kernels_makes_the_other_one_no_longer(tmp_path, rank: int):
    write_traces(simulate(small("pipeline", stages=2, microbatches=3, kernels=108, seed=4)), tmp_path / "traces")
    chance = random.Random(4 + rank)
    lake = _ingest_without(tmp_path, rank, lambda event: event.table == "kernel" and chance.random() < 0.3)
    assert not {one.cause for one in lake.diagnose().culprits} & {"unequal_stages", "slow_stage"}


def test_a_rank_without_launches_makes_no_stage_longer(tmp_path):
    """Its kernels count where they start, most of them in no step."""
    write_traces(simulate(small("pipeline", ranks=6, stages=2, microbatches=3, kernels=98)), tmp_path / "traces")
    lake = _ingest_without(tmp_path, 2, lambda event: event.table == "cuda_runtime")
    assert not {one.cause for one in lake.diagnose().culprits} & {"unequal_stages", "slow_stage"}


def test_a_stage_with_more_layers_is_found_although_a_recording_of_another_one_ends_early(tmp_path):
    job = LONGER["of four"]
    ingest_job(job, tmp_path)
    ends = sorted(event.end_ns for event in list_events((tmp_path / "traces").glob("*rank-0.*")))
    lake = _ingest_without(tmp_path, 0, lambda event: event.end_ns > ends[int(0.9 * len(ends))])
    (found,) = [one for one in lake.diagnose().culprits if one.cause == "unequal_stages"]
    assert found.ranks == tuple(range(2 * job.columns, 3 * job.columns))


def _ingest_without(folder: Path, rank: int, is_lost: Callable[[Event], bool]) -> "jitter.Lake":
    """Ingest the traces of a folder, one of them without its lost events."""
    remove_events((folder / "traces").glob(f"*rank-{rank}.*"), is_lost)
    jitter.ingest([folder / "traces"], folder / "partial")
    return jitter.open(folder / "partial")


def test_a_stage_that_takes_longer_for_some_kernels_and_less_in_all_is_not_longer():
    def stage(team: int, gemm_us: float, attention_us: float) -> _Stage:
        kernels = {("gemm", 15): [1e3 * gemm_us] * 20, ("attention", 15): [1e3 * attention_us] * 10}
        whole_ns = sum(map(sum, kernels.values()))
        return _Stage(team, (team,), np.full(8, whole_ns), kernels)

    usual = [stage(team, 100.0, 95.0) for team in (1, 2, 3)]
    mixed = stage(0, 110.0, 50.0)
    assert _compare(mixed, [mixed, *usual]) == []
    slow = stage(0, 112.0, 106.4)
    (longer,) = _compare(slow, [slow, *usual])
    assert (longer.is_slow, longer.pace) == (True, pytest.approx(1.12))
    assert longer.excess_ns == pytest.approx(slow.median_ns - usual[0].median_ns)
