"""Nsight Systems reports are exported with the user's nsys, here a stand-in that writes what the report holds."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import jitter
from jitter.core.errors import UsageError
from jitter.ingestion import nsys_export
from jitter.ingestion.inspect import inspect

COPY = "pathlib.Path(words[-2]).write_bytes(pathlib.Path(words[-1]).read_bytes()[6:])"
FAIL = (
    "print('Generating SQLite file'); print('FATAL ERROR: the report is of\\tnsys 2031.1', file=sys.stderr); "
    "print('at 0x1'); sys.exit(1)"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jitter" / "nsys-exports"


@pytest.fixture
def reports(own_traces: Path) -> Path:
    """Return a folder of reports rank0 to rank2; the stand-in's reports hold their own exports."""
    for export in own_traces.glob("*.sqlite"):
        export.with_suffix(".nsys-rep").write_bytes(b"REPORT" + export.read_bytes())
        export.unlink()
    return own_traces


@pytest.fixture
def nsys(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that makes an nsys of these Python statements; its calls' words are in `calls`, NUL between."""

    def make(body: str = COPY) -> Path:
        program = tmp_path / "bin" / "nsys"
        program.parent.mkdir(exist_ok=True)
        lines = [
            f"#!{sys.executable}",
            "import pathlib, sys, time",
            "words = sys.argv[1:]",
            f"with open({str(tmp_path / 'calls')!r}, 'a') as file: file.write(chr(0).join(words) + chr(1))",
            body,
        ]
        program.write_text("\n".join(lines) + "\n")
        program.chmod(0o755)
        return program

    return make


def calls(tmp_path: Path) -> list[list[str]]:
    path = tmp_path / "calls"
    return [call.split("\0") for call in path.read_text().split("\1")[:-1]] if path.exists() else []


def ingest(folder: Path, lake: Path, nsys: Path | None = None) -> "jitter.IngestReport":
    return jitter.ingest(folder, lake, nsys=nsys)


def test_reports_give_the_lake_of_their_exports(
    reports: Path, traces: Path, tmp_path: Path, nsys: Callable[..., Path], cache: Path
):
    report = jitter.ingest(reports, tmp_path / "a", nsys=nsys(), executor=jitter.PoolExecutor(2))
    assert (report.refused, len(report.added)) == ([], 3)
    assert sorted(Path(record.file).name for record in report.added) == [f"rank{n}.nsys-rep" for n in range(3)]
    ingest(traces, tmp_path / "b")
    query = "select * from kernels order by step, rank, ordinal"
    assert jitter.open(tmp_path / "a").sql(query, arrow=True).equals(jitter.open(tmp_path / "b").sql(query, arrow=True))
    for words in calls(tmp_path):
        assert words[:5] == ["export", "--type", "sqlite", "--lazy=false", "--output"]
        assert Path(words[5]).is_relative_to(cache)
    assert sorted(Path(words[6]).name for words in calls(tmp_path)) == [f"rank{n}.nsys-rep" for n in range(3)]


def test_the_export_of_an_unchanged_report_is_reused(reports: Path, tmp_path: Path, nsys: Callable[..., Path]):
    program = nsys()
    assert all(one.records for one in inspect(reports, nsys=program).sources)
    (reports / "rank1.nsys-rep").rename(reports / "moved-rank1.nsys-rep")
    assert len(ingest(reports, tmp_path / "lake", program).added) == 3
    assert len(calls(tmp_path)) == 3
    assert ingest(reports, tmp_path / "lake", program).unchanged == 3
    shutil.copy(reports / "rank2.nsys-rep", reports / "rank0.nsys-rep")
    with (reports / "rank0.nsys-rep").open("ab") as file:
        file.write(bytes(4096))
    ingest(reports, tmp_path / "other", program)
    assert len(calls(tmp_path)) == 4


def test_the_program_on_the_path_is_used(
    reports: Path, tmp_path: Path, nsys: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(nsys().parent), prepend=os.pathsep)
    assert len(ingest(reports, tmp_path / "lake").added) == 3


def test_a_hostile_name_is_a_single_word_without_a_shell(reports: Path, tmp_path: Path, nsys: Callable[..., Path]):
    program = nsys()
    names = ["-o rank0.nsys-rep", "--help\nrm -rf rank1.nsys-rep", "$(touch x);`touch y` rank2.nsys-rep"]
    for rank, name in enumerate(names):
        (reports / f"rank{rank}.nsys-rep").rename(reports / name)
    report = ingest(reports, tmp_path / "lake", program)
    assert (report.refused, len(report.added)) == ([], 3)
    assert {words[-1] for words in calls(tmp_path)} == {str(reports / name) for name in names}
    assert not list(tmp_path.rglob("[xy]"))


def test_nsys_own_error_in_one_line_and_the_good_files_go_in(
    reports: Path, traces: Path, tmp_path: Path, nsys: Callable[..., Path], cache: Path
):
    (reports / "rank1.nsys-rep").unlink()
    (reports / "rank2.nsys-rep").unlink()
    for rank in (1, 2):
        shutil.copy(traces / f"rank{rank}.sqlite", reports)
    report = ingest(reports, tmp_path / "lake", nsys(FAIL))
    (error,) = report.refused
    path = reports / "rank0.nsys-rep"
    assert error.message == f"{path}: nsys cannot export it: FATAL ERROR: the report is of nsys 2031.1"
    assert "--nsys PATH" in (error.hint or "")
    assert len(report.added) == 2
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(9)", "exit status 9 without a message"),
        ("pass", "exit status 0 without a message"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("print('x' * 100_000 + ' error'); sys.exit(1)", "x" * 300),
    ],
)
def test_failures_without_a_clear_message(
    reports: Path, tmp_path: Path, nsys: Callable[..., Path], body: str, said: str
):
    for error in ingest(reports, tmp_path / "lake", nsys(body)).refused:
        assert error.message.endswith(f": {said}")


def test_a_damaged_export_is_named_by_its_report_and_made_again(
    reports: Path, tmp_path: Path, nsys: Callable[..., Path], cache: Path
):
    program = nsys("pathlib.Path(words[-2]).write_bytes(b'SQLite format 3' + bytes(5000))")
    errors = ingest(reports, tmp_path / "lake", program).refused
    assert len(errors) == 3
    for error in errors:
        assert "rank" in error.message
        assert str(cache) not in error.message
    assert list(cache.iterdir()) == []


def test_space_is_checked_before_the_export(
    reports: Path, tmp_path: Path, nsys: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
):
    size = (reports / "rank0.nsys-rep").stat().st_size
    cache.mkdir(parents=True)
    (cache / f"{size}-of-another-process").mkdir()
    program, usage = nsys(), shutil.disk_usage(tmp_path)
    for free, exports in ((10 * size - 1, 0), (10 * size, 1)):
        monkeypatch.setattr(nsys_export.shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
        report = ingest(reports / "rank0.nsys-rep", tmp_path / "lake", program)
        assert len(calls(tmp_path)) == exports == len(report.added)
        if not exports:
            assert "free" in report.refused[0].message
            assert "XDG_CACHE_HOME" in (report.refused[0].hint or "")


def test_an_export_that_explodes_is_ended(
    reports: Path, tmp_path: Path, nsys: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nsys_export, "MOST_RATIO", 2)
    monkeypatch.setattr(nsys_export, "SMALL_BYTES", 1000)
    program = nsys(
        "with open(words[-2], 'wb') as file:\n    for _ in range(100): file.write(bytes(1 << 20)); file.flush(); "
        "time.sleep(0.1)"
    )
    began_s = time.monotonic()
    (error,) = ingest(reports / "rank0.nsys-rep", tmp_path / "lake", program).refused
    assert "its export grows to more than" in error.message
    assert time.monotonic() - began_s < 8


def test_exports_that_nobody_used_for_a_week_are_removed(
    reports: Path, tmp_path: Path, nsys: Callable[..., Path], cache: Path
):
    cache.mkdir(parents=True)
    for name, age_s in (("old.sqlite", 8 * 86_400), ("young.sqlite", 6 * 86_400)):
        (cache / name).touch()
        os.utime(cache / name, (time.time() - age_s,) * 2)
    ingest(reports, tmp_path / "lake", nsys())
    assert not (cache / "old.sqlite").exists()
    assert len(list(cache.iterdir())) == 4


def test_a_program_that_is_none(reports: Path, tmp_path: Path):
    with pytest.raises(UsageError, match="is not a program"):
        ingest(reports, tmp_path / "lake", tmp_path / "nothing")


def test_an_interrupted_ingest_ends_nsys(reports: Path, tmp_path: Path, nsys: Callable[..., Path]):
    program = nsys(f"pathlib.Path({str(tmp_path)!r}, 'pid').write_text(str(__import__('os').getpid())); time.sleep(60)")
    words = [sys.executable, "-m", "jitter", "ingest", str(reports), "-o", str(tmp_path / "lake"), "--nsys", program]
    process = subprocess.Popen([*words, "--jobs", "2"], stderr=subprocess.PIPE)
    pid_file = tmp_path / "pid"
    while not (pid_file.exists() and pid_file.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    pid = int(pid_file.read_text())
    deadline_s = time.monotonic() + 10
    while _is_running(pid):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def _is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
