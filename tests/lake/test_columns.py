"""Columns that are null in every row of a recording, or that its version lacked: in the record, and not read."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jitter
from jitter.core.schema import KERNELS
from jitter.lake.folder import LakeFolder
from jitter.lake.layout import kernels_file
from jitter.lake.step_reader import read_step
from jitter.simulate import Job, simulate
from tests.support.simulated import accept_changed_files, ingest_run


@pytest.fixture
def lake_of_three(tmp_path: Path) -> jitter.Lake:
    return ingest_run(simulate(Job(ranks=3, steps=2, kernels=24)), tmp_path, "nsys")


def files(lake_of_three: jitter.Lake, rank: int) -> list[Path]:
    return [lake_of_three.root / kernels_file(key, rank) for key in lake_of_three.step_keys]


def test_a_record_states_the_columns_without_values(lake_of_three: jitter.Lake):
    for record in lake_of_three.sources:
        assert record.rank is not None
        rows = pa.concat_tables([pq.ParquetFile(path).read() for path in files(lake_of_three, record.rank)])
        assert record.empty_columns == [name for name in KERNELS.names if rows[name].null_count == rows.num_rows]
        assert "operator" in record.empty_columns


def test_all_columns_are_read_as_the_files_hold_them(lake_of_three: jitter.Lake):
    key = lake_of_three.step_keys[0]
    held = {rank: lake_of_three.record_of(key, rank) for rank in lake_of_three.ranks}
    found = read_step(lake_of_three.root, key, held, KERNELS.names)
    alone = [pq.ParquetFile(files(lake_of_three, rank)[0]).read().to_pylist() for rank in lake_of_three.ranks]
    assert found.table.to_pylist() == [row for rows in alone for row in rows]
    assert found.rows == tuple(map(len, alone))
    only = read_step(lake_of_three.root, key, held, ("operator",))
    assert only.table.to_pylist() == [{"operator": None}] * len(found.table)


def test_a_column_of_a_file_without_checksum_is_read(lake_of_three: jitter.Lake):
    path = files(lake_of_three, 1)[0]
    rows = pq.ParquetFile(path).read()
    values = pa.array(["aten::mm"] * rows.num_rows, pa.string())
    pq.write_table(rows.set_column(rows.schema.get_field_index("operator"), "operator", values), path)
    changed = accept_changed_files(lake_of_three)
    key = changed.step_keys[0]
    found = changed.step_columns(key, ("rank", "operator")).table
    assert {(row["rank"], row["operator"]) for row in found.to_pylist()} == {(0, None), (1, "aten::mm"), (2, None)}


def test_many_small_files_are_joined(lake_of_three: jitter.Lake, monkeypatch: pytest.MonkeyPatch):
    key = lake_of_three.step_keys[0]
    whole = lake_of_three.step_columns(key, KERNELS.names)
    assert whole.table["start_ns"].num_chunks == 1
    monkeypatch.setattr("jitter.lake.step_reader._ROWS_PER_PIECE", whole.rows[0] + 1)
    joined = lake_of_three.step_columns(key, KERNELS.names)
    assert joined.table["start_ns"].num_chunks == 2
    assert joined.table.to_pylist() == whole.table.to_pylist()
    assert joined.rows == whole.rows


LACKING = ("dtype", "message_bytes", "group_size", "block_z")


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns")
    ingest_run(simulate(Job(ranks=4, steps=2, kernels=24)), folder, "kineto")
    return folder / "lake"


@pytest.fixture
def old(root: Path) -> Path:
    """Return a lake whose ranks 1 and 2 were written by a version without the columns."""
    folder = LakeFolder(root)
    for record in folder.records():
        if record.rank in (1, 2):
            for step in record.steps:
                path = root / kernels_file(step.key, record.rank)
                rows = pq.ParquetFile(path).read()
                pq.write_table(rows.drop_columns(list(LACKING)), path)
                step.checksum = None
            count = len(KERNELS) - len(LACKING)
            folder.write_record(msgspec.structs.replace(record, kernel_columns=count))
    folder.close()
    return root


def expected(ingested: Path) -> list[dict[str, object]]:
    """Return the rows of all ranks, with nulls in ranks 1 and 2."""
    rows = jitter.open(ingested).sql("from kernels order by epoch, step, rank, ordinal", arrow=True).to_pylist()
    assert all(any(row[name] is not None for row in rows if row["rank"] == 1) for name in LACKING)
    return [row | dict.fromkeys(LACKING) if row["rank"] in (1, 2) else row for row in rows]


def test_kernels_by_sql(old: Path, ingested: Path):
    found = jitter.open(old).sql("from kernels order by epoch, step, rank, ordinal", arrow=True).to_pylist()
    assert found == expected(ingested)


def test_a_step(old: Path, ingested: Path):
    lake = jitter.open(old)
    key = lake.step_keys[0]
    found = read_step(old, key, lake._by_step[key], KERNELS.names).table
    assert found.schema.names == KERNELS.names
    wanted = [row for row in expected(ingested) if (row["epoch"], row["step"]) == key]
    assert found.to_pylist() == [{name: row[name] for name in KERNELS.names} for row in wanted]
    assert pa.types.is_dictionary(found.schema.field("dtype").type)


def test_tables_and_the_diagnosis(old: Path, ingested: Path):
    found, wanted = jitter.open(old), jitter.open(ingested)
    key = wanted.step_keys[0]
    assert found.table("ttke", key).equals(wanted.table("ttke", key))
    assert found.diagnose() == wanted.diagnose()
