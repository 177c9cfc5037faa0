"""The tables of the catalog and the writing of it. Imports SQLAlchemy, so only what writes a catalog imports this.

`sources` and `steps` have a column for every plain field of `SourceRecord` and `StepRecord`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa

from jitter.lake.records import SourceRecord, StepRecord, plain_fields

_TYPES = {int: sa.BigInteger, str: sa.String, bool: sa.Boolean}


def _columns(record: type[msgspec.Struct], **options: dict[str, Any]) -> list[sa.Column[Any]]:
    return [
        sa.Column(name, _TYPES[kind], nullable=nullable, **options.get(name, {}))
        for name, (kind, nullable) in plain_fields(record).items()
    ]


_metadata = sa.MetaData()
_state = sa.Table("state", _metadata, sa.Column("made_from", sa.String, nullable=False))
_sources = sa.Table("sources", _metadata, *_columns(SourceRecord, digest={"primary_key": True}, rank={"index": True}))
_steps = sa.Table(
    "steps",
    _metadata,
    sa.Column("source", sa.ForeignKey("sources.digest"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("rank", sa.BigInteger, nullable=False),
    *_columns(StepRecord),
    sa.Index("steps_by_number", "epoch", "step", "rank"),
)
_problems = sa.Table(
    "problems",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("source", sa.ForeignKey("sources.digest"), nullable=False),
    sa.Column("problem", sa.String, nullable=False),
)

_source_values = attrgetter(*plain_fields(SourceRecord))
_step_values = attrgetter(*plain_fields(StepRecord))


@contextmanager
def _errors_of_sqlite() -> Iterator[None]:
    """Raise SQLite's own error for SQLAlchemy's, whose message holds the statement."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise (error.orig or error) from None


def write(path: Path, made_from: str, records: Sequence[SourceRecord]) -> None:
    """Write a new catalog of these records; `made_from` is the digest of the records' state."""
    engine = sa.create_engine(f"sqlite:///{path}", poolclass=sa.pool.NullPool)
    with _errors_of_sqlite(), engine.begin() as connection:
        # the file is put in place only when it is complete: waiting for the disk gains nothing
        connection.exec_driver_sql("PRAGMA synchronous = OFF")
        connection.exec_driver_sql("PRAGMA journal_mode = OFF")
        _metadata.create_all(connection)
        steps = [(r.digest, at, r.rank, *_step_values(step)) for r in records for at, step in enumerate(r.steps)]
        for table, rows in (
            (_state, [(made_from,)]),
            (_sources, [_source_values(record) for record in records]),
            (_steps, steps),
            (_problems, [(None, r.digest, problem) for r in records for problem in r.problems]),
        ):
            if rows:
                connection.exec_driver_sql(str(sa.insert(table).compile(engine)), rows)
