"""`LAKE/catalog.sqlite`: the records as tables, for queries. Derived: rebuilt when they have changed."""

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa

from jitter import unfinished
from jitter.records import SourceRecord

_VERSION = 2
"""Of the tables below: a catalogue of another version is stale."""

_metadata = sa.MetaData()

_state = sa.Table("state", _metadata, sa.Column("fingerprint", sa.String, nullable=False))

sources = sa.Table(
    "sources",
    _metadata,
    sa.Column("digest", sa.String, primary_key=True),
    sa.Column("file", sa.String, nullable=False),
    sa.Column("file_digest", sa.String, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("mtime_ns", sa.BigInteger, nullable=False),
    sa.Column("part", sa.Integer, nullable=False),
    sa.Column("parts", sa.Integer, nullable=False),
    sa.Column("step_pattern", sa.String),
    sa.Column("format", sa.String, nullable=False),
    sa.Column("reader_version", sa.Integer, nullable=False),
    sa.Column("profiler_version", sa.String),
    sa.Column("rank", sa.Integer, index=True),
    sa.Column("rank_told_by", sa.String),
    sa.Column("host", sa.String),
    sa.Column("device", sa.Integer),
    sa.Column("pid", sa.Integer),
    sa.Column("clock", sa.String, nullable=False),
    sa.Column("utc_offset_ns", sa.BigInteger),
    sa.Column("main_stream", sa.BigInteger),
    sa.Column("has_launches", sa.Boolean, nullable=False),
    sa.Column("steps_from", sa.String, nullable=False),
    sa.Column("kernels", sa.BigInteger, nullable=False),
    sa.Column("outside_steps", sa.BigInteger, nullable=False),
    sa.Column("before_capture", sa.BigInteger, nullable=False),
)

steps = sa.Table(
    "steps",
    _metadata,
    sa.Column("source", sa.ForeignKey("sources.digest"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("rank", sa.Integer, nullable=False),
    sa.Column("epoch", sa.BigInteger),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("marker", sa.String),
    sa.Column("start_ns", sa.BigInteger, nullable=False),
    sa.Column("end_ns", sa.BigInteger),
    sa.Column("cut", sa.Boolean, nullable=False),
    sa.Column("launches_without_kernel", sa.Integer, nullable=False),
    sa.Column("kernels", sa.Integer, nullable=False),
    sa.Column("memory_activities", sa.Integer, nullable=False),
    sa.Column("sequence", sa.String, nullable=False),
    sa.Index("steps_by_number", "epoch", "step", "rank"),
)

problems = sa.Table(
    "problems",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("source", sa.ForeignKey("sources.digest"), nullable=False),
    sa.Column("problem", sa.String, nullable=False),
)

_STEP_COLUMNS = [column.name for column in steps.columns if column.name not in {"source", "position", "rank"}]
_SOURCE_COLUMNS = [column.name for column in sources.columns]


_TRIES = 5
"""What others still add after that, the next reader takes in."""


def fingerprint(root: Path) -> str:
    """What the records looked like: names, sizes and times of change of all of them."""
    digest = hashlib.blake2b(f"{_VERSION}\n".encode(), digest_size=16)
    for path in sorted((root / "sources").glob("*.json")):
        with suppress(FileNotFoundError):  # another run may have replaced it just now
            state = path.stat()
            digest.update(f"{path.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def is_current(root: Path) -> bool:
    """Whether the catalogue was built from the records as they are now."""
    path = root / "catalog.sqlite"
    if not path.exists():
        return False
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.pool.NullPool)
    try:
        with engine.connect() as connection:
            return connection.execute(sa.select(_state.c.fingerprint)).scalar() == fingerprint(root)
    except sa.exc.DatabaseError:
        return False


def refresh(root: Path, records: Callable[[], Sequence[SourceRecord]]) -> None:
    """Rebuild the catalogue if the records have changed since it was built.

    Where many runs end at once, one that is slow may put an old one in place of a new one: it looks again.
    """
    for _ in range(_TRIES):
        if is_current(root) or not os.access(root, os.W_OK):
            return
        rebuild(root, records)


def rebuild(root: Path, records: Sequence[SourceRecord] | Callable[[], Sequence[SourceRecord]]) -> None:
    """Write the catalogue anew from the records and put it in place of the old one.

    Give a function where others may add records meanwhile.
    """
    mark = fingerprint(root)  # before the records are read: one that comes later makes the catalogue stale
    if callable(records):
        records = records()
    run = unfinished.make(unfinished.new_run(root))
    temporary = run / "catalog.sqlite"
    engine = sa.create_engine(f"sqlite:///{temporary}", poolclass=sa.pool.NullPool)
    try:
        with engine.begin() as connection:
            _metadata.create_all(connection)
            connection.execute(sa.insert(_state), [{"fingerprint": mark}])
            for table, rows in (
                (sources, [{name: getattr(record, name) for name in _SOURCE_COLUMNS} for record in records]),
                (steps, [row for record in records for row in _step_rows(record)]),
                (problems, [{"source": r.digest, "problem": problem} for r in records for problem in r.problems]),
            ):
                if rows:
                    connection.execute(sa.insert(table), rows)
        temporary.replace(root / "catalog.sqlite")
    finally:
        shutil.rmtree(run, ignore_errors=True)
        unfinished.drop_if_empty(root)


def _step_rows(record: SourceRecord) -> list[dict[str, object]]:
    return [
        {
            "source": record.digest,
            "position": position,
            "rank": record.rank,
            **{name: getattr(step, name) for name in _STEP_COLUMNS},
        }
        for position, step in enumerate(record.steps)
    ]
