"""A step of many ranks reads as the ranks' own files do."""

from pathlib import Path

import pyarrow as pa
import pytest

from jitter.core.errors import LakeError
from jitter.core.schema import KERNELS
from jitter.core.step_key import StepKey
from jitter.lake.layout import kernels_file
from jitter.lake.parquet import select_columns
from jitter.lake.records import records_by_step
from jitter.lake.step_reader import StepColumns, read_step
from tests.support.random_lake import RandomLake, small_files

ONE, TWO = StepKey(None, 7), StepKey(3, 7)


def read(lake: RandomLake, key: StepKey, **chosen) -> StepColumns:
    return read_step(lake.root, key, records_by_step(lake.folder.records())[key], **chosen)


@pytest.fixture
def lake(tmp_path: Path) -> RandomLake:
    made = RandomLake(tmp_path / "lake")
    for rank in range(6):
        made.put(rank, [ONE, TWO])
    return made


@pytest.mark.parametrize("key", [ONE, TWO])
def test_every_row_and_column(lake: RandomLake, key: StepKey):
    found = read(lake, key)
    assert found.ranks == tuple(range(6))
    assert found.table.to_pylist() == small_files(lake.root, key, list(range(6)))
    for number, rank in enumerate(found.ranks):
        first, end = found.bounds[number : number + 2]
        assert set(found.table["rank"][first:end].to_pylist()) == {rank}


def test_some_columns_of_some_ranks(lake: RandomLake):
    columns = ("kernel_name", "duration_ns", "end_ns", "rank")
    found = read(lake, TWO, columns=columns, ranks=[4, 1])
    assert found.ranks == (1, 4)
    rows = small_files(lake.root, TWO, [1, 4])
    assert found.table.to_pylist() == [{name: row[name] for name in columns} for row in rows]


def test_a_rank_that_lacks_the_step(lake: RandomLake):
    with pytest.raises(KeyError):
        read(lake, ONE, ranks=[0, 6])


def test_a_missing_file_is_said(lake: RandomLake):
    path = lake.root / kernels_file(ONE, 3)
    path.unlink()
    with pytest.raises(LakeError, match=r"rank=3\.parquet: cannot be read"):
        read(lake, ONE)


def test_numbers_and_codes(lake: RandomLake):
    rows = small_files(lake.root, ONE, list(range(6)))
    found = read(lake, ONE)
    for name in ("start_ns", "launch_start_ns", "grid_x"):
        assert found.known(name).tolist() == [row[name] is not None for row in rows]
        assert found.values(name).tolist() == [row[name] or 0 for row in rows]
    codes, texts = found.codes("launch_name")
    assert [None if code < 0 else texts[code] for code in codes] == [row["launch_name"] for row in rows]


def test_columns_that_no_file_has_are_null_in_every_type():
    rows = select_columns(pa.table({"stream": pa.array(range(20))}), [field.name for field in KERNELS])
    rows.validate(full=True)
    for field in KERNELS:
        if field.name != "stream":
            assert rows[field.name].null_count == 20
            assert rows[field.name].to_pylist() == [None] * 20
