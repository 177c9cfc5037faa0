"""The generator of waits without a record, and what the diagnosis says of some of its jobs."""

from dataclasses import replace

import pytest

from tests.accuracy.irregular.engine import Engine, Op
from tests.accuracy.irregular.job import Fault, IrregularJob
from tests.accuracy.irregular.programs import duration_ns, run_job
from tests.accuracy.irregular.scoring import IrregularScore, score
from tests.accuracy.irregular.table import is_right, waits_table, wrong_prices
from tests.accuracy.irregular.waits import JOBS, REPORTED, TUNING, case

BASE = IrregularJob(0, "overlapped", 4, 8, 24, "waits", noise=0.01, synchronises=False)


def test_a_host_waits_for_one_operation_and_records_it_or_not():
    def host(*, recorded: bool) -> list[Op]:
        kernels = [Op("kernel", 0, ns, mark=(name,)) for name, ns in (("short", 50_000.0), ("long", 500_000.0))]
        wait = Op("wait", 0, mark=("short",), recorded=recorded)
        return [Op("step", 0), *kernels, wait, Op("kernel", 0, 1_000.0), Op("end", 0)]

    for recorded in (True, False):
        (trace,) = Engine([host(recorded=recorded)], 0.0).run()
        short, long, after = trace.items
        assert short.end_ns < after.call_start_ns == short.end_ns + 4_000 < long.end_ns
        assert len(trace.syncs) == recorded


def test_a_wait_for_what_was_not_launched_holds_nothing_up():
    (trace,) = Engine(
        [[Op("step", 0), Op("wait", 0, mark=("nothing",)), Op("kernel", 0, 1.0), Op("end", 0)]], 0.0
    ).run()
    assert trace.items[0].call_start_ns == 4_000


def test_seeds_reach_every_wait_shape_and_fault():
    assert TUNING + 10 * JOBS < REPORTED
    jobs = [case(seed) for seed in range(REPORTED, REPORTED + JOBS)]
    assert {job.wait for job, _ in jobs} == {"", "end", "middle", "ahead", "limiter"}
    assert {job.shape for job, _ in jobs} == {"overlapped", "sharded", "blocking"}
    assert {fault for _, fault in jobs} == {"", "slow_gpu", "late"}
    assert {job.wait_rows for job, _ in jobs if job.wait} == {True, False}
    assert all(not fault for job, fault in jobs if not job.wait)


def _score(job: IrregularJob, fault: str = "") -> IrregularScore:
    return score(0, lambda _: (job, fault))


@pytest.mark.parametrize(
    ("wait", "shape"),
    [
        ("end", "overlapped"),
        ("middle", "overlapped"),
        ("ahead", "overlapped"),
        # the first gather waits for the GPU, and its launch for the host
        ("ahead", "sharded"),
        ("limiter", "sharded"),
    ],
)
def test_a_slow_gpu_is_priced_although_no_call_says_that_hosts_wait(wait: str, shape: str):
    found = _score(replace(BASE, shape=shape, wait=wait, faults=(Fault("slow_gpu", (2,), 1.3),)), "slow_gpu")
    assert found.outcome == "right"
    assert is_right(found), wrong_prices([found])


def test_a_wait_of_every_layer_is_known_by_the_layers_that_show_it():
    """The later layers' waits always bind: their gaps vary no more than the distances to the ends."""
    job = replace(BASE, shape="sharded", wait="limiter", after_wait=0.1, host_noise=0.15, noise=0.02, loader=0.15)
    found = _score(replace(job, seed=3, steps=10, kernels=36, faults=(Fault("slow_gpu", (2,), 1.35),)), "slow_gpu")
    assert [one.right for one in found.findings] == [True]
    assert found.told_ns == pytest.approx(found.gain_ns, rel=0.05)


def test_a_rank_that_never_waits_does_not_tell_what_the_others_do_before_they_wait():
    job, fault = case(REPORTED + 124)
    assert (job.wait, job.wait_rows, fault) == ("ahead", False, "late")
    found = _score(job, fault)
    assert found.outcome == "right"
    assert found.told_ns == pytest.approx(found.gain_ns, rel=0.05)


@pytest.mark.parametrize("shape", ["overlapped", "sharded", "blocking"])
def test_a_stalled_loader_is_not_blamed_on_the_ranks_that_wait_for_it(shape: str):
    fault = Fault("late", (1,), 1.5, (3, 6))
    found = _score(replace(BASE, shape=shape, ranks=8, wait="end", faults=(fault,)), "late")
    assert found.outcome in ("right", "lead")
    assert all(one.right for one in found.findings)
    assert found.told_ns == pytest.approx(found.gain_ns, rel=0.05)


def test_nobody_is_cleared_where_waits_may_be():
    """In four steps nothing tells a wait from the host's own time: if hosts wait, rank 1 costs half of the run."""
    job = replace(BASE, steps=4, wait="end", wait_on="device", after_wait=0.1, loader=0.15)
    found = _score(replace(job, faults=(Fault("late", (1,), 1.2),)), "late")
    assert found.outcome == "silent"
    assert "if they are waits, jitter costs" in found.verdict
    assert "if they are waits" not in _score(replace(job, wait="", after_wait=0.0)).verdict


def test_one_stall_that_is_most_of_the_loss_is_named():
    """Loaders vary so much that chance may cause it, but it did cost the time."""
    job, fault = case(REPORTED + 90)
    assert (fault, job.faults[0].steps) == ("late", (1,))
    found = _score(job, fault)
    assert (found.outcome, [(one.confidence, one.recurs) for one in found.findings]) == ("right", [("high", "unknown")])
    assert found.told_ns == pytest.approx(found.gain_ns, rel=0.05)
    assert not _score(job.without(*job.faults)).findings


@pytest.mark.parametrize(
    "special",
    [{"launch": 12.0, "host_noise": 0.2}, {"loader": 1.5}, {"pace": 1.5}, {"wait": "end", "wait_rows": True}],
    ids=["launch-bound", "loader", "paced loader", "waits with rows"],
)
def test_no_wait_is_invented(special: dict[str, float]):
    found = _score(replace(BASE, **special))  # type: ignore[arg-type]
    assert found.invented == 0
    assert is_right(found)


def test_the_truth_is_the_engines_run_without_the_fault():
    fault = Fault("slow_gpu", (2,), 1.3)
    job = replace(BASE, wait="end", faults=(fault,))
    assert duration_ns(run_job(job)) > 1.1 * duration_ns(run_job(job, fault))
    assert duration_ns(run_job(job, fault)) == duration_ns(run_job(job.without(fault)))


def test_the_table_counts_wrong_prices_and_invented_waits():
    right = IrregularScore(1, "end", "late", "right", (), 100.0, 95.0, None, "", "")
    ranged = right._replace(told_ns=50.0, told_range_ns=(50.0, 105.0))
    wrong, invented = right._replace(told_ns=50.0), right._replace(fault="", outcome="silent", invented=2)
    assert [is_right(one) for one in (right, ranged, wrong, invented)] == [True, True, False, False]
    assert len(wrong_prices([right, ranged, wrong, invented])) == 4
    assert any("66.7% of 3" in line for line in waits_table([right, ranged, wrong, invented]))
