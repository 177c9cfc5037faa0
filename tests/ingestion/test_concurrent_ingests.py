"""Many nodes at one lake at once, each with ranks of its own and nobody in charge; one of them dies."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import jitter
from jitter.cli import main
from jitter.core.errors import LakeError
from jitter.ingestion import step_numbering
from jitter.lake import staging
from jitter.simulate import Job, simulate, write
from tests.support.databases import open_database
from tests.support.forked_command import ForkedCommand
from tests.support.lake_content import catalogue_is_records, content, records

pytestmark = pytest.mark.slow

HOLDER = rf"the run with process id {os.getpid()} on {re.escape(socket.gethostname())} has been numbering"

NODES, RANKS_EACH = 4, 2


def _node(name: str, traces: list[Path], lake: Path) -> ForkedCommand:
    """Start an ingest as on a machine of that name."""

    def prepare() -> None:
        socket.gethostname = lambda: name
        staging._here.cache_clear()

    return ForkedCommand("ingest", *traces, "-o", lake, "--quiet", prepare=prepare)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[Path]], Path]:
    """Each node's traces, and the lake that one process makes of all."""
    folder = tmp_path_factory.mktemp("shared")
    write(simulate(Job(ranks=NODES * RANKS_EACH, steps=4, kernels=40)), folder / "traces", "nsys")
    jitter.ingest([folder / "traces"], folder / "lake")
    paths = [folder / "traces" / f"rank{rank}.sqlite" for rank in range(NODES * RANKS_EACH)]
    return {f"node{n}": paths[n * RANKS_EACH : (n + 1) * RANKS_EACH] for n in range(NODES)}, folder / "lake"


def test_all_at_once(shared: tuple[dict[str, list[Path]], Path], tmp_path: Path):
    nodes, whole = shared
    lake = tmp_path / "lake"
    processes = [_node(name, traces, lake) for name, traces in nodes.items()]
    for done in [process.finish() for process in processes]:
        assert done.returncode == 0, done.stderr
    assert catalogue_is_records(lake)
    assert content(lake) == content(whole)


def test_one_is_killed_and_runs_again(shared: tuple[dict[str, list[Path]], Path], tmp_path: Path):
    nodes, whole = shared
    lake = tmp_path / "lake"
    processes = {name: _node(name, traces, lake) for name, traces in nodes.items()}
    victim = processes["node2"]
    while victim.is_running and not list(lake.glob(".staging/node2-*/*/*.parquet")):
        time.sleep(0.002)
    victim.kill()
    done = {name: process.finish() for name, process in processes.items()}
    assert {name: process.returncode for name, process in done.items()} == {
        name: -signal.SIGKILL if name == "node2" else 0 for name in nodes
    }, done
    (left,) = (lake / ".staging").iterdir()  # for its own node to clear away: from elsewhere it may be alive
    assert left.name.startswith("node2-")
    again = _node("node2", nodes["node2"], lake).finish()
    assert again.returncode == 0, again.stderr
    assert content(lake) == content(whole)


def test_steps_without_markers_get_the_same_numbers_on_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One rank lacks the first step, and would call the second 0, had its node not to wait for the other's numbers."""
    traces, lake = tmp_path / "traces", tmp_path / "lake"
    write(simulate(Job(ranks=2, steps=6, kernels=30, marker="none")), traces, "nsys")
    paths = [traces / f"rank{rank}.sqlite" for rank in range(2)]
    jitter.ingest([traces], tmp_path / "whole")
    whole = _starts(tmp_path / "whole")
    _forget_before(paths[1], records(tmp_path / "whole")[1]["steps"][1]["start_ns"])
    nodes: list[ForkedCommand] = []
    number = step_numbering.number_steps

    def while_another_comes(*arguments: Any) -> Any:
        monkeypatch.setattr(step_numbering, "number_steps", number)
        nodes.append(_node("node1", [paths[1]], lake))
        while nodes[0].is_running and not list(lake.glob(".staging/node1-*/numbering")):
            time.sleep(0.01)
        return number(*arguments)

    monkeypatch.setattr(step_numbering, "number_steps", while_another_comes)
    jitter.ingest([paths[0]], lake)
    done = nodes[0].finish()
    assert done.returncode == 0, done.stderr
    found = _starts(lake)
    assert found[0] == whole[0]
    assert {step: start for step, start in found[1].items() if step > 1} == {
        step: start for step, start in whole[1].items() if step > 1
    }
    assert len(found[1]) == 5


def _starts(lake: Path) -> list[dict[int, int]]:
    return [{step["step"]: step["start_ns"] for step in record["steps"]} for record in records(lake)]


def _forget_before(export: Path, start_ns: int) -> None:
    with open_database(export) as connection:
        runtime = f"SELECT correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start < {start_ns}"
        for table in ("KERNEL", "MEMCPY", "MEMSET"):
            connection.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_{table} WHERE correlationId IN ({runtime})")
        connection.execute(f"DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start < {start_ns}")


def test_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(staging, "_PATIENCE_S", 0)
    first, second = staging.new_run_folder(tmp_path), staging.new_run_folder(tmp_path)
    with staging.exclusive_lock(first), pytest.raises(LakeError, match=HOLDER), staging.exclusive_lock(second):
        pytest.fail("both are in")
    with staging.exclusive_lock(second):
        pass
    (first.parent / "numbering").write_text("node-0123-1-gone")  # left by a run that has been cleared away
    monkeypatch.setattr(staging, "_PATIENCE_S", 60)
    with staging.exclusive_lock(first):
        pass
    assert not (first.parent / "numbering").exists()


def test_the_lock_of_a_dead_node_is_told_and_can_be_broken(tmp_path: Path):
    traces, lake, dead = tmp_path / "traces", tmp_path / "lake", "node\x1b]0;9-0123456789ab-77-0123456789abcdef"
    write(simulate(Job(ranks=2, steps=6, kernels=24, marker="none")), traces, "nsys")
    assert main(["ingest", str(traces / "rank0.sqlite"), "-o", str(lake), "--quiet"]) == 0
    (lake / ".staging" / dead).mkdir(parents=True)
    lock = lake / ".staging" / "numbering"
    lock.write_text(dead)
    command = [sys.executable, "-m", "jitter", "ingest", str(traces), "-o", str(lake), "--quiet", "--jobs", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as ingest:
        assert ingest.stderr is not None
        said = next(line for line in ingest.stderr if "waiting" in line)
        assert said == (
            f"{lake}: waiting for the run with process id 77 on node�]0;9, which is numbering the lake's steps, up to "
            f"10 minutes; if it is dead, remove {lock}\n"
        )
        lock.unlink()
        ingest.communicate(timeout=60)
    assert ingest.returncode == 0
    assert not lock.exists()


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "path", "long"])
def test_a_lock_from_an_enemy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    """What it names is not touched, and nothing is waited for without end."""
    monkeypatch.setattr(staging, "_PATIENCE_S", 0)
    run = staging.new_run_folder(tmp_path / "lake")
    run.mkdir(parents=True)
    lock, canary = run.parent / "numbering", tmp_path / "canary"
    canary.write_text("mine")
    if kind == "pipe":
        os.mkfifo(lock)
    elif kind == "link":
        lock.symlink_to(canary)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.write_text("../../canary" if kind == "path" else "x" * 10_000_000)
    try:
        with staging.exclusive_lock(run):
            pass
    except LakeError as error:
        assert str(lock) in str(error)  # noqa: PT017  # it may be refused or replaced
    assert canary.read_text() == "mine"


def test_what_another_publishes_meanwhile_is_not_overwritten(own_traces: Path, tmp_path: Path):
    lake = tmp_path / "lake"
    other = tmp_path / "other.sqlite"
    (own_traces / "rank2.sqlite").rename(other)
    during: list[int] = []

    def another_node(done: int, total: int) -> None:
        if not during:
            during.append(done)
            assert not jitter.ingest([other], lake, rank=1).refused

    report = jitter.ingest([own_traces], lake, progress=another_node)
    assert during
    (error,) = report.refused
    assert f"{own_traces / 'rank1.sqlite'}: rank 1 has 3 steps" in str(error)
    assert f"from {other}" in str(error)
    in_turn = tmp_path / "in turn"
    jitter.ingest([other], in_turn, rank=1)
    jitter.ingest([own_traces], in_turn)
    assert content(lake) == content(in_turn)


def test_who_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = staging._here()

    def run(place: str, pid: int) -> Path:
        path = tmp_path / staging.NAME / f"{place}-{pid}-0123456789abcdef"
        path.mkdir(parents=True)
        return path

    dead = run(here, ended.pid)
    run(here, os.getppid())
    elsewhere = run(here[:-1] + ("0" if here[-1] != "0" else "1"), ended.pid)  # a host of the same name
    assert staging.dead_runs(tmp_path) == [dead]
    long_ago = time.time() - staging._FORGOTTEN_S - 60
    os.utime(elsewhere, (long_ago, long_ago))
    assert set(staging.dead_runs(tmp_path)) == {dead, elsewhere}
    (elsewhere / "note").write_bytes(b"")
    os.utime(elsewhere, (long_ago, long_ago))
    assert staging.dead_runs(tmp_path) == [dead]


def test_a_run_of_before_a_power_cut_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The machine's id is the same, and its boot another one; runs of containers have no machine's id."""
    machine, other, boot, earlier = ("0a" * 6, "0b" * 6, "0c" * 6, "0d" * 6)
    runs = {}
    for place in (machine + earlier, other + earlier, earlier):
        runs[place] = tmp_path / staging.NAME / f"node-7-{place}-{os.getppid()}-0123456789abcdef"
        runs[place].mkdir(parents=True)
        os.utime(runs[place], (time.time() - 3600,) * 2)
    for here in (machine + boot, boot):
        monkeypatch.setattr(staging, "_here", lambda here=here: f"node-7-{here}")
        monkeypatch.setattr(staging, "_booted_s", lambda: time.time() - 7200)
        assert staging.dead_runs(tmp_path) == []
        monkeypatch.setattr(staging, "_booted_s", lambda: time.time() - 60)
        assert staging.dead_runs(tmp_path) == ([runs[machine + earlier]] if here != boot else [])
    monkeypatch.undo()
    assert staging.is_run_name(staging.new_run_folder(tmp_path).name)
