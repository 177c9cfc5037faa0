"""Worker processes: one that dies takes nothing with it, and a reader's bug stops nobody else."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import jitter
from jitter.ingestion import workers
from jitter.ingestion.convert import Task
from jitter.ingestion.discovery.discover import Source
from jitter.readers import Advance, Batch, Recording, readers
from jitter.readers.nsys import NsysReader
from tests.support.added_reader import added_reader

pytestmark = pytest.mark.slow

PLUGIN = """
import os
from jitter.readers.nsys import NsysReader

class Deadly(NsysReader):
    name = "deadly"
    def sniff(self, path):
        return path.suffix == ".deadly"
    def open(self, path):
        os._exit(17)

READER = Deadly()
"""


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A reader that another package adds, in this process and in its workers: it kills whoever opens its files."""
    with added_reader("deadly", PLUGIN, tmp_path / "site", monkeypatch):
        yield


@pytest.mark.usefixtures("deadly")
def test_a_worker_that_dies(own_traces: Path, tmp_path: Path):
    (own_traces / "rank0b.deadly").write_bytes(b"x")
    report = jitter.ingest([own_traces], tmp_path / "lake", executor=jitter.PoolExecutor(2))
    assert sorted(record.rank or 0 for record in report.added) == [0, 1, 2]
    (error,) = report.refused
    assert str(error).startswith(
        f"{own_traces / 'rank0b.deadly'}: the process that read it was killed or out of memory"
    )
    assert not (tmp_path / "lake" / ".staging").exists()


DIES_ONCE = """
import os
from jitter.readers.nsys import NsysReader

class DiesOnce(NsysReader):
    name = "once"
    def sniff(self, path):
        return path.suffix == ".once"
    def open(self, path):
        mark = path.with_suffix(".mark")
        if not mark.exists():
            mark.touch()
            os._exit(9)
        return super().open(path)

READER = DiesOnce()
"""


def test_a_source_whose_worker_was_killed_is_read_again_and_it_is_said(
    own_traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (own_traces / "rank1.sqlite").rename(own_traces / "rank1.once")
    with added_reader("once", DIES_ONCE, tmp_path / "site", monkeypatch):
        report = jitter.ingest([own_traces], tmp_path / "lake", executor=jitter.PoolExecutor(2))
    assert (sorted(record.rank or 0 for record in report.added), report.refused) == ([0, 1, 2], [])
    (note,) = [warning for warning in report.warnings if "killed or out of memory" in warning]
    assert "read again alone (like 1 other source), after a worker process was killed or out of memory" in note


@pytest.mark.usefixtures("deadly")
def test_one_that_kills_its_workers_holds_nobody_up(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    many = tmp_path / "many"
    many.mkdir()
    (many / "rank0.deadly").write_bytes(b"x")
    for number in range(1, 13):
        (many / f"copy-{number}.sqlite").write_bytes((traces / "rank1.sqlite").read_bytes())
    numbers = []
    really = workers._in_pool
    monkeypatch.setattr(workers, "_in_pool", lambda tasks, *rest: numbers.append(len(tasks)) or really(tasks, *rest))
    report = jitter.ingest([many], tmp_path / "lake", executor=jitter.PoolExecutor(2))
    assert "rank0.deadly" in str(report.refused[0])
    assert sum("the same content" in warning for warning in report.warnings) == 11
    assert 1 <= numbers.count(1) <= 2


def test_outcomes_come_in_the_order_of_the_tasks_and_keep_no_copy_of_them():
    """A copy of each from a worker would hold a whole rank map."""
    sources = [Source(Path(name), "kineto", 1, (Path(name),), 0) for name in "abc"]
    tasks = [Task(source, Path("staging")) for source in sources]
    copies = [(number, workers.worker_died(replace(tasks[number]), "for a test")) for number in (2, 0, 1)]
    found = [outcome.task for outcome in workers.in_task_order(tasks, copies)]
    assert [id(task) for task in found] == [id(task) for task in tasks]


class _Buggy(NsysReader):
    name = "buggy"

    def sniff(self, path: Path) -> bool:
        return path.suffix == ".buggy"

    def open(self, path: Path) -> tuple[Recording, Callable[[Advance], Iterator[Batch]]]:
        raise ZeroDivisionError("an unforeseen file")


def test_a_readers_bug_stops_nobody_else(own_traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (own_traces / "rank0b.buggy").write_bytes(b"x")
    monkeypatch.setitem(readers(), "buggy", _Buggy())
    report = jitter.ingest([own_traces], tmp_path / "lake")
    assert len(report.added) == 3
    (error,) = report.refused
    assert "rank0b.buggy: reader 'buggy' failed: ZeroDivisionError: an unforeseen file" in str(error)
    assert "report it" in str(error)


def test_processes_and_this_one_do_the_same(traces: Path, tmp_path: Path):
    from tests.support.lake_content import content

    seen: list[tuple[int, int]] = []
    jitter.ingest(
        [traces],
        tmp_path / "many",
        executor=jitter.PoolExecutor(2),
        progress=lambda done, total: seen.append((done, total)),
    )
    jitter.ingest([traces], tmp_path / "one")
    assert content(tmp_path / "many") == content(tmp_path / "one")
    size = sum(path.stat().st_size for path in traces.iterdir())
    assert seen[-1] == (size, size)
    assert all(done <= total == size for done, total in seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_from_a_script_that_guards_nothing(traces: Path, tmp_path: Path):
    """Workers that loaded it would start workers, and so on."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, jitter\n"
        "report = jitter.ingest(sys.argv[1:2], sys.argv[2], executor=jitter.PoolExecutor(2))\n"
        "print(len(report.added))\n"
    )
    done = subprocess.run(
        [sys.executable, script, traces, tmp_path / "lake"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_a_temporary_folder_too_deep_for_sockets(traces: Path, tmp_path: Path):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    command = [sys.executable, "-m", "jitter", "ingest", traces, "-o", tmp_path / "lake", "--jobs", "2"]
    done = subprocess.run(
        command, env=os.environ | {"TMPDIR": str(deep)}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "3 ranks" in done.stderr
    assert list(deep.iterdir()) == []
