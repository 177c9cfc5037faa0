"""A Dask cluster does the reading: a real scheduler and workers in processes of their own, some of which die."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import jitter
from jitter._version import __version__
from jitter.cli import main
from jitter.core.errors import JitterError, UsageError
from jitter.core.parallel import dask_client
from jitter.ingestion import workers
from jitter.ingestion.convert import Task
from jitter.ingestion.discovery.discover import discover
from tests.support.added_reader import added_reader
from tests.support.dask_cluster import StartCluster, address_of
from tests.support.forked_command import ForkedCommand, run_forked
from tests.support.lake_content import content

pytestmark = pytest.mark.slow

PLUGIN = """
import os, signal
from jitter.readers.nsys import NsysReader

class Mortal(NsysReader):
    name = "mortal"
    def sniff(self, path):
        return path.suffix == ".mortal"
    def open(self, path):
        recording, batches = super().open(path)
        return recording, lambda advance: self.read(path.with_suffix(".deaths"), batches(advance))
    def read(self, deaths, batches):
        for batch in batches:
            yield batch
            if deaths.exists() and (left := int(deaths.read_text())):
                deaths.write_text(str(left - 1))
                os.kill(os.getpid(), signal.SIGKILL)

READER = Mortal()
"""


@pytest.fixture
def mortal(own_traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Traces of which one kills, in the middle, as many of its readers as `rank1.deaths` says."""
    with added_reader("mortal", PLUGIN, tmp_path / "site", monkeypatch):
        (own_traces / "rank1.sqlite").rename(own_traces / "rank1.mortal")
        yield own_traces


def _ingest(traces: Path, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Ingest to the lake `lake` in the cluster whose address is in the folder, too."""
    return run_forked("ingest", traces, "-o", folder / "lake", "--scheduler", _address(folder), *words)


def _address(folder: Path) -> str:
    return address_of(folder / "scheduler.json")


def test_a_worker_killed_in_the_middle(mortal: Path, dask_cluster: StartCluster, tmp_path: Path):
    jitter.ingest([mortal], tmp_path / "here")
    (mortal / "rank1.deaths").write_text("1")
    processes = dask_cluster(2, forgiven=3)
    done = _ingest(mortal, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (mortal / "rank1.deaths").read_text() == "0"
    codes = [process.exitcode for process in processes]
    assert sorted(codes, key=str) == [-signal.SIGKILL, None]
    (mortal / "rank1.deaths").unlink()
    assert content(tmp_path / "lake") == content(tmp_path / "here")


def test_a_source_that_kills_its_workers_is_given_up(mortal: Path, dask_cluster: StartCluster, tmp_path: Path):
    (mortal / "rank1.deaths").write_text("9")
    dask_cluster(3, forgiven=1)
    done = _ingest(mortal, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rank1.mortal: workers that read it died, one after the other (2)" in done.stderr
    assert (mortal / "rank1.deaths").read_text() == "7"
    assert "2 ranks" in done.stderr
    assert not (tmp_path / "lake" / ".staging").exists()


def test_no_scheduler(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dask_client, "_ANSWERS_WITHIN_S", 0.5)
    with pytest.raises(JitterError, match=r"tcp://127\.0\.0\.1:9: no Dask scheduler answers"):
        jitter.ingest([traces], tmp_path / "lake", executor=jitter.DaskExecutor("tcp://127.0.0.1:9"))
    assert not (tmp_path / "lake" / ".staging").exists()


def test_a_scheduler_without_workers_is_told_and_given_up(traces: Path, dask_cluster: StartCluster, tmp_path: Path):
    dask_cluster(0, forgiven=1)
    address = _address(tmp_path)
    began_s = time.monotonic()
    done = _ingest(traces, tmp_path, "--wait", "4")
    assert time.monotonic() - began_s < 4 + 20  # on a loaded machine
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        f"{address}: the Dask scheduler has no worker; waiting for one, 4 s in all (--wait)",
        f"jitter: {address}: the Dask scheduler has had no worker for 4 s",
        f"  start workers with `dask worker {address}`, or wait longer with --wait",
    ]
    assert not (tmp_path / "lake" / ".staging").exists()


def test_workers_that_are_all_lost_are_not_waited_for(mortal: Path, dask_cluster: StartCluster, tmp_path: Path):
    (mortal / "rank1.deaths").write_text("9")
    dask_cluster(1, forgiven=9)
    done = _ingest(mortal, tmp_path, "--wait", "2")
    assert done.returncode == 3
    assert "the Dask scheduler has had no worker for 2 s" in done.stderr
    assert "Traceback" not in done.stderr


def test_workers_of_another_version_are_refused_by_name(traces: Path, dask_cluster: StartCluster, tmp_path: Path):
    other = tmp_path / "other" / "jitter"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    (other / "_version.py").write_text('__version__ = "0.0.1"\n')
    dask_cluster(1, forgiven=1, fresh={"PYTHONPATH": str(other.parent)})
    done = _ingest(traces, tmp_path)
    assert done.returncode == 3
    *_, what, cure = done.stderr.splitlines()  # after a line about waiting, where workers start slowly
    versions = rf"has jitter 0\.0\.1, and this process has jitter {__version__}"
    assert re.fullmatch(rf"jitter: the Dask worker tcp://127\.0\.0\.1:\d+ {versions}", what)
    assert cure.endswith(f"pip install 'gpu-jitter[cluster]=={__version__}'")


def test_a_scheduler_killed_midway_is_one_line(mortal: Path, dask_cluster: StartCluster, tmp_path: Path):
    (mortal / "rank1.deaths").write_text("1")  # its worker's death is the moment
    dask_cluster(1, forgiven=9)
    address = _address(tmp_path)
    ingest = ForkedCommand("ingest", mortal, "-o", tmp_path / "lake", "--scheduler", address)
    until = time.monotonic() + 60
    while (mortal / "rank1.deaths").read_text() != "0" and time.monotonic() < until:
        time.sleep(0.05)
    dask_cluster.scheduler.kill()
    began_s = time.monotonic()
    done = ingest.finish()
    assert time.monotonic() - began_s < 20
    assert (done.returncode, done.stderr.splitlines()) == (
        3,
        [f"jitter: {address}: the Dask scheduler is gone", "  run it again: what was written already is kept"],
    )


def test_a_request_to_a_scheduler_that_just_died_is_one_line(dask_cluster: StartCluster, tmp_path: Path):
    dask_cluster(1, forgiven=0)
    executor = jitter.DaskExecutor(_address(tmp_path))

    def ask_a_dead_scheduler() -> None:
        with dask_client.connect(executor) as cluster:
            dask_cluster.scheduler.kill()
            while True:  # the client's own state says "running" for a moment
                cluster.client.ncores()

    with pytest.raises(JitterError, match="scheduler is gone"):
        ask_a_dead_scheduler()


def test_without_dask(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=r"gpu-jitter\[cluster\]"):
        jitter.ingest([traces], tmp_path / "lake", executor=jitter.DaskExecutor("tcp://127.0.0.1:9"))


def test_jobs_are_for_this_machine(traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["ingest", str(traces), "-o", str(tmp_path / "lake"), "--jobs", "2", "--scheduler", "tcp://127.0.0.1:9"]
    assert main(arguments) == 2
    assert "--jobs is for workers on this machine" in capsys.readouterr().err


def test_a_worker_that_does_not_see_the_lake_or_the_traces(traces: Path, tmp_path: Path):
    source = discover([traces]).sources[0]
    outcome = workers._convert(Task(source, tmp_path / "elsewhere"))
    assert f"does not see {tmp_path / 'elsewhere'}" in str(outcome.error)
    assert not (tmp_path / "elsewhere").exists()


def test_dask_is_loaded_for_a_cluster_only(traces: Path, tmp_path: Path):
    script = (
        "import sys, jitter; jitter.ingest(sys.argv[1:2], sys.argv[2], executor=jitter.LocalExecutor()); "
        "sys.exit(bool({'dask', 'distributed'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", script, traces, tmp_path / "lake"], check=True)
