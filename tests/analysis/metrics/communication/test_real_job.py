"""A real job of four ranks: what the network did, against figures of an independent parser."""

import gzip
import json

import pytest

from jitter.analysis.metrics.collective_calls import UNKNOWN
from jitter.analysis.metrics.communication import Communication, tabulate_collectives, tabulate_ranks, tabulate_steps
from tests.support.real_recordings import TRACES, needs_traces
from tests.support.simulated import ingest_traces

JOB = TRACES / "kineto" / "amd-4rank"
pytestmark = needs_traces


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Communication:
    return ingest_traces(tmp_path_factory.mktemp("amd"), JOB).measure_collectives()


def parsed_all_reduces() -> list[list[tuple[float, int]]]:
    """Duration in µs and bytes of each rank's all-reduces, in their order, straight from the JSON."""
    ranks = []
    for rank in range(4):
        with gzip.open(JOB / f"rank-{rank}.json.gz", "rt") as file:
            events = json.load(file)["traceEvents"]
        kernels = sorted(
            (e for e in events if e.get("cat") == "kernel" and e["name"].startswith("nccl")), key=lambda e: e["ts"]
        )
        found = []
        for kernel in kernels:
            args = kernel["args"]
            if args.get("Collective name") == "allreduce":
                found.append((kernel["dur"], 4 * args["In msg nelems"]))
        ranks.append(found)
    return ranks


def test_fifteen_all_reduces_wait_for_rank_3(measured: Communication):
    calls = [
        (kind, time, wait, last)
        for step in measured.calls
        for number, time, wait, last in zip(*(column.tolist() for column in step[:4]), strict=True)
        if (kind := list(measured.kinds)[number]).operation == "all_reduce"
    ]
    assert len(calls) == 15
    assert {last for *_, last in calls} == {3}
    busbw = [(kind.size_bytes or 0) / time * 1.5 for kind, time, *_ in calls]
    # 5,030,288 B in 86.088 µs are 87.648 GB/s
    assert (min(busbw), max(busbw)) == (pytest.approx(87.648, abs=0.002), pytest.approx(130.4, abs=0.05))
    waits_ms = [wait / 1e6 for *_, wait, _ in calls]
    assert (round(min(waits_ms), 1), round(max(waits_ms), 1)) == (1.5, 11.7)


def test_times_are_those_of_the_trace(measured: Communication):
    by_rank = parsed_all_reduces()
    assert [len(found) for found in by_rank] == [15] * 4
    shortest = sorted(round(min(duration for duration, _ in call) * 1e3) for call in zip(*by_rank, strict=True))
    times = sorted(
        time
        for step in measured.calls
        for number, time in zip(step.kind.tolist(), step.time_ns.tolist(), strict=True)
        if list(measured.kinds)[number].operation == "all_reduce"
    )
    assert times == pytest.approx(shortest, abs=2)
    assert {size for _, size in by_rank[0]} == {
        kind.size_bytes for kind in measured.kinds if kind.operation == "all_reduce"
    }


def test_shares_add_up_to_the_step(measured: Communication):
    for row in [*tabulate_ranks(measured, {}), *tabulate_steps(measured)]:
        parts = (row.compute_ms, row.hidden_ms, row.exposed_ms, row.waiting_ms, row.copies_ms, row.idle_ms)
        assert sum(parts) == pytest.approx(row.step_ms)
        assert min(parts) >= 0
    ranks = tabulate_ranks(measured, {})
    assert ranks[3].waiting_ms < 0.01 < min(row.waiting_ms for row in ranks[:3])


def test_the_table_has_a_row_per_size(measured: Communication):
    rows = tabulate_collectives(measured)
    assert sorted(row.calls for row in rows) == [3] * 7
    assert {row.group_size for row in rows} == {4}
    assert all(row.last_rank not in (None, UNKNOWN) for row in rows)
