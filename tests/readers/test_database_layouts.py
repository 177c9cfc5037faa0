"""SQLite sources of unusual layout: UTF-16 texts, tables WITHOUT ROWID, views. Read as the usual one, or refused."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import jitter
from jitter.ingestion.ingest import IngestReport
from tests.readers.test_contract import SOURCES
from tests.support.databases import open_database

DATABASES = ("nsys sqlite", "rocpd", "rocprof v1", "rpd")


@pytest.fixture(params=DATABASES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return SOURCES[request.param][1](tmp_path / "in")


def ingested(source: Path, lake: str) -> IngestReport:
    return jitter.ingest(source, source.parents[1] / lake, rank=0)


def kernels(report: IngestReport) -> list[tuple[int, int]]:
    return [(record.kernels, record.outside_steps) for record in report.added]


def tables(database: sqlite3.Connection) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each table with its columns and their types."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    for (table,) in database.execute(query).fetchall():
        yield table, database.execute("SELECT name, type FROM pragma_table_info(?)", (table,)).fetchall()


def test_utf16_is_refused_with_the_reason(source: Path):
    expected = kernels(ingested(source, "usual"))
    with open_database(source) as database:
        statements = list(database.iterdump())
    source.unlink()
    with open_database(source) as database:
        database.execute("PRAGMA encoding = 'UTF-16le'")
        database.executescript("\n".join(statements))
    report = ingested(source, "lake")
    if report.refused:
        assert "a UTF-16 database, which jitter does not read" in report.refused[0].message
        assert "convert it" in str(report.refused[0])
    else:
        assert kernels(report) == expected


def test_tables_without_rowid_are_read(source: Path):
    expected = kernels(ingested(source, "usual"))
    changed = 0
    with open_database(source) as database:
        database.execute("PRAGMA legacy_alter_table = ON")  # views name the tables
        for table, columns in list(tables(database)):
            names = ", ".join(f'"{name}"' for name, _ in columns)
            unique = f'SELECT count(*) > 0 AND count(DISTINCT {{}}) = count(*) FROM "{table}"'
            keys = [f'"{name}"' for name, _ in columns if database.execute(unique.format(f'"{name}"')).fetchone()[0]]
            if not keys:
                continue
            listed = ", ".join(f'"{name}" {kind}' for name, kind in columns)
            database.execute(f'CREATE TABLE "new" ({listed}, PRIMARY KEY ({keys[0]})) WITHOUT ROWID')
            database.execute(f'INSERT INTO "new" ({names}) SELECT {names} FROM "{table}"')
            database.execute(f'DROP TABLE "{table}"')
            database.execute(f'ALTER TABLE "new" RENAME TO "{table}"')
            changed += 1
    assert changed >= 2
    assert kernels(ingested(source, "lake")) == expected


def test_views_are_read_or_refused_with_the_reason(source: Path):
    """Every table becomes a view of a table of another name, as in merged exports."""
    expected = kernels(ingested(source, "usual"))
    with open_database(source) as database:
        for table, _ in list(tables(database)):
            database.execute(f'ALTER TABLE "{table}" RENAME TO "{table}_data"')
            database.execute(f'CREATE VIEW "{table}" AS SELECT * FROM "{table}_data"')
    report = ingested(source, "lake")
    if report.refused:
        assert "view" in report.refused[0].message
    else:
        assert kernels(report) == expected
