"""An extract tells what the rank's own files tell; where it does not hold, the answers are the same without it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import jitter
import jitter.analysis.execution.activity_reader
import jitter.lake.derived.build_timing_cache
import jitter.lake.derived.timing_cache_writer
from jitter.cli import main
from jitter.core.numeric.arrays import unknown_value
from jitter.core.schema import KERNELS
from jitter.lake.derived.build_timing_cache import build_timing_cache
from jitter.lake.derived.timing_cache import (
    CHECKSUM_KEY,
    HEADER_KEY,
    TimingCache,
    TimingCaches,
    checksum_of,
)
from jitter.lake.derived.timing_cache_writer import TimingCacheWriter
from jitter.lake.folder import LakeFolder
from jitter.lake.layout import TIMING_CACHE, timing_cache_file
from jitter.lake.records import SourceRecord, StepRecord
from jitter.simulate import Fault, Job, simulate, write

TIMES = ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns")
KINDS = ("compute", "collective", "memory")
RANKS = 4


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calls that wait, copies, kernels beside the main stream; the lake lies beside its traces."""
    folder = tmp_path_factory.mktemp("extracts")
    syncs = frozenset({"loss", "before", "after"})
    job = Job(shape="sharded", ranks=RANKS, steps=3, kernels=40, gpus_per_node=2, syncs=syncs, side_stream=21)
    write(simulate(job, [Fault.parse("cpu_stall:rank=2,step=1,kernel=9,ms=2")]), folder / "traces", "nsys")
    jitter.ingest([folder / "traces"], folder / "lake", executor=jitter.LocalExecutor())
    return folder / "lake"


@pytest.fixture
def answers(ingested: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Of the lake as it was ingested."""
    return report(ingested, capsys)


def report(root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["report", str(root), "--json"]) == 0
    return capsys.readouterr().out


def records(root: Path) -> list[SourceRecord]:
    return sorted(LakeFolder(root).records(), key=lambda record: record.rank or 0)


def there(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / TIMING_CACHE).glob("*")}


def assert_tells(extract: TimingCache, step: StepRecord, rows: list[dict[str, Any]]) -> None:
    """One step is in it as these rows tell."""
    piece = extract.span(step)
    assert piece is not None
    nothing = int(np.iinfo(extract.dtype).min)
    times = np.empty(len(TIMES) * piece.rows, extract.dtype)
    extract.read_times([piece], [times])
    found = [None if time == nothing else time for time in times.tolist()]
    assert found == [None if row[name] is None else row[name] - step.start_ns for name in TIMES for row in rows]
    assert [KINDS[code] for code in extract.kinds(piece)] == [row["kind"] for row in rows]
    assert piece.threads == sorted({row["launch_thread"] for row in rows} - {None})


def assert_tells_files(root: Path, record: SourceRecord, kind: str) -> None:
    extract = TimingCache(root / timing_cache_file(record.digest), record)
    assert extract.dtype == np.dtype(kind)
    grouped = False
    for step in record.steps:
        folder = root / "kernels" / f"epoch={step.epoch}" / f"step={step.step}"
        rows = pq.ParquetFile(folder / f"rank={record.rank}.parquet").read().to_pylist()
        assert_tells(extract, step, rows)
        grouped |= any(row["group_name"] is not None or row["group_ranks"] is not None for row in rows)
    assert extract.has_groups == grouped
    host = pq.ParquetFile(root / "host" / f"rank={record.rank}" / f"{record.digest}.parquet").read().to_pylist()
    wanted = [
        (row["start_ns"], row["end_ns"], -1 if row["thread"] is None else row["thread"], row["name"])
        for row in host
        if row["kind"] == "sync" and row["end_ns"] is not None
    ]
    calls = extract.sync_calls
    found = list(zip(calls.start_ns.tolist(), calls.end_ns.tolist(), calls.thread.tolist(), calls.names, strict=True))
    assert sorted(found) == sorted(wanted)
    assert calls.start_ns.tolist() == sorted(calls.start_ns.tolist())
    assert wanted


def test_an_ingest_leaves_one_a_rank_that_tells_what_its_files_tell(root: Path):
    assert set(there(root)) == {timing_cache_file(record.digest).name for record in records(root)}
    assert len(there(root)) == RANKS
    for record in records(root):
        assert_tells_files(root, record, "i4")


def test_the_diagnosis_needs_nothing_else(
    root: Path, answers: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def read_nothing(*_: object) -> None:
        raise AssertionError("the ranks' own files are read")

    monkeypatch.setattr(jitter.analysis.execution.activity_reader, "read_step", read_nothing)
    assert report(root, capsys) == answers
    (root / timing_cache_file(records(root)[1].digest)).unlink()
    with pytest.raises(AssertionError, match="own files are read"):
        jitter.open(root).diagnose()


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_the_same_answers_without_some_and_without_all(
    root: Path, answers: str, capsys: pytest.CaptureFixture[str], left: int
):
    for record in records(root)[left:]:
        (root / timing_cache_file(record.digest)).unlink()
    if not left:
        shutil.rmtree(root / "derived")
    assert report(root, capsys) == answers
    assert len(there(root)) == left


DAMAGE = {
    "empty": lambda own, other: b"",
    "cut in the mark": lambda own, other: own[:5],
    "cut in the schema": lambda own, other: own[:40],
    "cut before the times": lambda own, other: own[: len(own) // 4],
    "cut in the times": lambda own, other: own[: len(own) // 2 // 4 * 4],
    "cut by one time": lambda own, other: own[:-4],
    "cut by one byte": lambda own, other: own[:-1],
    "one time too many": lambda own, other: own + own[-4:],
    "random": lambda own, other: np.random.default_rng(1).bytes(len(own)),
    "a random schema": lambda own, other: own[:12] + np.random.default_rng(2).bytes(len(own) - 12),
    "an unknown kind": lambda own, other: other_kinds(own),
    "an unknown end": lambda own, other: with_unknown_end(own),
    "another checksum": lambda own, other: with_metadata(own, {b"jitter.checksum": b"0" * 16}),
    "no metadata": lambda own, other: with_metadata(own, {}),
    "another rank's": lambda own, other: other,
}
"""Damage, each of which has to come out as one of the errors that count as an absent cache."""


def with_metadata(content: bytes, changed: dict[bytes, bytes]) -> bytes:
    """Return a cache with other metadata in its schema."""
    rows = pa.ipc.open_file(content).read_all()
    return written(rows.replace_schema_metadata({**rows.schema.metadata, **changed} if changed else None))


def with_unknown_end(content: bytes) -> bytes:
    """Return a cache, with the right checksum, in which the end of an activity is unknown."""
    reader = pa.ipc.open_file(content)
    batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    times, kinds = batches[0].column("times"), batches[0].column("kind")
    values = np.array(times.values.fill_null(unknown_value(times.values.type.to_pandas_dtype())))
    values[len(kinds[0])] = unknown_value(values.dtype)
    changed = pa.ListArray.from_arrays(times.offsets, pa.array(values))
    batches[0] = pa.record_batch([changed, kinds], names=["times", "kind"])
    header = reader.schema.metadata[HEADER_KEY]
    checked = {HEADER_KEY: header, CHECKSUM_KEY: checksum_of(header, [batch.columns for batch in batches])}
    return written(pa.Table.from_batches(batches).replace_schema_metadata(checked))


def other_kinds(content: bytes) -> bytes:
    rows = pa.ipc.open_file(content).read_all()
    kinds = pa.array([[3] * len(own) for own in rows["kind"]], pa.list_(pa.int8()))
    return written(rows.set_column(rows.schema.get_field_index("kind"), rows.schema.field("kind"), kinds))


def written(rows: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, rows.schema) as writer:
        writer.write_table(rows)
    return out.getvalue().to_pybytes()


def test_any_arrow_library_reads_it(root: Path):
    record = records(root)[0]
    rows = pa.ipc.open_file(root / timing_cache_file(record.digest)).read_all()
    rows.validate(full=True)
    assert rows.schema.names == ["times", "kind"]
    header = json.loads(rows.schema.metadata[b"jitter.timing_cache"])
    assert [step["rows"] for step in header["steps"]] == [step.rows for step in record.steps]
    first = record.steps[0]
    own = pq.ParquetFile(root / "kernels" / f"epoch={first.epoch}" / f"step={first.step}" / "rank=0.parquet").read()
    every = [value for name in TIMES for value in own[name].to_pylist()]
    assert rows["times"][0].as_py() == [None if value is None else value - first.start_ns for value in every]
    kinds = rows.schema.field("kind").metadata[b"values"].decode().split(",")
    assert [kinds[code] for code in rows["kind"][0].as_py()] == own["kind"].to_pylist()


def test_a_report_verifies_each_once(
    root: Path, answers: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    opened = []
    plain = TimingCache.__init__

    def counted(self: TimingCache, path: Path, record: SourceRecord) -> None:
        opened.append(path.name)
        plain(self, path, record)

    monkeypatch.setattr(jitter.lake.derived, "MANY_FILES", 0)
    monkeypatch.setattr(TimingCache, "__init__", counted)
    assert report(root, capsys) == answers
    assert sorted(opened) == sorted(timing_cache_file(record.digest).name for record in records(root))


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(path.read_bytes())])
def test_one_that_changes_once_it_is_open_is_none(ingested: Path, root: Path, change: Callable[[Path], object]):
    lake, one = jitter.open(root), records(root)[0]
    extract = lake.timing_caches.open(one)
    span = extract.span(one.steps[0])
    assert span is not None
    change(root / timing_cache_file(one.digest))
    with pytest.raises(OSError, match=timing_cache_file(one.digest).name):
        extract.read_times([span], [np.empty(len(TIMES) * span.rows, extract.dtype)])
    assert lake.diagnose() == jitter.open(ingested).diagnose()


@pytest.mark.parametrize(
    "damage",
    [pytest.param(how, id=name) for name, how in DAMAGE.items()],
)
def test_a_damaged_one_is_none(root: Path, answers: str, capsys: pytest.CaptureFixture[str], damage):
    one, other, *_ = records(root)
    path = root / timing_cache_file(one.digest)
    path.write_bytes(damage(path.read_bytes(), (root / timing_cache_file(other.digest)).read_bytes()))
    with pytest.raises((OSError, ValueError)):
        TimingCache(path, one)
    assert report(root, capsys) == answers


def test_an_empty_one_of_a_large_lake_is_built_again(root: Path, monkeypatch: pytest.MonkeyPatch):
    found = records(root)
    monkeypatch.setattr(jitter.lake.derived, "MANY_FILES", sum(len(record.steps) for record in found))
    path = root / timing_cache_file(found[0].digest)
    whole = path.read_bytes()
    path.write_bytes(b"")
    build_timing_cache(TimingCaches(root), found)
    assert path.read_bytes() == whole


def test_any_number_of_successive_steps_is_read(root: Path):
    record = records(root)[0]
    path = root / timing_cache_file(record.digest)
    pieces = [bytearray(1) for _ in range(path.stat().st_size)]
    assert len(pieces) > 2 * 1024
    TimingCache(path, record)._read(range(len(pieces)), pieces)
    assert b"".join(pieces) == path.read_bytes()


def test_any_byte_of_the_header_may_be_wrong(ingested: Path, tmp_path: Path):
    """The result is an extract, or one of the errors that count as none."""
    record = records(ingested)[0]
    maker, path = TimingCacheWriter(), tmp_path / "extract"
    row = {"kind": "compute", **dict.fromkeys(TIMES, 5), "launch_thread": 7, "group_name": None, "group_ranks": None}
    maker.add(msgspec.structs.replace(record.steps[0], start_ns=5), table([row]))
    maker.write(path, record, None)
    content = path.read_bytes()
    refused = 0
    for at in range(len(content) - 16):
        for wrong in set(range(0, 256, 51)) - {content[at]}:
            path.write_bytes(content[:at] + bytes([wrong]) + content[at + 1 :])
            try:
                TimingCache(path, record)
            except (OSError, ValueError):
                refused += 1
    assert refused > len(content) // 4


@pytest.mark.parametrize("change", [{"reader_version": 99}, {"step_pattern": "batch"}])
def test_one_of_another_reading_is_none(
    root: Path, answers: str, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
):
    one = records(root)[0]
    read_otherwise = msgspec.structs.replace(one, **change)
    with pytest.raises(ValueError, match="from another reading"):
        TimingCache(root / timing_cache_file(one.digest), read_otherwise)
    LakeFolder(root).write_record(read_otherwise)
    shutil.rmtree(root / ".staging")
    assert report(root, capsys) == answers


@pytest.mark.parametrize("change", [{"kernels": 1}, {"memory_activities": 9}, {"sequence": "other"}, {"start_ns": 5}])
def test_a_step_that_the_record_tells_otherwise_is_not_in_it(root: Path, change: dict[str, Any]):
    one = records(root)[0]
    path, step = root / timing_cache_file(one.digest), one.steps[1]
    extract = TimingCache(path, one)
    assert all(extract.span(own) is not None for own in one.steps)
    otherwise = msgspec.structs.replace(step, **change)
    told = msgspec.structs.replace(one, steps=[otherwise if own is step else own for own in one.steps])
    assert [own.key for own in told.steps if TimingCache(path, told).span(own) is None] == [otherwise.key]


def test_another_reading_replaces_it(root: Path, ingested: Path, tmp_path: Path):
    traces = ingested.parent / "traces"
    before = there(root)
    jitter.ingest([traces], root, step_pattern=r"step(?P<step>\d+)", executor=jitter.LocalExecutor())
    jitter.ingest([traces], tmp_path / "fresh", step_pattern=r"step(?P<step>\d+)", executor=jitter.LocalExecutor())
    assert before.keys() == there(root).keys()
    assert before != there(root) == there(tmp_path / "fresh")


def test_who_has_more_rows_has_none(
    ingested: Path, tmp_path: Path, answers: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    rows = {r.digest: sum(step.kernels + step.memory_activities for step in r.steps) for r in records(ingested)}
    most = max(rows.values())
    for limit, expected in ((most, len(rows)), (min(rows.values()) - 1, 0)):
        monkeypatch.setattr(jitter.lake.derived.timing_cache_writer, "MAX_ROWS", limit)
        monkeypatch.setattr(jitter.lake.derived.build_timing_cache, "MAX_ROWS", limit)
        monkeypatch.setattr(jitter.lake.derived, "MANY_FILES", 0)
        lake = tmp_path / f"lake{limit}"
        jitter.ingest([ingested.parent / "traces"], lake, executor=jitter.LocalExecutor())
        assert len(there(lake)) == expected
        assert report(lake, capsys) == answers
        assert len(there(lake)) == expected


LEAST = 2**31
near = st.sampled_from([0, 7, -LEAST - 1, -LEAST, 1 - LEAST, 2 - LEAST, LEAST - 2, LEAST - 1, LEAST, 2**61, -(2**61)])
time = st.one_of(st.integers(-LEAST + 2, LEAST - 2), st.integers(0, 50), near)
rows_of_a_step = st.lists(
    st.tuples(st.sampled_from(KINDS), time, time, st.none() | time, st.none() | time, st.none() | st.integers(1, 3)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 2**60), rows_of_a_step), min_size=1, max_size=4, unique_by=lambda s: s[0]),
    st.sampled_from((1, 5, 99)),
)
@example([(9, [("compute", 0, 5, None, None, None)] * 2), (99, [("memory", 0, LEAST + 3, None, 1, 2)])], 1)
@example([(2**40, [("compute", 0, 5, None, None, None), ("compute", 9, 12, 1, 2, 3)])], 1)
@example([(9, [("collective", 0, 5, 1 - LEAST, LEAST - 1, 1)])], 1)
def test_any_rows(tmp_path_factory: pytest.TempPathFactory, ingested: Path, steps, at_once: int):
    """Unknown launches, times that fit four bytes and times that do not, in one recording; few steps taken at once."""
    whole = records(ingested)[0]
    record = msgspec.structs.replace(whole, steps=[])
    maker, told = TimingCacheWriter(), []
    for number, (start, its) in enumerate(steps):
        rows = [
            dict(zip(("kind", *TIMES), (kind, *(None if t is None else start + t for t in times)), strict=True))
            | {"launch_thread": thread, "group_name": None, "group_ranks": None}
            for kind, *times, thread in its
        ]
        step = msgspec.structs.replace(
            whole.steps[0], step=number, start_ns=start, kernels=len(rows), memory_activities=0, sequence=str(number)
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jitter.lake.derived.timing_cache_writer, "_ROWS_PER_BATCH", at_once)
            maker.add(step, table(rows))
        told.append((step, rows))
    path = tmp_path_factory.mktemp("any") / "extract"
    assert maker.write(path, record, None)
    extract = TimingCache(path, msgspec.structs.replace(record, steps=[step for step, _ in told]))
    for step, rows in told:
        assert_tells(extract, step, rows)
    known = [abs(t) for _, its in steps for row in its for t in row[1:5] if t is not None]
    assert extract.dtype.itemsize == (4 if max(known) < LEAST - 1 else 8)
    assert not extract.has_groups
    assert extract.sync_calls.names == ()


def table(rows: list[dict[str, Any]]) -> pa.Table:
    """Of these columns of the lake's schema."""
    fields = [KERNELS.field(name) for name in rows[0]]
    plain = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in fields]
    columns = [pa.array([row[f.name] for row in rows], kind) for f, kind in zip(fields, plain, strict=True)]
    return pa.table(columns, names=[f.name for f in fields]).cast(pa.schema(fields))
