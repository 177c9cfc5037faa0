"""The tables of the catalog and the writing of it. Imports SQLAlchemy, so only what writes a catalog imports this."""

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

import sqlalchemy as sa

from jitter.lake.records import SourceRecord

_metadata = sa.MetaData()

_state = sa.Table("state", _metadata, sa.Column("made_from", sa.String, nullable=False))

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

_of_source = attrgetter(*(column.name for column in sources.columns))
# the first three columns are not fields of a step record
_of_step = attrgetter(*(column.name for column in list(steps.columns)[3:]))


def write(path: Path, made_from: str, records: Sequence[SourceRecord]) -> None:
    """Write a new catalog of these records; `made_from` is the digest of the records' state."""
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        # the file is put in place only when it is complete: waiting for the disk gains nothing
        connection.exec_driver_sql("PRAGMA synchronous = OFF")
        connection.exec_driver_sql("PRAGMA journal_mode = OFF")
        _metadata.create_all(connection)
        for table, rows in (
            (_state, [(made_from,)]),
            (sources, [_of_source(record) for record in records]),
            (steps, [(r.digest, at, r.rank, *_of_step(step)) for r in records for at, step in enumerate(r.steps)]),
            (problems, [(None, r.digest, problem) for r in records for problem in r.problems]),
        ):
            if rows:
                connection.exec_driver_sql(str(sa.insert(table).compile(engine)), rows)
