"""`jitter table` and `jitter steps`: the same numbers in every form."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import jitter
from jitter.cli import main
from jitter.simulate import simulate, write
from tests.support.simulated import small


def _csv(capsys: pytest.CaptureFixture[str], *arguments: object) -> pd.DataFrame:
    assert main([*map(str, arguments)]) == 0
    return pd.read_csv(io.StringIO(capsys.readouterr().out))


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
        assert main([*arguments, "-o", str(target)]) == 0
        assert capsys.readouterr().out == ""
    assert main([*arguments, "--format", "json"]) == 0
    assert capsys.readouterr().out == (tmp_path / "gap.json").read_text()
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


def test_a_foreign_file_is_kept(small_lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    target = tmp_path / "notes.csv"
    target.write_text("mine\n")
    arguments = ["table", str(small_lake), "--step", "2000", "-o", str(target)]
    assert main(arguments) == 2
    assert "--force" in capsys.readouterr().err
    assert target.read_text() == "mine\n"
    assert main([*arguments, "--force"]) == 0
    first = target.read_text()
    assert main(arguments) == 0  # now it is ours
    assert target.read_text() == first


def test_steps(small_lake: Path, capsys: pytest.CaptureFixture[str]):
    got = _csv(capsys, "steps", small_lake, "--format", "csv")
    assert got["step"].tolist() == [2000, 2001, 2002]
    assert set(got["epoch"]) == {1}
    assert pd.isna(got["step_time_ns"][0])
    assert (got["step_time_ns"][1:] > 0).all()
    assert got["max_rank"][1] == 2
    assert got["loss_ns"].idxmax() == 1
    assert got["loss_ns"][1] == pytest.approx(3e6, rel=0.2)
    assert main(["steps", str(small_lake)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["1/2000", "1/2001", "1/2002"]
    assert len(jitter.open(small_lake).diagnose().steps) == 3


@pytest.mark.parametrize("width", [60, 120, 400])
@pytest.mark.parametrize("words", [["--step", "2001"], ["--by", "operator"], ["--by", "step"]])
def test_a_table_fits_the_terminal(
    width: int, words: list[str], small_lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["table", str(small_lake), *words]) == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
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
    assert main(["steps", str(small_lake)]) == 0
    lines = capsys.readouterr().out.splitlines()
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
    assert main(["query", str(tmp_path / "lake"), "select * exclude loss_fraction from steps", "--format", "json"]) == 0
    assert [row | {"loss_fraction": None} for row in json.loads(capsys.readouterr().out)["rows"]] == [
        row | {"loss_fraction": None} for row in rows
    ]
    assert len(rows) == 4
