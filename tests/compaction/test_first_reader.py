"""Who goes through a large lake's steps compacts them first; what hinders that changes no answer."""

from pathlib import Path

import pytest

import jitter
import jitter.compaction
from jitter.cli.lakes import Preparing
from jitter.compaction import compact
from jitter.lake_paths import COMPACT, compact_folder
from jitter.simulate import Fault, Job, simulate, write

RANKS, STEPS = 6, 4


@pytest.fixture
def root(tmp_path: Path) -> Path:
    job = Job(ranks=RANKS, steps=STEPS, kernels=30)
    write(simulate(job, [Fault.parse("cpu_stall:rank=2,kernel=9,ms=2")]), tmp_path / "traces", "nsys")
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake", jobs=1)
    return tmp_path / "lake"


def large(monkeypatch: pytest.MonkeyPatch, files: int = RANKS * STEPS) -> None:
    monkeypatch.setattr(jitter.compaction, "MANY_FILES", files)


def compacted(root: Path) -> int:
    return len(list((root / COMPACT).rglob("*.parquet"))) if (root / COMPACT).is_dir() else 0


@pytest.mark.parametrize("ask", [lambda lake: lake.diagnosis(), lambda lake: lake.summaries()])
def test_a_large_lake_is_compacted_and_answers_the_same(root: Path, monkeypatch: pytest.MonkeyPatch, ask):
    before = ask(jitter.open(root))
    assert compacted(root) == 0
    large(monkeypatch, RANKS * STEPS + 1)
    ask(jitter.open(root))
    assert compacted(root) == 0
    large(monkeypatch)
    told = []
    assert ask(jitter.open(root, lambda done, total: told.append((done, total)))) == before
    assert compacted(root) == STEPS
    assert told == [(done, STEPS) for done in range(STEPS + 1)]


def test_only_the_steps_gone_through_count(root: Path, monkeypatch: pytest.MonkeyPatch):
    large(monkeypatch, 2 * RANKS)
    lake = jitter.open(root)
    lake.diagnosis(lake.steps[1:2])
    assert compacted(root) == 0
    lake.diagnosis(lake.steps[:2])
    assert [(root / compact_folder(key)).exists() for key in lake.steps] == [True, True, False, False]


def test_one_step_is_read_as_it_lies(root: Path, monkeypatch: pytest.MonkeyPatch):
    large(monkeypatch, 0)
    lake = jitter.open(root)
    lake.table("gap", 1, 1)
    lake.metrics(1, 1).rows  # noqa: B018
    assert compacted(root) == 0


def test_what_cannot_be_written_is_read_from_the_ranks_own_files(root: Path, monkeypatch: pytest.MonkeyPatch):
    wanted = jitter.open(root).diagnosis()
    large(monkeypatch)
    (root / COMPACT.parts[0]).write_text("no folder can be made here")
    with pytest.raises(jitter.compaction.LakeError, match="cannot be compacted"):
        compact(root)
    assert jitter.open(root).diagnosis() == wanted


def test_the_line_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    now = iter([0.0, 0.5, 1.5, 9.0, 20.0, 20.1, 20.2])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    line = Preparing()
    for done in range(4):
        line(done, 3)
    said = "preparing the lake, once: 2 of 3"
    assert capsys.readouterr().err == f"\r{said}\r{' ' * len(said)}\r"
    for done in range(3):  # so quick that nobody needs to know
        line(done, 2)
    assert capsys.readouterr().err == ""
