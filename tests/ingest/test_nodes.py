"""Many nodes at one lake at once, each with ranks of its own and nobody in charge; one of them dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lake_content import content

import jitter
from jitter import catalog, unfinished
from jitter.simulate import Job, simulate, write

# as on a machine of that name
NODE = """
import socket, sys
name = sys.argv.pop(1)
socket.gethostname = lambda: name
from jitter.cli import main
sys.exit(main())
"""
NODES, RANKS_EACH = 4, 2


def _node(name: str, traces: list[Path], lake: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", NODE, name, "ingest", *map(str, traces), "-o", str(lake), "--jobs", "1", "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[Path]], Path]:
    """Each node's traces, and the lake that one process makes of all."""
    folder = tmp_path_factory.mktemp("shared")
    write(simulate(Job(ranks=NODES * RANKS_EACH, steps=4, kernels=40)), folder / "traces", "nsys")
    jitter.ingest([folder / "traces"], folder / "lake", jobs=1)
    paths = [folder / "traces" / f"rank{rank}.sqlite" for rank in range(NODES * RANKS_EACH)]
    return {f"node{n}": paths[n * RANKS_EACH : (n + 1) * RANKS_EACH] for n in range(NODES)}, folder / "lake"


def test_all_at_once(shared: tuple[dict[str, list[Path]], Path], tmp_path: Path):
    nodes, whole = shared
    lake = tmp_path / "lake"
    processes = [_node(name, traces, lake) for name, traces in nodes.items()]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert catalog.is_current(lake)
    assert content(lake) == content(whole)


def test_one_is_killed_and_runs_again(shared: tuple[dict[str, list[Path]], Path], tmp_path: Path):
    nodes, whole = shared
    lake = tmp_path / "lake"
    processes = {name: _node(name, traces, lake) for name, traces in nodes.items()}
    victim = processes["node2"]
    while victim.poll() is None and not list(lake.glob(".staging/node2-*/*/0/*.parquet")):
        time.sleep(0.002)
    victim.kill()
    for process in processes.values():
        process.communicate(timeout=120)
    assert {name: p.returncode for name, p in processes.items()} == {
        name: -signal.SIGKILL if name == "node2" else 0 for name in nodes
    }
    (left,) = (lake / ".staging").iterdir()  # for its own node to clear away: from elsewhere it may be alive
    assert left.name.startswith("node2-")
    again = _node("node2", nodes["node2"], lake)
    _, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert content(lake) == content(whole)


def test_what_another_publishes_meanwhile_is_not_overwritten(own: Path, tmp_path: Path):
    lake = tmp_path / "lake"
    other = tmp_path / "other.sqlite"
    (own / "rank2.sqlite").rename(other)
    during: list[int] = []

    def another_node(done: int, total: int) -> None:
        if not during:
            during.append(done)
            assert not jitter.ingest([other], lake, rank=1, jobs=1).refused

    report = jitter.ingest([own], lake, jobs=1, progress=another_node)
    assert during
    (error,) = report.refused
    assert f"{own / 'rank1.sqlite'}: rank 1 has 3 steps" in str(error)
    assert f"from {other}" in str(error)
    in_turn = tmp_path / "in turn"
    jitter.ingest([other], in_turn, rank=1, jobs=1)
    jitter.ingest([own], in_turn, jobs=1)
    assert content(lake) == content(in_turn)


def test_who_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = unfinished._here()

    def run(place: str, pid: int) -> Path:
        path = tmp_path / unfinished.NAME / f"{place}-{pid}-0123456789abcdef"
        path.mkdir(parents=True)
        return path

    dead = run(here, ended.pid)
    run(here, os.getppid())
    elsewhere = run(here[:-1] + ("0" if here[-1] != "0" else "1"), ended.pid)  # a host of the same name
    assert unfinished.dead_runs(tmp_path) == [dead]
    long_ago = time.time() - unfinished._FORGOTTEN_S - 60
    os.utime(elsewhere, (long_ago, long_ago))
    assert set(unfinished.dead_runs(tmp_path)) == {dead, elsewhere}
    (elsewhere / "note").write_bytes(b"")
    os.utime(elsewhere, (long_ago, long_ago))
    assert unfinished.dead_runs(tmp_path) == [dead]
