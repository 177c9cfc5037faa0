"""Archives of traces: unpacked into the cache within bounds, whatever names, kinds and sizes their members have."""

import io
import tarfile
import time
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

import jitter
from jitter.cli import main
from jitter.ingestion.discovery import archives
from jitter.ingestion.discovery.discover import discover
from tests.support.kineto_traces import small, text
from tests.support.printed import output_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def trace(rank: int) -> bytes:
    return text(small(), before={"distributedInfo": {"rank": rank, "world_size": 2}})


TRACES = {"job/rank0.json": trace(0), "job/rank1.json": trace(1), "job/notes.txt": b"a note"}


def pack(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, content in members.items():
                zipped.writestr(name, content)
        return path
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz" if path.name.endswith(("gz", "tgz")) else "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    packed = sink.getvalue()
    path.write_bytes(pa.Codec("zstd").compress(packed, asbytes=True) if path.suffix == ".zst" else packed)
    return path


@pytest.mark.parametrize("form", ["a.tar", "a.tar.gz", "a.tgz", "a.tar.zst", "a.zip"])
def test_an_archive_is_what_its_files_are(form: str, tmp_path: Path):
    plain = tmp_path / "plain"
    for name, content in TRACES.items():
        (plain / name).parent.mkdir(parents=True, exist_ok=True)
        (plain / name).write_bytes(content)
    pack(tmp_path / "packed" / form, TRACES)
    lakes = [tmp_path / "lake-plain", tmp_path / "lake-packed"]
    for folder, lake in zip((plain, tmp_path / "packed"), lakes, strict=True):
        assert not jitter.ingest([folder], lake).refused
    of_plain, of_packed = (jitter.open(lake) for lake in lakes)
    rows = "SELECT * FROM kernels ORDER BY rank, ordinal"
    assert of_packed.sql(rows, arrow=True).to_pylist() == of_plain.sql(rows, arrow=True).to_pylist()
    assert [one.file_digest for one in of_packed.sources] == [one.file_digest for one in of_plain.sources]
    again = jitter.ingest([tmp_path / "packed"], lakes[1])
    assert (again.unchanged, again.added) == (2, [])
    assert [one.name for one in (tmp_path / "packed").iterdir()] == [form]


@pytest.mark.parametrize("form", ["a.tar", "a.zip"])
def test_no_name_leads_out_of_the_folder(form: str, tmp_path: Path, cache: Path):
    names = [
        "../../escape.json",
        "/tmp/absolute-escape.json",
        "a/../../b.json",
        "ok/rank0.json",
        "ok/rank0.json/x.json",
    ]
    pack(tmp_path / "packed" / form, dict.fromkeys(names, trace(0)))
    found = discover([tmp_path / "packed"])
    assert [source.path.name for source in found.sources] == ["rank0.json"]
    assert found.notes[0].endswith("4 members left out: links, devices, unsafe or repeated names")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(path.name for path in written) == sorted([form, "rank0.json"])
    assert not Path("/tmp/absolute-escape.json").exists()


def test_members_of_a_tar_keep_the_times_at_which_they_were_modified(tmp_path: Path):
    path = tmp_path / "a.tar"
    begun = time.time()
    with tarfile.open(path, "w") as tar:
        for number, changed_s in enumerate((1_700_000_000, 10**12, -5)):
            member = tarfile.TarInfo(f"{number}.log")
            member.mtime = changed_s
            tar.addfile(member)
    kept, *others = [file.stat().st_mtime for file in sorted(archives.unpack(path).folder.iterdir())]
    assert kept == 1_700_000_000
    assert all(begun - 1 <= changed_s <= time.time() + 1 for changed_s in others)


def test_links_and_devices_are_left_out(tmp_path: Path):
    path = tmp_path / "packed" / "a.tar"
    path.parent.mkdir()
    with tarfile.open(path, "w") as tar:
        for name, kind in {"rank0.json": tarfile.SYMTYPE, "r1.json": tarfile.LNKTYPE, "r2": tarfile.CHRTYPE}.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
        tar.addfile(member := tarfile.TarInfo("rank0.json"))
    found = discover([path.parent])
    assert found.sources == []
    assert "3 members left out" in found.notes[0]


@pytest.mark.parametrize("form", ["a.tar.gz", "a.zip"])
def test_a_bomb_is_refused(form: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "SMALL_BYTES", 1 << 16)
    pack(tmp_path / "packed" / form, {"rank0.json": bytes(1 << 23)})
    found = discover([tmp_path / "packed"])
    ((path, error),) = found.unreadable
    assert (found.sources, path.name) == ([], form)
    assert "unpacks to more than" in error.message
    assert list((cache / "jitter" / "archives").iterdir()) == []


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "_MOST_MEMBERS", 10)
    pack(tmp_path / "packed" / "a.zip", {f"rank{n}.json": b"" for n in range(11)})
    ((_, error),) = discover([tmp_path / "packed"]).unreadable
    assert "more than 10 files" in error.message


@pytest.mark.parametrize("form", ["a.tar", "a.tar.gz"])
def test_files_before_the_damage_are_read(form: str, tmp_path: Path):
    whole = pack(tmp_path / "packed" / form, {"rank0.json": trace(0), "rank1.json": bytes(range(256)) * 400})
    whole.write_bytes(whole.read_bytes()[: len(trace(0)) + 2000 if form == "a.tar" else -200])
    found = discover([tmp_path / "packed"])
    assert "rank0.json" in [source.path.name for source in found.sources]
    errors = {path.name: error.message for path, error in found.unreadable}
    assert "a damaged archive" in errors[form]


def test_an_archive_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pack(tmp_path / "packed" / "a.zip", TRACES)
    first = discover([tmp_path / "packed"])
    monkeypatch.setattr(archives, "_Writer", None)
    assert discover([tmp_path / "packed"]).sources == first.sources


def test_messages_name_the_members_of_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pack(tmp_path / "packed" / "a.tar.gz", TRACES | {"job/rank2.json": text(small()[:1])})
    said = output_of(capsys, "inspect", tmp_path / "packed")
    assert [line.split()[0] for line in said.splitlines() if "kernels" in line] == [
        "a.tar.gz/job/rank0.json",
        "a.tar.gz/job/rank1.json",
    ]
    assert "not usable: a.tar.gz/job/rank2.json: " in said
    (tmp_path / "map.csv").write_text("a.tar.gz/job/rank0.json,0\n")
    names_members = ["inspect", str(tmp_path / "packed"), "--rank-map", str(tmp_path / "map.csv")]
    assert "rank 0 (by --rank-map)" in output_of(capsys, *names_members)


def test_a_report_on_an_archive_is_on_its_recordings_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = pack(tmp_path / "packed" / "a.tar.gz", TRACES)
    main(["report", str(path), "-L", str(tmp_path / "lake")])
    assert "added to" in (said := capsys.readouterr().err)
    assert "the whole lake" not in said


def test_an_archive_of_other_files_is_another_file(tmp_path: Path):
    pack(tmp_path / "packed" / "code.tar", {"main.py": b"", "README": b""})
    pack(tmp_path / "packed" / "wheel.zip", {"a.py": b"x"})
    (tmp_path / "packed" / "rank0.json").write_bytes(trace(0))
    found = discover([tmp_path / "packed"])
    assert (found.notes, found.unreadable, found.others) == ([], [], 2)
    ((_, error),) = discover([tmp_path / "packed" / "wheel.zip"]).unreadable
    assert "an archive without a trace that jitter reads" in error.message


def test_a_tar_of_long_names_is_an_archive_of_traces(tmp_path: Path):
    """GNU tar puts a name of more than 100 characters before the member, whose header has its beginning."""
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        member = tarfile.TarInfo(f"{'a-long-folder/' * 8}rank0.json")
        member.size = len(trace(0))
        tar.addfile(member, io.BytesIO(trace(0)))
    assert [source.path.name for source in discover([tmp_path]).sources] == ["rank0.json"]


def test_an_archive_in_an_archive_is_not_unpacked(tmp_path: Path):
    inner = pack(tmp_path / "packed" / "a.zip", TRACES).read_bytes()
    pack(tmp_path / "packed" / "a.zip", {"rank0.json": trace(0), "inner.zip": inner})
    assert [source.path.name for source in discover([tmp_path / "packed"]).sources] == ["rank0.json"]


@pytest.mark.parametrize("size", [b"99999999999\0", b"-0000000001\0", b"\x80" + bytes(11), b"zzz"])
def test_a_tar_header_that_lies(size: bytes, tmp_path: Path):
    path = pack(tmp_path / "packed" / "a.tar", {"x.json": trace(0), "y.json": trace(1)})
    content = bytearray(path.read_bytes())
    content[124 : 124 + len(size)] = size
    path.write_bytes(content)
    assert [one.name for one, _ in discover([path.parent]).unreadable][:1] == ["a.tar"]


def test_a_member_that_states_any_size_ends_with_the_file(tmp_path: Path):
    trace_member, endless = tarfile.TarInfo("x.json"), tarfile.TarInfo("y.json")
    trace_member.size, endless.size, endless.type = len(trace(0)), 1 << 60, b"Z"
    content = trace(0) + bytes(-len(trace(0)) % 512)
    (tmp_path / "a.tar").write_bytes(trace_member.tobuf() + content + endless.tobuf(tarfile.GNU_FORMAT))
    assert ["unexpected end of data" in str(error) for _, error in discover([tmp_path]).unreadable] == [True]


def test_an_archive_of_reports_is_not_said_to_be_without_a_trace(tmp_path: Path):
    """As `nsys-jax` packs them: the report, HLO of the modules, tables of `nsys stats`."""
    members = {
        "job.nsys-rep": b"REPORT",
        "dump/module_0001.jit_f.hlo.pb": b"\x0a\x01x",
        "job_cuda_gpu_trace.csv.xz": b"x",
    }
    found = discover([pack(tmp_path / "job.zip", members)])
    ((path, error),) = found.unreadable
    assert path.name == "job.nsys-rep"
    assert "an Nsight Systems report, not an export" in error.message
    assert (found.notes, found.others) == ([], 2)
    assert (
        discover([pack(tmp_path / "other.zip", {"a.txt": b"x", "b.json": b"{}"})]).unreadable[0][0].name == "other.zip"
    )


def test_archives_alone_that_hold_no_recording_are_described(tmp_path: Path):
    pack(tmp_path / "packed" / "wheel.zip", {"a.py": b"x"})
    (note,) = discover([tmp_path / "packed"]).notes
    assert "wheel.zip: not a trace that jitter reads (an archive whose first members are not named like" in note
