"""The database of the history: SQLite or PostgreSQL by URL, with its connection, its schema and its errors.

The schema's versions are the SQL scripts of `schema`, in the order of their numbers. A connection that finds an older
version runs the missing scripts in one transaction. Messages name no user, password or host of a URL.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from jitter.core.errors import JitterError, UsageError

VARIABLE: Final = "JITTER_HISTORY"
_DEFAULT: Final = "~/.local/share/jitter/history.sqlite"
_WAIT_S: Final = 60
"""How long a writer waits for another one."""
_MIGRATION_LOCK: Final = 7_204_801
"""Key of PostgreSQL's advisory lock: two clients migrate one after the other."""


def history_location(given: str | None) -> str:
    """Return `given`, else $JITTER_HISTORY, else the default file: a path or a URL."""
    return given or os.environ.get(VARIABLE) or str(Path(_DEFAULT).expanduser())


class Database:
    """An open history database, migrated to this version's schema."""

    def __init__(self, location: str) -> None:
        """Open the database at a path or URL; an SQLite file is created.

        Raises `UsageError` for a URL of another kind of database, and `JitterError` if it cannot be opened, or was
        written by a newer jitter.
        """
        url = _parse(location)
        self.named = f"the history {url.database}" if url.get_backend_name() == "sqlite" else "the PostgreSQL history"
        """How messages name the database."""
        if url.get_backend_name() == "sqlite":
            self._engine = _sqlite_engine(url, self.named)
        else:
            self._engine = _postgresql_engine(url)
        self._migrate()

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Yield a connection in a transaction, which is committed at the end; raise `JitterError` if it fails."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.SQLAlchemyError as error:
            # the driver's message names user and host
            hint = "is the server reachable, and are user, password and database of the URL right?"
            if self._engine.dialect.name == "sqlite":
                hint = "is it a file of jitter history, and may it be written?"
            raise JitterError(f"{self.named} cannot be used ({_reason(error)})", hint) from None

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _migrate(self) -> None:
        scripts = schema_scripts()
        with self.transaction() as connection:
            if self._engine.dialect.name == "postgresql":
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            version = _version(connection)
            if version > len(scripts):
                raise JitterError(
                    f"{self.named} was written by a newer jitter (schema {version}, this one reads {len(scripts)})",
                    "install that version, or name another history with --db",
                )
            for script in scripts[version:]:
                for statement in split_statements(script):
                    connection.exec_driver_sql(statement)
            if version < len(scripts):
                connection.execute(sa.text("UPDATE jitter_history SET version = :new"), {"new": len(scripts)})


def schema_scripts() -> list[str]:
    """Return the SQL of each version of the schema, the oldest first."""
    folder = files("jitter.history").joinpath("schema")
    names = sorted(entry.name for entry in folder.iterdir() if re.fullmatch(r"\d{3}_\w+\.sql", entry.name))
    return [folder.joinpath(name).read_text(encoding="utf-8") for name in names]


def split_statements(script: str) -> list[str]:
    """Return the statements of a script without comments."""
    bare = re.sub(r"--[^\n]*", "", script)
    return [statement.strip() for statement in bare.split(";") if statement.strip()]


def _version(connection: sa.Connection) -> int:
    """Return the version of the schema; 0 for a database that had none, which has the table now."""
    if not sa.inspect(connection).has_table("jitter_history"):
        connection.exec_driver_sql("CREATE TABLE jitter_history (version INTEGER NOT NULL)")
        connection.exec_driver_sql("INSERT INTO jitter_history (version) VALUES (0)")
    version: int | None = connection.execute(sa.text("SELECT max(version) FROM jitter_history")).scalar()
    return version or 0


def _parse(location: str) -> sa.URL:
    if "://" not in location:
        return sa.URL.create("sqlite", database=str(Path(location).expanduser()))
    try:
        url = sa.make_url(location)
    except (sa.exc.ArgumentError, ValueError):
        raise UsageError("the URL of the history cannot be read", "write it like postgresql://host/database") from None
    kind = url.drivername.partition("+")[0]
    if kind in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if kind != "sqlite" or not url.database:
        raise UsageError(f"a history cannot be kept in {kind!r}", "give a file, or postgresql://host/database")
    return url


def _sqlite_engine(url: sa.URL, named: str) -> sa.Engine:
    folder = Path(str(url.database)).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JitterError(f"{named} cannot be created: {error.strerror}", "name another file with --db") from None
    engine = sa.create_engine(url, connect_args={"timeout": _WAIT_S}, poolclass=sa.pool.NullPool)

    # the driver begins transactions too late: two writers would both read before either writes
    @sa.event.listens_for(engine, "connect")
    def _connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _postgresql_engine(url: sa.URL) -> sa.Engine:
    try:
        return sa.create_engine(url, poolclass=sa.pool.NullPool, connect_args={"connect_timeout": 10})
    except ImportError:
        raise JitterError(
            "a history in PostgreSQL needs the package psycopg", "pip install 'gpu-jitter[postgresql]'"
        ) from None


def _reason(error: sa.exc.SQLAlchemyError) -> str:
    """Name the error without the driver's message, except where that names no place: SQLite's."""
    original = getattr(error, "orig", None)
    if original is not None and type(original).__module__.startswith("sqlite3"):
        return str(original)
    state = getattr(original, "sqlstate", None)
    return f"{type(original or error).__name__}{f', SQLSTATE {state}' if state else ''}"
