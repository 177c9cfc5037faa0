"""Only an ingest and `Lake.prepare` write derived data, and the answers are the same with and without."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import jitter
from jitter.analysis.diagnosis import answer_cache
from jitter.lake import staging
from jitter.lake.folder import LakeFolder
from jitter.lake.layout import ANSWER_CACHE, DERIVED
from jitter.simulate import Fault, Job, simulate
from tests.support.killed_process import fork, run_killed, wait_for
from tests.support.lake_content import catalogue_is_records
from tests.support.printed import output_of
from tests.support.simulated import ingest_run

RANKS, STEPS = 6, 4
Large = Callable[[], None]
KERNELS = "select step, sum(duration_ns) from kernels group by all order by all"


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first")
    job = Job(ranks=RANKS, steps=STEPS, kernels=30)
    ingest_run(simulate(job, [Fault.parse("cpu_stall:rank=2,kernel=9,ms=2")]), folder, "nsys")
    return folder / "lake"


@pytest.fixture
def without_derived(root: Path) -> Path:
    assert not (root / DERIVED).exists()  # an ingest writes none
    return root


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Large:
    """Let every lake count as large."""
    return lambda: monkeypatch.setattr(answer_cache, "MIN_ACTIVITIES", 0)


@pytest.fixture
def read_only(without_derived: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Refuse every write below the lake, as a read-only file system does; root may write in spite of permissions."""
    real_open, real_io_open, real_mkdir, real_access = os.open, io.open, os.mkdir, os.access

    def refuse(path: object) -> None:
        if str(path).startswith(str(without_derived)):
            raise PermissionError(30, "Read-only file system", str(path))

    def guarded_open(path, flags, *args, **kwargs):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            refuse(path)
        return real_open(path, flags, *args, **kwargs)

    def guarded_io_open(path, mode="r", *args, **kwargs):
        if set(mode) & set("wax+"):
            refuse(path)
        return real_io_open(path, mode, *args, **kwargs)

    def guarded_mkdir(path, *args, **kwargs):
        refuse(path)
        return real_mkdir(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", guarded_open)
    monkeypatch.setattr(io, "open", guarded_io_open)
    monkeypatch.setattr(os, "mkdir", guarded_mkdir)
    monkeypatch.setattr(os, "access", lambda path, how: how != os.W_OK and real_access(path, how))
    return without_derived


def content(root: Path) -> dict[str, bytes]:
    """Return every file of a lake."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def all_answers(lake: jitter.Lake) -> list[object]:
    """Return what every method of a lake returns."""
    return [
        lake.step_keys,
        lake.ranks,
        lake.hosts,
        lake.cohorts,
        lake.diagnose(),
        lake.diagnose(lake.step_keys[1:]),
        lake.losses(arrow=True).to_pylist(),
        lake.dependencies(),
        lake.ttke_readings(),
        lake.table("gap", 1, 1).to_csv(),
        lake.table("ttke", 1, 1, deviation=True, arrow=True),
        lake.metrics(lake.step_keys[2]).rows,
        *(
            sorted(map(str, lake.sql(f"from {name}", arrow=True).to_pylist()))
            for name in ("sources", "steps", "problems", "ranks")
        ),
        lake.sql(KERNELS, arrow=True),
        lake.sql("select verdict_rows.cause from steps verdict_rows", arrow=True),
    ]


@pytest.fixture(scope="module")
def wanted(ingested: Path) -> list[object]:
    """The answers of the lake as it was ingested."""
    return all_answers(jitter.open(ingested))


def test_reading_writes_nothing(without_derived: Path, large: Large):
    root = without_derived
    large()
    (root / "catalog.sqlite").unlink()
    before = content(root)
    all_answers(jitter.open(root))
    assert content(root) == before
    assert not (root / ".staging").exists()


@pytest.mark.parametrize("form", ["catalog", "answers"])
def test_prepare_writes_one_form_and_changes_no_answer(
    without_derived: Path, large: Large, form: str, wanted: list[object]
):
    root = without_derived
    large()
    (root / "catalog.sqlite").unlink()
    jitter.open(root).prepare(forms=[form])
    written = {"catalog": catalogue_is_records(root), "answers": len(list((root / ANSWER_CACHE).glob("*"))) == 1}
    assert written == {name: name == form for name in written}
    assert all_answers(jitter.open(root)) == wanted


def test_a_prepared_lake_is_not_prepared_again(without_derived: Path, large: Large):
    root = without_derived
    large()
    jitter.open(root).prepare()
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}
    jitter.open(root).prepare()
    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in before} == before


def test_a_read_only_lake_answers_everything(read_only: Path, large: Large, wanted: list[object]):
    large()
    before = content(read_only)
    with pytest.raises(PermissionError):
        (read_only / "file").write_text("")
    lake = jitter.open(read_only)
    lake.prepare()
    assert all_answers(lake) == wanted
    assert content(read_only) == before


def test_what_a_killed_prepare_left_is_removed_by_the_next_ingest(without_derived: Path, large: Large):
    root = without_derived
    large()
    (root / "catalog.sqlite").unlink()
    left: set[str] = set()
    for death in range(8):
        run_killed(lambda: jitter.open(root).prepare(forms=["catalog"]), root / ".staging", death)
        unfinished = sorted((root / ".staging").rglob("*"))
        left.update(path.name for path in unfinished)
        jitter.open(root).prepare(forms=[])
        assert sorted((root / ".staging").rglob("*")) == unfinished
        LakeFolder(root).sweep()
        assert not (root / ".staging").exists()
    assert "catalog.sqlite" in left


def test_prepare_leaves_the_files_of_a_live_run(root: Path):
    ready, done = os.pipe(), os.pipe()

    def work() -> None:
        with staging.temporary_folder(root) as run:
            (staging.create_folder(run) / "unfinished").write_bytes(b"rows")
            os.write(ready[1], b"1")
            os.read(done[0], 1)

    child = fork(work)
    os.read(ready[0], 1)
    jitter.open(root).prepare(forms=[])
    assert len(list((root / ".staging").rglob("unfinished"))) == 1
    os.write(done[1], b"1")
    assert wait_for(child) == 0
    assert not (root / ".staging").exists()


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["report", "--json"], {"answers"}),
        (["steps"], {"answers"}),
        (["table"], {"answers"}),
        (["table", "--step", "1", "--epoch", "1"], set()),
        (["query", KERNELS], set()),
        (["query", "select step, cause from steps"], {"answers"}),
        (["query", "from rank_steps"], set()),
    ],
)
def test_commands_prepare_what_they_read(
    without_derived: Path, large: Large, words: list[str], written: set[str], capsys: pytest.CaptureFixture[str]
):
    large()
    verb, *rest = words
    arguments = [verb, str(without_derived), *rest]
    first = output_of(capsys, *arguments)
    folder = without_derived / "derived"
    assert {path.name for path in folder.iterdir()} == written if written else not folder.exists()
    assert output_of(capsys, *arguments) == first


def test_what_cannot_be_written_is_computed_again(without_derived: Path, large: Large, wanted: list[object]):
    root = without_derived
    large()
    (root / "derived").write_text("no folder can be made here")
    jitter.open(root).prepare()
    assert all_answers(jitter.open(root)) == wanted
    assert not (root / ".staging").exists()
