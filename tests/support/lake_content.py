"""A lake's whole content in a form that compares: rows of every parquet file, records, catalogue."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import sqlalchemy as sa


def content(lake: Path, trace_root: Path | None = None) -> dict[str, Any]:
    """Path from the root → content, of every file, hidden ones too. Times of change of files are left out."""
    found: dict[str, Any] = {}
    for path in sorted(lake.rglob("*")):
        if path.is_file():
            found[path.relative_to(lake).as_posix()] = _content(path, trace_root)
    return found


def _content(path: Path, trace_root: Path | None) -> Any:
    if path.suffix == ".parquet":
        table = pq.read_table(path, partitioning=None)
        return table.schema.to_string(), table.to_pylist()
    if path.name == "catalog.sqlite":
        return catalogue(path)
    if path.suffix == ".json":
        record = msgspec.json.decode(path.read_bytes())
        record.pop("mtime_ns", None)
        record.pop("checksum", None)  # depends on the time of change
        if trace_root is not None and "file" in record:
            record["file"] = str(Path(record["file"]).relative_to(trace_root))
        return record
    return path.read_bytes()


def catalogue(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Every table's rows, through SQLAlchemy's own reflection."""
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.pool.NullPool)
    tables = sa.MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        rows = {
            name: [dict(row._mapping) for row in connection.execute(sa.select(table))]
            for name, table in tables.tables.items()
            if name != "state"
        }
    for found in rows.values():
        for row in found:
            row.pop("mtime_ns", None)
            row.pop("id", None)
    return {name: sorted(found, key=repr) for name, found in rows.items()}


def catalogue_is_records(lake: Path) -> bool:
    """Whether the catalogue has just the records of the lake."""
    if not (lake / "catalog.sqlite").exists():
        return False
    found, kept = catalogue(lake / "catalog.sqlite"), records(lake)
    columns = set(found["sources"][0])
    sources = {row["digest"]: row for row in found["sources"]}
    steps = {(row.pop("source"), row.pop("position"), row.pop("rank")): row for row in found["steps"]}
    recorded = {
        (record["digest"], position, record["rank"]): {name: value for name, value in step.items() if name != "times"}
        for record in kept
        for position, step in enumerate(record["steps"])
    }
    problems = {(row["source"], row["problem"]) for row in found["problems"]}
    return (
        sources == {record["digest"]: {name: record[name] for name in columns} for record in kept}
        and steps == recorded
        and problems == {(record["digest"], problem) for record in kept for problem in record["problems"]}
    )


def records(lake: Path) -> list[dict[str, Any]]:
    """All records, by rank, plain."""
    found = [msgspec.json.decode(path.read_bytes()) for path in (lake / "sources").iterdir()]
    return sorted(found, key=lambda record: (record["rank"] is None, record["rank"] or 0, record["digest"]))


def kernel_files(lake: Path) -> set[str]:
    return {path.relative_to(lake).as_posix() for path in (lake / "kernels").rglob("*") if path.is_file()}
