"""`sources`, `steps` and `problems` come from the records; the catalog holds the same rows for other programs."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import jitter
from jitter.lake import catalog

RELATIONS = ("sources", "rank_steps", "problems")


@pytest.fixture
def root(lake_root: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(lake_root, tmp_path / "lake"))
    assert catalog.is_current(copy)
    return copy


def rows(root: Path, relation: str) -> list[dict[str, object]]:
    found = jitter.open(root).sql(f"from {relation}", arrow=True).to_pylist()
    assert found
    return sorted(found, key=str)


def change(root: Path, statement: str) -> None:
    with closing(sqlite3.connect(root / "catalog.sqlite")) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_catalog_and_the_records_give_the_same_rows(root: Path, relation: str):
    from_catalog = rows(root, relation)
    schema = jitter.open(root).sql(f"from {relation}", arrow=True).schema
    (root / "catalog.sqlite").unlink()
    assert rows(root, relation) == from_catalog
    assert jitter.open(root).sql(f"from {relation}", arrow=True).schema == schema
    assert not (root / "catalog.sqlite").exists()


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("damage", ["stale", "cut", "text", "a column less", "another version"])
def test_another_catalog_is_not_read(root: Path, relation: str, damage: str):
    wanted = rows(root, relation)
    path = root / "catalog.sqlite"
    change(root, "UPDATE sources SET file = 'changed'")
    if damage == "stale":
        record = next((root / "sources").iterdir())
        record.touch()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:4096])
    elif damage == "text":
        path.write_text("no database")
    elif damage == "a column less":
        for table, column in (("sources", "file"), ("steps", "marker"), ("problems", "problem")):
            change(root, f"ALTER TABLE {table} DROP COLUMN {column}")
    else:
        change(root, "UPDATE state SET made_from = 'another'")
    content = path.read_bytes()
    assert rows(root, relation) == wanted
    assert path.read_bytes() == content
