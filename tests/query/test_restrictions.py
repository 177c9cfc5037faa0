"""Queries: what they may do, and the forms of their rows."""

import csv
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jitter
from jitter.cli import main
from jitter.cli.commands import query
from jitter.core.errors import UsageError
from jitter.simulate import Job, simulate
from tests.support.forked_command import run_forked
from tests.support.printed import output_of
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
    words = ("query", lake_root, "select count(*) from metrics, host")
    assert run_forked(*words, cwd=tmp_path, temporary=tmp_path).returncode == 0
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


BIG = """
select rank, sum(start_ns)::hugeint * 1000003 as s, avg(duration_ns) as a, null as n
from kernels group by rank order by rank
"""


def test_forms_agree_to_the_last_digit(lake_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sums = {
        rank: [
            row["start_ns"]
            for row in jitter.open(lake_root).sql(f"from kernels where rank = {rank}", arrow=True).to_pylist()
        ]
        for rank in range(3)
    }
    wanted = [sum(starts) * 1000003 for starts in sums.values()]
    assert min(wanted) > 2**53
    csv_rows = list(csv.DictReader(io.StringIO(output_of(capsys, "query", lake_root, BIG))))
    json_said = json.loads(output_of(capsys, "query", lake_root, BIG, "--format", "json"))
    output_of(capsys, "query", lake_root, BIG, "-o", tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert json_said["schema_version"] == 1
    assert [int(row["s"]) for row in csv_rows] == wanted
    assert [row["s"] for row in json_said["rows"]] == wanted
    assert [int(row["s"]) for row in table] == wanted
    assert (
        [float(row["a"]) for row in csv_rows] == [row["a"] for row in json_said["rows"]] == [row["a"] for row in table]
    )
    assert {row["n"] for row in csv_rows} == {""}
    assert {row["n"] for row in json_said["rows"]} == {row["n"] for row in table} == {None}


def test_values_of_other_kinds(lake_root: Path, capsys: pytest.CaptureFixture[str]):
    text = "select [1, null] as l, true as t, date '2020-02-01' as d, 'a,\"b' as s, 1.25::decimal(5, 2) as p, '' as e"
    assert output_of(capsys, "query", lake_root, text) == 'l,t,d,s,p,e\n"[1, null]",true,2020-02-01,"a,""b",1.25,\n'
    row = json.loads(output_of(capsys, "query", lake_root, text, "--format", "json"))["rows"][0]
    assert row == {"l": [1, None], "t": True, "d": "2020-02-01", "s": 'a,"b', "p": "1.25", "e": ""}


def test_many_batches(lake_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = "select i from range(250000) t(i) order by i"
    for form in ("csv", "json", "parquet"):
        output_of(capsys, "query", lake_root, text, "-o", tmp_path / f"x.{form}")
    wanted = list(range(250000))
    assert (tmp_path / "x.csv").read_text() == "i\n" + "".join(f"{i}\n" for i in wanted)
    assert [row["i"] for row in json.loads((tmp_path / "x.json").read_text())["rows"]] == wanted
    assert pq.read_table(tmp_path / "x.parquet")["i"].to_pylist() == wanted


def test_no_rows(lake_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = "select rank from ranks where rank > 99"
    assert output_of(capsys, "query", lake_root, text) == "rank\n"
    assert json.loads(output_of(capsys, "query", lake_root, text, "--format", "json"))["rows"] == []
    output_of(capsys, "query", lake_root, text, "-o", tmp_path / "x.parquet")
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 0


def test_text_is_for_people_and_takes_no_orders(lake_root: Path, capsys: pytest.CaptureFixture[str]):
    text = "select '[red]x[/red]' as \"[b]name\", chr(27) || '[31m' as colour, 7 as n, null as nothing"
    shown = output_of(capsys, "query", lake_root, text, "--format", "text")
    assert "[red]x[/red]" in shown
    assert "[b]name" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize(("width", "count"), [(50, 3), (90, 4)])
def test_columns_that_do_not_fit_a_terminal_are_left_out(
    width: int,
    count: int,
    lake_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    text = f"select 1234567890 as a, '{'w ' * 40}' as b, 0.123456789012 as c, '{'v' * 40}' as d"
    assert (
        max(map(len, output_of(capsys, "query", lake_root, text, "--format", "text").splitlines())) > 120
    )  # in a pipe
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["query", str(lake_root), text]) == 0
    out, err = capsys.readouterr()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()
    assert lines[0].split() == ["a", "b", "c", "d"][:count]
    assert max(map(len, lines)) <= width
    assert "1234567890" in lines[1]
    assert "0.123456789012" in lines[1]  # no number is broken
    assert ("3 of 4 columns fit the terminal" in err) == (count == 3)


def test_text_says_what_it_leaves_out(lake_root: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["query", str(lake_root), "select i from range(1001) t(i)", "--format", "text"]) == 0
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 1001
    assert "first 1000 rows" in told.err


def test_two_columns_of_one_name(lake_root: Path, capsys: pytest.CaptureFixture[str]):
    text = "select 1 as a, 2 as a"
    assert output_of(capsys, "query", lake_root, text) == "a,a\n1,2\n"
    assert main(["query", str(lake_root), text, "--format", "json"]) == 2
    assert "two columns have the name a" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_only_files_of_ours_are_replaced(
    lake_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
):
    target = tmp_path / f"x.{form}"
    for text in ("select 1 as n", "select 2 as n"):
        output_of(capsys, "query", lake_root, text, "-o", target)
    target.write_text("mine\nn\n1\n")
    assert main(["query", str(lake_root), "select 1 as n", "-o", str(target)]) == 2
    assert target.read_text() == "mine\nn\n1\n"
    output_of(capsys, "query", lake_root, "select 1 as n", "-o", target, "--force")
    assert target.read_bytes() != b"mine\nn\n1\n"


def test_a_query_that_fails_leaves_no_file(lake_root: Path, tmp_path: Path):
    text = "select (case when i = 250000 then 'x' else '1' end)::int from range(300000) t(i)"
    for form in ("csv", "json", "parquet"):
        assert main(["query", str(lake_root), text, "-o", str(tmp_path / f"x.{form}")]) == 2
    assert list(tmp_path.iterdir()) == []


def test_how_it_is_called(
    lake_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jitter-lake").symlink_to(lake_root)
    assert output_of(capsys, "query", "select count(*) as n from ranks") == "n\n3\n"
    assert "kernels: " in output_of(capsys, "query", "--relations")
    for words in ([], ["a", "b", "select 1"]):
        assert main(["query", *words]) == 2
        assert "one SELECT in quotes" in capsys.readouterr().err
    assert main(["query", "jitter-lake"]) == 2  # a lake is no query
    assert capsys.readouterr().err.startswith("jitter: no query is given\n")
    assert main(["query", "nowhere", "select 1"]) == 3


def test_what_takes_long_is_said(lake_root: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["query", str(lake_root), "select count(*) from metrics"]) == 0
    assert "computing the metrics of 3 steps" in capsys.readouterr().err
    assert main(["query", str(lake_root), "select count(*) from metrics(2000)"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("form", ["csv", "json", "text", "parquet"])
@pytest.mark.parametrize(
    "value",
    ["'infinity'::date", "timestamp '290000-01-01'", "date '0001-01-01 (BC)'", "interval 3 month", "[interval 1 day]",
     "timestamp_ns '2020-01-01 00:00:00.123456789'", "union_value(k := 1)", "map {'a': 1}", "'101'::bit", "uuid()"],
)  # fmt: skip
def test_no_value_is_a_bug(lake_root: Path, tmp_path: Path, value: str, form: str):
    written = ["--format", form, "-o", str(tmp_path / "out")]
    assert main(["query", str(lake_root), f"select {value} as x", *written]) in ((0, 2) if form == "parquet" else (0,))


ENDLESS = [
    "select count(*) from range(100000000000) a, range(1000) b",
    "select sum(i) from range(1000000000000) t(i)",
    "with recursive t(x) as (select 1::hugeint union all select x + 1 from t) select count(*) from t",
    # DuckDB does not look for an interrupt within one value
    "select levenshtein(repeat('a', 400000), repeat('b', 400000))",
]


@pytest.mark.parametrize(("limit", "code"), [("0.0001", 2), ("0", 130)])
def test_a_signal_while_a_relation_is_made(
    lake_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: str, code: int
):
    """DuckDB reports it as an error of its own: the time limit, or the interrupt, is told all the same."""

    def interrupted(*_: object) -> None:
        time.sleep(0.01)
        raise RuntimeError("Query interrupted")

    monkeypatch.setattr(query, "_answer", interrupted)
    assert main(["query", str(lake_root), "from ranks", "--timeout", limit]) == code
    assert ("took longer than" in capsys.readouterr().err) == (code == 2)


@pytest.mark.parametrize("text", ENDLESS)
def test_a_query_has_a_time_limit(lake_root: Path, capsys: pytest.CaptureFixture[str], text: str):
    began_s = time.monotonic()
    assert main(["query", str(lake_root), text, "--timeout", "0.5"]) == 2
    assert time.monotonic() - began_s < 10  # on a loaded machine; the last one would take minutes
    assert capsys.readouterr().err.startswith("jitter: the query took longer than 0.5 s and was stopped\n")


def test_the_computation_of_relations_counts(
    lake_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(jitter.Lake, "metrics", lambda lake, step: time.sleep(60))
    began_s = time.monotonic()
    assert main(["query", str(lake_root), "select count(*) from metrics", "--timeout", "2"]) == 2
    assert time.monotonic() - began_s < 20
    assert "the query took longer than 2 s and was stopped" in capsys.readouterr().err


def test_without_a_time_limit(lake_root: Path):
    assert main(["query", str(lake_root), "select 1", "--timeout", "0"]) == 0


@pytest.mark.parametrize(
    "text",
    [
        "select list(i order by hash(i)) from range(100000000) t(i)",
        "select length(string_agg(i::varchar, ',')) from range(100000000) t(i)",
        # what DuckDB does not count
        "select repeat('x', 1500000000)",
        "select repeat('x', 1000000) || i from range(100000) t(i)",
    ],
)
def test_a_query_has_a_memory_limit(lake_root: Path, capsys: pytest.CaptureFixture[str], text: str):
    assert main(["query", str(lake_root), text, "--memory", "0.4"]) == 2
    assert capsys.readouterr().err.startswith("jitter: the query needs more memory than it may use\n")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell a process's memory")
def test_what_can_be_spilled_stays_within_the_memory(lake_root: Path, tmp_path: Path):
    """Without a limit it takes 800 MB."""
    text = "select count(*) from (select i, i + 1, i + 2 from range(20000000) t(i) order by hash(i))"
    query = [sys.executable, "-m", "jitter", "query", str(lake_root), text, "--memory", "0.2"]
    # from a small process: Linux counts the memory of the process that starts a command as the command's
    measure = "import sys; from tests.bench.measure import run; print(run(sys.argv[1:]).peak_mb)"
    command = [sys.executable, "-c", measure, *query]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    assert float(done.stdout) < 200 + 250  # 250 MB: Python with its modules
    assert list(tmp_path.iterdir()) == []
