"""A lake with a lost or damaged file: the answer of the other ranks, and a line that names it. Folders with nothing."""

import io
import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from jitter.core.errors import LakeError
from tests.support.printed import output_of

pytestmark = pytest.mark.slow


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda content: None,
    "empty": lambda content: b"",
    "cut": lambda content: content[:500],
    "zeroed": lambda content: bytes(len(content)),
    "flipped": lambda content: content[:300] + bytes([content[300] ^ 4]) + content[301:],
}


def damage(path: Path, how: str) -> None:
    content = DAMAGES[how](path.read_bytes())
    path.unlink()
    if content is not None:
        path.write_bytes(content)


@pytest.fixture(scope="module")
def two_ranks(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that rank 2 was never in."""
    root = tmp_path_factory.mktemp("two") / "lake"
    jitter.ingest([traces / "rank0.sqlite", traces / "rank1.sqlite"], root)
    return root


@pytest.fixture(scope="module")
def answer_of_two(two_ranks: Path) -> object:
    with redirect_stdout(io.StringIO()) as out:
        assert main(["report", str(two_ranks), "--json"]) == 0
    return without_notes(out.getvalue())


def without_notes(out: str) -> object:
    found = json.loads(out)
    found["run"].pop("warnings")
    return found


KERNELS = "kernels/epoch=1/step=2001/rank=2.parquet"


@pytest.mark.parametrize(
    ("part", "how"),
    [
        *((KERNELS, how) for how in DAMAGES),
        *((part, how) for part in ("host/rank=2", "sources") for how in ("gone", "cut")),
    ],
)
def test_a_report_goes_on_without_a_damaged_rank(
    how: str, part: str, small_lake: Path, answer_of_two: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    copy = tmp_path / "run: 3"  # a colon ends no path in a message
    shutil.copytree(small_lake, copy)
    path = copy / part
    if part != "sources":
        path = path if path.suffix else next(path.iterdir())
    else:
        path = path / next((copy / "host/rank=2").iterdir()).with_suffix(".json").name
    damage(path, how)
    assert main(["report", str(copy), "--json"]) == 0
    out, err = capsys.readouterr()
    # a damaged record does not tell whose it is
    why = "was not recorded" if part == "sources" else "has a recording that could not be read"
    assert why in out
    assert without_notes(out.replace(why, "was not recorded")) == answer_of_two
    if (part, how) == ("sources", "gone"):
        return  # nothing tells that there was a record
    said = [text for text in json.loads(out)["run"]["warnings"] if "Rank 2 is left out" in text]
    assert len(said) == 1
    assert str(path) in said[0]
    assert f"note: {said[0].removesuffix('.')}" in err
    assert str(path) in output_of(capsys, "verify", copy, exit_code=3)


@pytest.mark.parametrize(
    "words",
    [
        ["table", "--step", "2001"],
        ["table", "--by", "kernel"],
        ["steps"],
        ["collectives"],
        ["report"],
        ["report", "--markdown"],
        ["report", "--json", "-o", "page.html"],
        ["export", "--perfetto", "x.json", "--step", "2001"],
        ["query", "select rank, count(kernel_name) from kernels group by rank order by rank"],
    ],
    ids=" ".join,
)
def test_every_verb_goes_on_without_a_damaged_rank_and_says_so(
    words: list[str], small_lake: Path, two_ranks: Path, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for lake, to in ((small_lake, "lake"), (two_ranks, "two")):
        shutil.copytree(lake, tmp_path / to)
    lost = Path("lake", KERNELS)
    damage(lost, "cut")
    said, files = {}, {}
    for lake in ("two", "lake"):
        assert main([words[0], lake, *words[1:]]) == 0
        said[lake] = capsys.readouterr()
        files[lake] = {
            path: path.read_bytes() for name in ("out", "x.json") for path in (Path(name), *Path(name).rglob("*.csv"))
            if path.is_file()
        }  # fmt: skip
    assert files["lake"] == files["two"]
    assert f"note: Rank 2 is left out, because a file is damaged: {lost}: " in said["lake"].err
    if words[0] != "report":
        assert said["lake"].out == said["two"].out
    elif words[1:] in ([], ["--markdown"]):
        assert "Rank 2 is left out" in " ".join(said["lake"].out.split())


@pytest.mark.parametrize("words", [["check", "--max-loss", "99%"], ["history", "add", "--job", "a", "--db", "h.sqlite"],
                                   ["export", "--baseline", "base.json"]], ids=" ".join)  # fmt: skip
def test_a_part_of_a_run_is_neither_judged_nor_kept(
    words: list[str], small_lake: Path, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_lake, tmp_path / "lake")
    lost = Path("lake", KERNELS)
    damage(lost, "cut")
    verbs = 2 if words[0] == "history" else 1
    assert main([*words[:verbs], "lake", *words[verbs:]]) == 3
    first, second = capsys.readouterr().err.splitlines()[-2:]
    assert first.startswith(f"jitter: {lost}: cannot be read (")
    assert "jitter ingest TRACES -o LAKE --replace" in second
    assert not Path("base.json").exists()


def test_kernels_of_a_damaged_file_are_not_exported(small_lake: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_lake, tmp_path / "lake")
    lost = Path("lake", KERNELS)
    damage(lost, "cut")
    assert main(["export", "lake", "--csv", "out"]) == 0
    assert len(list(Path("out").iterdir())) == 8
    missing = "out/epoch1_step2001-rank2.csv"
    assert f"note: {missing} is not written: {lost}: cannot be read (" in capsys.readouterr().err
    assert main(["export", "lake", "--csv", "out", "--step", "2001", "--ranks", "2"]) == 3


def test_a_lake_with_nothing_intact_names_the_first_file(small_lake: Path, tmp_path: Path, capsys):
    copy = tmp_path / "lake"
    shutil.copytree(small_lake, copy)
    for path in copy.glob("kernels/*/*/*.parquet"):
        path.unlink()
    assert main(["report", str(copy)]) == 3
    assert "cannot be read (No such file or directory)" in capsys.readouterr().err


def test_a_program_is_told_of_a_damaged_file(small_lake: Path, tmp_path: Path):
    """Python code that opens a lake sees the error: no part of the ranks for the whole."""
    copy = tmp_path / "lake"
    shutil.copytree(small_lake, copy)
    next((copy / "sources").iterdir()).write_bytes(b"")
    with pytest.raises(LakeError, match="the record is damaged"):
        jitter.open(copy)


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
