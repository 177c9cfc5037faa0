"""A full disk: one line that names the file that cannot be written, exit 3, and no part of a file left behind."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

import jitter
from jitter.cli import main
from tests.support.lake_content import content

pytestmark = pytest.mark.slow


def run(*words: object, most_bytes: int, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command whose files cannot grow beyond a size."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    command = [sys.executable, "-m", "jitter", *map(str, words)]
    # compiled loops are cached in files, which the limit would cut
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment, preexec_fn=limit, timeout=100
    )


@pytest.mark.parametrize(
    ("form", "options", "name"),
    [
        ("nsys", [], "rank0.sqlite"),
        ("nsys", ["--option", "container=parquet"], ".parquet"),
        ("kineto", [], "rank-0.pt.trace.json.gz"),
        ("rocpd", [], "rank-0_results.db"),
        ("rocprof-v1", [], "myprofile-0.db"),
        ("rocprof-csv", [], "rank-0_kernel_trace.csv"),
    ],
)
def test_a_sample_that_does_not_fit_names_the_file(form: str, options: list[str], name: str, tmp_path: Path):
    done = run("sample", "s", "--ranks", 2, "--format", form, *options, most_bytes=6000, cwd=tmp_path)
    first, hint = done.stderr.splitlines()
    assert done.returncode == 3
    assert first.startswith("jitter: s/")
    assert name in first
    assert " cannot be written: " in first
    assert hint == "  free space on the disk, or choose another folder"
    named = tmp_path / first.removeprefix("jitter: ").partition(" cannot")[0]
    assert not named.exists()


def test_an_error_of_another_file_is_not_one_of_stdout(monkeypatch: pytest.MonkeyPatch, capsys, small_lake: Path):
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("jitter.cli.lakes.open_lake", full)
    assert main(["steps", str(small_lake)]) == 3
    assert capsys.readouterr().err == "jitter: a file cannot be written: No space left on device\n  is the disk full?\n"


def test_each_write_of_an_ingest_may_be_the_one_that_does_not_fit(
    traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """One line names the file, exit 3; with space, the same command gives the same lake."""
    words = ["ingest", str(traces / "rank0.sqlite"), "--jobs", "1", "--quiet", "-o"]
    assert main([*words, str(tmp_path / "whole")]) == 0
    whole = content(tmp_path / "whole")
    really, really_open = Path.write_bytes, Path.open
    for full in range(100):
        writes = 0

        def write(path: Path, given: bytes, full: int = full) -> int:
            nonlocal writes
            writes += 1
            if writes > full:
                really(path, b"")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return really(path, given)

        def append(path: Path, mode: str = "r", full: int = full, **told: Any) -> IO[Any]:
            nonlocal writes
            writes += mode == "ab"
            if mode == "ab" and writes > full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return really_open(path, mode, **told)

        lake = tmp_path / f"lake{full}"
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", write)
            patch.setattr(Path, "open", append)
            code = main([*words, str(lake)])
        if writes <= full:
            break
        first, hint = capsys.readouterr().err.splitlines()
        assert code == 3
        assert first.startswith("jitter: ")
        assert first.endswith(": No space left on device") or "(No space left on device)" in first
        assert str(lake) in first
        assert "space" in hint or "disk" in hint or "place" in hint
        assert main([*words, str(lake)]) == 0
        assert content(lake) == whole
    assert full > 8


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """A volume of 400 kB."""
    place = tmp_path / "volume"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("only root may mount a volume")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_volume_that_is_nearly_full(volume: Path, traces: Path, capsys: pytest.CaptureFixture[str]):
    filler = volume / "filler"
    for left_kb in range(0, 180, 20):
        filler.write_bytes(bytes((400 - left_kb) << 10))
        code = main(["ingest", str(traces), "-o", str(volume / "lake"), "--jobs", "1"])
        said = capsys.readouterr().err
        assert code in (0, 3)
        if code:
            first, _ = said.splitlines()
            assert first.startswith("jitter: ")
            assert str(volume) in first
        filler.unlink()
    assert jitter.ingest([traces], volume / "lake", executor=jitter.LocalExecutor()).refused == []
    assert len(jitter.open(volume / "lake").ranks) == 3
