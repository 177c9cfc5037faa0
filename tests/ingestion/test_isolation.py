"""One bad file or reader never stops the others, and nothing but regular files is opened."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jitter
from jitter.ingestion.discovery.discover import discover
from jitter.readers import readers
from tests.support.added_reader import added_reader
from tests.support.databases import run_sql


class Failing:
    """A reader of `.bad` files that fails where it is told to."""

    name = "failing"
    version = 1

    def __init__(self, where: str, error: BaseException) -> None:
        self.where, self.error = where, error

    def _fail(self, where: str) -> None:
        if self.where == where:
            raise self.error

    def sniff(self, path: Path) -> bool:
        self._fail("sniff")
        return path.suffix == ".bad"

    def files(self, path: Path):
        self._fail("files")
        return jitter.readers.Files((path,))

    def open(self, path: Path):
        self._fail("open")
        recording = jitter.readers.Recording(path, self.name)

        def batches(advance: Callable[[int], None]):
            self._fail("batches")
            yield from ()

        return recording, batches


ERRORS = [
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    RecursionError("maximum recursion depth exceeded"),
    MemoryError(),
    OverflowError("int too big to convert"),
    ZeroDivisionError("first line\nsecond line"),
]


@pytest.mark.parametrize(
    ("where", "error"),
    [("files", ERRORS[0]), *(("open", error) for error in ERRORS), ("batches", ERRORS[1])],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_whatever_a_reader_raises_refuses_one_file(
    own_traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
):
    (own_traces / "one.bad").write_text("x")
    monkeypatch.setitem(readers(), "failing", Failing(where, error))
    report = jitter.ingest(own_traces, tmp_path / "lake")
    assert len(report.added) == 3
    (refusal,) = report.refused
    assert "one.bad" in refusal.message
    assert "\n" not in str(refusal)
    if not isinstance(error, MemoryError):
        assert type(error).__name__ in refusal.message
        assert "reader 'failing' failed" in refusal.message


def test_a_sniff_that_raises_is_named_once_and_skipped(
    own_traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (own_traces / "notes.txt").write_text("x")
    monkeypatch.setitem(readers(), "failing", Failing("sniff", ValueError("no")))
    report = jitter.ingest(own_traces, tmp_path / "lake")
    assert (len(report.added), report.refused) == (3, [])
    (note,) = report.warnings
    assert note.startswith("reader 'failing' failed to examine")
    assert "ValueError: no" in note


BROKEN = {
    "raise ImportError('no module named turbo')": "cannot be loaded: ImportError: no module named turbo",
    "raise RuntimeError('no licence')": "cannot be loaded: RuntimeError: no licence",
    "READER = object()": "is no reader: it does not inherit from jitter.readers.SourceReader",
    "x = = 1": "cannot be loaded: SyntaxError",
}


@pytest.mark.parametrize(
    ("name", "source", "jobs"),
    [
        *(("broken", source, 1) for source in BROKEN),
        ("broken", "x = = 1", 2),
        ("not-a-module", "", 1),  # Python could not import a module of this name
    ],
)
def test_a_broken_third_party_reader_is_named_and_skipped(
    own_traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str, jobs: int
):
    (own_traces / "notes.txt").write_text("x")
    with added_reader(name, source, tmp_path / "site", monkeypatch):
        report = jitter.ingest(own_traces, tmp_path / "lake", executor=jitter.PoolExecutor(jobs))
    assert (len(report.added), report.refused) == (3, [])
    (note,) = report.warnings
    assert f"reader '{name}' ({name}_reader:READER) {BROKEN.get(source, 'cannot be loaded')}" in note


def test_a_flipped_bit_in_a_table_name(own_traces: Path, tmp_path: Path):
    bad = own_traces / "rank9.rpd"
    run_sql(bad, "CREATE TABLE rocpd_op (id INTEGER)")
    content = bad.read_bytes()
    at = content.index(b"rocpd_op")
    bad.write_bytes(content[:at] + b"\xff" + content[at + 1 :])
    report = jitter.ingest(own_traces, tmp_path / "lake")
    assert len(report.added) == 3
    assert ["rank9.rpd" in str(error) for error in report.refused] == [True]


def test_only_regular_files_are_opened(own_traces: Path, tmp_path: Path):
    os.mkfifo(own_traces / "rank7.sqlite")
    os.mkfifo(own_traces / "rank8.json")
    (own_traces / "link.sqlite").symlink_to(own_traces / "rank7.sqlite")
    (own_traces / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(own_traces / "s"))
        report = jitter.ingest(own_traces, tmp_path / "lake")
    assert len(report.added) == 3
    (_, error), *_ = discover([own_traces / "rank7.sqlite"]).unreadable
    assert "rank7.sqlite: a pipe, not a file" in str(error)
    (_, error), *_ = discover([Path("/dev/null")]).unreadable
    assert "/dev/null: a device, not a file" in str(error)


def test_a_folder_that_cannot_be_listed(own_traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (own_traces / "locked").mkdir()
    really = os.scandir

    def deny(path):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return really(path)

    monkeypatch.setattr(os, "scandir", deny)
    found = discover([own_traces])
    assert len(found.sources) == 3
    assert [str(error) for _, error in found.unreadable] == [
        f"{own_traces / 'locked'}: cannot be listed (Permission denied); make it readable"
    ]


def test_files_of_known_kinds_are_said_once_a_kind(own_traces: Path, tmp_path: Path):
    for name in ("a.xplane.pb", "c.pftrace", "d.otf2", "e.ncu-rep"):
        (own_traces / name).write_bytes(b"x")
    for name in ("profile.pb", "g.pb", "h.et"):
        (own_traces / name).write_bytes(b"x")
    (own_traces / "f.json").write_text('{"schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": []}')
    pq.write_table(pa.table({"op_name": ["mm"], "start": [1], "dur": [2]}), own_traces / "ops.parquet")
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), own_traces / "dataset.parquet")
    report = jitter.ingest(own_traces, tmp_path / "lake")
    assert (len(report.added), report.other_files) == (3, 9)
    assert [error.message.partition(": ")[2] for error in report.refused] == [
        "a damaged trace (1 bytes; no reader recognizes them)"
    ]
    assert len(report.warnings) == 6
    words = "\n".join(report.warnings)
    for kind in ("Perfetto", "OTF2", "Nsight Compute", "Chakra", "protobuf", "Parquet"):
        assert words.count(kind) == 1
    assert ": protobuf files" in words
    assert "ops.parquet: Parquet tables of events, which jitter does not read" in words
