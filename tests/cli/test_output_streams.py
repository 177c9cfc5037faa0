"""Outputs that are no plain file: pipes, devices, links, a full disk, encodings without the letters."""

import errno
import os
import resource
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click
import pytest

import jitter
from jitter.cli import main
from tests.support.forked_command import run_forked
from tests.support.lake_content import content

pytestmark = pytest.mark.slow

FULL = Path("/dev/full")


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run one line of bash in which `jitter` is ours."""
    start = f'jitter() {{ {sys.executable} -m jitter "$@"; }}; '
    return subprocess.run(["bash", "-c", start + line], capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.parametrize("verb", ["table", "steps", "report", "export --csv {out}", "query 'from kernels'"])
def test_a_pipe_that_nobody_reads_is_no_error(verb: str, small_lake: Path, tmp_path: Path):
    name, *words = shlex.split(verb.format(out=tmp_path / "out"))
    read, write = os.pipe()
    os.close(read)
    done = run_forked(name, small_lake, *words, stdout=write)
    os.close(write)
    said = [line for line in done.stderr.splitlines() if "the costliest" not in line]
    assert (done.returncode, said) == (0, [])


def test_another_pipe_that_breaks_is_not_done(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A worker or a scheduler that is gone: click takes every broken pipe for a reader that left."""

    def broken(*_arguments: object, **_more: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(click.Group, "invoke", broken)
    with capsys.disabled(), Path(os.devnull).open("w") as nowhere:  # a stdout that is whole
        monkeypatch.setattr(sys, "stdout", nowhere)
        monkeypatch.setattr(sys, "stderr", nowhere)
        assert main(["steps"]) == 70


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("verb", ["table {lake} --step 2000 --unmatched", "query {lake} 'select 1'"])
def test_a_full_disk_below_stdout_is_told_however_little_is_written(verb: str, small_lake: Path):
    with FULL.open("w") as full:
        done = run_forked(*shlex.split(verb.format(lake=small_lake)), stdout=full.fileno())
    assert_full(done)


def assert_full(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == "jitter: stdout cannot be written: No space left on device"
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_streams_of_a_process_of_its_own(small_lake: Path):
    """Python says nothing at its end either: neither of a full disk nor of closed streams."""
    assert_full(shell(f"jitter steps {small_lake} > {FULL}"))
    done = shell(f"jitter steps {small_lake} >&-")
    assert (done.returncode, done.stderr) == (0, "")
    assert shell("jitter steps nowhere 2>&-").returncode == 3


@pytest.mark.parametrize("verb", ["steps {lake}", "table {lake} --step 2000", "query {lake} 'select 1'"])
def test_a_closed_stdout_is_no_bug(verb: str, small_lake: Path):
    done = run_forked(*shlex.split(verb.format(lake=small_lake)), closed=1)
    assert (done.returncode, done.stderr) == (0, "")


@contextmanager
def reader_of(pipe: Path, target: Path) -> Iterator[None]:
    """Copy what is written to a pipe meanwhile."""
    with target.open("wb") as file, subprocess.Popen(["cat", pipe], stdout=file) as process:
        try:
            yield
            process.wait(timeout=60)
        finally:
            process.kill()  # a reader of a pipe that is never opened waits forever


@pytest.mark.parametrize(
    ("verb", "form"),
    [
        ("table {lake} --step 2000", "csv"),
        ("table {lake} --step 2000", "parquet"),
        ("steps {lake}", "json"),
        ("query {lake} 'from kernels'", "csv"),
        ("collectives {lake}", "txt"),
    ],
)
def test_a_pipe_named_as_a_file_is_written_to_and_stays(
    verb: str, form: str, small_lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    whole, pipe, read = tmp_path / f"whole.{form}", tmp_path / f"pipe.{form}", tmp_path / "read"
    words = shlex.split(verb.format(lake=small_lake))
    os.mkfifo(pipe)
    with reader_of(pipe, read):
        assert main([*words, "-o", str(pipe)]) == 0
    assert capsys.readouterr().err == ""
    assert main([*words, "-o", str(whole)]) == 0
    assert read.read_bytes() == whole.read_bytes()
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_timelines_and_pages_leave_a_pipe_a_pipe(small_lake: Path, tmp_path: Path):
    pipe, read = tmp_path / "pipe", tmp_path / "read"
    os.mkfifo(pipe)
    for words in (["export", "--perfetto"], ["report", "--html", "-o"], ["report", "--json", "-o"]):
        with reader_of(pipe, read):
            assert main([words[0], str(small_lake), *words[1:], str(pipe)]) == 0
        assert read.stat().st_size > 1000
        assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_link_stays_a_link(small_lake: Path, tmp_path: Path):
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link.csv", tmp_path / "there" / "table.csv"
    link.symlink_to(target)
    for _ in range(2):  # the second finds the first's
        assert main(["table", str(small_lake), "--step", "2000", "-o", str(link)]) == 0
    assert link.is_symlink()
    assert target.read_text().startswith("kernel_index,kernel_name,mean,rank_0")
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["table.csv"]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("verb", ["table", "steps", "query"])
def test_a_file_that_cannot_be_written_is_said(
    verb: str, suffix: str, small_lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / f".out.{suffix}.{os.getpid()}.part").mkdir()  # in the way, even of root
    out = tmp_path / f"out.{suffix}"
    what = {"table": ["--step", "2000"], "steps": [], "query": ["select 1 as one"]}[verb]
    assert main([verb, str(small_lake), *what, "-o", str(out)]) == 3
    assert capsys.readouterr().err.splitlines()[0] == f"jitter: {out} cannot be written: Is a directory"
    assert not out.exists()


@pytest.mark.parametrize(("words", "shown"), [("report -v {lake}", "\\xb7 "), ("query {lake} --relations", "")])
def test_letters_that_stdout_lacks_are_escaped(words: str, shown: str, small_lake: Path):
    done = run_forked(*words.format(lake=small_lake).split(), encoding="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout  # ·


@pytest.mark.parametrize("verb", ["inspect", "ingest"])
def test_one_trace_whose_name_is_not_utf8_stops_no_other(verb: str, traces: Path, tmp_path: Path):
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "rank0.sqlite").write_bytes((traces / "rank0.sqlite").read_bytes())
    (folder / os.fsdecode(b"rank\xff1.sqlite")).write_bytes((traces / "rank1.sqlite").read_bytes())
    done = run_forked(verb, folder, *(["-o", tmp_path / "lake"] if verb == "ingest" else []))
    said = done.stdout + done.stderr
    assert done.returncode == 0
    assert f"{folder}/rank?1.sqlite: its name is not UTF-8" in said
    assert ("1 rank, 3 steps" if verb == "ingest" else "rank0.sqlite  nsys") in said


def test_a_lake_whose_name_is_not_utf8_is_refused(traces: Path, tmp_path: Path):
    name = tmp_path / os.fsdecode(b"l\xff")
    for words in (["ingest", traces, "-o", name], ["report", name]):
        done = run_forked(*words)
        assert done.returncode == 2
        assert "the path of a lake must be UTF-8" in done.stderr
    assert not name.exists()


@pytest.mark.parametrize(("words", "code"), [("--version", 0), ("nonsense", 2), ("steps {lake}", 0)])
def test_a_closed_stderr_is_no_matter(words: str, code: int, small_lake: Path):
    assert run_forked(*words.format(lake=small_lake).split(), closed=2).returncode == code


def limit_files() -> None:
    """Let no file of this process grow beyond 6 kB, and no module's byte code be cut."""
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))


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
    done = run_forked("sample", "s", "--ranks", 2, "--format", form, *options, cwd=tmp_path, prepare=limit_files)
    first, hint = done.stderr.splitlines()
    assert done.returncode == 3
    assert first.startswith("jitter: s/")
    assert name in first
    assert " cannot be written: " in first
    assert hint == "  free space on the disk, or choose another place"
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
    words = ["ingest", str(traces / "rank0.sqlite"), "--quiet", "-o"]
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
    for left_kb in range(0, 180, 45):
        filler.write_bytes(bytes((400 - left_kb) << 10))
        code = main(["ingest", str(traces), "-o", str(volume / "lake")])
        said = capsys.readouterr().err
        assert code in (0, 3)
        if code:
            first, _ = said.splitlines()
            assert first.startswith("jitter: ")
            assert str(volume) in first
        filler.unlink()
    assert jitter.ingest([traces], volume / "lake").refused == []
    assert len(jitter.open(volume / "lake").ranks) == 3
