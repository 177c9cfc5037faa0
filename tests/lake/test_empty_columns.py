"""Columns that are null in every row of a recording are in its record, and are not read."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jitter
from jitter.core.schema import KERNELS
from jitter.lake.layout import kernels_file
from jitter.lake.step_reader import read_step
from jitter.simulate import Job, simulate, write
from tests.support.simulated import accept_changed_files


@pytest.fixture
def lake(tmp_path: Path) -> jitter.Lake:
    write(simulate(Job(ranks=3, steps=2, kernels=24)), tmp_path / "traces", "nsys")
    jitter.ingest([tmp_path / "traces"], tmp_path / "lake", executor=jitter.LocalExecutor())
    return jitter.open(tmp_path / "lake")


def files(lake: jitter.Lake, rank: int) -> list[Path]:
    return [lake.root / kernels_file(key, rank) for key in lake.step_keys]


def test_a_record_states_the_columns_without_values(lake: jitter.Lake):
    for record in lake.sources:
        assert record.rank is not None
        rows = pa.concat_tables([pq.ParquetFile(path).read() for path in files(lake, record.rank)])
        assert record.empty_columns == [name for name in KERNELS.names if rows[name].null_count == rows.num_rows]
        assert "operator" in record.empty_columns


def test_all_columns_are_read_as_the_files_hold_them(lake: jitter.Lake):
    key = lake.step_keys[0]
    held = {rank: lake.record_of(key, rank) for rank in lake.ranks}
    found = read_step(lake.root, key, held, KERNELS.names)
    alone = [pq.ParquetFile(files(lake, rank)[0]).read().to_pylist() for rank in lake.ranks]
    assert found.table.to_pylist() == [row for rows in alone for row in rows]
    assert found.rows == tuple(map(len, alone))
    only = read_step(lake.root, key, held, ("operator",))
    assert only.table.to_pylist() == [{"operator": None}] * len(found.table)


def test_a_column_of_a_file_without_checksum_is_read(lake: jitter.Lake):
    path = files(lake, 1)[0]
    rows = pq.ParquetFile(path).read()
    values = pa.array(["aten::mm"] * rows.num_rows, pa.string())
    pq.write_table(rows.set_column(rows.schema.get_field_index("operator"), "operator", values), path)
    changed = accept_changed_files(lake)
    key = changed.step_keys[0]
    found = changed.step_columns(key, ("rank", "operator")).table
    assert {(row["rank"], row["operator"]) for row in found.to_pylist()} == {(0, None), (1, "aten::mm"), (2, None)}


def test_many_small_files_are_joined(lake: jitter.Lake, monkeypatch: pytest.MonkeyPatch):
    key = lake.step_keys[0]
    whole = lake.step_columns(key, KERNELS.names)
    assert whole.table["start_ns"].num_chunks == 1
    monkeypatch.setattr("jitter.lake.step_reader._ROWS_PER_PIECE", whole.rows[0] + 1)
    joined = lake.step_columns(key, KERNELS.names)
    assert joined.table["start_ns"].num_chunks == 2
    assert joined.table.to_pylist() == whole.table.to_pylist()
    assert joined.rows == whole.rows
