"""Each relation against an oracle that reads the lake's files."""

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

import jitter
from jitter.analysis.diagnosis.diagnose import diagnose
from jitter.analysis.diagnosis.diagnosis import Diagnosis
from jitter.analysis.diagnosis.model import ClassShares, Loss, StepAnswer, WhatIf
from jitter.core.errors import LakeError, UsageError
from jitter.core.step_key import StepKey
from jitter.lake.layout import kernels_file
from jitter.query.run_query import describe_relations, prepare_query
from jitter.simulate import Fault, Job, simulate
from tests.support.databases import run_sql
from tests.support.lake_content import catalogue_is_records
from tests.support.oracles import metrics as oracle
from tests.support.printed import json_of
from tests.support.random_lake import RandomLake, small_files
from tests.support.simulated import ingest_run, small

BOTH = [StepKey(None, 7), StepKey(3, 7), StepKey(3, 12)]


def records(root: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted((root / "sources").glob("*.json"))]


def rows(lake: "jitter.Lake", text: str) -> list[dict]:
    return lake.sql(text, arrow=True).to_pylist()


def test_kernels(tmp_path: Path):
    made = RandomLake(tmp_path / "step=4" / "epoch=9" / "lake")
    for rank in range(4):
        made.put(rank, BOTH)
    lake = jitter.open(made.root)
    wanted = [
        {"epoch": key.epoch, "step": key.step} | row
        for key in BOTH
        for row in small_files(made.root, key, lake.ranks_of(key))
    ]
    found = rows(lake, "from kernels order by epoch nulls first, step, rank, ordinal")
    assert found == wanted
    some = rows(lake, "select * from kernels where step = 12 and rank > 1 order by rank, ordinal")
    assert some == [row for row in wanted if row["step"] == 12 and row["rank"] > 1]


def test_a_filter_on_the_step_opens_that_steps_files_only(tmp_path: Path):
    made = RandomLake(tmp_path / "lake")
    made.put(0, BOTH)
    lake = jitter.open(made.root)
    (made.root / kernels_file(BOTH[1], 0)).write_bytes(b"damaged")
    for key, where in ((BOTH[0], "step = 7 and epoch is null"), (BOTH[2], "step > 7")):
        wanted = len(small_files(made.root, key, [0]))
        assert rows(lake, f"select count(*) as n from kernels where {where}") == [{"n": wanted}]
    with pytest.raises(LakeError, match=r"step=7/rank=0\.parquet"):
        lake.sql("select count(rank) from kernels", arrow=True)


def test_what_a_query_does_not_name_is_not_read(lake: "jitter.Lake", tmp_path: Path):
    shutil.copytree(lake.root, tmp_path / "lake")
    copy = jitter.open(tmp_path / "lake")
    shutil.rmtree(tmp_path / "lake" / "kernels")
    assert rows(copy, "select count(*) as n from ranks, rank_steps") == [{"n": 27}]


def test_steps(lake: "jitter.Lake"):
    wanted = [
        {"source": record["digest"], "rank": record["rank"]} | step
        for record in records(lake.root)
        for step in record["steps"]
    ]
    found = rows(lake, "from rank_steps order by source, step")
    assert len(found) == 9
    assert found == [{name: row[name] for name in found[0]} for row in wanted]
    # where the times lie is for the analysis alone
    assert wanted[0].keys() - found[0].keys() == {"times"}
    assert found[0].keys() <= wanted[0].keys()


def test_sources_and_problems(lake: "jitter.Lake"):
    wanted = records(lake.root)
    found = rows(lake, "from sources order by digest")
    assert found == [{name: record[name] for name in found[0]} for record in wanted]
    assert [row["rank"] for row in found].count(None) == 1
    found = rows(lake, "from problems order by source, problem")
    assert found == [
        {"source": record["digest"], "file": record["file"], "rank": record["rank"], "problem": problem}
        for record in wanted
        for problem in sorted(record["problems"])
    ]
    assert any(row["file"].endswith("broken.sqlite") for row in found)


def test_ranks(lake: "jitter.Lake"):
    wanted = sorted((r for r in records(lake.root) if r["rank"] is not None), key=lambda record: record["rank"])
    columns = ("rank", "host", "device", "bus_id", "main_stream", "format")
    told = {"steps": 3, "numa": None, "conflicts": []}
    assert rows(lake, "from ranks order by rank") == [
        {name: record[name] for name in columns}
        | {"process": record["pid"]}
        | {f"{name}_from": None if record[name] is None else "recording" for name in ("host", "device", "bus_id")}
        | told
        for record in wanted
    ]


def test_host(lake: "jitter.Lake"):
    wanted = [
        {"rank": int(path.parent.name.removeprefix("rank="))} | row
        for path in (lake.root / "host").rglob("*.parquet")
        for row in pq.ParquetFile(path).read().to_pylist()
    ]
    assert wanted
    order = "order by rank, start_ns, name"
    assert rows(lake, f"from host {order}") == sorted(
        wanted, key=lambda row: (row["rank"], row["start_ns"], row["name"])
    )


def test_a_relation_without_rows(tmp_path: Path):
    made = RandomLake(tmp_path / "lake")
    made.put(0, BOTH)
    lake = jitter.open(made.root)
    for name in ("host", "problems"):
        empty = lake.sql(f"from {name}", arrow=True)
        assert empty.num_rows == 0
        assert empty.column_names == [
            column.name for one in describe_relations() if one.name == name for column in one.columns
        ]


def as_oracle(found: list[dict], key: tuple[int | None, int], root: Path) -> None:
    measured = {cohort: one for (step, cohort), one in oracle.measure(root).items() if step == key}
    wanted = {(cohort, *place): row for cohort, one in measured.items() for place, row in one.rows.items()}
    assert {(row["cohort"], row["rank"], row["position"]) for row in found} == wanted.keys()
    for row in found:
        want = wanted[row["cohort"], row["rank"], row["position"]]
        assert (row["epoch"], row["step"]) == key
        assert row["kernel_index"] == want["kernel_index"]
        for metric in oracle.METRICS:
            assert row[f"{metric}_ns"] == want[metric]
            if want["kernel_index"] is not None and want[metric] is not None:
                mean = oracle.means(measured[row["cohort"]], metric)[want["kernel_index"]]
                assert row[f"{metric}_deviation_ns"] == pytest.approx(float(want[metric] - mean), abs=1e-3)


def test_metrics_of_a_step(lake: "jitter.Lake"):
    found = rows(lake, "from metrics(2001)")
    as_oracle(found, (1, 2001), lake.root)
    assert rows(lake, "select count(*) as n from metrics(2001, 1) join metrics(2001, epoch_number := 1) using (rank)")
    assert None in {row["kernel_index"] for row in found}


def test_metrics_of_all_steps(lake: "jitter.Lake"):
    found = rows(lake, "from metrics")
    for step in (2000, 2001, 2002):
        as_oracle([row for row in found if row["step"] == step], (1, step), lake.root)
    assert {row["step"] for row in found} == {2000, 2001, 2002}


def test_only_the_steps_named_are_measured(lake: "jitter.Lake", monkeypatch: pytest.MonkeyPatch):
    measured = []
    real = type(lake).metrics

    def counted(self, key):
        measured.append(key.step)
        return real(self, key)

    monkeypatch.setattr(type(lake), "metrics", counted)
    lake.sql(
        "select a.rank from Metrics(2000) a join (from metrics(2002)) b using (rank) where rank in (select 1)",
        arrow=True,
    )
    assert measured == [2000, 2002]
    lake.sql("from kernels", arrow=True)
    assert measured == [2000, 2002]
    # a named step and all of them: all
    lake.sql("select 1 from metrics(2000) where rank in (select rank from metrics)", arrow=True)
    assert measured[2:] == [2000, 2001, 2002]


def test_a_step_number_in_two_epochs(tmp_path: Path):
    made = RandomLake(tmp_path / "lake")
    made.put(0, BOTH)
    lake = jitter.open(made.root)
    assert rows(lake, "select distinct epoch from metrics(7) order by 1") == [{"epoch": 3}, {"epoch": None}]
    assert rows(lake, "select distinct epoch, step from metrics(7, 3)") == [{"epoch": 3, "step": 7}]
    with pytest.raises(UsageError, match="no epoch 4, step 7"):
        lake.sql("from metrics(7, 4)", arrow=True)


def test_every_column_is_explained(lake: "jitter.Lake"):
    for relation in describe_relations():
        assert relation.sentence.endswith(".")
        table = lake.sql(f"from {relation.name} limit 0", arrow=True)
        assert [column.name for column in relation.columns] == table.column_names
        assert all(column.description and column.type for column in relation.columns)
    assert {row["name"] for row in rows(lake, "show tables")} == {one.name for one in describe_relations()}
    (counted,) = rows(lake, "select count(*) as n from duckdb_columns() where table_name = 'exits'")
    assert counted["n"] > 0


@pytest.fixture(scope="session")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 2 of 6 is late in two of five steps."""
    folder = tmp_path_factory.mktemp("late")
    job = Job(ranks=6, steps=5, kernels=40, first_step=10)
    ingest_run(simulate(job, [Fault.parse("cpu_stall:rank=2,step=12+13,kernel=9,ms=3")]), folder, "nsys")
    return folder / "lake"


def test_answers_and_culprits_are_what_the_report_says(late: Path, capsys: pytest.CaptureFixture[str]):
    told = json_of(capsys, "report", late, "--json")
    lake = jitter.open(late)
    found = rows(lake, "from steps order by step")
    assert [row["step"] for row in found] == [10, 11, 12, 13, 14]
    assert [row["max_rank"] for row in found][2:4] == [2, 2]
    for row, wanted in zip(found, told["steps"], strict=True):
        began = wanted.pop("divergence") or {"kernel_index": None, "kernel_name": None}
        classes = wanted.pop("split") or dict.fromkeys(ClassShares._fields)
        assert row == wanted | began | classes
    found = rows(lake, "from culprits")
    assert [(row["rung"], row["cause"], row["steps"]) for row in found] == [
        ("ranks", "cpu_launch", [12, 13]),
        ("sync", "sync_calls", [11, 12, 13, 14]),
    ]
    nowhere = {"file": None, "start_ns": None, "end_ns": None}
    for row, wanted in zip(found, told["culprits"], strict=True):
        index = wanted.pop("kernel_index") or {"first": None, "last": None}
        look = wanted.pop("look_at") or nowhere
        assert row == wanted | look | {"first_index": index["first"], "last_index": index["last"]}
    assert rows(lake, "select max(gain_ns) > 0 and max(steps.loss_ns) > 0 as both from culprits, steps") == [
        {"both": True}
    ]


def test_the_run_is_examined_once_and_only_if_asked_for(late: Path, monkeypatch: pytest.MonkeyPatch):
    examined = Mock(side_effect=diagnose)
    monkeypatch.setattr("jitter.analysis.diagnosis.diagnose.diagnose", examined)
    lake, said = jitter.open(late), []
    lake.sql("from ranks", arrow=True)
    assert not examined.called
    text = "select cause from steps union all select cause from culprits"
    with prepare_query(lake, text, say=said.append) as prepared, prepared.execute() as found:
        assert sum(batch.num_rows for batch in found) == 7
    assert examined.call_count == 1
    assert said == ["diagnosing 5 steps"]


RELATIONS = ("sources", "rank_steps", "problems")


@pytest.fixture
def root(lake_root: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(lake_root, tmp_path / "lake"))
    assert catalogue_is_records(copy)
    return copy


def rows_of_relation(root: Path, relation: str) -> list[dict[str, object]]:
    found = jitter.open(root).sql(f"from {relation}", arrow=True).to_pylist()
    assert found
    return sorted(found, key=str)


def change(root: Path, statement: str) -> None:
    run_sql(root / "catalog.sqlite", statement)


def test_relations_are_the_records_whatever_the_catalog_holds(root: Path):
    wanted = {relation: rows_of_relation(root, relation) for relation in RELATIONS}
    path = root / "catalog.sqlite"
    change(root, "UPDATE sources SET file = 'changed'")
    content = path.read_bytes()
    assert {relation: rows_of_relation(root, relation) for relation in RELATIONS} == wanted
    assert path.read_bytes() == content
    path.unlink()
    assert {relation: rows_of_relation(root, relation) for relation in RELATIONS} == wanted
    assert not path.exists()


@pytest.fixture(scope="module")
def graph_lake(tmp_path_factory: pytest.TempPathFactory) -> jitter.Lake:
    run = simulate(small(), [Fault.parse("late_start:rank=1,step=2,ms=3")])
    return ingest_run(run, tmp_path_factory.mktemp("graph"), "nsys")


def test_times_on_the_gpu_are_the_durations_of_kernels(graph_lake: jitter.Lake):
    compute = "select step, rank, sum({}) as ns from {} where {} group by all order by all"
    own = compute.format("gpu_ns", "self_times", "gpu_ns > 0")
    recorded = compute.format("duration_ns", "kernels", "kind <> 'collective'")
    assert graph_lake.sql(own, arrow=True).to_pylist() == graph_lake.sql(recorded, arrow=True).to_pylist()


def test_the_baseline_is_the_lower_median_over_ranks(graph_lake: jitter.Lake):
    assert not graph_lake.sql(
        "select operation from self_times group by step, operation "
        "having quantile_disc(host_ns, 0.5) <> any_value(usual_host_ns) or count(distinct usual_gpu_ns) > 1",
        arrow=True,
    ).num_rows


def test_all_wait_in_collectives_for_the_late_rank(graph_lake: jitter.Lake):
    rows = graph_lake.sql(
        "select rank, waited_ns from collective_calls where step = 2 "
        "qualify collective = min(collective) over () order by rank",
        arrow=True,
    ).to_pylist()
    waited = {row["rank"]: row["waited_ns"] for row in rows}
    assert waited.pop(1) == 0
    assert all(ns > 1e6 for ns in waited.values())


def test_waits_name_operations_of_the_program(graph_lake: jitter.Lake):
    waits = graph_lake.waits(arrow=True).to_pylist()
    assert waits
    names = {
        (row["team"], row["operation"]): row["kernel_name"]
        for row in graph_lake.sql(
            "select distinct team, operation, kernel_name from self_times", arrow=True
        ).to_pylist()
    }
    for wait in waits:
        assert names[wait["team"], wait["operation"]] == wait["kernel_name"]
        if wait["on_operation"] is not None:
            assert names[wait["team"], wait["on_operation"]] == wait["on_kernel_name"]


def test_the_same_tables_in_python(graph_lake: jitter.Lake):
    assert (
        graph_lake.self_times(arrow=True).num_rows
        == graph_lake.sql("select count(*) as n from self_times", arrow=True).to_pylist()[0]["n"]
    )
    assert set(graph_lake.self_times([2], arrow=True)["step"].to_pylist()) == {2}
    calls = graph_lake.sql("select count(*) as n from collective_calls", arrow=True).to_pylist()[0]["n"]
    assert graph_lake.collective_calls(arrow=True).num_rows == calls > 0


NS = 1.0


@pytest.fixture(scope="module", params=["data_parallel", "tensor_parallel", "pipeline", "expert"])
def lake_of_slow_gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> jitter.Lake:
    faults, folder = ["slow_gpu:rank=2,factor=1.4"], tmp_path_factory.mktemp("losses")
    return lake_with(faults, folder, ranks=4, kernels=120, shape=request.param)


def lake_with(faults: list[str], folder: Path, **options: Any) -> jitter.Lake:
    job = Job(**{"steps": 5, "first_step": 100, "seed": 4, **options})
    return ingest_run(simulate(job, [Fault.parse(one) for one in faults]), folder)


def test_the_rows_of_a_step_add_up_to_its_loss(lake_of_slow_gpu: jitter.Lake):
    told = {one.key.step: one.loss_ns for one in lake_of_slow_gpu.diagnose().steps if one.loss_ns is not None}
    found = lake_of_slow_gpu.sql(
        "select step, sum(loss_ns) as ns from losses group by step order by step", arrow=True
    ).to_pylist()
    assert [row["step"] for row in found] == sorted(told)
    for row in found:
        assert row["ns"] == pytest.approx(told[row["step"]], abs=NS)


def test_a_slow_gpu_has_most_of_the_loss(lake_of_slow_gpu: jitter.Lake):
    of_ranks = lake_of_slow_gpu.sql(
        "select rank, class, sum(loss_ns) as ns from losses group by all order by ns desc limit 1", arrow=True
    ).to_pylist()
    assert [(row["rank"], row["class"]) for row in of_ranks] == [(2, "gpu")]


def test_a_hidden_rank_has_an_excess_and_hardly_a_share(tmp_path: Path):
    faults = ["late_start:rank=1,step=103,ms=3", "slow_gpu:rank=4,factor=1.2,step=103"]
    rows = lake_with(faults, tmp_path, ranks=6, kernels=60, noise=0.005).sql(
        "select rank, class, sum(loss_ns) as loss_ns, sum(excess_ns) as excess_ns from losses "
        "where step = 103 group by all",
        arrow=True,
    )
    found = {(row["rank"], row["class"]): row for row in rows.to_pylist()}
    hidden, late = found[4, "gpu"], found[1, "start"]
    assert hidden["excess_ns"] > 300_000
    assert hidden["loss_ns"] < hidden["excess_ns"] / 2
    assert late["loss_ns"] == pytest.approx(3e6, rel=0.1)


def test_the_phase_is_that_of_the_kernel(tmp_path: Path):
    fault = Fault.parse("slow_gpu:rank=2,factor=1.4")
    lake = ingest_run(simulate(Job(ranks=4, steps=3, kernels=60, seed=4), [fault]), tmp_path, "kineto")
    recorded = lake.sql("select kernel_name, phase from kernels where rank = 2 group by all", arrow=True).to_pylist()
    phases: dict[str, set[str | None]] = {}
    for row in recorded:
        phases.setdefault(row["kernel_name"], set()).add(row["phase"])
    rows = lake.sql("select kernel_name, phase, operation from losses where rank = 2", arrow=True).to_pylist()
    named = [row for row in rows if row["operation"] is not None and row["kernel_name"] in phases]
    assert len({row["phase"] for row in named}) > 1
    assert all(row["phase"] in phases[row["kernel_name"]] for row in named)
    assert all(row["phase"] is None for row in rows if row["operation"] is None)


@pytest.mark.parametrize(
    ("losses", "costliest"),
    [
        ((None, 5, 7, 7), 2),
        ((None, -5, -2), 2),  # known, if less than nothing
        ((None, 0), 1),
        ((None, None), 0),
        ((3,), 0),
    ],
)
def test_the_costliest_step(losses, costliest):
    unknown = (None,) * 5
    steps = tuple(StepAnswer(StepKey(1, n), 1000, ns, *unknown, "none") for n, ns in enumerate(losses))
    assert Diagnosis(Loss(None, None), steps, (), WhatIf(None, None), 0).costliest.key.step == costliest
