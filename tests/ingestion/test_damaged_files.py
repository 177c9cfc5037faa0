"""Broken or missing files, and files that are no traces: each is named in one line, and the others go in."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import jitter
from jitter.cli import main
from tests.support.forked_command import run_forked
from tests.support.lake_content import content, records


def _ingest(*arguments: object) -> int:
    return main(["ingest", *map(str, arguments)])


def _damages(good: bytes) -> dict[str, bytes]:
    middle = len(good) // 2
    return {
        "truncated": good[:middle],
        "header_only": good[:100],
        "zeros_within": good[:8192] + bytes(len(good) - 8192),
        "noise_within": good[:4096] + bytes((7 * n * n + n // 3) % 256 for n in range(len(good) - 4096)),
        "flipped_pages": good[:8192] + good[8192:][::-1],
    }


@pytest.mark.parametrize("damage", ["truncated", "header_only", "zeros_within", "noise_within", "flipped_pages"])
def test_a_damaged_file_among_good_ones(
    own_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
):
    bad = own_traces / "rank1.sqlite"
    bad.write_bytes(_damages(bad.read_bytes())[damage])
    lake = tmp_path / "lake"
    assert _ingest(own_traces, "-o", lake) == 0
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if str(bad) in line and line.startswith("left out: ")]) == 1
    assert "bug of jitter" not in err
    assert [r["rank"] for r in records(lake) if r["rank"] is not None] == [0, 2]
    recorded = [r["file"] for r in records(lake) if r["rank"] is None]
    assert recorded == [str(bad)]
    assert _ingest(own_traces, "-o", lake, "--strict") == 3
    assert not list(lake.rglob(".*"))


def test_a_missing_path_beside_good_ones(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    missing = tmp_path / "nowhere"
    assert _ingest(traces, missing, "-o", tmp_path / "lake") == 0
    assert f"{missing}: no such file or directory" in capsys.readouterr().err
    assert _ingest(missing, "-o", tmp_path / "other") == 3
    assert _ingest(traces, missing, "-o", tmp_path / "lake", "--strict") == 3


def test_a_file_that_may_not_be_read(
    own_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    if os.geteuid() == 0:
        original = Path.open

        def deny(path: Path, *arguments: object, **more: object) -> object:
            if path.name == "rank1.sqlite":
                raise PermissionError(13, "Permission denied", str(path))
            return original(path, *arguments, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(Path, "open", deny)
    else:
        (own_traces / "rank1.sqlite").chmod(0)
    assert _ingest(own_traces, "-o", tmp_path / "lake") == 0
    err = capsys.readouterr().err
    (line,) = [line for line in err.splitlines() if "rank1.sqlite" in line]
    assert "ermission denied" in line
    assert line.startswith("left out: ")
    assert [r["rank"] for r in records(tmp_path / "lake") if r["rank"] is not None] == [0, 2]


def test_a_lake_is_no_trace(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    jitter.ingest([traces], tmp_path / "lake")
    before = content(tmp_path / "lake")
    capsys.readouterr()
    assert _ingest(tmp_path / "lake", "-o", tmp_path / "other") == 3
    assert f"{tmp_path / 'lake'}: is a lake" in capsys.readouterr().err
    assert _ingest(tmp_path, "-o", tmp_path / "other") == 3  # a lake that lies beside traces is passed over
    assert content(tmp_path / "lake") == before


def test_a_lake_where_something_else_lies(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "notes.txt").write_text("mine")
    assert _ingest(traces, "-o", tmp_path / "precious") == 3
    assert "is not empty and no lake" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "precious").iterdir()] == ["notes.txt"]
    assert _ingest(traces, "-o", tmp_path / "precious" / "notes.txt") == 3
    assert "is a file" in capsys.readouterr().err
    (tmp_path / "new").mkdir()
    assert _ingest(traces, "-o", tmp_path / "new") == 0
    assert _ingest(traces, "-o", tmp_path / "precious" / "notes.txt" / "lake") == 3
    assert "bug of jitter" not in capsys.readouterr().err


def test_a_report_that_is_not_exported(own_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (own_traces / "it's.nsys-rep").write_bytes(b"report")
    (own_traces / "rank1.nsys-rep").write_bytes(b"report")  # rank1.sqlite lies beside it, as old
    shutil.copystat(own_traces / "rank1.sqlite", own_traces / "rank1.nsys-rep")
    assert _ingest(own_traces, "-o", tmp_path / "lake") == 0
    err = capsys.readouterr().err
    assert "rank1.nsys-rep" not in err
    (command,) = [line.strip() for line in err.splitlines() if "nsys export" in line]
    # the command works as printed: the shell reads the same names out of it
    words = subprocess.run(
        ["sh", "-c", f"nsys() {{ printf '%s\\n' \"$@\"; }}; {command.removeprefix('run: ')}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    report = str(own_traces / "it's.nsys-rep")
    assert words == ["export", "-t", "sqlite", "--lazy=false", "-o", report.replace(".nsys-rep", ".sqlite"), report]
    assert _ingest(own_traces / "rank1.nsys-rep", "-o", tmp_path / "other") == 3
    assert "rank1.sqlite" in capsys.readouterr().err


def test_secrets_stay_in_the_trace(own_traces: Path, tmp_path: Path):
    """The environment is in the export: nothing of it reaches the lake but the rank."""
    secrets = [
        b"PMI_SHARED_SECRET",
        b"7061737377307264",
        b"/usr/bin:/bin",
        b"WORLD_SIZE",
        b"LOCAL_RANK",
        b"SLURM_PROCID",
    ]
    held = (own_traces / "rank0.sqlite").read_bytes()
    assert all(secret in held for secret in secrets)
    (own_traces / "rank1.sqlite").write_bytes(
        (own_traces / "rank1.sqlite").read_bytes()[:20_000]
    )  # refused: its record too
    lake = tmp_path / "lake"
    jitter.ingest([own_traces], lake)
    files = [path for path in lake.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        found = [secret for secret in secrets if secret in path.read_bytes()]
        assert found == [], path
    # compressed pages hide strings: look at the values too
    assert not [secret for secret in secrets if secret.decode() in repr(content(lake))]


def test_nothing_is_left_in_the_temporary_folder(traces: Path, tmp_path: Path):
    (tmp_path / "tmp").mkdir()
    done = run_forked("ingest", traces / "rank0.sqlite", "-o", tmp_path / "lake", temporary=tmp_path / "tmp")
    assert (done.returncode, done.stdout) == (0, "")
    assert list((tmp_path / "tmp").iterdir()) == []
