"""A lake that an ingest is adding to: readers answer for one state of it, and say that there is more to come."""

import os
import time
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.core.errors import DamagedFileError
from jitter.lake.folder import LakeFolder
from tests.support.killed_process import fork, wait_for


@pytest.fixture
def half(traces: Path, tmp_path: Path) -> Path:
    jitter.ingest([traces / "rank0.sqlite", traces / "rank1.sqlite"], tmp_path / "lake")
    return tmp_path / "lake"


def test_a_running_ingest_is_told(half: Path, capsys: pytest.CaptureFixture[str]):
    def begin() -> None:
        LakeFolder(half).staging()
        time.sleep(60)

    child = fork(begin)
    try:
        while not list(half.glob(".staging/*/places.json")):
            time.sleep(0.01)
        for words in (["report"], ["steps"], ["query", "from ranks"]):
            assert main([words[0], str(half), *words[1:]]) == 0
            said = capsys.readouterr().err.splitlines()
            wanted = f"(process {child}) is adding to {half}: this answer covers the 2 recordings in it now"
            assert [line.startswith("note: an ingest on ") and line.endswith(wanted) for line in said] == [True]
    finally:
        os.kill(child, 9)
        wait_for(child)
    assert main(["steps", str(half)]) == 0
    assert capsys.readouterr().err == ""  # its process is dead


def test_an_ingest_on_another_machine_may_be_dead(half: Path, capsys: pytest.CaptureFixture[str]):
    run = half / ".staging" / "node7-0123456789ab-4711-0123456789abcdef"
    run.mkdir(parents=True)
    (run / "places.json").touch()
    assert main(["steps", str(half)]) == 0
    assert "note: an ingest on node7 (process 4711) is adding to" in capsys.readouterr().err
    for path in (run / "places.json", run):
        os.utime(path, (time.time() - 3600, time.time() - 3600))
    assert main(["steps", str(half)]) == 0
    assert "note: an ingest on node7 was killed, or idle for 60 minutes, in" in capsys.readouterr().err


def test_a_reader_that_writes_derived_data_is_no_ingest(half: Path, capsys: pytest.CaptureFixture[str]):
    (half / ".staging" / "node7-0123456789ab-4711-0123456789abcdef").mkdir(parents=True)
    assert main(["steps", str(half)]) == 0
    assert capsys.readouterr().err == ""


def test_what_another_ingest_replaces_meanwhile_is_read_again(
    half: Path, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The rank's files are of another reading than the record that was read: nothing is damaged."""
    from jitter.api import Lake

    ranks = tmp_path / "map.csv"
    ranks.write_text("rank1.sqlite,5\n")
    really, calls = Lake.diagnose, []

    def diagnose(lake: Lake, *arguments: object, **options: object) -> object:
        calls.append(lake.ranks)
        if len(calls) == 1:
            jitter.ingest([traces / "rank1.sqlite"], half, rank_map=ranks, replace=True)
            raise DamagedFileError(half / "kernels/epoch=1/step=2001/rank=1.parquet", "cannot be read (gone)", "wait")
        return really(lake, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Lake, "diagnose", diagnose)
    assert main(["steps", str(half)]) == 0
    assert calls == [[0, 1], [0, 5]]
    assert capsys.readouterr().err == f"note: {half} has changed while it was read: reading it again\n"
