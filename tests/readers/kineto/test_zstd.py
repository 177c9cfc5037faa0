"""zstd traces give what the same traces give as gzip; damage and bombs are found by what is read."""

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

import jitter
from jitter.core.compression import read_chunks
from jitter.core.errors import UnreadableTraceError
from jitter.ingestion.ingest import IngestReport
from jitter.simulate import Job, simulate, write

SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"


def pack(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def ingest(folder: Path, lake: Path) -> IngestReport:
    return jitter.ingest(folder, lake)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return folders of the same traces: as gzip, and as zstd in two frames, one skippable."""
    write(simulate(Job(ranks=2, steps=3, kernels=30)), tmp_path / "gz", "kineto")
    (tmp_path / "zst").mkdir()
    for path in (tmp_path / "gz").glob("*.json.gz"):
        text = gzip.decompress(path.read_bytes())
        middle = len(text) // 2
        packed = SKIPPABLE + pack(text[:middle]) + pack(text[middle:])
        (tmp_path / "zst" / path.name.replace(".gz", ".zst")).write_bytes(packed)
    return tmp_path / "gz", tmp_path / "zst"


def test_the_lake_is_that_of_the_gzip_traces(folders: tuple[Path, Path], tmp_path: Path):
    lakes = []
    for folder in folders:
        report = ingest(folder, tmp_path / f"lake-{folder.name}")
        assert (report.refused, len(report.added)) == ([], 2)
        assert not any("zstd" in problem for record in report.added for problem in record.problems)
        lakes.append(jitter.open(report.lake).sql("select * from kernels order by step, rank, ordinal", arrow=True))
    assert lakes[0].num_rows >= 2 * 3 * 30
    assert lakes[0].equals(lakes[1])


def read(path: Path, data: bytes) -> tuple[bytes, list[str]]:
    path.write_bytes(data)
    problems: list[str] = []
    counts: list[int] = []
    text = b"".join(read_chunks(path, 100_000, counts.append, problems))
    assert sum(counts) == len(data)
    return text, problems


@pytest.mark.parametrize("where", ["middle", "last byte", "first bytes"])
def test_a_cut_file_gives_what_is_before_the_cut(where: str, tmp_path: Path):
    text = b"".join(b"%d," % (n * n) for n in range(200_000))
    packed = pack(text)
    cut = {"middle": len(packed) // 2, "last byte": len(packed) - 1, "first bytes": 5}[where]
    found, (problem,) = read(tmp_path / "a.json.zst", packed[:cut])
    assert "the file is cut: its zstd data stops without an end after" in problem
    assert text.startswith(found)
    assert len(found) >= len(text) * (cut / len(packed)) * 0.8 - 200_000


def test_damaged_data(tmp_path: Path):
    text = b"".join(b"%d," % (n * n) for n in range(200_000))
    found, (problem,) = read(tmp_path / "a.json.zst", pack(text) + b"no frame")
    assert "the zstd data is damaged" in problem
    assert text.startswith(found)
    assert len(found) > len(text) - 40_000


def test_a_bomb_is_refused_by_what_is_read(tmp_path: Path):
    with pytest.raises(UnreadableTraceError, match=r"unpack to more than 6.,...,..., over 200 times"):
        read(tmp_path / "a.json.zst", pack(bytes(1 << 28)))


def test_names_of_damaged_files(folders: tuple[Path, Path], tmp_path: Path):
    (first, _) = sorted(folders[1].iterdir())
    first.write_bytes(b"no zstd data")
    (error,) = ingest(folders[1], tmp_path / "lake").refused
    assert "not valid zstd data" in error.message
