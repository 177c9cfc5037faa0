"""Run SQL over a lake's relations in DuckDB: one SELECT, which can read the lake's files only."""

import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from jitter.core.errors import JitterError, UsageError
from jitter.core.sql import load_sql, open_duckdb
from jitter.core.step_key import StepKey
from jitter.lake.parquet import unreadable_file_error
from jitter.query.parse import parse_query
from jitter.query.relations import QueryableLake, Relation, lake_relations

Parameters = Sequence[Any] | Mapping[str, Any] | None
_SHOW = "the relations and their columns: jitter query --relations"
_BATCH_ROWS = 100_000
_FOLDER_PREFIX: Final = "jitter-query-"
_CONFIG: Final = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}


@dataclass(frozen=True)
class Column:
    """A column of a relation: name, SQL type and description."""

    name: str
    type: str
    description: str


@dataclass(frozen=True)
class RelationInfo:
    """The documentation of a relation."""

    name: str
    sentence: str
    columns: tuple[Column, ...]


class QueryResult:
    """The rows of a query, to be iterated once, batch by batch."""

    def __init__(self, reader: pa.RecordBatchReader, known: Sequence[Relation], limit: "TimeLimit") -> None:
        self.schema: pa.Schema = reader.schema
        self._reader = reader
        self._known = known
        self._limit = limit

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches; raise `UsageError` if the query fails on a value."""
        try:
            yield from self._reader
        except (OSError, pa.ArrowException) as error:  # Arrow wraps the errors that DuckDB raises
            raise self._limit.error() or _user_error(error, self._known) from None


class TimeLimit:
    """Interrupts a DuckDB connection after some seconds; None: never."""

    def __init__(self, db: duckdb.DuckDBPyConnection, seconds: float | None) -> None:
        self._db = db
        self._seconds = seconds
        self._is_over = threading.Event()
        self._has_ended = threading.Event()

    def __enter__(self) -> Self:
        if self._seconds is not None:
            threading.Thread(target=self._wait, args=(self._seconds,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()

    def _wait(self, seconds: float) -> None:
        left = seconds
        # again and again: an interrupt between two statements has no effect
        while not self._has_ended.wait(left):
            self._is_over.set()
            self._db.interrupt()
            left = 0.1

    def error(self) -> JitterError | None:
        """Return the error for the user if the time is over."""
        if not self._is_over.is_set():
            return None
        return UsageError(
            f"the query took longer than {self._seconds:g} s and was stopped",
            "limit it to few steps, as in metrics(2003), or give --timeout SECONDS (0: no limit)",
        )


@contextmanager
def run_query(
    lake: QueryableLake,
    text: str,
    parameters: Parameters = None,
    say: Callable[[str], None] = lambda message: None,
    prepare: Callable[[frozenset[str]], None] = lambda relations: None,
    timeout_s: float | None = None,
) -> Iterator[QueryResult]:
    """Run one SELECT and give its rows while the context lasts.

    `parameters` fill its placeholders. `prepare` is called with the names of the relations in the query before they
    are read, `say` with a message before a long computation. The query is stopped after `timeout_s` seconds; making the
    relations does not count.

    Raises `UsageError` for a text that is not one SELECT, for errors in the query, and for files outside the lake;
    `LakeError` if a file of the lake is missing.
    """
    known = lake_relations(lake)
    with ExitStack() as stack:
        folder = stack.enter_context(_temporary_folder())
        db = stack.enter_context(open_duckdb(Path(folder, "query.duckdb"), _CONFIG))
        limit = TimeLimit(db, timeout_s)
        try:
            named = parse_query(db, text)
            steps = named.steps(lake)
            prepare(named.relations)
            if {"answers", "culprits", "efficiency"} & named.relations and len(lake.steps) > 1:
                say(f"diagnosing {len(lake.steps)} steps")
            for relation in known:
                is_named = relation.name in named.relations
                if is_named and relation.name == "metrics" and len(steps) > 1:
                    say(f"computing the metrics of {len(steps)} steps; metrics(N) reads only step N")
                _create(db, relation, Path(folder), steps if is_named else None)
            _create_views(db, known)
            _lock(db, lake.root, Path(folder))
            stack.enter_context(limit)
            rows = QueryResult(db.sql(text, params=parameters).to_arrow_reader(_BATCH_ROWS), known, limit)
        except duckdb.Error as error:
            raise limit.error() or _user_error(error, known) from None
        yield rows


@contextmanager
def _temporary_folder() -> Iterator[str]:
    """Yield a temporary folder, and remove those of processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        pid = path.name.removeprefix(_FOLDER_PREFIX).partition("-")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists() and Path("/proc/self").exists():
            shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{_FOLDER_PREFIX}{os.getpid()}-") as folder:
        yield folder


def query_table(lake: QueryableLake, text: str, parameters: Parameters = None) -> pa.Table:
    """Run one SELECT and return all its rows; raise the errors of `run_query`."""
    with run_query(lake, text, parameters) as rows:
        return pa.Table.from_batches(rows, rows.schema)


def describe_relations(lake: QueryableLake) -> list[RelationInfo]:
    """Return the documentation of all relations."""
    with _temporary_folder() as folder, open_duckdb(Path(folder, "query.duckdb"), _CONFIG) as db:
        known = lake_relations(lake)
        for relation in known:
            _create(db, relation, Path(folder), None)
        _create_views(db, known)
        return [_describe(db, relation) for relation in known]


def _lock(db: duckdb.DuckDBPyConnection, root: Path, folder: Path) -> None:
    """Restrict the connection, irrevocably, to files of the lake and of the temporary folder."""
    db.execute("SET temp_directory = $spill", {"spill": str(folder / "spill")})
    db.execute("SET allowed_directories = $folders", {"folders": [f"{root}/", f"{folder}/"]})
    db.execute("SET enable_external_access = false")
    db.execute("SET lock_configuration = true")


def _create(db: duckdb.DuckDBPyConnection, relation: Relation, folder: Path, steps: Sequence[StepKey] | None) -> None:
    """Make the source of a relation; without rows if `steps` is None, because the query does not name the relation."""
    if relation.files is not None:
        paths = [] if steps is None else list(relation.files())
        is_union = bool(paths) and relation.has_old_files()
        if is_union or not paths:
            paths.insert(0, folder / f"{relation.name}.parquet")
            pq.write_table(relation.schema.empty_table(), paths[0])
        db.execute(f"SET VARIABLE {relation.name}_files = $paths", {"paths": [str(path) for path in paths]})
        db.execute(f"SET VARIABLE {relation.name}_union = {is_union}")
    if relation.tables is not None:
        _insert(db, f"CREATE TABLE {relation.name}_rows AS FROM _rows", relation.schema.empty_table())
        for table in () if steps is None else relation.tables(steps):
            _insert(db, f"INSERT INTO {relation.name}_rows FROM _rows", table)


def _insert(db: duckdb.DuckDBPyConnection, statement: str, table: pa.Table) -> None:
    db.register("_rows", table)
    db.execute(statement)
    db.unregister("_rows")


def _create_views(db: duckdb.DuckDBPyConnection, known: Sequence[Relation]) -> None:
    for relation in known:
        db.execute(_view_sql(relation))
    db.execute(load_sql(__package__, "metrics_of_step"))


def _view_sql(relation: Relation) -> str:
    """Return the statement that makes the relation's view."""
    if relation.sentence is None:
        return load_sql(__package__, relation.name)
    columns = ", ".join(f'"{field.name}"' for field in relation.schema)
    return f"CREATE VIEW {relation.name} AS SELECT {columns} FROM {relation.name}_rows"


def _describe(db: duckdb.DuckDBPyConnection, relation: Relation) -> RelationInfo:
    """Join the columns' types with their descriptions: comments in the relation's file, or its schema's metadata."""
    sentence = relation.sentence
    if sentence is not None:
        descriptions = {field.name: field.metadata[b"description"].decode() for field in relation.schema}
    else:
        text = load_sql(__package__, relation.name)
        sentence = " ".join(re.findall(r"^-- (.*)$", text, re.M))
        descriptions = dict(re.findall(r"(\w+),?\s+-- (.*)$", text, re.M))
    columns = db.execute(f"DESCRIBE {relation.name}").fetchall()
    documented = tuple(Column(column, kind, descriptions[column]) for column, kind, *_ in columns)
    return RelationInfo(relation.name, sentence, documented)


def _user_error(error: Exception, known: Sequence[Relation]) -> JitterError:
    """Return the error for the user: what DuckDB reports in one line, and what to do about it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    kind, _, what = lines[0].partition(" Error: ")
    lost = re.search(r"""["']([^"']*/rank=[^"']*\.parquet)["']""", what)
    if lost is not None:
        return unreadable_file_error(Path(lost[1]), OSError(what))
    if "file system operations are disabled" in what:
        return UsageError("a query may read the lake's relations and no other file", _SHOW)
    if kind == "Catalog" and what.startswith("Table with name"):
        return UsageError(
            f"the query: {what.partition('!')[0]}",
            f"there are {', '.join(r.name for r in known)}; their columns: jitter query --relations",
        )
    candidates = next((line for line in lines[1:] if line.startswith("Candidate")), None)
    return UsageError(f"the query: {what or kind}", candidates or _SHOW)
