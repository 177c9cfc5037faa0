"""The command as a shell meets it: what it loads, where it writes, and what it returns."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import jitter
from jitter import cli
from jitter.cli import main
from tests.support.forked_command import run_forked
from tests.support.printed import output_of

pytestmark = pytest.mark.slow

VERBS = (
    "inspect",
    "ingest",
    "report",
    "table",
    "steps",
    "collectives",
    "compare",
    "check",
    "history",
    "query",
    "export",
    "serve",
    "verify",
    "record",
    "sample",
    "explain",
)


def test_every_verb_helps_with_an_example(capsys: pytest.CaptureFixture[str]):
    listed = re.findall(r"^  (\w+) +\w", output_of(capsys, "--help").partition("Commands:")[2], re.M)
    assert tuple(listed) == VERBS
    for verb in VERBS:
        out = output_of(capsys, verb, "--help")
        assert f"  jitter {verb}" in out.partition("xample")[2], verb


def test_the_module_and_the_version():
    command = [sys.executable, "-m", "jitter", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"jitter, version {jitter.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments", [["ingest"], ["nonsense"], ["table", "--metric", "speed"], ["ingest", "x", "--jobs", "0"], ["--wrong"]]
)
def test_wrong_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Error" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["repot"], "Did you mean 'report'?"),
        (["step"], "Did you mean 'steps'?"),
        (["report", "--htm"], "'--html'"),
        (["ingest", "x", "--step-patern", "y"], "'--step-pattern'?"),
        (["."], "jitter report ."),
    ],
)
def test_a_slip_of_the_pen_gets_a_suggestion(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err


def test_every_command_is_described_whole_at_80_columns(monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "80")
    lines = output_of(capsys, "--help").split("Commands:\n")[1].splitlines()
    assert len(lines) == len(VERBS)
    assert all(line.endswith(".") and not line.endswith("...") and len(line) <= 80 for line in lines)


@pytest.mark.parametrize("verb", [["table"], ["steps"], ["export", "--csv", "out"]])
def test_without_a_lake_it_is_3(verb: list[str], tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    assert main(verb) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[0] == "jitter: jitter-lake: no lake here"
    assert "jitter ingest" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["folder", "file"])
def test_traces_in_place_of_a_lake_are_to_be_ingested(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The command that is suggested works: a lake is not made among traces."""
    place = tmp_path / "traces"
    if content == "folder":
        place.mkdir()
        place /= "rank0.json"
    place.write_text("{}")
    assert main(["steps", str(tmp_path / "traces")]) == 3
    hint = capsys.readouterr().err.splitlines()[1]
    assert hint == f"  if it holds traces: jitter ingest {tmp_path / 'traces'} -o LAKE, then give that lake"


def test_a_bug_is_70_and_asks_for_a_report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def broken(*_arguments: object, **_more: object) -> None:
        raise RuntimeError("the unthinkable")

    monkeypatch.setattr(cli.cli, "main", broken)
    assert main(["--help"]) == 70
    err = capsys.readouterr().err
    assert "RuntimeError: the unthinkable" in err
    assert "please report" in err.splitlines()[-1]


def test_interrupted_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def interrupted(*_arguments: object, **_more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.cli, "main", interrupted)
    assert output_of(capsys, exit_code=130) == ""


def test_in_a_pipe_it_draws_nothing_and_stdout_is_data_only(traces: Path, tmp_path: Path):
    done = run_forked("ingest", traces, "-o", tmp_path / "lake")
    assert (done.returncode, done.stdout) == (0, "")
    assert "\x1b" not in done.stderr
    assert "\r" not in done.stderr
    assert "3 ranks, 3 steps" in done.stderr.splitlines()[-1]
