"""Each relation against an oracle that reads the lake's files."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import jitter
from jitter.analysis.diagnosis.model import ClassShares
from jitter.cli import main
from jitter.core.errors import LakeError, UsageError
from jitter.core.step_key import StepKey
from jitter.lake.layout import kernels_file
from jitter.query.run_query import describe_relations, prepare_query
from jitter.simulate import Fault, Job, simulate, write
from tests.support.oracles import metrics as oracle
from tests.support.random_lake import RandomLake, small_files
from tests.support.simulated import ingest_run

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
            column.name for one in describe_relations(lake) if one.name == name for column in one.columns
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
    for relation in describe_relations(lake):
        assert relation.sentence.endswith(".")
        table = lake.sql(f"from {relation.name} limit 0", arrow=True)
        assert [column.name for column in relation.columns] == table.column_names
        assert all(column.description and column.type for column in relation.columns)


@pytest.fixture(scope="session")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 2 of 6 is late in two of five steps."""
    folder = tmp_path_factory.mktemp("late")
    job = Job(ranks=6, steps=5, kernels=40, first_step=10)
    write(simulate(job, [Fault.parse("cpu_stall:rank=2,step=12+13,kernel=9,ms=3")]), folder / "traces", "nsys")
    jitter.ingest([folder / "traces"], folder / "lake", executor=jitter.LocalExecutor())
    return folder / "lake"


def test_answers_and_culprits_are_what_the_report_says(late: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["report", str(late), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
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
    lake, real, asked = jitter.open(late), jitter.Lake.diagnose, []

    def counted(self, steps=None, executor=None):
        asked.append(steps)
        return real(self, steps, executor)

    monkeypatch.setattr(jitter.Lake, "diagnose", counted)
    said = []
    lake.sql("from ranks", arrow=True)
    assert asked == []
    text = "select cause from steps union all select cause from culprits"
    with prepare_query(lake, text, say=said.append) as prepared, prepared.execute() as found:
        assert sum(batch.num_rows for batch in found) == 7
    assert asked == [None]
    assert said == ["diagnosing 5 steps"]


def test_a_healthy_run_has_no_culprits(tmp_path: Path):
    run = simulate(
        Job(ranks=3, steps=3, kernels=16, first_step=2000), [Fault.parse("extra_kernel:rank=1,step=2001,kernel=7")]
    )
    assert rows(ingest_run(run, tmp_path, "nsys"), "from culprits where rung = 'ranks'") == []
