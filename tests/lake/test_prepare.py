"""Who goes through a large lake first makes what it lacks of derived data; what hinders that changes no answer."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import jitter
import jitter.lake.derived.build_timing_cache
import jitter.lake.derived.compaction
from jitter.cli.open_lake import PreparationProgress
from jitter.lake.derived.compaction import compact_steps
from jitter.lake.layout import COMPACTED_STEPS, TIMING_CACHE, compacted_folder
from jitter.simulate import Fault, Job, simulate, write

pytestmark = pytest.mark.slow

RANKS, STEPS = 6, 4
FILES = RANKS * STEPS
Large = Callable[..., None]


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first")
    job = Job(ranks=RANKS, steps=STEPS, kernels=30)
    write(simulate(job, [Fault.parse("cpu_stall:rank=2,kernel=9,ms=2")]), folder / "traces", "nsys")
    jitter.ingest([folder / "traces"], folder / "lake", jobs=1)
    return folder / "lake"


@pytest.fixture
def without_extracts(root: Path) -> Path:
    shutil.rmtree(root / "derived")
    return root


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Large:
    """From how many files on a lake is large."""

    def set_to(files: int = FILES) -> None:
        monkeypatch.setattr(jitter.lake.derived.compaction, "MANY_FILES", files)
        monkeypatch.setattr(jitter.lake.derived.build_timing_cache, "MANY_FILES", files)

    return set_to


def compacted(root: Path) -> int:
    return len(list((root / COMPACTED_STEPS).rglob("*.parquet")))


def extracts(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / TIMING_CACHE).glob("*")}


@pytest.mark.parametrize(
    "ask",
    [
        lambda lake: lake.ttke_readings(),
        lambda lake: lake.sql("select step, sum(duration_ns) from kernels group by all order by all").to_pylist(),
    ],
    ids=["ttke readings", "kernels by SQL"],
)
def test_readings_compact_a_large_lake_and_are_the_same(root: Path, large: Large, ask):
    before = ask(jitter.open(root))
    assert compacted(root) == 0
    large(FILES + 1)
    ask(jitter.open(root))
    assert compacted(root) == 0
    large()
    told = []
    assert ask(jitter.open(root, lambda done, total: told.append((done, total)))) == before
    assert compacted(root) == STEPS
    assert told == [(done, STEPS) for done in range(STEPS + 1)]


def test_only_the_steps_summed_up_count(root: Path, large: Large):
    large(2 * RANKS)
    lake = jitter.open(root)
    lake.ttke_readings(lake.steps[1:2])
    assert compacted(root) == 0
    lake.ttke_readings(lake.steps[:2])
    assert [(root / compacted_folder(key)).exists() for key in lake.steps] == [True, True, False, False]


def test_a_diagnosis_after_an_ingest_makes_nothing(root: Path, large: Large):
    large()
    made = extracts(root)
    told = []
    jitter.open(root, lambda done, total: told.append((done, total))).diagnose()
    assert told == []
    assert compacted(root) == 0
    assert extracts(root) == made


def test_a_diagnosis_makes_the_extracts_of_a_large_lake_as_the_ingest_does(root: Path, large: Large):
    made = extracts(root)
    assert len(made) == RANKS
    shutil.rmtree(root / "derived")
    large(FILES + 1)
    before = jitter.open(root).diagnose()
    assert extracts(root) == {}
    large()
    told = []
    assert jitter.open(root, lambda done, total: told.append((done, total))).diagnose() == before
    assert extracts(root) == made
    assert compacted(root) == 0
    assert told == [(done, RANKS) for done in range(1, RANKS + 1)]
    assert not (root / ".staging").exists()


def test_only_the_recordings_that_lack_theirs_count(root: Path, large: Large):
    made = extracts(root)
    for name in sorted(made)[:2]:
        (root / TIMING_CACHE / name).unlink()
    large(2 * STEPS + 1)
    jitter.open(root).diagnose()
    assert len(extracts(root)) == RANKS - 2
    large(2 * STEPS)
    told = []
    jitter.open(root, lambda done, total: told.append((done, total))).diagnose()
    assert extracts(root) == made
    assert told == [(1, 2), (2, 2)]


def test_one_step_is_read_as_it_lies(without_extracts: Path, large: Large):
    large(0)
    lake = jitter.open(without_extracts)
    lake.table("gap", 1, 1)
    lake.metrics(1, 1).rows  # noqa: B018
    assert compacted(without_extracts) == 0
    assert extracts(without_extracts) == {}


def test_what_cannot_be_written_is_read_from_the_ranks_own_files(without_extracts: Path, large: Large):
    root = without_extracts
    wanted, readings = jitter.open(root).diagnose(), jitter.open(root).ttke_readings()
    large()
    (root / COMPACTED_STEPS.parts[0]).write_text("no folder can be made here")
    with pytest.raises(jitter.lake.derived.compaction.LakeError, match="cannot be compacted"):
        compact_steps(root)
    assert jitter.open(root).diagnose() == wanted
    assert jitter.open(root).ttke_readings() == readings
    assert not (root / ".staging").exists()


def test_a_lake_that_may_not_be_written(without_extracts: Path, large: Large, monkeypatch: pytest.MonkeyPatch):
    root = without_extracts
    wanted, readings = jitter.open(root).diagnose(), jitter.open(root).ttke_readings()
    large()
    may = os.access
    # whoever runs the tests may be allowed everything
    monkeypatch.setattr(os, "access", lambda path, how: how != os.W_OK and may(path, how))
    told = []
    lake = jitter.open(root, lambda done, total: told.append((done, total)))
    assert lake.diagnose() == wanted
    assert lake.ttke_readings() == readings
    assert told == []
    assert not (root / "derived").exists()


def test_a_file_that_cannot_be_read_is_said_by_who_needs_it(without_extracts: Path, large: Large):
    root = without_extracts
    large()
    lost = sorted((root / "kernels").rglob("rank=3.parquet"))[0]
    lost.unlink()
    with pytest.raises(jitter.lake.derived.compaction.LakeError, match=r"rank=3\.parquet: cannot be read"):
        jitter.open(root).diagnose()
    assert len(extracts(root)) == RANKS - 1


def test_the_line_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    now = iter([0.0, 0.5, 1.5, 9.0, 20.0, 20.1, 20.2])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    line = PreparationProgress()
    for done in range(4):
        line(done, 3)
    said = "preparing the lake, once: 2 of 3"
    assert capsys.readouterr().err == f"\r{said}\r{' ' * len(said)}\r"
    for done in range(3):  # so quick that nobody needs to know
        line(done, 2)
    assert capsys.readouterr().err == ""
