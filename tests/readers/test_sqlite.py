"""Integers of a database are those that SQLite gives, and what SQLite refuses is refused."""

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jitter.core.errors import UnreadableTraceError
from jitter.readers.nsys import tables
from jitter.readers.nsys.tables import RowFilter, SqliteTables
from tests.support.databases import open_database

EDGES = [0, 1, -1, None, *(sign * (1 << bits) + more for bits in (7, 8, 15, 23, 31, 47, 62) for sign in (1, -1)
                           for more in (-1, 0, 1)), 2**63 - 1, -(2**63)]  # fmt: skip
PAGE_SIZES = (512, 1024, 4096, 65536)


def make(
    path: Path, rows: Sequence[Sequence[Any]], columns: str, page_size: int = 4096, further: Sequence[str] = ()
) -> Path:
    """A database with a table t; tables of other rows lie among its pages."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA page_size = {page_size}")
        connection.execute("CREATE TABLE other (x TEXT)")
        connection.execute(f"CREATE TABLE t ({columns})")
        for first in range(0, len(rows), 300):
            some = rows[first : first + 300]
            marks = ", ".join("?" * len(some[0]))
            connection.executemany(f"INSERT INTO t VALUES ({marks})", some)
            connection.execute("INSERT INTO other VALUES (?)", ("x" * 3000,))
            connection.commit()
        for statement in further:
            connection.execute(statement)
        connection.commit()
    return path


def through_sqlite(path: Path, columns: Sequence[str], where: str = "") -> list[tuple[Any, ...]]:
    names = ", ".join(f'"{column}"' for column in columns)
    with open_database(path) as connection:
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        return [tuple(map(integer, row)) for row in connection.execute(f"SELECT {names} FROM t{where}")]


def integer(value: Any) -> int | None:
    """The integer that a value is or states."""
    if isinstance(value, str):
        return int(value) if value.removeprefix("-").isdecimal() and str(int(value)) == value else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 4e18 else None
    return value if isinstance(value, int) else None


def through_jitter(path: Path, columns: Sequence[str], only: RowFilter | None = None) -> list[tuple[Any, ...]]:
    batches = list(SqliteTables(path).read("t", columns, only=only))
    assert all(set(batch.schema.types) == {pa.int64()} and batch.num_rows for batch in batches)
    return [row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)]


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("seed", range(4))
def test_all_lengths_of_numbers(seed: int, page_size: int, tmp_path: Path):
    pick = random.Random(seed)
    width = pick.choice((1, 3, 27, 120))
    names = [f"c{number}" for number in range(width)]
    kinds = [pick.choice(([7], [None], [1], EDGES, EDGES, range(200))) for _ in names]
    rows = [[pick.choice(kind) for kind in kinds] for _ in range(pick.choice((0, 1, 40, 4000 // width + 900)))]
    columns = ", ".join(f"{name} {pick.choice(('INTEGER', 'INTEGER', ''))}" for name in names)
    path = make(tmp_path / "t.sqlite", rows, columns, page_size, ["DELETE FROM t WHERE rowid % 7 = 3"] * (seed % 2))
    some = pick.sample(names, min(width, 5))
    assert through_jitter(path, some) == through_sqlite(path, some)
    only = RowFilter(names[-1], [7, 1, 0])
    expected = through_sqlite(path, some, f" WHERE {names[-1]} IN (7, 1, 0)")
    assert sorted(map(str, through_jitter(path, some, only))) == sorted(map(str, expected))


@pytest.mark.parametrize(
    ("columns", "row", "further"),
    [
        ("a INTEGER, b INTEGER", (1, 2.5), []),
        ("a INTEGER, b INTEGER", (1, "seven"), []),
        ("a INTEGER, b INTEGER", (1, b"\x01"), []),
        ("a INTEGER PRIMARY KEY, b INTEGER", (None, 2), []),
        ("a INTEGER PRIMARY KEY, b INTEGER, PRIMARY KEY (a)".replace(" PRIMARY KEY,", ",", 1), (None, 2), []),
        ("b INTEGER", (2,), ["ALTER TABLE t ADD COLUMN a INTEGER DEFAULT 9"]),
        ("a INTEGER, b INTEGER, c TEXT", (1, 2, "x" * 100), []),
        ("a INTEGER, b INTEGER, c TEXT", (1, 2, "x" * 9000), []),
        (", ".join(["a INTEGER, b INTEGER", *(f"c{n} INTEGER" for n in range(140))]), (1, 2, *range(140)), []),
    ],
)
def test_values_of_other_types_and_unusual_columns(columns: str, row: Any, further: list[str], tmp_path: Path):
    path = make(tmp_path / "t.sqlite", [row] * 5, columns, further=further)
    assert through_jitter(path, ["b", "a"]) == through_sqlite(path, ["b", "a"])


@pytest.mark.parametrize(
    "columns",
    [
        "a INTEGER, b INTEGER, PRIMARY KEY (b, a)) WITHOUT ROWID; CREATE TABLE u (x",
        "a INTEGER, b INTEGER, c INTEGER GENERATED ALWAYS AS (a + b) VIRTUAL",
        "c INTEGER GENERATED ALWAYS AS (a + b) STORED, a INTEGER, b INTEGER",
    ],
)
def test_unusual_tables(columns: str, tmp_path: Path):
    path = tmp_path / "t.sqlite"
    with open_database(path) as connection:
        connection.executescript(f"CREATE TABLE t ({columns})")
        connection.executemany("INSERT INTO t (a, b) VALUES (?, ?)", [(n, -n) for n in range(50)])
    assert through_jitter(path, ["b", "a"]) == through_sqlite(path, ["b", "a"])


@pytest.mark.parametrize("other", ["text", "7", 2.5, 3.0, b"1"])
def test_a_value_of_another_type_after_the_first_batches(other: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tables, "_BATCH_ROWS", 64)
    rows: list[tuple[Any, Any]] = [(n, n % 3) for n in range(700)]
    rows[500] = (other, 1)
    path = make(tmp_path / "t.sqlite", rows, "a, b INTEGER", 512)
    assert through_jitter(path, ["a", "b"]) == through_sqlite(path, ["a", "b"])
    expected = through_sqlite(path, ["a"], " WHERE b IN (1)")
    assert through_jitter(path, ["a"], RowFilter("b", [1])) == expected
    export = SqliteTables(path)
    assert sum(batch.num_rows for batch in export.read("t", ["a", "b"])) == 700
    is_integer = other in ("7", 3.0)
    assert export.problems() == ([] if is_integer else ["1 value is unknown, because no integer stands there (a)"])


@pytest.mark.parametrize("seed", range(150))
def test_damage(seed: int, tmp_path: Path):
    pick = random.Random(seed)
    rows = [[pick.choice(EDGES) for _ in range(4)] for _ in range(600)]
    whole = make(tmp_path / "t.sqlite", rows, "a INTEGER, b INTEGER, c INTEGER, d INTEGER", 512).read_bytes()
    content = bytearray(whole)
    for _ in range(pick.choice((1, 1, 5, 40))):
        at = pick.randrange(1024, len(content))
        if pick.random() < 0.2:
            at -= at % 512
            content[at : at + 512] = bytes(512)
        elif pick.random() < 0.4:
            content[at - at % 512 + pick.randrange(12)] = pick.randrange(256)  # a page's head
        else:
            content[at] = pick.randrange(256)
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(content)
    columns = ["a", "c", "d"]
    try:
        expected: Any = through_sqlite(path, columns)
    except (sqlite3.Error, MemoryError):  # of a row that seems to be as long as all that
        expected = None
    try:
        found: Any = through_jitter(path, columns)
    except UnreadableTraceError:
        found = None
    assert found == expected
