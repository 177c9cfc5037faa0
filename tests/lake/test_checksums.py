"""Damage in a lake: primary data are an error that names the file and the cure, derived data are made again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import jitter
import jitter.analysis.diagnosis.answer_cache
from jitter.cli import main
from jitter.core.errors import LakeError
from jitter.lake.folder import LakeFolder
from jitter.lake.integrity.checksums import seal_json
from jitter.lake.integrity.verify import verify_lake
from jitter.simulate import Fault, Job, simulate, write
from tests.support.printed import json_of, output_of
from tests.support.simulated import ingest_run
from tests.torture.flips import answers

STEP = "kernels/epoch=1/step=2001"


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with derived data of every kind, beside its traces."""
    folder = tmp_path_factory.mktemp("checksums")
    faults = [Fault.parse("cpu_stall:rank=2,step=2001,kernel=7,ms=1.5")]
    ingest_run(simulate(Job(ranks=4, steps=3, kernels=24, first_step=2000, seed=7), faults), folder, "nsys")
    with pytest.MonkeyPatch.context() as patch:
        _small_is_large(patch)
        jitter.open(folder / "lake").prepare()
    return folder / "lake"


@pytest.fixture(scope="module")
def wanted(ingested: Path) -> tuple[object, ...]:
    """The answers of the undamaged lake."""
    return answers(ingested)


def _small_is_large(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(jitter.analysis.diagnosis.answer_cache, "MIN_ACTIVITIES", 0)


@pytest.fixture
def lake(ingested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    _small_is_large(monkeypatch)
    return Path(shutil.copytree(ingested, tmp_path / "lake"))


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_damaged_answers_are_made_again(lake: Path, wanted: tuple[object, ...]):
    for path in sorted((lake / "derived" / "answers").iterdir()):
        flip(path, path.stat().st_size * 4)
    assert verify_lake(lake).problems
    jitter.open(lake).prepare()
    assert not verify_lake(lake).problems
    assert answers(lake) == wanted


@pytest.mark.parametrize("words", [["report"], ["query", "select count(*) from kernels"], ["table", "--step", "2001"]])
def test_two_ranks_swapped_are_seen(lake: Path, words: list[str], capsys: pytest.CaptureFixture[str]):
    shutil.rmtree(lake / "derived")
    one, other = lake / STEP / "rank=1.parquet", lake / STEP / "rank=2.parquet"
    _swap(one, other)
    assert main([words[0], str(lake), *words[1:]]) == 0
    error = capsys.readouterr().err
    for rank, path in ((1, one), (2, other)):
        assert f"note: Rank {rank} is left out, because a file is damaged: {path}: " in error


def _swap(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def test_two_ranks_swapped_are_seen_without_checksums(lake: Path):
    """A lake of an older version: records without checksums."""
    shutil.rmtree(lake / "derived")
    folder = LakeFolder(lake)
    for record in folder.records():
        document = json.loads(msgspec.json.encode(record)) | {"record_version": 1}
        document.pop("host_checksum")
        for step in document["steps"]:
            step.pop("checksum")
        (folder.sources / record.name).write_text(json.dumps(document, indent=1))
    wanted = jitter.open(lake).diagnose()
    assert wanted.culprits
    found = verify_lake(lake)
    assert not found.problems
    assert found.notes[0].startswith("4 of 4 records have no checksums")
    _swap(lake / STEP / "rank=1.parquet", lake / STEP / "rank=2.parquet")
    with pytest.raises(
        LakeError, match=r"rank=([12])\.parquet: cannot be read \(holds rank (?!\1)[12], and its record rank \1\)"
    ):
        jitter.open(lake).diagnose()


def change(record: dict[str, object]) -> bytes:
    return seal_json(msgspec.json.format(json.dumps(record).encode(), indent=1))


@pytest.mark.parametrize(
    ("content", "said", "words"),
    [
        (lambda old: b"", "the record is damaged", ["report"]),
        (lambda old: old[: len(old) // 2], "the record is damaged", ["steps"]),
        (
            lambda old: old.replace(b'"cut": false', b'"cut": true', 1),
            "its checksum does not match its content",
            ["query", "from ranks"],
        ),
        (lambda old: old.replace(b'"checksum": "', b'"chickens": "'), "it has no checksum", ["report"]),
        (
            lambda old: change(json.loads(old) | {"record_version": 99}),
            "another version of jitter (record version 99",
            ["report"],
        ),
        (
            lambda old: change(json.loads(old) | {"record_version": 0}),
            "another version of jitter (record version 0",
            ["query", "from ranks"],
        ),
    ],
    ids=["empty", "cut", "edited", "without checksum", "newer", "zero"],
)
def test_an_unusable_record_is_named(
    lake: Path, content: Callable[[bytes], bytes], said: str, words: list[str], capsys: pytest.CaptureFixture[str]
):
    path = sorted((lake / "sources").iterdir())[1]
    path.write_bytes(content(path.read_bytes()))
    is_readable = "another version" not in said
    assert main([words[0], str(lake), *words[1:]]) == (0 if is_readable else 3)
    err = capsys.readouterr().err
    rank = next(lake.glob(f"host/rank=*/{path.stem}.parquet")).parent.name.removeprefix("rank=")
    begin = f"note: Rank {rank} is left out, because a file is damaged: " if is_readable else "jitter: "
    assert f"{begin}{path}: " in err
    assert said in err


def test_kept_answers_whose_checksum_has_another_name_are_damaged(lake: Path):
    """Still valid JSON, but without a checksum: they are not used, and `verify` names them."""
    path, *_ = (lake / "derived" / "answers").glob("*.json")
    path.write_bytes(path.read_bytes().replace(b'"checksum"', b'"checksul"'))
    assert [problem.file for problem in verify_lake(lake).problems] == [path]


def test_kept_answers_that_were_edited_are_not_used(lake: Path):
    """Valid JSON of the right form, whose checksum is that of other answers."""
    path, *_ = (lake / "derived" / "answers").glob("*.json")
    loss_ns = jitter.open(lake).diagnose().loss.ns
    edited = path.read_bytes().replace(b'"ns":%d' % loss_ns, b'"ns":77')
    assert edited != path.read_bytes()
    path.write_bytes(edited)
    assert jitter.open(lake).diagnose().loss.ns == loss_ns


def test_a_damaged_record_is_cured_by_an_ingest(lake: Path, ingested: Path, wanted: tuple[object, ...]):
    path = sorted((lake / "sources").iterdir())[1]
    path.write_bytes(b"")
    report = jitter.ingest([ingested.parent / "traces"], lake)
    assert [record.name for record in report.added] == [path.name]
    assert not report.refused
    assert answers(lake) == wanted
    assert not verify_lake(lake).problems


def test_an_ingest_names_the_damaged_records_that_stay(lake: Path, ingested: Path):
    path = sorted((lake / "sources").iterdir())[1]
    path.write_bytes(b"{}")
    other = next(Path(record.file) for record in LakeFolder(ingested).records() if record.name != path.name)
    report = jitter.ingest([other], lake)
    assert [rejected.path for rejected in report.rejected] == [path]
    assert "the record is damaged" in report.refused[0].message


def test_an_ingest_leaves_a_newer_lake_alone(lake: Path, ingested: Path):
    path = sorted((lake / "sources").iterdir())[1]
    path.write_bytes(change(json.loads(path.read_bytes()) | {"record_version": 99}))
    before = {p: p.read_bytes() for p in lake.rglob("*") if p.is_file()}
    with pytest.raises(LakeError, match="written by another version of jitter"):
        jitter.ingest([ingested.parent / "traces"], lake)
    assert {p: p.read_bytes() for p in lake.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("damage", ["flipped", "host"])
def test_replace_reads_damaged_sources_again(lake: Path, ingested: Path, damage: str):
    traces = [ingested.parent / "traces"]
    lost = next((lake / "host/rank=1").iterdir()) if damage == "host" else lake / STEP / "rank=1.parquet"
    flip(lost, 777)
    assert jitter.ingest(traces, lake).unchanged == 4
    assert [problem.file for problem in verify_lake(lake).problems] == [lost]
    report = jitter.ingest(traces, lake, replace=True)
    assert ([record.rank for record in report.added], report.unchanged) == ([1], 3)
    assert not verify_lake(lake).problems
    assert lost.read_bytes() == (ingested / lost.relative_to(lake)).read_bytes()


def test_page_checksums_are_written(lake: Path):
    """A program that verifies pages sees damage too: the first page's header carries a CRC."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = bytearray((lake / STEP / "rank=1.parquet").read_bytes())
    column = pq.ParquetFile(pa.BufferReader(bytes(content))).metadata.row_group(0).column(8)
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 4
    with pytest.raises((OSError, pa.ArrowException), match="CRC"):
        pq.ParquetFile(pa.BufferReader(bytes(content)), page_checksum_verification=True).read()


def test_verify_says_what_and_what_to_do(lake: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["verify", str(lake)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(": no problem\n")
    assert "4 ranks" in err
    flip(lake / STEP / "rank=1.parquet", 5000)
    (lake / STEP / "rank=9.parquet").write_bytes(b"stray")
    (lake / "catalog.sqlite").write_bytes(b"nothing")
    document = json_of(capsys, "verify", lake, "--json", exit_code=3)
    assert document["schema_version"] == 1
    assert {Path(one["file"]).name: one["problem"] for one in document["problems"]} == {
        "rank=1.parquet": "cannot be read (its checksum is not the recorded one)",
        "rank=9.parquet": "belongs to no record",
        "catalog.sqlite": "the catalog is damaged",
    }
    assert all(one["cure"] for one in document["problems"])
    lines = output_of(capsys, "verify", lake, exit_code=3).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"{lake / STEP / 'rank=1.parquet'}: cannot be read")
    assert main(["verify", str(lake.parent)]) == 3


def test_verify_compares_the_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for format_ in ("nsys", "rocprof-csv"):
        write(simulate(Job(ranks=2, steps=2, kernels=16, marker="iteration")), tmp_path / format_ / "traces", format_)
        lake = tmp_path / format_ / "lake"
        jitter.ingest([tmp_path / format_ / "traces"], lake)
        assert main(["verify", str(lake), "--sources"]) == 0
        assert "2 sources unchanged" in capsys.readouterr().err
        records = LakeFolder(lake).records()
        flip(Path(records[0].file), 80_000)
        Path(records[1].file).rename(tmp_path / "elsewhere")
        assert main(["verify", str(lake), "--sources"]) == 3
        out, err = capsys.readouterr()
        assert out.startswith(f"{records[0].file}: has changed since it was ingested; read it again: jitter ingest")
        assert len(out.splitlines()) == 1
        assert f"1 source no longer lies where it was read, such as {records[1].file}" in err
