"""The file of a recording's times holds what the parquet files hold; without it, or damaged, answers are the same."""

import shutil
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jitter
from jitter.analysis.execution import run_reader
from jitter.core.errors import LakeError
from jitter.core.names.kernels import KINDS
from jitter.core.numeric.arrays import is_unknown
from jitter.core.step_key import StepKey
from jitter.lake.folder import LakeFolder
from jitter.lake.integrity.verify import verify_lake
from jitter.lake.layout import times_file
from jitter.lake.parquet import TYPES_AS_READ, read_rank_step
from jitter.lake.records import RankStepRecord, SourceRecord, StepRecord
from jitter.lake.step_reader import StepColumns, read_step
from jitter.lake.times import TIMES, ActivityTimes, TimesReader, append_times
from jitter.simulate import Fault, Job, simulate
from tests.support.simulated import ingest_run

RANKS = 4


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("times")
    run = simulate(Job(ranks=RANKS, steps=3, kernels=24), [Fault.parse("cpu_stall:rank=2,step=1,kernel=7,ms=1.5")])
    ingest_run(run, folder, "nsys")
    return folder / "lake"


def records(root: Path) -> list[SourceRecord]:
    return LakeFolder(root).records()


def assert_tells(found: ActivityTimes | None, rows: pa.Table, start_ns: int) -> None:
    assert found is not None
    assert [KINDS[kind] for kind in found.kinds.tolist()] == rows["kind"].to_pylist()
    for values, nowhere, name in zip(found.times.tolist(), is_unknown(found.times).tolist(), TIMES, strict=True):
        told = [None if no else value + start_ns for value, no in zip(values, nowhere, strict=True)]
        assert told == rows[name].to_pylist()


def test_an_ingest_writes_what_the_parquet_files_hold(root: Path):
    for record in records(root):
        for step in record.steps:
            held = RankStepRecord(record, step)
            assert_tells(*TimesReader(root).read([held]), read_rank_step(root, held, (*TIMES, "kind")), step.start_ns)


def test_the_diagnosis_needs_no_times_of_parquet_files(root: Path, monkeypatch: pytest.MonkeyPatch):
    wanted = jitter.open(root).diagnose()

    def refuse(root: Path, key: StepKey, held: Any, columns: Sequence[str], ranks: Sequence[int]) -> StepColumns:
        assert set(columns).isdisjoint(TIMES), "read times of a parquet file"
        return read_step(root, key, held, columns, ranks)

    monkeypatch.setattr("jitter.analysis.execution.run_reader.read_step", refuse)
    assert jitter.open(root).diagnose() == wanted


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("left", [0, 1, RANKS])
def test_the_same_answers_without_some_and_without_all(
    root: Path, ingested: Path, left: int, is_large: bool, monkeypatch: pytest.MonkeyPatch
):
    wanted = jitter.open(ingested)
    for record in records(root)[left:]:
        (root / times_file(record.digest)).unlink()
    if is_large:  # the times are read again from the second time on
        monkeypatch.setattr(run_reader, "_ROWS_KEPT", 0)
    lake = jitter.open(root)
    assert lake.diagnose() == wanted.diagnose()
    assert lake.losses(arrow=True).to_pylist() == wanted.losses(arrow=True).to_pylist()


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [flip, lambda content: content[:-1], lambda content: b""])
def test_damage_is_named_by_verify_and_changes_no_answer(root: Path, ingested: Path, damage: Callable[[bytes], bytes]):
    path = root / times_file(records(root)[1].digest)
    path.write_bytes(damage(path.read_bytes()))
    assert [problem.file for problem in verify_lake(root).problems] == [path]
    assert jitter.open(root).diagnose() == jitter.open(ingested).diagnose()


def test_deleted_times_are_no_problem(root: Path, ingested: Path):
    (root / times_file(records(root)[1].digest)).unlink()
    assert verify_lake(root).problems == []
    assert verify_lake(root).notes == ["1 recording has no file of times, which only makes reading faster"]
    assert jitter.open(root).diagnose() == jitter.open(ingested).diagnose()


def test_a_link_in_its_place_is_refused(root: Path):
    path = root / times_file(records(root)[1].digest)
    moved = path.rename(root.parent / "moved")
    path.symlink_to(moved)
    with pytest.raises(LakeError, match="symbolic link"):
        jitter.open(root)


def test_a_record_of_an_older_version_states_none(root: Path, ingested: Path):
    folder = LakeFolder(root)
    for record in records(root):
        steps = [msgspec.structs.replace(step, times=None) for step in record.steps]
        folder.write_record(msgspec.structs.replace(record, steps=steps))
    folder.close()
    shutil.rmtree(root / "times")
    assert not verify_lake(root).problems
    assert jitter.open(root).diagnose() == jitter.open(ingested).diagnose()


@pytest.mark.parametrize("changed", [{"memory_activities": 1}, {"kernels": 3}])
def test_times_of_another_step_than_the_record_states(root: Path, changed: dict[str, int]):
    record = records(root)[0]
    step = msgspec.structs.replace(record.steps[0], **changed)
    assert TimesReader(root).read([RankStepRecord(record, step)]) == [None]


def test_no_memory_is_taken_for_rows_that_a_record_alone_states(root: Path):
    record = records(root)[0]
    steps = [msgspec.structs.replace(step, kernels=200_000_000) for step in record.steps]
    tracemalloc.start()
    assert TimesReader(root).read([RankStepRecord(record, step) for step in steps]) == [None] * len(steps)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


TIME = st.integers(-(2**40), 2**40)
ROW = st.tuples(st.sampled_from(KINDS), TIME, TIME, st.none() | TIME, st.none() | TIME)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(steps=st.lists(st.tuples(st.integers(-(2**40), 2**40), st.lists(ROW, min_size=1, max_size=6)), min_size=1))
def test_any_rows(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, list[tuple[str, int, int, int | None, int | None]]]],
):
    root = tmp_path_factory.mktemp("any")
    place = root / times_file("0" * 32)
    place.parent.mkdir()
    tables = []
    for start_ns, rows in steps:
        kinds, *times = zip(*rows, strict=True)
        columns = {name: pa.array(values, pa.int64()) for name, values in zip(TIMES, times, strict=True)}
        tables.append(pa.table({**columns, "kind": pa.array(kinds).cast(TYPES_AS_READ["kind"])}))
        parts = append_times(place, tables[-1], start_ns)
        memory = kinds.count(KINDS[-1])
        step = _step(start_ns, len(rows) - memory, memory)
        step.times = parts
        assert_tells(*TimesReader(root).read([RankStepRecord(_record(), step)]), tables[-1], start_ns)
        assert parts.width == (8 if _is_wide(tables[-1], start_ns) else 4)


def _is_wide(rows: pa.Table, start_ns: int) -> bool:
    known = np.array([value - start_ns for name in TIMES for value in rows[name].to_pylist() if value is not None])
    return bool(np.abs(known).max() >= 2**31 - 1)


def _step(start_ns: int, kernels: int, memory: int) -> StepRecord:
    return StepRecord(0, None, None, start_ns, None, False, 0, kernels, memory, "")


def _record() -> SourceRecord:
    return SourceRecord(**{**dict.fromkeys(SourceRecord.__struct_fields__), "digest": "0" * 32, "rank": 0})
