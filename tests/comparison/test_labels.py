"""Runs whose folders have the same name are told apart by their paths."""

import shutil
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.comparison.runs import shortest_ends


@pytest.mark.parametrize(
    ("paths", "ends"),
    [
        (["/a/lake", "/a/other"], ["lake", "other"]),
        (["/a/lake", "/b/lake"], ["a/lake", "b/lake"]),
        (["/x/a/lake", "/y/a/lake", "/y/b/lake"], ["x/a/lake", "y/a/lake", "b/lake"]),
        (["/lake", "/a/lake"], ["/lake", "a/lake"]),
        (["/a/lake", "/a/lake"], ["lake", "lake"]),
    ],
)
def test_shortest_ends(paths: list[str], ends: list[str]):
    assert shortest_ends([Path(path) for path in paths]) == ends


def test_lakes_of_one_name(small_lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lakes = [Path(shutil.copytree(small_lake, tmp_path / name / "jitter-lake")) for name in ("before", "after")]
    assert main(["compare", *map(str, lakes)]) in (0, 1, 3)
    out = capsys.readouterr().out
    assert "before/jitter-lake" in out
    assert "after/jitter-lake" in out
    found = jitter.compare(*(jitter.open(lake) for lake in lakes))
    assert (found.base.label, found.new.label) == ("before/jitter-lake", "after/jitter-lake")


def test_names_that_are_given(small_lake: Path, capsys: pytest.CaptureFixture[str]):
    given = ["compare", str(small_lake), str(small_lake)]
    assert main([*given, "--names", "main, branch", "--markdown"]) == 0
    out = capsys.readouterr().out
    assert "base: main (" in out
    assert "new: branch (" in out
    assert main([*given, "--names", "main"]) == 2
    assert "1 name for 2 runs" in capsys.readouterr().err
