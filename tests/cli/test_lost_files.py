"""A lake that has lost a kernel file, and folders with nothing to read: one line, the right code."""

import shutil
from pathlib import Path

import pytest

from jitter.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture(params=["gone", "cut"])
def damaged(request: pytest.FixtureRequest, small_lake: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A lake and its file that cannot be read."""
    copy = tmp_path / "lake"
    shutil.copytree(small_lake, copy)
    lost = copy / "kernels/epoch=1/step=2001/rank=2.parquet"
    if request.param == "gone":
        lost.unlink()
    else:
        lost.write_bytes(lost.read_bytes()[:500])
    return copy, lost


@pytest.mark.parametrize(
    "words",
    [
        ["table", "--step", "2001"],
        ["steps"],
        ["report"],
        ["export", "--csv", "out"],
        ["query", "select count(kernel_name) from kernels"],
    ],
    ids=" ".join,
)
def test_what_a_lake_has_lost_is_named(
    words: list[str], damaged: tuple[Path, Path], tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    lake, lost = damaged
    assert main([words[0], str(lake), *words[1:]]) == 3
    first, second = capsys.readouterr().err.splitlines()[-2:]
    assert first.startswith(f"jitter: {lost}: cannot be read (")
    assert "jitter ingest TRACES -o LAKE --replace" in second


def test_a_folder_without_traces_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", str(tmp_path)]) == 3
    said = ("", f"no traces in {tmp_path}\n  which recordings jitter reads: jitter explain recording\n")
    assert capsys.readouterr() == said
    assert main(["ingest", str(tmp_path), "-o", str(tmp_path / "lake")]) == 3
    assert capsys.readouterr() == said
    assert not (tmp_path / "lake").exists()


def test_reports_that_were_not_exported_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for rank in range(20):
        (tmp_path / f"rank{rank}.nsys-rep").write_bytes(b"report")
    assert main(["ingest", str(tmp_path), "-o", str(tmp_path / "lake")]) == 3
    first, command, totals = capsys.readouterr().err.splitlines()
    assert "and 19 more" in first
    assert "nsys export" in command
    assert totals == "20 left out; nothing to read"


def test_a_file_is_no_folder(small_lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    assert main(["export", str(small_lake), "--csv", str(file)]) == 2
    assert capsys.readouterr().err == f"jitter: {file} is a file\n  choose a folder\n"
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    "words",
    [
        ["report"],
        ["steps"],
        ["query", "select count(*) from host"],
        ["export", "--step", "2001", "--perfetto", "x.json"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("how", ["gone", "cut"])
def test_a_host_without_its_file_is_no_quiet_host(
    words: list[str], how: str, small_lake: Path, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "lake"
    shutil.copytree(small_lake, copy)
    shutil.rmtree(copy / "derived")  # which holds of the host what a diagnosis reads
    lost = next((copy / "host/rank=2").glob("*.parquet"))
    if how == "gone":
        lost.unlink()
    else:
        lost.write_bytes(lost.read_bytes()[:200])
    assert main([words[0], str(copy), *words[1:]]) == 3
    assert capsys.readouterr().err.splitlines()[-2].startswith(f"jitter: {lost}: cannot be read (")
