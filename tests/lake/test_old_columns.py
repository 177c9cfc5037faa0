"""Files of a version that lacked a column of the schema: the column is null, in every way to read them."""

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
from jitter.simulate import Job, simulate, write

LACKING = ("dtype", "message_bytes", "group_size", "block_z")


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns")
    write(simulate(Job(ranks=4, steps=2, kernels=24)), folder / "traces", "kineto")
    jitter.ingest([folder / "traces"], folder / "lake", executor=jitter.LocalExecutor())
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
