"""A query is one SELECT over the lake: it writes nothing, reads nothing else, and is refused in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import jitter
from jitter.cli import main
from jitter.core.errors import UsageError
from jitter.simulate import Job, simulate
from tests.support.simulated import ingest_run


def state(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.rglob("*"))}


@pytest.mark.parametrize(
    "text",
    [
        "copy (select 1) to '{lake}/x.csv'",
        "copy kernels to '{lake}/x.parquet'",
        "create table x as select 1",
        "drop view kernels",
        "insert into ranks_rows select 1",
        "delete from ranks_rows",
        "attach '{lake}/x.db'",
        "set enable_external_access = true",
        "reset lock_configuration",
        "explain analyze copy (select 1) to '{lake}/x'",
        "export database '{lake}/x'",
        "install httpfs",
        "pragma database_list",
        "call pragma_version()",
        "set variable kernels_files = ['/etc/passwd']",
        "select 1; copy (select 1) to '{lake}/x.csv'",
        "pivot kernels on rank using count(*)",
    ],
)
def test_nothing_but_a_select(lake_root: Path, text: str):
    before = state(lake_root)
    with pytest.raises(UsageError, match=r"only a SELECT|2 statements|PIVOT"):
        jitter.open(lake_root).sql(text.format(lake=lake_root), arrow=True)
    assert state(lake_root) == before


@pytest.mark.parametrize(
    "text",
    [
        "from read_text('{outside}')",
        "from '{outside}'",
        "from read_blob('{lake}/../outside.csv')",
        "from glob('{folder}/*')",
        "select * from query('from read_text(''{outside}'')')",
        "from 'https://example.com/x.parquet'",
        "from duckdb_secrets()",
        "from read_csv(['{lake}/jitter.json', '{outside}'])",
    ],
)
def test_no_file_outside_the_lake(lake: "jitter.Lake", tmp_path: Path, text: str):
    outside = lake.root.parent / "outside.csv"
    outside.write_text("secret\n1\n")
    with pytest.raises(UsageError, match="no other file"):
        lake.sql(text.format(outside=outside, folder=outside.parent, lake=lake.root), arrow=True)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "from nope",
            "Table with name nope does not exist",
            "there are kernels, metrics, breakdown, steps, culprits, losses, waits, self_times",
        ),
        ("select nope from ranks", '"nope" not found', "Candidate bindings"),
        ("selec 1", 'syntax error at or near "selec"', "jitter query --relations"),
        ("", "0 statements", "give one SELECT"),
        ("select kernel_name::int from kernels", "Could not convert string", "jitter query --relations"),
        ("from metrics(2003)", "no step 2003", "epoch 1, step 2000 to epoch 1, step 2002"),
        ("from metrics('2000')", "takes the number of a step", "metrics(2003)"),
        ("from metrics(2000 + 1)", "takes the number of a step", "metrics(2003)"),
        ("from metrics()", "takes a step", "metrics(2003)"),
        ("from metrics(2000, 1, 1)", "takes a step", "metrics(2003)"),
        ("pivot ranks on rank", "must name its columns", "IN (0, 1, 2)"),
    ],
)
def test_said_in_one_line(lake_root: Path, capsys: pytest.CaptureFixture[str], text: str, message: str, hint: str):
    assert main(["query", str(lake_root), text]) == 2
    told = capsys.readouterr()
    lines = told.err.splitlines()
    assert len(lines) == 2
    assert message in lines[0]
    assert hint in lines[1]


def test_a_value_that_fails_on_the_way(lake: "jitter.Lake"):
    with pytest.raises(UsageError, match="Could not convert string 'x'"):
        lake.sql("select (case when i = 250000 then 'x' else '1' end)::int from range(300000) t(i)", arrow=True)


@pytest.mark.parametrize("form", ["relative", "dotted", "linked"])
def test_a_lake_by_any_path(lake_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(lake_root)
    path = {"relative": os.path.relpath(lake_root), "dotted": f"{tmp_path}/../{tmp_path.name}/link", "linked": "link"}[
        form
    ]
    lake = jitter.open(path)
    assert lake.sql("select count(distinct rank) as n from kernels", arrow=True).to_pylist() == [{"n": 3}]


def test_nothing_is_left_behind(lake_root: Path, tmp_path: Path):
    before = state(lake_root)
    subprocess.run(
        [sys.executable, "-m", "jitter", "query", str(lake_root), "select count(*) from metrics, host"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    assert state(lake_root) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_no_progress_bar_is_drawn_on_stdout(lake_root: Path):
    """DuckDB draws one where Python runs no script: `python -c`, a notebook."""
    setting = "select current_setting('enable_progress_bar') as bar"
    program = f'import jitter; print(jitter.open({str(lake_root)!r}).sql("{setting}", arrow=True).to_pylist())'
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[{'bar': False}]\n"


RACKS = pa.table({"host": ["node0000", "node0001"], "rack": ["a", "b"]})


@pytest.fixture(scope="module")
def own_lake(tmp_path_factory: pytest.TempPathFactory) -> "jitter.Lake":
    job = Job(ranks=4, steps=2, kernels=20, gpus_per_node=2)
    return ingest_run(simulate(job, []), tmp_path_factory.mktemp("frames"), "nsys")


def test_variables_of_the_caller_are_tables(own_lake: "jitter.Lake") -> None:
    weights = pd.DataFrame({"rank": [0, 1, 2, 3], "weight": [1, 2, 3, 4]})
    rows = own_lake.sql(
        "select rack, sum(weight) as weight from ranks join RACKS using (host) join weights using (rank) "
        "group by rack order by rack",
        arrow=True,
    ).to_pylist()
    assert rows == [{"rack": "a", "weight": 3}, {"rack": "b", "weight": 7}]
    assert list(weights.columns) == ["rank", "weight"]  # unchanged


def test_a_relation_goes_before_a_variable_of_its_name(own_lake: "jitter.Lake") -> None:
    ranks = pd.DataFrame({"rank": [99]})
    assert own_lake.sql("select count(*) as ranks from ranks", arrow=True).to_pylist() == [{"ranks": 4}]
    assert len(ranks) == 1


def test_other_variables_are_no_tables(own_lake: "jitter.Lake") -> None:
    numbers = [1, 2]
    with pytest.raises(UsageError, match="numbers does not exist"):
        own_lake.sql("select * from numbers", arrow=True)
    assert numbers


def test_columns_are_whole_numbers_or_floats(own_lake: "jitter.Lake") -> None:
    large = 2**127 - 1
    found = own_lake.sql(f"select sum(duration_ns) as a, 1.5 as b, {large} as c from kernels", arrow=True)
    assert [str(field.type) for field in found.schema] == ["int64", "double", "double"]
    assert found.to_pylist()[0]["b"] == 1.5
    assert found.to_pylist()[0]["c"] == pytest.approx(large)
