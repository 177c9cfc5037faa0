"""Traces of hostile sizes: compressed bombs, long names, holes. Each is read or refused, in bounded time and memory."""

import gzip
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import jitter
from jitter.core import compression
from jitter.ingestion.ingest import IngestReport
from jitter.ingestion.transform.capture import LONGEST_NAME
from tests.support import nsys_exports
from tests.support.databases import open_database
from tests.support.fuzz_depth import fuzz, of_all, some_of
from tests.support.kineto_traces import call, kernel, step

pytestmark = pytest.mark.slow

SLOWEST_S = 60
"""A bound of processor time, not a measure: each takes a few seconds."""
LARGEST_KB = 1_200_000
UNIT_BYTES = 2_000_000
BOMB_BYTES = 1_000_000_000
HEAD = json.dumps({"schemaVersion": 1, "traceEvents": [step(), call(), kernel("gemm")]})[:-2]
EVENT = ", " + json.dumps(kernel("gemm", ts=500.0, correlation=7))


def repeated(unit: bytes, total: int) -> Iterator[bytes]:
    """Yield gzip members that unpack to `total` bytes of repetitions of a unit."""
    unit *= max(1, UNIT_BYTES // len(unit))
    member = gzip.compress(unit, 9)
    for _ in range(total // len(unit)):
        yield member


def ingested(folder: Path) -> IngestReport:
    """Ingest a folder within bounds of time and memory."""
    began_s, before_kb = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = jitter.ingest(folder / "in", folder / "lake")
    assert time.process_time() - began_s < SLOWEST_S
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < LARGEST_KB
    assert [error for error in map(str, report.refused) if "bug" in error or "\n" in error] == []
    return report


BOMBS = {
    "zeros": (HEAD, b"\0"),
    "spaces": (HEAD, b" "),
    "events": (HEAD, EVENT.encode()),
    "events that are not read": (HEAD, b', {"ph":"X","cat":"ac2g","name":"x","ts":1,"pid":0,"tid":7}'),
    "one name": (HEAD + ', {"ph": "X", "cat": "kernel", "name": "', b"k"),
    "openings": (HEAD, b', {"a": [{'),
    "only zeros": ("", b"\0"),
}


@pytest.mark.parametrize("content", BOMBS)
def test_a_bomb_is_refused(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The limit is scaled to a twentieth: 10 times the file's size."""
    monkeypatch.setattr(compression, "MOST_RATIO", 10)
    monkeypatch.setattr(compression, "SMALL_BYTES", 1 << 20)
    head, unit = BOMBS[content]
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "rank-0.pt.trace.json.gz"
    with path.open("wb") as file:
        file.write(gzip.compress(head.encode()))
        file.writelines(repeated(unit, BOMB_BYTES))
        file.write(gzip.compress(b"]}"))
    assert path.stat().st_size * 100 < BOMB_BYTES
    report = ingested(tmp_path)
    (error,) = report.refused
    assert ("bytes unpack to more than" if head else "a damaged trace") in error.message
    assert report.added == []
    assert list(report.lake.rglob("*.parquet")) == []


@fuzz
@pytest.mark.parametrize("content", some_of(BOMBS, 2))
def test_time_is_linear_in_the_unpacked_size(content: str, tmp_path: Path):
    """Below the limit, four times the content takes at most about four times the processor time."""
    head, unit = BOMBS[content]
    took_s = {}
    small = of_all(15_000_000, 1_000_000 if content == "openings" else 5_000_000)  # these take ten times as long
    for size in (small, 4 * small):
        folder = tmp_path / str(size)
        (folder / "in").mkdir(parents=True)
        path = folder / "in" / "rank-0.pt.trace.json"
        path.write_bytes(head.encode() + unit * (size // len(unit)) + b"]}")
        began_s = time.process_time()
        ingested(folder)
        took_s[size] = time.process_time() - began_s
        path.unlink()
    assert took_s[4 * small] < 6 * took_s[small] + 2


def test_the_limit_holds_for_compressed_rocprofv3_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "rank-0_results.json.gz"
    monkeypatch.setattr(compression, "SMALL_BYTES", 1 << 20)
    with path.open("wb") as file:
        file.write(gzip.compress(b'{"rocprofiler-sdk-tool": ['))
        file.writelines(repeated(b" ", 100_000_000))
    (error,) = ingested(tmp_path).refused
    assert "over 200 times as many" in error.message


def test_a_name_of_20_mb_in_a_trace_of_pytorch_is_cut(tmp_path: Path):
    (tmp_path / "in").mkdir()
    kernels = [kernel(name, correlation=n, ts=100.0 * n) for n, name in enumerate(["a", "k" * 20_000_000, "b"], 1)]
    events = [step(), *(call(correlation=n, ts=100.0 * n - 10) for n in (1, 2, 3)), *kernels]
    (tmp_path / "in" / "rank-0.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    (record,) = ingested(tmp_path).added
    names = jitter.open(tmp_path / "lake").sql("select kernel_name from kernels", arrow=True).to_pylist()
    assert sorted(len(row["kernel_name"]) for row in names) == [1, 1, LONGEST_NAME]
    assert "cut to 65,536 characters: 1 name of kernels or calls" in record.problems


def test_a_name_of_20_mb_in_an_nsys_export_is_cut(tmp_path: Path):
    (tmp_path / "in").mkdir()
    path = nsys_exports.write(tmp_path / "in" / "rank0.sqlite", "sqlite", nsys_exports.export())
    with open_database(path) as database:
        query = "SELECT demangledName FROM CUPTI_ACTIVITY_KIND_KERNEL LIMIT 1"
        (name,) = database.execute(query).fetchone()
        database.execute("UPDATE StringIds SET value = ? WHERE id = ?", ("k" * 20_000_000, name))
    (record,) = ingested(tmp_path).added
    assert any("cut to 65,536 characters: 1 name of kernels or calls" in problem for problem in record.problems)


@pytest.mark.parametrize("filler", [b"\0", b"\xff"])
def test_a_hole_in_a_trace_loses_the_events_in_it(filler: bytes, tmp_path: Path):
    """A crash of a file system leaves blocks of zeros; the events before and after stay."""
    (tmp_path / "in").mkdir()
    events = [", " + json.dumps(kernel(f"k{n}", ts=100.0 * n, correlation=n)) for n in range(200)]
    content = bytearray((HEAD + "".join(events) + "]}").encode())
    first = content.index(b'"k100"')
    content[first : first + 3_000] = filler * 3_000
    content[first:first] = filler * 1_000_000
    (tmp_path / "in" / "rank-0.json").write_bytes(content)
    (record,) = ingested(tmp_path).added
    assert 180 <= record.kernels < 200
    assert any("the JSON is damaged" in problem for problem in record.problems)


def test_a_string_of_raw_tabs_is_left_out_in_bounded_time(tmp_path: Path):
    (tmp_path / "in").mkdir()
    text = HEAD + ', {"ph": "X", "cat": "kernel", "name": "' + "a\t" * 1_000_000 + '"}' + EVENT + "]}"
    (tmp_path / "in" / "rank-0.json").write_text(text)
    (record,) = ingested(tmp_path).added
    assert record.kernels == 2
