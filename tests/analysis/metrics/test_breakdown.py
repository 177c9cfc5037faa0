"""Times of groups of kernels across ranks, and the step by part, against sums over the rows."""

from pathlib import Path
from statistics import median_low
from typing import Any

import pytest

import jitter
from jitter.cli import main
from jitter.core.errors import UsageError
from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run

pytestmark = pytest.mark.slow
RANKS, STEPS = 4, 3


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    folder = tmp_path_factory.mktemp("breakdown")
    return ingest_run(simulate(Job(ranks=RANKS, steps=STEPS, kernels=24)), folder, "kineto")


@pytest.mark.parametrize("by", ["kernel", "phase", "stream"])
def test_groups_against_plain_sums(lake: "jitter.Lake", by: str):
    column = {"kernel": "kernel_name"}.get(by, by)
    expected: dict[tuple[Any, str], dict[int, int]] = {}
    counts: dict[tuple[Any, str], int] = {}
    totals = dict.fromkeys(range(RANKS), 0)
    for row in lake.sql(f"select {column} as name, kind, rank, duration_ns from kernels", arrow=True).to_pylist():
        key = "(not recorded)" if row["name"] is None and by != "stream" else row["name"], row["kind"]
        expected.setdefault(key, {}).setdefault(row["rank"], 0)
        expected[key][row["rank"]] += row["duration_ns"]
        counts[key] = counts.get(key, 0) + 1
        totals[row["rank"]] += row["duration_ns"]
    rows = lake.table(by=by, arrow=True).to_pylist()
    assert {(row[by], row["kind"]) for row in rows} == set(expected)
    assert [row["total_ns"] for row in rows] == sorted((row["total_ns"] for row in rows), reverse=True)
    for row in rows:
        own = expected[row[by], row["kind"]]
        per_step = {rank: time / STEPS for rank, time in own.items()}
        middle = median_low(per_step.values())
        assert row["ranks"] == len(own)
        assert row["count"] == pytest.approx(counts[row[by], row["kind"]] / STEPS / len(own))
        assert row["median_ns"] == round(middle)
        assert row["max_ns"] == round(per_step[row["max_rank"]]) == round(max(per_step.values()))
        assert row["min_ns"] == round(per_step[row["min_rank"]]) == round(min(per_step.values()))
        assert [row[f"rank_{rank}"] for rank in range(RANKS)] == [
            None if rank not in per_step else round(per_step[rank]) for rank in range(RANKS)
        ]
        assert row["lost_ns"] == (
            None if row["kind"] == "collective" else pytest.approx(max(per_step.values()) - middle, abs=1)
        )
        if by == "stream":
            shares = [time / totals[rank] for rank, time in own.items()]
            assert (row["min_share"], row["max_share"]) == pytest.approx((min(shares), max(shares)))


def test_the_parts_add_up(lake: "jitter.Lake"):
    rows = lake.table(by="step", arrow=True).to_pylist()
    assert len(rows) == RANKS * STEPS
    for row in rows:
        parts = [value for name, value in row.items() if name.endswith("_ns") and name != "step_ns"]
        assert len(parts) == 6
        assert sum(parts) == row["step_ns"]
        assert min(parts) >= 0
    assert lake.sql("from breakdown order by step, rank", arrow=True).to_pylist() == sorted(
        rows, key=lambda row: (row["step"], row["rank"])
    )


def test_one_step_and_some_ranks(lake: "jitter.Lake"):
    step = lake.step_keys[1].step
    assert {row["step"] for row in lake.table(by="step", step=step, arrow=True).to_pylist()} == {step}
    rows = lake.table(by="kernel", step=step, ranks=[2], arrow=True)
    assert [name for name in rows.schema.names if name.startswith("rank_")] == ["rank_2"]
    with pytest.raises(UsageError, match="no rank 9"):
        lake.table(by="kernel", ranks=[9])
    with pytest.raises(UsageError, match="no group"):
        lake.table(by="colour")


@pytest.mark.parametrize("by", ["kernel", "operator", "scope", "phase", "stream", "step"])
def test_the_verb(lake: "jitter.Lake", by: str, capsys: pytest.CaptureFixture[str]):
    assert main(["table", str(lake.root), "--by", by, "--ranks", "1"]) == 0
    out, err = capsys.readouterr()
    heading, *lines = out.splitlines()
    assert heading.split(",")[0] == {"step": "epoch"}.get(by, by)
    assert len(lines) == {"step": STEPS}.get(by, len(lines)) > 0
    assert err == ""


def test_a_slow_gpu_loses_time_in_its_kernels(tmp_path: Path):
    run = simulate(Job(ranks=4, steps=3, kernels=24), [Fault("slow_gpu", ranks=frozenset({2}), factor=1.5)])
    rows = ingest_run(run, tmp_path, "nsys").table(by="kernel", arrow=True).to_pylist()
    worst = max((row for row in rows if row["lost_ns"] is not None), key=lambda row: row["lost_ns"])
    assert worst["max_rank"] == 2
