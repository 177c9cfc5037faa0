"""`jitter table` and `jitter steps`: the same numbers in every form."""

import csv
import datetime
import io
import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import jitter
from jitter.cli import main
from jitter.cli.output import table
from jitter.cli.output.table import write_table
from jitter.simulate import Fault, Job, simulate, write, write_logs
from tests.support.printed import json_of, output_of
from tests.support.simulated import small


def _csv(capsys: pytest.CaptureFixture[str], *arguments: object) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(output_of(capsys, *arguments)))


def test_csv_is_what_the_rows_say(small_lake: Path, capsys: pytest.CaptureFixture[str]):
    got = _csv(capsys, "table", small_lake, "--metric", "duration", "--step", 2000)
    files = [pd.read_parquet(small_lake / f"kernels/epoch=1/step=2000/rank={rank}.parquet") for rank in range(3)]
    kernels = [rows[rows["kind"] != "memory"].reset_index() for rows in files]
    assert list(got.columns) == ["kernel_index", "kernel_name", "mean", "rank_0", "rank_1", "rank_2"]
    assert got["kernel_index"].tolist() == list(range(16))
    assert got["kernel_name"].tolist() == kernels[0]["kernel_name"].tolist()
    for rank in range(3):
        assert got[f"rank_{rank}"].tolist() == kernels[rank]["duration_ns"].tolist()
    sums = sum(rows["duration_ns"] for rows in kernels)
    assert got["mean"].tolist() == pytest.approx((sums / 3).tolist(), abs=0.0005)


def test_forms_agree(small_lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["table", str(small_lake), "--metric", "gap", "--step", "2002", "--deviation"]
    csv = _csv(capsys, *arguments)
    for form in ("csv", "json", "parquet"):
        target = tmp_path / f"gap.{form}"
        assert output_of(capsys, *arguments, "-o", target) == ""
    assert output_of(capsys, *arguments, "--format", "json") == (tmp_path / "gap.json").read_text()
    parquet = pd.read_parquet(tmp_path / "gap.parquet")
    written = pd.read_csv(tmp_path / "gap.csv")
    pd.testing.assert_frame_equal(written, csv)
    said = json.loads((tmp_path / "gap.json").read_text())
    assert said["schema_version"] == 1
    for name in ("mean", "rank_0", "rank_1", "rank_2"):
        assert parquet[name].astype(float).tolist() == pytest.approx(csv[name].tolist(), abs=0.0005)
    ranks = csv[["rank_0", "rank_1", "rank_2"]]
    assert ranks.sum(axis=1).abs().max() < 0.01
    assert ranks.abs().max().max() > 0


def test_ranks_choose_columns_and_never_the_mean(small_lake: Path, capsys: pytest.CaptureFixture[str]):
    whole = _csv(capsys, "table", small_lake, "--step", 2000)
    some = _csv(capsys, "table", small_lake, "--step", 2000, "--ranks", "0,2")
    assert list(some.columns) == ["kernel_index", "kernel_name", "mean", "rank_0", "rank_2"]
    assert some["mean"].tolist() == whole["mean"].tolist()
    assert main(["table", str(small_lake), "--step", "2000", "--ranks", "0-9"]) == 2
    assert "no rank 3" in capsys.readouterr().err
    assert main(["table", str(small_lake), "--step", "2000", "--ranks", "x"]) == 2


def test_the_costliest_step_is_named_on_stderr(small_lake: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["table", str(small_lake)]) == 0
    out, err = capsys.readouterr()
    assert "epoch 1, step 2001" in err
    assert main(["table", str(small_lake), "--step", "2001"]) == 0
    again = capsys.readouterr()
    assert again.out == out
    assert again.err == ""


def test_unmatched_are_listed(small_lake: Path, capsys: pytest.CaptureFixture[str]):
    got = _csv(capsys, "table", small_lake, "--step", 2001, "--unmatched")
    assert got["rank"].tolist() == [2]
    assert "index_elementwise_kernel" in got["kernel_name"][0]
    main(["table", str(small_lake), "--step", "2000", "--unmatched"])
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_several_cohorts_have_to_be_told_apart(two_cohorts: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["table", str(two_cohorts), "--step", "0"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "cohort 0: 2 ranks from 0; cohort 1: 1 ranks from 2" in err
    assert "--cohort" in err
    assert list(_csv(capsys, "table", two_cohorts, "--step", 0, "--cohort", 1)) == [
        "kernel_index",
        "kernel_name",
        "mean",
        "rank_2",
    ]
    assert main(["table", str(two_cohorts), "--step", "0", "--cohort", "5"]) == 2


def test_no_such_step(small_lake: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["table", str(small_lake), "--step", "7"]) == 2
    assert "no step 7" in capsys.readouterr().err
    assert main(["table", str(small_lake), "--step", "2000", "--epoch", "4"]) == 2


@pytest.mark.parametrize(
    "arguments",
    [["table"], ["table", "--by", "kernel"], ["export", "--perfetto", "x.json"], ["export", "--baseline", "x"]],
)
def test_an_epoch_without_a_step_is_not_ignored(
    arguments: list[str], small_lake: Path, capsys: pytest.CaptureFixture[str]
):
    """The lake has epoch 1 alone: the answer would be about another one."""
    verb, *options = arguments
    assert main([verb, str(small_lake), *options, "--epoch", "4"]) == 2
    assert "epoch" in capsys.readouterr().err


def test_steps(small_lake: Path, capsys: pytest.CaptureFixture[str]):
    got = _csv(capsys, "steps", small_lake, "--format", "csv")
    assert got["step"].tolist() == [2000, 2001, 2002]
    assert set(got["epoch"]) == {1}
    assert pd.isna(got["step_time_ns"][0])
    assert (got["step_time_ns"][1:] > 0).all()
    assert got["max_rank"][1] == 2
    assert got["loss_ns"].idxmax() == 1
    assert got["loss_ns"][1] == pytest.approx(3e6, rel=0.2)
    lines = output_of(capsys, "steps", small_lake).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["1/2000", "1/2001", "1/2002"]
    assert len(jitter.open(small_lake).diagnose().steps) == 3


@pytest.mark.parametrize("width", [60, 120, 400])
@pytest.mark.parametrize("words", [["--step", "2001"], ["--by", "operator"], ["--by", "step"]])
def test_a_table_fits_the_terminal(
    width: int, words: list[str], small_lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", str(width))
    rows = list(csv.reader(io.StringIO(output_of(capsys, "table", small_lake, *words))))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["table", str(small_lake), *words]) == 0
    out, err = capsys.readouterr()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()
    assert len(lines) == len(rows)
    assert max(map(len, lines)) <= width
    shown = lines[0].split()
    assert shown == rows[0][: len(shown)]
    assert ("columns fit the terminal" in err) == (len(shown) < len(rows[0]))
    assert (width == 60) <= (len(shown) < len(rows[0])) <= (width < 400)
    begin = lines[0].rindex(shown[-2]) + len(shown[-2])
    last = [(line[begin:].strip(), row[len(shown) - 1]) for line, row in zip(lines[1:], rows[1:], strict=True)]
    for cell, value in last if shown[-1].startswith(("rank", "lost")) else ():
        assert cell == "" if value == "" else float(cell.replace(",", "")) == pytest.approx(float(value), abs=0.05)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_steps_fit_the_terminal(
    width: int, small_lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = output_of(capsys, "steps", small_lake).splitlines()
    assert max(map(len, lines)) <= width
    assert ("start ms" in lines[0]) == (width >= 160)
    assert [line.split()[0] for line in lines[1:]] == ["1/2000", "1/2001", "1/2002"]


def test_steps_after_an_ingest_in_the_same_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """An ingest makes pyarrow regard pandas as not installed, which must not end a later command."""
    write(simulate(small()), tmp_path / "traces", "kineto")
    code = (
        "import sys; from jitter.cli import main\n"
        "sys.exit(main(['ingest', 'traces', '-o', 'lake', '--jobs', '1'])"
        " or main(['steps', 'lake', '--format', 'json']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    query = "select * exclude loss_fraction from steps"
    printed = json_of(capsys, "query", tmp_path / "lake", query, "--format", "json")["rows"]
    assert [row | {"loss_fraction": None} for row in printed] == [row | {"loss_fraction": None} for row in rows]
    assert len(rows) == 4


NUMBERS = (pa.float32(), pa.float64())
TEXTS = ["x,y", 'q"z', None, "", "two\nlines", "%d%s%%", " spaced ", "\r", "été"]


def harmless(text: str) -> str:
    """The text as a cell: a spreadsheet takes no cell for a formula that begins with an apostrophe."""
    shown = "".join("�" if unicodedata.category(char)[0] in "CZ" and char != " " else char for char in text)
    return f"'{shown}" if shown.replace("�", "").strip()[:1] in tuple("=+-@＝＋－＠") else shown


def oracle(rows: pa.Table) -> str:
    def told(column: pa.ChunkedArray) -> list[object]:
        cells = [f"{v:.3f}" if isinstance(v, float) else v for v in column.to_pylist()]
        cells = [str(v).lower() if isinstance(v, bool) else v for v in cells]
        return [harmless(v) if isinstance(v, str) and column.type not in NUMBERS else v for v in cells]

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(harmless, rows.column_names))
    writer.writerows(zip(*map(told, rows.columns), strict=True))
    return text.getvalue()


TABLES = [
    {"text": TEXTS},
    {"a,b": TEXTS, "100%s": [1, None, *range(7)], "f": [0.0005, None, float("nan"), -0.0, float("inf"), *[1e20] * 4]},
    {
        "whole": [1, -2, 2**62],
        "fraction": [1.0005, 2.0015, -3.5],
        "names": pa.array(["a", "b", None]).dictionary_encode(),
    },
    {"truth": [True, None], "list": [[1, 2], None], "when": [datetime.datetime(2026, 1, 2, 3), None]},
    {"one": pa.array([None, 1], pa.int32())},
    {"formulas": ["=1+1", "+1", "-1", "@x", "\t=1", "a=1", "'", None], "number": [-1, None, *[-5] * 6]},
    {"=cmd|' /C calc'!A0": ["\n=1+1", "  =1", "\x1b=1"], "\tx": ["\x1b]0;owned\x07", "\x9b31m", "＝1"]},
    {"whole": [None, 1, 2], "text": ["", None, "x"]},
    {"byte": pa.array([0, 127, 255], pa.uint8()), "hash": pa.array([0, 2**63, 2**64 - 1], pa.uint64())},
    {"none": pa.array([], pa.int64()), "text": pa.array([], pa.string())},
]


@pytest.mark.parametrize("cells", [1, 4, 7, 1 << 17])
@pytest.mark.parametrize("columns", TABLES)
def test_as_the_csv_module_writes_it_however_few_cells_are_put_into_lines_together(columns, cells, capsys, monkeypatch):
    """Fewer than a row has, too; in some blocks a column has nulls, in others none."""
    monkeypatch.setattr(table, "_CELLS_AT_ONCE", cells)
    rows = pa.table(columns)
    write_table(rows, "csv", None, force=False)
    assert capsys.readouterr().out == oracle(rows)


def test_more_rows_than_are_put_into_lines_together(capsys):
    many = range(100_000)
    rows = pa.table({"n": many, "half": [n / 2 for n in many], "text": [None if n % 3 else f"{n}," for n in many]})
    write_table(rows, "csv", None, force=False)
    assert capsys.readouterr().out == oracle(rows)


SIZE = 26_214_400


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same job healthy and with a slow network, with the logs of each; in Nsight Systems' and PyTorch's format."""
    folder = tmp_path_factory.mktemp("network")
    found = {}
    for name, faults in (("healthy", []), ("slow", [Fault.parse("slow_collective:factor=6")])):
        for form, options in (("nsys", {"layout": "2026.2"}), ("kineto", {})):
            run = simulate(Job(ranks=8, steps=3, kernels=300, seed=3), faults)
            traces = folder / f"{name}-{form}" / "traces"
            write(run, traces, form, **options)
            write_logs(run, traces)
            found[f"{name}-{form}"] = lake = folder / f"{name}-{form}" / "lake"
            report = jitter.ingest([traces], lake, label="fabric")
            assert len(report.logs.added) == 3
    return found


def document(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json_of(capsys, "collectives", *arguments, "--json")
    return found


@pytest.mark.parametrize("form", ["nsys", "kineto"])
@pytest.mark.parametrize(("name", "busbw"), [("healthy", 181.5), ("slow", 30.3)])
def test_bandwidth(lakes: dict[str, Path], capsys: pytest.CaptureFixture[str], form: str, name: str, busbw: float):
    found = document(capsys, lakes[f"{name}-{form}"])
    (row,) = (row for row in found["collectives"] if row["size"] == SIZE)
    assert (row["collective"], row["calls"], row["group_size"]) == ("all_reduce", 18, 8)
    assert round(row["busbw"], 1) == busbw
    assert row["algbw"] == pytest.approx(row["busbw"] / 1.75, abs=0.01)
    assert found["schema_version"] == 1
    assert found["reasons"] == []
    for one in [*found["ranks"], *found["steps"]]:
        parts = [one[f"{part}_ms"] for part in ("compute", "hidden", "exposed", "waiting", "copies", "idle")]
        assert sum(parts) == pytest.approx(one["step_ms"], abs=0.005)
    assert (len(found["ranks"]), len(found["steps"])) == (8, 3)


def test_baseline_by_label_and_by_file(lakes: dict[str, Path], capsys: pytest.CaptureFixture[str]):
    by_label = document(capsys, lakes["slow-kineto"], "--baseline", "fabric")
    log = lakes["slow-kineto"].parent / "traces" / "nccl-tests-all_reduce-8.log"
    by_file = document(capsys, lakes["slow-kineto"], "--baseline", log)
    assert by_label["baseline"]["rows"] == by_file["baseline"]["rows"]
    rows = {row["size_bytes"]: row for row in by_label["baseline"]["rows"]}
    assert rows[SIZE]["ratio"] == pytest.approx(1 / 6, rel=0.02)
    assert len(by_label["findings"]) == 2
    healthy = document(capsys, lakes["healthy-kineto"], "--baseline", log)
    assert healthy["findings"] == []


@pytest.mark.parametrize("by", ["size", "group", "rank", "step"])
def test_csv_and_text_have_the_same_rows(lakes: dict[str, Path], capsys: pytest.CaptureFixture[str], by: str):
    text = output_of(capsys, "collectives", lakes["healthy-nsys"], "--by", by)
    rows = list(
        csv.DictReader(
            output_of(capsys, "collectives", lakes["healthy-nsys"], "--by", by, "--format", "csv").splitlines()
        )
    )
    assert len(rows) == {"size": 2, "group": 2, "rank": 8, "step": 3}[by]
    assert len(text.split("\n\n")[0].splitlines()) == len(rows) + 1


@pytest.mark.parametrize(
    ("verb", "name", "foreign"),
    [
        (["collectives"], "notes.txt", "collective communication: what we know\n"),
        (["collectives", "--by", "rank"], "notes.txt", "rank  host\n0     a\n"),
        (["collectives"], "settings.json", '{"name": "job", "schema_version": 3}'),
        (["table", "--step", "1"], "settings.json", '{"name": "job", "schema_version": 3}'),
        (["table", "--step", "1"], "notes.csv", "of jitter: kernel_index,kernel_name,mean,rank_0,rank_1,rank_2,rank_3"),
    ],
)
def test_a_file_that_only_mentions_our_words_is_kept(
    lakes: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: list[str], name: str, foreign: str
):
    target = tmp_path / name
    target.write_text(foreign)
    arguments = [verb[0], str(lakes["healthy-nsys"]), *verb[1:], "-o", str(target)]
    assert main(arguments) == 2
    assert "add --force" in capsys.readouterr().err
    assert target.read_text() == foreign
    assert main([*arguments, "--force"]) == 0
    assert main(arguments) == 0  # now it is ours


def test_group_and_steps(lakes: dict[str, Path], capsys: pytest.CaptureFixture[str]):
    lake = lakes["healthy-kineto"]
    assert document(capsys, lake, "--group", "0", "--steps", "1-2")["collectives"][0]["calls"] in (2, 12)
    assert main(["collectives", str(lake), "--group", "none"]) == 2
    assert "no collectives of group 'none'" in capsys.readouterr().err
    assert main(["collectives", str(lake), "--baseline", "none"]) == 2
    assert "labels of the lake: fabric" in capsys.readouterr().err


def test_the_report_tells_of_the_network(lakes: dict[str, Path], capsys: pytest.CaptureFixture[str]):
    slow = json.loads(output_of(capsys, "report", lakes["slow-kineto"], "--json"))
    assert [one["kind"] for one in slow["efficiency"]] == ["communication"]
    assert " GB/s (" in slow["efficiency"][0]["finding"]
    (culprit,) = slow["culprits"]  # at the benchmark's speed compute hides all communication
    assert slow["efficiency"][0]["finding"] in culprit["evidence"]
    assert (culprit["rung"], culprit["scope"], culprit["cause"]) == ("network", "job", "slow_network")
    timed = [step for step in slow["steps"] if step["step_time_ns"]]
    assert culprit["gain_ns"] / len(timed) == pytest.approx(3_160_000, rel=0.1)
    healthy = json.loads(output_of(capsys, "report", lakes["healthy-kineto"], "--json"))
    assert healthy["culprits"] == []
    assert [one["kind"] for one in healthy["efficiency"]] == ["compute_bound"]


def test_sample_writes_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["sample", str(tmp_path / "t"), "--ranks", "2", "--steps", "2", "--evidence", "--quiet"]) == 0
    names = {path.name for path in (tmp_path / "t").glob("*.log")}
    assert names == {"nccl-tests-all_reduce-2.log", "nccl_debug.log"}
    assert names < set(json.loads((tmp_path / "t" / "truth.json").read_text())["traces"])
    capsys.readouterr()
    assert main(["sample", str(tmp_path / "t"), "--ranks", "2", "--steps", "2", "--quiet"]) == 2
    assert "add --force to write anew" in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "t").glob("*.log")} == names
    assert main(["sample", str(tmp_path / "t"), "--ranks", "2", "--steps", "2", "--force", "--quiet"]) == 0
    assert list((tmp_path / "t").glob("*.log")) == []
