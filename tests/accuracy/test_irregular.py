"""The generator of irregular jobs: its engine keeps the order of events, its truth is the job without the fault."""

import json
from dataclasses import replace

import pytest

import jitter
from tests.accuracy.irregular.cases import COMBINATIONS, EFFECTS, FAULTS, REPORTED, TUNING, case
from tests.accuracy.irregular.engine import GAP_NS, LAUNCH_NS, Comm, Engine, Op
from tests.accuracy.irregular.job import Fault, IrregularJob
from tests.accuracy.irregular.programs import duration_ns, run_job
from tests.accuracy.irregular.scoring import score, write_job
from tests.accuracy.irregular.table import table

JOB = IrregularJob(seed=3, shape="blocking", ranks=4, steps=4, kernels=24, effect="plain")


def test_a_collective_ends_when_its_last_rank_has_come_and_compute_beside_it_is_slower():
    comm = Comm("allreduce", "0", (0, 1), 1)

    def program(work: float) -> list[Op]:
        meeting = Op("collective", 0, 10_000.0, 5_000.0, 20, meeting=("all",), members=2, comm=comm)
        return [Op("step", 0), Op("kernel", 0, work), meeting, Op("kernel", 0, 50_000.0), Op("sync", 0), Op("end", 0)]

    early, late = Engine([program(20_000.0), program(100_000.0)], interference=0.25).run()
    kernel, together, beside = early.items
    assert (kernel.start_ns, kernel.end_ns) == (LAUNCH_NS, LAUNCH_NS + 20_000)
    assert together.start_ns == kernel.end_ns + 1_500
    last = late.items[1]
    assert together.end_ns == last.end_ns == last.start_ns + 10_000 > late.items[0].end_ns + 10_000
    alone = together.start_ns - (kernel.end_ns + GAP_NS)  # ns before the collective begins
    assert beside.end_ns - beside.start_ns == pytest.approx(alone + (50_000 - alone) * 1.25)
    assert late.items[2].end_ns - late.items[2].start_ns < 62_500  # the collective ends before it does
    assert early.syncs[0][2] > beside.end_ns


def test_ranks_that_wait_for_each_other_for_ever_are_an_error():
    comm = Comm("allreduce", "0", (0, 1), 1)
    lonely = Op("collective", 0, 1.0, 1.0, 20, meeting=("all",), members=2, comm=comm)
    with pytest.raises(RuntimeError, match="for ever"):
        Engine([[lonely], []], 0.0).run()


def test_the_same_seed_runs_the_same_and_a_fault_changes_nothing_else():
    fault = Fault("late", (2,), 0.5)
    faulty = replace(JOB, faults=(fault,))
    assert duration_ns(run_job(JOB)) == duration_ns(run_job(JOB)) == duration_ns(run_job(faulty, fault))
    clean, hit = run_job(JOB), run_job(faulty)
    assert duration_ns(hit) > 1.2 * duration_ns(clean)
    for rank in (0, 1, 3):
        works = [[item.op.ns for item in run[rank].items] for run in (clean, hit)]
        assert works[0] == works[1]


def test_a_fault_slows_what_it_should():
    slow = run_job(replace(JOB, faults=(Fault("slow_gpu", (1,), 1.5),)))
    more = run_job(replace(JOB, faults=(Fault("more_work", (1,), 1.5),)))
    clean = run_job(JOB)

    def factor(run: list, name: str) -> float:
        took = [sum(i.end_ns - i.start_ns for i in one[1].items if name in i.op.name) for one in (run, clean)]
        return took[0] / took[1]

    assert factor(slow, "gemm") == pytest.approx(1.5)
    assert factor(slow, "optimizer") == pytest.approx(1.25)
    assert factor(more, "attention") == pytest.approx(2.25)
    assert factor(more, "optimizer") == pytest.approx(1.0)
    grids = [{i.op.grid for i in run[1].items if "gemm_0" in i.op.name} for run in (slow, more, clean)]
    assert grids[0] == grids[2] != grids[1]


def test_traces_are_read_as_they_ran(tmp_path):
    for naming in ("column", "pair", "direction"):
        job = replace(
            JOB, shape="pipeline", ranks=6, stages=3, microbatches=3, naming=naming, kernels=9, seed=len(naming)
        )
        folder = tmp_path / naming
        folder.mkdir()
        ran = write_job(job, folder)
        document = json.loads((folder / "rank-3.pt.trace.json").read_text())
        assert document["distributedInfo"] == {"backend": "nccl", "rank": 3, "world_size": 6}
        jitter.ingest([folder], tmp_path / f"{naming}-lake")
        lake = jitter.open(tmp_path / f"{naming}-lake")
        assert sorted(lake.ranks) == list(range(6))
        # the first step has no known time
        told = [step.step_time_ns for step in lake.diagnose().steps][1:]
        assert sum(told) == pytest.approx(duration_ns(ran), rel=0.05)


def test_seeds_reach_every_effect_and_fault():
    assert TUNING + 10 * len(COMBINATIONS) < REPORTED
    seen = [case(seed) for seed in range(REPORTED, REPORTED + len(COMBINATIONS))]
    assert {job.effect for job, _ in seen} == set(EFFECTS)
    assert {fault for _, fault in seen} == {"", *FAULTS}
    assert all(bool(job.faults) == bool(fault) for job, fault in seen)
    assert all(job.absent == job.faults[0].ranks for job, fault in seen if fault == "unrecorded")


def test_a_crash_is_an_outcome_and_the_table_counts_it(monkeypatch):
    monkeypatch.setattr("tests.accuracy.irregular.scoring.write_job", lambda *_: 1 / 0)
    scores = [score(REPORTED), score(REPORTED + 1)]
    assert [one.outcome for one in scores] == ["crash", "crash"]
    assert any("ZeroDivisionError" in one.verdict for one in scores)
    assert any("crash" in line for line in table(scores))


def test_a_clear_fault_is_found_with_its_price():
    found = score(_seed("plain", "slow_gpu"))
    assert found.outcome in ("right", "small")
    assert found.gain_ns == pytest.approx(found.told_ns, rel=0.1)


def test_a_network_that_is_slow_for_all_is_never_cleared():
    """One run cannot show it: its links are not cleared, and the score says so."""
    found = score(_seed("plain", "slow_network"))
    assert found.outcome in ("hedged", "right", "lead", "small")
    assert found.outcome != "hedged" or "is not excluded" in found.verdict


def test_the_price_of_a_fault_is_compared_without_what_else_is_true_of_the_job():
    """Random pauses are found beside the slow GPU: fixing both would save a third more."""
    found = score(_seed("collection pauses", "slow_gpu"))
    assert len(found.findings) > 1
    assert found.gain_ns == pytest.approx(found.told_ns, rel=0.05)


def test_in_half_of_few_steps_three_ranks_are_late():
    found = score(9_650_125)
    assert (found.outcome, found.told_ns) == ("right", pytest.approx(found.gain_ns, rel=0.05))
    assert "Ranks 0,8-9 start their steps late" in found.verdict


def _seed(effect: str, fault: str) -> int:
    return next(seed for seed in range(TUNING, REPORTED) if COMBINATIONS[seed % len(COMBINATIONS)] == (effect, fault))
