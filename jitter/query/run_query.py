"""SQL over a lake's relations, in DuckDB: one SELECT, read-only, and no file but the lake's."""

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from jitter.core.errors import JitterError, UsageError
from jitter.core.sql import load_sql
from jitter.core.step_key import StepKey
from jitter.lake.parquet import unreadable_file_error
from jitter.query.parse import parse_query
from jitter.query.relations import QueryableLake, Relation, lake_relations

_SHOW = "the relations and their columns: jitter query --relations"
_BATCH_ROWS = 100_000


@dataclass(frozen=True)
class Column:
    """A relation's column: its name, its type as SQL has it, and a few words."""

    name: str
    type: str
    words: str


@dataclass(frozen=True)
class RelationInfo:
    """A relation as a person sees it."""

    name: str
    sentence: str
    columns: tuple[Column, ...]


class QueryResult:
    """A query's answer, to be read once, batch by batch."""

    def __init__(self, reader: pa.RecordBatchReader, known: Sequence[Relation]) -> None:
        self.schema: pa.Schema = reader.schema
        self._reader = reader
        self._known = known

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Raise `UsageError` where the query fails on a value."""
        try:
            yield from self._reader
        except (OSError, pa.ArrowException) as error:  # so Arrow hands on what DuckDB raises meanwhile
            raise _plain(error, self._known) from None


@contextmanager
def run_query(lake: QueryableLake, text: str, say: Callable[[str], None] = lambda _: None) -> Iterator[QueryResult]:
    """Run one SELECT and give its rows while the context lasts.

    `say` is told what takes long. Raises `UsageError` for what is no SELECT, what DuckDB refuses, and what lies
    outside the lake; `LakeError` where the lake has lost a file.
    """
    known = lake_relations(lake)
    with tempfile.TemporaryDirectory(prefix="jitter-query-") as folder, _opened(Path(folder)) as db:
        try:
            named = parse_query(db, text)
            steps = named.steps(lake)
            if {"answers", "culprits"} & named.relations and len(lake.steps) > 1:
                say(f"examining {len(lake.steps)} steps")
            for relation in known:
                is_named = relation.name in named.relations
                if is_named and relation.name == "metrics" and len(steps) > 1:
                    say(f"measuring {len(steps)} steps; metrics(N) is one step's")
                _create(db, relation, Path(folder), steps if is_named else None)
            _create_views(db, known)
            _lock(db, lake.root, Path(folder))
            rows = QueryResult(db.sql(text).to_arrow_reader(_BATCH_ROWS), known)
        except duckdb.Error as error:
            raise _plain(error, known) from None
        yield rows


def query_table(lake: QueryableLake, text: str) -> pa.Table:
    """Run one SELECT and give all its rows; raises as `run_query` does."""
    with run_query(lake, text) as rows:
        return pa.Table.from_batches(rows, rows.schema)


def describe_relations(lake: QueryableLake) -> list[RelationInfo]:
    """What relations there are, with every column."""
    with tempfile.TemporaryDirectory(prefix="jitter-query-") as folder, _opened(Path(folder)) as db:
        known = lake_relations(lake)
        for relation in known:
            _create(db, relation, Path(folder), None)
        _create_views(db, known)
        return [_describe(db, relation.name) for relation in known]


def _opened(folder: Path) -> duckdb.DuckDBPyConnection:
    """Open a database of our own in a file, so that what does not fit into memory goes to disk."""
    return duckdb.connect(
        str(folder / "query.duckdb"),
        config={"autoinstall_known_extensions": False, "autoload_known_extensions": False},
    )


def _lock(db: duckdb.DuckDBPyConnection, root: Path, folder: Path) -> None:
    """From here on nothing but the lake and our own folder can be read, and that cannot be undone."""
    db.execute("SET temp_directory = $spill", {"spill": str(folder / "spill")})
    db.execute("SET allowed_directories = $folders", {"folders": [f"{root}/", f"{folder}/"]})
    db.execute("SET enable_external_access = false")
    db.execute("SET lock_configuration = true")


def _create(db: duckdb.DuckDBPyConnection, relation: Relation, folder: Path, steps: Sequence[StepKey] | None) -> None:
    """Make what a relation selects from; without rows where `steps` is None, since the query does not name it."""
    if relation.files is not None:
        paths = [] if steps is None else relation.files()
        if not paths or relation.has_older_files:  # the first file states the columns
            paths = [folder / f"{relation.name}.parquet", *paths]
            pq.write_table(relation.schema.empty_table(), paths[0])
        db.execute(f"SET VARIABLE {relation.name}_differ = {str(relation.has_older_files).lower()}")
        db.execute(
            "CREATE TEMP TABLE _paths AS SELECT unnest($paths) AS path", {"paths": [str(path) for path in paths]}
        )
        db.execute(f"SET VARIABLE {relation.name}_files = (SELECT list(path) FROM _paths)")
        db.execute("DROP TABLE _paths")
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
        db.execute(load_sql(__package__, f"{relation.name}"))
    db.execute(load_sql(__package__, "metrics_of_step"))


def _describe(db: duckdb.DuckDBPyConnection, name: str) -> RelationInfo:
    """Put the columns' types beside the comments that their lines in the relation's file end with."""
    text = load_sql(__package__, f"{name}")
    sentence = " ".join(re.findall(r"^-- (.*)$", text, re.M))
    words = dict(re.findall(r"(\w+),?\s+-- (.*)$", text, re.M))
    columns = db.execute(f"DESCRIBE {name}").fetchall()
    return RelationInfo(name, sentence, tuple(Column(column, kind, words[column]) for column, kind, *_ in columns))


def _plain(error: Exception, known: Sequence[Relation]) -> JitterError:
    """Say in one line what DuckDB has against the query, and in another what to do about it."""
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
