"""A lake from someone else: nothing outside its folder is removed, written or read, and readers change nothing."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.core.errors import LakeError
from jitter.lake.folder import LakeFolder
from jitter.lake.integrity import containment
from jitter.lake.integrity.checksums import seal_json

LONG_AGO_S = 1_500_000_000
FOREIGN_RUN = "node7-0123456789ab-4711-0123456789abcdef"


@pytest.fixture
def root(small_lake: Path, tmp_path: Path) -> Path:
    """Return a lake in a folder beside and above which there are the reader's own files."""
    for place in ("mine/notes.json", "mine/rank=0.parquet", "home/kernels/step=1/rank=0.parquet", "old/places.json"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("mine")
    os.utime(tmp_path / "old", (LONG_AGO_S, LONG_AGO_S))
    os.utime(tmp_path / "old/places.json", (LONG_AGO_S, LONG_AGO_S))
    return Path(shutil.copytree(small_lake, tmp_path / "home/lake"))


@pytest.fixture
def untouched(root: Path, tmp_path: Path) -> Iterator[None]:
    """Compare everything outside the lake before and after the test."""

    def outside() -> dict[Path, str]:
        return {
            path: path.read_text() if path.is_file() else "folder"
            for path in tmp_path.rglob("*")
            if root not in path.parents
        }

    before = outside()
    yield
    assert outside() == before


def left_by_dead_run(root: Path, *places: object) -> Path:
    run = root / ".staging" / FOREIGN_RUN
    run.mkdir(parents=True)
    note = run / "places.json"
    note.write_text(json.dumps([str(place) for place in places]))
    for path in (note, run):
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
    return note


def run(*words: object) -> int:
    return main([str(word) for word in words])


def test_a_journal_names_files_of_the_lake_only(root: Path, tmp_path: Path, untouched: None):
    """Others are left; a file of the lake that belongs to no record goes, as after any death."""
    orphan = root / "kernels/step=9/rank=0.parquet"
    orphan.parent.mkdir()
    orphan.write_bytes(b"half")
    left_by_dead_run(
        root, tmp_path / "mine/notes.json", "../kernels/step=1/rank=0.parquet", "kernels/../../../mine/rank=0.parquet",
        "../../mine/notes.json", "jitter.json", orphan.relative_to(root),
    )  # fmt: skip
    LakeFolder(root).sweep()
    assert not orphan.exists()
    assert (root / "jitter.json").exists()
    assert not (root / ".staging").exists()


@pytest.mark.parametrize(
    "words", [["report"], ["steps"], ["table"], ["verify"], ["query", "from ranks"], ["check", "--max-loss", "99%"]]
)
def test_a_reader_undoes_nothing(root: Path, words: list[str], untouched: None, capsys):
    note = left_by_dead_run(root, "kernels/step=9/rank=0.parquet")
    orphan = root / "kernels/step=9/rank=0.parquet"
    orphan.parent.mkdir()
    orphan.write_bytes(b"half")
    run(words[0], root, *words[1:])
    assert note.exists()
    assert orphan.read_bytes() == b"half"


@pytest.mark.parametrize(
    "name", [".staging", "derived", "sources", "kernels", "host", "times", "catalog.sqlite", "jitter.json"]
)
def test_a_link_in_the_place_of_a_part_is_refused(
    root: Path, name: str, tmp_path: Path, traces, untouched: None, capsys
):
    path = root / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.symlink_to("../..")
    for words in (["report", root], ["ingest", traces, "-o", root], ["verify", root], ["compare", root, root]):
        assert run(*words) == 3
        assert f"{path}: is a symbolic link" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_pipe_below_is_refused(root: Path, kind: str, tmp_path: Path):
    path = next(root.glob("kernels/*/*/rank=1.parquet"))
    path.unlink()
    if kind == "link":
        path.symlink_to(tmp_path / "mine/rank=0.parquet")
    else:
        os.mkfifo(path)
    with pytest.raises(LakeError, match=r"rank=1\.parquet: is (a symbolic link|neither a file nor a folder)"):
        jitter.open(root)


def test_the_lake_itself_may_be_reached_by_a_link(root: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(root)
    assert jitter.open(tmp_path / "link").ranks == jitter.open(root).ranks


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("digest", "../../../mine/rank=0"), ("digest", "/tmp/x"), ("rank", -1), ("rank", 2**40), ("parts", 2**60),
        ("kernels", -1), ("world_size", 2**31), ("reader_version", 2**63),
    ],
)  # fmt: skip
def test_a_record_of_the_impossible_is_damaged(root: Path, field: str, value: object, traces, untouched: None):
    """It names no path; an ingest takes its trace in again and removes nothing elsewhere."""
    path = sorted(root.glob("sources/*.json"))[0]
    record = json.loads(path.read_bytes())
    record[field] = value
    del record["checksum"]
    path.write_bytes(seal_json(json.dumps(record, indent=1).encode()))
    with pytest.raises(LakeError, match="the record is damaged"):
        LakeFolder(root).records()
    assert jitter.ingest([traces], root, replace=True).refused == []
    assert len(LakeFolder(root).records()) == 3


def test_a_record_under_another_name_is_damaged(root: Path):
    path = sorted(root.glob("sources/*.json"))[0]
    path.rename(path.with_name(f"{'0' * 32}.json"))
    with pytest.raises(LakeError, match="it is the record of"):
        LakeFolder(root).records()


@pytest.mark.parametrize(
    "place", ["../x", "/etc/passwd", "kernels/x", "kernels/step=1/../rank=0.parquet", "jitter.json"]
)
def test_only_files_of_the_layout_are_removed(root: Path, place: str):
    with pytest.raises(ValueError, match="no file of a lake"):
        LakeFolder(root).remove([Path(place)])


def test_what_another_run_removes_meanwhile_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / ".staging" / "run"
    folder.mkdir(parents=True)
    listed = containment._entries

    def removed_after_listing(path: str) -> Iterator[os.DirEntry[str]]:
        for entry in listed(path):
            folder.rmdir()
            yield entry

    monkeypatch.setattr(containment, "_entries", removed_after_listing)
    containment.refuse_links(tmp_path)
    assert not folder.exists()
