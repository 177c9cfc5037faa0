"""The relations of the graph against the recorded kernels: own times, waits, collective calls."""

import pytest

import jitter
from jitter.simulate import Fault, simulate
from tests.support.simulated import ingest_run, small


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> jitter.Lake:
    run = simulate(small(), [Fault.parse("late_start:rank=1,step=2,ms=3")])
    return ingest_run(run, tmp_path_factory.mktemp("graph"), "nsys")


def test_times_on_the_gpu_are_the_durations_of_kernels(lake: jitter.Lake):
    compute = "select step, rank, sum({}) as ns from {} where {} group by all order by all"
    own = compute.format("gpu_ns", "self_times", "gpu_ns > 0")
    recorded = compute.format("duration_ns", "kernels", "kind <> 'collective'")
    assert lake.sql(own, arrow=True).to_pylist() == lake.sql(recorded, arrow=True).to_pylist()


def test_the_baseline_is_the_lower_median_over_ranks(lake: jitter.Lake):
    assert not lake.sql(
        "select operation from self_times group by step, operation "
        "having quantile_disc(host_ns, 0.5) <> any_value(usual_host_ns) or count(distinct usual_gpu_ns) > 1",
        arrow=True,
    ).num_rows


def test_all_wait_in_collectives_for_the_late_rank(lake: jitter.Lake):
    rows = lake.sql(
        "select rank, waited_ns from collective_calls where step = 2 "
        "qualify collective = min(collective) over () order by rank",
        arrow=True,
    ).to_pylist()
    waited = {row["rank"]: row["waited_ns"] for row in rows}
    assert waited.pop(1) == 0
    assert all(ns > 1e6 for ns in waited.values())


def test_waits_name_operations_of_the_program(lake: jitter.Lake):
    waits = lake.waits(arrow=True).to_pylist()
    assert waits
    names = {
        (row["team"], row["operation"]): row["kernel_name"]
        for row in lake.sql("select distinct team, operation, kernel_name from self_times", arrow=True).to_pylist()
    }
    for wait in waits:
        assert names[wait["team"], wait["operation"]] == wait["kernel_name"]
        if wait["on_operation"] is not None:
            assert names[wait["team"], wait["on_operation"]] == wait["on_kernel_name"]


def test_the_same_tables_in_python(lake: jitter.Lake):
    assert (
        lake.self_times(arrow=True).num_rows
        == lake.sql("select count(*) as n from self_times", arrow=True).to_pylist()[0]["n"]
    )
    assert set(lake.self_times([2], arrow=True)["step"].to_pylist()) == {2}
    calls = lake.sql("select count(*) as n from collective_calls", arrow=True).to_pylist()[0]["n"]
    assert lake.collective_calls(arrow=True).num_rows == calls > 0
